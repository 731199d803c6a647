"""The engine as a caller sees it: sessions, cold and warm, bad input, and what is true afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warmcold.engine import (
    BackendError,
    CutReason,
    Engine,
    GateReason,
    ModelError,
    ProbeEvent,
    SamplingParams,
    StopReason,
    UsageError,
)
from warmcold.engine.engine import EngineKeywords, EngineOptions
from warmcold.fixtures import closed_forms

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
SNAP = MODELS / "snap-gqa-shared"
ORACLE = closed_forms.load(SNAP)
assert ORACLE is not None
PROMPT = (1, 7, 3, 60, 22, 5, 9)


@pytest.fixture(params=["native", "ort"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Small pages, chunks and buckets, so that a short conversation crosses all of them."""
    with Engine.load(SNAP, backend=request.param, page_size=4, pages=32, chunk_size=3, min_capacity=4) as loaded:
        yield loaded


def answer(prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """What the model means."""
    return tuple(ORACLE.greedy(prompt, count))


def params(count: int, **more: Any) -> SamplingParams:
    """Greedy, `count` tokens."""
    return SamplingParams(max_new_tokens=count, **more)


def test_a_plain_extension_reuses_all_but_the_last_token(engine: Engine) -> None:
    """A prompt that is the previous context plus one token reuses len - 2 positions and prefills 2."""
    session = engine.session()
    first = session.generate(PROMPT, params(5))
    assert first.tokens == answer(PROMPT, 5)
    prompt = (*PROMPT, *first.tokens, 4)
    second = session.generate(prompt, params(3))
    assert (second.reused, second.prefilled, second.reason) == (len(prompt) - 2, 2, CutReason.CURRENT)
    assert second.tokens == answer(prompt, 3)


def test_the_schedule_is_reported(engine: Engine) -> None:
    """Prefill in chunks, then one row a token; the last sampled token is not fed."""
    assert engine.generate(PROMPT, params(3)).calls == (3, 3, 1, 1, 1)
    assert engine.generate((2, 3), params(0)).calls == (2,)


def test_a_cold_turn_reuses_and_leaves_nothing(engine: Engine) -> None:
    """`reuse=False` looks nothing up, publishes nothing and touches nothing."""
    engine.generate(PROMPT, params(4))
    before = engine.observe()
    cold = engine.generate(PROMPT, params(4), reuse=False)
    assert (cold.reused, cold.gate, cold.tokens) == (0, GateReason.REUSE_OFF, answer(PROMPT, 4))
    after = engine.observe()
    assert (after.entries, after.holders) == (before.entries, before.holders)


def test_a_cold_turn_leaves_the_session_alone(engine: Engine) -> None:
    """What a session retains survives a turn that it ran cold."""
    session = engine.session()
    first = session.generate(PROMPT, params(4))
    session.generate((9, 9, 9), params(1), reuse=False)
    again = session.generate((*PROMPT, *first.tokens, 1), params(1))
    assert again.reused == len(PROMPT) + 3


def test_requests_without_a_session_share_the_prefix_cache(engine: Engine) -> None:
    """The second identical request seeds from pages and recomputes only the position whose logits it wants."""
    engine.generate(PROMPT, params(2))
    again = engine.generate((*PROMPT, *answer(PROMPT, 2)), params(2))
    assert (again.source, again.reused) == ("paged", len(PROMPT) + 1)


def test_salts_never_share(engine: Engine) -> None:
    """The same tokens under another salt are computed from nothing, and stay apart afterwards."""
    engine.generate(PROMPT, params(2), salt="a")
    assert engine.generate(PROMPT, params(2), salt="b").reused == 0
    assert engine.generate((*PROMPT, *answer(PROMPT, 2)), params(2), salt="a").reused > 0


def test_what_cannot_be_digested_shares_with_nobody(engine: Engine) -> None:
    """A salt without a canonical form: nothing is looked up, published or retained, and the turn is right."""
    session, salt = engine.session(), object()
    for _ in range(2):
        reply = session.generate(PROMPT, params(2), salt=salt)
        assert (reply.reused, reply.gate, reply.tokens) == (0, GateReason.NO_IDENTITY, answer(PROMPT, 2))
    assert engine.observe().entries == ()


def test_rewind_is_exact_or_declines(engine: Engine) -> None:
    """To fewer positions: True. To as many as held: True. To more: False, and nothing changed."""
    session = engine.session()
    session.generate(PROMPT, params(3))
    held = len(PROMPT) + 2
    assert session.rewind(held)
    assert not session.rewind(held + 1)
    assert session.rewind(4)
    reply = session.generate((*PROMPT[:4], 8, 8), params(2))
    assert (reply.reused, reply.tokens) == (4, answer((*PROMPT[:4], 8, 8), 2))
    with pytest.raises(UsageError, match="-1"):
        session.rewind(-1)


def test_two_sessions_interleave_step_by_step(engine: Engine) -> None:
    """Streams of two sessions, advanced in turn, give what each gives alone."""
    other = (5, 4, 3, 2, 1, 0)
    left, right = engine.session().stream(PROMPT, params(6)), engine.session().stream(other, params(6))
    while next(left, None) is not None or next(right, None) is not None:
        engine.check_invariants()
    for turn in (left, right):
        for _ in turn:
            pass
    assert (left.completion.tokens, right.completion.tokens) == (answer(PROMPT, 6), answer(other, 6))


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_closing_a_stream_keeps_what_was_fed(engine: Engine, steps: int) -> None:
    """Cancelled at any step boundary, the session's next turn reuses what ran and is right; pages are accounted for."""
    session = engine.session()
    turn = session.stream(PROMPT, params(6))
    fed = sum(next(turn).rows for _ in range(steps))
    turn.close()
    engine.check_invariants()
    if steps:
        assert turn.completion.stop is StopReason.CANCELLED
    reply = session.generate(PROMPT, params(6))
    assert reply.reused == min(fed, len(PROMPT) - 1)
    assert reply.tokens == answer(PROMPT, 6)


def test_an_exactly_full_context_gives_one_token(engine: Engine) -> None:
    """A prompt as long as the context is answered with one token and the reason; one longer is refused."""
    small = engine.fresh(max_context=7)
    reply = small.generate(PROMPT, params(5))
    assert (reply.tokens, reply.stop) == (answer(PROMPT, 1), StopReason.CONTEXT_FULL)
    with pytest.raises(UsageError, match="8 tokens, the context holds 7"):
        small.generate((*PROMPT, 1), params(1))


def test_stop_tokens_end_a_turn(engine: Engine) -> None:
    """The stop token is part of the reply, unfed, and the reason says so."""
    third = answer(PROMPT, 3)[2]
    first = answer(PROMPT, 3).index(third)
    reply = engine.generate(PROMPT, params(9, stop_token_ids=(third,)))
    assert (reply.tokens, reply.stop) == (answer(PROMPT, first + 1), StopReason.STOP_TOKEN)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [((), "empty"), ((1, 61), r"prompt\[1\] is 61: token ids of this model are 0 to 60"), ((-1,), r"prompt\[0\] is -1"),
     ((1, 2.5), r"prompt\[1\] is 2.5"), ((True,), "True"), (("a",), "'a'")],
)  # fmt: skip
def test_a_bad_prompt_changes_nothing(engine: Engine, prompt: Any, message: str) -> None:
    """UsageError with the value and the bound; the session's next turn reuses as if nothing had happened."""
    session = engine.session()
    first = session.generate(PROMPT, params(2))
    with pytest.raises(UsageError, match=message):
        session.generate(prompt, params(1))
    assert session.generate((*PROMPT, *first.tokens, 1), params(1)).reused == len(PROMPT) + 1


