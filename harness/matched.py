"""The schedule-matched shadow: the same model calls on past arrays that the harness owns.

Its own ports, positions, masks, loop and page bookkeeping, over a plain `feeds -> outputs` call: raw ONNX Runtime, or the
bare step of a subject with kernels of its own. It imports nothing of the engine; the cut comes from the twin. So whatever
differs from the warm engine lies in the reuse mechanism (page, rewind, seed, stride, mask, position), and must be 0 bits.

Cannot see: an illegal reuse that the twin allows, nor a fault of the kernels themselves (that is the oracle's work).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from .compare import first_difference
from .observation import Kv, PageKey, Tokens
from .reference import Prediction
from .subject import Loop

Run = Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]

_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
_LAYER = re.compile(r"\.(\d+)\.(?:key|value)$")


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The model's inputs and outputs as ONNX Runtime reports them, sorted by what they are for."""

    dtypes: Mapping[str, Any]
    logits: str
    vocab: int
    layers: tuple[tuple[str, str, str, str], ...]
    shapes: tuple[tuple[int, int], ...]


class RawModel:
    """The model file under raw ONNX Runtime: the oracle of numbers, and the matched arm of an ONNX Runtime engine."""

    def __init__(self, model: Path, *, threads: int = 2) -> None:
        directory, file = _file(model)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.ports = _ports(self._session, directory)
        self._names = [self.ports.logits, *(name for layer in self.ports.layers for name in layer[2:])]

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """One call; outputs by name."""
        return dict(zip(self._names, self._session.run(self._names, dict(feeds)), strict=True))


class BareLoop:
    """Feeds a `run` call from tokens and past arrays."""

    def __init__(self, ports: Ports, run: Run) -> None:
        self.ports = ports
        self._run = run

    @property
    def stateful(self) -> bool:
        """Whether the model carries KV."""
        return bool(self.ports.layers)

    def empty(self) -> Kv:
        """No positions."""
        return tuple(
            (np.zeros((heads, 0, dim), self.ports.dtypes[key]), np.zeros((heads, 0, dim), self.ports.dtypes[value]))
            for (heads, dim), (key, value, _, _) in zip(self.ports.shapes, self.ports.layers, strict=True)
        )

    def step(self, past: Kv, tokens: Sequence[int]) -> tuple[NDArray[np.float32], Kv]:
        """Logits `[len(tokens), V]` of `tokens` on top of `past`, and the new KV. Owned by the caller."""
        start = past[0][0].shape[1] if past else 0
        total = start + len(tokens)
        feeds: dict[str, NDArray[Any]] = {}
        for name, values in (
            ("input_ids", list(tokens)),
            ("attention_mask", [1] * total),
            ("position_ids", list(range(start, total))),
        ):
            if name in self.ports.dtypes:
                feeds[name] = np.array([values], dtype=self.ports.dtypes[name])
        for names, pair in zip(self.ports.layers, past, strict=True):
            feeds[names[0]], feeds[names[1]] = pair[0][None], pair[1][None]
        outputs = self._run(feeds)
        present = tuple(
            (_rows(outputs[key], total), _rows(outputs[value], total)) for _, _, key, value in self.ports.layers
        )
        return np.array(outputs[self.ports.logits][0], dtype=np.float32), present

    def cut(self, past: Kv, n: int) -> Kv:
        """The first `n` positions of `past`, copied."""
        return _cut(past, 0, n)

    def kv(self, past: Kv) -> Kv | None:
        """`past` itself."""
        return past

    def recompute(self, tokens: Sequence[int], schedule: Sequence[int] | None = None) -> NDArray[np.float32]:
        """Logits `[len(tokens), V]` of the whole context from nothing: in one pass, or in passes of `schedule` rows."""
        past, at, parts = self.empty(), 0, []
        for rows in schedule or [len(tokens)]:
            logits, past = self.step(past, tokens[at : at + rows])
            parts.append(logits)
            at += rows
        assert at == len(tokens), f"schedule covers {at} of {len(tokens)} tokens"
        return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class MatchedTurn:
    """What the shadow computed: `logits` the last row of each call, `rows` fed per call, KV before and after.

    KV is None where the loop's past does not show it.
    """

    tokens: Tokens
    logits: tuple[NDArray[np.float32], ...]
    rows: tuple[int, ...]
    seeded: Kv | None
    end: Kv | None


