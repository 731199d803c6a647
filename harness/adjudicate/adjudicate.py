"""Warm and cold differ: is it float noise, or dirty KV? The ruling, with the evidence that a maintainer can check.

Where the schedule can be replayed the question has an exact answer. The same rows per call, from position 0, on a past that
the harness holds: if that gives the warm side to the last bit, and the cold side's own rows give the cold one, then nothing
but the order of additions differs. If it does not, the cache held something else, and the first place says where. Where no
schedule can be replayed, legal schedules as controls say how far rounding goes; and where there are none, it cannot be told.
"""

from __future__ import annotations

import random

from ..arms.arms import Arms
from ..contract.scenario import Scenario
from ..conversations.shapes import Texts
from ..conversations.texts import corpus_of
from ..play.blackbox import Blackbox
from .exact import by_replay
from .ruling import Ruling
from .statistical import by_evidence


def adjudicate(arms: Arms, scenario: Scenario, *, seconds: float = 120.0) -> Ruling:
    """Play `scenario` and rule on its last turn. `seconds`: for a subject that needs fresh texts."""
    if arms.judgeable:
        return by_replay(arms, scenario)
    texts = Texts(corpus=corpus_of(arms.subject), source=random.Random(0))
    return by_evidence(Blackbox(arms.subject, texts, seconds=seconds), scenario)
