"""Matrix products. Source: ONNX MatMul (opset 1), Gemm (opset 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..contract.arrays import Array, HostArray
from .call import Call, Kernel, Run, Table, versions

if TYPE_CHECKING:
    from .node import Node


def _stored(node: Node, right: HostArray | None) -> HostArray | None:
    """The weight `[K, N]` of a product whose right operand is `right`; None when that is not known or no one matrix."""
    if right is None or right.ndim != 2:
        return None
    return right.T if node.attributes.get("transB", 0) else right


def _matmul(call: Call) -> Run:
    if _stored(call.node, call.constant(1)) is not None:
        return call.math.times_weight
    product, xp = call.math.product, call.xp

    def run(a: Array, b: Array) -> Array:
        if a.ndim >= 2 and b.ndim >= 2:
            return product(a, b)
        left = a if a.ndim > 1 else xp.reshape(a, (1, -1))
        right = b if b.ndim > 1 else xp.reshape(b, (-1, 1))
        out = product(left, right)
        out = out if b.ndim > 1 else out[..., 0]
        return out if a.ndim > 1 else (out[..., 0, :] if b.ndim > 1 else out[..., 0])

    return run


def _gemm(call: Call) -> Run:
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    flip_a, flip_b = call.attribute("transA", 0), call.attribute("transB", 0)
    xp, weight = call.xp, _stored(call.node, call.constant(1))
    multiply: Run = call.math.product if weight is None else call.math.times_weight
    if weight is not None:
        weight = call.device.from_host(np.require(weight, requirements=["C", "A"]))

    def run(a: Array, b: Array, c: Array = None) -> Array:
        left = xp.matrix_transpose(a) if flip_a else a
        right = xp.matrix_transpose(b) if flip_b else b
        out = multiply(left, right if weight is None else weight)
        out = out if alpha == 1.0 else out * alpha
        return out if c is None else out + (c if beta == 1.0 else c * beta)

    return run


TABLE: Table = {
    **versions("MatMul", Kernel(_matmul, weight=_stored), 1),
    **versions("Gemm", Kernel(_gemm, weight=_stored), 7),
}
