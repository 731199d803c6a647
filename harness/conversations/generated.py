"""Generated conversations: what may happen in one, drawn from any source of choices.

A conversation is drawn turn by turn. Replies have a known length (greedy, end tokens ignored), so the generator knows
each history's length and can aim a prompt at a boundary: one before, at, one after a page, a chunk, a bucket. After an
interesting operation comes one more turn on the same session and one on another, because half of the known faults only
show later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ..contract.scenario import FAIL_POINTS, Fork, NewSession, Op, Rewind, Scenario, Settings, Turn
from ..contract.subject import Operation
from .profile import Profile, boundary_lengths

T = TypeVar("T")

SESSIONS = ("a", "b", "c")


class Source(Protocol):
    """Where choices come from: a seed (`drawing`), or Hypothesis (`strategies`)."""

    def pick(self, options: Sequence[T]) -> T:
        """One of them."""

    def number(self, least: int, most: int) -> int:
        """A whole number, both ends included."""


def settings(source: Source) -> Settings:
    """Small odd sizes, so that boundaries are close together and differ from each other; sometimes too few pages."""
    return Settings(
        page_size=source.pick((1, 2, 3, 4, 5, 8)),
        pages=source.pick((0, 2, 3, 5, 8, 64, 64, 64, 200)),
        chunk_size=source.pick((1, 2, 3, 7, 16, 64)),
        min_capacity=source.pick((1, 4, 8, 16, 64)),
    )


def conversation(source: Source, profile: Profile, *, turns: int = 7) -> Scenario:
    """A scenario of about `turns` turns whose contexts stay within `profile.longest`."""
    chosen = Settings() if profile.plain else settings(source)
    lengths = boundary_lengths(chosen, profile.longest // 2, profile.boundaries)
    maker = _Maker(source=source, profile=profile, lengths=lengths)
    maker.opening()
    for _ in range(turns):
        if maker.count >= turns:
            break
        name = source.pick(offered(profile.operations))
        maker.kinds.append(name)
        KINDS[name].make(maker)
        if KINDS[name].interesting:
            maker.extend(maker.last)
            if "sessions" in profile.operations:
                maker.extend_elsewhere()
    return Scenario(ops=tuple(maker.ops), settings=chosen, title=" ".join(maker.kinds))


@dataclass(kw_only=True)
class _Made:
    """A turn drawn before: where it ran, and how long its prompt and its context are."""

    turn: Turn
    prompt: int
    context: int


@dataclass(kw_only=True)
class _Maker:
    source: Source
    profile: Profile
    lengths: list[int]
    ops: list[Op] = field(default_factory=list)
    made: list[_Made] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.made)

    @property
    def last(self) -> _Made:
        return self.made[-1]

    def tokens(self, count: int) -> tuple[int, ...]:
        """Random ids, from a small alphabet half of the time so that histories share tokens by chance; or a bit of text."""
        source = random.Random(self.source.number(0, 2**32 - 1))
        corpus = self.profile.corpus
        if corpus is not None:
            at = source.randrange(max(len(corpus) - count, 1))
            return corpus[at : at + count]
        alphabet = self.source.pick((3, self.profile.vocab_size))
        return tuple(source.randrange(alphabet) for _ in range(count))

    def length(self) -> int:
        return self.source.pick(self.lengths)

    def pick(self) -> _Made:
        return self.made[self.source.number(0, len(self.made) - 1)]

    def emit(self, base: _Made | None, kept: int, append: tuple[int, ...], **fields: object) -> None:
        """Add a turn whose prompt has `kept` tokens of its base; skipped when the context would grow too long."""
        reply = self.source.pick((0, 1, 1, 2, 3, 5))
        prompt = kept + len(append)
        if not 0 < prompt <= self.profile.longest - reply:
            return
        turn = Turn(
            name=f"t{self.count}",
            base=base.turn.name if base is not None else None,
            append=append,
            max_new_tokens=reply,
            **fields,  # type: ignore[arg-type]  # names and types of Turn's own fields
        )
        self.ops.append(turn)
        ends = turn.cancel_after is None and turn.fail is None
        self.made.append(_Made(turn=turn, prompt=prompt, context=prompt + (reply if ends else 0)))

    def opening(self) -> None:
        self.emit(None, 0, self.tokens(max(self.length(), 2)), session="a")

    def extend(self, base: _Made) -> None:
        """The whole context and more; sometimes just enough to end at a boundary."""
        target = next((n for n in self.lengths if n > base.context), base.context + 1)
        more = target - base.context if self.source.pick((False, True)) else self.source.number(1, 4)
        self.emit(base, base.context, self.tokens(more), session=base.turn.session, salt=base.turn.salt)

    def extend_elsewhere(self) -> None:
        base = self.pick()
        others = [name for name in SESSIONS if name != self.last.turn.session]
        more = self.source.number(1, 3)
        self.emit(base, base.context, self.tokens(more), session=self.source.pick(others), salt=base.turn.salt)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of turn. `needs`: what an engine must offer for it to be drawn; `interesting`: a turn more follows, on the same
    session and on another, because half of the known faults only show later."""

    make: Callable[[_Maker], None]
    needs: frozenset[Operation]
    interesting: bool


KINDS: dict[str, Kind] = {}
"""By name, which is the function's."""


