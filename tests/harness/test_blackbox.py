"""The statistical tier on an engine of forty lines that shows counts and log-probabilities, healthy and with faults."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from typing_extensions import override

from warmcold.harness.arms.compare import common_prefix
from warmcold.harness.contract.observation import Observation, Tokens
from warmcold.harness.contract.scenario import Settings, Turn
from warmcold.harness.contract.subject import Capabilities, Instance, ReuseModel, Subject
from warmcold.harness.contract.verdict import Level, Verdict
from warmcold.harness.conversations.shapes import Texts
from warmcold.harness.play.blackbox import Blackbox, BlackboxResult

VOCABULARY, UNIT = 61, 16
SOURCE = np.random.default_rng(7)
EMBEDDING, HEAD = SOURCE.normal(size=(VOCABULARY, 8)), SOURCE.normal(size=(8, VOCABULARY))


@dataclass
class Fake(Subject):
    """Its next token depends on every token and its place. `noise`: how far another schedule moves a log-probability.

    `faults`: `wrong page`, a hit sees other tokens in its last reused page; `one off`, its first token is left out;
    `overstated`, a hit is counted a page too long; `warm cold`, the cold arm reuses; `off`, nothing is ever reused;
    `deaf`, prompts hardly matter; `jittery`, every call rounds anew by a thousand times more.
    """

    faults: frozenset[str] = frozenset()
    noise: float = 1e-6
    name: str = "fake"
    model: str = "fake"
    max_context: int = 4096
    vocab_size: int = VOCABULARY
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(
            level=Level.L2,
            operations=frozenset({"sessions", "new", "salt"}),
            reuse=ReuseModel(scope="engine", granularity=UNIT),
            deterministic=False,
        )
    )
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))

    @override
    def open(self, settings: Settings, *, poison: float | None) -> FakeInstance:
        return FakeInstance(self)

    def row(self, context: Sequence[int]) -> Mapping[int, float]:
        """Log-probabilities of the next token."""
        at = np.arange(len(context))
        hidden = (EMBEDDING[list(context)] * np.cos(0.1 * at + 1)[:, None]).sum(axis=0) / np.sqrt(len(context))
        logits = np.tanh(hidden) @ HEAD * (1e-9 if "deaf" in self.faults else 1.0)
        spread = self.noise * (1000 if "jittery" in self.faults else 1)
        logits = logits + spread * self.random.normal(size=VOCABULARY)
        logits -= logits.max() + np.log(np.exp(logits - logits.max()).sum())
        return dict(enumerate(logits.tolist()))


class FakeInstance(Instance):
    """What each tenant has sent so far is what it may reuse."""

    def __init__(self, engine: Fake) -> None:
        self._engine = engine
        self._sent: dict[str | None, list[Tokens]] = {}

    @override
    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        sent = self._sent.setdefault(op.salt, [])
        hit = max((common_prefix(prompt, earlier) for earlier in sent), default=0)
        seen = self._answer(op, tuple(prompt), min(hit, len(prompt) - 1) // UNIT * UNIT)
        sent.append((*prompt, *seen.tokens))
        return seen

    @override
    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        return self._answer(op, tuple(prompt), UNIT if "warm cold" in self._engine.faults else 0)

    def _answer(self, op: Turn, prompt: Tokens, hit: int) -> Observation:
        faults = self._engine.faults
        hit = 0 if "off" in faults else hit
        seen = list(prompt)
        if hit and "wrong page" in faults:
            seen[hit - UNIT : hit] = seen[hit - UNIT : hit][::-1]
        if hit and "one off" in faults:
            del seen[0]
        rows, tokens = [], []
        for _ in range(op.max_new_tokens):
            rows.append(self._engine.row((*seen, *tokens)))
            tokens.append(max(rows[-1], key=lambda token: rows[-1][token]))
        reused = hit + UNIT if hit and "overstated" in faults else hit
        return Observation(
            tokens=tuple(tokens), stop="length", reused=reused, prefilled=len(prompt) - reused, logprobs=tuple(rows)
        )


def judged(*faults: str, seconds: float = 600.0) -> BlackboxResult:
    """Everything that is concluded of it."""
    corpus = np.random.default_rng(3).integers(0, VOCABULARY, size=2000).tolist()
    texts = Texts(corpus=corpus, source=random.Random(1), openings=random.Random(2))
    box = Blackbox(Fake(faults=frozenset(faults)), texts, seconds=seconds)
    for _ in box.run():
        pass
    return box.result


def test_a_healthy_engine_passes() -> None:
    """With hits judged, and with the power to see nearly every wrong page."""
    result = judged()
    assert (result.verdict, result.findings) == (Verdict.PASS, [])
    assert result.judged > 0
    assert result.power.enough


@pytest.mark.parametrize("fault", ["wrong page", "one off"])
def test_wrong_content_is_found(fault: str) -> None:
    """The evidence of fresh texts is in the finding."""
    result = judged(fault)
    assert result.verdict is Verdict.FAIL
    assert {finding.check for _, finding in result.findings} == {"cold"}
    assert result.evidence >= 1e4


def test_an_overstated_count_is_found() -> None:
    """More is said to be reused than anybody has sent."""
    assert {finding.check for _, finding in judged("overstated").findings} == {"reuse"}


def test_a_cold_arm_that_is_warm_is_found() -> None:
    """It is the control of everything else."""
    ((_, finding),) = judged("warm cold").findings
    assert (finding.check, finding.component) == ("cold", "control")


@pytest.mark.parametrize(("fault", "why"), [("off", "no turn that reused anything"), ("deaf", "underpowered")])
def test_what_cannot_be_judged_is_unknown(fault: str, why: str) -> None:
    """Nothing reused, or nothing that could show: never a pass."""
    result = judged(fault)
    assert result.verdict is Verdict.UNKNOWN
    assert why in (result.why or "")


def test_rounding_is_no_fault() -> None:
    """A thousand times as much, in every reply: controls round as far, so nothing is suspicious for long."""
    result = judged("jittery")
    assert result.findings == []


def test_no_time_is_no_pass() -> None:
    """Where nothing was played nothing is concluded."""
    assert judged(seconds=0.0).verdict is Verdict.UNKNOWN
