"""Exact comparison: bits, not numbers; lengths before values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from warmcold.harness.arms.compare import elided, first_difference, first_token_difference

tokens = st.lists(st.integers(0, 2), max_size=8)


def nan(payload: int) -> NDArray[np.float32]:
    """A quiet NaN that carries `payload`."""
    return np.array([0x7FC00000 | payload], np.uint32).view(np.float32)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int64, np.bool_])
def test_equal_arrays_have_no_difference(dtype: Any) -> None:
    """Every width, also non-contiguous against contiguous."""
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    assert first_difference(array, array.copy()) is None
    assert first_difference(array.transpose(2, 0, 1), np.ascontiguousarray(array.transpose(2, 0, 1))) is None


def test_minus_zero_is_not_zero() -> None:
    """-0.0 == 0.0 as numbers; as bits they differ, and the message shows the sign."""
    found = first_difference(np.array([1.0, -0.0]), np.array([1.0, 0.0]))
    assert found is not None
    assert (found.index, found.left, found.right, found.count, found.total) == ((1,), "-0.0", "0.0", 1, 2)


def test_a_nan_equals_the_same_nan_only() -> None:
    """NaN == NaN when the payload is the same; another payload differs."""
    assert first_difference(nan(1), nan(1)) is None
    assert first_difference(nan(1), nan(2)) is not None


def test_two_nans_are_told_apart() -> None:
    """Where only the payload differs, `nan != nan` would tell a reader nothing: the message shows what differs."""
    found = first_difference(nan(1), nan(2))
    assert found is not None
    assert found.left != found.right


def test_the_last_bit_counts() -> None:
    """Neighbouring floats differ."""
    one = np.ones(3, np.float32)
    other = one.copy()
    other[2] = np.nextafter(np.float32(1), np.float32(2))
    found = first_difference(one, other)
    assert found is not None
    assert (found.index, found.count) == ((2,), 1)


@pytest.mark.parametrize(
    ("left", "right", "texts"),
    [
        (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32), ("float32[2, 3]", "float32[3, 2]")),
        (np.zeros(2, np.float32), np.zeros(3, np.float32), ("float32[2]", "float32[3]")),
        (np.zeros(2, np.float32), np.zeros(2, np.float64), ("float32[2]", "float64[2]")),
        (np.zeros(2, np.int32), np.zeros(2, np.float32), ("int32[2]", "float32[2]")),
        (np.zeros(0, np.int32), np.zeros(0, np.float32), ("int32[0]", "float32[0]")),
    ],
)
def test_shape_and_dtype_come_first(left: NDArray[Any], right: NDArray[Any], texts: tuple[str, str]) -> None:
    """Equal values in another shape or dtype are a difference, and nothing is broadcast."""
    found = first_difference(left, right)
    assert found is not None
    assert (found.left, found.right, found.index) == (*texts, ())


@given(st.lists(st.integers(0, 23), min_size=1, unique=True))
def test_the_first_index_and_the_count(places: list[int]) -> None:
    """The first difference in row-major order, and how many there are."""
    left = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    right = left.copy()
    right.reshape(-1)[places] = -1
    found = first_difference(left, right)
    assert found is not None
    assert found.index == tuple(int(i) for i in np.unravel_index(min(places), left.shape))
    assert (found.left, found.right) == (str(min(places)), "-1")
    assert (found.count, found.total) == (len(places), 24)


def test_the_message_has_both_values_and_the_place() -> None:
    """What a person reads."""
    assert str(first_difference(np.array([1, 2]), np.array([1, 3]))) == "2 != 3 at [1] (1 of 2 differ)"


@pytest.mark.parametrize(
    ("left", "right", "at"),
    [
        ([], [], None),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], 1),
        ([1, 2], [1, 2, 3], 2),
        ([1, 2, 3], [1, 2], 2),
        ([], [5], 0),
        ([9, 2], [1, 2, 3], 0),
    ],
)
def test_first_token_difference(left: list[int], right: list[int], at: int | None) -> None:
    """Where one ends and the other goes on is a difference too."""
    assert first_token_difference(left, right) == at


@given(tokens, tokens)
def test_token_difference_is_sound(left: list[int], right: list[int]) -> None:
    """None means equal; otherwise all before it is equal. It does not matter which side is which."""
    at = first_token_difference(left, right)
    assert at == first_token_difference(right, left)
    assert (at is None) == (left == right)
    assert at is None or (left[:at] == right[:at] and left[at : at + 1] != right[at : at + 1])


@pytest.mark.parametrize(
    ("around", "text"),
    [
        (0, "0 1 2 … (9 tokens)"),
        (4, "… 2 3 4 5 6 … (9 tokens)"),
        (8, "… 6 7 8 (9 tokens)"),
        (2, "0 1 2 3 4 … (9 tokens)"),
        (9, "… 7 8 (9 tokens)"),
    ],
)
def test_equal_parts_are_elided(around: int, text: str) -> None:
    """Two either side of the place; dots only where something is left out; the length always."""
    assert elided(range(9), around, width=2) == text


def test_nothing_to_elide() -> None:
    """A short sequence is shown whole."""
    assert elided([5, 6], 1) == "5 6 (2 tokens)"
