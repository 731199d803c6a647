"""One leg, and the two ways to play it: turn by turn to the last bit, or statistically."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..arms.arms import Arms
from ..contract.scenario import Scenario
from .events import Event, LegFinished
from .target import Target


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to play. `examples`: conversations to draw. `seconds` bounds the time after loading. `longest`: drawn contexts,
    in positions. `keep_going`: past failures. `shrink_s`: seconds to make the first failing conversation small, 0 for none.
    `threads`: ONNX Runtime's."""

    examples: int = 30
    seconds: float = 120.0
    seed: int = 0
    longest: int = 64
    keep_going: bool = False
    shrink_s: float = 0.0
    threads: int = 2


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A target, opened, with what is asked of it. `cases`: (where from, conversation), played first."""

    target: Target
    effort: Effort
    cases: tuple[tuple[str, Scenario], ...]
    arms: Arms


class Player(Protocol):
    """Plays one leg."""

    @property
    def planned(self) -> int:
        """Conversations at most, as far as that is known."""

    def play(self) -> Iterator[Event]:
        """Play to the end, telling each conversation as it was judged."""

    def finished(self, *, interrupted: bool = False) -> LegFinished:
        """What is concluded of all that was played so far."""
