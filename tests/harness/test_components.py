"""The twin's table of states, exhaustively on small ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest

from warmcold.harness.arms.components import Component, FullAttention, Window, greatest


@dataclass(frozen=True)
class State:
    """What a session holds."""

    length: int
    resident_from: int = 0


def seen(m: int, width: int) -> set[int]:
    """Positions before m that position m attends to: the window's keys but its own."""
    return set(range(max(0, m - width + 1), m))


STATES = [State(length, first) for length in range(7) for first in range(length + 1)]


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_a_window_admits_what_it_can_still_see(width: int) -> None:
    """The whole state always; else every position that the next one attends to must be there."""
    for state in STATES:
        for m in range(state.length + 1):
            whole = seen(m, width) <= set(range(state.resident_from, state.length))
            assert Window(width).admits(m, state) is (m == state.length or whole), (state, m)


@pytest.mark.parametrize(
    "components", [(FullAttention(),), (Window(2),), (FullAttention(), Window(3)), (Window(2), Window(4))]
)
def test_the_greatest_cut_is_admitted_and_none_above_it(components: tuple[Component, ...]) -> None:
    """It is within the bound, and the named component is the first that forbids one more."""
    for state, bound in product(STATES, range(7)):
        if bound > state.length:
            continue
        n, name = greatest(bound, state, components)
        admitted = [m for m in range(1, bound + 1) if all(c.admits(m, state) for c in components)]
        assert n == max(admitted, default=0)
        forbidding = [c.name for c in components if n < bound and not c.admits(n + 1, state)]
        assert name == (forbidding[0] if n < bound else None)


def test_full_attention_restricts_nothing() -> None:
    """Any prefix of any state."""
    assert greatest(5, State(6), (FullAttention(),)) == (5, None)
