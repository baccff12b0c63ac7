"""Training state to and from a dictionary of tensors and plain values, which torch loads with weights_only=True."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from symlab.rundir import BadInput
from symlab.training.best import Best
from symlab.training.randomness import random_state, set_random_state
from symlab.training.state import Training

FORMAT = 1
PARTS = ("step", "evaluated", "loss_sum", "loss_count", "seconds", "best", "model", "optimizer", "random_state")

EXTRAS = ("loss_scale", "weight_average")


def capture(training: Training, best: Best, seed: int, steps_per_epoch: int) -> dict[str, Any]:
    """All that an exact continuation needs. The tensors are the live ones: save before the next update."""
    return {
        "format": FORMAT,
        "seed": seed,
        "steps_per_epoch": steps_per_epoch,
        "step": training.step,
        "evaluated": training.evaluated,
        "loss_sum": training.loss_sum,
        "loss_count": training.loss_count,
        "seconds": training.seconds,
        "best": {"metric": best.metric, "value": best.value, "step": best.step},
        "model": training.model.state_dict(),
        "optimizer_type": type(training.optimizer).__name__,
        "optimizer": training.optimizer.state_dict(),
        "random_state": random_state(_device(training)),
        **_extras(training),
    }


def _extras(training: Training) -> dict[str, Any]:
    """What only some runs have."""
    extras: dict[str, Any] = {}
    if training.how.scale is not None:
        extras["loss_scale"] = training.how.scale.state()
    if training.average is not None:
        extras["weight_average"] = training.average.model.state_dict()
    return extras


def capture_best(best: Best, seed: int) -> dict[str, Any]:
    """The best weights with the value and step that made them best."""
    return {
        "format": FORMAT,
        "seed": seed,
        "step": best.step,
        "metric": best.metric,
        "value": best.value,
        "model": best.unsaved_weights,
    }


def restore(state: Mapping[str, Any], training: Training, best: Best, seed: int, steps_per_epoch: int) -> None:
    """Put a captured state into freshly built objects and set the global random state.

    Raises BadInput when the checkpoint belongs to another format, seed, data size, model or optimizer, or to other
    settings of the optimizer, and when a statistic of the optimizer did not keep its dtype and shape.
    """
    kind = type(training.optimizer).__name__
    expected = {"format": FORMAT, "seed": seed, "steps_per_epoch": steps_per_epoch, "optimizer_type": kind}
    for name, value in expected.items():
        if state.get(name) != value:
            raise BadInput(f"the checkpoint has {name}={state.get(name)}, this run has {name}={value}")
    for name in PARTS:
        if name not in state:
            raise BadInput(f"the checkpoint has no {name}")
    for name in EXTRAS:
        if (name in state) != (name in _extras(training)):
            raise BadInput(f"the checkpoint has {'a' if name in state else 'no'} {name}, this run the contrary")
    _restore_model(state, training)
    _check_settings(state["optimizer"], training.optimizer.state_dict())
    training.optimizer.load_state_dict(state["optimizer"])
    _check_statistics(state["optimizer"], training.optimizer.state_dict())
    training.step, training.evaluated = state["step"], state["evaluated"]
    training.loss_sum, training.loss_count = state["loss_sum"], state["loss_count"]
    training.seconds = state["seconds"]
    best.value, best.step = state["best"]["value"], state["best"]["step"]
    if training.how.scale is not None:
        training.how.scale.restore(state["loss_scale"])
    if training.average is not None:
        training.average.model.load_state_dict(state["weight_average"])
    set_random_state(state["random_state"], _device(training))


def _restore_model(state: Mapping[str, Any], training: Training) -> None:
    own = {name: list(tensor.shape) for name, tensor in training.model.state_dict().items()}
    saved = {name: list(tensor.shape) for name, tensor in state["model"].items()}
    for name in [*saved, *own]:
        if saved.get(name) != own.get(name):
            raise BadInput(f"the checkpoint has {name} of shape {saved.get(name)}, this model {own.get(name)}")
    training.model.load_state_dict(state["model"])


def _check_settings(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """torch's load_state_dict would put the saved settings in place of this run's, without a word."""
    if len(saved["param_groups"]) != len(own["param_groups"]):
        return  # load_state_dict names this mistake
    for before, now in zip(saved["param_groups"], own["param_groups"], strict=True):
        for name in before.keys() & now.keys() - {"lr", "params"}:  # lr: the schedule sets it at every update
            if before[name] != now[name]:
                raise BadInput(f"the checkpoint has {name}={before[name]}, this run's optimizer {name}={now[name]}")


def _check_statistics(saved: Mapping[str, Any], loaded: Mapping[str, Any]) -> None:
    """torch's load_state_dict casts statistics to the parameter's dtype unless an optimizer prevents it."""
    before, after = dict(_tensors(saved)), dict(_tensors(loaded))
    for name in [*before, *after]:
        was, is_now = before.get(name), after.get(name)
        if was is None or is_now is None or (was.dtype, was.shape) != (is_now.dtype, is_now.shape):
            raise BadInput(
                f"the optimizer does not restore its state {name}: saved {_kind(was)}, loaded {_kind(is_now)}"
            )


def _kind(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def _tensors(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _tensors(value, f"{path}/{key}")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _tensors(value, f"{path}/{index}")


def _device(training: Training) -> torch.device:
    return next(training.model.parameters()).device
