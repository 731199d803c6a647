"""Conversations for a black box: short ones, each with one way to reuse, in lengths around the size of its pages."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ..contract.scenario import Scenario, Turn

NONCE = 3
"""So many ids at the start of a conversation are drawn apart, so that on a server without tenants nothing earlier fits."""


@dataclass
class Texts:
    """Spans of real text (or, without any, of any ids), never the same start twice except by chance."""

    corpus: Sequence[int]
    source: random.Random

    def span(self, length: int, *, opening: bool = False) -> tuple[int, ...]:
        """So many ids. `opening`: the first few are drawn from the system's own randomness, whatever the seed."""
        start = self.source.randrange(len(self.corpus))
        ids = [self.corpus[(start + at) % len(self.corpus)] for at in range(length)]
        head = min(NONCE, length) if opening else 0
        return (*(secrets.choice(self.corpus) for _ in range(head)), *ids[head:])

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


def shapes(texts: Texts, *, unit: int, operations: frozenset[str], reply: int = 8) -> Iterator[Scenario]:
    """One conversation for each way to reuse; `unit`: positions to a page. What the server cannot do is left out."""

    def turn(name: str, length: int, **rest: object) -> Turn:
        opening = rest.get("base") is None
        append = texts.span(length, opening=opening) if length else ()
        rest.setdefault("max_new_tokens", reply)
        return Turn(name=name, append=append, **rest)  # type: ignore[arg-type]  # Turn's own fields

    def told(title: str, *turns: Turn) -> Scenario:
        return Scenario(ops=turns, title=title)

    yield told(
        "chat",
        turn("t0", 4 * unit + 3),
        turn("t1", unit + 5, base="t0"),
        turn("t2", 1, base="t1"),
        turn("t3", 2 * unit, base="t2"),
    )
    yield told(
        "branch",
        turn("a", 4 * unit),
        turn("b", 3 * unit + 1),
        turn("back", unit - 1, base="a"),
        turn("b again", 2, base="b"),
    )
    if "salt" in operations:
        first = turn("x", 4 * unit + 2, salt="x")
        yield told(
            "tenants", first, replace(first, name="y", salt="y"), turn("x on", 3, base="x", salt="x")
        )  # the same tokens under two salts
    yield told(
        "diverge",
        turn("whole", 6 * unit),
        turn("before", unit + 1, base="whole", keep=3 * unit - 1),
        turn("at", 2, base="whole", keep=3 * unit),
        turn("after", 5, base="whole", keep=5 * unit + 1),
    )
    yield told(
        "again",
        turn("first", 4 * unit),
        turn("same", 0, base="first", part="prompt"),
        turn("shorter", 0, base="first", keep=3 * unit + 1),
        turn("gap", 3, base="first", drop=(2 * unit, 3 * unit)),
    )
    if "cancel" in operations:
        yield told(
            "cancelled",
            turn("start", 4 * unit),
            turn("cut off", unit, base="start", max_new_tokens=4 * unit, cancel_after=3),
            turn("on", 4, base="cut off"),
            turn("restart", 4, base="start"),
        )
