"""The model file under raw ONNX Runtime, with ports, positions and masks of the harness's own: the oracle of numbers.

It imports nothing of the engine: ports are read from the package's own configuration, and from what ONNX Runtime says of the
file. `BareLoop` is also what the matched arm replays a schedule on, over this or over the bare step of a subject with
kernels of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..contract.errors import SubjectError
from ..contract.observation import Array, Kv

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]

_NUMPY: Mapping[str, DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
_ANY_LAYER = {"key": r".*\.(\d+)\.key", "value": r".*\.(\d+)\.value"}
"""What every exporter calls a layer's ports, where no configuration says."""


class _Port(Protocol):
    """What ONNX Runtime says of an input or output."""

    name: str
    type: str
    shape: Sequence[int | str | None]


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The model's inputs and outputs by what they are for. `layers`: (past key, past value, present key, present value);
    `shapes`: heads and head_dim of each. `mask`, `positions` None: the model has no such input. `vocab` 0: the file does not say.
    """

    dtypes: Mapping[str, DTypeLike]
    ids: str
    mask: str | None
    positions: str | None
    logits: str
    vocab: int
    layers: tuple[tuple[str, str, str, str], ...]
    shapes: tuple[tuple[int, int], ...]


class RawModel:
    """The model file under raw ONNX Runtime: the oracle of numbers, and the matched arm of an ONNX Runtime engine."""

    def __init__(self, model: Path, *, threads: int = 2) -> None:
        """SubjectError where ONNX Runtime is not installed. Raises what it raises for a file that it refuses."""
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise SubjectError(f"{model}: judging it needs onnxruntime; run: pip install 'warmcold[cpu]'") from error
        directory, decoder = _package(model)
        file = model if model.is_file() else _file(directory, decoder)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.ports = _ports(self._session.get_inputs(), self._session.get_outputs(), decoder)
        self._names = [self.ports.logits, *(name for layer in self.ports.layers for name in layer[2:])]

    def run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call; outputs by name."""
        return dict(zip(self._names, self._session.run(self._names, dict(feeds)), strict=True))


class BareLoop:
    """Feeds a `run` call from tokens and past arrays: a `Loop` whose past is `Kv`."""

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
        feeds: dict[str, Array] = {}
        for name, values in (
            (self.ports.ids, list(tokens)),
            (self.ports.mask, [1] * total),
            (self.ports.positions, list(range(start, total))),
        ):
            if name is not None:
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
        return cut(past, 0, n)

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


def cut(kv: Kv, start: int, stop: int | None) -> Kv:
    """Positions [start, stop), copied."""
    return tuple((keys[:, start:stop].copy(), values[:, start:stop].copy()) for keys, values in kv)


def _rows(present: Array, total: int) -> Array:
    assert present.shape[2] == total, f"present holds {present.shape[2]} positions, {total} were fed"
    return np.array(present[0])


def _package(model: Path) -> tuple[Path, Mapping[str, Any]]:
    """The model's folder, and what its `genai_config.json` says of the decoder; nothing where there is none."""
    directory = model.parent if model.is_file() else model
    config = directory / "genai_config.json"
    return directory, json.loads(config.read_text(encoding="utf-8"))["model"]["decoder"] if config.is_file() else {}


def _file(directory: Path, decoder: Mapping[str, Any]) -> Path:
    name = decoder.get("filename")
    return directory / name if name else next(iter(sorted(directory.glob("*.onnx"))))


def _ports(inputs: Sequence[_Port], outputs: Sequence[_Port], decoder: Mapping[str, Any]) -> Ports:
    """By the names that the package declares, else by those that every exporter uses."""
    takes, gives = decoder.get("inputs", {}), decoder.get("outputs", {})
    into, out = {port.name: port for port in inputs}, {port.name: port for port in outputs}
    past = [_layers(into, takes.get(f"past_{part}_names"), part) for part in ("key", "value")]
    present = [_layers(out, gives.get(f"present_{part}_names"), part) for part in ("key", "value")]
    logits = str(gives.get("logits", "logits"))
    vocab = out[logits].shape[-1]
    return Ports(
        dtypes={name: _NUMPY[port.type] for name, port in into.items()},
        ids=str(takes.get("input_ids", "input_ids")),
        mask=_declared(takes, "attention_mask", into),
        positions=_declared(takes, "position_ids", into),
        logits=logits,
        vocab=vocab if isinstance(vocab, int) else 0,
        layers=tuple(zip(*past, *present, strict=True)),
        shapes=tuple(_shape(into[name].shape, decoder) for name in past[0]),
    )


def _declared(names: Mapping[str, Any], role: str, ports: Iterable[str]) -> str | None:
    name = str(names.get(role, role))
    return name if name in ports else None


def _layers(ports: Iterable[str], pattern: str | None, part: str) -> list[str]:
    """Names of the layers' ports in layer order. `pattern`: as a package declares it, with %d for the layer."""
    wanted = re.compile(re.escape(pattern).replace("%d", r"(\d+)") if pattern else _ANY_LAYER[part])
    numbered = [(int(match.group(1)), name) for name in ports if (match := wanted.fullmatch(name))]
    return [name for _, name in sorted(numbered)]


def _shape(shape: Sequence[int | str | None], decoder: Mapping[str, Any]) -> tuple[int, int]:
    """Heads and head_dim of a past port `[1, heads, length, head_dim]`; a symbol is looked up in the configuration."""
    heads, dim = shape[1], shape[3]
    if isinstance(heads, int) and isinstance(dim, int):
        return heads, dim
    return int(decoder["num_key_value_heads"]), int(decoder["head_size"])
