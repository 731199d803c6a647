"""16-bit floats: they travel widened, as float32 that holds a 16-bit number, and are rounded where the graph says so.

NumPy's own float16 product is a hundred times slower than a float32 one, and it would add in 16 bits. So weights are
widened once, kernels compute in float32, and whatever a node is declared to give in 16 bits is rounded to that when it
is made. Only the cache, and what a caller feeds, is *stored* in 16 bits; its readers widen it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..contract.arrays import Device, HostArray, dtype_name
from ..kernels.call import Run
from ..kv.layout import narrow, storage_dtype, widen
from .load import Node
from .passes import NARROW, present_of

Kinds = tuple[str | None, ...]
"""Of each input or output: its dtype if that is a 16-bit float, else None."""

_CASTS = {10: "float16", 16: "bfloat16"}
_EXTENTS = frozenset({"Shape", "Size"})
_OTHERWISE = _EXTENTS | {
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "Xor", "IsNaN", "IsInf"),
    *("ArgMax", "ArgMin", "NonZero", "QuantizeLinear"),
}
"""Operators whose result is no float, whatever their inputs are."""
_MOVES = frozenset(
    {
        *("Reshape", "Transpose", "Gather", "Slice", "Split", "Concat", "Expand", "Tile", "Squeeze", "Unsqueeze"),
        *("Flatten", "Identity", "Where", "Relu", "Neg", "Abs", "Max", "Min", "Round", "Floor", "Ceil", "Trilu"),
        *("GatherElements", "GatherND", "ReduceMax", "ReduceMin", "KvAppend"),
    }
)
"""Operators that make no number that 16 bits could not hold out of such as they can."""
_NORMS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"})
_SKIPS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})


def kind_of(dtype: str) -> str | None:
    """`dtype` if it is a 16-bit float."""
    return dtype if dtype in NARROW else None


def output_kinds(node: Node, inputs: Sequence[str | None]) -> Kinds:
    """The kinds of a node's outputs: as the operator's type constraints have it, that of its first 16-bit input."""
    kind = next((kind for kind in inputs if kind), None)
    if node.op_type == "Cast":
        kind = _CASTS.get(node.attributes["to"])
    elif node.op_type == "CastLike":
        kind = inputs[1]
    elif node.op_type == "ConstantOfShape":
        kind = kind_of(str(getattr(node.attributes.get("value"), "dtype", "")))
    elif node.op_type in _OTHERWISE:
        kind = None
    return tuple(kind if _is_data(node.op_type, index) else None for index in range(len(node.outputs)))


def _is_data(op_type: str, index: int) -> bool:
    """Whether an output has the data's type: normalisations give their mean and inverse root in float32."""
    return index == 0 if op_type in _NORMS else index not in (1, 2) if op_type in _SKIPS else True


class Precision:
    """What of a plan is in 16 bits. `stored` and `kinds` are those of its inputs, past ports included."""

    def __init__(self, kinds: Mapping[str, str], constant: Callable[[str], str | None]) -> None:
        self._kinds = dict(kinds)
        self._stored = set(kinds)
        self._constant = constant

    def bound(self, node: Node, run: Run, slots: set[int], device: Device) -> Run:
        """`run` with stored inputs widened and outputs rounded to what they are declared; `slots` take no array.

        Nodes come in the order in which they run. A node without 16-bit floats gets `run` back.
        """
        kinds = output_kinds(node, [self._kind(name) for name in node.inputs])
        cache = {present for slot, present in present_of(node) if slot in slots}
        for index, (name, kind) in enumerate(zip(node.outputs, kinds, strict=True)):
            if index in cache:
                kind = self._kinds.get(node.inputs[next(slot for slot, made in present_of(node) if made == index)])
            if name and kind:
                self._kinds[name] = kind
                self._stored |= {name} if index in cache else set()
        stored = {i for i, name in enumerate(node.inputs) if i not in slots and name in self._stored}
        rounded = {i: kind for i, kind in enumerate(kinds) if kind and i not in cache and node.op_type not in _MOVES}
        run = run if not stored or node.op_type in _EXTENTS else _widening(run, stored, device)
        return _rounding(run, rounded, device) if rounded else run

    def _kind(self, name: str) -> str | None:
        return self._kinds.get(name) or (self._constant(name) if name else None)


def _widening(run: Run, places: set[int], device: Device) -> Run:
    astype, wide = device.xp.astype, device.xp.float32
    return lambda *inputs: run(*(astype(x, wide) if i in places and x is not None else x for i, x in enumerate(inputs)))


def _rounding(run: Run, kinds: Mapping[int, str], device: Device) -> Run:
    astype, wide = device.xp.astype, device.xp.float32
    dtypes = {index: storage_dtype(kind) for index, kind in kinds.items()}

    def rounded(index: int, value: Any) -> Any:
        known = value is not None and index in dtypes
        return astype(astype(value, dtypes[index]), wide) if known else value

    def call(*inputs: Any) -> Any:
        result = run(*inputs)
        if isinstance(result, tuple):
            return tuple(rounded(index, value) for index, value in enumerate(result))
        return rounded(0, result)

    return call


def evaluated(node: Node, run: Callable[..., Any], inputs: Sequence[HostArray | None]) -> list[HostArray]:
    """The outputs of a node whose inputs are all known, in the dtypes that the graph declares. `run` gets them wide."""
    kinds = output_kinds(node, [kind_of(dtype_name(value)) if value is not None else None for value in inputs])
    result = run(*(widened(value) for value in inputs))
    values = [np.asarray(value) for value in (result if isinstance(result, tuple) else (result,))]
    pairs = zip(values, kinds, strict=False)
    return [narrow(value.astype(np.float32), kind) if kind else value for value, kind in pairs]


def widened(value: HostArray | None) -> HostArray | None:
    """A 16-bit array as float32, any other as it is."""
    return widen(value) if value is not None and kind_of(dtype_name(value)) else value
