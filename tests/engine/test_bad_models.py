"""Broken models: one clear line with the place and what to do, nothing loaded, whichever backend was asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from warmcold.engine import Engine, ModelError
from warmcold.engine.contract.errors import WarmcoldError

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
ZOO = Path(__file__).parents[2] / "fixtures" / "zoo"


def _nan(model: onnx.ModelProto) -> None:
    tensor = next(
        t
        for t in model.graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 2 and t.dims[1] > 2
    )
    array = numpy_helper.to_array(tensor).copy()
    array[1, 2] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _unknown(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Frobnicate"


def _double(model: onnx.ModelProto) -> None:
    for port in (*model.graph.input, *model.graph.output):
        if "key" in port.name or "value" in port.name:
            port.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE


def _extra(model: onnx.ModelProto) -> None:
    model.graph.input.append(onnx.helper.make_tensor_value_info("pixel_values", onnx.TensorProto.FLOAT, [1, 3]))


@pytest.mark.parametrize("backend", ["native", "ort"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [(_nan, r"is NaN at \[1, 2\]"), (_unknown, "Frobnicate"), (_double, "float64"), (_extra, "pixel_values")],
)
def test_a_spoilt_graph(tmp_path: Path, backend: str, spoil: Callable[[onnx.ModelProto], None], message: str) -> None:
    """A NaN weight, an unknown operator, a KV dtype or an input that we cannot feed: each is named."""
    shutil.copytree(MODELS / "snap-decomposed", tmp_path / "m")
    model = onnx.load(tmp_path / "m" / "model.onnx")
    spoil(model)
    onnx.save(model, tmp_path / "m" / "model.onnx")
    with pytest.raises(ModelError, match=message):
        Engine.load(tmp_path / "m", backend=backend)


@pytest.mark.parametrize("backend", ["native", "ort"])
@pytest.mark.parametrize("keep", [0, 1, 1000])
def test_a_truncated_graph(tmp_path: Path, backend: str, keep: int) -> None:
    """Cut off anywhere: the file and its size are named."""
    shutil.copytree(MODELS / "snap-decomposed", tmp_path / "m")
    file = tmp_path / "m" / "model.onnx"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.onnx"):
        Engine.load(tmp_path / "m", backend=backend)


@pytest.mark.parametrize("backend", ["native", "ort"])
def test_missing_external_data(tmp_path: Path, backend: str) -> None:
    """The file that is not there is named."""
    shutil.copytree(ZOO / "llama-genai-fp32", tmp_path / "m")
    (tmp_path / "m" / "model.onnx.data").unlink()
    with pytest.raises(ModelError, match=r"model\.onnx\.data"):
        Engine.load(tmp_path / "m", backend=backend)


@pytest.mark.parametrize("backend", ["native", "ort"])
@pytest.mark.parametrize("location", ["../secret", "/etc/hostname"])
def test_external_data_outside_the_directory(tmp_path: Path, backend: str, location: str) -> None:
    """A model may not read what lies elsewhere."""
    shutil.copytree(ZOO / "llama-genai-fp32", tmp_path / "m")
    shutil.copy(ZOO / "llama-genai-fp32" / "model.onnx.data", tmp_path / "secret")
    model = onnx.load(tmp_path / "m" / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (tmp_path / "m" / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's directory"):
        Engine.load(tmp_path / "m", backend=backend)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model": 3}', '{"model": {"decoder": {"filename": "none.onnx"}}}'])
def test_a_broken_configuration(tmp_path: Path, text: str) -> None:
    """Empty, not an object, not JSON, or pointing nowhere: a typed error that names the file, never a traceback of ours."""
    shutil.copytree(ZOO / "llama-genai-fp32", tmp_path / "m")
    (tmp_path / "m" / "genai_config.json").write_text(text)
    with pytest.raises(WarmcoldError, match=r"genai_config\.json|none\.onnx|model\.onnx"):
        Engine.load(tmp_path / "m")


def test_contradicting_metadata_is_not_guessed_over(tmp_path: Path) -> None:
    """The graph says one vocabulary, the configuration another: both numbers are given."""
    shutil.copytree(MODELS / "snap-gqa-shared", tmp_path / "m")
    file = tmp_path / "m" / "genai_config.json"
    config = json.loads(file.read_text())
    config["model"]["vocab_size"] = 77
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"61.*77"):
        Engine.load(tmp_path / "m")
