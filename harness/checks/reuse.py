"""How much was reused, from where, and why not more: the engine's word against the twin's."""

from __future__ import annotations

from ..arms.record import TurnRecord, add
from ..contract.verdict import CheckResult


def reuse(record: TurnRecord) -> CheckResult:
    """Reuse is never more than the glossary allows, adds up, and names the right source, reason and gate.

    Cannot see: whether the reused positions hold the right bytes (kv_seed), nor reuse that falls short (efficiency).
    """
    warm, plan = record.warm, record.plan
    if warm.reused is None:
        return CheckResult(not_observable="the subject does not report how much it reused")
    result = CheckResult(compared=1)
    if warm.reused > record.bound:
        add(result, record, check="reuse", arm="twin", component="count", place="count of reused positions",
            message="reused more than the tokens, the cache or the caller allow: unsound",
            left=str(warm.reused), right=f"at most {record.bound} ({plan.reason})")  # fmt: skip
    if warm.prefilled is not None and warm.reused + warm.prefilled != len(record.prompt):
        add(result, record, check="reuse", arm="twin", component="sum", place="reused + prefilled",
            message="reused and prefilled do not add up to the prompt",
            left=f"{warm.reused} + {warm.prefilled}", right=str(len(record.prompt)))  # fmt: skip
    _rows(result, record)
    if warm.reused != plan.reused:
        return result
    for component in ("source", "reason", "gate", "declined"):
        said, expected = getattr(warm, component), getattr(plan, component)
        if said != expected and record.capabilities.reuse.scope == "policy":
            add(result, record, check="reuse", arm="twin", component=component, place=component,
                message=f"the {component} of the cut is another", left=str(said), right=str(expected))  # fmt: skip
    return result


def _rows(result: CheckResult, record: TurnRecord) -> None:
    """What the calls of somebody else's engine fed must be the rest of the prompt and the reply, the last token or not."""
    rows, reused = record.warm.rows, record.warm.reused
    if rows is None or reused is None or record.warm.stop == "cancelled":
        return
    wanted = len(record.prompt) + max(len(record.warm.tokens) - 1, 0)
    if reused + sum(rows) not in (wanted, wanted + 1):
        add(result, record, check="reuse", arm="twin", component="rows", place="rows of the model calls",
            message="reused positions and fed rows do not make up the prompt and the reply",
            left=f"{reused} + {list(rows)} = {reused + sum(rows)}", right=f"{wanted} or {wanted + 1}")  # fmt: skip


def efficiency(record: TurnRecord) -> CheckResult:
    """What could be reused was: a subject that follows the reuse model reuses exactly n*.

    Cannot see: time; an engine that claims the reuse and computes the positions again all the same (feeds sees that).
    """
    warm, plan = record.warm, record.plan
    if warm.reused is None:
        return CheckResult(not_observable="the subject does not report how much it reused")
    if not record.capabilities.reuse.exact:
        return CheckResult(not_applicable="the subject does not declare that it reuses all it can")
    result = CheckResult(compared=1)
    if warm.reused < record.bound:
        add(result, record, check="efficiency", arm="twin", component="count", place="count of reused positions",
            message="reused less than the state holds and the glossary admits",
            left=f"{warm.reused} ({warm.reason})", right=f"{record.bound} ({plan.reason}, {plan.source})")  # fmt: skip
    return result
