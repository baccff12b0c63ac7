"""Functions over many models at once, traced once and then replayed as plain batched tensor operations.

torch.func's transforms interpret every operation anew at every call, layer by layer, which for small nets costs more
than the arithmetic. From the second call with the same shapes on, the operations of the first one are replayed
instead (make_fx), without those whose results nobody uses, and with tanh exchanged for a faster equal.
"""

import functools
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Replays:
    """Traced functions by key. A function and its key belong together; only shapes of arguments may enter it.

    A function that cannot be traced (control flow that depends on values) is called as it is, with a warning.
    """

    def __init__(self) -> None:
        self._traced: dict[Hashable, Callable[..., Any] | None] = {}

    def call(self, key: Hashable, function: Callable[..., Any], *arguments: Any) -> Any:
        """function(*arguments): plainly for a new key, traced at the second call of a key, replayed from then on."""
        if key not in self._traced:
            keep_freed_memory()
            self._traced[key] = None
            return _plain(function)(*arguments)
        traced = self._traced[key]
        if traced is None:
            traced = self._traced[key] = _trace(function, arguments)
        return traced(*arguments)


@functools.cache
def keep_freed_memory() -> None:
    """Once per process: lets the C library keep freed memory of up to 64 MiB, instead of giving it back to the system
    after every chunk of models and asking for the same pages again, which takes a fifth of the time.

    glibc keeps twice the size of the largest block that was ever freed, if that is at most 32 MiB (mallopt(3)); to
    other C libraries this is an allocation like any other.
    """
    torch.empty(31 * 1024**2, dtype=torch.uint8)


class _Exchanged(TorchDispatchMode):
    """The exchanges of `_exchange` while operations run one by one: a replay gives the same numbers to the last bit."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return fast_tanh(*args) if func is aten.tanh.default else func(*args, **(kwargs or {}))


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        with _Exchanged():
            return function(*arguments)

    return call


def _trace(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    try:
        module = make_fx(function)(*arguments)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        warnings.warn(
            f"the model cannot be traced, so chunks of models are slower: {str(error).splitlines()[0]}", stacklevel=4
        )
        return _plain(function)
    _exchange(module.graph)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _exchange(graph: fx.Graph) -> None:
    """x^1 -> x; ones like x -> ones, so that the value of a loss is not computed for its derivative alone; tanh ->
    `fast_tanh`.
    """
    for node in list(graph.nodes):
        if node.target is aten.pow.Tensor_Scalar and node.args[1] == 1:
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.ones_like.default:
            like = node.meta["val"]
            with graph.inserting_before(node):
                ones = graph.call_function(
                    torch.ones, (tuple(like.shape),), {"dtype": like.dtype, "device": like.device}
                )
            node.replace_all_uses_with(ones)
        elif node.target is aten.tanh.default:
            node.target = fast_tanh


def fast_tanh(x: Tensor) -> Tensor:
    """tanh x = 2 sigmoid(2 x) - 1, correct to 2 units in the last place of 1 (absolutely, not relatively)."""
    return torch.sigmoid(2 * x).mul_(2).sub_(1)
