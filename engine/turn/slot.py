"""Where what outlives a turn is kept: one place, for one turn at a time."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract.errors import UsageError
from ..contract.request import Identity
from .decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Retained:
    """What outlives a turn, put back together or not at all."""

    context: tuple[int, ...]
    identity: Identity
    decoder: Decoder


class Slot:
    """Empty while a turn runs. A turn without a session gets one of its own, which nobody looks into afterwards."""

    def __init__(self, retained: Retained | None = None) -> None:
        self.retained = retained
        self.busy = False

    def take(self) -> Retained | None:
        """Hand over what is retained to a turn that starts. UsageError while another runs."""
        if self.busy:
            raise UsageError("another turn of this session is running: finish it or close() it first")
        self.busy = True
        retained, self.retained = self.retained, None
        return retained

    def put_back(self, retained: Retained | None) -> None:
        """The turn ended and leaves this; None if its state is lost."""
        self.busy = False
        self.retained = retained
