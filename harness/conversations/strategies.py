"""The same conversations as a Hypothesis strategy, for tests and for anybody's own suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

from ..contract.scenario import Scenario
from .generated import conversation
from .profile import Profile

T = TypeVar("T")


class _Drawn:
    """A source of choices that Hypothesis makes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def pick(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(options))

    def number(self, least: int, most: int) -> int:
        return self._draw(st.integers(least, most))


@st.composite
def conversations(draw: st.DrawFn, profile: Profile, *, turns: int = 7) -> Scenario:
    """A scenario of about `turns` turns whose contexts stay within `profile.longest`."""
    return conversation(_Drawn(draw), profile, turns=turns)
