"""A check declares itself where it stands: `@check(order=..., needs=...)` above the function that compares.

From that follow the level that a run can claim, what may be judged of a turn that failed, the columns of reports and
scorecard, and what a reader is told. A new check is a new file in this folder, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..arms.record import TurnRecord
from ..contract.verdict import CheckResult, Finding, Level
from .look import Look

NO_MATCHED = "no matched arm: the subject cannot be replayed step by step"


@dataclass(frozen=True)
class Need:
    """What must be there for a check to compare anything. `level`: that of the evidence; None where lacking it is no fault of
    the subject's, so that the check does not apply. `met` says whether it is there."""

    why: str
    met: Callable[[TurnRecord], bool]
    level: Level | None = None


NEEDS: Mapping[str, Need] = {
    "state": Need("the model carries no state", lambda r: r.stateful),
    "pool": Need("the subject declares no page pool", lambda r: "pages" in r.capabilities.has),
    "paged": Need("the scenario runs unpaged", lambda r: r.settings.pages > 0),
    "own calls": Need(
        "the subject shows rows, not whole model calls; its schedule is matched",
        lambda r: r.warm.calls is not None or "feeds" in r.capabilities.has,
    ),
    "hit": Need("nothing was reused", lambda r: bool(r.warm.reused)),
    "exact": Need("the subject does not declare that it reuses all it can", lambda r: r.capabilities.reuse.exact),
    "closed form": Need("the model has no closed form", lambda r: r.closed is not None),
    "cold": Need("the cold arm was not run", lambda r: r.cold is not None),
    "oracle": Need("the oracle was not asked for this turn", lambda r: r.recompute is not None),
    "reply": Need("no token was asked for", lambda r: bool(r.warm.tokens)),
    "poison": Need("the poison arm was not run", lambda r: r.poisoned is not None),
    "as planned": Need(
        "another count was reused, so the schedules differ; see reuse and efficiency", lambda r: r.as_planned
    ),
    "agreed": Need(
        "another count was reused or other tokens were fed; see reuse, efficiency and tokens", lambda r: r.agreed
    ),
    "count": Need("the subject does not report how much it reused", lambda r: r.warm.reused is not None, Level.L1),
    "logits": Need("the subject does not show logits", lambda r: r.warm.last_rows is not None, Level.L2),
    "feeds": Need("the subject does not show what it feeds", lambda r: r.warm.calls is not None, Level.L3),
    "seed": Need("the subject does not show its KV", lambda r: r.warm.seeded is not None, Level.L3),
    "kv": Need("the subject does not show its KV", lambda r: r.warm.end is not None, Level.L3),
    "pages": Need("the subject does not show its pages", lambda r: r.warm.pool is not None, Level.L3),
    "matched": Need(NO_MATCHED, lambda r: r.matched is not None, Level.L4),
    "matched kv": Need(NO_MATCHED, lambda r: r.matched is not None and r.matched.end is not None, Level.L4),
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """`look` compares one turn; None for what the play itself finds. `order`: in which a reader wants the news.

    `says`: its law in a line; `blind`: what it cannot see. `after_failure`: it judges a turn that failed too. `ends`: after a
    finding of it the subject and its arms no longer hold the same conversation, so that nothing further can be judged.
    `arm`: what the subject is held against where it is found while playing.
    """

    name: str
    order: int
    says: str
    blind: str
    needs: tuple[str, ...] = ()
    look: Callable[[Look], None] | None = None
    after_failure: bool = False
    ends: bool = False
    arm: str = "law"

    def finding(self, turn: str, message: str, left: object, right: object) -> Finding:
        """What was found while playing: what the subject did, and what it ought to have done."""
        return Finding(check=self.name, arm=self.arm, turn=turn, message=message, left=str(left), right=str(right))

    def __call__(self, record: TurnRecord) -> CheckResult:
        """What it compared in one turn, and what differed; or why it compared nothing."""
        assert self.look is not None, f"{self.name} is found while playing, not looked for"
        for name in self.needs:
            need = NEEDS[name]
            if not need.met(record):
                return _ruled_out(need)
        seen = Look(self.name, record)
        self.look(seen)
        return seen.result


REGISTRY: dict[str, Check] = {}
"""Every check by name; `checks.ALL` has them in their order."""


def check(
    *, order: int, needs: tuple[str, ...] = (), after_failure: bool = False
) -> Callable[[Callable[[Look], None]], Check]:
    """Register the function below as the check of its name. Its docstring is its law, and ends with what it cannot see."""

    def register(look: Callable[[Look], None]) -> Check:
        law, _, blind = (look.__doc__ or "").partition("Cannot see: ")
        assert blind, f"{look.__name__}: its docstring does not say what it cannot see"
        return declare(
            Check(
                name=look.__name__,
                order=order,
                says=_line(law),
                blind=" ".join(blind.split()),
                needs=needs,
                look=look,
                after_failure=after_failure,
            )
        )

    return register


def declare(new: Check) -> Check:
    """Register a check; one that is found while playing has no `look`."""
    assert new.name not in REGISTRY, f"two checks are called {new.name}"
    REGISTRY[new.name] = new
    return new


def _ruled_out(need: Need) -> CheckResult:
    if need.level is None:
        return CheckResult(not_applicable=need.why)
    return CheckResult(not_observable=need.why, lacks=need.level)


def _line(law: str) -> str:
    """The first sentence's line, without its full stop."""
    return law.strip().split("\n")[0].rstrip(".")
