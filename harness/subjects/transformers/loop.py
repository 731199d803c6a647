"""The matched arm of the transformers subject: a new cache for every call, filled from rows that the loop recorded itself.

Nothing here crops, resets or copies a cache, which is what the subject is under test for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ...contract.observation import Kv, Pair
from ...contract.subject import Loop
from .network import NOTHING, Foreign, Network, State, arrays, as_float, has_state, state_of, visible

Rows = tuple[Foreign, Foreign]
"""Keys and values of a layer, tensors `[1, heads, length, dim]`."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """What the matched arm holds: per layer the rows of all positions, and for layers with a convolution or recurrent state
    that state at the lengths at which a call ended."""

    length: int = 0
    rows: Mapping[int, Rows] = field(default_factory=dict)
    states: Mapping[int, Mapping[int, State]] = field(default_factory=dict)


class CacheLoop(Loop[Past]):
    """The matched arm: `model.forward` with a new cache for each call, filled through `update` from rows recorded here."""

    stateful = True

    def __init__(self, network: Network) -> None:
        self._network = network

    @override
    def empty(self) -> Past:
        return Past()

    @override
    def step(self, past: Past, tokens: Sequence[int]) -> tuple[NDArray[np.float32], Past]:
        cache, rows = self._filled(past), dict(past.rows)
        self._record(cache, rows)
        logits = as_float(self._network.forward(tokens, cache).logits[0])
        length = past.length + len(tokens)
        states = dict(past.states)
        for end in range(past.length + 1 if self._network.options.records else length, length + 1):
            state = {at: state_of(each, length - end) for at, each in enumerate(cache.layers) if has_state(each)}
            states |= {end: state} if state else {}
        return logits, Past(length=length, rows=rows, states=states)

    @override
    def cut(self, past: Past, n: int) -> Past:
        """A state can be cut only to where a call ended."""
        rows = {layer: (keys[:, :, :n], values[:, :, :n]) for layer, (keys, values) in past.rows.items()} if n else {}
        if n and past.states and n not in past.states:
            raise ValueError(f"no state was kept at {n}, only at {sorted(past.states)}")
        return Past(length=n, rows=rows, states={at: state for at, state in past.states.items() if at <= n})

    @override
    def kv(self, past: Past) -> Kv:
        """Of a window only what a next step can see; a layer with a state shows that, as one more pair."""
        state = past.states.get(past.length, {})

        def shown(at: int, layer: Foreign) -> Pair:
            if at in state:
                return arrays(state[at])
            return visible(layer, *past.rows[at]) if at in past.rows else NOTHING

        return tuple(shown(at, layer) for at, layer in enumerate(self._filled(past).layers))

    def _record(self, cache: Foreign, rows: dict[int, Rows]) -> None:
        """From now on `cache` puts down in `rows` what it is given, behind what is there."""
        plain, cat = cache.update, self._network.torch.cat

        def update(keys: Foreign, values: Foreign, layer: int, *more: Foreign, **named: Foreign) -> Foreign:
            old = rows.get(layer)
            rows[layer] = (
                (keys.clone(), values.clone()) if old is None else (cat((old[0], keys), 2), cat((old[1], values), 2))
            )
            return plain(keys, values, layer, *more, **named)

        cache.update = update

    def _filled(self, past: Past) -> Foreign:
        """A new cache that holds it."""
        cache = self._network.fresh()
        for layer, (keys, values) in past.rows.items():
            cache.update(keys, values, layer)
        for at, (conv, recurrent, kernel) in past.states.get(past.length, {}).items() if past.length else ():
            if conv is not None:
                cache.update_conv_state(conv.clone(), at, conv_kernel_size=kernel)
            if recurrent is not None:
                cache.update_recurrent_state(recurrent.clone(), at)
        return cache
