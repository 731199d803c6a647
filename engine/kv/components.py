"""What restricts where a state, or what is published of one, may be cut. Ints only.

A component is made by whoever holds the positions, each time it is asked, so it knows what is resident at that moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..contract.request import CutReason
from .layout import KvGeometry


class Component(Protocol):
    """One thing a decoder carries that restricts where it may be cut."""

    @property
    def name(self) -> CutReason | None:
        """The reason to report when this component forbids a cut; None for one that never does."""

    def admits(self, m: int, current: int) -> bool:
        """Whether the first `m` of `current` held positions can be kept on their own."""


@dataclass(frozen=True)
class FullAttention:
    """Keys and values of every position stay resident, so any prefix is whole."""

    name: None = None

    def admits(self, m: int, current: int) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class Window:
    """A query sees `width` keys including itself; positions before `resident_from` are gone (0: the whole KV stays)."""

    width: int
    resident_from: int = 0
    name: CutReason = CutReason.WINDOW

    def admits(self, m: int, current: int) -> bool:
        """Whether all that position m would see is still resident."""
        return m == current or self.resident_from <= max(0, m - self.width + 1)


def all_resident(geometry: KvGeometry) -> tuple[Component, ...]:
    """For a holder that keeps the KV of every position, so that windows are masks only; () where there is no KV."""
    if not geometry.layers:
        return ()
    widths = {layer.window for layer in geometry.layers if layer.window is not None}
    return (FullAttention(), *(Window(width) for width in sorted(widths)))
