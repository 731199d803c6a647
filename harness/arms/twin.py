"""The dumb twin: predicts reuse, schedule, lengths and published prefixes from tokens alone.

Written from the glossary, never from the engine, which it must not import. No tree, no pages, no arrays: a set of
published token prefixes and, per session, what its state should hold. Where the pool is too small the twin does not guess
victims: it checks that what the engine evicted was legal and carries on from what is left.

Cannot see: anything about the bytes (that is the matched arm's work), nor two faults that cancel in the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..contract.observation import PageKey, Tokens
from ..contract.scenario import Settings


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the glossary says of one turn. `hit`: positions covered by cached pages; `cut`: the paged n*."""

    reused: int
    source: str
    reason: str
    gate: str | None
    declined: bool
    hit: int
    cut: int
    prefill: tuple[int, ...]


@dataclass(kw_only=True)
class _Held:
    context: Tokens
    length: int
    salt: str | None


@dataclass(kw_only=True)
class Twin:
    """One engine's bookkeeping. `stateful`: the model carries KV; `max_context` in positions."""

    settings: Settings
    stateful: bool
    max_context: int
    published: set[PageKey] = field(default_factory=set)
    sessions: dict[str, _Held] = field(default_factory=dict)

    def predict(self, session: str, prompt: Tokens, salt: str | None, *, decline_rewind: bool = False) -> Prediction:
        """What the next turn of `session` must reuse, and why not more. Changes nothing."""
        if not self.stateful:
            return self._prediction(prompt, 0, "none", "stateless", "no_kv", 0, 0)
        wanted = len(prompt) - 1
        held = self.sessions.get(session)
        kept, kept_reason = self._kept(held, prompt, salt, wanted)
        hit = self._longest(prompt, salt)
        cut = min(hit, wanted)
        gate = self._gate(prompt, salt, hit, cut)
        if cut > kept:
            reason = "wanted" if cut == wanted else "current"
            return self._prediction(prompt, cut, "paged", reason, gate, hit, cut)
        if decline_rewind and held is not None and 0 < kept < held.length:
            return self._prediction(prompt, 0, "none", kept_reason, gate, hit, cut, declined=True)
        return self._prediction(prompt, kept, "retained" if kept else "none", kept_reason, gate, hit, cut)

    def fed(self, prompt: Tokens, tokens: Tokens, was: Prediction, cancel_after: int | None) -> Tokens:
        """What has run through the model by the end: all but the last sampled token, or as far as the calls went."""
        if cancel_after is not None and cancel_after < len(was.prefill):
            return prompt[: was.reused + sum(was.prefill[:cancel_after])]
        return (*prompt, *tokens)[: len(prompt) + max(len(tokens) - 1, 0)]

    def finish(self, session: str, context: Tokens, fed: Tokens, salt: str | None, was: Prediction) -> set[PageKey]:
        """Record a turn that ended at a step boundary; returns what is published then (without pressure, all of it)."""
        if not self.stateful:
            return set()
        self.sessions[session] = _Held(context=context, length=len(fed), salt=salt)
        return set(self.published) if was.gate is not None else self.published | self.keys(fed, salt)

    def fail(self, session: str, context: Tokens, salt: str | None, was: Prediction) -> set[PageKey]:
        """Record a turn that failed inside a step: its state is dropped. Returns what may be published then."""
        self.sessions.pop(session, None)
        if not self.stateful or was.gate is not None:
            return set(self.published)
        return self.published | self.keys(context, salt)

    def fork(self, session: str, to: str) -> None:
        """`to` holds what `session` holds."""
        self.sessions.pop(to, None)
        if session in self.sessions:
            self.sessions[to] = self.sessions[session]

    def settle(self, observed: set[PageKey]) -> None:
        """Carry on from what is really published (checked by then)."""
        self.published = set(observed)

    def new_session(self, session: str) -> None:
        """The session holds nothing."""
        self.sessions.pop(session, None)

    def rewind(self, session: str, n: int) -> bool:
        """Whether a rewind to `n` must succeed; if so it is recorded."""
        held = self.sessions.get(session)
        if held is None or n > held.length:
            return False
        self.sessions[session] = _Held(context=held.context[:n], length=n, salt=held.salt)
        return True

    def held(self, session: str) -> int:
        """Positions that the session's state should hold."""
        held = self.sessions.get(session)
        return held.length if held is not None else 0

    def parent(self, key: PageKey) -> PageKey | None:
        """The published prefix one page shorter; None for a first page."""
        size = self.settings.page_size
        above = (len(key[1]) - 1) // size * size
        return (key[0], key[1][:above]) if above else None

    def pages_wanted(self, fed: int, cut: int) -> int:
        """Pages that `fed` positions take beyond a paged cut: those it does not cover, and the copy of one it splits."""
        size = self.settings.page_size
        return -(-fed // size) - -(-cut // size) + (1 if cut % size else 0)

    def keys(self, fed: Tokens, salt: str | None) -> set[PageKey]:
        """The prefixes that a turn publishes which ran `fed` through the model: every page boundary and the whole."""
        size = self.settings.page_size
        return {(salt, fed[:stop]) for stop in (*range(size, len(fed), size), len(fed))}

    def _kept(self, held: _Held | None, prompt: Tokens, salt: str | None, wanted: int) -> tuple[int, str]:
        if held is None or held.salt != salt:
            return 0, "identity"
        shared = _common(prompt, held.context)
        n = min(shared, held.length, wanted)
        return n, "wanted" if n == wanted else "current" if n == held.length else "shared"

    def _longest(self, prompt: Tokens, salt: str | None) -> int:
        return next((n for n in range(len(prompt), 0, -1) if (salt, prompt[:n]) in self.published), 0)

    def _gate(self, prompt: Tokens, salt: str | None, hit: int, cut: int) -> str | None:
        if self.settings.pages == 0:
            return "no_pages"
        free = self.settings.pages - len(self.published)
        on_path = -(-hit // self.settings.page_size)  # pinned while the turn is admitted, so not to be had
        need = self.pages_wanted(len(prompt), cut)
        return "pool_exhausted" if need > free + len(self.published) - on_path else None

    def _prediction(
        self,
        prompt: Tokens,
        reused: int,
        source: str,
        reason: str,
        gate: str | None,
        hit: int,
        cut: int,
        declined: bool = False,
    ) -> Prediction:
        rest = len(prompt) - reused
        chunk = self.settings.chunk_size if self.stateful else self.max_context
        prefill = tuple(min(chunk, rest - at) for at in range(0, rest, chunk))
        return Prediction(
            reused=reused,
            source=source,
            reason=reason,
            gate=gate,
            declined=declined,
            hit=hit,
            cut=cut,
            prefill=prefill,
        )


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    n = 0
    while n < min(len(left), len(right)) and left[n] == right[n]:
        n += 1
    return n
