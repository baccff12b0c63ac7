"""Processes that agree on a stop: a signal in the middle of their exchange is neither lost nor seen by one alone."""

import signal

import torch.distributed as dist

from symlab.rundir.processes import Place
from symlab.training.processes import Processes
from symlab.training.signals import StopRequest


def test_a_signal_during_the_exchange_counts_at_the_next(monkeypatch):
    processes, stop = Processes(Place(rank=1, world=2)), StopRequest()
    monkeypatch.setattr(dist, "all_reduce", lambda number, op: stop.receive(signal.SIGUSR1, None))
    assert not processes.stopped(stop)  # the other process has been told of none
    monkeypatch.setattr(dist, "all_reduce", lambda number, op: None)
    assert processes.stopped(stop)
    assert stop.exit_code == 138


def test_the_signal_of_another_process_stops_this_one(monkeypatch):
    processes, stop = Processes(Place(rank=0, world=2)), StopRequest()
    monkeypatch.setattr(dist, "all_reduce", lambda number, op: number.fill_(int(signal.SIGTERM)))
    assert processes.stopped(stop)
    assert stop.exit_code == 143
