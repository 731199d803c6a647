"""The standard's own attention on the blocks of `attention.Attention`. Source: ONNX Attention (opset 23)."""

from __future__ import annotations

import math

from ..contract.arrays import Array, Namespace
from ..kv.buffers import KvSlot
from .attention import Attention
from .call import Call, Kernel, Run, Table, versions

DOUBLE = 11


def _standard_attention(call: Call) -> Run:
    """Batch of one. Q, K, V `[1, S, heads * D]` or `[1, heads, S, D]`; the mask adds to the scores or is boolean.

    Inputs 4 and 5 are `KvSlot`s, arrays, or None: no past. With a past a causal query sees all of it.
    """
    _refuse_variants(call)
    xp = call.xp

    def run(query: Array, key: Array, value: Array, mask: Array = None, *past: Array) -> tuple[Array, ...]:
        keys, values = (*past, None, None)[:2]
        packed = query.ndim == 3
        query = _heads(call, query, "q_num_heads")
        key, value = (_heads(call, x, "kv_num_heads") for x in (key, value))
        start = _length(keys)
        present = _extended(xp, keys, key), _extended(xp, values, value)
        _, heads, rows, width = query.shape
        kv_heads, total = present[0].shape[1:3]
        group = heads // kv_heads
        grouped = _by_position(xp, query, kv_heads)
        bias = None if mask is None else _bias(xp, mask, (heads, rows, total), kv_heads)
        mixed = _kind(call, width)(grouped, (present[0][0, ...], present[1][0, ...]), start, group, bias)
        mixed = xp.reshape(mixed, (1, kv_heads, rows, group, -1))
        if packed:
            return (xp.reshape(xp.permute_dims(mixed, (0, 2, 1, 3, 4)), (1, rows, -1)), *present)
        return (xp.reshape(xp.permute_dims(mixed, (0, 1, 3, 2, 4)), (1, heads, rows, -1)), *present)

    return run


def _kind(call: Call, width: int) -> Attention:
    return Attention(
        device=call.device,
        math=call.math,
        scale=call.attribute("scale", 1.0 / math.sqrt(width)),
        softcap=call.attribute("softcap", 0.0),
        causal=bool(call.attribute("is_causal", 0)),
    )


def _heads(call: Call, x: Array, count: str) -> Array:
    """`[1, heads, S, D]` from either form."""
    if x.shape[0] != 1:
        raise ValueError(f"batch of {x.shape[0]}; only a batch of one is computed")
    if x.ndim == 4:
        return x
    split = call.xp.reshape(x, (1, x.shape[1], call.attribute(count), -1))
    return call.xp.permute_dims(split, (0, 2, 1, 3))


def _length(past: Array) -> int:
    if past is None:
        return 0
    return past.length if isinstance(past, KvSlot) else int(past.shape[2])


def _extended(xp: Namespace, past: Array, rows: Array) -> Array:
    if past is None:
        return rows
    return past.append(rows) if isinstance(past, KvSlot) else xp.concat((past, rows), axis=2)


def _by_position(xp: Namespace, x: Array, kv_heads: int) -> Array:
    """`[1, heads, S, n]` as `[kv_heads, S * group, n]`, rows ordered by position, then by head of the group."""
    _, heads, rows, width = x.shape
    grouped = xp.reshape(x, (kv_heads, heads // kv_heads, rows, width))
    return xp.reshape(xp.permute_dims(grouped, (0, 2, 1, 3)), (kv_heads, -1, width))


def _bias(xp: Namespace, mask: Array, shape: tuple[int, int, int], kv_heads: int) -> Array:
    """The mask as `[kv_heads or 1, S * group, T]` to add. Keys beyond its last axis are not seen."""
    heads, rows, total = shape
    if str(mask.dtype).endswith("bool"):
        seen, never = xp.zeros(mask.shape, dtype=xp.float32), xp.full(mask.shape, -math.inf, dtype=xp.float32)
        mask = xp.where(mask, seen, never)
    mask = xp.reshape(mask, (*(1,) * (4 - mask.ndim), *mask.shape))
    if short := total - mask.shape[3]:
        mask = xp.concat((mask, xp.full((*mask.shape[:3], short), -math.inf, dtype=mask.dtype)), axis=3)
    if mask.shape[1] > 1:
        return _by_position(xp, xp.broadcast_to(mask, (1, heads, rows, total)), kv_heads)
    each = xp.broadcast_to(mask[:, 0, :, None, :], (1, rows, heads // kv_heads, total))
    return xp.reshape(each, (1, -1, total))


def _refuse_variants(call: Call) -> None:
    if any(call.node.outputs[3:]):
        raise call.refuse("output 3 (qk_matmul_output)")
    if call.has_input(6):
        raise call.refuse("input 6 (nonpad_kv_seqlen)")
    if call.attribute("softmax_precision", 1) == DOUBLE:
        raise call.refuse("a softmax in double precision")
    for name in ("left_window_size", "right_window_size"):
        if call.attribute(name, -1) != -1:
            raise call.refuse(name)


TABLE: Table = versions("Attention", Kernel(_standard_attention, appends=((4, 1), (5, 2))), 23)
