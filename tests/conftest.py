"""Plugins of the whole suite, and what differs while mutmut judges it (pytest wants the plugins named at the top)."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest_plugins = ["pytester"]

_MUTANT = "MUTANT_UNDER_TEST"  # set by mutmut, to its stage or to the name of a mutant

# The same examples on every machine and in any order, so that a red test is red for everybody. A busy machine must not
# fail a test: no example has a time to keep.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None)

# Fresh examples each time, many more of them; a failure is shown with what plays it again.
settings.register_profile(
    "soak",
    derandomize=False,
    database=None,
    deadline=None,
    max_examples=1000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)

# For every mutant the same, and no search for a smaller one: a verdict must not depend on luck or time.
settings.register_profile(
    "mutmut",
    settings.get_profile("fixed"),
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads these options
def pytest_configure(config: pytest.Config) -> None:
    """The profile `fixed` unless told; `soak` with a seed that is known; `mutmut` in its server too, which forks."""
    # mutmut says by the environment alone which mutant a process is; nothing else tells.
    if _MUTANT in os.environ or "mutmut" in sys.modules:
        config.option.hypothesis_profile = "mutmut"
    config.option.hypothesis_profile = config.option.hypothesis_profile or "fixed"
    if config.option.hypothesis_profile == "soak" and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(secrets.randbits(32))


def pytest_report_header(config: pytest.Config) -> str:
    """Which examples Hypothesis plays, and how to have the same again."""
    profile, seed = config.option.hypothesis_profile, config.option.hypothesis_seed
    if seed is not None:
        return f"examples: profile {profile}, again by --hypothesis-profile {profile} --hypothesis-seed {seed}"
    return f"examples: profile {profile}, derandomized: each test's seed is its own name, the same every time"


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
