"""Named points at which tests and tools may observe, raise, or (at `rewind`) decline.

A probe is a callable `(event) -> object | None`; it is passed in at `Engine.load` and never read from anywhere else. What
it raises reaches the caller as if the component had failed there. There is one class of event for each point, and its
name is the class's `point`; arrays are the engine's own and may not be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from .arrays import Feeds, HostArray
from .request import CutReason, GateReason, ReuseSource


class ObservedState(Protocol):
    """What an event shows of a conversation's state."""

    @property
    def kv_len(self) -> int:
        """Positions held."""

    def physical(self, layer: int, part: int) -> HostArray:
        """Keys (0) or values (1) of a layer as they lie, `[1, H, capacity, D]`; valid during the event only."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Reuse is decided, and nothing has been fed: `reused` positions of `source`, no more because of `reason`."""

    point: ClassVar[str] = "planned"
    source: ReuseSource
    reused: int
    reason: CutReason
    gate: GateReason | None


@dataclass(frozen=True, kw_only=True)
class Rewinding:
    """A state that holds `held` positions is about to hold `to`; the probe declines it by returning False."""

    point: ClassVar[str] = "rewind"
    held: int
    to: int


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """The state was seeded or rewound to `n` positions, and the first step comes next."""

    point: ClassVar[str] = "seeded"
    state: ObservedState
    n: int


@dataclass(frozen=True, kw_only=True)
class Feeding:
    """A model call is about to run on `feeds`, as the backend gets them."""

    point: ClassVar[str] = "feed"
    feeds: Feeds


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """A model call fed `tokens` from position `start` and gave `logits` `[V]`; nothing is mirrored yet."""

    point: ClassVar[str] = "step"
    tokens: Sequence[int]
    start: int
    logits: HostArray
    state: ObservedState


@dataclass(frozen=True, kw_only=True)
class Appending:
    """Keys (0) or values (1) of a layer are about to be written (native)."""

    point: ClassVar[str] = "append"
    layer: int
    part: int


@dataclass(frozen=True, kw_only=True)
class Growing:
    """A layer's buffers are about to be relocated from room for `held` positions to room for `to`."""

    point: ClassVar[str] = "grow"
    layer: int
    held: int
    to: int


@dataclass(frozen=True, kw_only=True)
class Mirroring:
    """Positions [start, stop) are about to be copied into pages."""

    point: ClassVar[str] = "mirror"
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Publishing:
    """A prefix of `length` positions is about to be published."""

    point: ClassVar[str] = "publish"
    length: int


ProbeEvent: TypeAlias = Planned | Rewinding | Seeded | Feeding | Stepped | Appending | Growing | Mirroring | Publishing
Probe: TypeAlias = Callable[[ProbeEvent], object]


def no_probe(event: ProbeEvent) -> object:
    """Observe nothing."""
    return None
