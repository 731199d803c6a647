"""Verify one model on one backend: which conversations to play, when to stop, and what the run concludes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...fixtures import closed_forms
from ..arms.oracle import BareLoop, RawModel
from ..arms.record import NO_MATCHED
from ..contract.scenario import Scenario
from ..contract.subject import Subject
from ..contract.verdict import CheckResult, Finding, Level, Verdict, merge
from ..conversations.drawing import for_each
from ..conversations.profile import Profile
from ..conversations.texts import REAL_VOCABULARY, chats, material
from ..play.exact import Arms, ScenarioResult, Watch, merge_checks, run_scenario
from ..subjects.engine import EngineSubject
from ..subjects.load import open_subject
from .events import Event, LegFinished, LegStarted, ScenarioPlayed
from .statistical import StatisticalRun

NEEDS = {
    "reuse": Level.L1,
    "efficiency": Level.L1,
    "logits": Level.L2,
    "feeds": Level.L3,
    "kv_seed": Level.L3,
    "kv_pages": Level.L3,
    "kv_end": Level.L3,
    "conservation": Level.L3,
}
"""The level that a check's evidence belongs to: without it a run is at most at the level below."""

OnFailure = Callable[[Arms, Watch, ScenarioPlayed], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to verify. `seconds` bounds the time after loading; `cases` are played first; `keep_going`: past failures.
    `longest`: generated contexts, in positions.

    `subject`: another engine's name, to be judged instead of `backend`, with its `options`; `model` may then be an address.

    `on_failure` is called with the first conversation that fails, after its event, while the model is still loaded.
    """

    model: Path | str
    backend: str = "native"
    subject: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    numerics: str = "invariant"
    examples: int = 30
    seconds: float = 120.0
    seed: int = 0
    longest: int = 64
    threads: int = 2
    cases: Sequence[tuple[str, Scenario]] = ()
    keep_going: bool = False
    on_failure: OnFailure | None = None

    @property
    def leg(self) -> str:
        """Backend and device, the name that `--require-legs` uses."""
        return f"{(self.subject or self.backend).rpartition(':')[2]}-{self.device}"

    def found(self) -> dict[str, Any]:
        """What a case file says about where it was found, enough to play it there again."""
        plain: dict[str, Any] = {"model": str(self.model), "leg": self.leg}
        if self.subject is None:
            return {**plain, "numerics": self.numerics}
        return {**plain, "subject": self.subject, "options": dict(self.options)}

    def open(self) -> Arms:
        """Load the model into what is to be judged, and into everything that judges it. Raises what loading raises."""
        if self.subject is None:
            return open_arms(
                Path(self.model), self.backend, device=self.device, numerics=self.numerics, threads=self.threads
            )
        subject = open_subject(self.subject, self.model, threads=self.threads, options=self.options)
        return arms_of(subject, RawModel(subject.onnx, threads=self.threads) if subject.onnx is not None else None)


def open_arms(model: Path, backend: str, *, device: str = "cpu", numerics: str = "invariant", threads: int = 2) -> Arms:
    """Load a model into our own engine and into everything that judges it. Raises what loading raises."""
    subject = EngineSubject(model, backend=backend, device=device, numerics=numerics, threads=threads)
    raw = RawModel(model, threads=threads)
    arms = arms_of(subject, raw)
    if subject.own_kernels:
        arms = replace(arms, matched=BareLoop(raw.ports, subject.bare))
    return replace(arms, closed=closed_forms.load(model if model.is_dir() else model.parent))


def arms_of(subject: Subject, raw: RawModel | None) -> Arms:
    """What judges `subject`: its own lowest-level call where it offers one, else `raw`, its model under ONNX Runtime."""
    bare = BareLoop(raw.ports, raw.run) if raw is not None else None
    return Arms(
        subject=subject,
        matched=subject.loop() or bare,
        oracle=subject.recompute() or (bare.recompute if bare is not None else None),
        closed=None,
        encode=subject.encode,
        stateful=subject.stateful,
        max_context=subject.max_context,
        vocab_size=subject.vocab_size,
    )


def verify(request: Request, emit: Callable[[Event], None], arms: Arms | None = None) -> LegFinished:
    """Play conversations until a failure, the number or the time asked for; emits events as it goes."""
    own = arms is None
    arms = arms or request.open()
    try:
        run = _Run(request, arms, emit) if arms.judgeable else StatisticalRun(request, arms, emit)
        return run.run()
    finally:
        if own:
            arms.subject.close()


@dataclass
class _Run:
    request: Request
    arms: Arms
    emit: Callable[[Event], None]
    results: list[ScenarioResult] = field(default_factory=list)
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def run(self) -> LegFinished:
        request = self.request
        fixed = [*request.cases, *self._built_in()]
        self.emit(LegStarted(leg=request.leg, model=str(request.model), planned=len(fixed) + self._drawn(),
                             described=dict(self.arms.subject.describe()), found=request.found()))  # fmt: skip
        try:
            self._play_all(fixed)
        except KeyboardInterrupt:
            self.emit(self._conclude(interrupted=True))
            raise
        finished = self._conclude()
        self.emit(finished)
        return finished

    def _play_all(self, fixed: Sequence[tuple[str, Scenario]]) -> None:
        """The given conversations, then drawn ones, until something says stop."""
        going = all(self._play(origin, scenario) for origin, scenario in fixed)
        if going and self._drawn():
            profile = Profile(
                vocab_size=self.arms.vocab_size,
                longest=min(self.arms.max_context, self.request.longest),
                operations=self.arms.subject.capabilities.operations,
                boundaries=self.arms.subject.capabilities.boundaries,
                plain=self.arms.subject.capabilities.reuse.scope != "policy",
                corpus=material(self.arms.encode, self.arms.vocab_size),
            )
            seed = self.request.seed
            for_each(profile, count=self._drawn(), seed_value=seed, play=lambda s: self._play("generated", s))

    @property
    def _real(self) -> bool:
        return self.arms.vocab_size >= REAL_VOCABULARY

    def _drawn(self) -> int:
        return self.request.examples

    def _built_in(self) -> Iterator[tuple[str, Scenario]]:
        if self._real and material(self.arms.encode, self.arms.vocab_size) is not None:
            yield from chats(self.arms.encode, sessions="sessions" in self.arms.subject.capabilities.operations)

    def _play(self, origin: str, scenario: Scenario) -> bool:
        """Judge one scenario; False when the run should end here."""
        if self.results and time.monotonic() - self.started > self.request.seconds:
            return False
        watch = Watch(poison=not self._real or not self.results)
        result = run_scenario(self.arms, scenario, watch)
        self.results.append(result)
        first = bool(result.findings) and not self.findings
        self.findings += [(origin, finding) for finding in result.findings]
        played = ScenarioPlayed(leg=self.request.leg, model=str(self.request.model), number=len(self.results),
                                origin=origin, result=result)  # fmt: skip
        self.emit(played)
        if first and self.request.on_failure is not None:
            self.request.on_failure(self.arms, watch, played)
        return self.request.keep_going or not result.findings

    def _conclude(self, *, interrupted: bool = False) -> LegFinished:
        checks = merge_checks(self.results)
        verdict = Verdict.FAIL if self.findings else merge(result.verdict for result in checks.values())
        reused_turns = sum(result.reused_turns for result in self.results)
        why = None
        if verdict is Verdict.PASS and self.arms.stateful and not reused_turns:
            verdict, why = Verdict.UNKNOWN, "no turn that reused anything was compared"
        if verdict is Verdict.PASS and interrupted:
            verdict, why = Verdict.UNKNOWN, "interrupted before its end; what was played showed no difference"
        blind = sorted(name for name, seen in checks.items() if seen.verdict is Verdict.UNKNOWN)
        if verdict is Verdict.UNKNOWN and blind:
            why = f"these checks apply but compared nothing: {', '.join(blind)}"
        return LegFinished(
            leg=self.request.leg,
            model=str(self.request.model),
            verdict=verdict,
            level=self._level(checks),
            scenarios=len(self.results),
            turns=sum(result.turns for result in self.results),
            reused_turns=reused_turns,
            warm_prompt_tokens=sum(result.warm_prompt_tokens for result in self.results),
            reused_tokens=sum(result.reused_tokens for result in self.results),
            generated_tokens=sum(result.generated_tokens for result in self.results),
            seconds=time.monotonic() - self.started,
            checks=checks,
            findings=tuple(self.findings),
            why=why,
        )

    def _level(self, checks: Mapping[str, CheckResult]) -> Level:
        """What was declared, lowered by what the subject then did not show."""
        level = self.arms.subject.capabilities.level
        for name, seen in checks.items():
            if seen.not_observable and not seen.compared:
                needed = Level.L4 if seen.not_observable == NO_MATCHED else NEEDS[name]
                level = min(level, Level(needed - 1))
        return level
