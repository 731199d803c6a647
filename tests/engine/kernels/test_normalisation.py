"""Normalisation and rotation, on inputs whose result is exact: rows of one magnitude, and quarter turns."""

from __future__ import annotations

from typing import Any

import numpy as np

ROWS = np.asarray([[[3, -3, 3, -3], [8, 8, -8, -8]]], dtype=np.float32)
SCALE = np.asarray([1, 2, 4, 8], dtype=np.float32)
EXACT = {"epsilon": 0.0}
MICROSOFT = "com.microsoft"


def test_root_mean_square_of_one_magnitude_leaves_the_signs(apply: Any) -> None:
    """Every entry has magnitude c, so the root mean square is c and x / c * scale is +-scale; 1 / 8 is exact."""
    out = apply("SimplifiedLayerNormalization", ROWS[:, 1:], SCALE, attributes=EXACT)
    np.testing.assert_array_equal(out, np.sign(ROWS[:, 1:]) * SCALE)


def test_skip_returns_the_sum_as_fourth_output(apply: Any) -> None:
    """SkipSimplifiedLayerNormalization adds skip (and bias) first, normalises the sum, and hands it on."""
    skip, bias = ROWS[:, 1:] * 2, ROWS[0, 1]
    out, mean, inverse, total = apply(
        "SkipSimplifiedLayerNormalization",
        ROWS[:, 1:],
        skip,
        SCALE,
        bias,
        domain=MICROSOFT,
        outputs=4,
        attributes=EXACT,
    )
    np.testing.assert_array_equal(total, ROWS[:, 1:] * 4)
    np.testing.assert_array_equal(out, np.sign(total) * SCALE)
    np.testing.assert_array_equal(inverse, [[[1 / 32]]])
    assert mean is None


def test_layer_normalisation_centres_first(apply: Any) -> None:
    """Adding a constant to a row changes nothing but the mean it reports."""
    out, mean, _ = apply("LayerNormalization", ROWS[:, 1:] + 16, SCALE, SCALE, outputs=3, attributes=EXACT)
    np.testing.assert_array_equal(out, np.sign(ROWS[:, 1:]) * SCALE + SCALE)
    np.testing.assert_array_equal(mean, [[[16]]])


def test_skip_layer_normalisation_knows_beta_from_bias(apply: Any) -> None:
    """Input 3 is beta, added after the norm; input 4 is bias, added before."""
    none = np.zeros(4, dtype=np.float32)
    inputs = (ROWS[:, 1:], ROWS[:, 1:], SCALE)
    with_beta = apply("SkipLayerNormalization", *inputs, SCALE, domain=MICROSOFT, attributes=EXACT)
    with_bias = apply("SkipLayerNormalization", *inputs, none, ROWS[0, 1] * 2, domain=MICROSOFT, attributes=EXACT)
    np.testing.assert_array_equal(with_beta, np.sign(ROWS[:, 1:]) * SCALE + SCALE)
    np.testing.assert_array_equal(with_bias, np.sign(ROWS[:, 1:]) * SCALE)


def quarter_turns(positions: int, half: int) -> tuple[Any, Any]:
    """Caches in which position p turns every channel by p quarters of a circle: cosines and sines in {-1, 0, 1}."""
    angle = np.arange(positions) % 4
    cos, sin = np.asarray([1, 0, -1, 0])[angle], np.asarray([0, 1, 0, -1])[angle]
    return tuple(np.repeat(x[:, None], half, axis=1).astype(np.float32) for x in (cos, sin))  # type: ignore[return-value]


def test_rotation_by_quarter_turns(apply: Any) -> None:
    """A quarter turn takes (a, b) to (-b, a); halves pair channel i with i + D/2."""
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    positions = np.asarray([[1, 2]], dtype=np.int64)
    out = apply("RotaryEmbedding", x, positions, *quarter_turns(4, 2), domain=MICROSOFT)
    np.testing.assert_array_equal(out, [[[[-3, -4, 1, 2], [-5, -6, -7, -8]]]])


def test_interleaved_rotation_pairs_neighbours(apply: Any) -> None:
    """Interleaved, channel 2i turns with 2i + 1; channels beyond the rotated ones stay."""
    x = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 1, 6)
    positions = np.asarray([[1]], dtype=np.int64)
    turns, options = quarter_turns(4, 2), {"interleaved": 1}
    out = apply("RotaryEmbedding", x, positions, *turns, domain=MICROSOFT, attributes=options)
    np.testing.assert_array_equal(out, [[[[-2, 1, -4, 3, 5, 6]]]])


def test_rotation_of_packed_heads(apply: Any) -> None:
    """`[1, S, heads * D]` is turned head by head, from one offset when position_ids has one element."""
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 8)
    out = apply("RotaryEmbedding", x, np.asarray([1], dtype=np.int64), *quarter_turns(4, 2), domain=MICROSOFT)
    np.testing.assert_array_equal(out, [[[-3, -4, 1, 2, -7, -8, 5, 6]]])


def test_standard_rotation_takes_angles_by_position_or_as_given(apply: Any) -> None:
    """Opset 23: caches come second, rows of them by position or already chosen; both forms of x, as the contrib one."""
    x = np.arange(48, dtype=np.float32).reshape(1, 2, 3, 8)
    positions, turns = np.asarray([[2, 0, 1]], dtype=np.int64), quarter_turns(4, 4)
    expected = apply("RotaryEmbedding", x, positions, *turns, domain=MICROSOFT)
    np.testing.assert_array_equal(apply("RotaryEmbedding", x, *turns, positions, version=23), expected)
    chosen = [cache[positions] for cache in turns]
    np.testing.assert_array_equal(apply("RotaryEmbedding", x, *chosen, version=23), expected)
    flat = apply("RotaryEmbedding", rows_of(x), *turns, positions, version=23, attributes={"num_heads": 2})
    np.testing.assert_array_equal(flat, rows_of(expected))


def test_standard_rotation_turns_as_many_channels_as_the_caches_say(apply: Any) -> None:
    """`rotary_embedding_dim` below the head's width leaves the rest as it is."""
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 1, 8)
    turns, position = quarter_turns(2, 2), np.asarray([[1]], dtype=np.int64)
    out = apply("RotaryEmbedding", x, *turns, position, version=23, attributes={"rotary_embedding_dim": 4})
    np.testing.assert_array_equal(out[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(out[..., :4], apply("RotaryEmbedding", x[..., :4], *turns, position, version=23))


def rows_of(x: Any) -> Any:
    """`[1, heads, S, D]` as `[1, S, heads * D]`."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(1, x.shape[2], -1))
