"""The model file under raw ONNX Runtime, with ports, positions and masks of the harness's own: the oracle of numbers.

It imports nothing of the engine. `BareLoop` is also what the matched arm replays a schedule on, over this or over the bare
step of a subject with kernels of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract.observation import Kv
from ..contract.subject import SubjectError

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
        ort = _onnxruntime()
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


def _rows(present: NDArray[Any], total: int) -> NDArray[Any]:
    assert present.shape[2] == total, f"present holds {present.shape[2]} positions, {total} were fed"
    return np.array(present[0])


def _onnxruntime() -> Any:
    """The runtime, which only this arm needs: a server is judged without one."""
    try:
        import onnxruntime
    except ImportError as error:
        raise SubjectError("the oracle needs onnxruntime; run: pip install 'warmcold[cpu]'") from error
    return onnxruntime


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
