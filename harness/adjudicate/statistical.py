"""Float noise or dirty KV, on an engine that shows neither its schedule nor its KV: a server, most often.

Controls, and fresh texts where these do not do: `play.blackbox` knows how, and what it concludes is told here as a ruling.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..contract.scenario import Scenario
from ..contract.subject import Instance
from ..play.blackbox import Blackbox, BlackboxResult
from ..play.evidence import SITES, Judged
from ..play.played import Played
from .ruling import Kind, Ruling


def by_evidence(blackbox: Blackbox, scenario: Scenario) -> Ruling:
    """Play `scenario` and rule on its last turn."""
    played, instance = blackbox.play(scenario)
    notes = "; ".join(blackbox.result.notes)
    if not played:
        because, missing = notes or "no turn was answered", "a conversation that is answered"
        return Ruling(kind=Kind.unclear, turn="", because=because, missing=missing)
    turn = played[-1]
    if turn.op is not scenario.ops[-1]:
        because, missing = notes or "the last turn was refused", "a last turn that is answered"
        return Ruling(kind=Kind.unclear, turn=turn.op.name, because=because, missing=missing)
    return _Hearing(blackbox=blackbox, scenario=scenario, turn=turn).ruling(instance)


@dataclass(kw_only=True)
class _Hearing:
    """One turn before the statistics."""

    blackbox: Blackbox
    scenario: Scenario
    turn: Played
    facts: list[str] = field(default_factory=list)

    @property
    def result(self) -> BlackboxResult:
        """All that was found out."""
        return self.blackbox.result

    def ruling(self, instance: Instance) -> Ruling:
        """The count first, then the reply."""
        warm, most = self.turn.warm, self.turn.most
        self.facts.append(f"prompt of {len(self.turn.prompt)} tokens, {warm.reused} reused warm")
        if self.turn.overstated:
            because = f"{warm.reused} positions were reused, but no earlier request shares more than {most}"
            return self._rule(Kind.dirty, because, f"positions {most} to {(warm.reused or 0) - 1} hold other tokens")
        if not self.turn.hit:
            return self._unclear("nothing was reused in this turn", "a second prompt that shares a page with the first")
        judged = self.blackbox.judge(self.scenario, self.turn, instance, plants=SITES)
        if judged is None:
            return self._not_judged()
        self.facts.append(f"warm against cold: {judged}")
        self.facts += [f"power: {self.result.power}"] if self.result.power.sites else []
        return self._suspected(judged) if judged.suspicious else self._covered(judged)

    def _not_judged(self) -> Ruling:
        why = "; ".join([*(str(finding) for _, finding in self.result.findings), *self.result.notes])
        if self.result.findings:
            return self._rule(Kind.dirty, why, None)
        return self._unclear(why or "no cold reply was to be had", "a way to a cold reply: a salt, or a switch")

    def _suspected(self, judged: Judged) -> Ruling:
        """Play it again on fresh texts, and see."""
        result = self.result
        self.blackbox.confirm(self.scenario, self.turn, judged)
        if result.findings:
            place = "the reused part (no KV is shown, so not which layer)"
            return self._rule(Kind.dirty, result.findings[-1][1].message, place)
        if result.suspects:
            missing = "a subject that shows its KV or its schedule; or more --time, if it ran out"
            return self._unclear(result.suspects[-1], missing)
        self.facts += result.notes[-1:]
        return self._covered(judged)

    def _covered(self, judged: Judged) -> Ruling:
        """Legal schedules reach as far; that says something if a wrong page would have shown all the same."""
        if judged.statistic == 0:
            return self._rule(Kind.same, "warm and cold agree in everything that is shown", None)
        if not self.result.power.enough:
            because = "legal schedules are as far apart as warm and cold; but they would also hide a wrong page"
            missing = "log-probabilities, where only tokens are shown; or a subject that shows its schedule"
            return self._unclear(because, missing)
        return self._rule(
            Kind.noise, "warm and cold are no farther apart than legal schedules of the same tokens", None
        )

    def _rule(self, kind: Kind, because: str, place: str | None) -> Ruling:
        return Ruling(kind=kind, turn=self.turn.op.name, because=because, place=place, facts=self.facts)

    def _unclear(self, because: str, missing: str) -> Ruling:
        name = self.turn.op.name
        return Ruling(kind=Kind.unclear, turn=name, because=because, missing=missing, facts=self.facts)
