"""A conversation as data: frozen operations that print as JSON, replay, shrink and can be written by hand.

A turn's prompt is made from the history: it takes the prompt or the whole context (prompt + reply) of an earlier turn,
keeps a part of it, drops a span, and appends. Turns are named and refer to each other by name, so that a scenario keeps
its meaning when another turn is dropped; a reference to a turn that is not there means "from nothing".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

FORMAT = 1
FAIL_POINTS = ("feed", "append", "grow", "rewind", "seeded", "mirror", "publish")
"""Where an error can be planted; see `engine/contract/probe.py` for when each is visited."""


class ScenarioError(Exception):
    """A scenario that cannot be read: says which operation, which field, and what was expected."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the engine under test is set up for a scenario. Lengths in positions."""

    page_size: int = 4
    pages: int = 64
    chunk_size: int = 7
    min_capacity: int = 8


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One request. `base` names an earlier turn (None: start from nothing); `part` is its `prompt` or its `context`.

    `keep`: how much of the base is kept: None all, an int that many tokens (negative: all but so many), a float that
    fraction. `drop`: a span [start, stop) removed from what is kept. `append`: token ids, or a text for the model's own
    tokenizer. `decline_rewind`: the store is made to decline a rewind in this turn, which the engine must survive.
    `cancel_after`: the stream is closed after so many model calls (0: before the first). `fail`: [point, n], an error is
    planted at the n-th visit of that point of the engine during this turn (points: `FAIL_POINTS`).
    """

    op: ClassVar[str] = "turn"
    name: str
    session: str = "s"
    base: str | None = None
    part: str = "context"
    keep: int | float | None = None
    drop: tuple[int, int] | None = None
    append: tuple[int, ...] | str = ()
    max_new_tokens: int = 4
    salt: str | None = None
    decline_rewind: bool = False
    cancel_after: int | None = None
    fail: tuple[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class NewSession:
    """Open (or replace) the session of this name with an empty one."""

    op: ClassVar[str] = "new"
    session: str


@dataclass(frozen=True, kw_only=True)
class Rewind:
    """Make a session's retained state hold only its first `to` tokens (clipped to what it holds; a float: a fraction)."""

    op: ClassVar[str] = "rewind"
    session: str
    to: int | float


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Make session `to` a fork of `session`: it retains the same, and neither touches the other afterwards."""

    op: ClassVar[str] = "fork"
    session: str
    to: str


Op = Turn | NewSession | Rewind | Fork
_OPS: dict[str, type[Op]] = {kind.op: kind for kind in (Turn, NewSession, Rewind, Fork)}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Settings and operations, in order."""

    ops: tuple[Op, ...]
    settings: Settings = field(default_factory=Settings)
    title: str = ""

    @property
    def turns(self) -> int:
        """How many turns it holds."""
        return sum(isinstance(op, Turn) for op in self.ops)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives the same scenario back. Fields at their defaults are left out."""
        return {
            "warmcold_case": FORMAT,
            "title": self.title,
            "settings": asdict(self.settings),
            "ops": [_op_json(op) for op in self.ops],
        }


def from_json(data: object) -> Scenario:
    """Read plain data as a scenario, or ScenarioError with the place and what was expected there."""
    if not isinstance(data, Mapping) or data.get("warmcold_case") != FORMAT:
        raise ScenarioError(f'not a case file: expected an object with "warmcold_case": {FORMAT}')
    if unknown := sorted(set(data) - {"warmcold_case", "title", "settings", "ops", "found"}):
        raise ScenarioError(f"unknown {unknown}; a case file has warmcold_case, title, settings, ops and perhaps found")
    ops = data.get("ops")
    if not isinstance(ops, list) or not ops:
        raise ScenarioError('"ops" must be a list of at least one operation')
    settings = _build(Settings, data.get("settings", {}), '"settings"')
    for name, least in (("page_size", 1), ("pages", 0), ("chunk_size", 1), ("min_capacity", 1)):
        if not _natural(getattr(settings, name)) or getattr(settings, name) < least:
            raise ScenarioError(f'"settings": {name} is {getattr(settings, name)!r}; give an integer, {least} or more')
    return Scenario(
        ops=tuple(_op(item, at) for at, item in enumerate(ops)), settings=settings, title=str(data.get("title", ""))
    )


def load(path: Path) -> Scenario:
    """Read a case file. ScenarioError names the file."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror}); give the path of a case file") from error
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise ScenarioError(f"{path}: not JSON ({error})") from error
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from error


