"""The parameter behind a module's weight, where torch.nn.utils.parametrize stands between the two.

Legend: p  parameter, what an optimizer moves;  w  weight, what the module computes with;  a, s  constants.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize


@dataclass(frozen=True, eq=False)
class Behind:
    """w = a p + s entry by entry, with constants a and s of the shape of p; `factor` is a, None for 1 everywhere."""

    parameter: nn.Parameter
    factor: Tensor | None


def behind(module: nn.Module, key: str) -> Behind | None:
    """The parameter behind the weight `module.key`; None where the weight is not such a function of one parameter.

    A weight without a parametrization is its own parameter. One with a parametrization (or several, or nested ones) is
    differentiated at its present value and at a random one, along ones and along a random direction: a derivative that
    is the same everywhere and acts entry by entry makes it a p + s.
    """
    if not parametrize.is_parametrized(module, key):
        plain = dict(module.named_parameters(recurse=False))
        return Behind(plain[key], None) if key in plain else None
    parametrizations = _list_of(module, key)
    own = dict(parametrizations.named_parameters())
    if len(own) != 1:
        return None
    (name, p), *_ = own.items()

    generator = torch.Generator().manual_seed(0)
    x, v = (torch.randn(p.shape, generator=generator).to(p) for _ in range(2))
    ones = torch.ones_like(p.detach())
    if _evaluated(parametrizations, name, p).shape != p.shape:
        return None
    a = _pulled_back(parametrizations, name, p, ones)
    if not torch.equal(_pulled_back(parametrizations, name, x, ones), a):
        return None
    found = _pulled_back(parametrizations, name, x, v)
    if not torch.allclose(found, a * v, rtol=max(4 * torch.finfo(p.dtype).eps, 1e-5)) or not bool((a != 0).all()):
        return None
    return Behind(p, None if torch.equal(a, ones) else a)


def _evaluated(own: parametrize.ParametrizationList, name: str, x: Tensor) -> Tensor:
    """The weight at the parameter's value x; buffers (some parametrizations move theirs) and random states stay."""
    state = {**{key: buffer.clone() for key, buffer in own.named_buffers()}, name: x}
    with torch.enable_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
        weight: Tensor = functional_call(own, state, ())
    return weight


def _pulled_back(own: parametrize.ParametrizationList, name: str, x: Tensor, v: Tensor) -> Tensor:
    """J^T v, J the derivative of the weight at the parameter's value x."""
    x = x.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(_evaluated(own, name, x), x, v, allow_unused=True, materialize_grads=True)
    return found


def parameter_of(module: nn.Module, key: str) -> nn.Parameter:
    """The parameter of a weight that has one `behind` it, as it is in the module now."""
    if not parametrize.is_parametrized(module, key):
        return module.get_parameter(key)
    (p,) = _list_of(module, key).parameters()
    return p


def weights_behind(module: nn.Module) -> Iterator[tuple[str, Behind]]:
    """(key, what is behind it) for each weight of the module itself that has a parameter `behind` it."""
    keys = [key for key, _ in module.named_parameters(recurse=False)]
    keys += list(parametrized_weights(module))
    for key in keys:
        found = behind(module, key)
        if found is not None:
            yield key, found


def without_constants(model: nn.Module) -> tuple[nn.Module, dict[str, str]]:
    """The model with w = p in place of w = a p + s, and the names of its parameters in `model`, by those of its own.

    The model itself and no names where there is no such weight; else a copy, in which a constant is 1 or 0.
    """
    places = list(_outermost(model))
    if not places:
        return model, {}
    names = {id(p): name for name, p in model.named_parameters()}
    memo: dict[int, object] = {}
    plain = copy.deepcopy(model, memo)
    copied = {id(memo[key]): name for key, name in names.items()}
    for path, key in places:
        module = plain.get_submodule(path)
        p = parameter_of(module, key)
        uncover(module, key)
        module.register_parameter(key, p)
    return plain, {name: copied[id(p)] for name, p in plain.named_parameters()}


def _outermost(model: nn.Module) -> Iterator[tuple[str, str]]:
    """(path of a module, key) of parametrized weights with a parameter `behind` them, none within another one."""
    taken: list[str] = []
    for path, module in model.named_modules():
        if not any(f"{path}.".startswith(prefix) for prefix in taken):
            for key in parametrized_weights(module):
                if behind(module, key) is not None:
                    taken.append(f"{path}.parametrizations.{key}." if path else f"parametrizations.{key}.")
                    yield path, key


def own_class(module: nn.Module) -> None:
    """Give a parametrized module a class that no other has.

    torch gives each parametrized module a class with the weights as properties, and copy.deepcopy shares it between
    the copies: a parametrization that is added to one, or taken from it, would appear in, or vanish from, the other.
    """
    if parametrize.is_parametrized(module):
        kind = type(module)
        module.__class__ = type(kind.__name__, kind.__bases__, dict(vars(kind)))


def uncover(module: nn.Module, key: str) -> None:
    """Take a weight's parametrizations away, and the attribute with them."""
    own_class(module)
    with torch.no_grad():
        parametrize.remove_parametrizations(module, key, leave_parametrized=not _list_of(module, key).is_tensor)
    delattr(module, key)


def parametrized_weights(module: nn.Module) -> nn.ModuleDict:
    """Parametrization lists by the attribute that they stand for; empty without any."""
    if not parametrize.is_parametrized(module):
        return nn.ModuleDict()
    found = module.parametrizations
    assert isinstance(found, nn.ModuleDict)
    return found


def parametrizations_of(own: nn.Module) -> list[nn.Module]:
    """Those of one weight, the first applied first; a list that is parametrized itself holds other children too."""
    return [child for name, child in own.named_children() if name.isdigit()]


def _list_of(module: nn.Module, key: str) -> parametrize.ParametrizationList:
    found = parametrized_weights(module)[key]
    assert isinstance(found, parametrize.ParametrizationList)
    return found