class Shadow:
    """The lock-step shadow of one engine: a past per session, rows per published prefix, all computed here.

    Pages need a loop whose past is arrays, as `BareLoop`'s.
    """

    def __init__(self, loop: Loop, *, page_size: int, max_context: int) -> None:
        self._loop = loop
        self._page_size = page_size
        self._max_context = max_context
        self._sessions: dict[str, Any] = {}
        self.pages: dict[PageKey, Kv] = {}

    def turn(
        self,
        session: str,
        prompt: Tokens,
        salt: str | None,
        plan: Prediction,
        *,
        max_new_tokens: int,
        max_calls: int | None = None,
        rows: Sequence[int] | None = None,
    ) -> MatchedTurn:
        """Play the turn that the twin predicts, greedily, for at most `max_calls` calls; keep the session's past.

        `rows`: how many token ids the warm engine fed in each call, for one whose schedule is its own affair.
        """
        past = seeded = self._past(session, prompt, salt, plan)
        context, fed = list(prompt), list(prompt[: plan.reused])
        logits: list[NDArray[np.float32]] = []
        calls: list[int] = []
        schedule = rows if rows is not None else self._schedule(plan, context, fed, max_new_tokens, len(prompt))
        for count in islice(schedule, max_calls):
            tokens = context[len(fed) : len(fed) + count]
            if len(tokens) != count:
                break  # the engine fed more than there is, or its reply is another: `tokens` and `reuse` say so
            out, past = self._loop.step(past, tokens if self._loop.stateful else [*fed, *tokens])
            fed += tokens
            logits.append(out[-1].copy())
            calls.append(count)
            if len(fed) == len(context) and max_new_tokens:
                context.append(int(np.argmax(out[-1])))
        if self._loop.stateful:
            self._sessions[session] = past
        return MatchedTurn(
            tokens=tuple(context[len(prompt) :]),
            logits=tuple(logits),
            rows=tuple(calls),
            seeded=self._loop.kv(seeded),
            end=self._loop.kv(past),
        )

    def publish(self, keys: set[PageKey], prompt: Tokens, salt: str | None, plan: Prediction, end: Kv | None) -> None:
        """Keep the rows of those of `keys` that the finished turn is the first to publish."""
        for key in keys - set(self.pages):
            self.pages[key] = self._written(key, prompt, salt, plan, end)

    def republish(
        self, seen: Mapping[PageKey, Kv], prompt: Tokens, salt: str | None, plan: Prediction, end: Kv | None
    ) -> None:
        """Under pressure a prefix may be evicted and published anew within one turn: then `seen` has this turn's rows.

        Only rows that this arm computed itself are ever taken over: the earlier ones, or exactly the turn's own.
        """
        for key in set(seen) & set(self.pages):
            fresh = self._written(key, prompt, salt, plan, end)
            if not _equal(seen[key], widened(self.pages[key])) and _equal(seen[key], widened(fresh)):
                self.pages[key] = fresh

    def _written(self, key: PageKey, prompt: Tokens, salt: str | None, plan: Prediction, end: Kv | None) -> Kv:
        """The rows that the turn writes into the page of `key`: up to the paged cut from pages, then its own."""
        assert end is not None, "only a loop over arrays can shadow pages"
        start = (len(key[1]) - 1) // self._page_size * self._page_size
        own = _cut(end, max(start, plan.cut), len(key[1]))
        if start >= plan.cut:
            return own
        return _join([_cut(self._assemble(prompt, salt, plan.hit), start, plan.cut), own])

    def forget(self, observed: set[PageKey]) -> None:
        """Drop the rows of prefixes that are not published any more."""
        for key in set(self.pages) - observed:
            del self.pages[key]

    def rewind(self, session: str, n: int) -> None:
        """The session's arrays hold only their first `n` positions."""
        self._sessions[session] = self._loop.cut(self._sessions[session], n)

    def fork(self, session: str, to: str) -> None:
        """`to` holds the same arrays; neither is ever written in place."""
        self._sessions[to] = self.held(session)

    def new_session(self, session: str) -> None:
        """The session holds nothing."""
        self._sessions.pop(session, None)

    def held(self, session: str) -> Any:
        """The session's past."""
        return self._sessions.get(session, self._loop.empty())

    def _schedule(
        self, plan: Prediction, context: list[int], fed: list[int], max_new_tokens: int, prompt_len: int
    ) -> Iterator[int]:
        yield from plan.prefill
        while len(context) - prompt_len < max_new_tokens and len(fed) < self._max_context:
            yield 1

    def _past(self, session: str, prompt: Tokens, salt: str | None, plan: Prediction) -> Any:
        if plan.source == "paged":
            return _cut(self._assemble(prompt, salt, plan.hit), 0, plan.reused)
        return self._loop.cut(self.held(session), plan.reused)

    def _assemble(self, prompt: Tokens, salt: str | None, hit: int) -> Kv:
        """The first `hit` positions from the rows of each published page on the way."""
        stops = [*range(self._page_size, hit, self._page_size), hit] if hit else []
        empty: Kv = self._loop.empty()
        return _join([empty, *(self.pages[(salt, prompt[:stop])] for stop in stops)])


