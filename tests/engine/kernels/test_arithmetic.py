"""Shape-invariant products and sums: a result depends on its own row and on nothing that may grow around it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from warmcold.engine.contract.arrays import HOST, Device
from warmcold.engine.kernels.arithmetic import BLOCK, Anchored, Free
from warmcold.engine.kernels.probing import largest_tile


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.fixture
def anchored() -> Anchored:
    """The arithmetic as a plan for a [96, 33] weight would get it on this machine."""
    return Anchored(HOST, largest_tile(HOST, [random(96, 33)]))


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 31])
def test_a_row_times_a_weight_is_the_same_in_any_company(anchored: Anchored, rows: int) -> None:
    """Any number of rows computed with it, before or after it, leaves a row's bits alone."""
    x, weight = random(40, 96), random(96, 33, seed=1)
    whole = anchored.times_weight(x, weight)
    for start in range(0, 40, rows):
        part = anchored.times_weight(x[None, start : start + rows], weight)[0]
        np.testing.assert_array_equal(part, whole[start : start + rows])


def test_a_neighbour_full_of_nan_is_no_neighbour(anchored: Anchored) -> None:
    """A row beside NaN rows has the bits it has alone."""
    x, weight = random(8, 96), random(96, 33, seed=1)
    spoiled = np.where(np.arange(8)[:, None] == 3, x, np.float32(np.nan))
    np.testing.assert_array_equal(anchored.times_weight(spoiled, weight)[3], anchored.times_weight(x, weight)[3])


@pytest.mark.parametrize("longer", [1, 60, 64, 65, 200])
def test_a_longer_contraction_of_zeros_changes_no_bit(anchored: Anchored, longer: int) -> None:
    """Masked probabilities are zeros at the end of the contracted axis: whatever they meet adds nothing."""
    a, b = random(2, 5, 70), random(2, 70, 16, seed=1)
    extended = np.concatenate([a, np.zeros((2, 5, longer), np.float32)], axis=-1)
    tail = np.concatenate([b, random(2, longer, 16, seed=2)], axis=-2)
    np.testing.assert_array_equal(anchored.product(extended, tail), anchored.product(a, b))


@pytest.mark.parametrize("columns", [1, 63, 64, 65, 130])
def test_more_columns_change_no_bit(anchored: Anchored, columns: int) -> None:
    """Scores against the first keys do not depend on how many keys follow."""
    a, b = random(3, 9, 20), random(3, 20, 200, seed=1)
    np.testing.assert_array_equal(anchored.product(a, b[..., :columns]), anchored.product(a, b)[..., :columns])


def test_the_layout_of_an_operand_changes_no_bit(anchored: Anchored) -> None:
    """A transposed view and its contiguous copy give the same product."""
    a, b = random(3, 9, 20), random(3, 200, 20, seed=1).swapaxes(-1, -2)
    np.testing.assert_array_equal(anchored.product(a, b), anchored.product(a, b.copy()))


def test_rows_of_a_product_are_independent(anchored: Anchored) -> None:
    """Any slice of the rows gives the slice of the result."""
    a, b = random(2, 21, 70), random(2, 70, 16, seed=1)
    whole = anchored.product(a, b)
    for start, stop in ((0, 1), (5, 6), (3, 20), (20, 21)):
        np.testing.assert_array_equal(anchored.product(a[:, start:stop], b), whole[:, start:stop])


def test_a_product_broadcasts_its_batch_axes(anchored: Anchored) -> None:
    """Small integers are exact in any order, so the plain product is the truth."""
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (3, 1, 5, 70)).astype(np.float32)
    b = rng.integers(-4, 5, (2, 70, 66)).astype(np.float32)
    np.testing.assert_array_equal(anchored.product(a, b), a @ b)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_zeros_at_the_end_of_a_sum_change_no_bit(anchored: Anchored, length: int) -> None:
    """The sum over a growing axis is anchored at its start."""
    x = random(3, 200)
    x[:, length:] = 0
    np.testing.assert_array_equal(anchored.sum_last(x[:, :length]), anchored.sum_last(x))


def test_integer_sums_stay_integers(anchored: Anchored) -> None:
    """int64 counts beyond 2^53 survive."""
    assert anchored.sum_last(np.asarray([[1 << 60, 1]]))[0, 0] == (1 << 60) + 1


def test_free_arithmetic_agrees_on_integers() -> None:
    """The two numerics differ in rounding only: on exact data they are equal."""
    rng = np.random.default_rng(0)
    x, weight = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((1, 5, 96), (96, 33)))
    for free, fixed in ((Free(HOST), Anchored(HOST, 8)),):
        np.testing.assert_array_equal(free.times_weight(x, weight), fixed.times_weight(x, weight))
        np.testing.assert_array_equal(free.product(x, weight), fixed.product(x, weight))
        np.testing.assert_array_equal(free.sum_last(x), fixed.sum_last(x))


class Placeful:
    """A namespace whose product is off by one bit in row `bad` and beyond of every tile."""

    def __init__(self, bad: int) -> None:
        self._bad = bad

    def __getattr__(self, name: str) -> Any:
        return getattr(HOST.xp, name)

    def matmul(self, a: Any, b: Any) -> Any:
        out = a @ b
        out[..., self._bad :, :] = np.nextafter(out[..., self._bad :, :], np.float32(np.inf))
        return out


@pytest.mark.parametrize(("bad", "tile"), [(8, 8), (7, 4), (4, 4), (3, 2), (1, 1)])
def test_the_probe_finds_the_largest_tile_without_places(bad: int, tile: int) -> None:
    """A BLAS that rounds row `bad` differently is used in smaller tiles; one row alone has no place to depend on."""
    device: Device = replace(HOST, xp=Placeful(bad))
    assert largest_tile(device, [random(96, 33)]) == tile


def test_this_machine_holds_with_more_than_one_row() -> None:
    """The measured property: with single rows invariant numerics would be eight times slower."""
    assert largest_tile(HOST, [random(576, 1536), random(1536, 576), random(BLOCK, 1)]) > 1
