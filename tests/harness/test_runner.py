"""Scenario x arms x checks: what a subject does wrong is a finding, and a run that compared nothing is not a pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

import warmcold.harness.play.exact
from warmcold.harness.arms.arms import Arms
from warmcold.harness.checks import LOOKED_FOR
from warmcold.harness.checks.registry import Check
from warmcold.harness.contract.errors import MaskedError, RefusedError
from warmcold.harness.contract.observation import Observation
from warmcold.harness.contract.scenario import Fork, NewSession, Op, Rewind, Scenario, Settings, Turn
from warmcold.harness.contract.verdict import CheckResult, Finding, Verdict
from warmcold.harness.play.exact import Lineup, ScenarioResult, merge_checks, run_scenario

Faulty = Callable[..., Arms]
Play = Callable[[Turn, Sequence[int]], Observation]

SETTINGS = Settings(page_size=4, pages=64, chunk_size=7, min_capacity=8)


def scenario(*ops: Op) -> Scenario:
    """Operations under `SETTINGS`."""
    return Scenario(ops=ops, settings=SETTINGS)


FIRST = Turn(name="t0", append=tuple(range(1, 10)), max_new_tokens=3)
SECOND = Turn(name="t1", base="t0", append=(11,), max_new_tokens=3)
TWO = scenario(FIRST, SECOND)


def boom(real: Any, *arguments: Any) -> Any:
    """A subject that falls over."""
    raise ZeroDivisionError("planted")


def only(result: ScenarioResult) -> Finding:
    """The one finding."""
    (finding,) = result.findings
    assert result.verdict is Verdict.FAIL
    return finding


def checks_of(result: ScenarioResult) -> set[str]:
    """Which checks found something."""
    return {finding.check for finding in result.findings}


def on(name: str, **fields: Any) -> Callable[[Play, Turn, Sequence[int]], Observation]:
    """A hook that misreports one turn."""

    def hook(real: Play, op: Turn, prompt: Sequence[int]) -> Observation:
        seen = real(op, prompt)
        return replace(seen, **fields) if op.name == name else seen

    return hook


def test_a_healthy_conversation_passes(arms: Arms, healthy: Scenario) -> None:
    """Every check green, every turn counted, tokens and sources too."""
    result = run_scenario(arms, healthy)
    assert (result.verdict, result.findings) == (Verdict.PASS, [])
    assert (result.turns, result.reused_turns, result.generated_tokens) == (4, 3, 10)
    assert result.sources == {"none": 1, "retained": 2, "paged": 1}
    assert set(result.checks) == set(LOOKED_FOR)
    assert all(seen.compared for seen in result.checks.values())
    assert result.reused_tokens < result.warm_prompt_tokens


def test_a_stateless_model_passes(stateless: Arms) -> None:
    """Nothing is reused, and nothing had to be: the KV checks are ruled out with a reason."""
    result = run_scenario(stateless, TWO)
    assert (result.verdict, result.reused_turns) == (Verdict.PASS, 0)
    assert result.checks["kv_end"].not_applicable == "the model carries no state"


def test_every_operation_is_played(arms: Arms) -> None:
    """A new session and a rewind, by number and by fraction, between turns."""
    ops: list[Op] = [FIRST, Rewind(session="s", to=5), SECOND, Rewind(session="s", to=0.5), changed(SECOND, name="t2")]
    result = run_scenario(arms, scenario(*ops, NewSession(session="s"), changed(SECOND, name="t3", base="t2")))
    assert (result.verdict, result.turns, result.findings) == (Verdict.PASS, 4, [])


@pytest.mark.parametrize(
    "op",
    [
        Fork(session="s", to="other"),
        changed(SECOND, name="x", cancel_after=0),
        changed(SECOND, name="x", append=tuple(range(20, 40)), cancel_after=1),
        changed(SECOND, name="x", cancel_after=2),
        changed(SECOND, name="x", fail=("feed", 2)),
        changed(SECOND, name="x", fail=("publish", 1)),
    ],
    ids=["fork", "cancelled before", "between chunks", "while decoding", "failed step", "failed publish"],
)
def test_what_follows_a_disturbance_is_right(arms: Arms, op: Op) -> None:
    """After a fork, a cancelled turn or a failed one the same session and another go on without a difference."""
    ops = (FIRST, op, SECOND, changed(SECOND, name="t2", session="other"))
    result = run_scenario(arms, scenario(*ops))
    assert (result.findings, result.verdict) == ([], Verdict.PASS)


def test_a_masked_error_is_a_finding(faulty: Faulty) -> None:
    """The planted error struck, and the engine answered as if nothing had happened."""

    def mask(real: Play, op: Turn, prompt: Sequence[int]) -> Observation:
        raise MaskedError("planted at feed")

    finding = only(run_scenario(faulty(turn=mask), TWO))
    assert (finding.check, finding.turn, finding.left) == ("masked", "t0", "planted at feed")


def test_a_crash_is_a_finding(faulty: Faulty) -> None:
    """The subject falls over on a legal request: FAIL, with the turn and what was thrown."""
    finding = only(run_scenario(faulty(turn=boom), TWO))
    assert (finding.check, finding.turn) == ("crash", "t0")
    assert re.fullmatch(r"ZeroDivisionError: planted \(test_runner\.py, line \d+\)", finding.left)


def test_a_crash_on_an_illegal_prompt_says_so(faulty: Faulty) -> None:
    """An empty prompt is to be refused, not fallen over; but nobody is told that it was legal."""
    finding = only(run_scenario(faulty(turn=boom), scenario(Turn(name="bad"))))
    assert (finding.check, finding.turn) == ("crash", "bad")
    assert "a legal request" not in finding.message


@pytest.mark.parametrize("method", ["cold", "pool", "clear", "new_session", "rewind", "fork"])
def test_a_crash_anywhere_is_a_finding(faulty: Faulty, method: str) -> None:
    """`run_scenario` does not raise for anything the subject does, whichever of its methods falls over."""
    ops = (FIRST, NewSession(session="b"), Rewind(session="s", to=4), Fork(session="s", to="b"), SECOND)
    result = run_scenario(faulty(**{method: boom}), scenario(*ops))
    assert result.verdict is Verdict.FAIL
    assert "planted" in only(result).left


def test_a_refused_legal_prompt_is_a_finding(faulty: Faulty) -> None:
    """A typed refusal is right only where the prompt is too long or empty."""

    def refuse(real: Play, op: Turn, prompt: Sequence[int]) -> Observation:
        raise RefusedError("too tired")

    finding = only(run_scenario(faulty(turn=refuse), TWO))
    assert (finding.check, finding.turn, finding.left) == ("refusal", "t0", "too tired")


@pytest.mark.parametrize("length", [0, 513])
def test_an_illegal_prompt_is_refused(arms: Arms, length: int) -> None:
    """Empty, or longer than the model's 512 positions: a refusal is what is expected, and the conversation goes on."""
    illegal = Turn(name="bad", append=(1,) * length)
    result = run_scenario(arms, scenario(FIRST, illegal, SECOND))
    assert (result.verdict, result.turns, result.reused_turns) == (Verdict.PASS, 2, 1)


