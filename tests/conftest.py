"""Plugins of the whole suite, and what differs while mutmut judges it (pytest wants the plugins named at the top)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest_plugins = ["pytester"]

_MUTANT = "MUTANT_UNDER_TEST"  # set by mutmut, to its stage or to the name of a mutant

# The same examples for every mutant, and no search for a smaller one: a verdict must not depend on luck or time.
settings.register_profile(
    "mutmut",
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)


# A busy machine must not fail a test: no example has a time to keep.
settings.register_profile("no clock", deadline=None)


def pytest_configure() -> None:
    """Fixed examples under mutmut, in its server too, from which the processes that judge mutants are forked."""
    settings.load_profile("no clock")
    if _MUTANT in os.environ or "mutmut" in sys.modules:
        settings.load_profile("mutmut")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Record which test killed a mutant, in which phase and by what; read by `mutations.mutmut_report`."""
    report = yield
    mutant = os.environ.get(_MUTANT, "")
    if report.failed and "__mutmut_" in mutant:
        _record(mutant, report, call)
    return report


def _record(mutant: str, report: pytest.TestReport, call: pytest.CallInfo[Any]) -> None:
    assert call.excinfo is not None
    path = Path(".killers", f"{mutant}.json")
    if report.when == "teardown" and path.exists():
        return
    path.parent.mkdir(exist_ok=True)
    record = {
        "mutant": mutant,
        "nodeid": report.nodeid,
        "when": report.when,
        "exception": call.excinfo.typename,
        "message": str(call.excinfo.value).strip()[:300],
    }
    path.write_text(json.dumps(record), encoding="utf-8")
