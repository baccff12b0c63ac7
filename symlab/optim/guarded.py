"""Optimizers of libraries under symlab's policy: a bad gradient raises and changes nothing, a loaded state is exact."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from symlab.optim.coverage import Coverage

OF_STEPS = {"step", "update_counter", "param_names"}
"""Keys of a group that come with the first step (or with names): a saved state may lack them."""


class Guarded(Optimizer, ABC):
    """One `state` and one list of `param_groups` over optimizers of libraries, which hold the same dictionaries.

    state_dict, load_state_dict, deepcopy, pickling and a change of `lr` in a group act on it as on any other optimizer.

    Raises FloatingPointError from `step`, naming the parameter, when a gradient holds NaN or inf, or is so large that
    the sum of its squares overflows; ValueError for a sparse gradient. Weights, state and `.grad` are then unchanged.
    """

    @abstractmethod
    def _bind(self) -> None:
        """Tie what is inside to the present groups and state."""

    @abstractmethod
    def _update(self) -> None:
        """One update of every group from its gradients, which are finite."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copies, pickles and load_state_dict arrive here."""
        super().__setstate__(state)
        self._bind()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as pairs (name, parameter) where the other groups have names, with the group's settings."""
        super().add_param_group(param_group)
        self._bind()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; `closure`, if given, re-evaluates the model and returns the loss, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        check_gradients(self.param_groups)
        self._update()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore state and settings; every tensor keeps the dtype it was saved with.

        Raises ValueError for the state of another optimizer or of other groups.
        """
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=False):
            missing = [key for key in group if key not in saved and key not in OF_STEPS]
            if missing:
                raise ValueError(f"the saved state has no {missing[0]}: it is that of another optimizer")
        super().load_state_dict(state_dict)
        restore_statistics(self, state_dict)
        self._bind()


class LibraryOptimizer(Guarded):
    """One optimizer `kind` of a library, built as `kind(groups, **options)`.

    `rule(parameter, group)` says in words what the library does with a parameter. With a `seed`, the random numbers of
    update t are drawn after torch and numpy were seeded with a function of (seed, t), and the global random state is
    the same before and after: a resumed run draws what the uninterrupted one does.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        kind: Callable[..., Optimizer],
        options: Mapping[str, Any],
        rule: Callable[[Tensor, Mapping[str, Any]], str],
        seed: int | None = None,
    ) -> None:
        self._kind, self._options, self._rule, self._seed = kind, dict(options), rule, seed
        super().__init__(groups, {})  # calls add_param_group for each

    def _bind(self) -> None:
        self._inner = self._kind(self.param_groups, **self._options)
        self._inner.state = self.state

    def _update(self) -> None:
        if self._seed is None:
            self._inner.step()
            return
        devices = {p.device for group in self.param_groups for p in group["params"]}
        with randomness_of(self._seed, self.param_groups[0].get("step", 0), devices):
            self._inner.step()

    def coverage(self) -> list[Coverage]:
        """One row per tensor of the optimizer."""
        return [Coverage(name, self._rule(p, group), p.numel()) for name, p, group in named(self.param_groups)]

    def __getstate__(self) -> dict[str, Any]:
        own = {key: vars(self)[key] for key in ("_kind", "_options", "_rule", "_seed")}
        return {**super().__getstate__(), **own}


def named(groups: Iterable[dict[str, Any]]) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """(name, parameter, its group); a parameter without a name is called by its place in its group."""
    for group in groups:
        names = group.get("param_names", [str(index) for index in range(len(group["params"]))])
        for name, parameter in zip(names, group["params"], strict=True):
            yield name, parameter, group


def check_gradients(groups: Iterable[dict[str, Any]]) -> None:
    """Every gradient is dense and finite, and so is the sum of its squares (one copy to the host for all).

    Raises FloatingPointError or ValueError naming the first parameter that fails.
    """
    gradients = {name: p.grad for name, p, _ in named(groups) if p.grad is not None and p.grad.numel()}
    sparse = [name for name, gradient in gradients.items() if gradient.layout is not torch.strided]
    if sparse:
        raise ValueError(f"the gradient of {sparse[0]} is sparse: dense gradients are needed")
    if not gradients:
        return
    largest = float(nn.utils.get_total_norm(list(gradients.values()), norm_type=math.inf))
    most = max(gradient.numel() for gradient in gradients.values())
    smallest_range = min(torch.finfo(gradient.dtype).max for gradient in gradients.values())
    if math.isfinite(largest) and largest < math.sqrt(smallest_range / most):
        return
    for name, gradient in gradients.items():
        if not bool(gradient.isfinite().all()):
            raise FloatingPointError(f"the gradient of {name} holds NaN or inf: nothing was changed")
    name = max(gradients, key=lambda key: float(gradients[key].abs().max()))
    dtype = gradients[name].dtype
    raise FloatingPointError(f"the gradient of {name} is too large to be squared in {dtype}: nothing was changed")


@contextmanager
def randomness_of(seed: int, step: int, devices: Iterable[torch.device]) -> Iterator[None]:
    """torch's and numpy's global generators are seeded with a function of (seed, step), and set back at the end."""
    number = int(np.random.SeedSequence([seed, step]).generate_state(1)[0])
    before = np.random.get_state()  # noqa: NPY002 - the library draws from the global one
    cuda = [device for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(number)
        np.random.seed(number)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002


def restore_statistics(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Put the saved statistics in place of those that torch's loader has cast to the parameters' dtype."""
    saved = [index for group in state_dict["param_groups"] for index in group["params"]]
    mine = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in zip(saved, mine, strict=True):
        if index in state_dict["state"]:
            optimizer.state[parameter] = copied(state_dict["state"][index], parameter.device)


def copied(value: Any, device: torch.device) -> Any:
    """The value of a saved state with its own tensors, on `device`, every dtype kept."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, dict):
        return {key: copied(item, device) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item, device) for item in value]
    if isinstance(value, tuple):
        return tuple(copied(item, device) for item in value)
    return value


def library(name: str, optimizer: str) -> Any:
    """The class `name` of pytorch-optimizer. Raises ImportError with what to install."""
    try:
        import pytorch_optimizer
    except ImportError as error:
        raise ImportError(f"optimizer {optimizer} needs pytorch-optimizer: pip install 'symlab[baselines]'") from error
    return vars(pytorch_optimizer)[name]


def named_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """(name, parameter) of all that have entries and ask for gradients, tied ones once. Raises ValueError if none."""
    pairs = [(name, p) for name, p in model.named_parameters() if p.requires_grad and p.numel()]
    if not pairs:
        raise ValueError("the model has no trainable parameter: nothing to optimize")
    return pairs
