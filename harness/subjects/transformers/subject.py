"""Hugging Face transformers as a subject: one cache object per session, kept between turns, rewound with its own `crop`.

What people write by hand: crop the cache to what the new prompt shares with it, feed the rest in one forward, decode greedily.
`way=generate` leaves the second half to `model.generate(past_key_values=cache)`. What was fed is seen by hooks on the model's
forward. The matched arm builds a new cache for every call from rows that it recorded itself: no crop, no reset, no copy.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arms.compare import common_prefix
from ...contract.errors import RefusedError, SubjectError
from ...contract.observation import Kv, Observation, Pair
from ...contract.scenario import Settings, Turn
from ...contract.subject import Capabilities, Instance, Recompute, ReuseModel
from ...contract.verdict import Level
from ...conversations.texts import encoder
from .loop import NOTHING, CacheLoop, as_float, as_numpy, sliding, state_pair

OPTIONS: dict[str, tuple[str, ...]] = {
    "cache": ("dynamic", "plain", "static", "model"),
    "way": ("forward", "generate"),
    "attn": ("eager", "sdpa"),
    "empty": ("reset", "crop", "fresh"),
    "record": ("no", "yes"),
    "ask": ("yes", "no"),
    "dtype": ("float32", "float64"),
    "seed": (),
    "capacity": (),
}
"""`cache`: DynamicCache(config), DynamicCache(), StaticCache, or whatever the model itself makes when given none. `empty`:
how a session whose prompt shares nothing is emptied. `record`: `activate_past_recording`, so that windows can be cropped.
`ask`: whether the cache's `is_croppable` is asked before `crop`. `seed`: of the weights drawn where the directory has none.
`capacity`: positions of a StaticCache."""


_LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


class Transformers:
    """One loaded model. Raises SubjectError for a directory, option or installation that will not do."""

    def __init__(self, model: Path | str, *, threads: int = 2, **options: str) -> None:
        for name, value in options.items():
            if name not in OPTIONS or (OPTIONS[name] and value not in OPTIONS[name]):
                raise SubjectError(f"option {name}={value}: transformers takes {_option_help()}")
        self.name, self.model, self.onnx = "transformers", Path(model), None
        self.options = {name: values[0] for name, values in OPTIONS.items() if values} | {"seed": "0"} | options
        self.torch, self.library = _import("torch"), _import("transformers")
        self.torch.set_num_threads(threads)
        self.library.logging.set_verbosity_error()
        if self.options["record"] == "yes" and not hasattr(self.library.DynamicCache, "activate_past_recording"):
            raise SubjectError(
                f"option record=yes: transformers {self.library.__version__} cannot record; leave it out"
            )
        self.network, self.drawn = self._load(self.model)
        self._takes = set(signature(self.network.forward).parameters)
        self.past_name = "cache" if "cache" in self._takes else "past_key_values"  # renamed on the way to 5.40
        self.config = self.network.config.get_text_config(decoder=True)
        longest = next((n for name in _LONGEST if isinstance(n := getattr(self.config, name, None), int)), 2048)
        self.max_context = min(longest, _integer(self.options, "capacity", longest))
        self.vocab_size = int(self.config.vocab_size)
        self.stateful = True
        window = getattr(self.config, "sliding_window", None)
        self.capabilities = Capabilities(
            level=Level.L4 if self.options["cache"] != "model" else Level.L2,
            operations=frozenset({"sessions", "new", "rewind", "fork", "cancel"}),
            reuse=ReuseModel(scope="session", exact=self.options["cache"] != "model" and not self._partial()),
            boundaries=(window,) if isinstance(window, int) else (),
        )

    def open(self, settings: Settings, *, poison: float | None) -> TransformersInstance:
        """See `Subject.open`."""
        return TransformersInstance(self)

    def loop(self) -> CacheLoop | None:
        """See `Subject.loop`; None for a cache of the model's own kind, which cannot be built from rows."""
        return CacheLoop(self) if self.options["cache"] != "model" else None

    def recompute(self) -> Recompute:
        """See `Subject.recompute`. A schedule's passes each begin at position 0, so that no cache has a part in them."""
        return self._recompute

    def encode(self, text: str) -> Sequence[int]:
        """See `Subject.encode`."""
        return encoder(self.model)(text)

    def describe(self) -> dict[str, Any]:
        """See `Subject.describe`."""
        weights = f"drawn from seed {self.options['seed']}" if self.drawn else "from the directory"
        versions = {"transformers": self.library.__version__, "torch": self.torch.__version__, "device": "cpu"}
        return {**versions, "architecture": type(self.network).__name__, "weights": weights, **self.options}

    def close(self) -> None:
        """See `Subject.close`."""
        del self.network

    def fresh(self) -> Any:
        """A cache that holds nothing; None where the model is to make its own."""
        kind = self.options["cache"]
        if kind == "static":
            return self.library.StaticCache(config=self.network.config, max_cache_len=self.max_context)
        cache = {"dynamic": lambda: self.library.DynamicCache(config=self.network.config),
                 "plain": self.library.DynamicCache, "model": lambda: None}[kind]()  # fmt: skip
        if self.options["record"] == "yes":
            cache.activate_past_recording()
        return cache

    def forward(self, tokens: Sequence[int], cache: Any, *, use_cache: bool = True) -> Any:
        """One call of the model on token ids `[rows]`: its output, logits `[1, rows, V]`; as `generate` calls it, `[1, 1, V]`."""
        more: dict[str, Any] = {self.past_name: cache} if cache is not None else {}
        if use_cache and self.options["way"] == "generate":
            more |= {name: 1 for name in ("logits_to_keep", "num_logits_to_keep") if name in self._takes}
        with self.torch.no_grad():
            return self.network(input_ids=self.torch.tensor([list(tokens)]), use_cache=use_cache, **more)

    def window(self, layer: Any) -> int | None:
        """How many past positions this layer of a cache still lets a next query see; None all of them."""
        size = getattr(layer, "sliding_window", None) or (layer.max_cache_len if sliding(layer) else None)
        return int(size) - 1 if size is not None else None

    def _partial(self) -> bool:
        """Whether a layer keeps less than all positions, so that the library cannot rewind to wherever it is asked."""
        return any(sliding(layer) or hasattr(layer, "conv_states") for layer in getattr(self.fresh(), "layers", ()))

    def _recompute(self, tokens: Sequence[int], schedule: Sequence[int] | None) -> NDArray[np.float32]:
        parts, end = [], 0
        for rows in schedule or [len(tokens)]:
            end += rows
            parts.append(self.forward(tokens[:end], None, use_cache=False).logits[0, end - rows :])
        assert end == len(tokens), f"schedule covers {end} of {len(tokens)} tokens"
        return as_float(self.torch.cat(parts))

    def _load(self, model: Path) -> tuple[Any, bool]:
        """The network, and whether its weights were drawn."""
        files = [model / name for name in ("config.json", "hf_config.json") if (model / name).is_file()]
        if not files:
            raise SubjectError(f"{model}: neither config.json nor hf_config.json; give a transformers model directory")
        dtype, attn = getattr(self.torch, self.options["dtype"]), self.options["attn"]
        try:
            data = json.loads(files[0].read_text(encoding="utf-8"))
            drawn = not list(model.glob("*.safetensors"))
            maker = _auto(self.library, data)
            if not drawn:
                return maker.from_pretrained(model, dtype=dtype, attn_implementation=attn).eval(), False
            config = self.library.AutoConfig.for_model(**data)
            self.torch.manual_seed(_integer(self.options, "seed", 0))
            return maker.from_config(config, attn_implementation=attn).to(dtype).eval(), True
        except Exception as error:  # whatever a library throws while loading is a reason to name, not a traceback
            raise SubjectError(f"{files[0]}: transformers cannot load it: {type(error).__name__}: {error}") from error


