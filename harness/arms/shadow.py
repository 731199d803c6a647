"""The schedule-matched shadow: the same model calls on past arrays that the harness owns.

Its own loop and page bookkeeping over a `Loop`, raw ONNX Runtime or the bare step of a subject with kernels of its own. It
imports nothing of the engine; the cut comes from the twin. So whatever differs from the warm engine lies in the reuse
mechanism (page, rewind, seed, stride, mask, position), and must be 0 bits.

Cannot see: an illegal reuse that the twin allows, nor a fault of the kernels themselves (that is the oracle's work).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract.observation import Kv, PageKey, Tokens
from ..contract.scenario import Turn
from ..contract.subject import AnyLoop
from .compare import first_difference
from .oracle import cut
from .twin import Prediction


@dataclass(frozen=True, kw_only=True)
class MatchedTurn:
    """What the shadow computed: `logits` the last row of each call, `rows` fed per call, KV before and after.

    KV is None where the loop's past does not show it.
    """

    tokens: Tokens
    logits: tuple[NDArray[np.float32], ...]
    rows: tuple[int, ...]
    seeded: Kv | None
    end: Kv | None


class Shadow:
    """The lock-step shadow of one engine: a past per session, rows per published prefix, all computed here.

    Pages need a loop whose past is arrays, as `BareLoop`'s.
    """

    def __init__(self, loop: AnyLoop, *, page_size: int, max_context: int) -> None:
        self._loop = loop
        self._page_size = page_size
        self._max_context = max_context
        self._sessions: dict[str, Any] = {}
        self.pages: dict[PageKey, Kv] = {}

    def turn(self, op: Turn, prompt: Tokens, plan: Prediction) -> MatchedTurn:
        """Play the turn that the twin predicts, greedily, as far as `op` lets it go; keep the session's past.

        Where the engine's schedule is its own affair, `plan.rows` says how many token ids it fed in each call.
        """
        past = seeded = self._past(op, prompt, plan)
        context, fed = list(prompt), list(prompt[: plan.reused])
        logits: list[NDArray[np.float32]] = []
        calls: list[int] = []
        schedule = plan.rows if plan.rows is not None else self._schedule(op, plan, context, fed)
        for count in islice(schedule, op.cancel_after):
            tokens = context[len(fed) : len(fed) + count]
            if len(tokens) != count:
                break  # the engine fed more than there is, or its reply is another: `tokens` and `reuse` say so
            out, past = self._loop.step(past, tokens if self._loop.stateful else [*fed, *tokens])
            fed += tokens
            logits.append(out[-1].copy())
            calls.append(count)
            if len(fed) == len(context) and op.max_new_tokens:
                context.append(int(np.argmax(out[-1])))
        if self._loop.stateful:
            self._sessions[op.session] = past
        return MatchedTurn(
            tokens=tuple(context[len(prompt) :]),
            logits=tuple(logits),
            rows=tuple(calls),
            seeded=self._loop.kv(seeded),
            end=self._loop.kv(past),
        )

    def publish(self, keys: set[PageKey], prompt: Tokens, salt: str | None, plan: Prediction, end: Kv | None) -> None:
        """Keep the rows of those of `keys` that the finished turn is the first to publish."""
        for key in keys - set(self.pages):
            self.pages[key] = self._written(key, prompt, salt, plan, end)

    def republish(
        self, seen: Mapping[PageKey, Kv], prompt: Tokens, salt: str | None, plan: Prediction, end: Kv | None
    ) -> None:
        """Under pressure a prefix may be evicted and published anew within one turn: then `seen` has this turn's rows.

        Only rows that this arm computed itself are ever taken over: the earlier ones, or exactly the turn's own.
        """
        for key in set(seen) & set(self.pages):
            fresh = self._written(key, prompt, salt, plan, end)
            if not _equal(seen[key], widened(self.pages[key])) and _equal(seen[key], widened(fresh)):
                self.pages[key] = fresh

    def _written(self, key: PageKey, prompt: Tokens, salt: str | None, plan: Prediction, end: Kv | None) -> Kv:
        """The rows that the turn writes into the page of `key`: up to the paged cut from pages, then its own."""
        assert end is not None, "only a loop over arrays can shadow pages"
        start = key.start(self._page_size)
        own = cut(end, max(start, plan.cut), len(key.tokens))
        if start >= plan.cut:
            return own
        return _join([cut(self._assemble(prompt, salt, plan.hit), start, plan.cut), own])

    def forget(self, observed: set[PageKey]) -> None:
        """Drop the rows of prefixes that are not published any more."""
        for key in set(self.pages) - observed:
            del self.pages[key]

    def rewind(self, session: str, n: int) -> None:
        """The session's arrays hold only their first `n` positions."""
        self._sessions[session] = self._loop.cut(self._sessions[session], n)

    def fork(self, session: str, to: str) -> None:
        """`to` holds the same arrays; neither is ever written in place."""
        self._sessions[to] = self.held(session)

    def new_session(self, session: str) -> None:
        """The session holds nothing."""
        self._sessions.pop(session, None)

    def held(self, session: str) -> Any:
        """The session's past."""
        return self._sessions.get(session, self._loop.empty())

    def _schedule(self, op: Turn, plan: Prediction, context: list[int], fed: list[int]) -> Iterator[int]:
        """The prompt as predicted, then one row a token. Both lists grow while it runs."""
        longest = len(context) + op.max_new_tokens
        yield from plan.prefill
        while len(context) < longest and len(fed) < self._max_context:
            yield 1

    def _past(self, op: Turn, prompt: Tokens, plan: Prediction) -> Any:
        if plan.source == "paged":
            return cut(self._assemble(prompt, op.salt, plan.hit), 0, plan.reused)
        return self._loop.cut(self.held(op.session), plan.reused)

    def _assemble(self, prompt: Tokens, salt: str | None, hit: int) -> Kv:
        """The first `hit` positions from the rows of each published page on the way."""
        stops = [*range(self._page_size, hit, self._page_size), hit] if hit else []
        empty: Kv = self._loop.empty()
        return _join([empty, *(self.pages[PageKey(salt, prompt[:stop])] for stop in stops)])


def widened(kv: Kv) -> Kv:
    """Rows of any float dtype as float32, as pages hold them. Nothing is lost, but a NaN may become another NaN."""
    return tuple((keys.astype(np.float32), values.astype(np.float32)) for keys, values in kv)


def _equal(left: Kv, right: Kv) -> bool:
    pairs = zip(left, right, strict=True)
    return all(first_difference(a[part], b[part]) is None for a, b in pairs for part in (0, 1))


def _join(parts: Sequence[Kv]) -> Kv:
    return tuple(
        (np.concatenate([k for k, _ in layer], axis=1), np.concatenate([v for _, v in layer], axis=1))
        for layer in zip(*parts, strict=True)
    )
