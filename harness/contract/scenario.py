"""A conversation as data: frozen operations that print as JSON, replay, shrink and can be written by hand.

A turn's prompt is made from the history: it takes the prompt or the whole context (prompt + reply) of an earlier turn,
keeps a part of it, drops a span, and appends. Turns are named and refer to each other by name, so that a scenario keeps
its meaning when another turn is dropped; a reference to a turn that is not there means "from nothing".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from .data import Json, converted, read
from .errors import RefusedError, ScenarioError

FORMAT = 1

FailPoint = Literal["feed", "append", "grow", "rewind", "seeded", "mirror", "publish"]
"""Where an error can be planted; see `engine/contract/probe.py` for when each is visited."""

FAIL_POINTS: tuple[FailPoint, ...] = get_args(FailPoint)

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Fraction = Annotated[float, Meta(ge=0)]
Encode = Callable[[str], Sequence[int]]
History = Mapping[str, tuple[Sequence[int], Sequence[int]]]
"""Of each earlier turn: its prompt, and its context."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the engine under test is set up for a scenario. Lengths in positions."""

    page_size: Positive = 4
    pages: Natural = 64
    chunk_size: Positive = 7
    min_capacity: Positive = 8


class _Op(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="op"):
    """What all operations have in common: `op` names the kind."""

    @property
    def op(self) -> str:
        """Its name in a case file."""
        return str(self.__struct_config__.tag)


class Turn(_Op, frozen=True, kw_only=True, tag="turn"):
    """One request. `base` names an earlier turn (None: start from nothing); `part` is its `prompt` or its `context`.

    `keep`: how much of the base is kept: None all, an int that many tokens (negative: all but so many), a float that
    fraction. `drop`: a span [start, stop) removed from what is kept. `append`: token ids, or a text for the model's own
    tokenizer. `decline_rewind`: the store is made to decline a rewind in this turn, which the engine must survive.
    `cancel_after`: the stream is closed after so many model calls (0: before the first). `fail`: [point, n], an error is
    planted at the n-th visit of that point of the engine during this turn (points: `FAIL_POINTS`).
    """

    name: str
    session: str = "s"
    base: str | None = None
    part: Literal["prompt", "context"] = "context"
    keep: int | float | None = None
    drop: tuple[Natural, Natural] | None = None
    append: tuple[Natural, ...] | str = ()
    max_new_tokens: Natural = 4
    salt: str | None = None
    decline_rewind: bool = False
    cancel_after: Natural | None = None
    fail: tuple[FailPoint, Positive] | None = None

    def __post_init__(self) -> None:
        _finite("keep", self.keep)
        if self.drop is not None and self.drop[0] > self.drop[1]:
            raise ValueError(f"drop is {list(self.drop)}; give [start, stop] with start <= stop")


class NewSession(_Op, frozen=True, kw_only=True, tag="new"):
    """Open (or replace) the session of this name with an empty one."""

    session: str


class Rewind(_Op, frozen=True, kw_only=True, tag="rewind"):
    """Make a session's retained state hold only its first `to` tokens (clipped to what it holds; a float: a fraction)."""

    session: str
    to: Natural | Fraction

    def __post_init__(self) -> None:
        _finite("to", self.to)


class Fork(_Op, frozen=True, kw_only=True, tag="fork"):
    """Make session `to` a fork of `session`: it retains the same, and neither touches the other afterwards."""

    session: str
    to: str


Op = Turn | NewSession | Rewind | Fork


class Scenario(Struct, frozen=True, kw_only=True):
    """Settings and operations, in order."""

    ops: tuple[Op, ...]
    settings: Settings = Settings()
    title: str = ""

    @property
    def turns(self) -> int:
        """How many turns it holds."""
        return sum(isinstance(op, Turn) for op in self.ops)

    def to_json(self) -> dict[str, object]:
        """Plain data; `from_json` gives the same scenario back. Fields of operations at their defaults are left out."""
        return {
            "warmcold_case": FORMAT,
            "title": self.title,
            "settings": msgspec.to_builtins(self.settings),
            "ops": json.loads(msgspec.json.encode(self.ops)),
        }


class CaseFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case file: a scenario, and where it was found, which replaying goes by (see `run.target`)."""

    warmcold_case: Literal[1]
    ops: Annotated[tuple[Op, ...], Meta(min_length=1)]
    settings: Settings = Settings()
    title: str = ""
    found: dict[str, Any] = {}

    @property
    def scenario(self) -> Scenario:
        """The conversation."""
        return Scenario(ops=self.ops, settings=self.settings, title=self.title)


def from_json(data: object) -> Scenario:
    """Read plain data as a scenario, or ScenarioError with the place, the value and what was expected there."""
    return _case(data).scenario


def load(file: Path) -> CaseFile:
    """Read a case file. ScenarioError names the file."""
    data = read(file, ScenarioError)
    try:
        return _case(data)
    except ScenarioError as error:
        raise ScenarioError(f"{file}: {error}") from error


def _case(data: object) -> CaseFile:
    if not isinstance(data, Mapping) or data.get("warmcold_case") != FORMAT or isinstance(data["warmcold_case"], bool):
        raise ScenarioError(f'not a case file: expected an object with "warmcold_case": {FORMAT}')
    return converted(data, CaseFile, ScenarioError)


def resolve(turn: Turn, history: History, encode: Encode) -> tuple[int, ...]:
    """The prompt of `turn`, given each earlier turn's (prompt, context) and a text encoder. May be empty."""
    prompt, context = history.get(turn.base or "", ((), ()))
    tokens = list(context if turn.part == "context" else prompt)
    if turn.keep is not None:
        tokens = tokens[: _length(turn.keep, len(tokens))]
    if turn.drop is not None:
        tokens = tokens[: turn.drop[0]] + tokens[turn.drop[1] :]
    return (*tokens, *appended(turn, encode))


def appended(turn: Turn, encode: Encode) -> tuple[int, ...]:
    """What `turn` appends, as ids. ScenarioError where it is a text and the subject refuses to encode one."""
    if not isinstance(turn.append, str):
        return turn.append
    try:
        return tuple(encode(turn.append))
    except RefusedError as error:
        raise ScenarioError(f"turn {turn.name} is given as text: {error}") from error


def schema() -> Json:
    """The JSON Schema of a case file."""
    return msgspec.json.schema(CaseFile)


def _finite(name: str, value: float | None) -> None:
    """JSON has no other numbers, but Python's reader takes them."""
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{name} is {value}; give a finite number")


def _length(keep: int | float, length: int) -> int:
    wanted = round(keep * length) if isinstance(keep, float) else keep if keep >= 0 else length + keep
    return min(max(wanted, 0), length)
