"""One turn whose two sides are to be ruled on, and what both show for the same context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..arms.arms import Arms
from ..arms.compare import elided, first_difference, first_token_difference
from ..arms.record import TurnRecord
from ..contract.observation import Observation
from .ruling import Kind, Ruling

Rows = Sequence[NDArray[np.float32]]
Schedule = tuple[int, ...]


@dataclass(kw_only=True)
class Dispute:
    """A turn on every arm. `kept`: the calls in which what it reused was computed, None where that does not show; `facts`: what
    was found out so far, for whoever reads the ruling."""

    arms: Arms
    record: TurnRecord
    cold: Observation
    kept: Schedule | None = None
    facts: list[str] = field(default_factory=list)

    @property
    def warm(self) -> Observation:
        """The side under test."""
        return self.record.warm

    @property
    def parted(self) -> int | None:
        """The first token of the reply that differs; None where all agree."""
        return first_token_difference(self.warm.tokens, self.cold.tokens)

    @property
    def shown(self) -> bool:
        """Whether both sides show logits."""
        return self.warm.last_rows is not None and self.cold.last_rows is not None

    @property
    def steps(self) -> int:
        """Steps of the reply whose context is the same on both sides."""
        return max(len(self.warm.tokens), 1) if self.parted is None else self.parted + 1

    @property
    def agree(self) -> bool:
        """Whether all logits that both show of the reply are the same bits."""
        return all(first_difference(one, other) is None for one, other in self._pairs())

    @property
    def apart(self) -> float:
        """The greatest difference of a logit that both show for the same context."""
        return max((float(np.max(np.abs(one - other))) for one, other in self._pairs()), default=0.0)

    def rule(self, kind: Kind, because: str, *, place: str | None = None, missing: str | None = None) -> Ruling:
        """The ruling, with all facts so far."""
        name = self.record.name
        return Ruling(kind=kind, turn=name, because=because, place=place, missing=missing, facts=list(self.facts))

    def state_the_case(self) -> None:
        """The first facts: how long, how much of it reused, and where the replies part."""
        warm, cold, at = self.warm, self.cold, self.parted
        length = len(self.record.prompt)
        self.facts.append(f"prompt of {length} tokens, {warm.reused} reused warm, {cold.reused} cold")
        if at is None:
            self.facts.append(f"warm and cold give the same {len(warm.tokens)} tokens")
        else:
            sides = f"warm {elided(warm.tokens, at)}, cold {elided(cold.tokens, at)}"
            self.facts.append(f"replies differ from token {at} on: {sides}")

    def _pairs(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Rows of the reply for the same context: those up to the first token that differs."""
        at, steps = self.parted, max(len(self.warm.tokens), 1)
        rows = zip((self.warm.last_rows or ())[-steps:], (self.cold.last_rows or ())[-steps:], strict=False)
        return [pair for step, pair in enumerate(rows) if at is None or step <= at]


def first_row(left: Rows | None, right: Rows) -> str | None:
    """The first logit that differs, call by call."""
    for step, (one, other) in enumerate(zip(left or (), right, strict=False)):
        if (found := first_difference(one, other)) is not None:
            token = found.index[0] if found.index else 0
            return f"logits of call {step}: token {token} {found.left} instead of {found.right}"
    return None
