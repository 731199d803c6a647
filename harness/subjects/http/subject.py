"""Any server that takes token ids, or texts that stand for them, over HTTP: no admin right, no patch. Levels L0 to L2.

A tenant is a cache salt where the server has one. Where it has none, the server is one tenant for as long as it runs, so
each conversation should begin with other tokens than the ones before (`harness.campaign` sees to that).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...contract.errors import RefusedError, SubjectError
from ...contract.observation import Observation
from ...contract.scenario import Settings, Turn
from ...contract.subject import AnyLoop, Capabilities, Instance, Operation, Recompute, ReuseModel
from ...contract.verdict import Level
from ...conversations.texts import corpus, encoder
from .client import Http
from .dialects import detect
from .protocol import Answer, Ask, Dialect, Limits
from .text import LlamaCppPython

_PROBES = (130, 98, 50)
"""Lengths that are sent twice while opening: what the second is told to have reused shows counts and granularity."""

_PAIRS, _SLOWER = 16, 2
"""So often a prompt is timed new and again. Where nothing is remembered, no more than so few are slower again once in 478."""

_OPTIONS = ("context", "key", "model", "slot", "timeout", "tokenizer", "top", "vocab")


class OpenAiHttp:
    """A server at a URL.

    Options, as texts: `model` (the first that it offers), `key`, `timeout` in seconds, `top` (log-probabilities asked for in
    each step), `slot` (llama-server), `tokenizer` (a `tokenizer.json`, where the server has no /tokenize), `context` and
    `vocab` (where it does not say). SubjectError for an unknown option, a server that is not there or shows no token ids.
    """

    stateful = True
    onnx = None

    def __init__(self, url: str | Path, *, threads: int = 2, **options: str) -> None:
        if unknown := sorted(set(options) - set(_OPTIONS)):
            raise SubjectError(f"unknown option {unknown}; a server takes {list(_OPTIONS)}")
        address = re.sub(r"^(https?):/+", r"\1://", str(url))  # a path has lost a slash
        self.model = Path(address)
        self._tokenizer = options.get("tokenizer")
        self.slot = _number(options, "slot", None)
        self.http = Http(address, timeout=_seconds(options), key=options.get("key"))
        try:
            self.dialect: Dialect = detect(self.http, options.get("model"), _number(options, "top", 20) or 0)
            limits = _limits(self.dialect, options)
            self.max_context = limits.context
            self.text = _corpus(self.encode, limits)
            self.vocab_size = limits.vocab or max(self.text) + 1
            if isinstance(self.dialect, LlamaCppPython):
                self.text = self.dialect.settle(self.text)
            self.name = self.dialect.name
            self.counts, self.granularity, self.logprobs = self._probe()
            self.remembers = False
            self.remembers = self.dialect.one_state and self._remembers()
        except BaseException:  # an interrupt too must close the connection; it is raised again
            self.http.close()
            raise
        self.capabilities = self._declared()

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

    def open(self, settings: Settings, *, poison: float | None) -> ServerInstance:
        """See `Subject.open`. The server runs already: settings and poison are left as they are."""
        return ServerInstance(self)

    def loop(self) -> AnyLoop | None:
        """See `Subject.loop`."""
        return None

    def recompute(self) -> Recompute | None:
        """See `Subject.recompute`."""
        return None

    def encode(self, text: str) -> Sequence[int]:
        """See `Subject.encode`."""
        if self._tokenizer is not None:
            return encoder(Path(self._tokenizer).parent)(text)
        return self.dialect.encode(text)

    def describe(self) -> dict[str, Any]:
        """See `Subject.describe`."""
        dialect, counted = self.dialect, "none"
        if self.granularity:
            counted = f"multiples of {self.granularity}"
        elif not self.counts:
            counted = (
                "not shown" if dialect.one_state else "not shown (vLLM: start it with --enable-prompt-tokens-details)"
            )
        cold = "a tenant of its own" if dialect.salts else "a switch of the request"
        if not dialect.isolates:
            cold = "none" if self.remembers else f"after an unrelated request; {self._proof()}"
        return {
            "server": dialect.name,
            "url": self.http.url,
            "tenants": "cache salts" if dialect.salts else "one",
            "cold arm": cold,
            "cached tokens": counted,
            "log-probabilities": "shown" if self.logprobs else "not shown",
        }

    def _proof(self) -> str:
        """What says that a cold reply is one."""
        if self.counts:
            return "its count says that nothing is reused"
        if self.dialect.one_state and self.logprobs:
            return "no count is shown, but its bits, when opened, were not those of what was there before"
        return "not proven cold, as no count is shown"

    def close(self) -> None:
        """See `Subject.close`. The server goes on."""
        self.http.close()


class ServerInstance(Instance):
    """Tenants of its own on the server, so that it starts with nothing where the server keeps tenants apart."""

    def __init__(self, subject: OpenAiHttp) -> None:
        self._subject = subject
        self._space = secrets.token_hex(8)
        self._cold = itertools.count()

    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """See `Instance.turn`."""
        if op.cancel_after is not None:
            return self._cancelled(op, prompt)
        return self._observe(op, self._ask(op, prompt, self._tenant(op.salt)))

    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """See `Instance.cold`. Where only other requests can make room, RefusedError if they do not."""
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

    def new_session(self, session: str) -> None:
        """See `Instance.new_session`. The server knows no sessions: what it reuses goes by tokens."""

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
            body = self._subject.dialect.body(replace(ask, stream=True))
            events = self._subject.http.stream(self._subject.dialect.path, body)
            for event in events:
                seen += self._subject.dialect.delta(event)
                if len(seen) >= op.cancel_after:
                    break
            events.close()  # type: ignore[attr-defined]  # a generator: closing it closes the connection
        return Observation(tokens=tuple(seen[: op.cancel_after]), stop="cancelled")


def _seconds(options: dict[str, str]) -> float:
    text = options.get("timeout", "120")
    if not text.replace(".", "", 1).isdigit() or not float(text):
        raise SubjectError(f"option timeout={text!r}: give a number of seconds, more than 0")
    return float(text)


def _limits(dialect: Dialect, options: dict[str, str]) -> Limits:
    context, vocab = _number(options, "context", None), _number(options, "vocab", None)
    told = dialect.limits() if context is None else Limits(context=context, vocab=None)
    return Limits(context=told.context, vocab=vocab or told.vocab)


def _corpus(encode: Callable[[str], Sequence[int]], limits: Limits) -> tuple[int, ...]:
    """Ids of real text. Any ids will do where text cannot be encoded and the size of the vocabulary is given."""
    try:
        return corpus(encode)
    except RefusedError as error:
        if limits.vocab is None:
            raise SubjectError(f"{error}, or vocab=N to send any ids") from error
        return tuple(1 + at * 7919 % (limits.vocab - 1) for at in range(limits.vocab))


def _number(options: dict[str, str], name: str, default: int | None) -> int | None:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdigit():
        raise SubjectError(f"option {name}={text!r}: give a whole number")
    return int(text)