def resolve(turn: Turn, history: Mapping[str, tuple[Sequence[int], Sequence[int]]], encode: Any) -> tuple[int, ...]:
    """The prompt of `turn`, given each earlier turn's (prompt, context) and a text encoder. May be empty."""
    prompt, context = history.get(turn.base or "", ((), ()))
    tokens = list(context if turn.part == "context" else prompt)
    if turn.keep is not None:
        tokens = tokens[: _length(turn.keep, len(tokens))]
    if turn.drop is not None:
        tokens = tokens[: turn.drop[0]] + tokens[turn.drop[1] :]
    extra = encode(turn.append) if isinstance(turn.append, str) else turn.append
    return (*tokens, *extra)


def _length(keep: int | float, length: int) -> int:
    wanted = round(keep * length) if isinstance(keep, float) else keep if keep >= 0 else length + keep
    return min(max(wanted, 0), length)


def _op_json(op: Op) -> dict[str, Any]:
    plain: dict[str, Any] = {"op": op.op}
    for entry in fields(op):
        value = getattr(op, entry.name)
        if value != entry.default:
            plain[entry.name] = list(value) if isinstance(value, tuple) else value
    return plain


def _op(item: object, at: int) -> Op:
    place = f'"ops"[{at}]'
    if not isinstance(item, Mapping) or not isinstance(item.get("op"), str) or item["op"] not in _OPS:
        raise ScenarioError(f'{place}: expected an object whose "op" is one of {sorted(_OPS)}, found {item!r:.80}')
    op = _build(_OPS[item["op"]], {key: value for key, value in item.items() if key != "op"}, place)
    if isinstance(op, Turn):
        _check_turn(op, place)
    if isinstance(op, Fork) and not (isinstance(op.session, str) and isinstance(op.to, str)):
        raise ScenarioError(f"{place}: session and to are {op.session!r} and {op.to!r}; give two texts")
    if not isinstance(op, Turn) and not isinstance(op.session, str):
        raise ScenarioError(f"{place}: session is {op.session!r}; give a text")
    if isinstance(op, Rewind) and not (_number(op.to) and op.to >= 0):
        raise ScenarioError(f"{place}: to is {op.to!r}; give 0 or more")
    return op  # type: ignore[no-any-return]  # _build is typed by its argument's class, which mypy joins to object


def _build(kind: Any, data: object, place: str) -> Any:
    if not isinstance(data, Mapping):
        raise ScenarioError(f"{place}: expected an object, found {data!r:.80}")
    names = {entry.name for entry in fields(kind)}
    if unknown := sorted(set(data) - names):
        raise ScenarioError(f"{place}: unknown {unknown}; {kind.__name__} takes {sorted(names)}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ScenarioError(f"{place}: {error}") from error


def _check_turn(turn: Turn, place: str) -> None:
    ids = turn.append if isinstance(turn.append, tuple) else ()
    if not isinstance(turn.append, (tuple, str)) or not all(_natural(token) for token in ids):
        raise ScenarioError(f"{place}: append is {turn.append!r:.80}; give a list of token ids, or a text")
    if turn.part not in ("prompt", "context"):
        raise ScenarioError(f"{place}: part is {turn.part!r}; give prompt or context")
    if not _natural(turn.max_new_tokens):
        raise ScenarioError(f"{place}: max_new_tokens is {turn.max_new_tokens!r}; give an integer, 0 or more")
    if turn.keep is not None and not _number(turn.keep):
        raise ScenarioError(f"{place}: keep is {turn.keep!r}; give null, an integer or a fraction")
    if turn.drop is not None and not (
        _pair(turn.drop) and all(map(_natural, turn.drop)) and turn.drop[0] <= turn.drop[1]
    ):
        raise ScenarioError(f"{place}: drop is {turn.drop!r}; give [start, stop] with start <= stop")
    if not isinstance(turn.decline_rewind, bool):
        raise ScenarioError(f"{place}: decline_rewind is {turn.decline_rewind!r}; give true or false")
    if turn.cancel_after is not None and not _natural(turn.cancel_after):
        raise ScenarioError(f"{place}: cancel_after is {turn.cancel_after!r}; give null or an integer, 0 or more")
    if turn.fail is not None and not (
        _pair(turn.fail) and turn.fail[0] in FAIL_POINTS and _natural(turn.fail[1]) and turn.fail[1] > 0
    ):
        raise ScenarioError(
            f"{place}: fail is {turn.fail!r}; give [point, n] with a point of {list(FAIL_POINTS)} and n 1 or more"
        )
    for name in ("name", "session"):
        if not isinstance(getattr(turn, name), str):
            raise ScenarioError(f"{place}: {name} is {getattr(turn, name)!r}; give a text")
    for name in ("base", "salt"):
        if getattr(turn, name) is not None and not isinstance(getattr(turn, name), str):
            raise ScenarioError(f"{place}: {name} is {getattr(turn, name)!r}; give null or a text")


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
