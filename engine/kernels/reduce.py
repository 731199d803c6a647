"""Reductions. Source: ONNX Reduce* (axes an attribute, then an input: ReduceSum from 13, the others from 18).

A reduced axis may grow with the context, so sums go through `Arithmetic.sum_last`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..contract.arrays import Array, Namespace
from .call import Call, Kernel, Run, Table, ints, versions


def _reduction(fold: Callable[[Call], Callable[[Array], Array]], *, moves: bool = False) -> Kernel:
    """A kernel from `fold`, which reduces the last axis of a contiguous array to extent 1."""

    def build(call: Call) -> Run:
        xp, last, fixed = call.xp, fold(call), call.attribute("axes")
        keep, lazy = call.attribute("keepdims", 1), call.attribute("noop_with_empty_axes", 0)

        def run(x: Array, axes: Array = None) -> Array:
            given = fixed if axes is None else ints(axes)
            if not given and lazy:
                return x
            along = sorted(axis % x.ndim for axis in given) if given else list(range(x.ndim))
            shape = tuple(1 if axis in along else extent for axis, extent in enumerate(x.shape))
            out = last(_flattened(xp, x, along))
            kept = shape if keep else tuple(extent for axis, extent in enumerate(x.shape) if axis not in along)
            return xp.reshape(out, kept)

        return run

    return Kernel(build, host=(1,), moves=moves)


def _flattened(xp: Namespace, x: Array, along: list[int]) -> Array:
    """The axes `along` moved to the end and joined to one."""
    rest = [axis for axis in range(x.ndim) if axis not in along]
    moved = x if rest + along == list(range(x.ndim)) else xp.permute_dims(x, (*rest, *along))
    return xp.reshape(moved, (*(x.shape[axis] for axis in rest), math.prod(x.shape[axis] for axis in along)))


def _sum(call: Call) -> Callable[[Array], Array]:
    return call.math.sum_last


def _mean(call: Call) -> Callable[[Array], Array]:
    total = call.math.sum_last
    return lambda x: total(x) / x.shape[-1]


def _extreme(name: str) -> Callable[[Call], Callable[[Array], Array]]:
    def fold(call: Call) -> Callable[[Array], Array]:
        function = getattr(call.xp, name)
        return lambda x: function(x, axis=-1, keepdims=True)

    return fold


TABLE: Table = {
    **versions("ReduceSum", _reduction(_sum), 1),
    **versions("ReduceMean", _reduction(_mean), 1),
    **versions("ReduceMax", _reduction(_extreme("max"), moves=True), 1),
    **versions("ReduceMin", _reduction(_extreme("min"), moves=True), 1),
}
