"""The dumb twin: predicts reuse, schedule, lengths and published prefixes from tokens alone.

Written from docs/glossary.md, never from the engine, which it must not import. No tree, no pages, no arrays: a set of
published token prefixes and, per session, what its state should hold. Where the pool is too small the twin does not guess
victims: it checks that what the engine evicted was legal and carries on from what is left.

Cannot see: anything about the bytes (that is the matched arm's work), nor two faults that cancel in the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..contract.observation import Observation, PageKey, Tokens
from ..contract.scenario import Settings
from .compare import common_prefix
from .components import Component, FullAttention, greatest


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the reuse policy says of one turn. `hit`: positions covered by cached pages; `cut`: the paged n*.

    `prefill`: rows of each call of the prompt. `rows`: those of every call, where the engine's schedule is its own affair and
    it showed them. `bound`: the most that may be reused. `said`: what the engine must report in just these words.
    """

    reused: int
    source: str
    reason: str
    gate: str | None
    declined: bool
    hit: int
    cut: int
    prefill: tuple[int, ...]
    bound: int
    rows: tuple[int, ...] | None = None
    said: tuple[str, ...] = ("source", "reason", "gate", "declined")


@dataclass(kw_only=True)
class _Held:
    context: Tokens
    length: int
    salt: str | None
    resident_from: int = 0


@dataclass(kw_only=True)
class Twin:
    """One engine's bookkeeping. `stateful`: the model carries KV; `max_context` in positions.

    The engine follows the policy to the letter. What an engine is free to do otherwise, `ExternalTwin` allows.
    """

    settings: Settings
    stateful: bool
    max_context: int
    components: Sequence[Component] = (FullAttention(),)
    published: set[PageKey] = field(default_factory=set)
    sessions: dict[str, _Held] = field(default_factory=dict)

    def predict(self, session: str, prompt: Tokens, salt: str | None, *, decline_rewind: bool = False) -> Prediction:
        """What the next turn of `session` must reuse, and why not more. Changes nothing."""
        if not self.stateful:
            return self._prediction(prompt, 0, ("none", "stateless", "no_kv"))
        wanted = len(prompt) - 1
        held = self.sessions.get(session)
        kept, kept_reason = self._kept(held, prompt, salt, wanted)
        hit = self._longest(prompt, salt)
        cut = min(hit, wanted)
        gate = self._gate(prompt, salt, hit, cut)
        if cut > kept:
            reason = "wanted" if cut == wanted else "current"
            return self._prediction(prompt, cut, ("paged", reason, gate), hit=hit)
        if decline_rewind and held is not None and 0 < kept < held.length:
            return replace(self._prediction(prompt, 0, ("none", kept_reason, gate), hit=hit), declined=True)
        return self._prediction(prompt, kept, ("retained" if kept else "none", kept_reason, gate), hit=hit)

    def follow(self, plan: Prediction, prompt: Tokens, seen: Observation) -> Prediction:
        """What the matched arm plays, given what the engine did: just what was predicted."""
        return plan

    def fed(self, prompt: Tokens, tokens: Tokens, was: Prediction, cancel_after: int | None) -> Tokens:
        """What has run through the model by the end: all but the last sampled token, or as far as the calls went."""
        if was.rows is not None:
            return (*prompt, *tokens)[: was.reused + sum(was.rows)]
        if cancel_after is not None and cancel_after < len(was.prefill):
            return prompt[: was.reused + sum(was.prefill[:cancel_after])]
        return (*prompt, *tokens)[: len(prompt) + max(len(tokens) - 1, 0)]

    def finish(self, session: str, context: Tokens, fed: Tokens, salt: str | None, was: Prediction) -> set[PageKey]:
        """Record a turn that ended at a step boundary; returns what is published then (without pressure, all of it)."""
        if not self.stateful:
            return set()
        self.sessions[session] = _Held(context=context, length=len(fed), salt=salt)
        return (
            set(self.published)
            if was.gate is not None
            else self.published | published_by(fed, salt, self.settings.page_size)
        )

    def fail(self, session: str, context: Tokens, salt: str | None, was: Prediction) -> set[PageKey]:
        """Record a turn that failed inside a step: its state is dropped. Returns what may be published then."""
        self.sessions.pop(session, None)
        if not self.stateful or was.gate is not None:
            return set(self.published)
        return self.published | published_by(context, salt, self.settings.page_size)

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

    def rewinds(self, session: str, n: int) -> bool | None:
        """Whether a rewind to `n` must succeed; None where the engine may decline it."""
        return n <= self.held(session) if session in self.sessions else False

    def rewind(self, session: str, n: int) -> None:
        """Record a rewind that succeeded."""
        held = self.sessions[session]
        self.sessions[session] = _Held(context=held.context[:n], length=n, salt=held.salt)

    def held(self, session: str) -> int:
        """Positions that the session's state should hold."""
        held = self.sessions.get(session)
        return held.length if held is not None else 0

    def pages_wanted(self, fed: int, cut: int) -> int:
        """Pages that `fed` positions take beyond a paged cut: those it does not cover, and the copy of one it splits."""
        size = self.settings.page_size
        return -(-fed // size) - -(-cut // size) + (1 if cut % size else 0)

    def _kept(self, held: _Held | None, prompt: Tokens, salt: str | None, wanted: int) -> tuple[int, str]:
        if held is None or held.salt != salt:
            return 0, "identity"
        shared = common_prefix(prompt, held.context)
        n, forbidden = greatest(min(shared, held.length, wanted), held, self.components)
        reasons = {shared: "shared", held.length: "current", wanted: "wanted"}  # the last of equal bounds names it
        return n, forbidden or reasons[n]

    def _longest(self, prompt: Tokens, salt: str | None) -> int:
        return next((n for n in range(len(prompt), 0, -1) if PageKey(salt, prompt[:n]) in self.published), 0)

    def _gate(self, prompt: Tokens, salt: str | None, hit: int, cut: int) -> str | None:
        if self.settings.pages == 0:
            return "no_pages"
        free = self.settings.pages - len(self.published)
        on_path = -(-hit // self.settings.page_size)  # pinned while the turn is admitted, so not to be had
        need = self.pages_wanted(len(prompt), cut)
        return "pool_exhausted" if need > free + len(self.published) - on_path else None

    def _prediction(
        self, prompt: Tokens, reused: int, words: tuple[str, str, str | None], *, hit: int = 0
    ) -> Prediction:
        rest = len(prompt) - reused
        chunk = self.settings.chunk_size if self.stateful else self.max_context
        source, reason, gate = words
        return Prediction(
            reused=reused,
            source=source,
            reason=reason,
            gate=gate,
            declined=False,
            hit=hit,
            cut=min(hit, len(prompt) - 1),
            prefill=tuple(min(chunk, rest - at) for at in range(0, rest, chunk)),
            bound=reused,
        )


def published_by(fed: Tokens, salt: str | None, page_size: int) -> set[PageKey]:
    """The prefixes that a turn publishes which ran `fed` through the model: every page boundary and the whole."""
    return {PageKey(salt, fed[:stop]) for stop in (*range(page_size, len(fed), page_size), len(fed))}
