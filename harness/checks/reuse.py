"""How much was reused, from where, and why not more: the engine's word against the twin's."""

from __future__ import annotations

from .look import Look
from .registry import check


@check(order=10, needs=("count",))
def reuse(look: Look) -> None:
    """Reuse is never more than the policy allows, adds up, and names the right source, reason and gate.

    Cannot see: whether the reused positions hold the right bytes (kv_seed), nor reuse that falls short (efficiency).
    """
    warm, plan, prompt = look.record.warm, look.record.plan, look.record.prompt
    assert warm.reused is not None
    look.compared()
    if warm.reused > plan.bound:
        message = "reused more than the tokens, the cache or the caller allow: unsound"
        said = f"at most {plan.bound} ({plan.reason})"
        look.find("twin", message, warm.reused, said, component="count", place="count of reused positions")
    if warm.prefilled is not None and warm.reused + warm.prefilled != len(prompt):
        message, said = "reused and prefilled do not add up to the prompt", f"{warm.reused} + {warm.prefilled}"
        look.find("twin", message, said, len(prompt), component="sum", place="reused + prefilled")
    _rows(look, warm.reused)
    for component in plan.said if look.record.as_planned else ():
        told, expected = getattr(warm, component), getattr(plan, component)
        if told != expected:
            message = f"the {component} of the cut is another"
            look.find("twin", message, told, expected, component=component, place=component)


def _rows(look: Look, reused: int) -> None:
    """What the calls fed, where no whole calls are shown, must be the rest of the prompt and the reply, the last token or not."""
    warm = look.record.warm
    if warm.rows is None or warm.stop == "cancelled":
        return
    wanted = len(look.record.prompt) + max(len(warm.tokens) - 1, 0)
    fed = reused + sum(warm.rows)
    if fed not in (wanted, wanted + 1):
        message, said = (
            "reused positions and fed rows do not make up the prompt and the reply",
            f"{list(warm.rows)} = {fed}",
        )
        expected = f"{wanted} or {wanted + 1}"
        look.find("twin", message, f"{reused} + {said}", expected, component="rows", place="rows of the model calls")


@check(order=11, needs=("count", "exact"))
def efficiency(look: Look) -> None:
    """What could be reused was: a subject that follows the reuse model reuses exactly n*.

    Cannot see: time; an engine that claims the reuse and computes the positions again all the same (feeds sees that).
    """
    warm, plan = look.record.warm, look.record.plan
    assert warm.reused is not None
    look.compared()
    if warm.reused < plan.bound:
        message = "reused less than the state holds and the policy admits"
        said, expected = f"{warm.reused} ({warm.reason})", f"{plan.bound} ({plan.reason}, {plan.source})"
        look.find("twin", message, said, expected, component="count", place="count of reused positions")
