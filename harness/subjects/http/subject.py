"""Any server that takes token ids, or texts that stand for them, over HTTP: no admin right, no patch. Levels L0 to L2.

A tenant is a cache salt where the server has one. Where it has none, the server is one tenant for as long as it runs, so
each conversation should begin with other tokens than the ones before (`play.blackbox` sees to that).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from typing_extensions import override

from ...contract.errors import RefusedError, SubjectError
from ...contract.observation import Observation
from ...contract.scenario import Settings, Turn
from ...contract.subject import Capabilities, Instance, Operation, ReuseModel, Subject
from ...contract.verdict import Level
from ...conversations.texts import corpus
from ..options import Natural, Positions, converted
from ..tokenizer import TokenizerFile
from .client import Http
from .dialects import detect
from .protocol import Answer, Ask, Dialect, Limits

_PROBES = (130, 98, 50)
"""Lengths that are sent twice while opening: what the second is told to have reused shows counts and granularity."""

_PAIRS, _SLOWER = 16, 2
"""So often a prompt is timed new and again. Where nothing is remembered, no more than so few are slower again once in 478."""


class OpenAiHttpOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`model`: the first that the server offers; `timeout` in seconds for an answer; `top`: log-probabilities asked for in
    each step; `slot` (llama-server); `tokenizer`: a `tokenizer.json`, where the server has no /tokenize; `context` in
    positions and `vocab`: where it does not say."""

    context: Positions | None = None
    key: str | None = None
    model: str | None = None
    slot: Natural | None = None
    timeout: Annotated[float, Meta(gt=0, le=86400, description="seconds")] = 120.0
    tokenizer: str | None = None
    top: Natural = 20
    vocab: Annotated[int, Meta(ge=2)] | None = None


