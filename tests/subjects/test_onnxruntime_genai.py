"""The adapter of onnxruntime-genai: it passes on a healthy library, and every fault planted around it is found."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from warmcold.harness.arms.arms import Arms
from warmcold.harness.arms.oracle import BareLoop, RawModel
from warmcold.harness.contract.errors import RefusedError, SubjectError
from warmcold.harness.contract.observation import Kv, Observation, Tokens
from warmcold.harness.contract.scenario import Settings, Turn
from warmcold.harness.contract.verdict import Level, Verdict
from warmcold.harness.run.events import LegFinished
from warmcold.harness.run.player import Effort
from warmcold.harness.run.target import Target
from warmcold.harness.run.verify import judged as conclude

pytestmark = pytest.mark.genai

ZOO = Path(__file__).parents[2] / "fixtures" / "zoo"
MODEL = ZOO / "llama-genai-fp32"
ENDS = ZOO / "llama-tied-l3rope-genai-fp32"
END_AT_ONCE = (268, 220, 225)
"""A prompt to which `ENDS` answers with its end token."""


@pytest.fixture(scope="module")
def genai() -> ModuleType:
    """The module under test, imported late: the library is optional."""
    return importlib.import_module("warmcold.harness.subjects.onnxruntime_genai")


def turn(name: str = "t0", **fields: Any) -> Turn:
    """A turn on the session that is there by default."""
    return Turn(name=name, **fields)


def opened(subject: Any) -> Any:
    """An instance of a subject."""
    return subject.open(Settings(), poison=None)


def judged(subject: Any, examples: int) -> LegFinished:
    """What the harness concludes of generated conversations; raw ONNX Runtime is matched arm and oracle."""
    assert subject.onnx is not None
    target = Target(model=str(subject.model), subject="onnxruntime_genai")
    return conclude(target, Effort(examples=examples, threads=1), arms=Arms.of(subject, threads=1))


@pytest.mark.parametrize("share_buffer", ["true", "false"])
def test_a_healthy_library_passes_at_the_highest_level_it_shows(genai: ModuleType, share_buffer: str) -> None:
    """Rewound and appended, logits and KV are bit for bit those of raw ONNX Runtime, with one KV buffer and with two."""
    seen = judged(genai.OnnxRuntimeGenai(MODEL, threads=1, share_buffer=share_buffer), examples=12)
    assert seen.verdict is Verdict.PASS, seen.findings
    assert seen.count.reused_turns > 0
    for check in ("logits", "kv_seed", "kv_end", "tokens", "cold", "oracle"):
        assert seen.checks[check].compared > 0, check


def test_a_prompt_is_rewound_to_what_it_shares_and_only_the_rest_is_fed(genai: ModuleType) -> None:
    """Reuse is the common prefix, at most what was fed, and the rows are those of the library's own calls."""
    live = opened(genai.OnnxRuntimeGenai(MODEL, threads=1, share_buffer="true"))
    first = live.turn(turn(max_new_tokens=3), (11, 12, 13, 14))
    assert (first.reused, first.prefilled, first.rows) == (0, 4, (4, 1, 1))
    longer = live.turn(turn("t1", max_new_tokens=2), (11, 12, 13, 14, *first.tokens, 21))
    assert (longer.reused, longer.prefilled, longer.rows) == (6, 2, (2, 1))
    other = live.turn(turn("t2", max_new_tokens=1), (11, 12, 30, 31))
    assert (other.reused, other.prefilled, other.rows) == (2, 2, (2,))
    same = live.turn(turn("t3", max_new_tokens=0), (11, 12, 30, 31))
    assert (same.reused, same.rows, same.tokens) == (3, (1,), ())


def test_end_tokens_do_not_end_a_turn(genai: ModuleType) -> None:
    """A reply goes on past the end token, and is the one of raw ONNX Runtime on the same row counts."""
    seen = opened(genai.OnnxRuntimeGenai(ENDS, threads=1)).turn(turn(max_new_tokens=4), END_AT_ONCE)
    raw = RawModel(ENDS, threads=1)
    loop = BareLoop(raw.ports, raw.run)
    logits, past = loop.step(loop.empty(), END_AT_ONCE)
    expected = [int(np.argmax(logits[-1]))]
    while len(expected) < 4:
        logits, past = loop.step(past, expected[-1:])
        expected.append(int(np.argmax(logits[-1])))
    assert seen.tokens == tuple(expected)
    assert seen.rows == (3, 1, 1, 1)


def test_a_cancelled_turn_ran_so_many_model_calls(genai: ModuleType) -> None:
    """Cancelled after n calls it has n tokens; cancelled before the first, nothing has changed."""
    live = opened(genai.OnnxRuntimeGenai(MODEL, threads=1))
    assert live.turn(turn(cancel_after=0), (11, 12)).rows is None
    seen = live.turn(turn(max_new_tokens=5, cancel_after=2), (11, 12, 13))
    assert (seen.reused, seen.rows, len(seen.tokens)) == (0, (3, 1), 2)


def test_the_context_may_be_filled_to_its_last_position(genai: ModuleType) -> None:
    """A prompt as long as the context gives one token, and a longer one is refused."""
    live = opened(genai.OnnxRuntimeGenai(MODEL, threads=1, max_context="8"))
    assert len(live.turn(turn(max_new_tokens=4), tuple(range(20, 28))).tokens) == 1
    assert len(live.turn(turn(max_new_tokens=4), tuple(range(20, 26))).tokens) == 3
    for prompt in ((), tuple(range(20, 29))):
        with pytest.raises(RefusedError, match="give 1 to 8"):
            live.turn(turn(), prompt)


