"""The facade: load a model, generate cold or warm, keep sessions, show what is inside.

with Engine.load("models/smollm2", backend="native") as engine:
    session = engine.session()
    reply = session.generate(prompt_ids, SamplingParams(max_new_tokens=32))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backends.base import Backend, BackendState
from .contract.arrays import HostArray
from .contract.errors import UsageError
from .contract.probe import Probe, no_probe
from .contract.request import Completion, GateReason, SamplingParams
from .graph.load import GraphModel
from .kv.layout import KvGeometry, Part
from .kv.pages import PagePool
from .kv.prefix_cache import NullPrefixCache, PagedPrefixCache, PrefixCache
from .package.resolve import ModelSpec, refuse_nan, resolve
from .text.tokenizer import TextTokenizer
from .turn.identity import Identity, file_digest, identity_of
from .turn.reuse import Component, FullAttention, Window
from .turn.session import Session
from .turn.turn import Core, Retained, Turn

BACKENDS = ("native", "ort")
NUMERICS = ("invariant", "fast")


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
    in_flight: tuple[int, ...]
    page_bytes: Callable[[int], NDArray[np.float32]]


class Engine:
    """One model on one backend with its own page pool and prefix cache. Make it with `Engine.load`."""

    def __init__(self, spec: ModelSpec, weights: Any, content: bytes, options: EngineOptions) -> None:
        self.spec = spec
        self.options = options
        self._weights = weights
        self._content = content
        self._tokenizer: TextTokenizer | None = None
        self.max_context = min(options.max_context or spec.context_length, spec.context_length)
        backend = _backend(weights, options, self.max_context)
        pages = options.pages if spec.has_state else 0
        self.pool = PagePool(spec.geometry, page_size=options.page_size, pages=pages, poison=options.poison)
        self.cache: PrefixCache = PagedPrefixCache(self.pool) if pages else NullPrefixCache()
        self._core = Core(
            spec=spec,
            backend=backend,
            components=_components(spec),
            pool=self.pool,
            cache=self.cache,
            chunk_size=options.chunk_size,
            max_context=self.max_context,
            probe=options.probe,
        )

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Engine:
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
        return cls(spec, _weights(spec, graph, chosen), content, chosen)

    def fresh(self, **changes: Any) -> Engine:
        """Another engine over the same immutable weights, with fresh pools, caches and sessions: a cold start.

        `changes`: options to change, but not backend, device, numerics or threads, which belong to the weights.
        """
        fixed = {"backend", "device", "numerics", "threads"} & set(changes)
        if fixed:
            raise UsageError(f"fresh() cannot change {sorted(fixed)}: load another engine")
        return Engine(self.spec, self._weights, self._content, replace(self.options, **changes))

    def session(self) -> Session:
        """A conversation that keeps its KV between turns."""
        return Session(self)

    def generate(self, prompt_ids: Sequence[int], params: SamplingParams | None = None, **request: Any) -> Completion:
        """One turn without a session: it uses the prefix cache only. `reuse=False`: cold, and nothing is published.

        `request`: `inputs` (named arrays that condition the model), `adapter`, `salt` (anything canonical; different
        salts never share KV), `reuse`.
        """
        turn = self.turn(prompt_ids, params, take=lambda: None, put_back=lambda retained: None, **request)
        for _ in turn:
            pass
        return turn.completion

    def stream(self, prompt_ids: Sequence[int], params: SamplingParams | None = None, **request: Any) -> Turn:
        """Like `generate`, as a `Turn` to iterate."""
        return self.turn(prompt_ids, params, take=lambda: None, put_back=lambda retained: None, **request)

    def turn(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None,
        *,
        take: Callable[[], Retained | None],
        put_back: Callable[[Retained | None], None],
        inputs: Mapping[str, HostArray] | None = None,
        adapter: str | None = None,
        salt: Any = None,
        reuse: bool = True,
    ) -> Turn:
        """A checked turn that has not started. For sessions; callers want `generate` or `stream`."""
        prompt = self._checked(prompt_ids)
        if inputs:
            raise UsageError(f"inputs {sorted(inputs)}: this model declares no input beside tokens, mask and positions")
        if adapter is not None:
            raise UsageError(f"adapter {adapter!r}: this model has no adapters")
        identity = self.identity(salt) if reuse else None
        chosen = params or SamplingParams()
        return Turn(
            self._core,
            prompt,
            chosen,
            identity=identity,
            gate=self._gate(identity, reuse),
            take=take,
            put_back=put_back,
            decode_text=self.tokenizer().decode if chosen.stop else None,
        )

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
            live=_live(retained, self.spec.geometry) if retained is not None else None,
            entries=tuple(_entries(self.cache)),
            free=tuple(pool["free"]),
            holders=tuple(pool["holders"]),
            in_flight=tuple(page for table in self._core.tables for page in table.held_pages()),
            page_bytes=lambda page: self.pool.bytes_of(page).copy(),
        )

    def identity(self, salt: Any = None) -> Identity | None:
        """The digest under which KV of requests with this `salt` is kept; None if `salt` has no canonical form."""
        return identity_of(
            {
                "content": self._content,
                "salt": salt,
                "kv": [[layer.heads, layer.head_dim, layer.dtype] for layer in self.spec.geometry.layers],
                "numerics": self.options.numerics,
                "positions": "linear",
            }
        )

    def check_invariants(self) -> None:
        """Assert that every page is free or accounted for by the cache and the running turns, and the tree's own laws."""
        held = [page for table in self._core.tables for page in table.held_pages()]
        if isinstance(self.cache, PagedPrefixCache):
            self.cache.check_invariants()
            held += self.cache.held_pages()
        self.pool.check_invariants(held)

    def bare(self, feeds: Mapping[str, HostArray]) -> dict[str, HostArray]:
        """One stateless model call; see `Backend.bare`."""
        return self._core.backend.bare(feeds)

    def fallbacks(self) -> dict[str, int]:
        """Operators that ran on the slow generic path, with their calls; see `Backend.fallbacks`."""
        return self._core.backend.fallbacks()

    def close(self) -> None:
        """Release the weights, unless `fresh()` engines still use them. Idempotent."""
        self._core.backend.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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


