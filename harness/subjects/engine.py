"""warmcold's own engine as a subject, both backends.

Observes through the engine's probe and `Engine.observe`, and reads the physical arrays itself: what the engine's own
geometry says about them is among the things under test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine import (
    BackendError,
    Completion,
    Engine,
    Feeding,
    ProbeEvent,
    Rewinding,
    SamplingParams,
    Seeded,
    Session,
    Stepped,
    UsageError,
    WarmcoldError,
)
from ..contract.observation import Call, Kv, Observation, PageKey, Pool
from ..contract.scenario import Settings, Turn
from ..contract.subject import (
    OPERATIONS,
    Capabilities,
    Loop,
    MaskedError,
    Recompute,
    RefusedError,
    ReuseModel,
    SubjectError,
)
from ..contract.verdict import Level
from ..conversations.texts import encoder


class EngineSubject:
    """One loaded model on one backend of the engine."""

    def __init__(
        self, model: Path, *, backend: str, device: str = "cpu", numerics: str = "invariant", threads: int = 2
    ):
        self.name = f"{backend}-{device}"
        self.model = model
        self.own_kernels = backend != "ort"
        try:
            self._engine = Engine.load(model, backend=backend, device=device, numerics=numerics, threads=threads)
        except WarmcoldError as error:
            raise SubjectError(str(error)) from error
        spec = self._engine.spec
        self.stateful, self.max_context, self.vocab_size = spec.has_state, self._engine.max_context, spec.vocab_size
        invariant = self.own_kernels and numerics == "invariant"
        self.capabilities = Capabilities(
            level=Level.L4,
            operations=OPERATIONS,
            reuse=ReuseModel(scope="glossary", exact=True),
            invariant=invariant,
            poison=True,
        )
        self.onnx: Path | None = model

    def open(self, settings: Settings, *, poison: float | None) -> EngineInstance:
        """See `Subject.open`."""
        return EngineInstance(self._engine, settings, poison)

    def bare(self, feeds: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """One stateless model call of the engine's own kernels, past arrays among the feeds, all outputs by name."""
        return self._engine.bare(feeds)

    def loop(self) -> Loop | None:
        """See `Subject.loop`: raw ONNX Runtime plays it, or `bare` does, with the ports that raw ONNX Runtime reports."""
        return None

    def recompute(self) -> Recompute | None:
        """See `Subject.recompute`: raw ONNX Runtime is the oracle."""
        return None

    def encode(self, text: str) -> Sequence[int]:
        """See `Subject.encode`."""
        return encoder(self.model if self.model.is_dir() else self.model.parent)(text)

    def describe(self) -> dict[str, Any]:
        """See `Subject.describe`."""
        options = self._engine.options
        return {
            "backend": options.backend,
            "device": options.device,
            "numerics": options.numerics if self.own_kernels else "onnxruntime",
            "fallbacks": self._engine.fallbacks(),
        }

    def close(self) -> None:
        """See `Subject.close`."""
        self._engine.close()


class EngineInstance:
    """A fresh engine for one scenario, with the harness listening at its probe points."""

    def __init__(self, engine: Engine, settings: Settings, poison: float | None) -> None:
        self._weights = engine
        self._options: dict[str, Any] = {
            "page_size": settings.page_size,
            "pages": settings.pages,
            "chunk_size": settings.chunk_size,
            "min_capacity": settings.min_capacity,
            "poison": poison,
        }
        self._recorder = _Recorder(len(engine.spec.geometry.layers))
        self._engine = engine.fresh(probe=self._recorder, **self._options)
        self._sessions: dict[str, Session] = {}
        self._salts: set[str | None] = set()

    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """See `Instance.turn`."""
        self._salts.add(op.salt)
        live = self._sessions.setdefault(op.session, self._engine.session())
        self._recorder.clear(op)
        try:
            reply = _play(live, op, prompt)
        except UsageError as error:
            raise RefusedError(str(error)) from error
        except BackendError:
            if self._recorder.struck:
                return Observation(tokens=(), stop="failed", failed=True)
            raise
        if self._recorder.struck:
            raise MaskedError(f"the error planted at {op.fail} was raised, and the turn ended all the same")
        if reply is None:
            return Observation(tokens=(), stop="cancelled")
        held = self._engine.observe(live).live
        end = _kv(held.arrays, held.length) if held is not None else None
        return _observation(reply, self._recorder, end)

    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """See `Instance.cold`. The state is caught at the last step, because a cold turn keeps nothing."""
        recorder = _Recorder(len(self._engine.spec.geometry.layers), keep_end=True)
        engine = self._weights.fresh(probe=recorder, **self._options)
        reply = engine.session().generate(prompt, _params(op), salt=op.salt, reuse=False)
        return _observation(reply, recorder, recorder.end)

    def new_session(self, session: str) -> None:
        """See `Instance.new_session`."""
        if session in self._sessions:
            self._sessions.pop(session).close()

    def fork(self, session: str, to: str) -> None:
        """See `Instance.fork`."""
        self._sessions[to] = self._sessions.setdefault(session, self._engine.session()).fork()

    def rewind(self, session: str, n: int) -> bool:
        """See `Instance.rewind`."""
        return self._sessions[session].rewind(n) if session in self._sessions else False

    def held(self, session: str) -> Kv | None:
        """The live KV that the session retains; None when it retains nothing."""
        live = self._sessions.get(session)
        held = self._engine.observe(live).live if live is not None else None
        return _kv(held.arrays, held.length) if held is not None else None

    def pool(self) -> Pool:
        """See `Instance.pool`."""
        view = self._engine.observe()
        salts = {self._engine.identity(salt): salt for salt in self._salts}
        entries: dict[PageKey, int] = {
            (salts.get(identity, f"unknown identity {identity.hex()[:8]}"), prefix): page
            for identity, prefix, page in view.entries
        }
        page_size = self._options["page_size"]
        return Pool(
            total=len(view.holders),
            free=view.free,
            holders=view.holders,
            entries=entries,
            bytes={
                key: self._rows(view.page_bytes(page), (len(key[1]) - 1) % page_size + 1)
                for key, page in entries.items()
            },
        )

    def clear(self) -> None:
        """See `Instance.clear`."""
        self._engine.cache.clear()

    def _rows(self, flat: NDArray[np.float32], count: int) -> Kv:
        """Decode a page, `[layer][2][head][position][head_dim]`, by the documented layout."""
        layers, at = [], 0
        for spec in self._engine.spec.geometry.layers:
            size = 2 * spec.heads * self._options["page_size"] * spec.head_dim
            block = flat[at : at + size].reshape(2, spec.heads, self._options["page_size"], spec.head_dim)
            layers.append((block[0, :, :count].copy(), block[1, :, :count].copy()))
            at += size
        return tuple(layers)


