"""The cut where a component governs: what a window still holds, who is named, and what the proof of reuse says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from warmcold.engine import CutReason, ReuseSource
from warmcold.engine.kv.components import FullAttention, Window
from warmcold.engine.turn.reuse import (
    Keep,
    Plan,
    Reset,
    Rewind,
    apply_prefix_reuse,
    nothing_reused,
    plan_prefix_reuse,
)


@dataclass(frozen=True)
class Rule:
    """A component that admits by `law(m, current)`."""

    law: Callable[[int, int], bool]
    name: CutReason = CutReason.WINDOW

    def admits(self, m: int, current: int) -> bool:
        """As the law says."""
        return self.law(m, current)


@dataclass
class Store:
    """A store that rewinds."""

    kv_len: int
    has_state: bool = True

    def rewind_to(self, n: int) -> bool:
        """Rewind."""
        self.kv_len = n
        return True

    def reset(self) -> None:
        """Hold nothing."""
        self.kv_len = 0


@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("resident_from", [0, 1, 2, 6])
def test_a_window_is_whole_where_all_that_the_next_query_sees_is_resident(width: int, resident_from: int) -> None:
    """m == current, or every position in [max(0, m - W + 1), m) is still there: counted out position by position."""
    current = 9
    resident = set(range(resident_from, current))
    for m in range(1, current + 1):
        seen = set(range(max(0, m - width + 1), m))
        assert Window(width, resident_from).admits(m, current) == (m == current or seen <= resident)


def test_a_window_that_kept_everything_constrains_nothing() -> None:
    """`resident_from` is 0 unless said otherwise; the reason it would give is `window`."""
    window = Window(4)
    assert all(window.admits(m, 9) for m in range(1, 10))
    assert window.name is CutReason.WINDOW


def test_where_no_cut_is_admissible_nothing_is_kept() -> None:
    """Down to 0 and no further: the plan is a reset, in the name of the component."""
    assert plan_prefix_reuse(2, 9, 20, [Window(2, resident_from=6)]) == Reset(CutReason.WINDOW)
    assert Reset(CutReason.WINDOW).n == 0


def test_the_component_named_is_the_one_that_forbids_one_more() -> None:
    """Not the first in the list, nor one that only forbids what was cut already: 5 of 5 is whole for the first, too much
    for the second, although the first has no snapshot at 3 either."""
    snapshots = Rule(lambda m, current: m == current or m % 4 == 0)
    capped = Rule(lambda m, current: m <= 4, CutReason.STATELESS)
    assert plan_prefix_reuse(5, 5, 9, [FullAttention(), snapshots, capped]) == Rewind(4, CutReason.STATELESS)


def test_a_component_that_contradicts_itself_is_our_bug() -> None:
    """It forbade a cut and then admits it: no reason is true, and the message says at which cut."""
    answers = iter([False, False, True, True])
    fickle = Rule(lambda m, current: next(answers))
    with pytest.raises(AssertionError, match=r"^cut 3 is below every bound, yet every component admits 4"):
        plan_prefix_reuse(5, 9, 9, [fickle])


@pytest.mark.parametrize(
    ("plan", "length", "source"),
    [
        (Keep(7, CutReason.CURRENT), 7, ReuseSource.RETAINED),
        (Rewind(4, CutReason.SHARED), 4, ReuseSource.RETAINED),
        (Reset(CutReason.IDENTITY), 0, ReuseSource.NONE),
    ],
)
def test_the_proof_says_what_the_plan_said(plan: Plan, length: int, source: ReuseSource) -> None:
    """Length, source and the plan's own reason; nothing was declined."""
    store = Store(7)
    proof = apply_prefix_reuse(store, plan)
    assert (proof.length, proof.source, proof.reason, proof.declined) == (length, source, plan.reason, False)
    assert store.kv_len == length


def test_a_store_that_disagrees_with_the_plan_is_our_bug() -> None:
    """A proof is only given for what is really held; the message has both numbers."""
    with pytest.raises(AssertionError, match=r"^plan says 6 positions, the store holds 7"):
        apply_prefix_reuse(Store(7), Keep(6, CutReason.CURRENT))


def test_nothing_reused_comes_from_nowhere() -> None:
    """Length 0, no source, the reason given."""
    proof = nothing_reused(CutReason.IDENTITY)
    assert (proof.length, proof.source, proof.reason, proof.declined) == (
        0,
        ReuseSource.NONE,
        CutReason.IDENTITY,
        False,
    )
