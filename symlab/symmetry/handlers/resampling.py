"""Pooling, interpolation, and exchanges of channels for positions: positions are free, channels linear or pooled."""

from __future__ import annotations

from collections.abc import Sequence

from symlab.symmetry.axis_table import AxisTable, Dim, Reason, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.table import Call, aten, register

POSITION = Reason("position in space", expected=True, role="position")


def new_positions(axes: AxisTable, dims: Sequence[Dim], shape: Sequence[int]) -> tuple[Dim, ...]:
    """Fresh free axes of the output's positions; those of the input become free."""
    for dim in dims:
        axes.pin(dim, POSITION)
    return axes.new_value(shape, POSITION).dims


def _pool(axes: AxisTable, call: Call, space: int) -> Value:
    dims = call.value("self").dims
    return Value((*dims[:-space], *new_positions(axes, dims[-space:], call.shapes[0][-space:])))


@register(*aten("avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"))
def mean_pooling(axes: AxisTable, call: Call) -> Value:
    """Linear in the channels."""
    return _pool(axes, call, _space(call))


@register(*aten("max_pool1d max_pool2d max_pool3d"))
def max_pooling(axes: AxisTable, call: Call) -> Value:
    """Every channel by itself, not odd."""
    result = _pool(axes, call, _space(call))
    axes.restrict(result.axes, Group.PERMUTATION)
    return result


@register(*aten("max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"))
@register(*aten("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"))
def max_pooling_with_indices(axes: AxisTable, call: Call) -> tuple[Value, Value]:
    """The maxima, and where they are."""
    result = max_pooling(axes, call)
    return result, result


def _space(call: Call) -> int:
    """Number of space dimensions, from the operator's name: 2 for aten.max_pool2d.default."""
    return int(call.operator.partition("pool")[2][0])


@register(
    *aten("upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d"),
    *aten("upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"),
    *aten("_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"),
)
def interpolate(axes: AxisTable, call: Call) -> Value:
    """Linear in batch and channels, dimensions 0 and 1."""
    dims = call.value("input" if "input" in call.arguments else "self").dims
    return Value((*dims[:2], *new_positions(axes, dims[2:], call.shape[2:])))


@register(*aten("pixel_shuffle"))
def pixel_shuffle(axes: AxisTable, call: Call) -> Value:
    """[.., c r r, h, w] -> [.., c, h r, w r]: the parts r of a channel are positions."""
    dims, factor = call.value("self").dims, call.arguments["upscale_factor"]
    channel, inner = axes.new_dim(call.shape[-3]), axes.new_dim(factor) + axes.new_dim(factor)
    axes.unify(dims[-3], (*channel, *inner))
    axes.pin(inner, POSITION)
    return Value((*dims[:-3], channel, *new_positions(axes, dims[-2:], call.shape[-2:])))


@register(*aten("pixel_unshuffle"))
def pixel_unshuffle(axes: AxisTable, call: Call) -> Value:
    """[.., c, h r, w r] -> [.., c r r, h, w]."""
    dims, factor = call.value("self").dims, call.arguments["downscale_factor"]
    inner = axes.new_value((factor, factor), POSITION).axes
    return Value((*dims[:-3], (*dims[-3], *inner), *new_positions(axes, dims[-2:], call.shape[-2:])))


@register(*aten("im2col"))
def unfold(axes: AxisTable, call: Call) -> Value:
    """[.., c, h, w] -> [.., c x kernel, position]."""
    dims = call.value("self").dims
    patch = axes.new_dim(call.shape[-2] // axes.dim_size(dims[-3]))
    axes.pin(patch, POSITION)
    return Value((*dims[:-3], (*dims[-3], *patch), *new_positions(axes, dims[-2:], call.shape[-1:])))