def test_the_longest_legal_prompt(arms: Arms) -> None:
    """Exactly full is legal."""
    full = Turn(name="full", append=tuple(i % 61 for i in range(512)), max_new_tokens=1)
    assert run_scenario(arms, scenario(full), Lineup(poison=False)).findings == []


def test_an_answered_illegal_prompt_is_a_finding(faulty: Faulty) -> None:
    """An empty prompt was answered."""

    def obliging(real: Play, op: Turn, prompt: Sequence[int]) -> Observation:
        return real(op, prompt or [1])

    finding = only(run_scenario(faulty(turn=obliging), scenario(FIRST, Turn(name="bad"))))
    assert (finding.check, finding.turn) == ("refusal", "bad")
    assert (finding.left, finding.right) == ("0 tokens", "1 to 512")


def test_a_scenario_ends_at_its_first_finding(faulty: Faulty) -> None:
    """What follows would repeat the same news."""
    played: list[str] = []

    def wrong(real: Play, op: Turn, prompt: Sequence[int]) -> Observation:
        played.append(op.name)
        return on("t1", stop="never", reason="regime")(real, op, prompt)

    third = changed(SECOND, name="t2", base="t1")
    result = run_scenario(faulty(turn=wrong), scenario(FIRST, SECOND, third), Lineup(poison=False))
    assert played == ["t0", "t1"]
    assert (result.turns, checks_of(result)) == (2, {"reuse"})


