"""The twin's own table of what restricts where a state may be cut, written from docs/glossary.md and not from the engine.

A new kind of state is a class here and its place in the subject's declaration; the twin's policy asks the table alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Held(Protocol):
    """What the twin knows of a session's state: positions held, and the first that is still resident."""

    @property
    def length(self) -> int:
        """Positions held."""

    @property
    def resident_from(self) -> int:
        """Positions before it are gone; 0 where all are kept."""


class Component(Protocol):
    """One thing that a decoder carries."""

    @property
    def name(self) -> str:
        """The reason that an engine gives where this forbids a cut."""

    def admits(self, m: int, held: Held) -> bool:
        """Whether the first `m` positions can be kept on their own."""


@dataclass(frozen=True)
class FullAttention:
    """Keys and values of every position, all resident: any prefix is whole."""

    name: str = "attention"

    def admits(self, m: int, held: Held) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class Window:
    """A query sees `width` keys, its own among them: all that position m would see must be resident."""

    width: int
    name: str = "window"

    def admits(self, m: int, held: Held) -> bool:
        """The whole state, or a cut whose window is still there."""
        wanted = range(max(0, m - self.width + 1), m)
        return m == held.length or not wanted or held.resident_from <= wanted[0]


def greatest(bound: int, held: Held, components: Sequence[Component]) -> tuple[int, str | None]:
    """The greatest m <= bound that every component admits; and the name of the first that forbids one more, if any does."""
    n = next((m for m in range(bound, 0, -1) if all(c.admits(m, held) for c in components)), 0)
    if n == bound:
        return n, None
    return n, next(component.name for component in components if not component.admits(n + 1, held))
