"""A state that is keys and values of every position, without memory: lengths, marks, and what it says of its cuts."""

from __future__ import annotations

import pytest
from typing_extensions import override

from warmcold.engine.contract.arrays import HOST
from warmcold.engine.contract.probe import ProbeEvent, Rewinding
from warmcold.engine.kv.components import FullAttention, Window
from warmcold.engine.kv.layout import KvGeometry, LayerKv
from warmcold.engine.kv.pages import PagePool
from warmcold.engine.kv.state import PlainKv

WIDTHS = (8, None, 4, 8)
GEOMETRY = KvGeometry(layers=tuple(LayerKv(heads=1, head_dim=2, window=width) for width in WIDTHS))


class Lengths(PlainKv):
    """Holds a length and nothing else. `cuts`: every cut that reached its memory; `declining`: what the probe answers."""

    kv_len = 5
    declining = False

    def __init__(self, geometry: KvGeometry = GEOMETRY) -> None:
        super().__init__(geometry, HOST, self._asked)
        self.cuts: list[int] = []
        self.asked: list[ProbeEvent] = []

    def _asked(self, event: ProbeEvent) -> bool:
        self.asked.append(event)
        return not self.declining

    @override
    def _cut(self, n: int) -> None:
        self.cuts.append(n)
        self.kv_len = n


def test_a_rewind_is_exact() -> None:
    """To what is held: nothing is touched or asked. Below: one cut, of which the probe was told. Above: declined."""
    state = Lengths()
    assert state.rewind_to(5)
    assert (state.cuts, state.asked) == ([], [])
    assert not state.rewind_to(6)
    assert (state.kv_len, state.cuts, state.asked) == (5, [], [])
    assert state.rewind_to(4)
    assert (state.kv_len, state.cuts, state.asked) == (4, [4], [Rewinding(held=5, to=4)])


def test_a_probe_can_decline() -> None:
    """Then nothing changes, and a mark is as good as before."""
    state = Lengths()
    mark = state.snapshot()
    state.declining = True
    assert not state.rewind_to(2)
    assert (state.kv_len, state.cuts) == (5, [])
    state.kv_len, state.declining = 7, False
    assert state.restore(mark)
    assert state.kv_len == 5


def test_a_reset_cannot_be_declined() -> None:
    """The probe is not asked, and every mark is gone; one of nothing is not."""
    state = Lengths()
    mark = state.snapshot()
    state.declining = True
    state.reset()
    assert (state.kv_len, state.cuts, state.asked) == (0, [0], [])
    nothing = state.snapshot()
    state.kv_len, state.declining = 5, False
    assert not state.restore(mark)
    assert state.restore(nothing)
    assert state.kv_len == 0


@pytest.mark.parametrize(("cut", "held"), [(4, False), (5, True), (6, True)])
def test_a_mark_is_void_once_its_state_was_cut_below_it(cut: int, held: bool) -> None:
    """Not by a cut to just its length, nor by one above; and for good, whatever is cut later."""
    state = Lengths()
    mark = state.snapshot()
    assert (mark.length, mark.void) == (5, False)
    state.kv_len = 9
    assert state.rewind_to(cut)
    state.kv_len = 9
    assert state.rewind_to(7)
    assert state.restore(mark) is held
    assert state.kv_len == (5 if held else 7)


def test_a_mark_of_another_state_is_declined() -> None:
    """Though it is of the same length."""
    state = Lengths()
    assert not state.restore(Lengths().snapshot())
    assert state.cuts == []


def test_holders_of_every_position_may_be_cut_anywhere() -> None:
    """A state and a pool alike: each width of a window once, in order, as masks only; without layers nothing is held."""
    found = (FullAttention(), Window(4), Window(8))
    state, pool = Lengths(), PagePool(GEOMETRY, page_size=4, pages=2)
    assert tuple(state.components()) == tuple(pool.components()) == found
    assert all(component.admits(m, 20) for component in found for m in range(1, 21))
    assert (state.has_state, state.device) == (True, HOST)
    empty = Lengths(geometry=KvGeometry(layers=()))
    assert (list(empty.components()), empty.has_state) == ([], False)


@pytest.mark.parametrize(("m", "admitted"), [(8, False), (9, True), (10, True), (12, True)])
def test_a_window_that_was_evicted_restricts(m: int, admitted: bool) -> None:
    """Position m sees the four up to itself, so all from m - 3 must be there; the whole state always is."""
    assert Window(4, resident_from=6).admits(m, 12) is admitted
    assert Window(4, resident_from=12).admits(12, 12)
