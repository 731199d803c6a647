"""The facade: load a model, generate cold or warm, keep sessions, show what is inside.

with Engine.load("models/smollm2", backend="native") as engine:
    session = engine.session()
    reply = session.generate(prompt_ids, SamplingParams(max_new_tokens=32))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from .backends.base import RuntimeOptions, Weights
from .backends.registry import BACKENDS
from .contract.arrays import Feeds, HostArray
from .contract.errors import UsageError
from .contract.probe import Probe, no_probe
from .contract.request import Completion, GateReason, Identity, RequestOptions, SamplingParams
from .graph.compile import NUMERICS
from .kv.buffers import KvOptions
from .kv.layout import Part
from .kv.pages import PagePool
from .kv.prefix_cache import NullPrefixCache, PagedPrefixCache, PrefixCache
from .package.resolve import ModelSpec, refuse_nan, resolve
from .text.tokenizer import TextTokenizer
from .turn.identity import file_digest, identity_of
from .turn.session import Session
from .turn.slot import Retained, Slot
from .turn.turn import Core, Request, Turn


class EngineKeywords(TypedDict, total=False):
    """The fields of `EngineOptions`, for whoever passes them as keywords."""

    backend: str
    device: str
    numerics: str
    page_size: int
    pages: int
    chunk_size: int
    min_capacity: int
    max_context: int | None
    probe: Probe
    poison: float | None
    threads: int


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How an engine runs. Passed in whole; nothing is read from the environment.

    `page_size` in positions; `pages` 0 runs unpaged; `chunk_size`: most tokens one prefill step feeds; `min_capacity`:
    smallest KV bucket, in positions; `max_context` None: the model's own; `poison`: what fresh memory is filled with
    instead of zeros; `threads`: ONNX Runtime's.
    """

    backend: str = "native"
    device: str = "cpu"
    numerics: str = "invariant"
    page_size: int = 16
    pages: int = 256
    chunk_size: int = 64
    min_capacity: int = 256
    max_context: int | None = None
    probe: Probe = no_probe
    poison: float | None = None
    threads: int = 2

    def __post_init__(self) -> None:
        for name, allowed in (("backend", BACKENDS), ("numerics", NUMERICS)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} is {getattr(self, name)!r}: give one of {list(allowed)}")
        for name, least in (("page_size", 1), ("pages", 0), ("chunk_size", 1), ("min_capacity", 1), ("threads", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}: give {least} or more")
        if self.max_context is not None and self.max_context < 1:
            raise UsageError(f"max_context is {self.max_context}: give 1 or more, or leave it out")


@dataclass(frozen=True, kw_only=True)
class LiveKv:
    """What a retained state physically holds: per layer (key, value) arrays `[1, H, capacity, D]`, `length` of it valid."""

    length: int
    context: tuple[int, ...]
    arrays: tuple[tuple[HostArray, HostArray], ...]


@dataclass(frozen=True, kw_only=True)
class EngineView:
    """What is inside an engine, for somebody who judges it. Pages are numbers; `page_bytes` copies one, flat float32,
    `[layer][2][head][position in page][head_dim]`. `entries`: identity, tokens and last page of each published prefix."""

    live: LiveKv | None
    entries: tuple[tuple[Identity, tuple[int, ...], int], ...]
    free: tuple[int, ...]
    holders: tuple[int, ...]
    page_bytes: Callable[[int], NDArray[np.float32]]


class Engine:
    """One model on one backend with its own page pool and prefix cache. Make it with `Engine.load`."""

    def __init__(self, spec: ModelSpec, weights: Weights, content: bytes, options: EngineOptions) -> None:
        self.spec = spec
        self.options = options
        self.weights = weights
        self._content = content
        self._tokenizer: TextTokenizer | None = None
        self.max_context = min(options.max_context or spec.context_length, spec.context_length)
        pages = options.pages if spec.has_state else 0
        self.pool = PagePool(spec.geometry, page_size=options.page_size, pages=pages, poison=options.poison)
        self.cache: PrefixCache = PagedPrefixCache(self.pool) if pages else NullPrefixCache()
        self.core = Core(
            spec=spec,
            backend=weights.backend(self._kv_options()),
            pool=self.pool,
            cache=self.cache,
            chunk_size=options.chunk_size,
            max_context=self.max_context,
            probe=options.probe,
        )

    @classmethod
    def load(cls, path: str | Path, **options: Unpack[EngineKeywords]) -> Engine:
        """Load a model directory or `.onnx` file. Keyword options: the fields of `EngineOptions`.

        ModelError when the files are at fault, UsageError for an option or device that does not exist; nothing stays
        loaded then.
        """
        try:
            chosen = EngineOptions(**options)
        except TypeError as error:
            raise UsageError(
                f"Engine.load: {error}; options are {sorted(EngineOptions.__dataclass_fields__)}"
            ) from error
        spec, graph = resolve(Path(path))
        refuse_nan(graph)
        content = file_digest([spec.graph_path, *graph.external_files()])
        runtime = RuntimeOptions(device=chosen.device, numerics=chosen.numerics, threads=chosen.threads)
        return cls(spec, BACKENDS[chosen.backend](spec, graph, runtime), content, chosen)

    def fresh(self, **changes: Unpack[EngineKeywords]) -> Engine:
        """Another engine over the same immutable weights, with fresh pools, caches and sessions: a cold start.

        `changes`: options to change, but not backend, device, numerics or threads, which belong to the weights.
        """
        fixed = {"backend", "device", "numerics", "threads"} & set(changes)
        if fixed:
            raise UsageError(f"fresh() cannot change {sorted(fixed)}: load another engine")
        return Engine(self.spec, self.weights, self._content, replace(self.options, **changes))

    def session(self, retained: Retained | None = None) -> Session:
        """A conversation that keeps its KV between turns. `retained`: what its first turn may reuse."""
        return Session(self._turn, retained)

    def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams | None = None, **request: Unpack[RequestOptions]
    ) -> Completion:
        """One turn without a session: it uses the prefix cache only. `reuse=False`: cold, and nothing is published.

        `salt`: anything canonical; different salts never share KV. UsageError for anything else in `request`.
        """
        return self.stream(prompt_ids, params, **request).finish()

    def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams | None = None, **request: Unpack[RequestOptions]
    ) -> Turn:
        """Like `generate`, as a `Turn` to iterate."""
        return self._turn(prompt_ids, params, Slot(), **request)

    def tokenizer(self) -> TextTokenizer:
        """The model's own tokenizer, read once. ModelError where it has none."""
        if self._tokenizer is None:
            self._tokenizer = TextTokenizer(self.spec.directory)
        return self._tokenizer

    def observe(self, session: Session | None = None) -> EngineView:
        """What `session` retains and what the pool and the prefix cache hold now. Arrays are live: copy what you keep."""
        retained = session.retained if session is not None else None
        pool = self.pool.snapshot()
        return EngineView(
            live=_live(retained, len(self.spec.states)) if retained is not None else None,
            entries=tuple(_entries(self.cache)),
            free=pool.free,
            holders=pool.holders,
            page_bytes=lambda page: self.pool.bytes_of(page).copy(),
        )

    def identity(self, salt: object = None) -> Identity | None:
        """The digest under which KV of requests with this `salt` is kept; None if `salt` has no canonical form."""
        return identity_of(
            {
                "content": self._content,
                "salt": salt,
                "kv": [[layer.heads, layer.head_dim, layer.dtype] for layer in self.spec.states],
                "numerics": self.options.numerics,
                "positions": "linear",
            }
        )

    def check_invariants(self) -> None:
        """Assert that every page is free or accounted for by the cache and the running turns, and the tree's own laws."""
        held = [page for table in self.core.tables for page in table.held_pages()]
        if isinstance(self.cache, PagedPrefixCache):
            self.cache.check_invariants()
            held += self.cache.held_pages()
        self.pool.check_invariants(held)

    def bare(self, feeds: Feeds) -> dict[str, HostArray]:
        """One stateless model call; see `Backend.bare`."""
        return self.core.backend.bare(feeds)

    def fallbacks(self) -> dict[str, int]:
        """Operators that ran on the slow generic path, with their calls; see `Backend.fallbacks`."""
        return self.core.backend.fallbacks()

    def close(self) -> None:
        """Release the weights, unless `fresh()` engines still use them. Idempotent."""
        self.core.backend.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _turn(
        self, prompt_ids: Sequence[int], params: SamplingParams | None, slot: Slot, **request: Unpack[RequestOptions]
    ) -> Turn:
        """A checked turn that has not started."""
        prompt = self._checked(prompt_ids)
        if unknown := {name: value for name, value in request.items() if name not in RequestOptions.__annotations__}:
            raise UsageError(
                f"{unknown!s:.200}: a request takes {sorted(RequestOptions.__annotations__)} and no other condition"
            )
        reuse = request.get("reuse", True)
        identity = self.identity(request.get("salt")) if reuse else None
        chosen = params or SamplingParams()
        decode = self.tokenizer().decode if chosen.stop else None
        asked = Request(
            prompt=prompt, params=chosen, identity=identity, gate=self._gate(identity, reuse), decode=decode
        )
        return Turn(self.core, asked, slot)

    def _checked(self, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """The prompt as plain ints, or UsageError with the value and the bound."""
        prompt = tuple(_token(value, at, self.spec.vocab_size) for at, value in enumerate(prompt_ids))
        if not prompt:
            raise UsageError("the prompt is empty: give at least one token id")
        if len(prompt) > self.max_context:
            raise UsageError(f"the prompt has {len(prompt)} tokens, the context holds {self.max_context}: shorten it")
        return prompt

    def _gate(self, identity: Identity | None, reuse: bool) -> GateReason | None:
        if not self.spec.has_state:
            return GateReason.NO_KV
        if not reuse:
            return GateReason.REUSE_OFF
        if identity is None:
            return GateReason.NO_IDENTITY
        return GateReason.NO_PAGES if not self.options.pages else None

    def _kv_options(self) -> KvOptions:
        options = self.options
        return KvOptions(
            min_capacity=options.min_capacity,
            max_context=self.max_context,
            poison=options.poison,
            probe=options.probe,
        )


def _token(value: object, at: int, vocab_size: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise UsageError(f"prompt[{at}] is {value!r}: token ids are integers")
    if not 0 <= value < vocab_size:
        raise UsageError(f"prompt[{at}] is {value}: token ids of this model are 0 to {vocab_size - 1}")
    return int(value)


def _entries(cache: PrefixCache) -> Iterator[tuple[Identity, tuple[int, ...], int]]:
    prefixes: dict[int, tuple[int, ...]] = {}
    for identity, node in cache.nodes():
        prefix = prefixes.get(id(node.parent), ()) + node.tokens
        prefixes[id(node)] = prefix
        assert node.page is not None
        yield identity, prefix, node.page


def _live(retained: Retained, layers: int) -> LiveKv:
    state = retained.decoder.state
    return LiveKv(
        length=state.kv_len,
        context=retained.context,
        arrays=tuple((state.physical(layer, Part.KEY), state.physical(layer, Part.VALUE)) for layer in range(layers)),
    )
