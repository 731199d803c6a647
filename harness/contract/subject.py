"""The protocol that an engine under test implements, and what it declares about itself. See `docs/subjects.md`.

A stranger's engine needs a factory `Factory(model, *, threads, **options) -> Subject`, a subject that opens instances, and
an instance that runs turns. Both derive from the protocols below, which answer for everything an engine does not offer, so
that an adapter writes down only what it does. warmcold's own engine comes in by the same door.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from .errors import RefusedError
from .observation import Kv, Observation, Pool
from .scenario import Settings, Turn
from .verdict import Level

Operation = Literal["sessions", "new", "rewind", "fork", "salt", "cancel", "fail", "decline"]
"""What a conversation may ask of an engine beside turns: `sessions` several side by side; `new` start one afresh; `rewind`
to n tokens; `fork`; `salt` tenants; `cancel` a stream midway; `fail` an error planted inside; `decline` a rewind refused."""

OPERATIONS: frozenset[Operation] = frozenset(get_args(Operation))

Part = Literal["settings", "pages", "feeds"]
"""What an engine may have that not every engine has: it is set up by `Settings`; it has a page pool and shows it; it shows
the named inputs of whole model calls."""

PastT = TypeVar("PastT")


@dataclass(frozen=True, kw_only=True)
class ReuseModel:
    """How much an engine reuses, in positions: what the twin predicts from. Reusing more is unsound.

    `scope`: `policy` the whole of docs/glossary.md with pages, as `Settings` say; `session` what the same session retains, cut
    at what was really fed; `engine` any earlier context with the same salt. `granularity`: hits are multiples of it. `leaves`:
    at least so many positions of a prompt are computed again. `exact`: it reuses just that much, so that less is a finding too.
    """

    scope: Literal["policy", "session", "engine"] = "session"
    granularity: int = 1
    leaves: int = 1
    exact: bool = False

    @property
    def across_instances(self) -> bool:
        """Whether what one instance has seen may serve another: the cache belongs to the engine, as a server's does."""
        return self.scope == "engine"


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a subject declares. `level`: the most it lets be observed. `has`: see `Part`.

    `invariant`: the bits of a position do not depend on the schedule, so warm = cold exactly. `deterministic`: the same calls
    on a fresh instance give the same bits. `poison`: fresh memory can be filled with a pattern. `boundaries`: lengths at which
    faults may live (page, window, batch size).
    """

    level: Level
    operations: frozenset[Operation] = frozenset()
    has: frozenset[Part] = frozenset()
    reuse: ReuseModel = ReuseModel()
    invariant: bool = False
    deterministic: bool = True
    poison: bool = False
    boundaries: tuple[int, ...] = ()


class Loop(Protocol[PastT]):
    """A model called step by step on a past that the caller holds: what the matched arm replays a schedule on.

    The past is opaque to the caller: arrays, or whatever else the lowest-level call of a library needs. No method changes one.
    """

    @property
    def stateful(self) -> bool:
        """Whether the model carries state; without it each step is given the whole context."""

    def empty(self) -> PastT:
        """The past of no positions."""

    def step(self, past: PastT, tokens: Sequence[int]) -> tuple[NDArray[np.float32], PastT]:
        """Logits `[rows, V]` of `tokens` on top of `past`, of which the last row is always there; and the new past."""

    def cut(self, past: PastT, n: int) -> PastT:
        """The first `n` positions of `past`."""

    def kv(self, past: PastT) -> Kv | None:
        """The keys and values of `past`; None where they are not to be had."""


AnyLoop = Loop[Any]
"""A loop whose kind of past nobody but itself knows."""

Recompute = Callable[[Sequence[int], Sequence[int] | None], NDArray[np.float32]]
"""`(tokens, schedule) -> [len(tokens), V]`: the whole context from nothing, in one pass or in passes of so many rows."""


class ClosedForm(Protocol):
    """A fixture's meaning in integers; see `fixtures.closed_forms`."""

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The tokens that greedy decoding appends."""

    def logits(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        """`[len(tokens), V]`."""

    def keys(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        """`[layer, head, len(tokens), head_dim]`."""

    def values(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        """`[layer, head, len(tokens), head_dim]`."""


class Instance(Protocol):
    """One engine with fresh pools, caches and sessions, set up for one scenario. What it does not offer, it need not write."""

    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """Run `op` greedily with the resolved `prompt`, its session opened on first use; end tokens are ignored, so that
        it gives `op.max_new_tokens` tokens unless the context is full. RefusedError for a refusal.

        The observation's `pool` is left to `pool()`, which is asked for when it is wanted.
        """

    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """The same request on an engine that has never seen anything, over the same weights, reuse off."""

    def new_session(self, session: str) -> None:
        """Open, or replace, the named session."""
        raise RefusedError("this subject does not start sessions afresh")

    def fork(self, session: str, to: str) -> None:
        """Make session `to` a fork of `session`."""
        raise RefusedError("this subject does not fork sessions")

    def rewind(self, session: str, n: int) -> bool:
        """Ask the session to hold only its first n tokens; False where it declines."""
        raise RefusedError("this subject does not rewind sessions")

    def pool(self) -> Pool | None:
        """Page accounting now; None where the subject cannot show it."""
        return None

    def clear(self) -> None:
        """Drop every cached prefix. Nothing to drop unless told."""
        return


class Subject(Protocol):
    """An engine with a model loaded. `max_context` in positions; token ids are 0 to `vocab_size`, exclusive.

    `model`: what was loaded, a path or the address of a server. `stateful`: the model carries state from position to position.
    `onnx`: the ONNX file or folder that raw ONNX Runtime can play as matched arm and oracle, None where it cannot. `text`: ids
    to draw prompts from, where the model's own tokenizer cannot be asked.
    """

    name: str
    model: Path | str
    capabilities: Capabilities
    max_context: int
    vocab_size: int
    stateful: bool = True
    onnx: Path | None = None
    text: Sequence[int] | None = None

    def open(self, settings: Settings, *, poison: float | None) -> Instance:
        """A fresh instance over the loaded weights. `poison`: what fresh memory is filled with, where that can be set."""

    def loop(self) -> AnyLoop | None:
        """The library's own lowest-level call, the past held by the caller; None where raw ONNX Runtime or nothing will do."""
        return None

    def recompute(self) -> Recompute | None:
        """The library's own computation of a whole context without any cache; None likewise."""
        return None

    def closed_form(self) -> ClosedForm | None:
        """What the model means in plain integers, where somebody knows."""
        return None

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of a text. RefusedError where it cannot."""
        raise RefusedError(f"{self.name} cannot encode text; give token ids")

    def describe(self) -> Mapping[str, object]:
        """Versions, device, numerics and whatever else a report should name."""
        return {}

    def close(self) -> None:
        """Release the weights."""
        return


Factory = Callable[..., Subject]
"""`Factory(model, *, threads, **options)`, options being texts; SubjectError where it cannot."""
