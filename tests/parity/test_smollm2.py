"""The real SmolLM2-135M: the tokens that transformers gives, and warm = matched = cold on two chats.

`make models` builds it; without it these tests fail and say so. They are never skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmcold.engine import Engine, SamplingParams
from warmcold.harness.conversations.texts import chats
from warmcold.harness.play.exact import Lineup, run_scenario
from warmcold.harness.run.target import Target

ROOT = Path(__file__).parents[2]
EXPECTED = json.loads((ROOT / "fixtures" / "smollm2_expected.json").read_text())["cases"]

pytestmark = [pytest.mark.parity, pytest.mark.real_model, pytest.mark.slow]


def built(form: str) -> Path:
    """Where `make models` puts the real model."""
    path = ROOT / "models" / f"smollm2-{form}"
    if not path.is_dir():
        pytest.fail(f"{path} is missing: run `make models`", pytrace=False)
    return path


@pytest.mark.parametrize("backend", ["native", "ort"])
@pytest.mark.parametrize("form", ["fused", "decomposed"])
def test_tokens_of_transformers(form: str, backend: str) -> None:
    """Every prompt of the witness file gives exactly the greedy tokens that transformers gives on the same weights."""
    with Engine.load(built(form), backend=backend) as engine:
        for case in EXPECTED:
            params = SamplingParams(max_new_tokens=len(case["tokens"]), ignore_eos=True)
            assert list(engine.generate(case["prompt"], params).tokens) == case["tokens"], case["text"]


@pytest.mark.parametrize("backend", ["native", "ort"])
def test_chats_on_the_decomposed_graph(backend: str, warmcold_verify: Callable[..., Any]) -> None:
    """Standard operators and growing past tensors; `make verify` does the fused graph."""
    warmcold_verify(built("decomposed"), backend, examples=0, seconds=600)


def test_later_turns_of_a_chat_reuse_most_of_their_prompt() -> None:
    """In both chats every turn after the first reuses at least four fifths of its prompt, or the run would prove little."""
    arms = Target(model=str(built("fused")), subject="ort").open()
    for _, scenario in chats(arms.subject.encode):
        result = run_scenario(arms, scenario, Lineup(cold=False, oracle=False, poison=False))
        assert result.turns >= 3
        assert result.reused_turns == result.turns - 1
        assert result.least_share >= 0.8
