"""A turn of a black box as it was played, what is ranked of it, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ..contract.observation import Observation, Tokens
from ..contract.scenario import Scenario, Turn
from ..contract.verdict import Finding
from ..conversations.shapes import NONCE
from .evidence import Judged, Reply


@dataclass(frozen=True, kw_only=True)
class Played:
    """A turn as it was played warm. `most`: the longest prefix that some earlier request of its tenant had in common."""

    op: Turn
    prompt: Tokens
    warm: Observation
    most: int

    @property
    def hit(self) -> bool:
        """Whether it reused anything; where that is not counted, whether it could have."""
        return self.most > NONCE if self.warm.reused is None else self.warm.reused > 0

    @property
    def overstated(self) -> bool:
        """More is said to have been reused than anybody has sent before."""
        return (self.warm.reused or 0) > self.most


def until(scenario: Scenario, name: str) -> Scenario:
    """Nothing after the named turn."""
    names = [op.name if isinstance(op, Turn) else None for op in scenario.ops]
    return replace(scenario, ops=scenario.ops[: names.index(name) + 1])


def by_itself(scenario: Scenario, name: str) -> Scenario:
    """The named turn and those that its prompt is made from."""
    turns = {op.name: op for op in scenario.ops if isinstance(op, Turn)}
    kept: set[str] = set()
    at: str | None = name
    while at is not None and at not in kept and at in turns:
        kept.add(at)
        at = turns[at].base
    return replace(scenario, ops=tuple(turn for turn in turns.values() if turn.name in kept))


def same_bits(among: Sequence[Played], alone: Sequence[Played]) -> bool | None:
    """Whether the same turns gave the same bits. None where they need not: something else served as a prefix, or was cut off."""
    by_name = {turn.op.name: turn for turn in among}
    pairs = [(by_name[turn.op.name], turn) for turn in alone if turn.op.name in by_name]
    if len(pairs) in (0, len(among)) or any(a.op.cancel_after is not None or a.most != b.most for a, b in pairs):
        return None
    return all(
        (a.prompt, a.warm.tokens, a.warm.logprobs, a.warm.reused)
        == (b.prompt, b.warm.tokens, b.warm.logprobs, b.warm.reused)
        for a, b in pairs
    )


def reply_of(seen: Observation) -> Reply:
    """What is ranked of a turn: log-probabilities, which are made from logits where those are shown."""
    if seen.logprobs is None and seen.last_rows:
        rows = seen.last_rows[len(seen.last_rows) - len(seen.tokens) :]
        return Reply(tokens=seen.tokens, logprobs=[_from_logits(row) for row in rows])
    return Reply(tokens=seen.tokens, logprobs=seen.logprobs)


def _from_logits(row: NDArray[np.float32]) -> Mapping[int, float]:
    wide = row.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return dict(enumerate(wide.tolist()))


def not_cold(turn: Played, cold: Observation) -> Finding:
    return Finding(check="cold", arm="cold", component="control", turn=turn.op.name, place="reused count of the cold arm",
                   message="the cold arm is not cold: tokens of another tenant, or of a request that asked for no reuse",
                   left="0 expected", right=str(cold.reused))  # fmt: skip


def differs(turn: Played, first: Judged, last: Judged, said: str) -> Finding:
    return Finding(check="cold", arm="cold", component="logprobs" if first.difference.sup is not None else "tokens",
                   turn=turn.op.name, step=first.difference.step, place=f"reused {turn.warm.reused} of {len(turn.prompt)}",
                   message=f"warm and cold differ by more than legal schedules do; {said}",
                   left=str(first), right=f"on fresh texts: {last}")  # fmt: skip
