"""Normalisation over the channel axis, whose extent never changes: a plain sum over contiguous memory is enough.

Source: ONNX LayerNormalization (17), RMSNormalization (23); onnxruntime contrib SimplifiedLayerNormalization,
SkipSimplifiedLayerNormalization, SkipLayerNormalization (com.microsoft 1).
Mean and inverse root are float32, whatever the data is.
"""

from __future__ import annotations

from collections.abc import Callable

from ..contract.arrays import Array
from .call import Call, Kernel, Run, Table, versions

Normal = Callable[[Array, Array, Array], tuple[Array, Array, Array]]


def root_mean_square(call: Call, epsilon: float) -> Normal:
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis; returns it, no mean, and the inverse root."""
    xp, contiguous = call.xp, call.device.contiguous

    def run(x: Array, scale: Array, bias: Array) -> tuple[Array, Array, Array]:
        x = contiguous(x)
        mean = xp.sum(x * x, axis=-1, keepdims=True) / x.shape[-1]
        inverse = 1.0 / xp.sqrt(mean + epsilon)
        out = x * inverse * scale
        return out if bias is None else out + bias, None, inverse

    return run


def centred(call: Call, epsilon: float) -> Normal:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis; also the mean and the inverse root."""
    xp, contiguous, scaled = call.xp, call.device.contiguous, root_mean_square(call, epsilon)

    def run(x: Array, scale: Array, bias: Array) -> tuple[Array, Array, Array]:
        x = contiguous(x)
        mean = xp.sum(x, axis=-1, keepdims=True) / x.shape[-1]
        out, _, inverse = scaled(x - mean, scale, bias)
        return out, mean, inverse

    return run


def _plain(make: Callable[[Call, float], Normal], *, has_mean: bool) -> Kernel:
    """input, scale, bias? -> output, mean? (only where the operator declares it), inverse root."""

    def build(call: Call) -> Run:
        axis, outputs = call.attribute("axis", -1), len(call.node.outputs)
        normal = make(call, call.attribute("epsilon", 1e-5))

        def run(x: Array, scale: Array, bias: Array = None) -> tuple[Array, ...]:
            if axis not in (-1, x.ndim - 1):
                raise call.refuse(f"normalisation from axis {axis} of rank {x.ndim}")
            out, mean, inverse = normal(x, scale, bias)
            return (out, mean, inverse)[:outputs] if has_mean else (out, inverse)[:outputs]

        return run

    return Kernel(build, wide=(1, 2))


def _skip(make: Callable[[Call, float], Normal], *, has_beta: bool) -> Kernel:
    """input, skip, gamma, beta? (only SkipLayerNormalization), bias? -> output, mean, inverse root, the sum."""

    def build(call: Call) -> Run:
        normal, outputs = make(call, call.attribute("epsilon", 1e-5)), len(call.node.outputs)

        def run(x: Array, skip: Array, gamma: Array, *rest: Array) -> tuple[Array, ...]:
            beta = rest[0] if has_beta and rest else None
            extra = rest[has_beta] if len(rest) > has_beta else None
            total = x + skip if extra is None else x + skip + extra
            return (*normal(total, gamma, beta), total)[:outputs]

        return run

    return Kernel(build, wide=(1, 2))


TABLE: Table = {
    **versions("LayerNormalization", _plain(centred, has_mean=True), 1),
    **versions("SimplifiedLayerNormalization", _plain(root_mean_square, has_mean=False), 1),
    **versions("RMSNormalization", _plain(root_mean_square, has_mean=False), 23),
    **versions("SimplifiedLayerNormalization", _plain(root_mean_square, has_mean=False), 1, domain="com.microsoft"),
    **versions("SkipSimplifiedLayerNormalization", _skip(root_mean_square, has_beta=False), 1, domain="com.microsoft"),
    **versions("SkipLayerNormalization", _skip(centred, has_beta=True), 1, domain="com.microsoft"),
}
