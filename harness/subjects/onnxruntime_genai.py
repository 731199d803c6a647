"""onnxruntime-genai as a subject: one `Generator` for each session, kept between turns and rewound by the library itself.

Every turn does what a user of the library does: rewind to what the prompt shares with the generator's sequence, append the
rest, generate. With `turns=append` a prompt that only goes on from the sequence is appended without a rewind, which the
library calls continuous decoding. What is observed is read from the live generator: the rows, logits and KV of its last
model call. The matched arm is raw ONNX Runtime on the same file, so providers are cleared: both run on the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import numpy as np
import onnxruntime_genai as og
from msgspec import Struct
from numpy.typing import NDArray
from typing_extensions import override

from ..arms.compare import common_prefix
from ..contract.errors import RefusedError, SubjectError
from ..contract.observation import Array, Kv, Observation, Tokens
from ..contract.scenario import Settings, Turn
from ..contract.subject import Capabilities, Instance, Operation, Recompute, Subject
from ..contract.verdict import Level
from .options import Positions, converted
from .tokenizer import TokenizerFile

Ports = Sequence[tuple[str, str]]
"""Names of (keys, values), layer by layer."""


class OnnxRuntimeGenaiOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`share_buffer`: past and present KV in one buffer (not given: as the configuration says); `turns`: how a prompt that
    only goes on is fed; `max_context` in positions, because a shared buffer is allocated whole."""

    share_buffer: bool | None = None
    turns: Literal["rewind", "append"] = "rewind"
    max_context: Positions = 2048


class Generator(Protocol):
    """What is used of the library's own."""

    def append_tokens(self, tokens: NDArray[np.int32]) -> None:
        """Run the model on them."""

    def generate_next_token(self) -> None:
        """Sample one, having run the model on the former one."""

    def rewind_to(self, n: int) -> None:
        """RuntimeError where it cannot."""

    def is_done(self) -> bool:
        """Whether an end token was sampled, or the longest length reached."""

    def get_sequence(self, index: int) -> NDArray[np.int32]:
        """All tokens of it."""

    def get_input(self, name: str) -> Array:
        """What the last model call was fed."""

    def get_output(self, name: str) -> Array:
        """What it gave."""


class _Window(Struct):
    window_size: int = 0


class _Decoder(Struct):
    """What is read of the decoder's configuration."""

    num_hidden_layers: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    sliding_window: _Window | None = None
    layer_types: object = None

    @property
    def plain(self) -> bool:
        """Whether every layer is said to keep all positions in order."""
        return self.sliding_window is None and self.layer_types is None


class _Model(Struct):
    context_length: int
    vocab_size: int
    decoder: _Decoder


class _Config(Struct):
    """What is read of a `genai_config.json`."""

    model: _Model