def test_one_turn_of_a_session_at_a_time(engine: Engine) -> None:
    """A second turn while one runs is refused; the running one is not disturbed."""
    session = engine.session()
    turn = session.stream(PROMPT, params(3))
    next(turn)
    with pytest.raises(UsageError, match="another turn"):
        session.generate(PROMPT, params(1))
    for _ in turn:
        pass
    assert turn.completion.tokens == answer(PROMPT, 3)


def test_a_closed_session_says_so(engine: Engine) -> None:
    """And closing twice is fine."""
    session = engine.session()
    session.close()
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.generate(PROMPT, params(1))


def test_the_completion_is_there_at_the_end(engine: Engine) -> None:
    """Asked for earlier it says what to do."""
    turn = engine.stream(PROMPT, params(1))
    with pytest.raises(UsageError, match="iterate"):
        _ = turn.completion


def test_inputs_and_adapters_that_the_model_lacks_are_refused(engine: Engine) -> None:
    """Never ignored: they would condition the KV."""
    for condition in ({"inputs": {"image": np.zeros(1)}}, {"adapter": "lora"}):
        with pytest.raises(UsageError, match=r"image|lora"):
            engine.generate(PROMPT, params(1), **condition)


@pytest.mark.parametrize("point", ["feed", "seeded", "mirror", "publish"])
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_failure_inside_a_turn_is_not_remembered(engine: Engine, point: str, nth: int) -> None:
    """Whatever raises at any point: pages go back, nothing is masked, and the same session's next turn is right."""
    calls = 0
    armed = False

    def probe(event: ProbeEvent) -> object:
        nonlocal calls
        if armed and event.point == point:
            calls += 1
            if calls == nth:
                raise RuntimeError("planted")
        return None

    probed = engine.fresh(probe=probe)
    session = probed.session()
    first = session.generate(PROMPT, params(2))
    armed = True
    prompt = (*PROMPT, *first.tokens, 3, 1, 4, 1, 5)
    with pytest.raises(BackendError, match="planted") if _reaches(point, nth) else nullcontext():
        session.generate(prompt, params(4))
    armed = False
    probed.check_invariants()
    assert session.generate(prompt, params(4)).tokens == answer(prompt, 4)
    assert probed.session().generate(prompt, params(4)).tokens == answer(prompt, 4)
    probed.check_invariants()
    probed.cache.clear()
    assert probed.pool.free == probed.pool.total


