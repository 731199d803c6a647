"""Scenario x arms x checks. Plays one conversation on every arm in lock-step and hands each turn to the checks.

A scenario ends at the first turn with a finding: after it the arms hold different histories, and what follows would
repeat the same news. Everything it saw comes back as data; nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec.structs import replace as changed
from numpy.typing import NDArray

from ..arms.external_twin import ForeignTwin
from ..arms.record import ClosedForm, TurnRecord
from ..arms.shadow import MatchedTurn, Shadow
from ..arms.twin import Prediction, Twin
from ..checks import ALL
from ..checks.poison import PATTERNS
from ..contract.errors import CrashError, MaskedError, RefusedError, ScenarioError
from ..contract.observation import Observation, Tokens
from ..contract.scenario import Fork, NewSession, Op, Rewind, Scenario, Settings, Turn, resolve
from ..contract.subject import AnyLoop, Instance, Recompute, Subject
from ..contract.verdict import CheckResult, Finding, Verdict, merge

AFTER_FAILURE = ("kv_pages", "conservation")
"""What can be judged of a turn that failed: pages. That nothing else was left behind, the turns after it show."""

ENDS = frozenset({"crash", "refusal", "rewind", "masked", "vocabulary"})
"""After these the subject and its arms no longer hold the same conversation, so nothing further can be judged."""

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Arms:
    """What a subject is judged with. `matched`: what replays its schedules, on pasts that the harness holds; `oracle`: what
    recomputes a context from nothing; `closed`: the fixture's closed form. None where there is none."""

    subject: Subject
    matched: AnyLoop | None
    oracle: Recompute | None
    closed: ClosedForm | None
    encode: Encode
    stateful: bool
    max_context: int
    vocab_size: int

    @property
    def judgeable(self) -> bool:
        """Whether a single turn can be judged, without statistics: something replays it, recomputes it, or cold is exact."""
        return self.matched is not None or self.oracle is not None or self.subject.capabilities.invariant

    def twin(self, settings: Settings) -> Twin:
        """The bookkeeping that the subject's reuse model asks for, holding nothing."""
        model = self.subject.capabilities.reuse
        if model.scope == "policy":
            return Twin(settings=settings, stateful=self.stateful, max_context=self.max_context)
        settings = changed(settings, pages=0)
        return ForeignTwin(settings=settings, stateful=self.stateful, max_context=self.max_context, model=model)


@dataclass(frozen=True, kw_only=True)
class Watch:
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


def run_scenario(
    arms: Arms, scenario: Scenario, watch: Watch | None = None, each: Callable[[TurnRecord], None] | None = None
) -> ScenarioResult:
    """Play `scenario` on every arm. Does not raise for anything the subject does. `each` is given every turn's record."""
    return _Play(arms, scenario, watch or Watch(), each).run()


