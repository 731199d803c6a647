"""onnxruntime-genai as a subject: one `Generator` for each session, kept between turns and rewound by the library itself.

Every turn does what a user of the library does: rewind to what the prompt shares with the generator's sequence, append the
rest, generate. With `turns=append` a prompt that only goes on from the sequence is appended without a rewind, which the
library calls continuous decoding. What is observed is read from the live generator: the rows, logits and KV of its last
model call. The matched arm is raw ONNX Runtime on the same file, so providers are cleared: both run on the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
from numpy.typing import NDArray

from ..arms.compare import common_prefix
from ..contract.errors import RefusedError, ScenarioError, SubjectError
from ..contract.observation import Kv, Observation, Tokens
from ..contract.scenario import Settings, Turn
from ..contract.subject import AnyLoop, Capabilities, Instance, Recompute, ReuseModel
from ..contract.verdict import Level
from ..conversations.texts import encoder

_BUFFERS = {"": None, "true": True, "false": False}
_TURNS = ("rewind", "append")


class OnnxRuntimeGenai:
    """A model directory with a `genai_config.json`.

    Options: `share_buffer` true or false, past and present KV in one buffer (default: as the configuration says); `turns`
    rewind or append, how a prompt that only goes on is fed; `max_context` in positions, because a shared buffer is allocated
    whole. SubjectError for a directory or option that is no good.
    """

    name = "onnxruntime_genai"

    def __init__(
        self, model: Path | str, *, threads: int = 2, share_buffer: str = "", turns: str = "rewind",
        max_context: str = "2048",
    ) -> None:  # fmt: skip
        self.model = Path(model)
        self._config = _config(self.model)
        _one_of("share_buffer", share_buffer, _BUFFERS)
        _one_of("turns", turns, _TURNS)
        if not hasattr(og.Config, "overlay"):
            raise SubjectError(f"onnxruntime-genai {_version()} shows too little; install 0.9 or later")
        if not max_context.isdecimal() or int(max_context) < 1:
            raise SubjectError(f"max_context={max_context}: give a number of positions, 1 or more")
        self.appends = turns == "append"
        self._threads, self._share_buffer = threads, share_buffer
        # One less than the library's: it refuses to sample when its sequence is full, though all of it was fed.
        self.max_context = min(int(max_context), int(self._config["context_length"]) - 1)
        self.vocab_size = int(self._config["vocab_size"])
        self.stateful = True
        try:
            config = og.Config(str(self.model))
            config.clear_providers()
            config.overlay(json.dumps(self._overlay(_BUFFERS[share_buffer])))
            self._weights = og.Model(config)
            self.shows_kv = self._plain()
        except RuntimeError as error:
            raise SubjectError(f"{self.model}: onnxruntime-genai {_version()} cannot run it: {error}") from error
        self.onnx = self.model if self.shows_kv else None
        window = self._config["decoder"].get("sliding_window", {}).get("window_size", 0)
        self.capabilities = Capabilities(
            level=Level.L4 if self.shows_kv else Level.L2,
            # Going on without a rewind makes two model calls in one, and nothing can be cancelled between them.
            operations=frozenset(
                ("sessions", "new", "rewind") if self.appends else ("sessions", "new", "rewind", "cancel")
            ),
            reuse=ReuseModel(scope="session"),
            boundaries=(window,) if window > 0 else (),
        )

    def open(self, settings: Settings, *, poison: float | None) -> GenaiInstance:
        """See `Subject.open`. Fresh memory cannot be filled, and nothing here is paged."""
        return GenaiInstance(self)

    def generator(self) -> Any:
        """A generator that has seen nothing: greedy, and as long as the context plus the token sampled last."""
        params = og.GeneratorParams(self._weights)
        params.set_search_options(max_length=self.max_context + 1, do_sample=False)
        return og.Generator(self._weights, params)

    def ports(self, section: str) -> list[tuple[str, str]]:
        """Names of (keys, values) of each layer, of the decoder's `inputs` or `outputs`."""
        names, state = self._config["decoder"][section], "past" if section == "inputs" else "present"
        layers = range(self._config["decoder"]["num_hidden_layers"])
        return [(names[f"{state}_key_names"] % i, names[f"{state}_value_names"] % i) for i in layers]

    def loop(self) -> AnyLoop | None:
        """See `Subject.loop`: raw ONNX Runtime is below the library."""
        return None

    def recompute(self) -> Recompute | None:
        """See `Subject.recompute`: raw ONNX Runtime likewise; where it cannot play the model, a fresh generator in parts."""
        return None if self.onnx is not None else self._recomputed

    def encode(self, text: str) -> Sequence[int]:
        """See `Subject.encode`; by the model's own `tokenizer.json`."""
        try:
            return encoder(self.model)(text)
        except ScenarioError as error:
            raise RefusedError(str(error)) from error

    def describe(self) -> dict[str, Any]:
        """See `Subject.describe`."""
        return {
            "onnxruntime-genai": _version(),
            "onnxruntime": version("onnxruntime"),
            "device": "cpu",
            "threads": self._threads,
            "share_buffer": self._share_buffer or "as configured",
            "turns": "append" if self.appends else "rewind",
        }

    def close(self) -> None:
        """See `Subject.close`."""
        del self._weights

    def _recomputed(self, tokens: Sequence[int], schedule: Sequence[int] | None = None) -> NDArray[np.float32]:
        """Logits `[len(tokens), V]` by a generator that has seen nothing, in one append or in one for each part."""
        generator, at, rows = self.generator(), 0, []
        for count in schedule or [len(tokens)]:
            generator.append_tokens(np.array(tokens[at : at + count], np.int32))
            rows.append(np.array(generator.get_output("logits")[0], np.float32))
            at += count
        return np.concatenate(rows)

    def _overlay(self, share_buffer: bool | None) -> dict[str, Any]:
        """What differs from the model's own configuration."""
        session = {"intra_op_num_threads": self._threads, "inter_op_num_threads": 1}
        overlay: dict[str, Any] = {"model": {"decoder": {"session_options": session}}}
        if not hasattr(
            og.Generator, "token_count"
        ):  # up to 0.11 an end token that no model gives is allowed, and none ends
            overlay["model"]["eos_token_id"] = self.vocab_size
        if share_buffer is not None:
            overlay["search"] = {"past_present_share_buffer": share_buffer}
        return overlay

    def _plain(self) -> bool:
        """Whether every layer keeps all positions in order, fed as the matched arm feeds them: then KV rows can be compared."""
        decoder = self._config["decoder"]
        if "sliding_window" in decoder or "layer_types" in decoder:
            return False
        probe = self.generator()
        probe.append_tokens(np.zeros(1, np.int32))
        return "position_ids" not in decoder["inputs"] or probe.get_input("position_ids").ndim == 2


