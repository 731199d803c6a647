"""The reuse policy: the greatest admissible cut, and what a store is brought to."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcold.engine import CutReason, ReuseSource
from warmcold.engine.kv.components import Component, FullAttention
from warmcold.engine.turn.reuse import (
    Keep,
    Reset,
    Rewind,
    apply_prefix_reuse,
    common_prefix,
    plan_prefix_reuse,
)


@dataclass(frozen=True)
class Every:
    """A component that admits multiples of `stride` and what is wholly held, as a recurrent state with snapshots does."""

    stride: int
    name: CutReason = CutReason.WINDOW

    def admits(self, m: int, current: int) -> bool:
        """Where there is a snapshot."""
        return m == current or m % self.stride == 0


@dataclass
class Store:
    """A store that records what it is told."""

    kv_len: int
    has_state: bool = True
    declines: bool = False
    told: list[str] = field(default_factory=list)

    def rewind_to(self, n: int) -> bool:
        """Rewind, or decline."""
        self.told.append(f"rewind {n}")
        if self.declines:
            return False
        self.kv_len = n
        return True

    def reset(self) -> None:
        """Hold nothing."""
        self.told.append("reset")
        self.kv_len = 0


lengths = st.integers(0, 40)
components = st.lists(
    st.one_of(st.just(FullAttention()), st.builds(Every, stride=st.integers(1, 7))), min_size=1, max_size=3
)


@given(lengths, lengths, lengths, components)
def test_the_cut_is_the_greatest_admissible_one(shared: int, current: int, wanted: int, parts: list[Component]) -> None:
    """n* is admissible, within every bound, and every m between it and the bound is inadmissible."""
    n = plan_prefix_reuse(shared, current, wanted, parts).n
    bound = min(shared, current, wanted)
    assert 0 <= n <= bound
    assert n == 0 or all(part.admits(n, current) for part in parts)
    for m in range(n + 1, bound + 1):
        assert not all(part.admits(m, current) for part in parts)


@given(lengths, lengths, lengths, components)
def test_more_shared_tokens_never_mean_less_reuse(
    shared: int, current: int, wanted: int, parts: list[Component]
) -> None:
    """n* is monotone in `shared`."""
    less = plan_prefix_reuse(shared, current, wanted, parts).n
    assert plan_prefix_reuse(shared + 1, current, wanted, parts).n >= less


@pytest.mark.parametrize(
    ("shared", "current", "wanted", "expected"),
    [
        (9, 8, 12, Keep(8, CutReason.CURRENT)),  # a plain extension: the last sampled token was not fed
        (5, 8, 12, Rewind(5, CutReason.SHARED)),
        (8, 8, 6, Rewind(6, CutReason.WANTED)),
        (8, 8, 8, Keep(8, CutReason.WANTED)),  # the first reason in the order of the glossary
        (5, 5, 9, Keep(5, CutReason.CURRENT)),
        (0, 8, 9, Reset(CutReason.SHARED)),
        (0, 0, 0, Reset(CutReason.WANTED)),
        (8, 0, 9, Reset(CutReason.CURRENT)),
    ],
)
def test_plan_and_reason(shared: int, current: int, wanted: int, expected: object) -> None:
    """The reason is the first bound, in the order wanted, current, shared, that the cut equals."""
    assert plan_prefix_reuse(shared, current, wanted, [FullAttention()]) == expected


def test_a_component_is_named_when_it_forbids_one_more() -> None:
    """Below every bound the reason is the component that forbids n* + 1; no snapshot there means the one below."""
    assert plan_prefix_reuse(7, 9, 20, [FullAttention(), Every(4)]) == Rewind(4, CutReason.WINDOW)
    assert plan_prefix_reuse(3, 9, 20, [Every(4)]) == Reset(CutReason.WINDOW)


def test_a_decoder_without_state_reuses_nothing() -> None:
    """No components: Reset, and the reason says so."""
    assert plan_prefix_reuse(5, 5, 5, []) == Reset(CutReason.STATELESS)
    reused = apply_prefix_reuse(Store(0, has_state=False), Keep(3, CutReason.CURRENT))
    assert (reused.length, reused.reason) == (0, CutReason.STATELESS)


def test_keep_touches_nothing() -> None:
    """A plan to keep everything calls neither rewind nor reset."""
    store = Store(7)
    reused = apply_prefix_reuse(store, Keep(7, CutReason.CURRENT))
    assert (reused.length, reused.source, store.told) == (7, ReuseSource.RETAINED, [])


def test_rewind_reaches_the_store() -> None:
    """A rewind is asked for once, and its length is what is reused."""
    store = Store(7)
    assert apply_prefix_reuse(store, Rewind(4, CutReason.SHARED)).length == 4
    assert (store.told, store.kv_len) == (["rewind 4"], 4)


def test_a_declined_rewind_always_resets() -> None:
    """Nothing reused and an empty store: never the old tail under a new prompt."""
    store = Store(7, declines=True)
    reused = apply_prefix_reuse(store, Rewind(4, CutReason.SHARED))
    assert (reused.length, reused.source, reused.declined) == (0, ReuseSource.NONE, True)
    assert (reused.reason, store.told, store.kv_len) == (CutReason.SHARED, ["rewind 4", "reset"], 0)


def test_reset_reaches_the_store() -> None:
    """A plan to reset empties the store."""
    store = Store(7)
    assert apply_prefix_reuse(store, Reset(CutReason.SHARED)).length == 0
    assert store.kv_len == 0


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix(left: list[int], right: list[int]) -> None:
    """Equal up to there, and different or ended behind it; symmetric."""
    n = common_prefix(left, right)
    assert left[:n] == right[:n]
    assert n == min(len(left), len(right)) or left[n] != right[n]
    assert n == common_prefix(right, left)