class OpenAiHttp(Subject):
    """A server at a URL; its options are `OpenAiHttpOptions`.

    SubjectError for a wrong option, a server that is not there or shows no token ids.
    """

    model: str
    text: tuple[int, ...]

    def __init__(self, url: str, *, threads: int = 2, **options: object) -> None:
        given = converted(OpenAiHttpOptions, options, "a server")
        self._tokenizer = _tokenizer(given.tokenizer)
        self.model, self.slot = url, given.slot
        self.http = Http(url, timeout=given.timeout, key=given.key)
        try:
            self._meet(given)
        except BaseException:  # an interrupt too must close the connection; it is raised again
            self.http.close()
            raise
        self.capabilities = self._declared()

    def _meet(self, given: OpenAiHttpOptions) -> None:
        """Find out what the server is, takes and shows."""
        self.dialect = detect(self.http, given.model, given.top)
        self.name = self.dialect.name
        limits = _limits(self.dialect, given)
        self.max_context = limits.context
        ids = _corpus(self.encode, limits)
        self.vocab_size = limits.vocab or max(ids) + 1
        self.text = self.dialect.settle(ids)
        self.counts, self.granularity, self.logprobs = self._probe()
        self.remembers = False
        self.remembers = self.dialect.one_state and self._remembers()

    def _declared(self) -> Capabilities:
        operations: set[Operation] = {"sessions", "new", "cancel"}
        if self.dialect.salts:
            operations.add("salt")
        level = Level.L0 if not self.counts else Level.L2 if self.logprobs else Level.L1
        unit = self.granularity or 16
        return Capabilities(
            level=level,
            operations=frozenset(operations),
            reuse=ReuseModel(scope="engine", granularity=self.granularity or 1),
            deterministic=False,
            boundaries=(unit,) if unit > 1 else (16, 32),
        )

    def _probe(self) -> tuple[bool, int | None, bool]:
        """Whether hits are counted, in units of what, and whether log-probabilities come by id."""
        hits, shown = [], False
        for length in _PROBES:
            prompt = tuple(self.text[at % len(self.text)] for at in range(length))[: self.max_context - 2]
            nonce = (secrets.choice(self.text), secrets.choice(self.text))
            ask = Ask(prompt=(*nonce, *prompt[2:]), count=1, space=secrets.token_hex(8), slot=self.slot)
            seen = [self.answer(ask) for _ in range(2)]
            hits.append(seen[1].cached)
            shown = shown or seen[1].logprobs is not None
        counted = any(hits) if self.dialect.hides_zero else None not in hits
        return counted, math.gcd(*(hit or 0 for hit in hits)) or None, shown

    def _remembers(self) -> bool:
        """Whether an unrelated request leaves something of the one before: then there is no cold reply to be had.

        Where log-probabilities are shown, a prompt that goes on with a part of its reply is asked for after an unrelated one.
        Computed anew, in one call and not token by token, it comes with another rounding; remembered, with the same bits.
        """
        if self.logprobs:
            return all(self._same_bits() for _ in _PROBES)
        slower = 0
        for _ in range(_PAIRS):
            ask = self._drawn(4 * _PROBES[0], 1)  # long enough that computing it takes longer than all else
            slower += self._seconds(ask) <= self._seconds(ask)
            if slower > _SLOWER:
                return False
        return True

    def _drawn(self, length: int, count: int) -> Ask:
        length = min(length, self.max_context - 2 * count)
        return Ask(
            prompt=tuple(secrets.choice(self.text) for _ in range(length)), count=count, space="", slot=self.slot
        )

    def _same_bits(self) -> bool:
        ask = self._drawn(_PROBES[0], 8)
        whole = self.answer(ask)
        more = replace(ask, prompt=(*ask.prompt, *whole.tokens[:4]), count=4)
        self.displace(more)
        seen = self.answer(more)
        return whole.logprobs is not None and (seen.tokens, seen.logprobs) == (whole.tokens[4:], whole.logprobs[4:])

    def _seconds(self, ask: Ask) -> float:
        """How long it takes after an unrelated request."""
        self.displace(ask)
        body = self.dialect.body(ask)
        start = time.perf_counter()
        self.http.ask(self.dialect.path, body)
        return time.perf_counter() - start

    def answer(self, ask: Ask) -> Answer:
        """Send one request and wait for its whole answer. Raises what the connection and the dialect raise."""
        return self.dialect.read(self.http.ask(self.dialect.path, self.dialect.body(ask)), ask)

    def displace(self, ask: Ask) -> None:
        """An unrelated request: on a server with one slot it takes the place of whatever was there.

        It is as long, unless any will do. That one is the same each time: what a wrong cache keeps of it is then in every
        cold reply, and the controls stay as close to each other as they are to the right one.
        """
        if self.remembers:
            raise RefusedError(
                "no cold reply to be had: an unrelated request leaves what was there before, by the bits or the time of the "
                "replies after it; start the server without --cache"
            )
        starts = [at for at, token in enumerate(self.text) if token != ask.prompt[0]]
        if not starts:
            raise RefusedError("no cold reply to be had: every text that can be sent begins like the prompt")
        start, length = (starts[0], 1) if self.dialect.one_state else (secrets.choice(starts), len(ask.prompt))
        prompt = tuple(self.text[(start - at) % len(self.text)] for at in range(length))
        other = Ask(prompt=prompt, count=1, space=ask.space, slot=ask.slot)
        self.http.ask(self.dialect.path, self.dialect.body(other))

    @override
    def open(self, settings: Settings, *, poison: float | None) -> ServerInstance:
        """The server runs already: settings and poison are left as they are."""
        return ServerInstance(self)

    @override
    def encode(self, text: str) -> Sequence[int]:
        return (self._tokenizer or self.dialect).encode(text)

    @override
    def describe(self) -> dict[str, object]:
        return {
            "server": self.dialect.name,
            "url": self.http.url,
            "tenants": "cache salts" if self.dialect.salts else "one",
            "cold arm": self._cold_arm(),
            "cached tokens": self._counted(),
            "log-probabilities": "shown" if self.logprobs else "not shown",
        }

    def _cold_arm(self) -> str:
        if self.dialect.isolates:
            return "a tenant of its own" if self.dialect.salts else "a switch of the request"
        return "none" if self.remembers else f"after an unrelated request; {self._proof()}"

    def _counted(self) -> str:
        if self.granularity:
            return f"multiples of {self.granularity}"
        if self.counts:
            return "none"
        return "not shown" + ("" if self.dialect.one_state else " (vLLM: start it with --enable-prompt-tokens-details)")

    def _proof(self) -> str:
        """What says that a cold reply is one."""
        if self.counts:
            return "its count says that nothing is reused"
        if self.dialect.one_state and self.logprobs:
            return "no count is shown, but its bits, when opened, were not those of what was there before"
        return "not proven cold, as no count is shown"

    @override
    def close(self) -> None:
        """The server goes on."""
        self.http.close()


