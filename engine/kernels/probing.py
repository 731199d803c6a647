"""Ask this machine's BLAS which row tile it computes independently of a row's place.

A property of a BLAS build and a shape, not of the arithmetic: 8 rows hold in OpenBLAS on AVX2 where 6, 12 and 16 do
not. So it is measured when a plan is compiled, for the shapes of that plan's weights.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..contract.arrays import Array, Device
from .arithmetic import BLOCK, TILES


def largest_tile(device: Device, weights: Iterable[Array]) -> int:
    """The largest row tile for which a row's bits do not depend on its place in the tile or on its neighbours.

    `weights` are device matrices `[K, N]`; one of each shape is tried, beside the two products of blocked attention.
    A tile of one row has no places or neighbours, so there is always an answer.
    """
    rng = np.random.default_rng(0)
    block = device.from_host(rng.standard_normal((BLOCK, BLOCK), dtype=np.float32))
    distinct = {tuple(weight.shape): weight for weight in weights}
    tried = [block, device.xp.matrix_transpose(block), *distinct.values()]
    samples = [(rng.standard_normal((TILES[0], weight.shape[0]), dtype=np.float32), weight) for weight in tried]
    return next(tile for tile in TILES if all(_holds(device, rows[:tile], weight) for rows, weight in samples))


def _holds(device: Device, rows: np.ndarray[Array, np.dtype[np.float32]], weight: Array) -> bool:
    xp, dtype = device.xp, weight.dtype

    def product(tile: Array) -> Array:
        return device.to_host(xp.matmul(xp.astype(device.from_host(tile), dtype)[None, ...], weight)[0, ...])

    expected = product(rows)
    alone = np.zeros_like(rows)
    alone[0] = rows[0]
    rolled = (np.roll(product(np.roll(rows, shift, axis=0)), -shift, axis=0) for shift in range(1, len(rows)))
    return np.array_equal(product(alone)[0], expected[0]) and all(np.array_equal(out, expected) for out in rolled)
