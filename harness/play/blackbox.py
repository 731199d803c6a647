"""Judge an engine that shows neither its schedule nor a lower call: warm against cold, statistically. See `evidence`.

The rule, from one turn to a verdict. A conversation is played warm to its end; then each of its turns that was a hit is
asked for cold, with 19 *controls*: legal schedules of the same tokens that go through no cache. If the warm reply is farther
from the cold one than every control, the turn is suspicious, which proves nothing: one turn in twenty is, without any fault.
So its shape is played again on fresh texts until the product of e-values is evidence, or a run of plays shows nothing
(`confirm`). Evidence is a fault, unless a plain hit is off as well and lies nearer to rounding than to any wrong page that was
planted: other kernels on a hit would look like that, and then nothing is claimed (`_rule`).

No verdict without power: in each judged turn some reused pages are replaced by other tokens and asked for cold. Unless nearly
all of these would have been suspicious, a pass means nothing (`_conclude`). Counts that cannot be right, and replies that
depend on other traffic, need no statistics; they only have to show again on fresh texts.

The cold requests come after the whole warm conversation, so that they disturb nothing even on a server that cannot keep
tenants apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ..arms.compare import common_prefix
from ..contract.errors import RefusedError
from ..contract.observation import Observation, Tokens
from ..contract.scenario import Scenario, Settings, Turn, resolve
from ..contract.subject import Instance, Subject
from ..contract.verdict import Finding, Verdict
from ..conversations.shapes import NONCE, Texts, shapes
from .evidence import CONTROLS, SITES, Evidence, Judged, Power, Reply, difference, judge, resolution
from .played import Played, by_itself, differs, not_cold, reply_of, same_bits, until

PLAIN_PAGE = 16
"""Positions to a page where hits are not multiples of anything."""

PLANTS = 6
"""Wrong pages tried in each turn: ten turns give the sites that `evidence.SITES` asks for."""

AGAIN = 3
"""So often a wrong count, or a reply that depends on other traffic, must show on fresh texts: chance may explain one."""


@dataclass(kw_only=True)
class BlackboxResult:
    """What came of it. `evidence`: the greatest product of e-values of any shape that was played again. `least_plant`: how
    far off the nearest wrong page that was seen is."""

    verdict: Verdict = Verdict.NOT_RUN
    why: str | None = None
    findings: list[tuple[Scenario, Finding]] = field(default_factory=list)
    power: Power = field(default_factory=Power)
    conversations: int = 0
    turns: int = 0
    hits: int = 0
    judged: int = 0
    replays: int = 0
    evidence: float = 1.0
    least_plant: float | None = None
    suspects: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Blackbox:
    """One subject judged for about `seconds`, on `texts` that its model was trained on, or any."""

    def __init__(self, subject: Subject, texts: Texts, *, seconds: float) -> None:
        self.subject = subject
        self.result = BlackboxResult()
        self._texts = texts
        self._end = time.monotonic() + seconds
        self._salts = "salt" in subject.capabilities.operations
        self._sent: list[Tokens] = []
        self._exact: bool | None = None
        unit = subject.capabilities.reuse.granularity
        self.unit = unit if unit > 1 else PLAIN_PAGE

    def run(self, cases: Sequence[Scenario] = (), *, drawn: bool = True) -> Iterator[tuple[Scenario, Sequence[Played]]]:
        """Play `cases` and then, if `drawn`, one conversation of each shape, again until the time or the sites are full.

        Yields each conversation when its turns have been judged; `result` grows meanwhile, and is concluded at the end.
        """
        result = self.result
        for scenario in self._planned(cases, drawn):
            played, instance = self.play(scenario)
            self._place(scenario, played)
            for turn in played:
                self._turn(scenario, turn, instance)
            yield scenario, played
            if result.findings:
                break
        self._conclude()

    def _planned(self, cases: Sequence[Scenario], drawn: bool) -> Iterator[Scenario]:
        """The cases and every shape once, whatever the sites; then until they are full. Never beyond the time."""
        if not drawn:
            yield from cases
            return
        operations = frozenset(str(name) for name in self.subject.capabilities.operations)
        first = True
        while self._time_left() and (first or self.result.power.sites < SITES):
            before = self.result.judged
            every = shapes(self._texts, unit=self.unit, operations=operations)
            for scenario in (*(cases if first else ()), *every):
                if not self._time_left():
                    return
                yield scenario
            if self.result.judged == before:
                return
            first = False

    def play(self, scenario: Scenario) -> tuple[list[Played], Instance]:
        """The whole conversation warm. A refused turn is left out, and what refers to it starts from nothing."""
        instance = self.subject.open(Settings(), poison=None)
        history: dict[str, tuple[Tokens, Tokens]] = {}
        sent: dict[str | None, list[Tokens]] = {}
        played: list[Played] = []
        for op in scenario.ops:
            if not isinstance(op, Turn):
                continue
            prompt = resolve(op, history, self.subject.encode)
            try:
                warm = instance.turn(op, prompt)
            except RefusedError as error:
                self.result.notes.append(f"{scenario.title}, {op.name}: refused, {error}")
                continue
            before = sent.setdefault(op.salt, []) if self._salts else self._sent
            most = min(max((common_prefix(prompt, earlier) for earlier in before), default=0), len(prompt) - 1)
            played.append(Played(op=op, prompt=prompt, warm=warm, most=most if self._salts else max(most, NONCE)))
            context = (*prompt, *warm.tokens)
            before.append(context)
            history[op.name] = (prompt, context)
        self.result.conversations += 1
        self.result.turns += len(played)
        self.result.hits += sum(turn.hit for turn in played)
        return played, instance

    def _turn(self, scenario: Scenario, turn: Played, instance: Instance) -> None:
        if self.result.findings or not self._time_left():
            return
        if turn.overstated:
            self._recount(scenario, turn)
        if self.result.findings or not (turn.hit and turn.warm.tokens) or turn.op.cancel_after is not None:
            return
        plants = PLANTS if self.result.power.sites < SITES else 0
        judged = self.judge(scenario, turn, instance, plants=plants)
        if judged is not None and judged.suspicious and not self.result.findings:
            self.confirm(scenario, turn, judged)

    def judge(self, scenario: Scenario, turn: Played, instance: Instance, *, plants: int = 0) -> Judged | None:
        """The turn against the cold reply and its controls; None where no cold reply is to be had, or no room for one.

        `plants`: so many wrong pages are tried beside, for the power gate.
        """
        count = len(turn.warm.tokens)
        try:
            long = self._cold(instance, turn, turn.prompt, count + CONTROLS - 1)
            if long.reused:
                self._found(scenario, not_cold(turn, long))
                return None
            cold = reply_of(long)
            if len(cold.tokens) < count + CONTROLS - 1:
                return None
            controls = []
            for at in range(CONTROLS):
                seen = self._cold(instance, turn, (*turn.prompt, *cold.tokens[:at]), count)
                controls.append((reply_of(seen), cold.part(at, count)))
            if not count or any(len(seen.tokens) != count for seen, _ in controls):
                raise RefusedError("the server gave fewer tokens than were asked for")
            judged = judge(reply_of(turn.warm), cold.part(0, count), controls)
            self.result.judged += 1
            self._plant(turn, instance, cold.part(0, count), controls, plants)
            return judged
        except RefusedError as error:
            self.result.notes.append(f"{scenario.title}, {turn.op.name}: not judged, {error}")
            return None

    def confirm(self, scenario: Scenario, turn: Played, first: Judged) -> None:
        """Play the shape on fresh texts until the product of e-values is evidence, or a run of plays shows nothing."""
        evidence = Evidence()
        last = first
        while not evidence.enough and not evidence.refuted and self._time_left():
            played, instance = self.play(self._texts.fresh(until(scenario, turn.op.name)))
            again = next((each for each in played if each.op.name == turn.op.name and each.hit), None)
            judged = self.judge(scenario, again, instance) if again is not None else None
            if judged is None:
                break
            evidence.add(judged)
            last = judged if judged.suspicious else last
        self.result.replays += evidence.plays
        self.result.evidence = max(self.result.evidence, evidence.product)
        told = f"{scenario.title}, turn {turn.op.name}: {first}; {evidence}"
        if evidence.enough:
            self._rule(scenario, turn, first, last, str(evidence))
        elif evidence.refuted:
            self.result.notes.append(
                f"suspicious once, by chance: {told}, the last {evidence.clean} of which show nothing"
            )
        else:
            self.result.suspects.append(told)

    def _rule(self, scenario: Scenario, turn: Played, first: Judged, last: Judged, said: str) -> None:
        """A fault; unless every hit is off, and nearer to rounding than to any wrong page: other kernels on a hit would be.

        Nearer on a scale of powers: rounding is the worst of the legal schedules, or the last bit of what is shown where none
        of them rounds at all; a wrong page is the nearest of those planted.
        """
        split, cold = self.split(turn), self._reference(turn)
        general = split is not None and difference(split, cold).size > last.worst
        least, off = self.result.least_plant, max(first.statistic, last.statistic)
        rounding = max(last.worst, resolution(cold))
        where = "a plain hit on the same tokens is off too" if general else "a plain hit on the same tokens is not"
        if general and first.difference.sup is not None and least is not None and off**2 < rounding * least:
            self.result.suspects.append(
                f"{scenario.title}, turn {turn.op.name}: {first}; {said}; but {where}, and the least of the wrong pages "
                f"planted here is off by {least:.4g}: other kernels on a hit would look like this"
            )
        else:
            self._found(scenario, differs(turn, first, last, f"{said}; {where}"))

    def _reference(self, turn: Played) -> Reply:
        instance = self.subject.open(Settings(), poison=None)
        return reply_of(self._cold(instance, turn, turn.prompt, len(turn.warm.tokens)))

    def split(self, turn: Played) -> Reply | None:
        """The reply of a new tenant that gets the prompt in two parts: a plain hit. None where it is refused."""
        cut = min(turn.warm.reused or turn.most, len(turn.prompt) - 1)
        try:
            instance = self.subject.open(Settings(), poison=None)
            plain = replace(turn.op, max_new_tokens=len(turn.warm.tokens), cancel_after=None)
            instance.turn(replace(plain, max_new_tokens=1), turn.prompt[:cut])
            seen = instance.turn(plain, turn.prompt)
        except RefusedError as error:
            self.result.notes.append(f"sending {turn.op.name} in two parts was refused: {error}")
            return None
        return reply_of(seen) if len(seen.tokens) == len(turn.warm.tokens) else None

    def _place(self, scenario: Scenario, played: Sequence[Played]) -> None:
        """The last turn, alone with those that it goes back to, gives the same bits and the same count; no statistics."""
        if self.result.findings or not self._salts or not played or not self._time_left():
            return
        name = played[-1].op.name
        if not self._repeats(played[-1]):
            return
        for again in range(1 + AGAIN):
            if again:
                scenario = self._texts.fresh(scenario)
                played, _instance = self.play(scenario)
            alone, _instance = self.play(by_itself(scenario, name))
            same = same_bits(played, alone)
            if same is None:
                return
            if same:
                if again:
                    self.result.notes.append(f"{scenario.title}, {name}: other bits than alone, but not every time")
                return
        message = f"other bits alone than among other traffic, {1 + AGAIN} plays of {1 + AGAIN}; it repeats itself else"
        left, right = (str(turns[-1].warm.tokens) for turns in (played, alone))
        self._found(
            scenario, Finding(check="placement", arm="alone", turn=name, message=message, left=left, right=right)
        )

    def _repeats(self, turn: Played) -> bool:
        """Whether one cold request gives the same bits three times, with unrelated ones in between. Asked once."""
        if self._exact is None:
            instance = self.subject.open(Settings(), poison=None)
            seen = []
            for extra in range(3):
                seen.append(self._cold(instance, turn, turn.prompt, max(turn.op.max_new_tokens, 1)))
                self._cold(instance, turn, self._texts.span(self.unit + extra, opening=True), 1)
            self._exact = all(each.tokens == seen[0].tokens and each.logprobs == seen[0].logprobs for each in seen)
        return self._exact

    def _recount(self, scenario: Scenario, turn: Played) -> None:
        """A count that cannot be right must show again on fresh texts."""
        for _ in range(AGAIN):
            played, _instance = self.play(self._texts.fresh(until(scenario, turn.op.name)))
            if not any(each.op.name == turn.op.name and each.overstated for each in played):
                self.result.suspects.append(f"{scenario.title}, turn {turn.op.name}: {turn.warm.reused} cached, once")
                return
        self._found(
            scenario,
            Finding(check="reuse", arm="twin", turn=turn.op.name, message="more was reused than any earlier request shares",
                    left=f"{turn.warm.reused} cached", right=f"{turn.most} at most"),
        )  # fmt: skip

    def _plant(
        self, turn: Played, instance: Instance, cold: Reply, controls: Sequence[tuple[Reply, Reply]], plants: int
    ) -> None:
        """Cold replies to the prompt with one reused page of other tokens: what a wrong page would look like."""
        reused = turn.warm.reused or turn.most
        for number in range(plants):
            wrong = self._wrong_page(turn.prompt, reused, number)
            if wrong is not None and self._time_left():
                seen = judge(reply_of(self._cold(instance, turn, wrong, len(cold.tokens))), cold, controls)
                self.result.power = self.result.power.plus(seen.suspicious)
                if seen.suspicious:
                    least = self.result.least_plant
                    self.result.least_plant = seen.statistic if least is None else min(least, seen.statistic)

    def _wrong_page(self, prompt: Tokens, reused: int, number: int) -> Tokens | None:
        """The last reused page, then any of them; by turns another text, and the same tokens some places on.

        None where no whole page was reused, or no other page is to be had: more than half of its tokens must change.
        """
        if reused < self.unit:
            return None
        pages = reused // self.unit
        page = pages - 1 if number < PLANTS // 2 else self._texts.source.randrange(pages)
        right = prompt[page * self.unit : (page + 1) * self.unit]
        by = 1 + (number // 2) % max(self.unit - 1, 1)
        moved = (*right[by:], *right[:by])
        others = [moved, *(self._texts.span(self.unit) for _ in range(PLANTS))][number % 2 == 0 :]
        for other in others:
            if 2 * sum(a != b for a, b in zip(other, right, strict=True)) > self.unit:
                return (*prompt[: page * self.unit], *other, *prompt[(page + 1) * self.unit :])
        return None

    def _cold(self, instance: Instance, turn: Played, prompt: Tokens, count: int) -> Observation:
        op = replace(turn.op, max_new_tokens=count, cancel_after=None)
        seen = instance.cold(op, prompt)
        self._sent.append((*prompt, *seen.tokens))
        return seen

    def _found(self, scenario: Scenario, finding: Finding) -> None:
        self.result.findings.append((scenario, finding))

    def _time_left(self) -> bool:
        return time.monotonic() < self._end

    def _conclude(self) -> None:
        result = self.result
        if result.findings:
            result.verdict = Verdict.FAIL
        elif result.suspects:
            result.verdict, result.why = Verdict.UNKNOWN, f"suspect: {result.suspects[0]}"
        elif not result.judged:
            why = "no turn that reused anything was compared"
            result.verdict, result.why = Verdict.UNKNOWN, "; ".join([why, *result.notes[:1]])
        elif not result.power.enough:
            result.verdict, result.why = Verdict.UNKNOWN, f"underpowered: {result.power}"
        else:
            result.verdict = Verdict.PASS
