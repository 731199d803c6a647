"""The reuse policy: how much of what is held may serve the next prompt. Pure, and about ints only.

The greatest admissible cut. `shared` is a statement about tokens, `current` one about the cache, `wanted_from` one about
what the caller asks; the smallest governs. A plain extension of a context of L tokens has `shared == L` and
`current == L - 1` (the last sampled token was not fed), so the clamp bites on every turn.

`ReusedPrefix` is the only thing the loop accepts as "these positions are already computed". It is made in three places:
`nothing_reused`, `apply_prefix_reuse` (both here) and the admission of claimed pages (`turn.py`). A source scan holds that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.request import CutReason, ReuseSource
from ..kv.components import Component
from ..kv.state import KvPrefixStore


@dataclass(frozen=True)
class Keep:
    """Use everything that is held."""

    n: int
    reason: CutReason


@dataclass(frozen=True)
class Rewind:
    """Make the state hold only the first `n` positions."""

    n: int
    reason: CutReason


@dataclass(frozen=True)
class Reset:
    """Make the state hold nothing."""

    reason: CutReason
    n: int = 0


Plan = Keep | Rewind | Reset


@dataclass(frozen=True, kw_only=True)
class ReusedPrefix:
    """Proof that the state holds the first `length` positions of the prompt, computed for that prompt's tokens."""

    length: int
    source: ReuseSource
    reason: CutReason
    declined: bool = False


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix of two token sequences."""
    bound = min(len(left), len(right))
    for i in range(bound):
        if left[i] != right[i]:
            return i
    return bound


def plan_prefix_reuse(shared: int, current: int, wanted_from: int, components: Sequence[Component]) -> Plan:
    """The greatest m <= min(shared, current, wanted_from) that every component admits, as a plan with its reason.

    `shared`: common prefix of prompt and held context, in tokens. `current`: positions the state really holds.
    `wanted_from`: the least position whose logits the caller wants. No components: the decoder is stateless.
    """
    if not components:
        return Reset(CutReason.STATELESS)
    n = min(shared, current, wanted_from)
    while n > 0 and not _admitted(n, current, components):
        n -= 1
    reason = _reason(n, shared, current, wanted_from, components)
    if n == 0:
        return Reset(reason)
    return Keep(n, reason) if n == current else Rewind(n, reason)


def _admitted(m: int, current: int, components: Sequence[Component]) -> bool:
    return all(component.admits(m, current) for component in components)


def _reason(n: int, shared: int, current: int, wanted_from: int, components: Sequence[Component]) -> CutReason:
    for bound, reason in (
        (wanted_from, CutReason.WANTED),
        (current, CutReason.CURRENT),
        (shared, CutReason.SHARED),
    ):
        if n == bound:
            return reason
    for component in components:
        if component.name is not None and not component.admits(n + 1, current):
            return component.name
    raise AssertionError(f"cut {n} is below every bound, yet every component admits {n + 1}")


def nothing_reused(reason: CutReason) -> ReusedPrefix:
    """The state holds nothing that this prompt may use."""
    return ReusedPrefix(length=0, source=ReuseSource.NONE, reason=reason)


def apply_prefix_reuse(store: KvPrefixStore, plan: Plan) -> ReusedPrefix:
    """Bring `store` to what `plan` says and return what is reused.

    A declined rewind always resets: to report "nothing reused" while the old tail is still held would prefill the new
    prompt on top of another turn's KV.
    """
    if not store.has_state:
        return nothing_reused(CutReason.STATELESS)
    if isinstance(plan, Reset):
        store.reset()
        return nothing_reused(plan.reason)
    if isinstance(plan, Rewind) and not store.rewind_to(plan.n):
        store.reset()
        return ReusedPrefix(length=0, source=ReuseSource.NONE, reason=plan.reason, declined=True)
    assert store.kv_len == plan.n, f"plan says {plan.n} positions, the store holds {store.kv_len}"
    return ReusedPrefix(length=plan.n, source=ReuseSource.RETAINED, reason=plan.reason)
