"""Draw scenarios with Hypothesis and hand each to a callback: generation only, reproducible by seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

from ..contract.scenario import Scenario
from .generated import conversations
from .profile import Profile

_PROVIDER = "warmcold-seed-only"


class SeedOnlyProvider(HypothesisProvider):
    """Hypothesis's own provider without the constants that it reads from the source of loaded local modules.

    With them a changed number in the engine under test, a planted fault say, would change which conversations a seed gives.
    """

    def _maybe_draw_constant(self, *args: Any, **kwargs: Any) -> None:
        return None


AVAILABLE_PROVIDERS[_PROVIDER] = f"{SeedOnlyProvider.__module__}.{SeedOnlyProvider.__qualname__}"


def for_each(
    profile: Profile, *, count: int, seed_value: int, play: Callable[[Scenario], bool], turns: int = 7
) -> None:
    """Call `play` with up to `count` drawn scenarios, until it returns False. The seed alone decides which."""
    going = True

    @seed(seed_value)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=tuple(HealthCheck),
        backend=_PROVIDER,
    )
    @given(conversations(profile, turns=turns))
    def each(scenario: Scenario) -> None:
        nonlocal going
        if going:
            going = play(scenario)

    each()