def widened(kv: Kv) -> Kv:
    """Rows of any float dtype as float32, as pages hold them. Nothing is lost, but a NaN may become another NaN."""
    return tuple((keys.astype(np.float32), values.astype(np.float32)) for keys, values in kv)


def _equal(left: Kv, right: Kv) -> bool:
    pairs = zip(left, right, strict=True)
    return all(first_difference(a[part], b[part]) is None for a, b in pairs for part in (0, 1))


def _cut(kv: Kv, start: int, stop: int | None) -> Kv:
    return tuple((keys[:, start:stop].copy(), values[:, start:stop].copy()) for keys, values in kv)


def _join(parts: Sequence[Kv]) -> Kv:
    return tuple(
        (np.concatenate([k for k, _ in layer], axis=1), np.concatenate([v for _, v in layer], axis=1))
        for layer in zip(*parts, strict=True)
    )


def _rows(present: NDArray[Any], total: int) -> NDArray[Any]:
    assert present.shape[2] == total, f"present holds {present.shape[2]} positions, {total} were fed"
    return np.array(present[0])


def _file(model: Path) -> tuple[Path, Path]:
    if model.is_file():
        return model.parent, model
    config = model / "genai_config.json"
    name = json.loads(config.read_text())["model"]["decoder"].get("filename") if config.is_file() else None
    return model, model / name if name else next(iter(sorted(model.glob("*.onnx"))))


def _ports(session: Any, directory: Path) -> Ports:
    inputs = {port.name: port for port in session.get_inputs()}
    outputs = {port.name: port for port in session.get_outputs()}
    keys = sorted((n for n in inputs if n.endswith(".key")), key=_number)
    values = sorted((n for n in inputs if n.endswith(".value")), key=_number)
    new_keys = sorted((n for n in outputs if n.endswith(".key")), key=_number)
    new_values = sorted((n for n in outputs if n.endswith(".value")), key=_number)
    vocab = outputs["logits"].shape[-1]
    return Ports(
        dtypes={name: _NUMPY[port.type] for name, port in inputs.items()},
        logits="logits",
        vocab=int(vocab) if isinstance(vocab, int) else 0,
        layers=tuple(zip(keys, values, new_keys, new_values, strict=True)),
        shapes=tuple(_shape(inputs[name].shape, directory) for name in keys),
    )


def _number(name: str) -> int:
    match = _LAYER.search(name)
    assert match is not None, f"port {name!r} does not say which layer it belongs to"
    return int(match.group(1))


def _shape(shape: Sequence[Any], directory: Path) -> tuple[int, int]:
    """Heads and head_dim of a past port `[1, heads, length, head_dim]`; a symbol is looked up in genai_config.json."""
    if isinstance(shape[1], int) and isinstance(shape[3], int):
        return shape[1], shape[3]
    decoder = json.loads((directory / "genai_config.json").read_text())["model"]["decoder"]
    return int(decoder["num_key_value_heads"]), int(decoder["head_size"])