class PlantedError(Exception):
    """The error that a scenario asks for."""


class _Recorder:
    """Keeps what the probe points show during one turn."""

    def __init__(self, layers: int, *, keep_end: bool = False) -> None:
        self._layers = layers
        self._keep_end = keep_end
        self.clear()

    def clear(self, op: Turn | None = None) -> None:
        self._decline_rewind = op is not None and op.decline_rewind
        self._fail = op.fail if op is not None else None
        self._visits = 0
        self.struck = False
        self._feeds: list[dict[str, NDArray[Any]]] = []
        self._logits: list[NDArray[np.float32]] = []
        self._state: Any = None
        self.seeded: Kv | None = None

    def __call__(self, event: ProbeEvent) -> object:
        if self._fail is not None and event.point == self._fail[0]:
            self._visits += 1
            if self._visits == self._fail[1]:
                self.struck = True
                raise PlantedError(f"planted at visit {self._visits} of {event.point!r}")
        if isinstance(event, Feeding):
            self._feeds.append({name: np.array(value) for name, value in event.feeds.items()})
        elif isinstance(event, Stepped):
            self._logits.append(np.array(event.logits))
            self._state = event.state
        elif isinstance(event, Seeded):
            self.seeded = self._copy(event.state)
        return not (isinstance(event, Rewinding) and self._decline_rewind)

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(Call(feeds=f, logits=x) for f, x in zip(self._feeds, self._logits, strict=True))

    @property
    def end(self) -> Kv | None:
        return self._copy(self._state) if self._keep_end and self._state is not None else None

    def _copy(self, state: Any) -> Kv:
        if state.kv_len == 0:
            return ()
        arrays = tuple((state.physical(layer, 0), state.physical(layer, 1)) for layer in range(self._layers))
        return _kv(arrays, state.kv_len)


def _play(session: Session, op: Turn, prompt: Sequence[int]) -> Completion | None:
    """Run the turn, or close its stream after `cancel_after` model calls; None when it never started."""
    turn = session.stream(prompt, _params(op), salt=op.salt)
    for count, _ in enumerate(turn if op.cancel_after != 0 else (), start=1):
        if count == op.cancel_after:
            break
    turn.close()
    return turn.completion if op.cancel_after != 0 else None


def _params(op: Turn) -> SamplingParams:
    return SamplingParams(max_new_tokens=op.max_new_tokens, ignore_eos=True)


def _kv(arrays: Sequence[tuple[NDArray[Any], NDArray[Any]]], length: int) -> Kv:
    return tuple((np.array(k[0, :, :length]), np.array(v[0, :, :length])) for k, v in arrays)


def _observation(reply: Any, recorder: _Recorder, end: Kv | None) -> Observation:
    return Observation(
        tokens=reply.tokens,
        stop=str(reply.stop),
        reused=reply.reused,
        prefilled=reply.prefilled,
        source=str(reply.source),
        reason=str(reply.reason),
        gate=str(reply.gate) if reply.gate is not None else None,
        mirror_stop=str(reply.mirror_stop) if reply.mirror_stop is not None else None,
        declined=reply.declined,
        calls=recorder.calls,
        seeded=recorder.seeded,
        end=end,
    )