def test_a_wrong_token(faulty: Faulty) -> None:
    """One wrong token of the warm engine is seen by matched arm, closed form, cold arm and oracle."""

    def wrong(real: Play, op: Turn, prompt: Sequence[int]) -> Observation:
        seen = real(op, prompt)
        return replace(seen, tokens=(*seen.tokens[:-1], (seen.tokens[-1] + 1) % 61)) if op.name == "t1" else seen

    result = run_scenario(faulty(turn=wrong), TWO)
    assert checks_of(result) == {"tokens", "closed_form", "cold", "oracle"}
    assert {finding.turn for finding in result.findings} == {"t1"}


def test_reused_too_much(faulty: Faulty) -> None:
    """The engine claims one position more than the glossary admits."""
    result = run_scenario(faulty(turn=on("t1", reused=12, prefilled=1)), TWO)
    assert result.findings[0].check == "reuse"
    assert result.findings[0].right == "at most 11 (current)"


def forgetful(real: Play, op: Turn, prompt: Sequence[int]) -> Observation:
    """An engine that quietly forgets its sessions and its pages: each turn is cold, and right."""
    return replace(real(changed(op, session=op.name, salt=op.name), prompt), reason="identity")


def test_reused_too_little(faulty: Faulty) -> None:
    """Not wrong, but not what it declared."""
    result = run_scenario(faulty(turn=forgetful, pool=lambda real: None), TWO)
    assert checks_of(result) == {"efficiency"}


def test_a_subject_without_a_reuse_model_may_reuse_less(faulty: Faulty) -> None:
    """Less reuse is another schedule, and legal: every check looks at the schedule that the subject really ran."""
    modest = faulty(turn=forgetful, pool=lambda real: None)
    declared = modest.subject.capabilities
    modest.subject.capabilities = replace(declared, reuse=replace(declared.reuse, exact=False))
    result = run_scenario(modest, TWO)
    assert (checks_of(result), result.verdict) == (set(), Verdict.PASS)


def test_a_cold_arm_that_is_warm(faulty: Faulty) -> None:
    """The control of the cold arm."""

    def warm(real: Play, op: Turn, prompt: Sequence[int]) -> Observation:
        return replace(real(op, prompt), reused=1)

    finding = only(run_scenario(faulty(cold=warm), TWO))
    assert (finding.check, finding.component, finding.turn) == ("cold", "control", "t0")


@pytest.mark.parametrize("answer", [True, False])
def test_a_rewind_that_answers_wrongly(faulty: Faulty, answer: bool) -> None:
    """Within what is held it must succeed; on a session that holds nothing it must decline."""
    finding = only(run_scenario(faulty(rewind=lambda real, session, n: answer),
                                scenario(FIRST, Rewind(session="none" if answer else "s", to=0))))  # fmt: skip
    assert (finding.check, finding.left, finding.right) == ("rewind", str(answer), str(not answer))


