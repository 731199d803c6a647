"""Look-ups along an axis. Source: ONNX Gather (opset 1, negative indices from 11)."""

from __future__ import annotations

from ..contract.arrays import Array
from .call import Call, Kernel, Run, Table, versions


def _gather(call: Call) -> Run:
    xp, axis = call.xp, call.attribute("axis", 0)

    def run(data: Array, indices: Array) -> Array:
        along = axis % data.ndim
        flat = xp.reshape(indices, (-1,))
        flat = xp.where(xp.less(flat, xp.zeros_like(flat)), flat + data.shape[along], flat)
        rows = xp.take(data, flat, axis=along)
        return xp.reshape(rows, (*data.shape[:along], *indices.shape, *data.shape[along + 1 :]))

    return run


TABLE: Table = versions("Gather", Kernel(_gather, moves=True), 1)