@dataclass
class _Session:
    """A live generator, the tokens of its sequence, and how many of them have run through the model."""

    generator: Any
    context: Tokens = ()
    fed: int = 0


@dataclass
class _Seen:
    """What the generator showed of the model calls of one turn."""

    rows: list[int] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, generator: Any) -> None:
        """The call that the generator made last."""
        self.rows.append(int(generator.get_input("input_ids").shape[-1]))
        self.logits.append(np.array(generator.get_output("logits")[0, -1], np.float32))


class GenaiInstance(Instance):
    """Generators by session name."""

    def __init__(self, subject: OnnxRuntimeGenai) -> None:
        self._subject = subject
        self._sessions: dict[str, _Session] = {}

    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """See `Instance.turn`."""
        longest = self._subject.max_context
        if not 0 < len(prompt) <= longest:
            raise RefusedError(f"a prompt of {len(prompt)} tokens; give 1 to {longest}")
        if op.cancel_after == 0:
            return Observation(tokens=(), stop="cancelled")
        session = self._sessions.pop(op.session, None) or self.fresh()
        seen = self.play(session, op, tuple(prompt))
        self._sessions[op.session] = session  # not put back when the library raised: its state is then unknown
        return seen

    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """See `Instance.cold`."""
        return self.play(self.fresh(), op, tuple(prompt))

    def new_session(self, session: str) -> None:
        """See `Instance.new_session`."""
        self._sessions.pop(session, None)

    def rewind(self, session: str, n: int) -> bool:
        """See `Instance.rewind`."""
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

    def kv(self, generator: Any, n: int) -> Kv | None:
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

    def _sample(self, generator: Any, tokens: list[int], seen: _Seen, *, computed: bool) -> None:
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


def _rows(get: Any, ports: Sequence[tuple[str, str]], n: int) -> Kv:
    return tuple((np.array(get(key)[0, :, :n]), np.array(get(value)[0, :, :n])) for key, value in ports)


def _config(model: Path) -> Mapping[str, Any]:
    file = model / "genai_config.json"
    try:
        config: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))["model"]
    except OSError as error:
        raise SubjectError(
            f"{file}: cannot be read ({error.strerror}); give a folder that onnxruntime-genai loads"
        ) from error
    except (ValueError, KeyError) as error:
        raise SubjectError(
            f"{file}: not a configuration of onnxruntime-genai ({error!r}); export the model again"
        ) from error
    return config


def _one_of(option: str, value: str, known: Sequence[str] | Mapping[str, Any]) -> None:
    if value not in known:
        raise SubjectError(f"{option}={value}: give {' or '.join(name for name in known if name)}")


def _version() -> str:
    return version("onnxruntime-genai")