def test_a_rewind_that_only_says_so(faulty: Faulty) -> None:
    """True, and nothing moved: the next turn reuses what it must not."""
    result = run_scenario(
        faulty(rewind=lambda real, session, n: True),
        scenario(changed(FIRST, salt="x"), Rewind(session="s", to=5), SECOND),
    )
    assert result.findings == []  # another identity: nothing is reused either way
    pageless = Scenario(ops=(FIRST, Rewind(session="s", to=5), SECOND), settings=changed(SETTINGS, pages=0))
    result = run_scenario(faulty(rewind=lambda real, session, n: True), pageless)
    assert checks_of(result) >= {"reuse"}


def test_a_leak_shows_at_idle(faulty: Faulty) -> None:
    """After the last turn the cache is cleared, and every page must be free."""
    finding = only(run_scenario(faulty(clear=lambda real: None), TWO))
    assert (finding.check, finding.turn) == ("conservation", "idle")
    assert finding.right == "64 free"


def test_poison_runs_two_instances(faulty: Faulty) -> None:
    """Each turn is played under both patterns, or once when the arm is off."""
    played: list[str] = []

    def count(real: Play, op: Turn, prompt: Sequence[int]) -> Observation:
        played.append(op.name)
        return real(op, prompt)

    run_scenario(faulty(turn=count), TWO)
    assert played == ["t0", "t0", "t1", "t1"]
    played.clear()
    result = run_scenario(faulty(turn=count), TWO, Lineup(poison=False))
    assert played == ["t0", "t1"]
    assert result.checks["poison"].not_applicable == "the poison arm was not run"


def test_dear_arms_can_be_left_out(arms: Arms) -> None:
    """Their checks are ruled out, not passed."""
    result = run_scenario(arms, TWO, Lineup(cold=False, oracle=False, poison=False))
    assert result.verdict is Verdict.PASS
    ruled_out = {name for name, seen in result.checks.items() if not seen.compared}
    assert ruled_out == {"cold", "oracle", "poison"}


def test_a_check_that_compared_nothing_is_unknown(arms: Arms, monkeypatch: pytest.MonkeyPatch) -> None:
    """It applies, it gave no reason, it looked at nothing: the scenario is not a pass."""
    blind = Check(name="blind", order=99, says="", blind="", look=lambda look: None)
    monkeypatch.setattr(warmcold.harness.play.exact, "LOOKED_FOR", {**LOOKED_FOR, "blind": blind})
    result = run_scenario(arms, TWO)
    assert (result.verdict, result.checks["blind"].verdict) == (Verdict.UNKNOWN, Verdict.UNKNOWN)


def test_a_scenario_without_turns_is_not_run(arms: Arms) -> None:
    """No turn, no check, no verdict."""
    assert run_scenario(arms, scenario(NewSession(session="s"))).verdict is Verdict.NOT_RUN


def test_reading_only_is_a_conversation_too(arms: Arms) -> None:
    """A conversation none of whose turns asks for a token still passes: the oracle of tokens is ruled out, not blind."""
    reads = scenario(changed(FIRST, max_new_tokens=0), changed(SECOND, max_new_tokens=0))
    result = run_scenario(arms, reads)
    assert result.checks["oracle"].verdict is Verdict.NOT_RUN
    assert result.verdict is Verdict.PASS


def test_merging_scenarios(arms: Arms) -> None:
    """Counts add up, findings are joined, a reason survives."""
    finding = Finding(check="a", arm="x", message="", left="", right="")
    left = ScenarioResult(scenario=TWO, checks={"a": CheckResult(compared=2), "b": CheckResult(not_applicable="why")})
    right = ScenarioResult(scenario=TWO, checks={"a": CheckResult(compared=3, findings=[finding])})
    total = merge_checks([left, right])
    assert (total["a"].compared, total["a"].findings) == (5, [finding])
    assert total["b"].not_applicable == "why"
    assert merge_checks([]) == {}
    assert left.checks["a"].findings == []
