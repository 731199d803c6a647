"""What of a graph's ports the engine feeds and reads."""

from __future__ import annotations

from dataclasses import dataclass

from ..kv.layout import KvGeometry, LayerKv

PortPairs = tuple[tuple[str, str], ...]
"""For each layer the names of its key and its value port."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Names are the graph's own. `input_ids` has the rows of a step on axis 1.

    `states` is what the decoder carries from step to step, layer by layer; `past` and `present` are its ports.
    """

    input_ids: str
    logits: str
    past: PortPairs = ()
    present: PortPairs = ()
    states: tuple[LayerKv, ...] = ()

    @property
    def has_state(self) -> bool:
        """Whether the decoder carries anything from step to step."""
        return bool(self.states)

    @property
    def geometry(self) -> KvGeometry:
        """The keys and values among `states`."""
        return KvGeometry(layers=self.states)
