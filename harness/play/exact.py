"""Scenario x arms x checks: plays one conversation on every arm in lock-step and hands each turn to the checks.

How a turn is judged. The warm instance plays it first, and beside it a second one whose unused memory holds another pattern.
Only then is anything predicted: the *twin* says from tokens alone how much may have been reused, and the *shadow* plays the
same model calls on pasts of its own, cut where the twin says, never where the engine does. An engine that is free to reuse
less, or to cut its prompt into calls as it likes, is followed there (`Twin.follow`), so that what is left to differ is what
the cache held. Published pages are shadowed likewise: the rows that the shadow computed for a prefix when it was first
published stay, whoever publishes it again. Under pool pressure the twin guesses no victims: what is still published is taken
over once it has been judged legal. The cold arm plays the request undisturbed, just as long as the warm reply was.

What all arms showed of one turn is a `TurnRecord`, and a check sees nothing else. Then twin, shadow and history hold what the
turn left behind, and the next turn begins.

A scenario ends at the first turn with a finding: after it the arms hold different histories, and what follows would repeat
the same news. Everything it saw comes back as data; nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as changed

from ..arms.arms import Arms
from ..arms.record import TurnRecord
from ..arms.shadow import MatchedTurn, Shadow
from ..arms.twin import Prediction, published_by
from ..checks import ALL, ENDS, LOOKED_FOR
from ..checks.conduct import CRASH, MASKED, REFUSAL, REWIND, VOCABULARY
from ..checks.poison import PATTERNS
from ..checks.registry import Check
from ..contract.errors import CrashError, MaskedError, RefusedError, ScenarioError
from ..contract.observation import Observation, PageKey, Tokens
from ..contract.scenario import Fork, NewSession, Op, Rewind, Scenario, Turn, resolve
from ..contract.verdict import CheckResult, Finding, Verdict, merge
from .guard import Guarded


@dataclass(frozen=True, kw_only=True)
class Lineup:
    """Which of the dearer arms run: all of them unless told.

    `to_the_end`: go on after a finding, so that each check is heard on every turn. For a scorecard: after a finding the arms
    may hold different histories, and what follows is only good for "this check could have seen it too".
    """

    cold: bool = True
    oracle: bool = True
    poison: bool = True
    to_the_end: bool = False


@dataclass(kw_only=True)
class ScenarioResult:
    """What one scenario showed. `reused_turns`: turns with `reused > 0`; `warm_prompt_tokens`: their prompts;
    `least_share`: the smallest share of its prompt that any of them reused."""

    scenario: Scenario
    turns: int = 0
    reused_turns: int = 0
    warm_prompt_tokens: int = 0
    reused_tokens: int = 0
    least_share: float = 1.0
    generated_tokens: int = 0
    checks: dict[str, CheckResult] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """The worst over checks, before the question whether anything was reused."""
        if self.findings:
            return Verdict.FAIL
        return merge(result.verdict for result in self.checks.values())

    def count(self, record: TurnRecord) -> None:
        """One more turn was played."""
        reused = record.warm.reused or 0
        self.turns += 1
        self.generated_tokens += len(record.warm.tokens)
        self.sources[record.plan.source] = self.sources.get(record.plan.source, 0) + 1
        if reused:
            self.reused_turns += 1
            self.reused_tokens += reused
            self.warm_prompt_tokens += len(record.prompt)
            self.least_share = min(self.least_share, reused / len(record.prompt))


def run_scenario(
    arms: Arms, scenario: Scenario, lineup: Lineup | None = None, each: Callable[[TurnRecord], None] | None = None
) -> ScenarioResult:
    """Play `scenario` on every arm. Does not raise for anything the subject does. `each` is given every turn's record."""
    play = _Play(arms, scenario, lineup or Lineup())
    play.each = each
    return play.run()


def merge_checks(results: Sequence[ScenarioResult]) -> Mapping[str, CheckResult]:
    """What each check did over several scenarios."""
    total: dict[str, CheckResult] = {}
    for result in results:
        for name, seen in result.checks.items():
            total.setdefault(name, CheckResult()).add(seen)
    return total


@dataclass(frozen=True, kw_only=True)
class _Played:
    """A turn that was answered, with what was predicted of it. `matched` None: nothing can replay it."""

    op: Turn
    prompt: Tokens
    warm: Observation
    plan: Prediction
    matched: MatchedTurn | None

    @property
    def context(self) -> Tokens:
        """Prompt and reply; of a turn that failed, the reply that it would have given."""
        tokens = self.matched.tokens if self.warm.failed and self.matched else self.warm.tokens
        return (*self.prompt, *tokens)