class OnnxRuntimeGenai(Subject):
    """A model directory with a `genai_config.json`; its options are `OnnxRuntimeGenaiOptions`.

    SubjectError for a directory or option that is no good.
    """

    name = "onnxruntime_genai"
    model: Path

    def __init__(self, model: Path | str, *, threads: int = 2, **options: object) -> None:
        self.options = converted(OnnxRuntimeGenaiOptions, options, self.name)
        self.model = Path(model)
        self._config = _config(self.model)
        self._tokenizer = TokenizerFile(self.model)
        if not hasattr(og.Config, "overlay"):
            raise SubjectError(f"onnxruntime-genai {_version()} shows too little; install 0.9 or later")
        self.appends = self.options.turns == "append"
        self._threads = threads
        # One less than the library's: it refuses to sample when its sequence is full, though all of it was fed.
        self.max_context = min(self.options.max_context, self._config.context_length - 1)
        self.vocab_size = self._config.vocab_size
        try:
            self._weights = self._load()
            self.shows_kv = self._plain()
        except RuntimeError as error:
            raise SubjectError(f"{self.model}: onnxruntime-genai {_version()} cannot run it: {error}") from error
        self.onnx = self.model if self.shows_kv else None
        self.capabilities = self._declared()

    def _load(self) -> object:
        config = og.Config(str(self.model))
        config.clear_providers()
        config.overlay(json.dumps(self._overlay()))
        loaded: object = og.Model(config)
        return loaded

    def _declared(self) -> Capabilities:
        operations: set[Operation] = {"sessions", "new", "rewind"}
        if (
            not self.appends
        ):  # going on without a rewind makes two calls in one, and nothing can be cancelled between them
            operations.add("cancel")
        window = self._config.decoder.sliding_window or _Window()
        return Capabilities(
            level=Level.L4 if self.shows_kv else Level.L2,
            operations=frozenset(operations),
            boundaries=(window.window_size,) if window.window_size > 0 else (),
        )

    @override
    def open(self, settings: Settings, *, poison: float | None) -> GenaiInstance:
        """Fresh memory cannot be filled, and nothing here is paged."""
        return GenaiInstance(self)

    def generator(self) -> Generator:
        """A generator that has seen nothing: greedy, and as long as the context plus the token sampled last."""
        params = og.GeneratorParams(self._weights)
        params.set_search_options(max_length=self.max_context + 1, do_sample=False)
        generator: Generator = og.Generator(self._weights, params)
        return generator

    def ports(self, section: Literal["inputs", "outputs"]) -> Ports:
        """Those of the decoder."""
        decoder, state = self._config.decoder, "past" if section == "inputs" else "present"
        names = decoder.inputs if section == "inputs" else decoder.outputs
        keys, values = names[f"{state}_key_names"], names[f"{state}_value_names"]
        return [(keys % layer, values % layer) for layer in range(decoder.num_hidden_layers)]

    @override
    def recompute(self) -> Recompute | None:
        """Where raw ONNX Runtime cannot play the model, a fresh generator in parts."""
        return None if self.onnx is not None else self._recomputed

    @override
    def encode(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text)

    @override
    def describe(self) -> dict[str, object]:
        shared = self.options.share_buffer
        return {
            "onnxruntime-genai": _version(),
            "onnxruntime": version("onnxruntime"),
            "device": "cpu",
            "threads": self._threads,
            "share_buffer": "as configured" if shared is None else str(shared).lower(),
            "turns": self.options.turns,
        }

    @override
    def close(self) -> None:
        del self._weights

    def _recomputed(self, tokens: Sequence[int], schedule: Sequence[int] | None = None) -> NDArray[np.float32]:
        """Logits `[len(tokens), V]` by a generator that has seen nothing, in one append or in one for each part."""
        generator, at, rows = self.generator(), 0, []
        for count in schedule or [len(tokens)]:
            generator.append_tokens(np.array(tokens[at : at + count], np.int32))
            rows.append(np.array(generator.get_output("logits")[0], np.float32))
            at += count
        return np.concatenate(rows)

    def _overlay(self) -> dict[str, object]:
        """What differs from the model's own configuration."""
        session = {"intra_op_num_threads": self._threads, "inter_op_num_threads": 1}
        model: dict[str, object] = {"decoder": {"session_options": session}}
        if not hasattr(og.Generator, "token_count"):  # up to 0.11 an end token no model gives is allowed, and none ends
            model["eos_token_id"] = self.vocab_size
        overlay: dict[str, object] = {"model": model}
        if self.options.share_buffer is not None:
            overlay["search"] = {"past_present_share_buffer": self.options.share_buffer}
        return overlay

    def _plain(self) -> bool:
        """Whether every layer keeps all positions in order, fed as the matched arm feeds them: then KV rows can be compared."""
        if not self._config.decoder.plain:
            return False
        probe = self.generator()
        probe.append_tokens(np.zeros(1, np.int32))
        return "position_ids" not in self._config.decoder.inputs or probe.get_input("position_ids").ndim == 2


@dataclass
class _Session:
    """A live generator, the tokens of its sequence, and how many of them have run through the model."""

    generator: Generator
    context: Tokens = ()
    fed: int = 0


@dataclass
class _Seen:
    """What the generator showed of the model calls of one turn."""

    rows: list[int] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, generator: Generator) -> None:
        """The call that the generator made last."""
        self.rows.append(int(generator.get_input("input_ids").shape[-1]))
        self.logits.append(np.array(generator.get_output("logits")[0, -1], np.float32))


