"""Matrix products. Source: ONNX MatMul (opset 1), Gemm (opset 7)."""

from __future__ import annotations

from typing import Any

from .call import Call, Kernel, Run, Table, versions


def is_weight_product(call: Call) -> bool:
    """Whether the right operand is a stored matrix, so that only rows vary from call to call."""
    weight = call.constant(1)
    return weight is not None and weight.ndim == 2


def _matmul(call: Call) -> Run:
    if is_weight_product(call):
        return call.math.times_weight
    product, xp = call.math.product, call.xp

    def run(a: Any, b: Any) -> Any:
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
    contiguous, xp = call.device.contiguous, call.xp
    multiply = call.math.times_weight if is_weight_product(call) else call.math.product

    def run(a: Any, b: Any, c: Any = None) -> Any:
        left = xp.matrix_transpose(a) if flip_a else a
        right = contiguous(xp.matrix_transpose(b)) if flip_b else b
        out = multiply(left, right)
        out = out if alpha == 1.0 else out * alpha
        return out if c is None else out + (c if beta == 1.0 else c * beta)

    return run


TABLE: Table = {**versions("MatMul", Kernel(_matmul), 1), **versions("Gemm", Kernel(_gemm), 7)}
