"""llama.cpp's lowest level for the subject `llama_cpp`: a context's keys and values, and a replay of calls on new contexts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import override

from ...contract.observation import Array, Kv, Pair
from ...contract.subject import Loop

Foreign = Any
"""An object of llama_cpp: the module itself, a `Llama`, what `save_state` gives, a pointer. They have no types here."""

_MAGIC = (0xAF143CD8).to_bytes(4, "little")
"""What the state of a sequence starts with, before the sequence's number."""

_DTYPES: dict[int, DTypeLike] = {0: np.float32, 1: np.float16}
"""ggml's types that numpy has; what has another type is shown as bytes, all heads as one."""

_KNOWN = 8
"""A turn asks for two: where it starts, and its end, where the session's next turn may start."""


@dataclass(frozen=True)
class Past:
    """Calls from position 0 on: the tokens that each was fed, and how many of them were kept."""

    calls: tuple[tuple[tuple[int, ...], int], ...] = ()

    @property
    def length(self) -> int:
        """Positions."""
        return sum(kept for _, kept in self.calls)


class Replay(Loop[Past]):
    """Every call since position 0 fed again to a new context, unless the past is what the last one holds.

    A cut is no `seq_rm` of a tail: the tokens that are not kept are fed in the same call, so that it has the same rows, but as
    another sequence that shares no cell with the first, and that is dropped whole. A recurrent model has no such thing: its
    calls are fed as long as they are kept.
    Cannot see: a fault of `llama_decode` that depends on nothing but the calls (the oracle may), nor one that both arms share
    because they have one model object.
    """

    stateful = True

    def __init__(self, library: Foreign, llama: Foreign, heads: int) -> None:
        self._library, self._llama, self._heads = library, llama, heads
        self._whole_calls = recurrent(library, llama.model)
        self._live: tuple[Past, _Context] | None = None
        self._known: dict[Past, Kv | None] = {}

    @override
    def empty(self) -> Past:
        return Past()

    @override
    def step(self, past: Past, tokens: Sequence[int]) -> tuple[NDArray[np.float32], Past]:
        """The last row. The library takes at most n_batch tokens a call."""
        after = Past((*past.calls, (tuple(tokens), len(tokens))))
        context = self._at(past)
        self._live = None
        logits = context.feed(tokens, past.length, len(tokens))
        self._live = after, context
        return logits, after

    @override
    def cut(self, past: Past, n: int) -> Past:
        calls: list[tuple[tuple[int, ...], int]] = []
        for tokens, kept in past.calls:
            kept, n = min(kept, n), n - min(kept, n)
            if kept:
                calls.append((tokens[:kept] if self._whole_calls else tokens, kept))
        return Past(tuple(calls))

    @override
    def kv(self, past: Past) -> Kv | None:
        if past not in self._known:
            self._remember(past, self._at(past))
        return self._known[past]

    def recompute(self, tokens: Sequence[int], schedule: Sequence[int] | None = None) -> NDArray[np.float32]:
        """`[len(tokens), V]` on a new context of its own, in one call or in calls of so many rows."""
        context, at, parts = _Context(self._library, self._llama, batch=len(tokens)), 0, []
        for rows in schedule or [len(tokens)]:
            parts.append(context.feed(tokens[at : at + rows], at, rows, every=True))
            at += rows
        assert at == len(tokens), f"schedule covers {at} of {len(tokens)} tokens"
        return np.concatenate(parts)

    def _at(self, past: Past) -> _Context:
        if self._live is None or self._live[0] != past:
            context, at = _Context(self._library, self._llama), 0
            for tokens, kept in past.calls:
                context.feed(tokens, at, kept)
                at += kept
            self._live = past, context
            self._remember(past, context)  # it is asked for when steps have gone beyond it
        return self._live[1]

    def _remember(self, past: Past, context: _Context) -> None:
        """Keep the keys and values of the few pasts that were asked for last."""
        self._known[past] = read_state(self._library, context.pointer, self._heads)
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]


