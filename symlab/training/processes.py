"""Several processes that train one model: each differentiates its share of every batch, and all make the same update.

R processes, rank r in 0..R-1. Rank 0 alone writes. Small numbers go between the processors' memories (gloo), gradients
and buffers between the devices (nccl on CUDA, gloo on the CPU).
"""

import gc
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from symlab.rundir import BadInput
from symlab.rundir.processes import WAIT, Place, find_place, meeting
from symlab.training.order import Share, mix
from symlab.training.place import find_device
from symlab.training.signals import StopRequest

DROPOUT_STREAM = 0x64726F70
"""Apart from the epochs, whose numbers are the streams of the orders."""


class Processes:
    """What this process has to do with the others; a single one has nothing to do.

    Every method but `network` and `own_part` is called by all processes in the same order.
    """

    def __init__(self, place: Place) -> None:
        self.share = Share(place.rank, place.world)
        self._network: DistributedDataParallel | None = None

    @property
    def writes(self) -> bool:
        """Whether this process writes the run."""
        return self.share.rank == 0

    @property
    def several(self) -> bool:
        return self.share.world > 1

    def wrap(self, model: nn.Module, device: torch.device) -> None:
        """From here on the gradients of `network(model)` are averaged over the processes while they are formed.

        Running statistics of batch norm are those of rank 0, which every forward pass in training starts from.
        """
        if self.several:
            devices = [device] if device.type == "cuda" else None
            self._network = DistributedDataParallel(model, device_ids=devices)

    def network(self, model: nn.Module) -> nn.Module:
        """What is called in training in the place of `model`."""
        return model if self._network is None else self._network

    def own_part(self, last: bool) -> AbstractContextManager[object]:
        """The context of a backward pass whose gradients stay here, unless it is the `last` one of an update."""
        return nullcontext() if last or self._network is None else self._network.no_sync()

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sum of each number over all processes, in float64, bit for bit the same in all."""
        if not self.several:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(value) for value in sums]

    def sum_tensor(self, value: Tensor) -> Tensor:
        """The same for a 0-d tensor, which stays on its device."""
        return value.new_tensor(self.sum([float(value)])[0]) if self.several else value

    def first(self, value: Any) -> Any:
        """Rank 0's value, of plain types and tensors on the CPU."""
        held = [value]
        if self.several:
            dist.broadcast_object_list(held, src=0, device=torch.device("cpu"))
        return held[0]

    def align(self, buffers: Iterable[Tensor]) -> None:
        """Rank 0's values in these tensors."""
        if self.several:
            for buffer in buffers:
                dist.broadcast(buffer, src=0)

    def stopped(self, stop: StopRequest) -> bool:
        """Whether a signal asked any of the processes to stop; `stop` then knows its number in all of them.

        One that arrives during the exchange is for the next call: the answer is the same in all.
        """
        if not self.several:
            return stop()
        number = torch.tensor(stop.signal_number or 0)
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        if number > 0:
            stop.signal_number = int(number)
        return bool(number > 0)

    def reseed(self, seed: int, step: int) -> None:
        """Of several processes each draws dropout masks of its own: a function of (seed, rank, step), so that a
        checkpoint need not hold the random state of every process."""
        if self.several:
            torch.manual_seed(mix(mix(seed, DROPOUT_STREAM + self.share.rank), step))

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """Rank 0 runs the block, then the others do: what it downloads or makes, they find."""
        if not self.writes:
            self.wait_for_all()
        yield
        if self.writes:
            self.wait_for_all()

    def wait_for_all(self) -> None:
        """Return when every process has come here."""
        self.sum([0.0])

    def leave(self) -> None:
        """Let go of the network before the connections close; the other way round torch may abort the process."""
        self._network = None
        gc.collect()
        dist.destroy_process_group()


ALONE = Processes(Place())


@contextmanager
def joined(device: str) -> Iterator[tuple[Processes, torch.device]]:
    """The processes of this run, as torchrun or srun started them, and this one's device.

    With several processes `device` cuda (or auto where there is CUDA) is the device of the process's number on its
    machine; a certain one, cuda:1, is refused. Raises BadInput for that, for more processes than devices, and for two
    processes on one device.
    """
    place = find_place()
    if place.world == 1:
        yield ALONE, find_device(device)
        return
    own = _own_device(device, place)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    backend = "cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=meeting().group_store(), rank=place.rank, world_size=place.world, timeout=WAIT
    )
    processes = Processes(place)
    try:
        if own.type == "cuda":
            _claim_device(place, str(torch.cuda.get_device_properties(own).uuid))
        yield processes, own
        processes.wait_for_all()  # what starts the processes may end all of them once one has ended, so rank 0 first
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # they hold the network
        first = _failed_before(place, error)
        if isinstance(error, RuntimeError) and first is not None:  # the connection to that process, as a rule
            raise RuntimeError(first) from error
        if _lost_connection(error):
            raise RuntimeError(
                f"process {place.rank} of {place.world}: another process has gone without a word (killed, or out of"
                f" memory?); resume= continues from the last checkpoint ({error})"
            ) from error
        raise
    finally:
        processes.leave()


def _failed_before(place: Place, error: BaseException) -> str | None:
    """Which process failed before this one, and why; where there is none, this one leaves word for the others."""
    if not isinstance(error, Exception):
        return None  # this process was told to stop
    own = f"process {place.rank} of {place.world}: {error}"
    with suppress(dist.DistError):  # where such words are kept may be gone with its process
        first = meeting().first_failure(own)
        return None if first == own else first
    return None


def _lost_connection(error: BaseException) -> bool:
    """Whether torch's errors about connections are meant; gloo's have no class of their own, but name its source."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _claim_device(place: Place, uuid: str) -> None:
    """Raises BadInput where another process computes on the device with this number: nccl would refuse it later."""
    owner = meeting().claim(f"device/{uuid}", place.rank)
    if owner != place.rank:
        raise BadInput(
            f"processes {owner} and {place.rank} of {place.world} have the same CUDA device: start one process per"
            " device (with srun, --gpus-per-task=1 gives each its own), or use device=cpu"
        )


def _own_device(name: str, place: Place) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return find_device("cpu")
    if name not in ("auto", "cuda"):
        raise BadInput(f"device={name}: each of the {place.world} processes takes a device of its own: use device=cuda")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = 0 if count == 1 else place.local_rank  # SLURM may show each process its own device alone
    if index >= count:
        raise BadInput(
            f"device={name}: process {place.rank} is number {place.local_rank} on its machine, which has {count} CUDA"
            " devices: start one process per device, or use device=cpu"
        )
    return find_device(f"cuda:{index}")
