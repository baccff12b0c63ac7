"""The weights of a model by their names in the plain model, parametrized or not, and the choice among them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.utils import parametrize

from symlab.constraint.patterns import Where, check_changeable, check_patterns, fits, patterns_of
from symlab.symmetry.parametrized import parametrizations_of, parametrized_weights


@dataclass(frozen=True)
class Weight:
    """One tensor of a model: `name` in the plain model, and where it is."""

    name: str
    module: nn.Module
    own: str  # its name in the module

    @property
    def value(self) -> Tensor:
        """The tensor; of a parametrized weight without what its parametrization does while training (power steps)."""
        training = []
        if self.parametrized:
            own = parametrized_weights(self.module)[self.own]
            training = [part for part in own.modules() if part.training]
        for part in training:
            part.training = False
        try:
            found: Tensor = getattr(self.module, self.own)
        finally:
            for part in training:
                part.training = True
        return found

    @property
    def parametrized(self) -> bool:
        return parametrize.is_parametrized(self.module, self.own)


def weights(model: nn.Module) -> Iterator[Weight]:
    """Every parameter by its name in the plain model, in its order there, parametrized or not; shared modules once."""
    for path, module in model.named_modules():
        if "parametrizations" in path.split("."):
            continue
        for name in dict.fromkeys((*module._parameters, *parametrized_weights(module))):
            if module._parameters.get(name, module) is not None:
                yield Weight(f"{path}.{name}" if path else name, module, name)


def select(model: nn.Module, where: Where) -> list[Weight]:
    """The weights that `where` means; None: those with two or more axes that require gradients.

    Raises ValueError for a pattern that matches nothing, naming the nearest; and if nothing is left.
    """
    every = list(weights(model))
    if where is None:
        chosen = [weight for weight in every if _by_default(weight.value)]
    elif callable(where):
        chosen = [weight for weight in every if where(weight.name, weight.value)]
    else:
        patterns = patterns_of(where)
        check_patterns(patterns, [weight.name for weight in every])
        chosen = [weight for weight in every if fits([weight.name], patterns)]
    if not chosen:
        raise ValueError("where: no weight is chosen; by default those with two or more axes that require gradients")
    return chosen


def _by_default(theta: Tensor) -> bool:
    return theta.ndim >= 2 and theta.requires_grad and theta.numel() > 0


def check_free(model: nn.Module, chosen: Sequence[Weight]) -> None:
    """Each is a real tensor with one name, of a layer that torch can copy afterwards, and not parametrized yet.

    Raises ValueError naming the weight and what would be right.
    """
    owners = defaultdict(list)
    for weight in weights(model):
        if not weight.parametrized:
            owners[id(weight.value)].append(weight.name)
    for weight in chosen:
        if weight.parametrized:
            own = parametrized_weights(weight.module)[weight.own]
            kinds = [type(one).__name__ for one in parametrizations_of(own)]
            raise ValueError(f"{weight.name} is parametrized already, by {', '.join(kinds)}: leave it out by `where`")
        check_changeable(weight.name, weight.value, [weight.module])
        if len(names := owners[id(weight.value)]) > 1:
            tied = f"{' and '.join(names)} are one tensor, and a parametrization would part them"
            raise ValueError(f"{tied}: leave them out by `where`")