class _Context:
    """A new `llama_context` over the loaded model, with the parameters of the `Llama` that loaded it."""

    def __init__(self, library: Foreign, llama: Foreign, *, batch: int = 0) -> None:
        self._library, self._vocab = library, int(llama.n_vocab())
        self.pointer = None
        params = type(llama.context_params).from_buffer_copy(llama.context_params)
        params.n_seq_max, params.kv_unified = 2, True
        params.n_batch = max(params.n_batch, batch)
        self._batch = library.llama_batch_init(params.n_batch, 0, 1)
        self.pointer = library.llama_init_from_model(llama.model, params)
        if not self.pointer:
            raise MemoryError(f"llama.cpp gave no context of {params.n_ctx} positions; give a smaller n_ctx")

    def feed(self, tokens: Sequence[int], at: int, keep: int, *, every: bool = False) -> NDArray[np.float32]:
        """One `llama_decode` of `tokens` from position `at` on, of which the first `keep` stay. The last row, or `every`."""
        batch, count = self._batch, len(tokens)
        batch.n_tokens = count
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, at + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0 if i < keep else 1
            batch.logits[i] = every or i == count - 1
        code = self._library.llama_decode(self.pointer, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode of {count} tokens from position {at} on gave {code}")
        if keep < count:
            memory = self._library.llama_get_memory(self.pointer)
            assert self._library.llama_memory_seq_rm(memory, 1, -1, -1), "a whole sequence can always be dropped"
        rows = range(count) if every else (-1,)
        found = [self._library.llama_get_logits_ith(self.pointer, row) for row in rows]
        return np.stack([np.ctypeslib.as_array(row, (self._vocab,)).copy() for row in found])

    def __del__(self) -> None:
        self._library.llama_batch_free(self._batch)
        if self.pointer:
            self._library.llama_free(self.pointer)


def recurrent(library: Foreign, model: Foreign) -> bool:
    """Whether the model carries a state that cannot go back."""
    questions = ("llama_model_is_recurrent", "llama_model_is_hybrid")
    return any(getattr(library, name, lambda _: False)(model) for name in questions)


def read_state(library: Foreign, context: Foreign, heads: int) -> Kv | None:
    """Keys and values of sequence 0, by position; `()` where it holds none, None where the state has a layout unknown here."""
    size = library.llama_state_seq_get_size(context, 0)
    buffer = (ctypes.c_uint8 * size)()
    written = library.llama_state_seq_get_data(context, buffer, size, 0)
    with suppress(ValueError, KeyError, IndexError):
        return _Reader(bytes(buffer)[:written], heads).caches()
    return None


class _Reader:
    """Reads what `llama_kv_cache::state_write` wrote. ValueError where something else stands there."""

    def __init__(self, data: bytes, heads: int) -> None:
        self._data, self._at, self._heads = data, 0, heads

    def caches(self) -> Kv:
        """All layers, cache after cache: a model with sliding windows has two."""
        if self._data[:4] == _MAGIC:  # older releases start at once
            self._at = 8
        layers: list[Pair] = []
        while self._at < len(self._data):
            if self._number(np.uint32) != 1:
                raise ValueError("more streams than one")
            layers += self._cache(int(self._number(np.uint32)))
        return tuple(layers)

    def _cache(self, cells: int) -> list[Pair]:
        if not cells:
            return []
        meta = self._array(np.int32, 3 * cells).reshape(cells, 3)
        if (meta[:, 1:] != (1, 0)).any():
            raise ValueError("cells of other sequences, or with more about them than a position")
        order = np.argsort(meta[:, 0], kind="stable")
        transposed, layers = int(self._number(np.uint32)), int(self._number(np.uint32))
        keys = [self._rows(cells)[:, order] for _ in range(layers)]
        values = [(self._columns(cells) if transposed else self._rows(cells))[:, order] for _ in range(layers)]
        return list(zip(keys, values, strict=True))

    def _rows(self, cells: int) -> Array:
        """A cell after the other: `[heads, cells, head_dim]`."""
        kind, size = int(self._number(np.int32)), int(self._number(np.uint64))
        dtype = np.dtype(_DTYPES.get(kind, np.uint8))
        heads = self._heads if kind in _DTYPES else 1
        return self._array(dtype, cells * size // dtype.itemsize).reshape(cells, heads, -1).swapaxes(0, 1)

    def _columns(self, cells: int) -> Array:
        """A channel after the other, as values without flash attention: `[heads, cells, head_dim]`."""
        kind = int(self._number(np.int32))
        _, width = self._number(np.uint32), int(self._number(np.uint32))
        return self._array(_DTYPES[kind], cells * width).reshape(self._heads, -1, cells).swapaxes(1, 2)

    def _number(self, dtype: DTypeLike) -> int:
        return int(self._array(dtype, 1)[0])

    def _array(self, dtype: DTypeLike, count: int) -> Array:
        found: Array = np.frombuffer(self._data, dtype, count, self._at)
        self._at += found.nbytes
        return found
