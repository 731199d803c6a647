"""What is timed: an engine as its callers run it, page pool and all, and raw ONNX Runtime as the yardstick.

Keys and values of a history are noise planted in the state: time and memory do not depend on their values.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from ..contract.request import SamplingParams
from ..engine import Engine
from ..kv.layout import Part, Physical, capacity_bucket, narrow, write_present
from ..turn.decoder import Decoder
from ..turn.session import Session
from ..turn.slot import Retained
from .raw import RawLoop

Turn = Callable[[int], float]


class Arm(Protocol):
    """Something that answers requests while we look at the clock. All results are seconds."""

    name: str

    def request(self, prompt: int, count: int) -> tuple[float, list[float]]:
        """The prefill of an unknown prompt of that many tokens, and each of `count` decode steps after it."""

    def conversation(self, history: int) -> Turn:
        """A conversation that holds `history` positions: call it with n for a turn that adds n tokens to just those."""


class Prompts:
    """Prompts that nobody saw before, and salts that nobody used, so that nothing is reused by chance."""

    def __init__(self, vocab_size: int) -> None:
        self._random = np.random.default_rng(0)
        self._vocab_size = vocab_size
        self._salts = itertools.count()

    def tokens(self, count: int) -> list[int]:
        """`count` random token ids."""
        return [int(token) for token in self._random.integers(0, self._vocab_size, count)]

    def salt(self) -> int:
        """A salt of its own."""
        return next(self._salts)


class EngineArm(Arm):
    """`Arm` of one engine."""

    def __init__(self, name: str, engine: Engine, prompts: Prompts) -> None:
        self.name = name
        self.engine = engine
        self._prompts = prompts

    def cold(self, length: int) -> float:
        """From an unknown prompt of `length` tokens to its first token."""
        return _first(self.engine.session(), self._prompts.tokens(length), self._prompts.salt())

    @override
    def request(self, prompt: int, count: int) -> tuple[float, list[float]]:
        """As `Arm.request`. The prefill may take several chunks; it ends with the first token."""
        params = SamplingParams(max_new_tokens=count + 1, ignore_eos=True)
        turn = self.engine.session().stream(self._prompts.tokens(prompt), params, salt=self._prompts.salt())
        marks, chunks = [time.perf_counter()], 0
        for step in turn:
            marks.append(time.perf_counter())
            chunks += step.token is None
        return marks[chunks + 1] - marks[0], [b - a for a, b in itertools.pairwise(marks[chunks + 1 :])]

    @override
    def conversation(self, history: int) -> Turn:
        """As `Arm.conversation`. A turn ends with its first token."""
        salt, context = self._prompts.salt(), self._prompts.tokens(history)
        session = planted(self.engine, context, salt)

        def turn(new: int) -> float:
            session.rewind(history)
            return _first(session, context + self._prompts.tokens(new), salt)

        return turn


class RawArm(Arm):
    """`Arm` of raw ONNX Runtime, over the session of a loaded `ort` engine, of which nothing else is used."""

    name = "raw"

    def __init__(self, engine: Engine, prompts: Prompts) -> None:
        self._engine = engine
        self._prompts = prompts

    @override
    def request(self, prompt: int, count: int) -> tuple[float, list[float]]:
        loop = self._loop(prompt + count)
        first = timed(lambda: loop.step(self._prompts.tokens(prompt)))
        return first, [timed(lambda: loop.step(self._prompts.tokens(1))) for _ in range(count)]

    @override
    def conversation(self, history: int) -> Turn:
        loop = self._loop(history + 64)

        def turn(new: int) -> float:
            loop.hold(history)
            return timed(lambda: loop.step(self._prompts.tokens(new)))

        return turn

    def _loop(self, length: int) -> RawLoop:
        """With as much room as an engine makes for `length` positions."""
        options = self._engine.options
        room = capacity_bucket(length, min_capacity=options.min_capacity, max_context=self._engine.max_context)
        return RawLoop(self._engine.spec, self._engine.weights, capacity=room)


def planted(engine: Engine, context: Sequence[int], salt: Any = None) -> Session:
    """A session that retains `context`, with noise for its keys and values."""
    core, rng = engine.core, np.random.default_rng(0)
    state = core.backend.new_state()

    def fill(layer: int, part: Part, flat: Any, physical: Physical) -> None:
        noise = rng.standard_normal((physical.heads, len(context), physical.head_dim), dtype=np.float32)
        rows = narrow(noise, core.spec.geometry.layers[layer].dtype)
        write_present(flat, physical, 0, state.device.from_host(rows))

    state.load(len(context), fill)
    identity = engine.identity(salt)
    assert identity is not None
    decoder = Decoder(core.spec, core.backend, state)
    return engine.session(Retained(context=tuple(context), identity=identity, decoder=decoder))


def timed(run: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _first(session: Session, prompt: list[int], salt: int) -> float:
    params = SamplingParams(max_new_tokens=1, ignore_eos=True)
    return timed(lambda: session.generate(prompt, params, salt=salt))
