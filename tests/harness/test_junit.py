"""`junit.xml`: what a CI system sees of a run."""

from __future__ import annotations

from xml.etree import ElementTree

from warmcold.harness.contract.verdict import CheckResult, Finding, Level, Verdict
from warmcold.harness.reporting.formats import Told
from warmcold.harness.reporting.junit import render
from warmcold.harness.run.events import Count, LegFinished
from warmcold.harness.run.target import Target


def leg(verdict: Verdict, checks: dict[str, CheckResult], why: str | None = None) -> LegFinished:
    """A leg that ended so."""
    count = Count(scenarios=2, turns=9, reused_turns=4, warm_prompt_tokens=20, reused_tokens=10, generated_tokens=7)
    target = Target(model="m", subject="ort")
    return LegFinished(target=target, verdict=verdict, level=Level.L4, count=count, seconds=1.5, checks=checks, why=why)


def test_each_check_is_a_test_case() -> None:
    """A finding is a failure, a blind check an error, one ruled out skipped with its reason, the rest passed; all counted."""
    finding = Finding(check="tokens", arm="matched", message="the reply differs", left="1", right="2", turn="t3")
    checks = {
        "tokens": CheckResult(compared=3, findings=[finding]),
        "logits": CheckResult(compared=5),
        "oracle": CheckResult(),
        "closed_form": CheckResult(not_applicable="the model has no closed form"),
    }
    root = ElementTree.fromstring(render(Told(legs=[leg(Verdict.FAIL, checks)])))
    suite = root[0]
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    failure = suite.find("testcase[@name='tokens']/failure")
    assert failure is not None
    assert failure.get("message") == "the reply differs"
    assert "turn t3" in (failure.text or "")
    skipped = suite.find("testcase[@name='closed_form']/skipped")
    assert skipped is not None
    assert skipped.get("message") == "the model has no closed form"


def test_a_leg_that_is_no_pass_without_a_finding_is_an_error() -> None:
    """UNKNOWN is never green; the properties say level and turns."""
    root = ElementTree.fromstring(
        render(Told(legs=[leg(Verdict.UNKNOWN, {"logits": CheckResult(compared=1)}, "nothing was reused")]))
    )
    error = root.find("testsuite/testcase[@name='verdict']/error")
    assert error is not None
    assert error.get("message") == "nothing was reused"
    facts = {p.get("name"): p.get("value") for p in root.iter("property")}
    assert (facts["verdict"], facts["level"], facts["turns"], facts["reused_share"]) == ("UNKNOWN", "L4", "9", "0.500")
