"""Activations and softmax. Source: ONNX operator specification."""

from __future__ import annotations

import math

from ..contract.arrays import Array
from .call import Call, Kernel, Run, Table, versions
from .elementwise import transcendental


def _sigmoid(call: Call) -> Run:
    xp, contiguous = call.xp, call.device.contiguous
    return lambda x: 1.0 / (1.0 + xp.exp(-contiguous(x)))  # exp overflows to inf, whose reciprocal is the limit


def _relu(call: Call) -> Run:
    xp = call.xp
    return lambda x: xp.maximum(x, xp.zeros_like(x))


def _softmax(call: Call) -> Run:
    """Softmax of one axis (opset 13)."""
    xp, axis = call.xp, call.attribute("axis", -1)

    def run(x: Array) -> Array:
        if axis in (-1, x.ndim - 1):
            return softmax_last(call, x)
        return xp.moveaxis(softmax_last(call, xp.moveaxis(x, axis, -1)), -1, axis)

    return run


def _softmax_flattened(call: Call) -> Run:
    """Softmax over all axes from `axis` on, flattened to one (opsets 1 and 11)."""
    xp, axis = call.xp, call.attribute("axis", 1)

    def run(x: Array) -> Array:
        split = axis % x.ndim
        rows = xp.reshape(x, (math.prod(x.shape[:split]), math.prod(x.shape[split:])))
        return xp.reshape(softmax_last(call, rows), x.shape)

    return run


def softmax_last(call: Call, x: Array) -> Array:
    """exp(x - max) / sum over the last axis. An entry far below the maximum is exactly zero: exp underflows."""
    xp = call.xp
    x = call.device.contiguous(x)
    weights = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return weights / call.math.sum_last(weights)


TABLE: Table = {
    **versions("Sigmoid", Kernel(_sigmoid), 6),
    **versions("Tanh", transcendental("tanh"), 6),
    **versions("Relu", Kernel(_relu, moves=True), 6),
    **versions("Softmax", Kernel(_softmax_flattened), 1),
    **versions("Softmax", Kernel(_softmax), 13),
}