def kind(
    *needs: Operation, interesting: bool = False
) -> Callable[[Callable[[_Maker], None]], Callable[[_Maker], None]]:
    """Register the function below as a kind of turn."""

    def register(make: Callable[[_Maker], None]) -> Callable[[_Maker], None]:
        KINDS[make.__name__.lstrip("_")] = Kind(make=make, needs=frozenset(needs), interesting=interesting)
        return make

    return register


def offered(operations: frozenset[Operation]) -> list[str]:
    """The kinds of turn that an engine with these operations can be asked for."""
    return sorted(name for name, known in KINDS.items() if known.needs <= operations)


@kind()
def _extend(maker: _Maker) -> None:
    maker.extend(maker.last)


@kind()
def _identical(maker: _Maker) -> None:
    base = maker.last
    maker.emit(base, base.prompt, (), part="prompt", session=base.turn.session, salt=base.turn.salt)


@kind(interesting=True)
def _strict_prefix(maker: _Maker) -> None:
    base = maker.last
    keep = min(maker.length(), base.context - 1)
    maker.emit(base, keep, (), keep=keep, session=base.turn.session, salt=base.turn.salt)


@kind(interesting=True)
def _diverge(maker: _Maker) -> None:
    base = maker.pick()
    keep = min(maker.length(), base.context)
    tail = maker.tokens(maker.source.number(1, 6))
    maker.emit(base, keep, tail, keep=keep, session=base.turn.session, salt=base.turn.salt)


@kind(interesting=True)
def _unrelated(maker: _Maker) -> None:
    maker.emit(None, 0, maker.tokens(maker.length()), session=maker.last.turn.session)


@kind(interesting=True)
def _delete_middle(maker: _Maker) -> None:
    base = maker.last
    if base.context < 4:
        return
    start = maker.source.number(1, base.context - 2)
    stop = maker.source.number(start + 1, base.context - 1)
    kept = base.context - (stop - start)
    maker.emit(base, kept, maker.tokens(1), drop=(start, stop), session=base.turn.session, salt=base.turn.salt)


@kind()
def _branch(maker: _Maker) -> None:
    """A, B, A: something else on the session, then back to the older branch."""
    base = maker.pick()
    maker.emit(None, 0, maker.tokens(maker.length()), session=base.turn.session)
    maker.extend(base)


@kind()
def _single(maker: _Maker) -> None:
    maker.emit(None, 0, maker.tokens(1), session=maker.last.turn.session)


@kind("sessions")
def _switch(maker: _Maker) -> None:
    maker.extend_elsewhere()


@kind("new")
def _new_session(maker: _Maker) -> None:
    base = maker.last
    maker.ops.append(NewSession(session=base.turn.session))
    maker.extend(base)


@kind("rewind", interesting=True)
def _rewind(maker: _Maker) -> None:
    base = maker.last
    to = maker.source.number(0, base.context)
    maker.ops.append(Rewind(session=base.turn.session, to=to))
    maker.extend(base)


@kind("decline", interesting=True)
def _declined(maker: _Maker) -> None:
    base = maker.last
    keep = maker.source.number(0, base.context - 1)
    maker.emit(
        base, keep, maker.tokens(2), keep=keep, session=base.turn.session, salt=base.turn.salt, decline_rewind=True
    )


@kind("cancel")
def _cancelled(maker: _Maker) -> None:
    """The stream is closed while queued, between chunks, after the first token, or mid-decode."""
    base = maker.last
    more = maker.tokens(maker.source.number(1, 12))
    calls = maker.source.pick((0, 1, 1, 2, 3, 5))
    maker.emit(base, base.context, more, session=base.turn.session, salt=base.turn.salt, cancel_after=calls)


@kind("fail")
def _failing(maker: _Maker) -> None:
    """An error strikes inside the turn: while feeding, growing, rewinding, seeding, mirroring or publishing."""
    base = maker.pick()
    keep = maker.source.number(0, base.context)
    more = maker.tokens(maker.source.number(1, 12))
    point = maker.source.pick(FAIL_POINTS)
    visit = maker.source.pick((1, 1, 2, 3, 5))
    maker.emit(base, keep, more, keep=keep, session=base.turn.session, salt=base.turn.salt, fail=(point, visit))


@kind("sessions")
def _resend(maker: _Maker) -> None:
    """Exactly what an earlier turn ran through the model, on another session: a full hit that only pages can serve."""
    base = maker.pick()
    others = [name for name in SESSIONS if name != base.turn.session]
    keep = base.context - (1 if base.turn.max_new_tokens else 0)
    maker.emit(base, keep, (), keep=keep, session=maker.source.pick(others), salt=base.turn.salt)


@kind("fork", "rewind", "sessions")
def _forked(maker: _Maker) -> None:
    """A fork and its origin go on side by side, sometimes from a state that was first rewound, down to nothing."""
    base = maker.last
    if maker.source.pick((False, True)):
        maker.ops.append(Rewind(session=base.turn.session, to=maker.source.pick((0, 0, 1, base.prompt))))
    to = maker.source.pick([name for name in SESSIONS if name != base.turn.session])
    maker.ops.append(Fork(session=base.turn.session, to=to))
    maker.emit(base, base.context, maker.tokens(2), session=to, salt=base.turn.salt)
    fork = maker.last
    maker.extend(base)
    maker.extend(fork)  # what the origin did meanwhile must not show here


@kind("salt", interesting=True)
def _other_tenant(maker: _Maker) -> None:
    """The same tokens under another salt: nothing may be shared."""
    base = maker.last
    salt = maker.source.pick(("x", "y"))
    maker.emit(base, base.context, maker.tokens(1), session=base.turn.session, salt=salt)
