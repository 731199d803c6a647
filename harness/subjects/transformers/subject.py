"""Hugging Face transformers as a subject: one cache object per session, kept between turns, rewound with its own `crop`.

What people write by hand: crop the cache to what the new prompt shares with it, feed the rest in one forward, decode greedily.
`way=generate` leaves the second half to `model.generate(past_key_values=cache)`. What was fed is seen by hooks on the model's
forward. The matched arm builds a new cache for every call from rows that it recorded itself: no crop, no reset, no copy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ...arms.compare import common_prefix
from ...contract.errors import RefusedError
from ...contract.observation import Kv, Observation, Pair
from ...contract.scenario import Settings, Turn
from ...contract.subject import AnyLoop, Capabilities, Instance, Recompute, ReuseModel, Subject
from ...contract.verdict import Level
from ..options import converted, texts
from ..tokenizer import TokenizerFile
from .loop import CacheLoop
from .network import NOTHING, Foreign, Network, TransformersOptions, arrays, as_float, has_state, state_of, visible


class Transformers(Subject):
    """One loaded model; its options are `TransformersOptions`.

    Raises SubjectError for a directory, option or installation that will not do.
    """

    name = "transformers"
    model: Path

    def __init__(self, model: Path | str, *, threads: int = 2, **options: object) -> None:
        self.options = converted(TransformersOptions, options, self.name)
        self.model = Path(model)
        self._tokenizer = TokenizerFile(self.model)
        self.network = Network(self.model, self.options, threads)
        self.max_context = self.network.max_context
        self.vocab_size = int(self.network.config.vocab_size)
        self._shows_kv = self.options.cache != "model"
        window = getattr(self.network.config, "sliding_window", None)
        self.capabilities = Capabilities(
            level=Level.L4 if self._shows_kv else Level.L2,
            operations=frozenset({"sessions", "new", "rewind", "fork", "cancel"}),
            reuse=ReuseModel(exact=self._shows_kv and not self.network.partial()),
            boundaries=(window,) if isinstance(window, int) else (),
        )

    @override
    def open(self, settings: Settings, *, poison: float | None) -> TransformersInstance:
        return TransformersInstance(self.network)

    @override
    def loop(self) -> AnyLoop | None:
        """None for a cache of the model's own kind, which cannot be built from rows."""
        return CacheLoop(self.network) if self._shows_kv else None

    @override
    def recompute(self) -> Recompute:
        return self.network.recompute

    @override
    def encode(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text)

    @override
    def describe(self) -> dict[str, object]:
        network = self.network
        return {
            "transformers": network.library.__version__,
            "torch": network.torch.__version__,
            "device": "cpu",
            "architecture": type(network.module).__name__,
            "weights": f"drawn from seed {self.options.seed}" if network.drawn else "from the directory",
            **texts(self.options),
        }

    @override
    def close(self) -> None:
        del self.network


@dataclass(kw_only=True)
class _Live:
    """A session: its cache, the positions that it holds, and the whole context of its last turn."""

    cache: Foreign
    held: int = 0
    context: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class _Seen:
    """The model calls of a turn: token ids fed and last row of logits `[V]` of each."""

    rows: list[int] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)


