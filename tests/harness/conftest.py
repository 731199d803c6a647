"""Loaded arms, the records of one healthy conversation, and subjects with a planted fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from warmcold.harness.arms.arms import Arms
from warmcold.harness.arms.record import TurnRecord
from warmcold.harness.checks import LOOKED_FOR
from warmcold.harness.contract.observation import Observation, Pool
from warmcold.harness.contract.scenario import Scenario, Settings, Turn
from warmcold.harness.contract.subject import Capabilities, Instance, Subject
from warmcold.harness.contract.verdict import CheckResult, Finding
from warmcold.harness.play.exact import run_scenario
from warmcold.harness.run.target import Target

MODELS = Path(__file__).parents[2] / "fixtures" / "models"

Hook = Callable[..., Any]

HEALTHY = Scenario(
    settings=Settings(page_size=4, pages=64, chunk_size=7, min_capacity=8),
    ops=(
        Turn(name="cold", append=tuple(range(1, 11)), max_new_tokens=3),
        Turn(name="retained", base="cold", append=(11, 12), max_new_tokens=4),
        Turn(name="paged", session="other", base="retained", append=(13,), max_new_tokens=3),
        Turn(name="empty", session="other", base="paged", append=(14, 15), max_new_tokens=0),
    ),
)
"""A cold turn; one on retained state; one from pages on another session; one that only reads."""


@pytest.fixture(scope="session")
def arms() -> Iterator[Arms]:
    """A healthy subject, ONNX Runtime backend, with all that judges it."""
    opened = Target(model=str(MODELS / "snap-gqa-shared"), subject="ort").open(threads=1)
    yield opened
    opened.subject.close()


@pytest.fixture(scope="session")
def stateless() -> Iterator[Arms]:
    """The same on a model without state."""
    opened = Target(model=str(MODELS / "snap-stateless"), subject="ort").open(threads=1)
    yield opened
    opened.subject.close()


@pytest.fixture(scope="session")
def healthy() -> Scenario:
    """The conversation of `records`."""
    return HEALTHY


@pytest.fixture(scope="session")
def records(arms: Arms) -> Mapping[str, TurnRecord]:
    """Each turn of `HEALTHY` on every arm, as the checks get it."""
    seen: list[TurnRecord] = []
    run_scenario(arms, HEALTHY, each=seen.append)
    kept = {record.name: record for record in seen}
    assert list(kept) == [op.name for op in HEALTHY.ops if isinstance(op, Turn)]
    return kept


@pytest.fixture
def judge() -> Callable[[TurnRecord], dict[str, CheckResult]]:
    """`judge(record)`: every check on one record."""
    return lambda record: {name: check(record) for name, check in LOOKED_FOR.items()}


@pytest.fixture
def only(judge: Callable[[TurnRecord], dict[str, CheckResult]]) -> Callable[[TurnRecord, str], Finding]:
    """`only(record, check)`: the one finding of a record on which exactly `check` is red; it names check and turn."""

    def find(record: TurnRecord, check: str) -> Finding:
        results = judge(record)
        assert {name for name, result in results.items() if result.findings} == {check}
        (finding,) = results[check].findings
        assert (finding.check, finding.turn) == (check, record.name)
        assert f"[{check}]" in str(finding)
        assert f"turn {record.name}" in str(finding)
        return finding

    return find


@dataclass
class FaultyInstance:
    """An instance each call of which goes through the hook of its name, where there is one."""

    real: Instance
    hooks: Mapping[str, Hook]

    def _call(self, name: str, *arguments: Any) -> Any:
        method = getattr(self.real, name)
        return self.hooks[name](method, *arguments) if name in self.hooks else method(*arguments)

    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """See `Instance.turn`."""
        seen: Observation = self._call("turn", op, prompt)
        return seen

    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """See `Instance.cold`."""
        seen: Observation = self._call("cold", op, prompt)
        return seen

    def new_session(self, session: str) -> None:
        """See `Instance.new_session`."""
        self._call("new_session", session)

    def fork(self, session: str, to: str) -> None:
        """See `Instance.fork`."""
        self._call("fork", session, to)

    def rewind(self, session: str, n: int) -> bool:
        """See `Instance.rewind`."""
        return bool(self._call("rewind", session, n))

    def pool(self) -> Pool | None:
        """See `Instance.pool`."""
        pool: Pool | None = self._call("pool")
        return pool

    def clear(self) -> None:
        """See `Instance.clear`."""
        self._call("clear")


@dataclass
class FaultySubject:
    """A subject whose instances are `FaultyInstance`s."""

    real: Subject
    hooks: Mapping[str, Hook]
    capabilities: Capabilities
    name: str = "faulty"
    model: Path = field(default=Path("faulty"))

    def open(self, settings: Settings, *, poison: float | None) -> FaultyInstance:
        """See `Subject.open`."""
        return FaultyInstance(self.real.open(settings, poison=poison), self.hooks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def describe(self) -> dict[str, Any]:
        """See `Subject.describe`."""
        return self.real.describe()

    def close(self) -> None:
        """The weights belong to the healthy subject."""


@pytest.fixture
def faulty(arms: Arms) -> Callable[..., Arms]:
    """`faulty(turn=hook, ...) -> Arms`: hook(real method, *arguments) stands for the method of an instance."""

    def build(of: Arms = arms, **hooks: Hook) -> Arms:
        return replace(of, subject=FaultySubject(of.subject, hooks, of.subject.capabilities))

    return build
