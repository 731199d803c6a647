"""What a run leaves behind: `events.jsonl`, `summary.json`, `report.md` and a case for every failing conversation."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from warmcold.harness.arms.arms import Arms
from warmcold.harness.checks import LOOKED_FOR
from warmcold.harness.contract.observation import Observation
from warmcold.harness.contract.scenario import Scenario, Turn, load
from warmcold.harness.contract.verdict import Level, Verdict
from warmcold.harness.reporting.console import ConsoleView
from warmcold.harness.reporting.folder import RunFolder
from warmcold.harness.reporting.formats import Told
from warmcold.harness.reporting.markdown import render
from warmcold.harness.reporting.summary import summary
from warmcold.harness.run.events import Event, LegFinished
from warmcold.harness.run.player import Effort
from warmcold.harness.run.target import Target
from warmcold.harness.run.verify import verify

MODEL = Path(__file__).parents[2] / "fixtures" / "models" / "snap-gqa-shared"

Faulty = Callable[..., Arms]


def wrong_token(real: Callable[..., Observation], op: Turn, prompt: Sequence[int]) -> Observation:
    """The second turn's last token is another one."""
    seen = real(op, prompt)
    return replace(seen, tokens=(*seen.tokens[:-1], (seen.tokens[-1] + 1) % 61)) if op.name == "retained" else seen


def run(arms: Arms, scenario: Scenario, told: Callable[[Event], object]) -> LegFinished:
    """One conversation, told event by event."""
    leg: Event | None = None
    for leg in verify(Target(model=str(MODEL), subject="ort"), Effort(examples=0), [("mine", scenario)], arms):
        told(leg)
    assert isinstance(leg, LegFinished)
    return leg


def into(arms: Arms, scenario: Scenario, path: Path) -> tuple[LegFinished, dict[str, Any]]:
    """One conversation into a folder: its leg, and the summary."""
    folder = RunFolder(path)
    leg = run(arms, scenario, folder)
    return leg, dict(folder.close())


