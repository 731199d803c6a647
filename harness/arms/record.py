"""Everything that the arms of one turn produced, for the checks to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..contract.observation import Kv, Observation, PageKey, Tokens
from ..contract.scenario import Settings
from ..contract.subject import Capabilities, ClosedForm, Recompute
from .shadow import MatchedTurn
from .twin import Prediction


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """One turn on every arm. `fed`: what has run through the model by its end.

    `plan` is what the matched arm played; an engine that is free to reuse less than `plan.bound` may have. `legal`: prefixes
    that may be published after it; `required`: those that must be unless pages ran short; `before`: those that were before it.

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
    matched: MatchedTurn | None
    before: frozenset[PageKey]
    legal: frozenset[PageKey]
    required: frozenset[PageKey]
    wanted_pages: int
    shadow_pages: Mapping[PageKey, Kv]
    cold: Observation | None = None
    closed: ClosedForm | None = None
    poisoned: Observation | None = None
    recompute: Recompute | None = None

    @property
    def context(self) -> Tokens:
        """Prompt and the warm engine's reply."""
        return (*self.prompt, *self.warm.tokens)

    @property
    def as_planned(self) -> bool:
        """Whether the engine reused just what the matched arm did, so that both made the same calls."""
        return self.warm.reused == self.plan.reused

    @property
    def agreed(self) -> bool:
        """Whether both were also fed the same tokens to the end."""
        return self.as_planned and self.matched is not None and self.warm.tokens == self.matched.tokens
