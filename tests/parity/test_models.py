"""Warm = matched = cold = oracle, on every model that the repository ships, both backends.

Three kinds of conversation: generated ones, the ten written by hand by somebody who had not read the code, and the cases
of the zoo with the tokens that transformers computed for them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmcold.harness.contract.scenario import Scenario, Settings, Turn, load
from warmcold.harness.run.target import Target

ROOT = Path(__file__).parents[2]
FIXTURES = sorted(path.name for path in (ROOT / "fixtures" / "models").iterdir())
ZOO = sorted(path.name for path in (ROOT / "fixtures" / "zoo").iterdir() if path.is_dir())
SNAP = ["snap-decomposed", "snap-gqa-growing", "snap-gqa-shared", "snap-square", "snap-stateless"]
LONG = [*SNAP, "llama-genai-fp32", "llama-optimum-fp32", "qwen2-genai-fp32", "qwen2-optimum-fp32"]
"""Where the long conversations are played too: each KV regime of the exact fixtures, and one of each exporter of the zoo."""
BACKENDS = ["native", "ort"]
CONVERSATIONS = sorted((Path(__file__).parents[1] / "conversations").glob("*.json"))

pytestmark = pytest.mark.parity


def directory(name: str) -> Path:
    """Where a shipped model lies."""
    return ROOT / "fixtures" / ("zoo" if name in ZOO else "models") / name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*FIXTURES, *ZOO])
def test_generated_conversations(name: str, backend: str, warmcold_verify: Callable[..., Any]) -> None:
    """Generated conversations show no difference on any arm; each model and backend gets other ones."""
    seed = zlib.crc32(f"{name} {backend}".encode())
    warmcold_verify(directory(name), backend, examples=20 if name in FIXTURES else 10, seed=seed)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LONG)
def test_conversations_written_by_hand(name: str, backend: str, warmcold_verify: Callable[..., Any]) -> None:
    """Ten long conversations with edits, branches, tenants and crowded pools show no difference either.

    On each model one backend plays every other one and the other backend the rest; from model to model they change places.
    """
    cases = [(path.name, load(path).scenario) for path in CONVERSATIONS]
    assert len(cases) == 10
    cases = cases[(LONG.index(name) + BACKENDS.index(backend)) % 2 :: 2]
    warmcold_verify(directory(name), backend, cases=cases, examples=0, seconds=600)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ZOO)
def test_tokens_of_transformers(name: str, backend: str, warmcold_verify: Callable[..., Any]) -> None:
    """Every case of the zoo, two-turn ones included, gives the tokens that transformers computed, warm and cold."""
    expected = json.loads((directory(name) / "expected.json").read_text())
    cases = [*_single(expected), *_double(expected)]
    warmcold_verify(directory(name), backend, cases=[(s.title, s) for s, _ in cases], examples=0, seconds=600)
    arms = Target(model=str(directory(name)), subject=backend).open()
    for scenario, replies in cases:
        instance = arms.subject.open(scenario.settings, poison=None)
        context: tuple[int, ...] = ()
        for op, reply in zip(scenario.ops, replies, strict=True):
            assert isinstance(op, Turn)
            assert isinstance(op.append, tuple)
            context = (*context, *op.append)
            seen = instance.turn(op, context)
            assert seen.tokens == tuple(reply), f"{name}, {scenario.title}, turn {op.name}"
            context = (*context, *seen.tokens)


def _single(expected: dict[str, Any]) -> list[tuple[Scenario, list[list[int]]]]:
    return [
        (_scenario(f"case {i}", [case["prompt"]], [case["max_new_tokens"]]), [case["tokens"]])
        for i, case in enumerate(expected["cases"])
    ]


def _double(expected: dict[str, Any]) -> list[tuple[Scenario, list[list[int]]]]:
    return [
        (
            _scenario(
                f"two turns {i}",
                [turn["prompt_suffix"] for turn in case["turns"]],
                [turn["max_new_tokens"] for turn in case["turns"]],
            ),
            [turn["tokens"] for turn in case["turns"]],
        )
        for i, case in enumerate(expected["cases_two_turn"])
    ]


def _scenario(title: str, suffixes: list[list[int]], counts: list[int]) -> Scenario:
    ops = tuple(
        Turn(name=f"t{i}", base=f"t{i - 1}" if i else None, append=tuple(suffix), max_new_tokens=count)
        for i, (suffix, count) in enumerate(zip(suffixes, counts, strict=True))
    )
    return Scenario(ops=ops, settings=Settings(page_size=4, pages=128, chunk_size=7, min_capacity=16), title=title)