class GenaiInstance(Instance):
    """Generators by session name."""

    def __init__(self, subject: OnnxRuntimeGenai) -> None:
        self._subject = subject
        self._sessions: dict[str, _Session] = {}

    @override
    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        longest = self._subject.max_context
        if not 0 < len(prompt) <= longest:
            raise RefusedError(f"a prompt of {len(prompt)} tokens; give 1 to {longest}")
        if op.cancel_after == 0:
            return Observation(tokens=(), stop="cancelled")
        session = self._sessions.pop(op.session, None) or self.fresh()
        seen = self.play(session, op, tuple(prompt))
        self._sessions[op.session] = session  # not put back when the library raised: its state is then unknown
        return seen

    @override
    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        return self.play(self.fresh(), op, tuple(prompt))

    @override
    def new_session(self, session: str) -> None:
        self._sessions.pop(session, None)

    @override
    def rewind(self, session: str, n: int) -> bool:
        live = self._sessions.get(session)
        return live is not None and n <= live.fed and self.cut(live, n)

    def fresh(self) -> _Session:
        """A session that has seen nothing."""
        return _Session(self._subject.generator())

    def cut(self, session: _Session, n: int) -> bool:
        """Rewind the generator; False where the library refuses, which leaves a session to be dropped or tried again."""
        try:
            session.generator.rewind_to(n)
        except RuntimeError:
            return False
        session.context, session.fed = session.context[:n], min(session.fed, n)
        return True

    def play(self, session: _Session, op: Turn, prompt: Tokens) -> Observation:
        """One turn on a session, which then holds it."""
        reused, appended, declined = self._prepare(session, prompt)
        seeded = self.kv(session.generator, reused)
        seen = _Seen()
        session.generator.append_tokens(np.array(prompt[appended:], np.int32))
        seen.add(session.generator)
        late = (
            len(prompt) - reused - seen.rows[0]
        )  # the last sampled token, fed in a call of its own that no longer shows
        tokens: list[int] = []
        for step in range(self._steps(op, len(prompt))):
            self._sample(session.generator, tokens, seen, computed=step == 0)
        session.context = (*prompt, *tokens)
        session.fed = reused + late + sum(seen.rows)
        return Observation(
            tokens=tuple(tokens),
            stop="cancelled" if op.cancel_after is not None else "length",
            reused=reused,
            prefilled=len(prompt) - reused,
            declined=declined,
            rows=(late, *seen.rows) if late else tuple(seen.rows),
            logits=None if late else tuple(seen.logits),
            seeded=seeded,
            end=self.kv(session.generator, session.fed),
        )

    def kv(self, generator: Generator, n: int) -> Kv | None:
        """The first `n` positions of the live cache, copied; None where its layout does not show positions."""
        if not self._subject.shows_kv:
            return None
        if not n:
            return ()
        # After a rewind without a shared buffer the cut KV is the coming call's input, and the old output is stale.
        past = self._subject.ports("inputs")
        if generator.get_input(past[0][0]).shape[2] == n:
            return _rows(generator.get_input, past, n)
        return _rows(generator.get_output, self._subject.ports("outputs"), n)

    def _sample(self, generator: Generator, tokens: list[int], seen: _Seen, *, computed: bool) -> None:
        """One more token. `computed`: the library has its logits already, else it feeds the former token first.

        An end token stops the library before it joins the sequence: it is appended by hand when the turn goes on.
        """
        length = len(generator.get_sequence(0))
        if tokens and generator.is_done():
            generator.append_tokens(np.array(tokens[-1:], np.int32))
            seen.add(generator)
            length, computed = length + 1, True
        generator.generate_next_token()
        if not computed:
            seen.add(generator)
        sequence = generator.get_sequence(0)
        tokens.append(int(sequence[-1]) if len(sequence) > length else int(np.argmax(seen.logits[-1])))

    def _prepare(self, session: _Session, prompt: Tokens) -> tuple[int, int, bool]:
        """Make the generator hold a prefix of `prompt`: (positions reused, first token to append, rewind refused)."""
        context = session.context
        if self._subject.appends and 0 < len(context) < len(prompt) and prompt[: len(context)] == context:
            return (
                session.fed,
                len(session.generator.get_sequence(0)),
                False,
            )  # an end token it left out is appended too
        n = min(common_prefix(context, prompt), session.fed, len(prompt) - 1)
        if not context or self.cut(session, n):
            return n, n, False
        session.generator, session.context, session.fed = self._subject.generator(), (), 0  # refused: begin anew
        return 0, 0, True

    def _steps(self, op: Turn, length: int) -> int:
        """Tokens to sample: as asked, as long as what is fed stays within the context and the stream is not cancelled."""
        most = min(op.max_new_tokens, self._subject.max_context + 1 - length)
        return most if op.cancel_after is None else min(most, op.cancel_after)


def _rows(get: Callable[[str], Array], ports: Ports, n: int) -> Kv:
    return tuple((np.array(get(key)[0, :, :n]), np.array(get(value)[0, :, :n])) for key, value in ports)


def _config(model: Path) -> _Model:
    file = model / "genai_config.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Config).model
    except OSError as error:
        raise SubjectError(
            f"{file}: cannot be read ({error.strerror}); give a folder that onnxruntime-genai loads"
        ) from error
    except msgspec.DecodeError as error:
        raise SubjectError(
            f"{file}: not a configuration of onnxruntime-genai ({error}); export the model again"
        ) from error


def _version() -> str:
    return version("onnxruntime-genai")
