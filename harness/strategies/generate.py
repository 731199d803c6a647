"""Draw scenarios with Hypothesis and hand each to a callback: generation only, reproducible by seed."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, seed, settings

from ..scenario import Scenario
from .conversations import conversations
from .profile import Profile


def for_each(
    profile: Profile, *, count: int, seed_value: int, play: Callable[[Scenario], bool], turns: int = 7
) -> None:
    """Call `play` with up to `count` drawn scenarios, until it returns False."""
    going = True

    @seed(seed_value)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=tuple(HealthCheck),
    )
    @given(conversations(profile, turns=turns))
    def each(scenario: Scenario) -> None:
        nonlocal going
        if going:
            going = play(scenario)

    each()
