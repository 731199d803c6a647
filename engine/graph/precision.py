"""16-bit floats: they travel widened, as float32 that holds a 16-bit number, and are rounded where the graph says so.

NumPy's own float16 product is a hundred times slower than a float32 one, and it would add in 16 bits. So weights are
widened once, kernels compute in float32, and whatever a node is declared to give in 16 bits is rounded to that when it
is made. Only the cache, and what a caller feeds, is *stored* in 16 bits; its readers widen it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..contract.arrays import Array, Device, HostArray, dtype_name
from ..kernels.call import Kernel, Kind, Run, narrow_name
from ..kernels.node import Node
from ..kv.layout import narrow, storage_dtype, widen

Kinds = tuple[Kind, ...]


def output_kinds(node: Node, kernel: Kernel, inputs: Sequence[Kind]) -> Kinds:
    """The kinds of a node's outputs, as the operator's type constraints have it."""
    kind = kernel.kind(node, inputs)
    return tuple(None if index in kernel.wide else kind for index in range(len(node.outputs)))


class Precision:
    """What of a plan is in 16 bits. `stored` and `kinds` are those of its inputs, past ports included."""

    def __init__(self, kinds: Mapping[str, str], constant: Callable[[str], Kind]) -> None:
        self._kinds = dict(kinds)
        self._stored = set(kinds)
        self._constant = constant

    def bound(self, node: Node, kernel: Kernel, run: Run, slots: set[int], device: Device) -> Run:
        """`run` with stored inputs widened and outputs rounded to what they are declared; `slots` take no array.

        Nodes come in the order in which they run. A node without 16-bit floats gets `run` back.
        """
        kinds = output_kinds(node, kernel, [self._kind(name) for name in node.inputs])
        cache = {made: node.inputs[slot] for slot, made in kernel.presents(node) if slot in slots}
        for index, (name, kind) in enumerate(zip(node.outputs, kinds, strict=True)):
            if index in cache:
                kind = self._kinds.get(cache[index])
            if name and kind:
                self._kinds[name] = kind
                self._stored |= {name} if index in cache else set()
        stored = {i for i, name in enumerate(node.inputs) if i not in slots and name in self._stored}
        rounded = {i: kind for i, kind in enumerate(kinds) if kind and i not in cache and not kernel.moves}
        run = run if not stored or kernel.extents else _widening(run, stored, device)
        return _rounding(run, rounded, device) if rounded else run

    def _kind(self, name: str) -> Kind:
        return self._kinds.get(name) or (self._constant(name) if name else None)


def _widening(run: Run, places: set[int], device: Device) -> Run:
    astype, wide = device.xp.astype, device.xp.float32
    return lambda *inputs: run(*(astype(x, wide) if i in places and x is not None else x for i, x in enumerate(inputs)))


def _rounding(run: Run, kinds: Mapping[int, str], device: Device) -> Run:
    astype, wide = device.xp.astype, device.xp.float32
    dtypes = {index: storage_dtype(kind) for index, kind in kinds.items()}

    def rounded(index: int, value: Array) -> Array:
        known = value is not None and index in dtypes
        return astype(astype(value, dtypes[index]), wide) if known else value

    def call(*inputs: Array) -> Array:
        result = run(*inputs)
        if isinstance(result, tuple):
            return tuple(rounded(index, value) for index, value in enumerate(result))
        return rounded(0, result)

    return call


def evaluated(node: Node, kernel: Kernel, run: Run, inputs: Sequence[HostArray | None]) -> list[HostArray]:
    """The outputs of a node whose inputs are all known, in the dtypes that the graph declares. `run` gets them wide."""
    kinds = output_kinds(
        node, kernel, [narrow_name(dtype_name(value)) if value is not None else None for value in inputs]
    )
    result = run(*(widened(value) for value in inputs))
    values = [np.asarray(value) for value in (result if isinstance(result, tuple) else (result,))]
    pairs = zip(values, kinds, strict=False)
    return [narrow(value.astype(np.float32), kind) if kind else value for value, kind in pairs]


def widened(value: HostArray | None) -> HostArray | None:
    """A 16-bit array as float32, any other as it is."""
    return widen(value) if value is not None and narrow_name(dtype_name(value)) else value
