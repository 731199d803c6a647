"""The pytest plugin: marker `parity`, options, and the leg ledger.

A *leg* is a backend on a device (`native-cpu`, `ort-cpu`, `native-cuda`, `ort-cuda`). The ledger says which legs ran, on
how many turns, and which did not; a leg named in `--require-legs` that did not run, or ran nothing that passed, fails the
session. It counts from test reports, so it works under xdist. Nothing heavy is imported until a parity test runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..run.events import LegFinished
    from ..run.verify import Cases

LEGS = ("native-cpu", "ort-cpu", "native-cuda", "ort-cuda")
ALIASES = {"cuda": ("native-cuda",), "cpu": ("native-cpu", "ort-cpu")}
_PROPERTY = "warmcold_leg"

Judge = Callable[..., "LegFinished"]


@dataclass(kw_only=True)
class LegCount:
    """What the session saw of one leg."""

    tests: int = 0
    turns: int = 0
    reused_turns: int = 0
    failed: int = 0
    models: set[str] = field(default_factory=set)


class Ledger:
    """Counts legs from test reports; prints them; fails the session when a required one is missing."""

    def __init__(self, required: tuple[str, ...]) -> None:
        self.required = required
        self.legs: dict[str, LegCount] = {}

    @property
    def missing(self) -> list[str]:
        """Required legs on which no turn passed."""
        return [leg for leg in self.required if not self.legs.get(leg, LegCount()).turns]

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count each leg that a test's call phase reports."""
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self._count(str(value), failed=report.failed)

    def _count(self, value: str, *, failed: bool) -> None:
        leg, model, turns, reused = value.split("|")
        seen = self.legs.setdefault(leg, LegCount())
        seen.tests += 1
        seen.failed += failed
        seen.models.add(model)
        if not failed:
            seen.turns += int(turns)
            seen.reused_turns += int(reused)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A required leg that did not run is a failure, never a silent skip."""
        if self.missing and not hasattr(session.config, "workerinput"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The ledger, when anything ran or was required."""
        if not self.legs and not self.required:
            return
        terminalreporter.section("warmcold legs")
        for leg in LEGS:
            terminalreporter.line(self._line(leg))
        if self.missing:
            terminalreporter.line(
                f"FAILED: required and not run (or nothing passed): {', '.join(self.missing)}", red=True
            )

    def _line(self, leg: str) -> str:
        seen = self.legs.get(leg)
        if seen is None:
            return f"{leg:12} did not run: no test asked for it" + (" (required)" if leg in self.required else "")
        failed = f", {seen.failed} failed" if seen.failed else ""
        return (
            f"{leg:12} {seen.tests} tests on {len(seen.models)} models{failed}, {seen.turns} turns judged, "
            f"{seen.reused_turns} of them reused"
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, all under one heading."""
    group = parser.getgroup("warmcold", "warmcold: warm = cold = oracle")
    group.addoption("--warmcold-model", action="append", default=[], metavar="DIR", help="model to judge; repeatable")
    group.addoption("--warmcold-device", default="cpu", metavar="NAME", help="device the engine runs on: cpu or cuda")
    group.addoption("--warmcold-examples", type=int, default=20, metavar="N", help="generated conversations a leg")
    group.addoption("--warmcold-time", type=float, default=120.0, metavar="S", help="seconds a leg, after loading")
    group.addoption("--require-legs", default="", metavar="LEGS",
                    help=f"legs that must run, by comma: {', '.join(LEGS)}, cuda, cpu; else the session fails")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the ledger."""
    config.addinivalue_line("markers", "parity: warm = cold = oracle, by warmcold's harness")
    config.pluginmanager.register(Ledger(_required(config.getoption("--require-legs"))), "warmcold-ledger")


def _required(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    legs = [leg for name in names for leg in ALIASES.get(name, (name,))]
    if unknown := sorted(set(legs) - set(LEGS)):
        raise pytest.UsageError(f"--require-legs: {unknown} are no legs; give {', '.join(LEGS)}, cuda or cpu")
    return tuple(dict.fromkeys(legs))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`warmcold_model` and `warmcold_backend`: the models asked for (built-in fixtures unless told), both backends."""
    if "warmcold_model" in metafunc.fixturenames:
        from ...fixtures.builtin import builtin_models

        models = [Path(name) for name in metafunc.config.getoption("--warmcold-model")] or builtin_models()
        metafunc.parametrize("warmcold_model", models, ids=[path.name for path in models])
    if "warmcold_backend" in metafunc.fixturenames:
        metafunc.parametrize("warmcold_backend", ["native", "ort"])


@pytest.fixture
def warmcold_verify(request: pytest.FixtureRequest) -> Judge:
    """`verify(model, backend, cases, **effort) -> LegFinished`: judges, counts the leg, fails the test unless it passes.

    `cases`: (name, conversation), played first; `effort`: fields of `run.player.Effort`.
    """

    def check(model: Path, backend: str, cases: Cases = (), **effort: Any) -> LegFinished:
        from ..contract.verdict import Verdict
        from ..run.player import Effort
        from ..run.target import Target
        from ..run.verify import judged

        config = request.config
        effort.setdefault("examples", config.getoption("--warmcold-examples"))
        effort.setdefault("seconds", config.getoption("--warmcold-time"))
        # The ort backend runs on the CPU only so far; its leg says so, and `ort-cuda` shows as not run.
        device = config.getoption("--warmcold-device") if backend == "native" else "cpu"
        target = Target(model=str(model), subject=backend, device=device)
        leg = judged(target, Effort(**effort), cases)
        seen = f"{target.leg}|{model.name}|{leg.count.turns}|{leg.count.reused_turns}"
        request.node.user_properties.append((_PROPERTY, seen))
        if leg.verdict is not Verdict.PASS:
            found = "\n".join(f"{origin}: {finding}" for origin, finding in leg.findings)
            pytest.fail(f"{target.leg} on {target.model}: {leg.verdict.shown}. {leg.why or ''}\n{found}", pytrace=False)
        return leg

    return check
