"""The whole contract on one subject: each law, then each known case, with what is known of this release taken into account."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..arms.arms import Arms
from ..contract.verdict import Verdict
from ..conversations.texts import material
from ..play.exact import run_scenario
from .known import Divergence
from .laws import LAWS, Bench, Outcome, tried


def conformance(arms: Arms, entries: Sequence[Divergence], options: Mapping[str, str]) -> Iterator[Outcome]:
    """Try the contract. `entries`: known divergences, of which those count that speak of this model, release and `options`."""
    subject = arms.subject
    known = [entry for entry in entries if entry.applies(str(subject.model), subject.describe(), options)]
    laws = {entry.law: entry for entry in known if entry.law is not None}
    bench = Bench(arms, material(subject.encode, subject.vocab_size))
    for law in LAWS:
        yield expected(tried(bench, law), laws.get(law))
    for entry in known:
        if entry.case is not None:
            found = run_scenario(arms, entry.case.scenario).findings
            shown = next((finding for finding in found if entry.check in (None, finding.check)), None)
            verdict = Verdict.FAIL if shown else Verdict.PASS
            yield expected(Outcome(law=f"known: {entry.id}", verdict=verdict, said=str(shown or "")), entry)


def expected(outcome: Outcome, known: Divergence | None) -> Outcome:
    """A failure that is known passes, with its reason; a known one that does not come is a failure."""
    if known is None:
        return outcome
    if outcome.verdict is Verdict.FAIL:
        said = f"fails as known: {known.reason} ({known.link})"
        return replace(outcome, verdict=Verdict.PASS, said=said)
    said = f"is listed as a known divergence ({known.id}) and does not show any more: remove the entry"
    return replace(outcome, verdict=Verdict.FAIL, said=said)
