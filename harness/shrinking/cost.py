"""What smaller means for a scenario: how much a reader has to take in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import fields, replace

from ..contract.scenario import Fork, Op, Rewind, Scenario, Settings, Turn

DEFAULTS: Mapping[str, Any] = {entry.name: entry.default for entry in fields(Settings)}
FLAGS: Mapping[str, Any] = {
    entry.name: entry.default
    for entry in fields(Turn)
    if entry.name not in ("name", "session", "base", "part", "append", "max_new_tokens")
}
"""What can be odd about a turn beside its tokens, and what it is when nothing is odd."""

_FRACTION = 100_000
_FROM_THE_END = 1000


def cost(scenario: Scenario) -> tuple[int, ...]:
    """The dearest first: turns, operations, sessions, odd settings, odd flags, tokens, replies, references, how odd the
    settings are, cuts, ids, names. Compared from left to right."""
    turns = turns_of(scenario)
    odd = [getattr(scenario.settings, name) for name, value in DEFAULTS.items()
           if getattr(scenario.settings, name) != value]  # fmt: skip
    return (
        len(turns),
        len(scenario.ops),
        len(session_names(scenario)),
        len(odd),
        sum(getattr(turn, name) != value for turn in turns for name, value in FLAGS.items()),
        token_count(scenario),
        sum(turn.max_new_tokens for turn in turns),
        sum((turn.base is not None) + (turn.part != "context") for turn in turns),
        sum(odd),
        sum(_cuts(op) for op in scenario.ops),
        sum(sum(ids(turn)) for turn in turns),
        sum(op != plain for op, plain in zip(scenario.ops, renamed(scenario).ops, strict=True)),
    )


def turns_of(scenario: Scenario) -> list[Turn]:
    """Its turns, in order."""
    return [op for op in scenario.ops if isinstance(op, Turn)]


def token_count(scenario: Scenario) -> int:
    """Token ids (or characters of text) written out in it."""
    return sum(len(turn.append) for turn in turns_of(scenario))


def ids(turn: Turn) -> tuple[int, ...]:
    """The token ids it appends; none where it appends a text."""
    return () if isinstance(turn.append, str) else turn.append


def session_names(scenario: Scenario) -> list[str]:
    """Every session it names, in the order in which they come."""
    return list(dict.fromkeys(name for op in scenario.ops for name in _sessions(op)))


def on_session(op: Op, names: Mapping[str, str]) -> Op:
    """The operation with its sessions renamed; one that `names` does not have stays."""
    op = replace(op, session=names.get(op.session, op.session))
    return replace(op, to=names.get(op.to, op.to)) if isinstance(op, Fork) else op


def renamed(scenario: Scenario) -> Scenario:
    """Turns t0, t1 ...; sessions s, s1 ...; salts x, x1 ..., in the order in which they come.

    A reference means the last turn of that name before it; one to no turn is dropped.
    """
    sessions = _numbered(session_names(scenario), "s")
    salts = _numbered(dict.fromkeys(turn.salt for turn in turns_of(scenario) if turn.salt is not None), "x")
    turns: dict[str | None, str] = {}
    ops: list[Op] = []
    for op in scenario.ops:
        op = on_session(op, sessions)
        if isinstance(op, Turn):
            name, base = f"t{sum(isinstance(other, Turn) for other in ops)}", turns.get(op.base)
            turns[op.name] = name
            op = replace(op, name=name, base=base, salt=salts[op.salt] if op.salt is not None else None)
        ops.append(op)
    return replace(scenario, ops=tuple(ops))


def _numbered(names: Any, letter: str) -> dict[str, str]:
    return {name: f"{letter}{number or ''}" for number, name in enumerate(names)}


def _sessions(op: Op) -> tuple[str, ...]:
    return (op.session, op.to) if isinstance(op, Fork) else (op.session,)


def _cuts(op: Op) -> int:
    """How much there is to say about cuts: a fraction costs more than any length, a length from the end likewise."""
    if isinstance(op, Rewind):
        return _length(op.to)
    if not isinstance(op, Turn):
        return 0
    after = op.cancel_after or 0
    return _length(op.keep) + sum(op.drop or ()) + after + (op.fail[1] if op.fail is not None else 0)


def _length(n: int | float | None) -> int:
    if n is None:
        return 0
    return _FRACTION if isinstance(n, float) else n if n >= 0 else _FROM_THE_END - n
