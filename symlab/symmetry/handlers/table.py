"""The table of handlers: operator -> the function that says what the operator does to axes.

A handler takes the AxisTable and a Call and returns the Value of the output (a tuple of Values for several
outputs), or None for a form of the operation that it does not know. To add an operation, write one function and
register it, here in a file of this folder or in your own code:

    import torch
    from symlab.symmetry.axis_table import AxisTable, Value
    from symlab.symmetry.groups import Group
    from symlab.symmetry.handlers.table import Call, register

    @register(torch.ops.aten.frac)                       # an operator (all its overloads) or one overload
    def frac(axes: AxisTable, call: Call) -> Value:
        value = call.value("self")                       # arguments go by the names of the operator's schema
        axes.restrict(value.axes, Group.SIGNED_PERMUTATION)   # elementwise and odd
        return value                                     # same axes on the output

An elementwise handler as above is complete. One that mixes units uses axes.unify (two dimensions index the same units),
axes.pin (free, with a Reason), axes.join and axes.cut (concatenation and its parts) and axes.split (a product). A wrong
handler does not go unseen: infer_symmetry verifies every axis on the model.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch

from symlab.symmetry.axis_table import AxisTable, Value
from symlab.symmetry.waiting_cuts import WaitingCuts

Handler = Callable[[AxisTable, "Call"], "Value | tuple[Value, ...] | None"]
H = TypeVar("H", bound=Handler)

_TABLE: dict[Any, Handler] = {}
_MOVING: set[Handler] = set()


@dataclass(frozen=True)
class Call:
    """One operation of the trace; tensors among the arguments are Values."""

    operator: str
    arguments: Mapping[str, Any]  # by the names of the operator's schema, defaults filled in
    shapes: tuple[tuple[int, ...], ...]  # of the output tensors
    cuts: WaitingCuts

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the only output."""
        (shape,) = self.shapes
        return shape

    def value(self, name: str) -> Value:
        """The tensor argument `name`."""
        value = self.arguments[name]
        if not isinstance(value, Value):
            raise TypeError(f"{self.operator}: argument {name} is no tensor but {value!r}")
        return value

    def values(self) -> tuple[Value, ...]:
        """All tensors among the arguments, those in lists included."""
        found: list[Value] = []
        for argument in self.arguments.values():
            items = argument if isinstance(argument, (list, tuple)) else (argument,)
            found.extend(item for item in items if isinstance(item, Value))
        return tuple(found)


def register(*operators: Any) -> Callable[[H], H]:
    """Decorator: handle these operators (torch.ops.aten.tanh, or one overload: torch.ops.aten.tanh.default)."""
    for operator in operators:
        if not isinstance(operator, (torch._ops.OpOverloadPacket, torch._ops.OpOverload)):
            raise TypeError(f"register takes operators such as torch.ops.aten.tanh, got {operator!r}")

    def add(handler: H) -> H:
        _TABLE.update(dict.fromkeys(operators, handler))
        return handler

    return add


def aten(names: str) -> tuple[Any, ...]:
    """The operators of these space-separated names, with their in-place forms where there are any."""
    wanted = [form for name in names.split() for form in (name, f"{name}_")]
    known = [name for name in wanted if hasattr(torch.ops.aten, name)]
    missing = set(names.split()) - set(known)
    if missing:
        raise ValueError(f"torch {torch.__version__} has no aten operators {sorted(missing)}")
    return tuple(getattr(torch.ops.aten, name) for name in known)


def moves(handler: H) -> H:
    """Decorator: the operation only moves or takes apart units, so that cuts of its arguments may go on waiting."""
    _MOVING.add(handler)
    return handler


def is_moving(handler: Handler | None) -> bool:
    return handler in _MOVING


def lookup(target: Any) -> Handler | None:
    """The handler of an operator overload: its own, or that of all overloads; None if there is none."""
    _load_all()
    return _TABLE.get(target, _TABLE.get(getattr(target, "overloadpacket", None)))


@cache
def _load_all() -> None:
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