@dataclass(kw_only=True)
class _Live:
    """A session: its cache, the positions that it holds, and the whole context of its last turn."""

    cache: Any
    held: int = 0
    context: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class _Seen:
    """The model calls of a turn: token ids fed and last row of logits `[V]` of each."""

    rows: list[int] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)


class TransformersInstance(Instance):
    """Sessions over one model."""

    def __init__(self, subject: Transformers) -> None:
        self._subject = subject
        self._sessions: dict[str, _Live] = {}

    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """See `Instance.turn`."""
        if not 0 < len(prompt) <= self._subject.max_context:
            raise RefusedError(f"{len(prompt)} tokens; a prompt has 1 to {self._subject.max_context}")
        if op.cancel_after == 0:
            return Observation(tokens=(), stop="cancelled")
        live = self._sessions.setdefault(op.session, _Live(cache=self._subject.fresh()))
        return self._play(live, op, list(prompt))

    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """See `Instance.cold`."""
        return self._play(_Live(cache=self._subject.fresh()), op, list(prompt))

    def new_session(self, session: str) -> None:
        """See `Instance.new_session`."""
        self._sessions.pop(session, None)

    def fork(self, session: str, to: str) -> None:
        """See `Instance.fork`: `copy.deepcopy` of the cache is the documented way."""
        self._sessions.pop(to, None)
        if session in self._sessions:
            self._sessions[to] = copy.deepcopy(self._sessions[session])

    def rewind(self, session: str, n: int) -> bool:
        """See `Instance.rewind`."""
        live = self._sessions.get(session)
        if live is None or not self.crop(live, n):
            return False
        live.context = live.context[:n]
        return True

    def clear(self) -> None:
        """See `Instance.clear`."""
        self._sessions.clear()

    def crop(self, live: _Live, n: int) -> bool:
        """Cut the session's cache to `n` positions with its own `crop`; False where it refuses, and it may be half cut then."""
        if n == live.held:
            return True
        if n > live.held or (not getattr(live.cache, "is_croppable", True) and self._subject.options["record"] == "no"):
            return False
        try:
            live.cache.crop(n - live.held)
        except (AttributeError, NotImplementedError, RuntimeError, ValueError):
            live.cache, live.held, live.context = self._subject.fresh(), 0, []
            return False
        live.held = n
        return True

    def _play(self, live: _Live, op: Turn, prompt: list[int]) -> Observation:
        wanted = min(common_prefix(prompt, live.context), live.held, len(prompt) - 1)
        done = self.empty(live) if wanted == 0 else self.crop(live, wanted)
        if not done:
            live.cache, live.held = self._subject.fresh(), 0
        reused, seen = live.held, _Seen()
        seeded = self._kv(live)
        decode = self._generate if self._subject.options["way"] == "generate" and op.max_new_tokens else self._decode
        with _watching(self._subject.network, seen):
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
        how = self._subject.options["empty"]
        if live.held == 0:
            return True
        if how == "crop":
            return self.crop(live, 0)
        if how == "fresh" or not hasattr(live.cache, "reset"):
            live.cache = self._subject.fresh()
        else:
            live.cache.reset()
        live.held = 0
        return True

    def _decode(self, live: _Live, op: Turn, prompt: list[int]) -> list[int]:
        """Forward by forward, as written by hand. Returns the reply."""
        reply: list[int] = []
        rest, fed = prompt[live.held :], len(prompt)
        for _ in range(op.cancel_after if op.cancel_after is not None else self._subject.max_context):
            output = self._subject.forward(rest, live.cache)
            live.cache = output.past_key_values if live.cache is None else live.cache
            if op.max_new_tokens:
                reply.append(int(output.logits[0, -1].argmax()))
            if len(reply) >= op.max_new_tokens or fed == self._subject.max_context:
                break
            rest, fed = reply[-1:], fed + 1
        return reply

    def _generate(self, live: _Live, op: Turn, prompt: list[int]) -> list[int]:
        """The whole prompt and the cache given to `generate`, which finds out itself what is left to feed."""
        subject = self._subject
        room = subject.max_context - len(prompt) + 1
        count = min(op.max_new_tokens, room, op.cancel_after if op.cancel_after is not None else room)
        ids = subject.torch.tensor([prompt])
        past = {subject.past_name: live.cache} if live.cache is not None else {}
        subject.network.generation_config.eos_token_id = None
        output = subject.network.generate(
            ids, attention_mask=subject.torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0,
            disable_compile=True, return_dict_in_generate=True, **past,
        )  # fmt: skip
        live.cache = output.past_key_values if live.cache is None else live.cache
        return [int(token) for token in output.sequences[0, len(prompt) :]]

    def _kv(self, live: _Live) -> Kv | None:
        """What the cache holds of `live.held` positions, as far as a next step can see it."""
        if self._subject.options["cache"] == "model" or live.held == 0:
            return None
        return tuple(self._pair(layer, live.held) for layer in live.cache.layers)

    def _pair(self, layer: Any, held: int) -> Pair:
        if hasattr(layer, "conv_states"):
            return state_pair(layer)
        if layer.keys is None:
            return NOTHING
        window = self._subject.window(layer)
        there = min(held, layer.keys.shape[2]) if hasattr(layer, "max_cache_len") else layer.keys.shape[2]
        start = max(there - window, 0) if window is not None else 0
        return as_numpy(layer.keys[0, :, start:there]), as_numpy(layer.values[0, :, start:there])


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise SubjectError(f"the transformers subject needs {name}; run: pip install 'warmcold[transformers]'") from error


def _auto(library: Any, data: Mapping[str, Any]) -> Any:
    """The automatic class that knows the architecture which the configuration names."""
    whole = any(str(name).endswith("ForConditionalGeneration") for name in data.get("architectures") or ())
    return library.AutoModelForImageTextToText if whole else library.AutoModelForCausalLM


def _option_help() -> str:
    return ", ".join(f"{name}={'|'.join(values) or 'INTEGER'}" for name, values in OPTIONS.items())


def _integer(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal():
        raise SubjectError(f"option {name}={text}: give an integer, 0 or more")
    return int(text)


@contextmanager
def _watching(network: Any, seen: _Seen) -> Iterator[None]:
    """Note what each call of the model is fed and gives, whoever calls it."""

    def note(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        ids: Any = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        seen.rows.append(int(ids.shape[1]))
        seen.logits.append(as_float(output.logits[0, -1]))

    hook: Callable[..., Any] = network.register_forward_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()  # type: ignore[attr-defined]  # a torch handle