class TransformersInstance(Instance):
    """Sessions over one model."""

    def __init__(self, network: Network) -> None:
        self._network, self._options = network, network.options
        self._sessions: dict[str, _Live] = {}

    @override
    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        if not 0 < len(prompt) <= self._network.max_context:
            raise RefusedError(f"{len(prompt)} tokens; a prompt has 1 to {self._network.max_context}")
        if op.cancel_after == 0:
            return Observation(tokens=(), stop="cancelled")
        live = self._sessions.setdefault(op.session, _Live(cache=self._network.fresh()))
        return self._play(live, op, list(prompt))

    @override
    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        return self._play(_Live(cache=self._network.fresh()), op, list(prompt))

    @override
    def new_session(self, session: str) -> None:
        self._sessions.pop(session, None)

    @override
    def fork(self, session: str, to: str) -> None:
        """`copy.deepcopy` of the cache is the documented way."""
        self._sessions.pop(to, None)
        if session in self._sessions:
            self._sessions[to] = copy.deepcopy(self._sessions[session])

    @override
    def rewind(self, session: str, n: int) -> bool:
        live = self._sessions.get(session)
        if live is None or not self.crop(live, n):
            return False
        live.context = live.context[:n]
        return True

    @override
    def clear(self) -> None:
        self._sessions.clear()

    def crop(self, live: _Live, n: int) -> bool:
        """Cut the session's cache to `n` positions with its own `crop`; False where it refuses, and it may be half cut then."""
        if n == live.held:
            return True
        if n > live.held or (self._options.asks and not getattr(live.cache, "is_croppable", True)):
            return False
        try:
            live.cache.crop(n - live.held)
        except (AttributeError, NotImplementedError, RuntimeError, ValueError):
            live.cache, live.held, live.context = self._network.fresh(), 0, []
            return False
        live.held = n
        return True

    def _play(self, live: _Live, op: Turn, prompt: list[int]) -> Observation:
        wanted = min(common_prefix(prompt, live.context), live.held, len(prompt) - 1)
        done = self.empty(live) if wanted == 0 else self.crop(live, wanted)
        if not done:
            live.cache, live.held = self._network.fresh(), 0
        reused, seen = live.held, _Seen()
        seeded = self._kv(live)
        decode = self._generate if self._options.way == "generate" and op.max_new_tokens else self._decode
        with _watching(self._network.module, seen):
            live.context = prompt + decode(live, op, prompt)
        live.held = reused + sum(seen.rows)
        tokens = tuple(live.context[len(prompt) :])
        return Observation(
            tokens=tokens,
            stop="length",
            reused=reused,
            prefilled=len(prompt) - reused,
            declined=not done,
            rows=tuple(seen.rows),
            logits=tuple(seen.logits),
            seeded=seeded,
            end=self._kv(live),
        )

    def empty(self, live: _Live) -> bool:
        """Make the session's cache hold nothing, the way that `empty` says."""
        how = self._options.empty
        if live.held == 0:
            return True
        if how == "crop":
            return self.crop(live, 0)
        if how == "fresh" or not hasattr(live.cache, "reset"):
            live.cache = self._network.fresh()
        else:
            live.cache.reset()
        live.held = 0
        return True

    def _decode(self, live: _Live, op: Turn, prompt: list[int]) -> list[int]:
        """Forward by forward, as written by hand. Returns the reply."""
        reply: list[int] = []
        rest, fed = prompt[live.held :], len(prompt)
        for _ in range(op.cancel_after if op.cancel_after is not None else self._network.max_context):
            output = self._network.forward(rest, live.cache)
            live.cache = output.past_key_values if live.cache is None else live.cache
            if op.max_new_tokens:
                reply.append(int(output.logits[0, -1].argmax()))
            if len(reply) >= op.max_new_tokens or fed == self._network.max_context:
                break
            rest, fed = reply[-1:], fed + 1
        return reply

    def _generate(self, live: _Live, op: Turn, prompt: list[int]) -> list[int]:
        """The whole prompt and the cache given to `generate`, which finds out itself what is left to feed."""
        network = self._network
        room = network.max_context - len(prompt) + 1
        count = min(op.max_new_tokens, room, op.cancel_after if op.cancel_after is not None else room)
        ids = network.torch.tensor([prompt])
        past = {network.past_name: live.cache} if live.cache is not None else {}
        network.module.generation_config.eos_token_id = None
        output = network.module.generate(
            ids, attention_mask=network.torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0,
            disable_compile=True, return_dict_in_generate=True, **past,
        )  # fmt: skip
        live.cache = output.past_key_values if live.cache is None else live.cache
        return [int(token) for token in output.sequences[0, len(prompt) :]]

    def _kv(self, live: _Live) -> Kv | None:
        """What the cache holds of `live.held` positions, as far as a next step can see it."""
        if self._options.cache == "model" or live.held == 0:
            return None
        return tuple(_pair(layer, live.held) for layer in live.cache.layers)


def _pair(layer: Foreign, held: int) -> Pair:
    if has_state(layer):
        return arrays(state_of(layer))
    if layer.keys is None:
        return NOTHING
    # What has a capacity is allocated whole; the rest is as long as what it holds, which may be less than `held`.
    there = min(held, layer.keys.shape[2]) if hasattr(layer, "max_cache_len") else layer.keys.shape[2]
    return visible(layer, layer.keys[:, :, :there], layer.values[:, :, :there])


@contextmanager
def _watching(module: Foreign, seen: _Seen) -> Iterator[None]:
    """Note what each call of the model is fed and gives, whoever calls it."""

    def note(_: object, args: Sequence[Foreign], kwargs: Mapping[str, Foreign], output: Foreign) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        seen.rows.append(int(ids.shape[1]))
        seen.logits.append(as_float(output.logits[0, -1]))

    hook = module.register_forward_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
