"""`warmcold bench`: the arithmetic of its figures, and that what it times is what it says. No clock is judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from warmcold.engine import Completion, Engine, ReuseSource, Session, UsageError
from warmcold.engine.bench.arms import EngineArm, Prompts, planted
from warmcold.engine.bench.cli import app, report, table
from warmcold.engine.bench.figures import Figure, Sizes, cache_bytes, compared, interleaved
from warmcold.engine.bench.memory import memory, traced_peak
from warmcold.engine.bench.raw import RawLoop
from warmcold.engine.kv.layout import KvGeometry, LayerKv
from warmcold.fixtures import closed_forms

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
SHARED, GROWING = "snap-gqa-shared", "snap-decomposed"


@pytest.fixture(params=[("native", SHARED), ("native", GROWING), ("ort", SHARED), ("ort", GROWING)], ids="-".join)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each backend on each KV regime, with pages and chunks so small that a short request crosses several."""
    backend, name = request.param
    with Engine.load(MODELS / name, backend=backend, page_size=4, pages=32, chunk_size=3, min_capacity=4) as loaded:
        yield loaded


@pytest.fixture
def completions(monkeypatch: pytest.MonkeyPatch) -> list[Completion]:
    """Every turn that a session finishes."""
    seen: list[Completion] = []
    real = Session.generate

    def generate(self: Session, *arguments: Any, **request: Any) -> Completion:
        seen.append(real(self, *arguments, **request))
        return seen[-1]

    monkeypatch.setattr(Session, "generate", generate)
    return seen


def arm_of(engine: Engine) -> EngineArm:
    """The engine under measurement."""
    return EngineArm("arm", engine, Prompts(engine.spec.vocab_size))


def some(**changes: Any) -> Figure:
    """A figure with fields changed."""
    fields: dict[str, Any] = {
        "name": "decode step", "arm": "ort", "against": "raw", "samples": (1.0, 4.0, 2.0), "ours": 30.0, "theirs": 15.0
    }  # fmt: skip
    return Figure(**{**fields, **changes})


def test_a_ratio_is_taken_within_a_round() -> None:
    """A machine that slows down between two rounds slows both sides: the ratios stay what they are."""
    figure = compared("x", "a", "b", [2.0, 20.0, 6.0], [1.0, 10.0, 2.0])
    assert figure.samples == (2.0, 2.0, 3.0)
    assert (figure.ratio, figure.ours, figure.theirs) == (2.0, 6000.0, 2000.0)


def test_sides_of_different_lengths_are_refused() -> None:
    """A value without its partner belongs to no round."""
    with pytest.raises(ValueError, match="zip"):
        compared("x", "a", "b", [1.0], [1.0, 2.0])


@pytest.mark.parametrize(("bound", "met"), [(None, None), (2.0, True), (1.5, False)])
def test_a_promise_is_about_the_median(bound: float | None, met: bool | None) -> None:
    """Kept at the bound itself; nothing was promised where there is no bound."""
    assert some(bound=bound).met is met


def test_arms_take_turns_and_the_first_round_is_not_counted() -> None:
    """A B A B, so that whatever the machine does hits both."""
    calls: list[str] = []

    def run(name: str) -> int:
        calls.append(name)
        return len(calls)

    found = interleaved(2, {"a": lambda: run("a"), "b": lambda: run("b")})
    assert calls == ["a", "b"] * 3
    assert found == {"a": [3, 5], "b": [4, 6]}


def test_the_bytes_of_a_position() -> None:
    """2 * layers * kv_heads * head_dim * 4 in float32, half of it in float16; layers may differ."""
    layer = LayerKv(heads=3, head_dim=64)
    assert cache_bytes(KvGeometry(layers=(layer,) * 30)) == 2 * 30 * 3 * 64 * 4
    half = LayerKv(heads=2, head_dim=8, dtype="float16")
    assert cache_bytes(KvGeometry(layers=(layer, half))) == 2 * 3 * 64 * 4 + 2 * 2 * 8 * 2


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("context", [16, 17, 64, 100, 500, 1000, 1065, 8192])
def test_whatever_is_run_fits_the_context(context: int, quick: bool) -> None:
    """Requests, turns of four times the new tokens, and a capacity that can be reached exactly."""
    sizes = Sizes.fitting(context, quick=quick)
    assert sizes.prompt + sizes.decode + 1 <= context
    assert sizes.histories[0] > 0
    assert list(sizes.histories) == sorted(set(sizes.histories))
    assert sizes.histories[-1] + 4 * sizes.new < context
    assert sizes.new < sizes.cold < context
    assert sizes.capacity <= context
    assert sizes.capacity.bit_count() == 1


def test_a_context_too_short_is_refused() -> None:
    """With the number and the bound."""
    with pytest.raises(UsageError, match=r"15 positions.*16 are needed"):
        Sizes.fitting(15, quick=True)


def test_a_long_context_is_measured_at_1000() -> None:
    """The promise about a warm turn is for a history of 1,000 tokens and 16 new ones."""
    for quick in (False, True):
        sizes = Sizes.fitting(2048, quick=quick)
        assert (sizes.histories[-1], sizes.new) == (1000, 16)


def test_a_planted_history_is_reused_in_place(engine: Engine) -> None:
    """A turn on it prefills the new tokens alone, from the retained state."""
    context = [5, 9, 2, 7, 1, 3, 8]
    reply = planted(engine, context).generate([*context, 4, 6])
    assert (reply.reused, reply.prefilled, reply.source) == (7, 2, ReuseSource.RETAINED)


