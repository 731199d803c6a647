"""Float noise or dirty KV, on an engine that shows neither its schedule nor its KV: a server, most often."""

from __future__ import annotations

from ..contract.scenario import Scenario
from ..play.blackbox import Campaign
from ..play.evidence import SITES, Judged, Power
from .ruling import Case, Ruling


def adjudicate_server(campaign: Campaign, scenario: Scenario) -> Case:
    """The same question to an engine that shows neither schedule nor KV: controls, and fresh texts where they do not do."""
    played, instance = campaign.play(scenario)
    if not played:
        return Case(ruling=Ruling.unclear, turn="", because="; ".join(campaign.result.notes) or "no turn was answered",
                    missing="a conversation that is answered")  # fmt: skip
    turn, result = played[-1], campaign.result
    if turn.op is not scenario.ops[-1]:
        because = "; ".join(result.notes) or "the last turn was refused"
        return Case(ruling=Ruling.unclear, turn=turn.op.name, because=because, missing="a last turn that is answered")
    name, facts = turn.op.name, [f"prompt of {len(turn.prompt)} tokens, {turn.warm.reused} reused warm"]
    if turn.overstated:
        return Case(ruling=Ruling.dirty, turn=name, facts=facts,
                    because=f"{turn.warm.reused} positions were reused, but no earlier request shares more than {turn.most}",
                    place=f"positions {turn.most} to {(turn.warm.reused or 0) - 1} hold other tokens")  # fmt: skip
    if not turn.hit:
        return Case(ruling=Ruling.unclear, turn=name, because="nothing was reused in this turn", facts=facts,
                    missing="a second prompt that shares a page with the first")  # fmt: skip
    judged = campaign.judge(scenario, turn, instance, plants=SITES)
    if judged is None:
        why = [str(finding) for _, finding in result.findings] + result.notes
        ruling = Ruling.dirty if result.findings else Ruling.unclear
        return Case(ruling=ruling, turn=name, because="; ".join(why) or "no cold reply was to be had", facts=facts,
                    missing=None if ruling is Ruling.dirty else "a way to a cold reply: a salt, or a switch")  # fmt: skip
    facts += [f"warm against cold: {judged}", *([f"power: {result.power}"] if result.power.sites else [])]
    if judged.suspicious:
        campaign.confirm(scenario, turn, judged)
        if result.findings:
            return Case(ruling=Ruling.dirty, turn=name, because=result.findings[-1][1].message, facts=facts,
                        place="the reused part (no KV is shown, so not which layer)")  # fmt: skip
        if result.suspects:
            return Case(ruling=Ruling.unclear, turn=name, because=result.suspects[-1], facts=facts,
                        missing="a subject that shows its KV or its schedule; or more --time, if it ran out")  # fmt: skip
        facts += result.notes[-1:]
    return _covered(name, judged, result.power, facts)


def _covered(turn: str, judged: Judged, power: Power, facts: list[str]) -> Case:
    if judged.statistic == 0:
        return Case(
            ruling=Ruling.same, turn=turn, because="warm and cold agree in everything that is shown", facts=facts
        )
    if not power.enough:
        because = "legal schedules of the same tokens are as far apart as warm and cold; but they would also hide a wrong page"
        return Case(ruling=Ruling.unclear, turn=turn, because=because, facts=facts,
                    missing="log-probabilities, where only tokens are shown; or a subject that shows its schedule")  # fmt: skip
    because = "warm and cold are no farther apart than legal schedules of the same tokens"
    return Case(ruling=Ruling.noise, turn=turn, because=because, facts=facts)