@pytest.fixture
def passing(arms: Arms, healthy: Scenario, tmp_path: Path) -> Path:
    """The folder of a run that passed."""
    into(arms, healthy, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def failing(faulty: Faulty, healthy: Scenario, tmp_path: Path) -> Path:
    """The folder of a run that failed."""
    into(faulty(turn=wrong_token), healthy, tmp_path / "run")
    return tmp_path / "run"


def read(folder: Path) -> dict[str, Any]:
    """The summary."""
    data: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return data


def test_summary_of_a_pass(passing: Path) -> None:
    """Verdict, level, one leg with its numbers and every check; no findings, no cases."""
    data = read(passing)
    assert (data["warmcold_summary"], data["verdict"], data["level"]) == (1, "PASS", "L4")
    assert (data["findings"], data["cases"]) == ([], [])
    (leg,) = data["legs"]
    assert (leg["leg"], leg["verdict"], leg["turns"], leg["reused_turns"]) == ("ort-cpu", "PASS", 4, 3)
    assert set(leg["checks"]) == set(LOOKED_FOR)
    assert all(check["verdict"] == "PASS" and check["compared"] > 0 for check in leg["checks"].values())


def test_report_of_a_pass(passing: Path) -> None:
    """A person reads the verdict first, then the leg ledger and the checks."""
    text = (passing / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# warmcold: PASS at level L4\n")
    assert "L4 compares tokens, hit counts, logits, KV bytes, the schedule-matched arm." in text
    assert f"| ort-cpu | {MODEL} | PASS | 1 | 4 | 3 |" in text
    assert all(f"| {name} | " in text for name in LOOKED_FOR)
    assert "First difference" not in text
    assert not (passing / "cases").exists()


def test_summary_of_a_failure(failing: Path) -> None:
    """Findings with leg, origin, turn, place and both values, and the path of a case that can be read again."""
    data = read(failing)
    assert (data["verdict"], data["legs"][0]["verdict"]) == ("FAIL", "FAIL")
    first = data["findings"][0]
    assert (first["leg"], first["origin"], first["check"], first["turn"]) == ("ort-cpu", "mine", "tokens", "retained")
    assert first["place"] == "generated token 3"
    assert first["left"] != first["right"]
    assert data["legs"][0]["checks"]["tokens"]["verdict"] == "FAIL"
    (case,) = data["cases"]
    assert load(Path(case)).scenario.turns == 4


def test_report_of_a_failure(failing: Path) -> None:
    """The first difference with both values, and the command that shows it again."""
    data = read(failing)
    first = data["findings"][0]
    text = (failing / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# warmcold: FAIL at level L4\n")
    assert "ort-cpu on " in text
    assert "conversation: mine." in text
    for part in ("turn retained", "generated token 3", first["left"], first["right"]):
        assert part in text.split("## First difference")[1]
    assert f"`warmcold replay {data['cases'][0]}`" in text


def test_a_case_says_where_it_was_found(failing: Path) -> None:
    """Model, leg and findings go with the conversation, so that it can be replayed as it is."""
    (case,) = (failing / "cases").iterdir()
    found = json.loads(case.read_text(encoding="utf-8"))["found"]
    assert (found["model"], found["leg"]) == (str(MODEL), "ort-cpu")
    assert {finding["check"] for finding in found["findings"]} >= {"tokens", "oracle"}


@pytest.mark.parametrize("outcome", ["passing", "failing"])
def test_events_are_lines_of_json(outcome: str, request: pytest.FixtureRequest) -> None:
    """One object a line, each with its kind and leg, in order."""
    folder: Path = request.getfixturevalue(outcome)
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["event"] for event in events] == ["LegStarted", "ScenarioPlayed", "LegFinished"]
    assert {event["leg"] for event in events} == {"ort-cpu"}
    assert events[0]["subject"] == "ort"
    assert bool(events[1]["findings"]) == (outcome == "failing")
    assert events[-1]["verdict"] == ("PASS" if outcome == "passing" else "FAIL")


def test_events_are_on_disk_as_they_happen(arms: Arms, healthy: Scenario, tmp_path: Path) -> None:
    """A run that is killed leaves what it saw."""
    folder = RunFolder(tmp_path / "run")
    run(arms, healthy, folder)
    assert len((tmp_path / "run" / "events.jsonl").read_text().splitlines()) == 3
    assert not (tmp_path / "run" / "summary.json").exists()
    folder.close()


def test_a_run_of_nothing_is_unknown(tmp_path: Path) -> None:
    """No leg, no pass."""
    folder = RunFolder(tmp_path / "run")
    data = folder.close()
    assert (data["verdict"], data["level"], data["legs"]) == ("UNKNOWN", "L0", [])
    assert "# warmcold: UNKNOWN at level L0" in (tmp_path / "run" / "report.md").read_text()


def test_the_worst_leg_is_the_verdict(arms: Arms, healthy: Scenario, tmp_path: Path) -> None:
    """And the lowest level is the level."""
    leg, _ = into(arms, healthy, tmp_path / "run")
    other = replace(leg.target, subject="native")
    unknown = replace(leg, target=other, verdict=Verdict.UNKNOWN, level=Level.L1, why="nothing was compared")
    told = Told(legs=[leg, unknown])
    assert (told.verdict, told.level) == (Verdict.UNKNOWN, Level.L1)
    assert summary(told)["verdict"] == "UNKNOWN"
    text = render(told).decode()
    assert "L1 compares tokens, hit counts." in text
    assert f"- native-cpu on {leg.target.model}: nothing was compared" in text


def test_a_ruled_out_check_gives_its_reason(arms: Arms, healthy: Scenario, tmp_path: Path) -> None:
    """Not passed, not failed, and said why."""
    bare = replace(arms, closed=None)
    _, data = into(bare, healthy, tmp_path / "run")
    check = data["legs"][0]["checks"]["closed_form"]
    assert (check["verdict"], check["reason"]) == ("NOT_APPLICABLE", "the model has no closed form")
    assert "the model has no closed form" in (tmp_path / "run" / "report.md").read_text()


@pytest.mark.parametrize("hook", [None, wrong_token])
def test_the_console(faulty: Faulty, healthy: Scenario, hook: Any) -> None:
    """One line a leg with the verdict, and the first difference below it."""
    out = io.StringIO()
    arms = faulty(turn=hook) if hook else faulty()
    with ConsoleView(Console(file=out, width=200)) as view:
        leg = run(arms, healthy, view)
    text = out.getvalue()
    assert f"{leg.verdict.shown:7} ort-cpu    {MODEL}: 1 conversations, {leg.count.turns} turns" in text
    for _, finding in leg.findings[:1]:
        assert str(finding) in text
