"""Operators that move or describe data without computing on it. Source: ONNX operator specification.

Shapes, axes and bounds arrive as host tensors: a device is never asked for them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ..contract.arrays import Array
from .call import Call, Kernel, Kind, Run, Table, ints, narrow_name, no_float, versions
from .node import Node


def _shape(call: Call) -> Run:
    start, end = call.attribute("start", 0), call.attribute("end")
    return lambda x: np.asarray(x.shape[start:end], dtype=np.int64)


def _size(call: Call) -> Run:
    return lambda x: np.asarray(math.prod(x.shape), dtype=np.int64)


def _reshape(call: Call) -> Run:
    xp, zero_is_zero = call.xp, call.attribute("allowzero", 0)

    def run(x: Array, target: Array) -> Array:
        shape = ints(target)
        if not zero_is_zero:
            shape = tuple(x.shape[axis] if extent == 0 else extent for axis, extent in enumerate(shape))
        return xp.reshape(x, shape)

    return run


def _flatten(call: Call) -> Run:
    xp, axis = call.xp, call.attribute("axis", 1)

    def run(x: Array) -> Array:
        split = axis if axis >= 0 else x.ndim + axis
        return xp.reshape(x, (math.prod(x.shape[:split]), math.prod(x.shape[split:])))

    return run


def _squeeze(call: Call) -> Run:
    xp, fixed = call.xp, call.attribute("axes")

    def run(x: Array, axes: Array = None) -> Array:
        given = fixed if axes is None else ints(axes)
        chosen = given if given is not None else tuple(i for i, extent in enumerate(x.shape) if extent == 1)
        return xp.squeeze(x, axis=tuple(chosen))

    return run


def _unsqueeze(call: Call) -> Run:
    xp, fixed = call.xp, call.attribute("axes")

    def run(x: Array, axes: Array = None) -> Array:
        given = fixed if axes is None else ints(axes)
        rank = x.ndim + len(given)
        new = {axis % rank for axis in given}
        old = iter(x.shape)
        return xp.reshape(x, tuple(1 if axis in new else next(old) for axis in range(rank)))

    return run


def _transpose(call: Call) -> Run:
    xp, order = call.xp, call.attribute("perm")
    return lambda x: xp.permute_dims(x, order if order is not None else tuple(reversed(range(x.ndim))))


def _concat(call: Call) -> Run:
    xp, axis = call.xp, call.attribute("axis")
    return lambda *parts: xp.concat(parts, axis=axis)


def _slice(call: Call) -> Run:
    if call.node.version < 10:
        fixed = (call.attribute("starts"), call.attribute("ends"), call.attribute("axes"))
        return lambda x: _sliced(x, *fixed, None)
    return lambda x, starts, ends, axes=None, steps=None: _sliced(x, starts, ends, axes, steps)


def _sliced(x: Array, starts: Array, ends: Array, axes: Array, steps: Array) -> Array:
    first, last = ints(starts), ints(ends)
    along = range(len(first)) if axes is None else ints(axes)
    strides = (1,) * len(first) if steps is None else ints(steps)
    window: list[Array] = [slice(None)] * x.ndim
    for axis, start, stop, step in zip(along, first, last, strides, strict=True):
        window[axis] = _bounds(start, stop, step, x.shape[axis])
    return x[tuple(window)]


def _bounds(start: int, stop: int, step: int, extent: int) -> slice:
    """ONNX clamps where the array API leaves out-of-range bounds undefined."""
    first, last, stride = slice(start, stop, step).indices(extent)
    return slice(first, None if last < 0 else last, stride)


def _split(call: Call) -> Run:
    axis, fixed, pieces = call.attribute("axis", 0), call.attribute("split"), len(call.node.outputs)

    def run(x: Array, sizes: Array = None) -> tuple[Array, ...]:
        given = fixed if sizes is None else ints(sizes)
        edges = itertools.accumulate(given or _equal_parts(x.shape[axis], pieces), initial=0)
        window: list[Array] = [slice(None)] * x.ndim
        parts = []
        for start, stop in itertools.pairwise(edges):
            window[axis] = slice(start, stop)
            parts.append(x[tuple(window)])
        return tuple(parts)

    return run


def _equal_parts(extent: int, pieces: int) -> tuple[int, ...]:
    """Opset 18: equal sizes, the last one smaller when it does not divide."""
    size = -(-extent // pieces)
    return tuple(min(size, extent - start) for start in range(0, extent, size))


def _expand(call: Call) -> Run:
    xp = call.xp
    return lambda x, target: xp.broadcast_to(x, np.broadcast_shapes(tuple(x.shape), ints(target)))


def _tile(call: Call) -> Run:
    xp = call.xp
    return lambda x, repeats: xp.tile(x, ints(repeats))


def _constant_of_shape(call: Call) -> Run:
    value = call.attribute("value", np.zeros(1, np.float32))
    return lambda target: np.full(ints(target), value.item(), dtype=value.dtype)


def _value_kind(node: Node, inputs: Sequence[Kind]) -> Kind:
    return narrow_name(str(getattr(node.attributes.get("value"), "dtype", "")))


def _range(call: Call) -> Run:
    return lambda start, limit, delta: np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def _constant(call: Call) -> Run:
    value = _constant_value(call)
    return lambda: value


def _constant_value(call: Call) -> Array:
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32)):
        if call.attribute(name) is not None:
            return np.asarray(call.attribute(name), dtype=dtype)
    for name in ("value_int", "value_ints"):
        if call.attribute(name) is not None:
            return np.asarray(call.attribute(name), dtype=np.int64)
    if call.attribute("value") is None:
        raise call.refuse("a constant that is neither a dense tensor nor a number")
    return call.attribute("value")


def _triangle(call: Call) -> Run:
    keep = call.xp.triu if call.attribute("upper", 1) else call.xp.tril
    return lambda x, k=None: keep(x, k=0 if k is None else int(k.item()))


TABLE: Table = {
    **versions("Shape", Kernel(_shape, host_output=True, kind=no_float, extents=True), 1),
    **versions("Size", Kernel(_size, host_output=True, kind=no_float, extents=True), 1),
    **versions("Reshape", Kernel(_reshape, host=(1,), moves=True), 5),
    **versions("Flatten", Kernel(_flatten, moves=True), 1),
    **versions("Squeeze", Kernel(_squeeze, host=(1,), moves=True), 1),
    **versions("Unsqueeze", Kernel(_unsqueeze, host=(1,), moves=True), 1),
    **versions("Transpose", Kernel(_transpose, moves=True), 1),
    **versions("Concat", Kernel(_concat, moves=True), 4),
    **versions("Slice", Kernel(_slice, host=(1, 2, 3, 4), moves=True), 1),
    **versions("Split", Kernel(_split, host=(1,), moves=True), 2),
    **versions("Expand", Kernel(_expand, host=(1,), moves=True), 8),
    **versions("Tile", Kernel(_tile, host=(1,), moves=True), 6),
    **versions("ConstantOfShape", Kernel(_constant_of_shape, host=(0,), host_output=True, kind=_value_kind), 9),
    **versions("Range", Kernel(_range, host=(0, 1, 2), host_output=True), 11),
    **versions("Constant", Kernel(_constant, host_output=True), 1),
    **versions("Trilu", Kernel(_triangle, host=(1,), moves=True), 14),
}