class Guarded:
    """A subject's instance whose unexpected exceptions are told apart from the harness's own."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._instance, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except (RefusedError, MaskedError):
                raise
            except Exception as error:  # whatever an engine throws is a finding about it
                raise CrashError(name, error) from error

        return call


class _Play:
    """One scenario in progress."""

    def __init__(self, arms: Arms, scenario: Scenario, watch: Watch, each: Callable[[TurnRecord], None] | None) -> None:
        self.each = each
        self.arms = arms
        self.watch = watch
        self.result = ScenarioResult(scenario=scenario)
        settings = scenario.settings
        self.twin = arms.twin(settings)
        self.foreign = arms.subject.capabilities.reuse.scope != "policy"
        self.shadow = (
            Shadow(arms.matched, page_size=settings.page_size, max_context=arms.max_context) if arms.matched else None
        )
        poison = watch.poison and arms.subject.capabilities.poison
        self.warm: Any = Guarded(arms.subject.open(settings, poison=PATTERNS[0] if poison else None))
        self.other: Any = Guarded(arms.subject.open(settings, poison=PATTERNS[1])) if poison else None
        self.history: dict[str, tuple[Tokens, Tokens]] = {}

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
            self._find("crash", "subject", place, f"the subject crashed in {error.call}", error.text, "no exception")
        except ScenarioError:
            raise
        except Exception:
            if not (self.watch.to_the_end and self.result.findings):
                raise  # a fault of ours, unless it follows from histories that already differ
        return self.result

    def _over(self) -> bool:
        """Whether to end here: at the first finding, or, going to the end, at one that leaves nothing to compare."""
        found = {finding.check for finding in self.result.findings}
        return bool(found & ENDS) if self.watch.to_the_end else bool(found)

    def _op(self, op: Op) -> None:
        if isinstance(op, Turn):
            self._turn(op)
        elif isinstance(op, NewSession):
            self._new(op)
        elif isinstance(op, Fork):
            self._fork(op)
        else:
            self._rewind(op)

    def _instances(self) -> list[Any]:
        return [self.warm] if self.other is None else [self.warm, self.other]

    def _new(self, op: NewSession) -> None:
        for instance in self._instances():
            instance.new_session(op.session)
        self.twin.new_session(op.session)
        if self.shadow is not None:
            self.shadow.new_session(op.session)

    def _fork(self, op: Fork) -> None:
        for instance in self._instances():
            instance.fork(op.session, op.to)
        self.twin.fork(op.session, op.to)
        if self.shadow is not None:
            self.shadow.fork(op.session, op.to)

    def _rewind(self, op: Rewind) -> None:
        held = self.twin.held(op.session)
        n = min(round(op.to * held) if isinstance(op.to, float) else op.to, held)
        if self.foreign and not (held and self.warm.rewind(op.session, n)):
            return  # it may decline; that it left everything as it was, the next turns show
        expected = self.twin.rewind(op.session, n)
        for instance in self._instances() if not self.foreign else ():
            done = instance.rewind(op.session, n)
            if done != expected:
                self._find("rewind", "twin", op.session, f"rewind to {n} of {held}", str(done), str(expected))
                return
        if expected and self.shadow is not None:
            self.shadow.rewind(op.session, n)

    def _turn(self, op: Turn) -> None:
        prompt = resolve(op, self.history, self.arms.encode)
        if foreign := [token for token in prompt if not 0 <= token < self.arms.vocab_size]:
            raise ScenarioError(
                f"turn {op.name}: token id {foreign[0]}; this model's are 0 to {self.arms.vocab_size - 1}; edit the case"
            )
        legal = 0 < len(prompt) <= self.arms.max_context
        try:
            seen = [instance.turn(op, prompt) for instance in self._instances()]
        except RefusedError as error:
            if legal:
                self._find("refusal", "twin", op.name, "a legal prompt was refused", str(error), "a reply")
            return
        except MaskedError as error:
            self._find("masked", "law", op.name, "an error inside the engine was masked", str(error), "an error")
            return
        if not legal:
            self._find("refusal", "twin", op.name, "an illegal prompt was answered", f"{len(prompt)} tokens",
                       f"1 to {self.arms.max_context}")  # fmt: skip
            return
        if strange := [token for token in seen[0].tokens if not 0 <= token < self.arms.vocab_size]:
            self._find("vocabulary", "law", op.name, "the reply has a token that the model does not have", str(strange[0]),
                       f"0 to {self.arms.vocab_size - 1}")  # fmt: skip
            return
        if op.cancel_after == 0:
            self.history[op.name] = (prompt, prompt)  # it never started: nothing may have changed, as later turns show
            return
        self._judge(self._record(op, prompt, seen))

    def _record(self, op: Turn, prompt: Tokens, seen: list[Observation]) -> TurnRecord:
        """Bring twin and shadow over the turn, and put everything that was seen side by side."""
        warm = replace(seen[0], pool=self.warm.pool())
        twin, shadow = self.twin, self.shadow
        plan = twin.predict(op.session, prompt, op.salt, decline_rewind=op.decline_rewind)
        bound = plan.reused
        if isinstance(twin, ForeignTwin) and warm.reused is not None and 0 <= warm.reused < bound:
            plan = twin.cut(plan, prompt, warm.reused)  # it may reuse less (`efficiency` says where it may not)
        before = frozenset(twin.published)
        rows = warm.fed_rows if self.foreign and warm.reused == plan.reused else None
        matched = self._matched(op, prompt, plan, rows)
        context = (*prompt, *(matched.tokens if warm.failed and matched else warm.tokens))
        if warm.failed:
            fed = context[: len(prompt) + max(len(context) - len(prompt) - 1, 0)]
            legal, required = twin.fail(op.session, fed, op.salt, plan), set(before)
        else:
            fed = twin.fed(prompt, warm.tokens, plan, op.cancel_after)
            fed = context[: plan.reused + sum(rows)] if rows is not None else fed
            legal = required = twin.finish(op.session, context, fed, op.salt, plan)
        wanted = 0 if plan.gate else twin.pages_wanted(max(len(fed), len(prompt)), plan.cut)
        observed = set(warm.pool.entries) if warm.pool is not None else legal
        if shadow is not None and matched is not None:
            if warm.failed:
                shadow.new_session(op.session)
            if warm.pool is not None and wanted > self.result.scenario.settings.pages - len(before):
                own = {key: rows for key, rows in warm.pool.bytes.items() if key in twin.keys(fed, op.salt)}
                shadow.republish(own, prompt, op.salt, plan, matched.end)
            shadow.publish(legal & observed, prompt, op.salt, plan, matched.end)
            shadow.forget(observed)
        twin.settle(observed & legal)
        self.history[op.name] = (prompt, context)
        return TurnRecord(
            name=op.name,
            prompt=prompt,
            salt=op.salt,
            fed=fed,
            settings=self.result.scenario.settings,
            stateful=self.arms.stateful,
            capabilities=self.arms.subject.capabilities,
            warm=warm,
            plan=plan,
            bound=bound,
            matched=matched,
            before=before,
            legal=frozenset(legal),
            required=frozenset(required),
            wanted_pages=wanted,
            shadow_pages=dict(shadow.pages) if shadow is not None else {},
            cold=self._cold(op, prompt, warm),
            closed=self.arms.closed,
            poisoned=seen[1] if len(seen) > 1 else None,
            recompute=self._recompute if self.watch.oracle and self.arms.oracle is not None else None,
        )

    def _recompute(self, tokens: Sequence[int], schedule: Sequence[int] | None) -> NDArray[np.float32]:
        """The oracle; where it is the subject's own library, what that raises is a finding about it."""
        assert self.arms.oracle is not None
        try:
            return self.arms.oracle(tokens, schedule)
        except Exception as error:  # a library may raise anything; of ours it is our own fault, and goes up
            if not self.foreign:
                raise
            raise CrashError("recompute", error) from error

    def _matched(self, op: Turn, prompt: Tokens, plan: Prediction, rows: Sequence[int] | None) -> MatchedTurn | None:
        if self.shadow is None:
            return None
        return self.shadow.turn(
            op.session, prompt, op.salt, plan, max_new_tokens=op.max_new_tokens, max_calls=op.cancel_after, rows=rows
        )

    def _cold(self, op: Turn, prompt: Tokens, warm: Observation) -> Observation | None:
        """The same request cold, undisturbed and just as long; None for a turn that gave no token to compare."""
        if not self.watch.cold or warm.failed or (op.cancel_after is not None and not warm.tokens):
            return None
        calm = changed(op, cancel_after=None, fail=None, max_new_tokens=len(warm.tokens))
        seen: Observation = self.warm.cold(calm, prompt)
        return seen

    def _judge(self, record: TurnRecord) -> None:
        result = self.result
        if self.each is not None:
            self.each(record)
        result.turns += 1
        result.warm_prompt_tokens += len(record.prompt) if record.warm.reused else 0
        result.reused_tokens += record.warm.reused or 0
        result.generated_tokens += len(record.warm.tokens)
        if record.warm.reused:
            result.reused_turns += 1
            result.least_share = min(result.least_share, record.warm.reused / len(record.prompt))
        result.sources[record.plan.source] = result.sources.get(record.plan.source, 0) + 1
        names = AFTER_FAILURE if record.warm.failed else tuple(ALL)
        if record.poisoned is not None and record.poisoned.failed != record.warm.failed:
            self._find("poison", "poison", record.name, "a planted error struck in one run only", str(record.warm.failed),
                       str(record.poisoned.failed))  # fmt: skip
        for name in names:
            seen = ALL[name](record)
            result.checks.setdefault(name, CheckResult()).add(seen)
            result.findings += seen.findings

    def _idle(self) -> None:
        """After the last turn: drop the cache, and nothing may be held any more."""
        self.warm.clear()
        pool = self.warm.pool()
        if pool is not None and len(pool.free) != pool.total:
            self._find("conservation", "law", "idle", "pages are still held after the cache was cleared",
                       f"{len(pool.free)} free", f"{pool.total} free")  # fmt: skip

    def _find(self, check: str, arm: str, turn: str, message: str, left: str, right: str) -> None:
        finding = Finding(check=check, arm=arm, turn=turn, message=message, left=left, right=right)
        self.result.findings.append(finding)
        self.result.checks.setdefault(check, CheckResult()).findings.append(finding)


def merge_checks(results: Sequence[ScenarioResult]) -> Mapping[str, CheckResult]:
    """What each check did over several scenarios."""
    total: dict[str, CheckResult] = {}
    for result in results:
        for name, seen in result.checks.items():
            total.setdefault(name, CheckResult()).add(seen)
    return total