def _reaches(point: str, nth: int) -> bool:
    """A turn is seeded once; the other points come at least four times."""
    return point != "seeded" or nth == 1


@pytest.mark.parametrize("pages", [0, 1, 2, 3, 5])
def test_a_small_pool_costs_speed_only(engine: Engine, pages: int) -> None:
    """With too few pages generation goes on, unpaged or partly mirrored; the reason is reported, nothing leaks."""
    small = engine.fresh(pages=pages)
    for prompt in (PROMPT, (4, 4, 4, 4, 4, 4, 4, 4, 4), PROMPT):
        reply = small.generate(prompt, params(5))
        assert reply.tokens == answer(prompt, 5)
        small.check_invariants()
        if pages < 3:
            assert reply.gate is not None or reply.mirror_stop is not None


def test_a_decoder_without_state_sees_the_whole_context_each_step() -> None:
    """No KV: nothing is reused, the reason says so, and the answer is right."""
    for backend in ("native", "ort"):
        with Engine.load(MODELS / "snap-stateless", backend=backend, chunk_size=2) as engine:
            session = engine.session()
            first = session.generate(PROMPT, params(3))
            assert first.tokens == answer(PROMPT, 3)
            again = session.generate((*PROMPT, *first.tokens), params(2))
            assert (again.reused, again.reason, again.gate) == (0, CutReason.STATELESS, GateReason.NO_KV)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"backend": "tpu"}, "backend is 'tpu'"), ({"numerics": "exact"}, "numerics"), ({"page_size": 0}, "page_size is 0"),
     ({"pages": -1}, "pages is -1"), ({"chunk_size": 0}, "chunk_size"), ({"colour": 1}, "colour"),
     ({"backend": "ort", "device": "tpu"}, "tpu"), ({"backend": "native", "device": "tpu"}, "tpu")],
)  # fmt: skip
def test_a_bad_option_is_a_usage_error(options: dict[str, Any], message: str) -> None:
    """With the value and what is allowed; an unknown option is an error."""
    with pytest.raises(UsageError, match=message):
        Engine.load(SNAP, **options)


def test_every_option_may_be_given_as_a_keyword() -> None:
    """What type checkers accept at `Engine.load` is what there is."""
    assert set(EngineKeywords.__annotations__) == {field.name for field in fields(EngineOptions)}


def test_a_runtime_is_imported_only_when_asked_for() -> None:
    """A native engine runs where ONNX Runtime and CuPy are not installed."""
    code = (
        "import sys; from warmcold.engine import Engine; "
        f"Engine.load({str(SNAP)!r}, backend='native').generate((1, 2)); "
        "sys.exit(bool({'onnxruntime', 'cupy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_model_is_a_model_error(tmp_path: Path) -> None:
    """With the path, and what was expected there."""
    with pytest.raises(ModelError, match="no such file"):
        Engine.load(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"expected one \.onnx file"):
        Engine.load(tmp_path)


def test_fresh_engines_share_weights_and_nothing_else(engine: Engine) -> None:
    """A fresh engine knows nothing of the first one's prefixes; options that belong to the weights cannot change."""
    engine.generate(PROMPT, params(2))
    fresh = engine.fresh()
    assert fresh.observe().entries == ()
    assert fresh.generate(PROMPT, params(2)).reused == 0
    with pytest.raises(UsageError, match="numerics"):
        engine.fresh(numerics="fast")