def _token(value: Any, at: int, vocab_size: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise UsageError(f"prompt[{at}] is {value!r}: token ids are integers")
    if not 0 <= value < vocab_size:
        raise UsageError(f"prompt[{at}] is {value}: token ids of this model are 0 to {vocab_size - 1}")
    return int(value)


def _components(spec: ModelSpec) -> Sequence[Component]:
    """What restricts where this model's state may be cut. Windows are masks here: the KV of all positions stays."""
    if not spec.has_state:
        return ()
    return (FullAttention(), *(Window(width) for width in sorted(spec.windows)))


def _weights(spec: ModelSpec, graph: GraphModel, options: EngineOptions) -> Any:
    """The immutable part of a backend. Each runtime is imported only when it is asked for."""
    ports: dict[str, Any] = {"past": spec.past, "present": spec.present, "logits": spec.logits}
    if options.backend == "native":
        from .backends.native import compile_model

        return compile_model(graph, geometry=spec.geometry, device=options.device, numerics=options.numerics, **ports)
    from .backends.ort import open_model

    return open_model(
        spec.graph_path,
        geometry=spec.geometry,
        shared_buffer=spec.shared_buffer,
        device=options.device,
        threads=options.threads,
        **ports,
    )


def _backend(weights: Any, options: EngineOptions, max_context: int) -> Backend:
    settings: dict[str, Any] = {
        "min_capacity": options.min_capacity,
        "max_context": max_context,
        "poison": options.poison,
        "probe": options.probe,
    }
    if options.backend == "native":
        from .backends.native import NativeBackend

        return NativeBackend(weights, **settings)
    from .backends.ort import OrtBackend

    return OrtBackend(weights, **settings)


def _entries(cache: PrefixCache) -> Iterator[tuple[Identity, tuple[int, ...], int]]:
    prefixes: dict[int, tuple[int, ...]] = {}
    for identity, node in cache.nodes():
        prefix = prefixes.get(id(node.parent), ()) + node.tokens
        prefixes[id(node)] = prefix
        assert node.page is not None
        yield identity, prefix, node.page


def _live(retained: Retained, geometry: KvGeometry) -> LiveKv:
    state: BackendState = retained.decoder.state
    return LiveKv(
        length=state.kv_len,
        context=retained.context,
        arrays=tuple(
            (state.physical(layer, Part.KEY), state.physical(layer, Part.VALUE))
            for layer in range(len(geometry.layers))
        ),
    )
