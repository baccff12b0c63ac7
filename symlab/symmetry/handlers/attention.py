"""Scaled dot product attention: softmax(q k^T / sqrt(d)) v, per head."""

from __future__ import annotations

from symlab.symmetry.axis_table import AxisTable, Reason, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.elementwise import broadcast
from symlab.symmetry.handlers.products import contract
from symlab.symmetry.handlers.table import Call, aten, register

CAUSAL = Reason("causal attention", expected=True, role="position")
LETTERS = "abcfghij"  # but for l, s, d, e


@register(*aten("scaled_dot_product_attention"))
def attention(axes: AxisTable, call: Call) -> Value:
    """q[.., l, d], k[.., s, d], v[.., s, e] -> [.., l, e].

    Queries and keys meet in a contraction over d, so these index the same units under any orthogonal group; e is
    linear from values to output. Heads and other leading dimensions, l and s keep permutations (l and s are free if
    the attention is causal).
    """
    query, key, value = (call.value(name) for name in ("query", "key", "value"))
    if call.arguments.get("enable_gqa"):
        key, value = (_shared_by_heads(axes, query, tensor) for tensor in (key, value))
    lead = LETTERS[: len(query.dims) - 2]
    scores = contract(axes, query, key, f"{lead}ld,{lead}sd->{lead}ls")
    mask = call.arguments.get("attn_mask")
    if mask is not None:
        shape = axes.shape(scores)
        scores, _ = broadcast(axes, (scores, mask), shape)
    axes.restrict(scores.axes, Group.PERMUTATION)
    if call.arguments.get("is_causal"):
        axes.pin((*scores.dims[-2], *scores.dims[-1]), CAUSAL)
    return contract(axes, scores, value, f"{lead}ls,{lead}se->{lead}le")


def _shared_by_heads(axes: AxisTable, query: Value, tensor: Value) -> Value:
    """Each head of keys or values, for several heads of queries: a product (head, copy)."""
    copies = axes.new_dim(axes.dim_size(query.dims[-3]) // axes.dim_size(tensor.dims[-3]))
    return Value((*tensor.dims[:-3], (*tensor.dims[-3], *copies), *tensor.dims[-2:]))
