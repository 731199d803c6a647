"""The protocol that an engine under test implements, and what it declares about itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from .observation import Observation, Pool
from .scenario import Settings, Turn
from .verdict import Level


class RefusedError(Exception):
    """A typed refusal of a request (too long, say) with its reason. An observation, not a crash."""


class MaskedError(Exception):
    """An error planted inside the engine struck, and the engine answered as if nothing had happened."""


class SubjectError(Exception):
    """The subject cannot be opened: its own message says which file, option or device is at fault."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a subject declares. `invariant`: the bits of a position do not depend on the schedule, so warm = cold exactly.

    `reuse_model`: it follows the glossary's reuse policy, so that reusing less than the twin says is a failure too.
    """

    level: Level
    invariant: bool
    reuse_model: bool


class Instance(Protocol):
    """One engine with fresh pools, caches and sessions, set up for one scenario."""

    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """Run `op` greedily with the resolved `prompt`, its session opened on first use. RefusedError for a refusal.

        The observation's `pool` is left to `pool()`, which is asked for when it is wanted.
        """

    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """The same request on an engine that has never seen anything, over the same weights, reuse off."""

    def new_session(self, session: str) -> None:
        """Open, or replace, the named session."""

    def fork(self, session: str, to: str) -> None:
        """Make session `to` a fork of `session`."""

    def rewind(self, session: str, n: int) -> bool:
        """Ask the session to hold only its first n tokens; False where it declines."""

    def pool(self) -> Pool | None:
        """Page accounting now; None where the subject cannot show it."""

    def clear(self) -> None:
        """Drop every cached prefix."""


class Subject(Protocol):
    """An engine with a model loaded."""

    name: str
    model: Path
    capabilities: Capabilities

    def open(self, settings: Settings, *, poison: float | None) -> Instance:
        """A fresh instance over the loaded weights."""

    def bare(self, feeds: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """One stateless model call of the subject's own kernels, past arrays among the feeds, all outputs by name."""

    @property
    def own_kernels(self) -> bool:
        """Whether `bare` computes with other kernels than raw ONNX Runtime's."""

    def describe(self) -> Mapping[str, Any]:
        """Versions, device, numerics and whatever else a report should name."""

    def close(self) -> None:
        """Release the weights."""
