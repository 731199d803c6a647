"""`junit.xml`: one test case per leg and check, for CI systems that read nothing else."""

from __future__ import annotations

from xml.etree import ElementTree

from ..contract.verdict import CheckResult, Verdict
from ..run.events import LegFinished
from .escape import plain
from .formats import Told, format_of


@format_of("junit.xml")
def render(told: Told) -> bytes:
    """The document. A finding is a failure; a check that applies and compared nothing is an error; one ruled out, skipped."""
    root = ElementTree.Element("testsuites", name="warmcold")
    for leg in told.legs:
        name = plain(f"{leg.target.leg} {leg.target.model}")
        suite = ElementTree.SubElement(root, "testsuite", name=name, time=f"{leg.seconds:.1f}")
        _properties(suite, leg)
        for name, seen in leg.checks.items():
            _case(suite, name, seen, leg)
        if leg.why is not None:
            case = ElementTree.SubElement(suite, "testcase", name="verdict", classname=leg.target.leg)
            ElementTree.SubElement(case, "error", message=plain(leg.why))
        _count(suite)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _properties(suite: ElementTree.Element, leg: LegFinished) -> None:
    group = ElementTree.SubElement(suite, "properties")
    facts = {
        "verdict": leg.verdict.shown,
        "level": leg.level.name,
        "conversations": leg.count.scenarios,
        "turns": leg.count.turns,
        "reused_turns": leg.count.reused_turns,
        "reused_share": "" if leg.count.reused_share is None else f"{leg.count.reused_share:.3f}",
    }
    for name, value in facts.items():
        ElementTree.SubElement(group, "property", name=name, value=str(value))


def _case(suite: ElementTree.Element, name: str, seen: CheckResult, leg: LegFinished) -> None:
    case = ElementTree.SubElement(suite, "testcase", name=name, classname=leg.target.leg)
    if seen.findings:
        failure = ElementTree.SubElement(case, "failure", message=plain(seen.findings[0].message))
        failure.text = plain("\n".join(str(finding) for finding in seen.findings))
    elif seen.verdict is Verdict.UNKNOWN:
        ElementTree.SubElement(case, "error", message="applies, and compared nothing")
    elif not seen.compared:
        ElementTree.SubElement(case, "skipped", message=plain(seen.not_observable or seen.not_applicable or ""))


def _count(suite: ElementTree.Element) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
