"""Everything that the arms of one turn produced, for the checks to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..contract.observation import Kv, Observation, PageKey, Tokens
from ..contract.scenario import Settings
from ..contract.subject import Capabilities
from ..contract.verdict import CheckResult, Finding
from .compare import first_difference
from .shadow import MatchedTurn
from .twin import Prediction


class ClosedForm(Protocol):
    """A fixture's meaning in integers; see `fixtures.closed_forms`."""

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The tokens that greedy decoding appends."""

    def logits(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        """`[len(tokens), V]`."""

    def keys(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        """`[layer, head, len(tokens), head_dim]`."""

    def values(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        """`[layer, head, len(tokens), head_dim]`."""


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """One turn on every arm. `fed`: what has run through the model by its end.

    `plan` is what the matched arm played, `bound` the most that the twin lets the turn reuse: the same, unless the engine is
    free to reuse less and did. `legal`: prefixes that may be published after it; `required`: those that must be unless pages
    ran short; `before`: those that were before it.

    `matched` is None where nothing can replay a schedule. `recompute(tokens, schedule)` runs the oracle from nothing; None
    where there is no oracle of the numbers.
    """

    name: str
    prompt: Tokens
    salt: str | None
    fed: Tokens
    settings: Settings
    stateful: bool
    capabilities: Capabilities
    warm: Observation
    plan: Prediction
    bound: int
    matched: MatchedTurn | None
    before: frozenset[PageKey]
    legal: frozenset[PageKey]
    required: frozenset[PageKey]
    wanted_pages: int
    shadow_pages: Mapping[PageKey, Kv]
    cold: Observation | None = None
    closed: ClosedForm | None = None
    poisoned: Observation | None = None
    recompute: Callable[[Sequence[int], Sequence[int] | None], NDArray[np.float32]] | None = None

    @property
    def foreign(self) -> bool:
        """Whether it is somebody else's engine, which is not set up by `Settings` and has no pages to show."""
        return self.capabilities.reuse.scope != "policy"

    @property
    def context(self) -> Tokens:
        """Prompt and the warm engine's reply."""
        return (*self.prompt, *self.warm.tokens)


Check = Callable[[TurnRecord], CheckResult]

NO_MATCHED = "no matched arm: the subject cannot be replayed step by step"

PARTS = ("key", "value")


def compare_kv(
    result: CheckResult, record: TurnRecord, left: Kv, right: Kv, *, check: str, arm: str, phase: str, at: int = 0
) -> None:
    """Compare two sets of rows layer by layer, key and value apart; one finding per part, for its first difference.

    `at` is the absolute position of the first row. Shapes are compared before any value.
    """
    for part, part_name in enumerate(PARTS):
        for layer in range(max(len(left), len(right))):
            if layer >= len(left) or layer >= len(right):
                add(result, record, check=check, arm=arm, phase=phase, part=part_name, message=f"layers held by {phase}",
                    left=str(len(left)), right=str(len(right)))  # fmt: skip
                break
            result.compared += left[layer][part].size
            found = first_difference(left[layer][part], right[layer][part])
            if found is None:
                continue
            place = f"layer {layer} {part_name}"
            if len(found.index) == 3:
                head, position, channel = found.index
                place += f" head {head} position {position + at} channel {channel}"
            add(result, record, check=check, arm=arm, phase=phase, part=part_name, place=place,
                message=f"{part_name}s of {phase} differ ({found.count} of {found.total} numbers in this layer)",
                left=found.left, right=found.right)  # fmt: skip
            break


def add(result: CheckResult, record: TurnRecord, *, check: str, arm: str, message: str, **rest: Any) -> None:
    """Append a finding about this turn."""
    rest.setdefault("left", "")
    rest.setdefault("right", "")
    result.findings.append(Finding(check=check, arm=arm, message=message, turn=record.name, **rest))
