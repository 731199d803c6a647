"""Contiguous KV with spare capacity: one `[1, H, capacity, D]` array per layer and part, grown in buckets.

The arrays belong to this object, whoever computes into them: the native backend's kernels append rows, ONNX Runtime writes
through a bound pointer. Only `kv_len` says what is valid; rows beyond it are noise (poison, or the residue of a step
that failed) and nothing may read them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..contract.arrays import Array, Namespace
from ..contract.probe import Appending, Growing, Probe, no_probe
from .layout import KvGeometry, Part, Physical, capacity_bucket, storage_dtype

Pair = tuple[Array, Array]


@dataclass(frozen=True, kw_only=True)
class KvOptions:
    """How memory for KV is made. Capacities in positions; `poison`: what fresh memory is filled with instead of zeros."""

    min_capacity: int = 256
    max_context: int
    poison: float | None = None
    probe: Probe = no_probe


class KvBuffers:
    """KV of one conversation. `xp` is the array namespace (NumPy or CuPy) that owns the memory."""

    def __init__(self, geometry: KvGeometry, xp: Namespace, options: KvOptions) -> None:
        self.geometry = geometry
        self._xp = xp
        self._options = options
        self._length = 0
        self._capacity = 0
        self._pairs: list[Pair] = []

    @property
    def capacity(self) -> int:
        """Positions there is room for; 0 before the first `reserve`."""
        return self._capacity

    def current_kv_len(self) -> int:
        """Positions that hold valid KV."""
        return self._length

    def rewind_kv(self, n: int) -> None:
        """Make only the first `n` positions valid. No byte moves. `n` must not exceed the current length."""
        assert 0 <= n <= self._length, f"rewind_kv({n}) with {self._length} positions held"
        self._length = n

    def advance(self, rows: int) -> None:
        """Declare the `rows` positions that a finished step wrote behind the valid ones to be valid."""
        assert self._length + rows <= self._capacity
        self._length += rows

    def reserve(self, length: int) -> None:
        """Make room for `length` positions. A transaction: if it raises, the old buffers are untouched."""
        if length <= self._capacity:
            return
        longest = self._options.max_context
        capacity = capacity_bucket(length, min_capacity=self._options.min_capacity, max_context=longest)
        assert capacity >= length, f"{length} positions do not fit a context of {longest}"
        grown: list[Pair] = []
        for layer in range(len(self.geometry.layers)):
            self._options.probe(Growing(layer=layer, held=self._capacity, to=capacity))
            key = self._relocated(layer, Part.KEY, capacity)
            value = self._relocated(layer, Part.VALUE, capacity)
            grown.append((key, value))
        self._pairs, self._capacity = grown, capacity

    def copy(self) -> KvBuffers:
        """Buffers of their own with the same valid positions."""
        twin = KvBuffers(self.geometry, self._xp, self._options)
        twin.reserve(self._length)
        for mine, other in zip(self._pairs, twin._pairs, strict=False):
            for part in Part:
                other[part][:, :, : self._length, :] = mine[part][:, :, : self._length, :]
        twin.advance(self._length)
        return twin

    def array(self, layer: int, part: int) -> Array:
        """The physical array `[1, H, capacity, D]` itself; valid until the next `reserve`."""
        return self._pairs[layer][part]

    def view(self, layer: int, part: Part, length: int) -> Array:
        """The first `length` positions, `[1, H, length, D]`, without a copy (head stride stays capacity * D)."""
        if not self._pairs:
            spec = self.geometry.layers[layer]
            return self._xp.zeros((1, spec.heads, 0, spec.head_dim), dtype=storage_dtype(spec.dtype))
        return self._pairs[layer][part][:, :, :length, :]

    def present(self, layer: int, part: Part) -> tuple[Array, Physical]:
        """The array as a flat view, and how to read it."""
        spec = self.geometry.layers[layer]
        physical = Physical(heads=spec.heads, capacity=self._capacity, head_dim=spec.head_dim)
        return self._xp.reshape(self._pairs[layer][part], (-1,)), physical

    def append(self, layer: int, part: Part, rows: Array) -> None:
        """Write `rows` `[1, H, n, D]` behind the valid positions of one layer; `advance` makes them valid."""
        self._options.probe(Appending(layer=layer, part=part))
        start = self._length
        self._pairs[layer][part][:, :, start : start + rows.shape[2], :] = rows

    def _relocated(self, layer: int, part: Part, capacity: int) -> Array:
        """A fresh array of the new capacity that already holds the valid positions, every head at its new stride."""
        spec = self.geometry.layers[layer]
        shape = (1, spec.heads, capacity, spec.head_dim)
        dtype = storage_dtype(spec.dtype)
        poison = self._options.poison
        fresh = self._xp.zeros(shape, dtype=dtype) if poison is None else self._xp.full(shape, poison, dtype=dtype)
        if self._length:
            fresh[:, :, : self._length, :] = self._pairs[layer][part][:, :, : self._length, :]
        return fresh


@dataclass(frozen=True)
class KvSlot:
    """What a kernel sees of one past/present pair: a layer and part of the buffers during one step."""

    buffers: KvBuffers
    layer: int
    part: Part

    @property
    def length(self) -> int:
        """Positions valid before this step."""
        return self.buffers.current_kv_len()

    def past(self) -> Array:
        """Valid positions before this step, `[1, H, length, D]`."""
        return self.buffers.view(self.layer, self.part, self.length)

    def append(self, rows: Array) -> Array:
        """Append this step's rows `[1, H, n, D]`; returns the present, `[1, H, length + n, D]`, a view."""
        self.buffers.append(self.layer, self.part, rows)
        return self.buffers.view(self.layer, self.part, self.length + rows.shape[2])
