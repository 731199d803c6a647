"""The matched arm of the transformers subject: a new cache for every call, filled from rows that the loop recorded itself.

Nothing here crops, resets or copies a cache, which is what the subject is under test for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...contract.observation import Kv, Pair

if TYPE_CHECKING:
    from .subject import Transformers


@dataclass(frozen=True, kw_only=True)
class Past:
    """What the matched arm holds: per layer keys and values of all positions `[1, heads, length, dim]`, and for layers with
    a convolution or recurrent state that state at the lengths at which a call ended."""

    length: int = 0
    rows: Mapping[int, tuple[Any, Any]] = field(default_factory=dict)
    states: Mapping[int, Mapping[int, tuple[Any, Any, int | None]]] = field(default_factory=dict)


class CacheLoop:
    """The matched arm: `model.forward` with a new cache for each call, filled through `update` from rows recorded here."""

    def __init__(self, subject: Transformers) -> None:
        self._subject = subject
        self.stateful = True

    def empty(self) -> Past:
        """See `Loop.empty`."""
        return Past()

    def step(self, past: Past, tokens: Sequence[int]) -> tuple[NDArray[np.float32], Past]:
        """See `Loop.step`."""
        cache = self._filled(past)
        rows = dict(past.rows)
        plain = cache.update

        def update(keys: Any, values: Any, layer: int, *args: Any, **kwargs: Any) -> Any:
            old = rows.get(layer)
            pair = (
                [keys, values]
                if old is None
                else [self._subject.torch.cat(x, 2) for x in zip(old, (keys, values), strict=True)]
            )
            rows[layer] = (pair[0].clone(), pair[1].clone())
            return plain(keys, values, layer, *args, **kwargs)

        cache.update = update
        logits = as_float(self._subject.forward(tokens, cache).logits[0])
        length = past.length + len(tokens)
        states = dict(past.states)
        for end in range(past.length + 1 if self._subject.options["record"] == "yes" else length, length + 1):
            state = {at: states_of(x, length - end) for at, x in enumerate(cache.layers) if hasattr(x, "conv_states")}
            states |= {end: state} if state else {}
        return logits, Past(length=length, rows=rows, states=states)

    def cut(self, past: Past, n: int) -> Past:
        """See `Loop.cut`. A state can be cut only to where a call ended."""
        rows = {layer: (keys[:, :, :n], values[:, :, :n]) for layer, (keys, values) in past.rows.items()} if n else {}
        if n and past.states and n not in past.states:
            raise ValueError(f"no state was kept at {n}, only at {sorted(past.states)}")
        return Past(length=n, rows=rows, states={at: state for at, state in past.states.items() if at <= n})

    def kv(self, past: Past) -> Kv:
        """See `Loop.kv`: of a window only what a next step can see; a layer with a state shows that, as one more pair."""
        state = past.states.get(past.length, {})
        return tuple(
            arrays(*state[at][:2]) if at in state else self._visible(layer, past.rows.get(at))
            for at, layer in enumerate(self._filled(past).layers)
        )

    def _visible(self, layer: Any, pair: tuple[Any, Any] | None) -> Pair:
        if pair is None:
            return NOTHING
        window = self._subject.window(layer)
        start = max(pair[0].shape[2] - window, 0) if window is not None else 0
        return as_numpy(pair[0][0, :, start:]), as_numpy(pair[1][0, :, start:])

    def _filled(self, past: Past) -> Any:
        cache = self._subject.fresh()
        for layer, (keys, values) in past.rows.items():
            cache.update(keys, values, layer)
        for at, (conv, recurrent, kernel) in past.states.get(past.length, {}).items() if past.length else ():
            if conv is not None:
                cache.update_conv_state(conv.clone(), at, conv_kernel_size=kernel)
            if recurrent is not None:
                cache.update_recurrent_state(recurrent.clone(), at)
        return cache


NOTHING: Pair = (np.zeros((0, 0, 0), np.float32), np.zeros((0, 0, 0), np.float32))
"""A layer that holds no rows."""


def sliding(layer: Any) -> bool:
    return bool(getattr(layer, "is_sliding", False))


def states_of(layer: Any, behind: int = 0) -> tuple[Any, Any, int | None]:
    """Copies of the first convolution and recurrent state of a layer, None where it has none; and the kernel's width.

    `behind`: the convolution state so many positions ago, of a layer that records the past; the part that a next step sees.
    """
    conv, recurrent = layer.conv_states[0], layer.recurrent_states[0]
    if conv is not None:
        conv = conv[..., : conv.shape[-1] - behind][..., -layer.conv_kernel_size[0] :].clone()
    return conv, recurrent.clone() if recurrent is not None else None, layer.conv_kernel_size[0]


def state_pair(layer: Any) -> Pair:
    return arrays(*states_of(layer)[:2])


def arrays(conv: Any, recurrent: Any) -> Pair:
    """A state as a pair of `[heads or 1, positions or rows, channels]`."""
    first = as_numpy(conv.transpose(1, 2)) if conv is not None else NOTHING[0]
    return first, as_numpy(recurrent[0]) if recurrent is not None else NOTHING[1]


def as_numpy(tensor: Any) -> NDArray[Any]:
    """A copy that the caller owns."""
    array: NDArray[Any] = tensor.detach().contiguous().numpy().copy()
    return array


def as_float(tensor: Any) -> NDArray[np.float32]:
    """Likewise, as float32."""
    return as_numpy(tensor).astype(np.float32)
