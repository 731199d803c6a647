"""Rotary position embedding. Source: onnxruntime contrib RotaryEmbedding (com.microsoft 1), ONNX RotaryEmbedding (23)."""

from __future__ import annotations

from ..contract.arrays import Array, Namespace
from .call import Call, Kernel, Run, Table, versions


def rotate(xp: Namespace, x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """Turn the leading `2 * cos.shape[-1]` channels of `x` by the angles whose cosine and sine are given.

    `cos` and `sin` must broadcast against `x` in all axes but the last. Channel i turns with i + half, or, interleaved,
    with its neighbour; channels beyond are left as they are.
    """
    half = cos.shape[-1]
    turned = x[..., : 2 * half]
    if interleaved:
        pairs = xp.reshape(turned, (*turned.shape[:-1], half, 2))
        real, imaginary = pairs[..., 0], pairs[..., 1]
        out = xp.stack((real * cos - imaginary * sin, imaginary * cos + real * sin), axis=-1)
        out = xp.reshape(out, turned.shape)
    else:
        real, imaginary = turned[..., :half], turned[..., half:]
        out = xp.concat((real * cos - imaginary * sin, imaginary * cos + real * sin), axis=-1)
    return out if 2 * half == x.shape[-1] else xp.concat((out, x[..., 2 * half :]), axis=-1)


def _rotary_embedding(call: Call) -> Run:
    """x `[B, S, hidden]` or `[B, heads, S, D]`, position_ids `[B, S]` or `[1]` (the first), caches `[N, D / 2]`."""
    xp, interleaved = call.xp, bool(call.attribute("interleaved", 0))
    heads, width = call.attribute("num_heads", 0), call.attribute("rotary_embedding_dim", 0)
    if call.attribute("scale", 1.0) != 1.0:
        raise call.refuse(f"scale {call.attribute('scale')}")

    def run(x: Array, positions: Array, cos_cache: Array, sin_cache: Array) -> Array:
        shape, rows = x.shape, x.shape[-2]
        if x.ndim == 3:
            head_dim = shape[2] // heads if heads and width else 2 * cos_cache.shape[1]
            x = xp.permute_dims(xp.reshape(x, (*shape[:2], shape[2] // head_dim, head_dim)), (0, 2, 1, 3))
        if positions.ndim == 1:
            positions = xp.reshape(positions, (1, 1)) + xp.arange(rows, dtype=positions.dtype)
        cos, sin = (
            xp.reshape(xp.take(cache, xp.reshape(positions, (-1,)), axis=0), (positions.shape[0], 1, rows, -1))
            for cache in (cos_cache, sin_cache)
        )
        out = rotate(xp, x, cos, sin, interleaved=interleaved)
        return xp.reshape(xp.permute_dims(out, (0, 2, 1, 3)), shape) if len(shape) == 3 else out

    return run


def _standard(call: Call) -> Run:
    """x `[B, S, heads * D]` or `[B, heads, S, D]`; caches `[N, R / 2]` by position_ids `[B, S]`, or `[B, S, R / 2]`.

    R, the channels that turn, is what the caches say.
    """
    xp, interleaved, heads = call.xp, bool(call.attribute("interleaved", 0)), call.attribute("num_heads", 0)

    def run(x: Array, cos: Array, sin: Array, positions: Array = None) -> Array:
        if positions is not None:
            flat = xp.reshape(positions, (-1,))
            cos, sin = (xp.reshape(xp.take(c, flat, axis=0), (*positions.shape, c.shape[1])) for c in (cos, sin))
        if x.ndim == 4:
            return rotate(xp, x, cos[:, None, :, :], sin[:, None, :, :], interleaved=interleaved)
        split = xp.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))
        return xp.reshape(rotate(xp, split, cos[:, :, None, :], sin[:, :, None, :], interleaved=interleaved), x.shape)

    return run


TABLE: Table = {
    **versions("RotaryEmbedding", Kernel(_rotary_embedding), 1, domain="com.microsoft"),
    **versions("RotaryEmbedding", Kernel(_standard), 23),
}
