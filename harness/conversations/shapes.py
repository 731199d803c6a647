"""Conversations for a black box: short ones, each with one way to reuse, in lengths around the size of its pages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ..contract.scenario import Scenario, Turn

NONCE = 3
"""So many ids at the start of a conversation are drawn apart, so that on a server without tenants nothing earlier fits."""


@dataclass
class Texts:
    """Spans of real text (or, without any, of any ids), never the same start twice except by chance."""

    corpus: Sequence[int]
    source: random.Random
    openings: random.Random = field(default_factory=random.SystemRandom)

    def span(self, length: int, *, opening: bool = False) -> tuple[int, ...]:
        """So many ids. `opening`: the first few are from `openings`, the system's own randomness whatever the seed."""
        start = self.source.randrange(len(self.corpus))
        ids = [self.corpus[(start + at) % len(self.corpus)] for at in range(length)]
        head = min(NONCE, length) if opening else 0
        return (*(self.openings.choice(self.corpus) for _ in range(head)), *ids[head:])

    def fresh(self, scenario: Scenario) -> Scenario:
        """The same shape: each span replaced by another text of its length, equal spans by equal ones."""
        kept: dict[tuple[bool, object], tuple[int, ...]] = {}
        ops = []
        for op in scenario.ops:
            if isinstance(op, Turn) and op.append and not isinstance(op.append, str):
                key = (op.base is None, op.append)
                kept.setdefault(key, self.span(len(op.append), opening=op.base is None))
                op = replace(op, append=kept[key])
            ops.append(op)
        return replace(scenario, ops=tuple(ops))


@dataclass
class _Turns:
    """Makes the turns of one conversation, each appending a span of text. `unit`: positions to a page."""

    texts: Texts
    unit: int
    reply: int = 8

    def __call__(self, name: str, length: int, **rest: object) -> Turn:
        append = self.texts.span(length, opening=rest.get("base") is None) if length else ()
        rest.setdefault("max_new_tokens", self.reply)
        return Turn(name=name, append=append, **rest)  # type: ignore[arg-type]  # Turn's own fields


def shapes(texts: Texts, *, unit: int, operations: frozenset[str]) -> Iterator[Scenario]:
    """One conversation for each way to reuse; `unit`: positions to a page. What the server cannot do is left out."""
    turns = _Turns(texts, unit)
    for shape, (needs, told) in _SHAPES.items():
        if needs is None or needs in operations:
            yield Scenario(ops=told(turns, unit), title=shape)


def _chat(turn: _Turns, unit: int) -> tuple[Turn, ...]:
    return (
        turn("t0", 4 * unit + 3),
        turn("t1", unit + 5, base="t0"),
        turn("t2", 1, base="t1"),
        turn("t3", 2 * unit, base="t2"),
    )


def _branch(turn: _Turns, unit: int) -> tuple[Turn, ...]:
    return (
        turn("a", 4 * unit),
        turn("b", 3 * unit + 1),
        turn("back", unit - 1, base="a"),
        turn("b again", 2, base="b"),
    )


def _tenants(turn: _Turns, unit: int) -> tuple[Turn, ...]:
    """The same tokens under two salts."""
    first = turn("x", 4 * unit + 2, salt="x")
    return (first, replace(first, name="y", salt="y"), turn("x on", 3, base="x", salt="x"))


def _diverge(turn: _Turns, unit: int) -> tuple[Turn, ...]:
    return (
        turn("whole", 6 * unit),
        turn("before", unit + 1, base="whole", keep=3 * unit - 1),
        turn("at", 2, base="whole", keep=3 * unit),
        turn("after", 5, base="whole", keep=5 * unit + 1),
    )


def _again(turn: _Turns, unit: int) -> tuple[Turn, ...]:
    return (
        turn("first", 4 * unit),
        turn("same", 0, base="first", part="prompt"),
        turn("shorter", 0, base="first", keep=3 * unit + 1),
        turn("gap", 3, base="first", drop=(2 * unit, 3 * unit)),
    )


def _cancelled(turn: _Turns, unit: int) -> tuple[Turn, ...]:
    return (
        turn("start", 4 * unit),
        turn("cut off", unit, base="start", max_new_tokens=4 * unit, cancel_after=3),
        turn("on", 4, base="cut off"),
        turn("restart", 4, base="start"),
    )


_SHAPES: Mapping[str, tuple[str | None, Callable[[_Turns, int], tuple[Turn, ...]]]] = {
    "chat": (None, _chat),
    "branch": (None, _branch),
    "tenants": ("salt", _tenants),
    "diverge": (None, _diverge),
    "again": (None, _again),
    "cancelled": ("cancel", _cancelled),
}
"""Title -> the operation that the server must offer, and the turns."""
