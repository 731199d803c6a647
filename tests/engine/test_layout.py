"""Sixteen-bit rows in pages: every pattern goes to float32 and back without losing a bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from warmcold.engine.kv.layout import append_token_kv, narrow, widen

PATTERNS = np.arange(1 << 16, dtype=np.uint16)
DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
KINDS = pytest.mark.parametrize("name", DTYPES)


def every(name: str) -> Any:
    """All 65,536 values of a 16-bit dtype, in the order of their bits."""
    return PATTERNS.view(DTYPES[name])


def value_of(bits: int, significand: int) -> float:
    """What a finite 16-bit pattern with `significand` stored bits means, by the definition of the format."""
    exponent_bits = 15 - significand
    bias = (1 << exponent_bits - 1) - 1
    sign = -1.0 if bits >> 15 else 1.0
    exponent, fraction = bits >> significand & (1 << exponent_bits) - 1, bits & (1 << significand) - 1
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias - significand)
    return sign * (1 + fraction / (1 << significand)) * 2.0 ** (exponent - bias)


@pytest.mark.parametrize(("name", "significand"), [("float16", 10), ("bfloat16", 7)])
def test_widening_gives_the_value_of_every_pattern(name: str, significand: int) -> None:
    """Finite patterns are the numbers that the format defines, -0.0 and subnormals included; the rest stay what they are."""
    wide, rows = widen(every(name)), every(name)
    assert wide.dtype == np.float32
    with np.errstate(invalid="ignore"):  # looking at a signalling NaN raises the flag
        finite, nan, infinite = np.isfinite(rows), np.isnan(rows), np.isinf(rows)
    expected = np.array([value_of(int(bits), significand) for bits in PATTERNS[finite]], np.float32)
    np.testing.assert_array_equal(wide[finite].view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(np.isnan(wide), nan)
    np.testing.assert_array_equal(np.isinf(wide), infinite)
    np.testing.assert_array_equal(np.signbit(wide), PATTERNS >> 15 == 1)


@KINDS
def test_every_pattern_survives_the_way_there_and_back(name: str) -> None:
    """Also NaNs, quiet and signalling, with their payload: pages of a poisoned buffer compare bit for bit."""
    back = narrow(widen(every(name)), name)
    assert back.dtype == DTYPES[name]
    np.testing.assert_array_equal(back.view(np.uint16), PATTERNS)


@KINDS
def test_no_two_patterns_widen_to_one(name: str) -> None:
    """A difference in 16 bits is a difference in the page."""
    assert len(np.unique(widen(every(name)).view(np.uint32))) == 1 << 16


@KINDS
def test_strided_rows_widen_as_contiguous_ones_do(name: str) -> None:
    """A view into a buffer with spare capacity is read where it lies."""
    rows = every(name).reshape(256, 256)
    np.testing.assert_array_equal(widen(rows[::2, 3:7]).view(np.uint32), widen(rows).view(np.uint32)[::2, 3:7])


def test_float32_passes_through_as_a_copy() -> None:
    """Nothing is rounded, no NaN is changed, and the page does not alias the buffer."""
    bits = np.array([0x7FA00001, 0xFFC12345, 0x80000000, 0x00000001, 0x3F800001], np.uint32)
    rows = bits.view(np.float32).copy()
    for copy in (widen(rows), narrow(rows, "float32")):
        np.testing.assert_array_equal(copy.view(np.uint32), bits)
        assert not np.shares_memory(copy, rows)


@KINDS
def test_a_nan_stays_a_nan_however_short_its_payload(name: str) -> None:
    """A float32 NaN whose payload lies in the bits that are dropped must not become an infinity."""
    short = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(widen(narrow(short, name))).all()


@KINDS
def test_a_page_takes_rows_of_any_dtype(name: str) -> None:
    """What is appended to a page are the widened rows, head by head."""
    page = np.zeros((2, 4, 3), np.float32)
    rows = [np.full((2, 3), head + 0.5, DTYPES[name]) for head in range(2)]
    append_token_kv(page, 1, rows)
    np.testing.assert_array_equal(page[:, 1:3, 0], [[0.5, 0.5], [1.5, 1.5]])
    assert not page[:, [0, 3]].any()
