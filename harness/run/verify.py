"""Verify one target: which conversations to play, when to stop, and what the run concludes. Yields what happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..arms.arms import Arms
from ..contract.scenario import Scenario
from .events import Event, LegFinished, LegStarted
from .exact import ExactPlayer
from .player import Effort, Leg, Player
from .statistical import StatisticalPlayer
from .target import Target

Cases = Sequence[tuple[str, Scenario]]


def verify(target: Target, effort: Effort, cases: Cases = (), arms: Arms | None = None) -> Iterator[Event]:
    """Play `cases`, then conversations of its own, until a failure, the number or the time asked for.

    `arms`: the target opened already; else it is opened and closed here. An interrupt is told as a leg that ended early, and
    goes on up. Raises what loading raises.
    """
    opened = arms or target.open(threads=effort.threads)
    try:
        leg = Leg(target=target, effort=effort, cases=tuple(cases), arms=opened)
        player: Player = ExactPlayer(leg) if opened.judgeable else StatisticalPlayer(leg)
        yield LegStarted(target=target, planned=player.planned, described=dict(opened.subject.describe()))
        try:
            yield from player.play()
        except KeyboardInterrupt:
            yield player.finished(interrupted=True)
            raise
        yield player.finished()
    finally:
        if arms is None:
            opened.subject.close()


def judged(target: Target, effort: Effort, cases: Cases = (), arms: Arms | None = None) -> LegFinished:
    """`verify` to its end, for whoever wants nothing but the outcome."""
    *_, last = verify(target, effort, cases, arms)
    assert isinstance(last, LegFinished)
    return last
