"""The shrinker: a scenario in, the smallest one that still shows the same out. Pure: knows no engine, only `same`.

One for generated and hand-written conversations alike, because it works on the data. Greedy: whole turns first, then
sessions, settings, flags, tokens, lengths, ids; and all of it again until one whole round finds nothing to drop, so that
the result is minimal under every single step in `moves`. Deterministic, unless the time runs out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf

from ..contract.errors import NotShownError
from ..contract.scenario import Scenario, Turn
from . import moves
from .cost import cost, ids

Same = Callable[[Scenario], bool]
Without = Callable[[Scenario, int, int], Iterator[Scenario]]

_ORDER: tuple[moves.Move, ...] = (
    moves.one_or_two_ops,
    moves.apart,
    moves.sessions,
    moves.settings,
    moves.flags,
    moves.appended,
    moves.replies,
    moves.cuts,
    moves.small_settings,
    moves.small_ids,
    moves.names,
)


class _SpentError(Exception):
    pass


@dataclass(kw_only=True)
class Search:
    """A search in progress, or its outcome. `complete`: a whole round found nothing smaller before the budget was spent."""

    best: Scenario
    same: Same
    tries: int
    deadline: float
    tried: int = 0
    complete: bool = False
    _seen: set[str] = field(default_factory=set)

    def accept(self, candidate: Scenario) -> bool:
        """Whether `candidate` is smaller than the best and still shows it; it is the best then."""
        key = repr(candidate)  # equality would take keep=1 (one token) for keep=1.0 (all of them)
        if key in self._seen or cost(candidate) >= cost(self.best):
            return False
        if self.tried >= self.tries or time.monotonic() >= self.deadline:
            raise _SpentError
        self._seen.add(key)
        self.tried += 1
        if not self.same(candidate):
            return False
        self.best = candidate
        return True

    def first(self, candidates: Iterable[Scenario]) -> bool:
        """Take the first of them that is accepted; whether one was."""
        return any(self.accept(candidate) for candidate in candidates)


def shrink(scenario: Scenario, same: Same, *, tries: int = 10_000, seconds: float = inf) -> Scenario:
    """The smallest scenario found for which `same` holds, within so many calls of `same` and so much time.

    NotShownError where `same(scenario)` does not hold. Texts are not shrunk: turn them into token ids first.
    """
    return search(scenario, same, tries=tries, seconds=seconds).best


def search(scenario: Scenario, same: Same, *, tries: int = 10_000, seconds: float = inf) -> Search:
    """Like `shrink`; says also whether it came to its end, and after how many tries."""
    found = Search(best=scenario, same=same, tries=tries, deadline=time.monotonic() + seconds, tried=1)
    if not same(scenario):
        raise NotShownError("the conversation does not show the difference that was to be kept")
    try:
        while _round(found):
            pass
        found.complete = True
    except _SpentError:
        pass
    return found


def _round(found: Search) -> bool:
    """Every step once, boldest first; whether anything got smaller."""
    before = found.best
    _stretches(found, lambda s: len(s.ops), lambda s, start, stop: moves.without(s, range(start, stop)))
    for move in _ORDER:
        if move is moves.appended:
            _tokens(found)
        while found.first(move(found.best)):
            pass
    return found.best != before


def _tokens(found: Search) -> None:
    """Drop tokens of each turn; the last turn first, because it is made from the others."""
    for at in reversed(range(len(found.best.ops))):
        _stretches(found, partial(_said, at), partial(moves.says_less, at))


def _stretches(found: Search, length: Callable[[Scenario], int], without: Without) -> None:
    """Drop ever shorter stretches [start, stop), by halves down to one by one, from the end."""
    size = length(found.best) // 2
    while size:
        for stop in range(length(found.best), 0, -size):
            found.first(without(found.best, max(stop - size, 0), stop))
        size //= 2


def _said(at: int, scenario: Scenario) -> int:
    op = scenario.ops[at]
    return len(ids(op)) if isinstance(op, Turn) else 0
