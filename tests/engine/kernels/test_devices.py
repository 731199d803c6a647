"""Whole models on devices that numpy cannot reach: every transfer is one the plan makes on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import warmcold.fixtures
from warmcold.engine.backends.buffered import BufferState
from warmcold.engine.backends.native import NativeBackend
from warmcold.engine.contract.arrays import HOST, Device
from warmcold.engine.contract.errors import ModelError
from warmcold.engine.graph.compile import compile_model
from warmcold.engine.graph.load import load_graph
from warmcold.engine.graph.signature import Signature
from warmcold.engine.kv.buffers import KvOptions
from warmcold.engine.kv.layout import Part
from warmcold.engine.package.resolve import ModelSpec, resolve

ROOT = Path(warmcold.fixtures.__file__).parent
MODELS = [
    "models/snap-attention",
    "models/snap-decomposed",
    "models/snap-gqa-shared",
    "zoo/llama-genai-fp32",
    "zoo/qwen2-optimum-fp32",
]
IDS = list(range(1, 12))


def run(name: str, device: Device, split: int) -> tuple[Any, Any]:
    """Logits of all rows, and the cache, after feeding IDS in two steps."""
    spec, graph = resolve(ROOT / name)
    compiled = compile_model(graph, spec, device=device)
    backend = NativeBackend(compiled, KvOptions(min_capacity=4, max_context=64))
    state = backend.new_state()
    assert isinstance(state, BufferState)
    steps = ((0, split), (split, len(IDS)))
    logits = np.concatenate([backend.run(state, feeds(spec, *step))[0] for step in steps])
    return logits, [state.physical(layer, part) for layer in range(len(spec.past)) for part in Part]


def feeds(spec: ModelSpec, start: int, stop: int) -> dict[str, Any]:
    every = {
        spec.input_ids: np.asarray([IDS[start:stop]], np.int64),
        spec.attention_mask: np.ones((1, stop), np.int64),
        spec.position_ids: np.arange(start, stop, dtype=np.int64)[None],
    }
    return {name: value for name, value in every.items() if name}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_the_same_bits_on_every_device(device: Device, name: str) -> None:
    """Strict arrays are numpy underneath, so not only the tokens but the bytes of logits and cache are the host's."""
    logits, cache = run(name, device, 6)
    expected, held = run(name, HOST, 4)
    assert logits.tobytes() == expected.tobytes()
    for ours, theirs in zip(cache, held, strict=True):
        np.testing.assert_array_equal(ours[:, :, : len(IDS)], theirs[:, :, : len(IDS)])


def test_a_device_refuses_what_only_the_host_can_compute(device: Device, tmp_path: Path) -> None:
    """The reference evaluator would copy every value to the host and back: an error when compiling, by name."""
    port = onnx.helper.make_tensor_value_info("x", 1, [3]), onnx.helper.make_tensor_value_info("y", 1, [3])
    axis = onnx.numpy_helper.from_array(np.asarray(0), "axis")
    node = onnx.helper.make_node("CumSum", ["x", "axis"], ["y"], name="running")
    graph = onnx.helper.make_graph([node], "g", [port[0]], [port[1]], [axis])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)]), tmp_path / "m.onnx")
    ports = Signature(input_ids="x", logits="y")
    model = load_graph(tmp_path / "m.onnx")
    if device.is_host:
        assert compile_model(model, ports, device=device).fallbacks == {"CumSum": 1}
    else:
        with pytest.raises(ModelError, match=r"CumSum.*'running'.*only a slow version on the host"):
            compile_model(model, ports, device=device)
