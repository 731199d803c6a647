"""Fused attention: keys and values are read in place from the cache. Source: onnxruntime contrib GroupQueryAttention.

Row tiles and key blocks come from `Arithmetic`. Per row the maximum is exact whatever the order; the sum of weights and
the weighted values are added block by block from position 0, and a masked weight is exactly zero, so blocks beyond a
row's position change nothing. Positions past the valid length are noise and are never read: the last, partial block
is copied into a zeroed one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.arrays import Array, Device, Namespace
from .arithmetic import Arithmetic
from .call import Call, Kernel, Run, Table, versions
from .rotary import rotate

ROWS_AT_ONCE = 256  # query rows per pass: bounds the score matrix, and lets early rows skip later keys


@dataclass(frozen=True)
class Attention:
    """Attention of one kind. `window` counts the query's own position; None is no bound."""

    device: Device
    math: Arithmetic
    scale: float
    softcap: float = 0.0
    window: int | None = None
    causal: bool = True

    def __call__(self, query: Array, kv: tuple[Array, Array], start: int, group: int, bias: Array = None) -> Array:
        """Attend.

        query `[KH, S * group, D]`, rows ordered by position (the first is `start`), then by head of the group;
        kv, keys and values `[KH, T, D]` each, any strides, in 16 bits if they are stored so. `bias` `[KH or 1, S * group, T]` is
        added to the scaled scores. Returns `[KH, S * group, D]`.
        """
        (key, value), xp = kv, self.device.xp
        rows, total = query.shape[1], key.shape[1]
        parts = []
        for first in range(0, rows, ROWS_AT_ONCE):
            stop = min(first + ROWS_AT_ONCE, rows)
            keys = min(start + (stop - 1) // group + 1, total) if self.causal else total
            positions = start + xp.arange(first, stop, dtype=xp.int64) // group
            positions = (
                xp.minimum(positions, xp.asarray(keys - 1)) if self.causal else xp.full_like(positions, keys - 1)
            )
            added = None if bias is None else bias[:, first:stop, :keys]
            clear = self._clear(start + first // group, keys)
            seen = key[:, :keys, :], value[:, :keys, :]
            parts.append(self._rows(query[:, first:stop, :], seen, positions, clear, added))
        return parts[0] if len(parts) == 1 else xp.concat(parts, axis=1)

    def _clear(self, first: int, keys: int) -> int:
        """How many of the first keys every row sees, the earliest being at position `first`: these need no mask."""
        if self.window is not None:
            return 0
        return min(first + 1, keys) if self.causal else keys

    def _rows(self, query: Array, kv: tuple[Array, Array], positions: Array, clear: int, bias: Array) -> Array:
        (key, value), xp, (heads, rows, width) = kv, self.device.xp, query.shape
        tile = self.math.tile_rows(rows)
        tiles = -(-rows // tile)
        tiled = xp.zeros((heads, tiles * tile, width), dtype=query.dtype)
        tiled[:, :rows, :] = query
        tiled = xp.reshape(tiled, (heads, tiles, 1, tile, width))
        block = self.math.key_block(key.shape[1])
        scores = [xp.matmul(tiled, xp.matrix_transpose(part)[:, None, ...]) for part in self._blocks(key, block, query)]
        weights, total = self._weights(
            scores[0] if len(scores) == 1 else xp.concat(scores, axis=2), positions, clear, bias
        )
        mixed = self._mixed(weights, value, block) / total
        return xp.reshape(mixed, (heads, tiles * tile, value.shape[2]))[:, :rows, :]

    def _weights(self, scores: Array, positions: Array, clear: int, bias: Array) -> tuple[Array, Array]:
        """Scores `[KH, tiles, blocks, tile, block]` to weights of that shape, and their sum `[KH, tiles, tile, 1]`."""
        xp = self.device.xp
        scores *= self.scale  # in place, here and below: a fresh array of this size costs more than the arithmetic
        if self.softcap:
            scores = xp.tanh(scores / self.softcap) * self.softcap
        if bias is not None:
            scores = scores + self._tiled(bias, scores.shape)
        scores = self._masked(scores, positions, clear)
        top = xp.max(scores, axis=(2, 4), keepdims=True)
        top = xp.where(top == -math.inf, xp.zeros_like(top), top)  # a row that may see nothing: every weight is 0
        scores -= top
        weights = xp.exp(scores)
        total = _in_order(xp.sum(weights, axis=-1, keepdims=True))
        return weights, xp.where(total == 0, xp.ones_like(total), total)

    def _masked(self, scores: Array, positions: Array, clear: int) -> Array:
        """Scores with -inf where a row may not look. `clear` keys from 0 on are left as they are: every row sees them."""
        xp, (_, _, blocks, _, block) = self.device.xp, scores.shape
        at, within = divmod(clear, block)
        if at == blocks:
            return scores
        skipped = within if blocks == 1 else 0
        allowed = self._allowed(scores.shape, positions)[:, at:, :, skipped:]
        hidden = xp.asarray(-math.inf, dtype=scores.dtype)
        scores[:, :, at:, :, skipped:] = xp.where(allowed, scores[:, :, at:, :, skipped:], hidden)
        return scores

    def _tiled(self, bias: Array, shape: tuple[int, ...]) -> Array:
        """`[KH or 1, rows, keys]` as `[KH or 1, tiles, blocks, tile, block]`, zero where there is no row or no key."""
        xp, (_, tiles, blocks, tile, block) = self.device.xp, shape
        heads, rows, keys = bias.shape
        padded = xp.zeros((heads, tiles * tile, blocks * block), dtype=bias.dtype)
        padded[:, :rows, :keys] = bias
        return xp.permute_dims(xp.reshape(padded, (heads, tiles, tile, blocks, block)), (0, 1, 3, 2, 4))

    def _allowed(self, shape: tuple[int, ...], positions: Array) -> Array:
        """Which keys a row sees, `[tiles, blocks, tile, block]`. Padding rows see what the last row sees."""
        xp, (_, tiles, blocks, tile, block) = self.device.xp, shape
        spare = tiles * tile - positions.shape[0]
        at = xp.concat((positions, xp.broadcast_to(positions[-1:], (spare,)))) if spare else positions
        at = xp.reshape(at, (tiles, 1, tile, 1))
        keys = xp.reshape(xp.arange(blocks * block, dtype=xp.int64), (1, blocks, 1, block))
        seen = keys <= at
        return seen if self.window is None else xp.logical_and(seen, keys > at - self.window)

    def _mixed(self, weights: Array, value: Array, block: int) -> Array:
        """The weighted sum of values, `[KH, tiles, tile, D]`."""
        xp, taken, parts = self.device.xp, 0, []
        for part in self._blocks(value, block, weights):
            stop = taken + part.shape[1]
            parts.append(xp.matmul(weights[:, :, taken:stop, :, :], part[:, None, ...]))
            taken = stop
        return _in_order(parts[0] if len(parts) == 1 else xp.concat(parts, axis=2))

    def _blocks(self, rows: Array, block: int, like: Array) -> list[Array]:
        """`[KH, L, D]` as `[KH, n, block, D]`: the whole blocks in place, then a zero-padded copy of the rest.

        Rows stored in 16 bits are widened to the dtype of `like`.
        """
        xp, (heads, length, width) = self.device.xp, rows.shape
        if rows.dtype != like.dtype:
            rows = xp.astype(rows, like.dtype)
        whole = length // block
        parts = []
        if whole:
            parts.append(xp.reshape(rows[:, : whole * block, :], (heads, whole, block, width)))
        if length % block:
            last = xp.zeros((heads, 1, block, width), dtype=rows.dtype)
            last[:, 0, : length % block, :] = rows[:, whole * block :, :]
            parts.append(last)
        return parts


def _in_order(parts: Array) -> Array:
    """Sum over axis 2 (the key blocks), one after the other from +0."""
    total = 0.0 + parts[:, :, 0, ...]
    for block in range(1, parts.shape[2]):
        total += parts[:, :, block, ...]
    return total


@dataclass(frozen=True)
class Heads:
    """How a row of channels divides: `query` and `kv` heads; `packed` when the row holds query, key and value."""

    query: int
    kv: int

    def split(self, xp: Namespace, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
        """`[1, S, channels]` each, or all in `query`, as `[1, S, heads, D]` each."""
        rows = query.shape[1]
        if key is None:
            width = query.shape[2] // (self.query + 2 * self.kv)
            joined = xp.reshape(query, (1, rows, self.query + 2 * self.kv, width))
            edge = self.query + self.kv
            return joined[:, :, : self.query, :], joined[:, :, self.query : edge, :], joined[:, :, edge:, :]
        return (
            xp.reshape(query, (1, rows, self.query, -1)),
            xp.reshape(key, (1, rows, self.kv, -1)),
            xp.reshape(value, (1, rows, self.kv, -1)),
        )


def _group_query_attention(call: Call) -> Run:
    """Batch of one. Inputs 3 and 4 are `KvSlot`s (or None: no past); the present outputs are views of the cache."""
    xp, heads = call.xp, Heads(call.attribute("num_heads"), call.attribute("kv_num_heads"))
    turn = _rotation(call)
    _refuse_variants(call)

    def run(query: Array, key: Array, value: Array, *rest: Array) -> tuple[Array, ...]:
        keys, values, lengths, *rotary = rest
        query, key, value = heads.split(xp, query, key, value)
        start, rows, width = (keys.length if keys is not None else 0), query.shape[1], query.shape[3]
        _check_lengths(lengths, start + rows)
        query, key = turn(query, start, rotary), turn(key, start, rotary)
        key, value = xp.permute_dims(key, (0, 2, 1, 3)), xp.permute_dims(value, (0, 2, 1, 3))
        present = (key if keys is None else keys.append(key), value if values is None else values.append(value))
        group = heads.query // heads.kv
        grouped = xp.reshape(query, (rows, heads.kv, group, width))
        grouped = xp.reshape(xp.permute_dims(grouped, (1, 0, 2, 3)), (heads.kv, rows * group, width))
        mixed = _attention(call, width)(grouped, (present[0][0, ...], present[1][0, ...]), start, group)
        mixed = xp.permute_dims(xp.reshape(mixed, (heads.kv, rows, group, -1)), (1, 0, 2, 3))
        return (xp.reshape(mixed, (1, rows, -1)), *present)

    return run


def _attention(call: Call, width: int) -> Attention:
    window = call.attribute("local_window_size", -1)
    return Attention(
        device=call.device,
        math=call.math,
        scale=call.attribute("scale", 0.0) or 1.0 / math.sqrt(width),
        softcap=call.attribute("softcap", 0.0),
        window=window if window > 0 else None,
    )


def _rotation(call: Call) -> Array:
    """`(x [1, S, heads, D], first position, inputs from 6 on) -> x`, turned when the node asks for it."""
    if not call.attribute("do_rotary", 0):
        return lambda x, start, rest: x
    xp, interleaved = call.xp, bool(call.attribute("rotary_interleaved", 0))

    def run(x: Array, start: int, rest: Sequence[Array]) -> Array:
        rows, (cos, sin) = x.shape[1], rest[1:3]
        if start + rows > cos.shape[0]:
            raise IndexError(f"position {start + rows - 1}, but the rotary cache ends at {cos.shape[0] - 1}")
        angles = (xp.reshape(cache[start : start + rows, :], (1, rows, 1, -1)) for cache in (cos, sin))
        return rotate(xp, x, *angles, interleaved=interleaved)

    return run


def _check_lengths(lengths: Array, total: int) -> None:
    """`seqlens_k` is the last valid position of each sequence; anything else than ours would be a padded batch."""
    if tuple(lengths.shape) != (1,) and tuple(lengths.shape) != (1, 1):
        raise ValueError(f"seqlens_k has shape {tuple(lengths.shape)}; only a batch of one is computed")
    last = int(lengths.reshape(-1)[0])
    if last + 1 != total:
        raise ValueError(
            f"seqlens_k says {last + 1} positions, the cache and this step hold {total}; is the mask all ones?"
        )


def _refuse_variants(call: Call) -> None:
    names = {9: "position_ids", 10: "attention_bias", 11: "head_sink", 12: "k_scale", 13: "v_scale"}
    for index, name in names.items():
        if call.has_input(index):
            raise call.refuse(f"input {index} ({name})")
    if call.attribute("smooth_softmax", 0) > 0:
        raise call.refuse("smooth_softmax")
    if any(call.node.outputs[3:]):
        raise call.refuse("output_qk")


_GROUP_QUERY = Kernel(
    _group_query_attention, host=(5, 6), appends=((3, 1), (4, 2)), in_place=True, window="local_window_size"
)

TABLE: Table = versions("GroupQueryAttention", _GROUP_QUERY, 1, domain="com.microsoft")