def test_a_refused_rewind_begins_anew_and_says_so(genai: ModuleType) -> None:
    """Where the library refuses, the turn computes the whole prompt on a new generator."""
    live = opened(genai.OnnxRuntimeGenai(MODEL, threads=1))
    live.turn(turn(), (11, 12, 13))
    live.cut = lambda session, n: False
    seen = live.turn(turn("t1", max_new_tokens=1), (11, 12, 40))
    assert (seen.declined, seen.reused, seen.rows) == (True, 0, (3,))


def test_the_adapter_says_what_is_wrong_with_a_model_or_an_option(genai: ModuleType, tmp_path: Path) -> None:
    """A SubjectError names the file or option, its value, and what to give."""
    with pytest.raises(SubjectError, match=r"genai_config\.json"):
        genai.OnnxRuntimeGenai(tmp_path)
    for option, value in (("share_buffer", "yes"), ("turns", "both"), ("max_context", "0")):
        with pytest.raises(SubjectError, match=f"{option}={value}: give"):
            genai.OnnxRuntimeGenai(MODEL, **{option: value})


def test_it_declares_what_it_shows(genai: ModuleType) -> None:
    """Level, operations and versions, for reports."""
    subject = genai.OnnxRuntimeGenai(MODEL, threads=1)
    assert subject.capabilities.level is Level.L4
    assert subject.capabilities.operations == {"sessions", "new", "rewind", "cancel"}
    assert (subject.vocab_size, subject.max_context) == (320, 511)
    assert {"onnxruntime-genai", "onnxruntime", "device"} <= set(subject.describe())
    assert len(subject.encode("ab")) > 0
    subject.close()


Fault = Callable[[ModuleType], type]


def swapped(genai: ModuleType) -> type:
    """Keys and values change places in what it shows."""

    class Swapped(genai.GenaiInstance):  # type: ignore[name-defined,misc]
        def kv(self, generator: Any, n: int) -> Kv | None:
            shown: Kv = super().kv(generator, n)
            return tuple((values, keys) for keys, values in shown)

    return Swapped


def one_late(genai: ModuleType) -> type:
    """After the cut at n it feeds from n + 1."""

    class OneLate(genai.GenaiInstance):  # type: ignore[name-defined,misc]
        def _prepare(self, session: Any, prompt: Tokens) -> tuple[int, int, bool]:
            reused, appended, declined = super()._prepare(session, prompt)
            return reused, appended + (0 < reused < len(prompt) - 1), declined

    return OneLate


def stale_tail(genai: ModuleType) -> type:
    """The bookkeeping is cut, the generator is not rewound."""

    class StaleTail(genai.GenaiInstance):  # type: ignore[name-defined,misc]
        def cut(self, session: Any, n: int) -> bool:
            session.context, session.fed = session.context[:n], min(session.fed, n)
            return True

    return StaleTail


def wrong_session(genai: ModuleType) -> type:
    """A session gets the generator of another one."""

    class WrongSession(genai.GenaiInstance):  # type: ignore[name-defined,misc]
        def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
            seen: Observation = super().turn(op, prompt)
            live = list(self._sessions.values())
            generators = [session.generator for session in live]
            for session, generator in zip(live, generators[1:] + generators[:1], strict=True):
                session.generator = generator
            return seen

    return WrongSession


FAULTS: dict[str, tuple[Fault, set[str]]] = {
    "keys and values swapped": (swapped, {"kv_seed", "kv_end"}),
    "one token late": (one_late, {"tokens", "kv_end", "cold"}),
    "stale tail": (stale_tail, {"kv_end", "logits"}),
    "wrong session": (wrong_session, {"kv_seed", "kv_end"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_planted_around_the_library_is_found(
    genai: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wrapper that does one thing wrong fails, by a check that compares what went wrong."""
    plant, expected = FAULTS[name]
    monkeypatch.setattr(genai, "GenaiInstance", plant(genai))
    seen = judged(genai.OnnxRuntimeGenai(MODEL, threads=1, share_buffer="true"), examples=30)
    assert seen.verdict is Verdict.FAIL
    assert expected & {finding.check for _, finding in seen.findings}, seen.findings


def test_a_session_is_rewound_by_the_library(genai: ModuleType) -> None:
    """A rewind that the library does is True, one beyond what was fed False; the next turn reuses no more than is left."""
    live = opened(genai.OnnxRuntimeGenai(MODEL, threads=1, share_buffer="true"))
    assert not live.rewind("s", 0)
    live.turn(turn(max_new_tokens=3), (11, 12, 13, 14))
    assert not live.rewind("s", 7)
    assert live.rewind("s", 2)
    assert live.turn(turn("t1", max_new_tokens=1), (11, 12, 13, 14)).reused == 2
    live.new_session("s")
    assert live.turn(turn("t2", max_new_tokens=1), (11, 12, 13, 14)).reused == 0


def test_going_on_without_a_rewind_is_an_option(genai: ModuleType) -> None:
    """With `turns=append` only what is new is handed over; that the library then feeds its last token is its own affair."""
    live = opened(genai.OnnxRuntimeGenai(MODEL, threads=1, share_buffer="true", turns="append"))
    first = live.turn(turn(max_new_tokens=3), (11, 12, 13, 14))
    seen = live.turn(turn("t1", max_new_tokens=1), (11, 12, 13, 14, *first.tokens, 21, 22))
    assert (seen.reused, seen.prefilled, seen.rows, seen.logits) == (6, 3, (1, 2), None)


def test_it_refuses_what_it_does_not_offer(genai: ModuleType) -> None:
    """Forking is refused with a type of its own, not by falling over."""
    live = opened(genai.OnnxRuntimeGenai(MODEL, threads=1))
    with pytest.raises(RefusedError, match="fork"):
        live.fork("s", "t")
