"""warmcold's own engine as a subject, both backends.

Observes through the engine's probe and `Engine.observe`, and reads the physical arrays itself: what the engine's own
geometry says about them is among the things under test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ...engine import (
    BackendError,
    Completion,
    Engine,
    Feeding,
    ObservedState,
    ProbeEvent,
    Rewinding,
    SamplingParams,
    Seeded,
    Session,
    Stepped,
    UsageError,
    WarmcoldError,
)
from ...fixtures import closed_forms
from ..arms.oracle import BareLoop, RawModel
from ..contract.errors import MaskedError, RefusedError, SubjectError
from ..contract.observation import Array, Call, Kv, Observation, PageKey, Pair, Pool
from ..contract.scenario import Settings, Turn
from ..contract.subject import OPERATIONS, Capabilities, ClosedForm, Instance, Recompute, ReuseModel, Subject
from ..contract.verdict import Level
from .tokenizer import TokenizerFile


class EngineSubject(Subject):
    """One loaded model on one backend of the engine. `Native` and `Ort` are the two that ship."""

    backend: ClassVar[str]

    def __init__(self, model: Path | str, *, threads: int, device: str, numerics: str = "invariant") -> None:
        self.model = self.path = Path(model)
        self.name = f"{self.backend}-{device}"
        try:
            self._engine = Engine.load(
                self.path, backend=self.backend, device=device, numerics=numerics, threads=threads
            )
        except WarmcoldError as error:
            raise SubjectError(str(error)) from error
        spec = self._engine.spec
        self.stateful, self.max_context, self.vocab_size = spec.has_state, self._engine.max_context, spec.vocab_size
        self.capabilities = Capabilities(
            level=Level.L4,
            operations=OPERATIONS,
            has=frozenset({"settings", "pages", "feeds"}),
            reuse=ReuseModel(scope="policy", exact=True),
            poison=True,
        )
        self._tokenizer = TokenizerFile(self._folder)

    @override
    def open(self, settings: Settings, *, poison: float | None) -> EngineInstance:
        return EngineInstance(self._engine, settings, poison)

    @override
    def closed_form(self) -> ClosedForm | None:
        return closed_forms.load(self._folder)

    @override
    def encode(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text)

    @override
    def describe(self) -> Mapping[str, object]:
        options = self._engine.options
        return {
            "backend": options.backend,
            "device": options.device,
            "numerics": "onnxruntime",
            "fallbacks": self._engine.fallbacks(),
        }

    @override
    def close(self) -> None:
        self._engine.close()

    @property
    def _folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent


class Ort(EngineSubject):
    """On ONNX Runtime: raw ONNX Runtime plays the matched arm and is the oracle."""

    backend = "ort"

    def __init__(self, model: Path | str, *, threads: int = 2, device: str = "cpu") -> None:
        super().__init__(model, threads=threads, device=device)
        self.onnx = self.path


class Native(EngineSubject):
    """On the engine's own kernels, whose bare step plays the matched arm; raw ONNX Runtime says the ports and is the oracle.

    Option `numerics`: `invariant` or `fast`.
    """

    backend = "native"

    def __init__(
        self, model: Path | str, *, threads: int = 2, device: str = "cpu", numerics: str = "invariant"
    ) -> None:
        super().__init__(model, threads=threads, device=device, numerics=numerics)
        self.capabilities = replace(self.capabilities, invariant=numerics == "invariant")
        self._raw = RawModel(self.path, threads=threads)

    @override
    def loop(self) -> BareLoop:
        return BareLoop(self._raw.ports, self._engine.bare)

    @override
    def recompute(self) -> Recompute:
        return BareLoop(self._raw.ports, self._raw.run).recompute

    @override
    def describe(self) -> Mapping[str, object]:
        return {**super().describe(), "numerics": self._engine.options.numerics}


class EngineInstance(Instance):
    """A fresh engine for one scenario, with the harness listening at its probe points."""

    def __init__(self, engine: Engine, settings: Settings, poison: float | None) -> None:
        self._weights = engine
        self._settings, self._poison = settings, poison
        self._recorder = _Recorder(engine)
        self._engine = self._fresh(self._recorder)
        self._sessions: dict[str, Session] = {}
        self._salts: set[str | None] = set()

    @override
    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
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

    @override
    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """The state is caught at the last step, because a cold turn keeps nothing."""
        recorder = _Recorder(self._engine, keep_end=True)
        reply = self._fresh(recorder).session().generate(prompt, _params(op), salt=op.salt, reuse=False)
        return _observation(reply, recorder, recorder.end)

    @override
    def new_session(self, session: str) -> None:
        if session in self._sessions:
            self._sessions.pop(session).close()

    @override
    def fork(self, session: str, to: str) -> None:
        self._sessions[to] = self._sessions.setdefault(session, self._engine.session()).fork()

    @override
    def rewind(self, session: str, n: int) -> bool:
        return self._sessions[session].rewind(n) if session in self._sessions else False

    @override
    def pool(self) -> Pool:
        view = self._engine.observe()
        salts = {self._engine.identity(salt): salt for salt in self._salts}
        entries: dict[PageKey, int] = {
            PageKey(salts.get(identity, f"unknown identity {identity.hex()[:8]}"), prefix): page
            for identity, prefix, page in view.entries
        }
        page_size = self._settings.page_size
        return Pool(
            total=len(view.holders),
            free=view.free,
            holders=view.holders,
            entries=entries,
            bytes={
                key: self._rows(view.page_bytes(page), len(key.tokens) - key.start(page_size))
                for key, page in entries.items()
            },
        )

    @override
    def clear(self) -> None:
        self._engine.cache.clear()

    def _fresh(self, recorder: _Recorder) -> Engine:
        """An engine over the same weights that has seen nothing."""
        settings = self._settings
        return self._weights.fresh(
            probe=recorder,
            poison=self._poison,
            page_size=settings.page_size,
            pages=settings.pages,
            chunk_size=settings.chunk_size,
            min_capacity=settings.min_capacity,
        )

    def _rows(self, flat: NDArray[np.float32], count: int) -> Kv:
        """Decode a page, `[layer][2][head][position][head_dim]`, by the documented layout."""
        layers, at = [], 0
        for spec in self._engine.spec.geometry.layers:
            size = 2 * spec.heads * self._settings.page_size * spec.head_dim
            block = flat[at : at + size].reshape(2, spec.heads, self._settings.page_size, spec.head_dim)
            layers.append((block[0, :, :count].copy(), block[1, :, :count].copy()))
            at += size
        return tuple(layers)


class PlantedError(Exception):
    """The error that a scenario asks for."""


class _Recorder:
    """Keeps what the probe points show during one turn."""

    def __init__(self, engine: Engine, *, keep_end: bool = False) -> None:
        self._spec = engine.spec
        self._keep_end = keep_end
        self.clear()

    def clear(self, op: Turn | None = None) -> None:
        self._decline_rewind = op is not None and op.decline_rewind
        self._fail = op.fail if op is not None else None
        self._visits = 0
        self.struck = False
        self._feeds: list[dict[str, Array]] = []
        self._logits: list[NDArray[np.float32]] = []
        self._state: ObservedState | None = None
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
        spec = self._spec
        return tuple(
            Call(
                ids=feeds[spec.input_ids],
                positions=feeds.get(spec.position_ids or ""),
                mask=feeds.get(spec.attention_mask or ""),
                logits=logits,
            )
            for feeds, logits in zip(self._feeds, self._logits, strict=True)
        )

    @property
    def end(self) -> Kv | None:
        return self._copy(self._state) if self._keep_end and self._state is not None else None

    def _copy(self, state: ObservedState) -> Kv:
        if state.kv_len == 0:
            return ()
        arrays = tuple(
            (state.physical(layer, 0), state.physical(layer, 1)) for layer in range(len(self._spec.geometry.layers))
        )
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


def _kv(arrays: Sequence[Pair], length: int) -> Kv:
    return tuple((np.array(k[0, :, :length]), np.array(v[0, :, :length])) for k, v in arrays)


def _observation(reply: Completion, recorder: _Recorder, end: Kv | None) -> Observation:
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