class ServerInstance(Instance):
    """Tenants of its own on the server, so that it starts with nothing where the server keeps tenants apart."""

    def __init__(self, subject: OpenAiHttp) -> None:
        self._subject = subject
        self._space = secrets.token_hex(8)
        self._cold = itertools.count()

    @override
    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        if op.cancel_after is not None:
            return self._cancelled(op, prompt)
        return self._observe(op, self._ask(op, prompt, self._tenant(op.salt)))

    @override
    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """Where only other requests can make room, RefusedError if they do not."""
        ask = self._ask(op, prompt, f"{self._space}-cold-{next(self._cold)}", cold=True)
        if not self._subject.dialect.isolates:
            self._subject.displace(ask)
        seen = self._observe(op, ask)
        if seen.reused and not self._subject.dialect.isolates:
            raise RefusedError(
                f"no cold reply to be had: {seen.reused} tokens were reused after an unrelated request, and this server has "
                "neither salts nor a switch; start it with its prefix cache off on another port to compare"
            )
        return seen

    @override
    def new_session(self, session: str) -> None:
        """The server knows no sessions: what it reuses goes by tokens."""

    def _tenant(self, salt: str | None) -> str:
        """Digested: vLLM takes no more than 128 characters, and not every one."""
        return f"{self._space}-{hashlib.sha256(salt.encode()).hexdigest()[:32] if salt else 'none'}"

    def _ask(self, op: Turn, prompt: Sequence[int], space: str, *, cold: bool = False) -> Ask:
        """No tokens cannot be asked for everywhere; the one that is then sampled is not fed, so nothing else changes."""
        if not prompt:
            raise RefusedError("an empty prompt: there is nothing to send")
        room = self._subject.max_context - len(prompt)
        if room < 1:
            raise RefusedError(f"the prompt has {len(prompt)} tokens, the context {self._subject.max_context}")
        count = min(max(op.max_new_tokens, 1), room)
        return Ask(prompt=tuple(prompt), count=count, space=space, cold=cold, slot=self._subject.slot)

    def _observe(self, op: Turn, ask: Ask) -> Observation:
        subject = self._subject
        answer = subject.answer(ask)
        reused = (answer.cached or 0) if subject.counts else None
        keep = min(op.max_new_tokens, len(answer.tokens))
        return Observation(
            tokens=answer.tokens[:keep],
            stop="length" if keep == op.max_new_tokens else "context_full",
            reused=reused,
            prefilled=None if reused is None else len(ask.prompt) - reused,
            logprobs=None if answer.logprobs is None else answer.logprobs[:keep],
        )

    def _cancelled(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """Close the connection after so many tokens. How far the server got by then is not known."""
        ask = self._ask(op, prompt, self._tenant(op.salt))
        seen: list[int] = []
        if op.cancel_after:
            dialect = self._subject.dialect
            with closing(self._subject.http.stream(dialect.path, dialect.body(replace(ask, stream=True)))) as events:
                for event in events:
                    seen += dialect.delta(event)
                    if len(seen) >= op.cancel_after:
                        break
        return Observation(tokens=tuple(seen[: op.cancel_after]), stop="cancelled")


def _tokenizer(file: str | None) -> TokenizerFile | None:
    if file is not None and not Path(file).is_file():
        raise SubjectError(f"option tokenizer={file}: no such file; give the model's tokenizer.json")
    return TokenizerFile(Path(file).parent) if file is not None else None


def _limits(dialect: Dialect, given: OpenAiHttpOptions) -> Limits:
    """What is given goes before what the server says."""
    told = dialect.limits() if given.context is None else Limits(context=given.context, vocab=None)
    return Limits(context=told.context, vocab=given.vocab or told.vocab)


def _corpus(encode: Callable[[str], Sequence[int]], limits: Limits) -> tuple[int, ...]:
    """Ids of real text. Any ids will do where text cannot be encoded and the size of the vocabulary is given."""
    try:
        return corpus(encode)
    except RefusedError as error:
        if limits.vocab is None:
            raise SubjectError(f"{error}, or vocab=N to send any ids") from error
        return tuple(1 + at * 7919 % (limits.vocab - 1) for at in range(limits.vocab))
