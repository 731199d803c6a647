"""Geometry of keys and values: which float of a flat buffer belongs to which head, position and channel.

A present buffer is `[1, H, capacity, D]`, so the distance between two heads is `capacity * D`. The logical length is the
number of positions that hold valid KV. Using `length * D` as the distance reads padding for every head but the first,
and shows nothing when H == 1 or length == capacity: hence one place for the arithmetic, for both backends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..contract.arrays import Array, HostArray

FloatRows = NDArray[np.float32]

_DTYPES: dict[str, Array] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

_NAN = {"float16": (13, 0x7C00), "bfloat16": (16, 0x7F80)}
"""Of each 16-bit dtype: bits of a float32 significand that it lacks, and its exponent bits."""


class Part(IntEnum):
    """Index of the key or the value half of a layer, in pages and everywhere else."""

    KEY = 0
    VALUE = 1


@dataclass(frozen=True, kw_only=True)
class LayerKv:
    """One attention layer's KV: `heads` key/value heads of `head_dim` channels, stored as `dtype` (a numpy name).

    `window`: how many keys a query of this layer sees, itself included; None for all.
    """

    heads: int
    head_dim: int
    dtype: str = "float32"
    window: int | None = None

    @property
    def row_floats(self) -> int:
        """Floats that one position of one part takes."""
        return self.heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class KvGeometry:
    """All attention layers of a model, in order. Heads and head_dim may differ from layer to layer."""

    layers: tuple[LayerKv, ...]

    @property
    def position_floats(self) -> int:
        """Floats that one position takes over all layers, key and value."""
        return sum(2 * layer.row_floats for layer in self.layers)


@dataclass(frozen=True, kw_only=True)
class Physical:
    """How a flat present buffer is laid out: `[heads, capacity, head_dim]`, position the middle axis."""

    heads: int
    capacity: int
    head_dim: int

    @property
    def head_stride(self) -> int:
        """Floats from a position of one head to the same position of the next."""
        return self.capacity * self.head_dim

    def span(self, head: int, start: int, stop: int) -> slice:
        """Where positions [start, stop) of `head` lie in the flat buffer."""
        base = head * self.head_stride
        return slice(base + start * self.head_dim, base + stop * self.head_dim)


def extract_present_tokens(flat: Array, physical: Physical, start: int, stop: int) -> list[Array]:
    """Per head, a view `[stop - start, head_dim]` of positions [start, stop) of a flat present buffer."""
    return [
        flat[physical.span(head, start, stop)].reshape(stop - start, physical.head_dim)
        for head in range(physical.heads)
    ]


def append_token_kv(page_rows: FloatRows, at: int, rows: list[HostArray]) -> None:
    """Write per-head rows `[n, head_dim]` at places [at, at + n) of one part of a page, `[heads, page_size, head_dim]`."""
    for head, row in enumerate(rows):
        page_rows[head, at : at + row.shape[0]] = widen(row)


def write_present(flat: Array, physical: Physical, start: int, rows: HostArray) -> None:
    """Write `rows` `[heads, n, head_dim]` at positions [start, start + n) of a flat present buffer, in place."""
    stop = start + rows.shape[1]
    for head in range(physical.heads):
        flat[physical.span(head, start, stop)] = rows[head].reshape(-1)


def storage_dtype(name: str) -> np.dtype[Array]:
    """The numpy dtype in which KV of the declared dtype `name` is stored. KeyError for a dtype we cannot page."""
    dtype: np.dtype[Array] = _DTYPES[name]
    return dtype


def widen(rows: HostArray) -> FloatRows:
    """float32 copy of float32, float16 or bfloat16 rows; lossless, so pages of two backends compare byte for byte.

    NaNs go over by bits: a conversion in hardware would quiet a signalling one.
    """
    with np.errstate(invalid="ignore"):
        wide = rows.astype(np.float32, order="C")
    if rows.dtype.itemsize == 2 and (nan := np.isnan(wide)).any():
        missing, exponent = _NAN[rows.dtype.name]
        bits = rows.view(np.uint16)[nan].astype(np.uint32)
        payload = bits & ~np.uint32(exponent | 0x8000)
        wide.view(np.uint32)[nan] = (bits & 0x8000) << 16 | 0x7F800000 | payload << missing
    return wide


def narrow(rows: FloatRows, dtype: str) -> HostArray:
    """A copy in the storage dtype `dtype`, rounded to nearest; gives back what `widen` got from it, NaNs included."""
    with np.errstate(invalid="ignore"):
        stored = rows.astype(storage_dtype(dtype), order="C")
    if dtype in _NAN and (nan := np.isnan(rows)).any():
        missing, exponent = _NAN[dtype]
        bits = rows.view(np.uint32)[nan]
        payload = (bits & 0x7FFFFF) >> missing
        payload[payload == 0] = 1 << (22 - missing)  # all of it was in the bits that are dropped: still a NaN
        stored.view(np.uint16)[nan] = (bits >> 16) & 0x8000 | exponent | payload
    return stored


def capacity_bucket(length: int, *, min_capacity: int, max_context: int) -> int:
    """Room to reserve for `length` positions: `min(max(next_pow2(length), min_capacity), max_context)`."""
    return min(max(next_pow2(length), min_capacity), max_context)


def next_pow2(n: int) -> int:
    """The least power of two that is >= n; 1 for n <= 1."""
    return 1 << max(n - 1, 0).bit_length()
