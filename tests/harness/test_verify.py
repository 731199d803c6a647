"""A whole leg: what it plays, when it stops, what it concludes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import warmcold.harness.play.exact
import warmcold.harness.run.exact
from warmcold.harness.arms.record import TurnRecord
from warmcold.harness.checks import LOOKED_FOR
from warmcold.harness.checks.registry import Check
from warmcold.harness.contract.errors import ScenarioError, SubjectError
from warmcold.harness.contract.observation import Observation
from warmcold.harness.contract.scenario import Scenario, Turn, load
from warmcold.harness.contract.verdict import CheckResult, Level, Verdict
from warmcold.harness.play.exact import Arms
from warmcold.harness.reporting.folder import RunFolder
from warmcold.harness.run.events import Event, LegFinished, LegStarted, ScenarioPlayed
from warmcold.harness.run.player import Effort
from warmcold.harness.run.target import Target, target_of
from warmcold.harness.run.verify import Cases, judged, verify

Faulty = Callable[..., Arms]
MODELS = Path(__file__).parents[2] / "fixtures" / "models"
ALONE = Scenario(ops=(Turn(name="t0", append=(1, 2, 3)),))


TARGET = Target(model=str(MODELS / "snap-gqa-shared"), subject="ort")


def judge(arms: Arms, cases: Cases = (), **effort: Any) -> tuple[LegFinished, list[Event]]:
    """The leg, and the events on the way; nothing generated unless told."""
    effort.setdefault("examples", 0)
    events = list(verify(TARGET, Effort(**effort), cases, arms))
    last = events[-1]
    assert isinstance(last, LegFinished)
    return last, events


def wrong_token(real: Callable[..., Observation], op: Turn, prompt: Sequence[int]) -> Observation:
    """The last token of every warm turn is another one."""
    seen = real(op, prompt)
    return replace(seen, tokens=(*seen.tokens[:-1], (seen.tokens[-1] + 1) % 61)) if seen.tokens else seen


def test_a_healthy_leg_passes(arms: Arms, healthy: Scenario) -> None:
    """Cases first, then generated conversations; every number is the sum over them."""
    leg, events = judge(arms, cases=[("mine", healthy)], examples=3)
    assert (leg.verdict, leg.level, leg.why, leg.findings) == (Verdict.PASS, Level.L4, None, ())
    assert (leg.target.leg, leg.count.scenarios) == ("ort-cpu", 4)
    played = [event for event in events if isinstance(event, ScenarioPlayed)]
    assert [event.origin for event in played] == ["mine", *["generated"] * 3]
    assert [event.number for event in played] == [1, 2, 3, 4]
    assert leg.count.turns == sum(event.result.turns for event in played)
    assert leg.count.reused_turns == sum(event.result.reused_turns for event in played)
    assert leg.count.reused_share is not None
    assert 0 < leg.count.reused_share < 1


def test_events_come_in_order(arms: Arms, healthy: Scenario) -> None:
    """Started, each conversation, finished; the start says how many are planned."""
    leg, events = judge(arms, cases=[("mine", healthy)], examples=2)
    kinds = [type(event) for event in events]
    assert kinds == [LegStarted, ScenarioPlayed, ScenarioPlayed, ScenarioPlayed, LegFinished]
    assert isinstance(events[0], LegStarted)
    assert events[0].planned == 3
    assert events[-1] is leg


def test_nothing_reused_is_unknown(arms: Arms) -> None:
    """On a model with state a run without a warm turn has not looked at reuse at all."""
    leg, _ = judge(arms, cases=[("alone", ALONE)])
    assert leg.verdict is Verdict.UNKNOWN
    assert leg.why == "no turn that reused anything was compared"


def test_nothing_played_is_not_a_pass(arms: Arms) -> None:
    """No conversation at all."""
    leg, _ = judge(arms)
    assert leg.verdict.shown == "UNKNOWN"
    assert leg.verdict.exit_code == 3


def test_a_stateless_model_passes_without_reuse(stateless: Arms) -> None:
    """There is nothing to reuse."""
    leg, _ = judge(stateless, cases=[("alone", ALONE)])
    assert (leg.verdict, leg.count.reused_turns, leg.count.reused_share) == (Verdict.PASS, 0, None)


def test_a_blind_check_is_unknown(arms: Arms, healthy: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that applies and compared nothing is named."""
    blind = Check(name="blind", order=99, says="", blind="", look=lambda look: None)
    monkeypatch.setattr(warmcold.harness.play.exact, "LOOKED_FOR", {**LOOKED_FOR, "blind": blind})
    leg, _ = judge(arms, cases=[("mine", healthy)])
    assert leg.verdict is Verdict.UNKNOWN
    assert leg.why == "these checks apply but compared nothing: blind"