class _Play:
    """One scenario in progress."""

    each: Callable[[TurnRecord], None] | None = None

    def __init__(self, arms: Arms, scenario: Scenario, lineup: Lineup) -> None:
        self.arms = arms
        self.subject = arms.subject
        self.lineup = lineup
        self.settings = scenario.settings
        self.result = ScenarioResult(scenario=scenario)
        self.history: dict[str, tuple[Tokens, Tokens]] = {}
        self.twin = arms.twin(self.settings)
        self.shadow: Shadow | None = None
        if arms.matched is not None:
            size = self.settings.page_size
            self.shadow = Shadow(arms.matched, page_size=size, max_context=self.subject.max_context)
        poisoned = lineup.poison and self.subject.capabilities.poison
        patterns: Sequence[float | None] = PATTERNS if poisoned else (None,)
        self.instances = [Guarded(self.subject.open(self.settings, poison=pattern)) for pattern in patterns]
        self.warm = self.instances[0]

    def run(self) -> ScenarioResult:
        place = "idle"
        try:
            for op in self.result.scenario.ops:
                place = op.name if isinstance(op, Turn) else f"{op.op} {op.session}"
                self._op(op)
                if self._over():
                    return self.result
            place = "idle"
            self._idle()
        except CrashError as error:
            self._find(CRASH, place, f"the subject crashed in {error.call}", error.text, "no exception")
        except ScenarioError:
            raise
        except Exception:  # a fault of ours, unless it follows from histories that already differ
            if not (self.lineup.to_the_end and self.result.findings):
                raise
        return self.result

    def _over(self) -> bool:
        """Whether to end here: at the first finding, or, going to the end, at one that leaves nothing to compare."""
        found = {finding.check for finding in self.result.findings}
        return bool(found & ENDS) if self.lineup.to_the_end else bool(found)

    def _op(self, op: Op) -> None:
        if isinstance(op, Turn):
            self._turn(op)
        elif isinstance(op, NewSession):
            self._new(op.session)
        elif isinstance(op, Fork):
            self._fork(op)
        else:
            self._rewind(op)

    def _new(self, session: str) -> None:
        for instance in self.instances:
            instance.new_session(session)
        self.twin.new_session(session)
        if self.shadow is not None:
            self.shadow.new_session(session)

    def _fork(self, op: Fork) -> None:
        for instance in self.instances:
            instance.fork(op.session, op.to)
        self.twin.fork(op.session, op.to)
        if self.shadow is not None:
            self.shadow.fork(op.session, op.to)

    def _rewind(self, op: Rewind) -> None:
        held = self.twin.held(op.session)
        n = min(round(op.to * held) if isinstance(op.to, float) else op.to, held)
        expected = self.twin.rewinds(op.session, n)
        if expected is None and not held:
            return  # there is nothing that it could decline
        done = [instance.rewind(op.session, n) for instance in self.instances]
        if expected is not None and done != [expected] * len(done):
            self._find(REWIND, op.session, f"rewind to {n} of {held}", done[0], expected)
        elif all(done):  # one that declined left everything as it was, or the next turns show it
            self.twin.rewind(op.session, n)
            if self.shadow is not None:
                self.shadow.rewind(op.session, n)

    def _turn(self, op: Turn) -> None:
        prompt = resolve(op, self.history, self.subject.encode)
        self._known_ids(op, prompt)
        seen = self._answers(op, prompt)
        if seen is None:
            return
        if op.cancel_after == 0:
            self.history[op.name] = (prompt, prompt)  # it never started: nothing may have changed, as later turns show
            return
        self._judge(self._record(op, prompt, seen))

    def _known_ids(self, op: Turn, prompt: Tokens) -> None:
        vocabulary = self.subject.vocab_size
        if foreign := [token for token in prompt if not 0 <= token < vocabulary]:
            raise ScenarioError(
                f"turn {op.name}: token id {foreign[0]}; this model's are 0 to {vocabulary - 1}; edit the case"
            )

    def _answers(self, op: Turn, prompt: Tokens) -> list[Observation] | None:
        """What every instance answered; None where they refused, rightly or not, or where the answer is no answer."""
        longest, vocabulary = self.subject.max_context, self.subject.vocab_size
        legal = 0 < len(prompt) <= longest
        try:
            seen = [instance.turn(op, prompt) for instance in self.instances]
        except RefusedError as error:
            if legal:
                self._find(REFUSAL, op.name, "a legal prompt was refused", error, "a reply")
            return None
        except MaskedError as error:
            self._find(MASKED, op.name, "an error inside the engine was masked", error, "an error")
            return None
        strange = [token for token in seen[0].tokens if not 0 <= token < vocabulary]
        if not legal:
            said = f"{len(prompt)} tokens"
            self._find(REFUSAL, op.name, "an illegal prompt was answered", said, f"1 to {longest}")
        elif strange:
            message, wanted = "the reply has a token that the model does not have", f"0 to {vocabulary - 1}"
            self._find(VOCABULARY, op.name, message, strange[0], wanted)
        else:
            return seen
        return None

    def _record(self, op: Turn, prompt: Tokens, seen: Sequence[Observation]) -> TurnRecord:
        """Bring twin and shadow over the turn, and put everything that was seen side by side."""
        warm = replace(seen[0], pool=self.warm.pool())
        plan = self.twin.predict(op.session, prompt, op.salt, decline_rewind=op.decline_rewind)
        plan = self.twin.follow(plan, prompt, warm)
        before = frozenset(self.twin.published)
        matched = self.shadow.turn(op, prompt, plan) if self.shadow is not None else None
        played = _Played(op=op, prompt=prompt, warm=warm, plan=plan, matched=matched)
        fed, legal = self._over_the_turn(played)
        required = set(before) if warm.failed else legal
        wanted = 0 if plan.gate else self.twin.pages_wanted(max(len(fed), len(prompt)), plan.cut)
        observed = set(warm.pool.entries) if warm.pool is not None else legal
        self._shadow_pages(played, fed, legal & observed, pressed=wanted > self.settings.pages - len(before))
        if self.shadow is not None:
            self.shadow.forget(observed)
        self.twin.settle(observed & legal)
        self.history[op.name] = (prompt, played.context)
        return TurnRecord(
            name=op.name,
            prompt=prompt,
            salt=op.salt,
            fed=fed,
            settings=self.settings,
            stateful=self.subject.stateful,
            capabilities=self.subject.capabilities,
            warm=warm,
            plan=plan,
            matched=matched,
            before=before,
            legal=frozenset(legal),
            required=frozenset(required),
            wanted_pages=wanted,
            shadow_pages=dict(self.shadow.pages) if self.shadow is not None else {},
            cold=self._cold(op, prompt, warm),
            closed=self.arms.closed,
            poisoned=seen[1] if len(seen) > 1 else None,
            recompute=self.arms.oracle if self.lineup.oracle else None,
        )

    def _over_the_turn(self, played: _Played) -> tuple[Tokens, set[PageKey]]:
        """The twin's books after it: what has run through the model, and which prefixes may be published."""
        op, plan, context = played.op, played.plan, played.context
        if played.warm.failed:
            fed = context[: max(len(played.prompt), len(context) - 1)]
            return fed, self.twin.fail(op.session, fed, op.salt, plan)
        fed = self.twin.fed(played.prompt, played.warm.tokens, plan, op.cancel_after)
        return fed, self.twin.finish(op.session, context, fed, op.salt, plan)

    def _shadow_pages(self, played: _Played, fed: Tokens, published: set[PageKey], *, pressed: bool) -> None:
        """The shadow's rows of what the turn published. `pressed`: it may have evicted a prefix and published it anew."""
        if self.shadow is None or played.matched is None:
            return
        op, end, pool = played.op, played.matched.end, played.warm.pool
        if played.warm.failed:
            self.shadow.new_session(op.session)
        if pool is not None and pressed:
            own = published_by(fed, op.salt, self.settings.page_size)
            rows = {key: rows for key, rows in pool.bytes.items() if key in own}
            self.shadow.republish(rows, played.prompt, op.salt, played.plan, end)
        self.shadow.publish(published, played.prompt, op.salt, played.plan, end)

    def _cold(self, op: Turn, prompt: Tokens, warm: Observation) -> Observation | None:
        """The same request cold, undisturbed and just as long; None for a turn that gave no token to compare."""
        if not self.lineup.cold or warm.failed or (op.cancel_after is not None and not warm.tokens):
            return None
        return self.warm.cold(changed(op, cancel_after=None, fail=None, max_new_tokens=len(warm.tokens)), prompt)

    def _judge(self, record: TurnRecord) -> None:
        if self.each is not None:
            self.each(record)
        self.result.count(record)
        for name, check in LOOKED_FOR.items():
            if check.after_failure or not record.warm.failed:
                seen = check(record)
                self.result.checks.setdefault(name, CheckResult()).add(seen)
                self.result.findings += seen.findings

    def _idle(self) -> None:
        """After the last turn: drop the cache, and nothing may be held any more."""
        self.warm.clear()
        pool = self.warm.pool()
        if pool is not None and len(pool.free) != pool.total:
            message, said = "pages are still held after the cache was cleared", f"{len(pool.free)} free"
            self._find(ALL["conservation"], "idle", message, said, f"{pool.total} free")

    def _find(self, check: Check, turn: str, message: str, left: object, right: object) -> None:
        finding = check.finding(turn, message, left, right)
        self.result.findings.append(finding)
        self.result.checks.setdefault(check.name, CheckResult()).findings.append(finding)
