"""Products and sums whose result for a row depends on nothing but that row.

BLAS chooses its summation order by the shape of the whole call, and NumPy's pairwise sum by the length. So one token
computed alone and the same token in a long prompt differ in the last bits. `Anchored` fixes every shape:

- rows go through BLAS in tiles of `tile` rows, padded with zero rows;
- an axis that may grow with the context is cut into blocks of 64 anchored at index 0, padded with zeros, and the
  blocks' results are added one after the other, from the first. A block of zeros adds +0 and changes no bit; a
  sum started at +0 never becomes -0;
- operands are copied into one fixed memory layout, because BLAS takes another path for another layout.

`Free` leaves all of this to BLAS. Both have the same methods, so a kernel is written once.
"""

from __future__ import annotations

import math
from typing import Protocol

from typing_extensions import override

from ..contract.arrays import Array, Device, dtype_name

BLOCK = 64
TILES = (8, 4, 2, 1)


class Arithmetic(Protocol):
    """Products, sums and the tiling of attention, in one of the two numerics."""

    def times_weight(self, x: Array, weight: Array) -> Array:
        """`x [..., K] @ weight [K, N]`; the rows of `x` are independent of each other."""

    def product(self, a: Array, b: Array) -> Array:
        """`a [..., M, K] @ b [..., K, N]`, where M, K and N may each grow with the context; at least rank 2."""

    def sum_last(self, x: Array) -> Array:
        """Sum over the last axis, which may grow with the context; the axis is kept with extent 1."""

    def tile_rows(self, rows: int) -> int:
        """How many rows of a query tile attention computes at once, of `rows`."""

    def key_block(self, keys: int) -> int:
        """How many of `keys` keys attention takes in one product."""


class Free(Arithmetic):
    """Free shapes: as fast as BLAS likes, and dependent on the number of rows in the last bits."""

    def __init__(self, device: Device) -> None:
        self._xp = device.xp

    @override
    def times_weight(self, x: Array, weight: Array) -> Array:
        rows = self._xp.reshape(x, (-1, x.shape[-1]))
        return self._xp.reshape(self._xp.matmul(rows, weight), (*x.shape[:-1], weight.shape[1]))

    @override
    def product(self, a: Array, b: Array) -> Array:
        return self._xp.matmul(a, b)

    @override
    def sum_last(self, x: Array) -> Array:
        return self._xp.sum(x, axis=-1, keepdims=True, dtype=x.dtype)

    @override
    def tile_rows(self, rows: int) -> int:
        return rows

    @override
    def key_block(self, keys: int) -> int:
        return keys


class Anchored(Arithmetic):
    """Fixed shapes: the bits of a row are the same in any company."""

    def __init__(self, device: Device, tile: int) -> None:
        self._xp = device.xp
        self._contiguous = device.contiguous
        self._tile = tile

    @override
    def times_weight(self, x: Array, weight: Array) -> Array:
        xp, tile = self._xp, self._tile
        rows, depth = math.prod(x.shape[:-1]), x.shape[-1]
        tiles = -(-rows // tile)
        flat = self._padded_rows(xp.reshape(x, (rows, depth)), tiles * tile)
        out = xp.matmul(xp.reshape(flat, (tiles, tile, depth)), weight)
        out = xp.reshape(out, (tiles * tile, weight.shape[1]))
        return xp.reshape(out[:rows, :], (*x.shape[:-1], weight.shape[1]))

    @override
    def product(self, a: Array, b: Array) -> Array:
        xp = self._xp
        rows, columns = a.shape[-2], b.shape[-1]
        left = self._blocks(a, self._tile, BLOCK)  # [..., rows, depth, tile, BLOCK]
        right = self._blocks(b, BLOCK, BLOCK)  # [..., depth, columns, BLOCK, BLOCK]
        total = None
        for block in range(right.shape[-4]):
            part = xp.matmul(left[..., :, block, None, :, :], right[..., None, block, :, :, :])
            total = 0.0 + part if total is None else total + part
        assert total is not None, "a product over an empty axis"
        return self._joined(total, rows, columns)

    @override
    def sum_last(self, x: Array) -> Array:
        xp = self._xp
        if dtype_name(x).startswith(("int", "uint")):
            return xp.sum(x, axis=-1, keepdims=True, dtype=x.dtype)
        blocks = -(-x.shape[-1] // BLOCK)
        padded = self._padded(x, (*x.shape[:-1], blocks * BLOCK))
        parts = xp.sum(xp.reshape(padded, (*x.shape[:-1], blocks, BLOCK)), axis=-1)
        total = xp.zeros((*x.shape[:-1], 1), dtype=x.dtype)
        for block in range(blocks):
            total = total + parts[..., block : block + 1]
        return total

    @override
    def tile_rows(self, rows: int) -> int:
        return self._tile

    @override
    def key_block(self, keys: int) -> int:
        return BLOCK

    def _padded_rows(self, flat: Array, rows: int) -> Array:
        return self._contiguous(flat) if flat.shape[0] == rows else self._padded(flat, (rows, flat.shape[1]))

    def _padded(self, x: Array, shape: tuple[int, ...]) -> Array:
        fresh = self._xp.zeros(shape, dtype=x.dtype)
        fresh[tuple(slice(extent) for extent in x.shape)] = x
        return fresh

    def _blocks(self, x: Array, height: int, width: int) -> Array:
        """`[..., M, N]` as zero-padded contiguous blocks `[..., M', N', height, width]`."""
        xp, batch = self._xp, x.shape[:-2]
        down, across = -(-x.shape[-2] // height), -(-x.shape[-1] // width)
        padded = self._padded(x, (*batch, down * height, across * width))
        split = xp.reshape(padded, (*batch, down, height, across, width))
        return self._contiguous(xp.permute_dims(split, _middle_swapped(split.ndim)))

    def _joined(self, blocks: Array, rows: int, columns: int) -> Array:
        """The inverse of `_blocks`, cut to `[..., rows, columns]`."""
        xp, (down, across, height, width) = self._xp, blocks.shape[-4:]
        order = xp.permute_dims(blocks, _middle_swapped(blocks.ndim))
        return xp.reshape(order, (*blocks.shape[:-4], down * height, across * width))[..., :rows, :columns]


def _middle_swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 4), rank - 4, rank - 2, rank - 3, rank - 1)