def test_a_check_that_nothing_is_shown_to_lowers_no_level(
    arms: Arms, healthy: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of which nobody said what level its evidence belongs to is told as not observable, and that is all."""

    class Secret(Check):
        def __call__(self, record: TurnRecord) -> CheckResult:
            return CheckResult(not_observable="nobody can see it")

    secret = Secret(name="secret", order=99, says="", blind="")
    monkeypatch.setattr(warmcold.harness.play.exact, "LOOKED_FOR", {**LOOKED_FOR, "secret": secret})
    leg, _ = judge(arms, cases=[("mine", healthy)])
    assert (leg.verdict, leg.level) == (Verdict.PASS, Level.L4)
    assert leg.checks["secret"].not_observable == "nobody can see it"


def test_a_failing_leg_stops(faulty: Faulty, healthy: Scenario) -> None:
    """At its first failure, with origin and finding."""
    leg, _ = judge(faulty(turn=wrong_token), cases=[("mine", healthy), ("again", healthy)], examples=5)
    assert (leg.verdict, leg.count.scenarios, leg.count.turns) == (Verdict.FAIL, 1, 1)
    assert {origin for origin, _ in leg.findings} == {"mine"}
    assert "tokens" in {finding.check for _, finding in leg.findings}


def test_keep_going(faulty: Faulty, healthy: Scenario) -> None:
    """Past failures, when asked."""
    leg, _ = judge(faulty(turn=wrong_token), cases=[("mine", healthy), ("again", healthy)], keep_going=True)
    assert (leg.verdict, leg.count.scenarios) == (Verdict.FAIL, 2)


def test_time_bounds_the_leg(arms: Arms, healthy: Scenario) -> None:
    """The first conversation is always played; after the time none is begun."""
    leg, _ = judge(arms, cases=[("mine", healthy)] * 5, seconds=0.0)
    assert (leg.verdict, leg.count.scenarios) == (Verdict.PASS, 1)


def test_the_level_is_what_was_shown(arms: Arms, healthy: Scenario, faulty: Faulty) -> None:
    """A subject that declares less is judged at less."""
    subject = arms.subject
    modest = faulty(pool=lambda real: None)
    assert modest.subject is not subject
    modest.subject.capabilities = replace(subject.capabilities, level=Level.L1)
    leg, _ = judge(modest, cases=[("mine", healthy)])
    assert (leg.verdict, leg.level) == (Verdict.PASS, Level.L1)


def test_a_level_is_not_taken_on_trust(faulty: Faulty, healthy: Scenario) -> None:
    """What the subject never showed lowers the printed level, whatever it declares: no KV, so below L3."""

    def secretive(real: Callable[..., Observation], op: Turn, prompt: Sequence[int]) -> Observation:
        return replace(real(op, prompt), seeded=None, end=None)

    leg, _ = judge(faulty(turn=secretive, pool=lambda real: None), cases=[("mine", healthy)])
    assert leg.verdict is Verdict.PASS
    assert leg.level < Level.L3


def test_the_same_seed_plays_the_same(arms: Arms) -> None:
    """Reproducible by seed, and another seed is another run."""

    def played(seed: int) -> list[Scenario]:
        _, events = judge(arms, examples=3, seed=seed)
        return [event.result.scenario for event in events if isinstance(event, ScenarioPlayed)]

    assert played(5) == played(5) != played(6)


def test_a_replayed_case_gives_the_same_verdict(faulty: Faulty, arms: Arms, healthy: Scenario, tmp_path: Path) -> None:
    """The case file of a failing conversation shows the same fault again, and none on a healthy subject."""
    folder = RunFolder(tmp_path / "run")
    first, events = judge(faulty(turn=wrong_token), cases=[("mine", healthy)])
    for event in events:
        folder(event)
    (file,) = folder.close()["cases"]
    case = load(Path(file))
    assert case.scenario == healthy
    assert target_of(case.found) == TARGET
    again, _ = judge(faulty(turn=wrong_token), cases=[("case", case.scenario)])
    assert again.verdict is first.verdict is Verdict.FAIL
    assert [f.fingerprint for _, f in again.findings] == [f.fingerprint for _, f in first.findings]
    well, _ = judge(arms, cases=[("case", case.scenario)])
    assert well.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("found", "target"),
    [
        ({"model": "m", "leg": "native-cpu", "numerics": "fast"}, Target(model="m", options={"numerics": "fast"})),
        ({"model": "m", "leg": "ort-cpu", "numerics": "invariant"}, Target(model="m", subject="ort")),
        ({"model": "m", "leg": "native-cuda"}, Target(model="m", device="cuda")),
        (
            {"model": "m", "leg": "MyEngine-cpu", "subject": "a.py:MyEngine", "options": {"x": 1}},
            Target(model="m", subject="a.py:MyEngine", options={"x": "1"}),
        ),
    ],
)
def test_case_files_of_older_releases_name_their_target(found: dict[str, object], target: Target) -> None:
    """Our own engine by its leg, numerics beside; another by its name. What is written today is read back the same."""
    assert target_of(found) == target
    assert target_of(target.to_json()) == target


@pytest.mark.parametrize("found", [{}, {"model": 3}, {"model": "m", "subject": 3}, {"model": "m", "options": [1]}])
def test_a_case_that_names_no_target(found: dict[str, object]) -> None:
    """A ScenarioError that says what to give."""
    with pytest.raises(ScenarioError, match="give"):
        target_of(found)


@pytest.mark.parametrize(
    ("model", "backend", "word"),
    [(MODELS / "nothing-here", "ort", "nothing-here"), (MODELS / "snap-square", "magic", "magic")],
)
def test_what_cannot_be_opened(model: Path, backend: str, word: str) -> None:
    """A SubjectError that names what is at fault."""
    with pytest.raises(SubjectError, match=word):
        Target(model=str(model), subject=backend).open()


def test_native_backend_too(healthy: Scenario) -> None:
    """The engine's own kernels: the matched arm computes with them, and the closed form holds them to the integers."""
    target = Target(model=str(MODELS / "snap-square"), subject="native")
    arms = target.open()
    assert arms.subject.capabilities.invariant
    leg = judged(target, Effort(examples=1), [("mine", healthy)], arms)
    assert (leg.verdict, leg.target.leg) == (Verdict.PASS, "native-cpu")
    arms.subject.close()


def test_an_interrupted_leg_is_not_lost(arms: Arms, healthy: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was played is concluded and reported, never as a pass; the interrupt goes on to whoever started the run."""
    real, played = warmcold.harness.run.exact.run_scenario, 0

    def impatient(*arguments: Any) -> Any:
        nonlocal played
        played += 1
        if played == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(warmcold.harness.run.exact, "run_scenario", impatient)
    events: list[Event] = []
    with pytest.raises(KeyboardInterrupt):
        events.extend(verify(TARGET, Effort(examples=0), [("mine", healthy)] * 4, arms))
    leg = events[-1]
    assert isinstance(leg, LegFinished)
    assert (leg.verdict, leg.count.scenarios) == (Verdict.UNKNOWN, 2)
    assert leg.why is not None
    assert "interrupted" in leg.why