def test_every_turn_of_a_conversation_starts_from_the_same_history(
    engine: Engine, completions: list[Completion]
) -> None:
    """Also after the first, when its pages are published: the retained state wins, and no turn adds to the next."""
    turn = arm_of(engine).conversation(10)
    for new in (3, 3, 5):
        assert turn(new) > 0
    assert [(r.reused, r.prefilled, r.source) for r in completions] == [
        (10, new, ReuseSource.RETAINED) for new in (3, 3, 5)
    ]


def test_a_cold_prompt_is_cold(engine: Engine, completions: list[Completion]) -> None:
    """However often it is asked: nothing of one is found by the next."""
    arm = arm_of(engine)
    for _ in range(3):
        arm.cold(9)
    assert [(r.reused, r.prefilled) for r in completions] == [(0, 9)] * 3


def test_a_request_times_its_prefill_and_each_decode_step(engine: Engine) -> None:
    """The prefill ends with the first token, whatever the number of its chunks."""
    first, steps = arm_of(engine).request(8, 4)
    assert first > 0
    assert len(steps) == 4
    assert min(steps) > 0


@pytest.mark.parametrize("name", [SHARED, GROWING, "snap-gqa-growing"])
def test_the_yardstick_computes_the_model(name: str) -> None:
    """A prefill and two decode steps of the raw loop give the closed form's logits; held noise is forgotten."""
    oracle = closed_forms.load(MODELS / name)
    assert oracle is not None
    with Engine.load(MODELS / name, backend="ort", threads=1) as engine:
        loop = RawLoop(engine.spec, engine.weights, capacity=16)
        loop.hold(5)
        loop.step([1])
        loop.hold(0)
        tokens = [3, 1, 4, 1, 5, 9]
        found = [np.array(loop.step(part).numpy())[0] for part in (tokens[:4], tokens[4:5], tokens[5:])]
        np.testing.assert_array_equal(np.concatenate(found), oracle.logits(tokens))
        assert loop.length == len(tokens)


def test_a_peak_counts_what_lived_at_once() -> None:
    """Arrays that live together add up; one that is gone does not."""
    size = 1 << 20

    def one_by_one() -> None:
        for _ in range(2):
            np.ones(size, dtype=np.uint8)

    together = traced_peak(lambda: [np.ones(size, dtype=np.uint8) for _ in range(2)])
    assert size <= traced_peak(one_by_one) < 2 * size <= together


def test_memory_counts_the_cache_at_least(engine: Engine) -> None:
    """The arrays themselves are there once at a full cache, one and a half times while it doubles.

    ONNX Runtime's own tensors are not seen, so a growing graph on it has no figure.
    """
    found = {figure.name: figure for figure in memory(arm_of(engine), 128)}
    if engine.options.backend == "ort" and not engine.spec.shared_buffer:
        assert found == {}
        return
    assert found["memory, full"].ratio >= 1
    assert found["memory, growing"].ratio >= 1.5
    assert {figure.theirs for figure in found.values()} == {cache_bytes(engine.spec.geometry)}


def test_the_report_is_plain_data() -> None:
    """With the least and the greatest of the samples, and the promises that were missed by name."""
    data = json.loads(json.dumps(report(Path("m"), True, 1, [some(bound=1.5), some(arm="native", bound=2.0), some()])))
    assert data["figures"][0] == {
        "name": "decode step", "arm": "ort", "against": "raw", "ratio": 2.0, "low": 1.0, "high": 4.0,
        "samples": [1.0, 4.0, 2.0], "ours": 30.0, "theirs": 15.0, "unit": "ms", "bound": 1.5, "met": False,
    }  # fmt: skip
    assert data["missed"] == ["decode step, ort"]


def test_a_line_says_what_was_promised() -> None:
    """Ratio, spread, both sides; and, where something was promised, whether this run kept it."""
    kept, missed, free = table([some(bound=2.0), some(bound=1.5), some()]).splitlines()
    for line in (kept, missed, free):
        assert "2.00 (1.00 to 4.00)" in line
        assert "30 / 15 ms" in line
    assert kept.endswith("met: at most 2")
    assert missed.endswith("MISSED: at most 1.5")
    assert free.endswith("ms")


@pytest.mark.parametrize(("backend", "arms"), [("native", {"native-invariant", "native-fast"}), ("ort", {"ort"})])
def test_the_command_prints_json_and_nothing_else(backend: str, arms: set[str]) -> None:
    """Every figure of every arm; nothing is promised for a model so small."""
    ran = CliRunner().invoke(app, [str(MODELS / SHARED), "--backend", backend, "--quick", "--json"])
    assert ran.exit_code == 0
    data = json.loads(ran.stdout)
    assert {figure["arm"] for figure in data["figures"]} == arms
    for figure in data["figures"]:
        assert 0 < figure["low"] <= figure["ratio"] <= figure["high"]
        assert figure["bound"] is None
    names = {figure["name"] for figure in data["figures"]}
    for start in ("prefill of", "decode step", "first token of", "turn of", "memory, full", "memory, growing"):
        assert any(name.startswith(start) for name in names)
    assert (data["quick"], data["missed"]) == (True, [])


@pytest.mark.parametrize("name", ["snap-stateless", "no-such-model"])
def test_what_cannot_be_measured_is_a_usage_error(name: str) -> None:
    """Exit status 2 and one line."""
    ran = CliRunner().invoke(app, [str(MODELS / name), "--quick"])
    assert ran.exit_code == 2
    (line,) = ran.stderr.strip().splitlines()
    assert line.startswith("error: ")
