"""Conversations drawn from a seed, for `verify`: the seed and the number alone decide which, on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ..contract.scenario import Scenario
from .generated import conversation
from .profile import Profile

T = TypeVar("T")


class Seeded:
    """A source of choices that gives the same ones for the same seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def pick(self, options: Sequence[T]) -> T:
        """One of them, all alike."""
        return self._random.choice(options)

    def number(self, least: int, most: int) -> int:
        """A whole number, all alike, both ends included."""
        return self._random.randint(least, most)


def drawn(profile: Profile, *, count: int, seed: int, turns: int = 7) -> Iterator[Scenario]:
    """`count` conversations, made as they are asked for."""
    for number in range(count):
        yield conversation(Seeded(f"{seed} {number}"), profile, turns=turns)
