"""Rows on their way into pages, bit by bit: NaNs on any processor, memory order, and where a page is written."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from warmcold.engine.kv.layout import append_token_kv, narrow, storage_dtype, widen

DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
MISSING = {"float16": 13, "bfloat16": 16}
PATTERNS = np.arange(1 << 16, dtype=np.uint16)
KINDS = pytest.mark.parametrize("name", DTYPES)


class Quieting(np.ndarray[Any, Any]):
    """16-bit rows whose conversion to float32 is that of a processor: it quiets signalling NaNs and raises the flag."""

    def astype(self, dtype: Any, *args: Any, **options: Any) -> Any:
        """Convert; adding 0 is what makes the processor look at the NaN."""
        wide = np.asarray(super().astype(dtype, *args, **options))
        return wide + wide.dtype.type(0) if wide.dtype.kind == "f" else wide


def nans(name: str) -> Any:
    """All NaNs of a 16-bit dtype, quiet and signalling."""
    rows = PATTERNS.view(DTYPES[name])
    wide = PATTERNS.astype(np.uint32) << 16 if name == "bfloat16" else None
    nan = np.isnan(rows) if wide is None else np.isnan(wide.view(np.float32))
    return rows[nan]


def widened(rows: Any, name: str) -> Any:
    """What the bits of a NaN become: sign, all exponent bits, and the payload at the top of the significand."""
    bits = rows.view(np.uint16).astype(np.uint32)
    significand = 23 - MISSING[name]
    payload = bits & np.uint32((1 << significand) - 1)
    return (bits >> 15) << 31 | np.uint32(0x7F800000) | payload << MISSING[name]


@KINDS
def test_a_nan_is_widened_by_its_bits(name: str) -> None:
    """Sign and payload, not one bit more."""
    np.testing.assert_array_equal(widen(nans(name)).view(np.uint32), widened(nans(name), name))


@KINDS
def test_a_processor_that_quiets_nans_changes_nothing(name: str) -> None:
    """A conversion in hardware sets the quiet bit of a signalling NaN and raises a flag; pages show neither."""
    rows = nans(name).view(Quieting)
    np.testing.assert_array_equal(widen(rows).view(np.uint32), widened(nans(name), name))


@pytest.mark.parametrize("name", ["float32", *DTYPES])
def test_a_copy_is_in_order_whatever_its_source(name: str) -> None:
    """Transfers take contiguous memory: rows of a transposed view come out in C order, both ways."""
    rows = np.arange(12).reshape(3, 4).astype(storage_dtype(name)).T
    assert not rows.flags.c_contiguous
    wide = widen(rows)
    stored = narrow(wide.T.copy().T, name)
    assert (wide.flags.c_contiguous, stored.flags.c_contiguous) == (True, True)
    np.testing.assert_array_equal(stored, rows)


def test_page_rows_end_where_the_step_ends() -> None:
    """Rows go to [at, at + n), also where that is not as far from the end of the page as from its start."""
    page = np.zeros((1, 6, 2), np.float32)
    append_token_kv(page, 1, [np.ones((2, 2), np.float32)])
    assert page[0, :, 0].tolist() == [0, 1, 1, 0, 0, 0]
