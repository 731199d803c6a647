"""Reading a model: what the file says, weights only when asked for, and a clear word about a damaged file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from warmcold.engine.contract.errors import ModelError
from warmcold.engine.graph.load import load_graph
from warmcold.engine.kernels.node import Port

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def path(write: Any) -> Path:
    """y = x @ weight, the weight in a data file beside the model."""
    return write(  # type: ignore[no-any-return]
        [helper.make_node("MatMul", ["x", "weight"], ["y"], name="product")],
        {"x": (TensorProto.FLOAT, ["rows", 3]), "weight": (TensorProto.FLOAT, [3, 4])},
        {"y": (TensorProto.FLOAT, [None, 4])},
        {"weight": WEIGHT},
        external=True,
    )


def test_ports_say_name_type_and_shape(path: Path) -> None:
    """A weight that the file also lists as an input is not one; extents, symbols and unknowns are told apart."""
    graph = load_graph(path)
    assert graph.inputs == (Port("x", "float32", ("rows", 3)),)
    assert graph.outputs == (Port("y", "float32", (None, 4)),)


def test_nodes_carry_their_opset_and_attributes(write: Any) -> None:
    """Tensors become arrays, bytes become text, lists become tuples."""
    node = helper.make_node(
        "Odd", ["x"], ["y"], domain="com.microsoft", axes=[1, 2], mode="up", value=onnx.numpy_helper.from_array(WEIGHT)
    )
    read = load_graph(write([node], {"x": (1, [1])}, {"y": (1, [1])})).nodes[0]
    assert (read.domain, read.op_type, read.version) == ("com.microsoft", "Odd", 1)
    assert (read.attributes["axes"], read.attributes["mode"]) == ((1, 2), "up")
    np.testing.assert_array_equal(read.attributes["value"], WEIGHT)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("value", [WEIGHT, WEIGHT.astype(np.float16), np.zeros((0, 3), np.int64), np.asarray(5)])
def test_a_weight_is_read_when_asked_for(write: Any, external: bool, value: Any) -> None:
    """From inside the file or from the data file, of any type and shape, the array is the one stored."""
    node = helper.make_node("Identity", ["x"], ["y"])
    path = write([node], {"x": (1, [1])}, {"y": (1, [1])}, {"weight": value}, external=external)
    graph = load_graph(path)
    assert graph.initializers == {"weight"}
    np.testing.assert_array_equal(graph.initializer("weight"), value, strict=True)


def test_external_data_is_mapped_not_read(path: Path) -> None:
    """A map cannot be written through, and costs no memory until it is looked at."""
    assert not load_graph(path).initializer("weight").flags.writeable


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The message holds the path and what to do."""
    with pytest.raises(ModelError, match=r"nowhere\.onnx: no such file; give the path"):
        load_graph(tmp_path / "nowhere.onnx")


def test_a_file_cut_anywhere_is_refused(write: Any) -> None:
    """Every proper prefix of the file is an error and never half a model."""
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["z"]),
        helper.make_node("Odd", ["z"], ["y"], domain="com.microsoft"),
    ]
    path = write(nodes, {"x": (1, [3])}, {"y": (1, [4])}, {"weight": WEIGHT})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match="whole ONNX file"):
            load_graph(path)


def test_text_is_not_onnx(tmp_path: Path) -> None:
    """A file of another kind is refused, not parsed by luck."""
    (tmp_path / "readme.onnx").write_text("# A readme\n" * 20)
    with pytest.raises(ModelError, match="not a whole ONNX file"):
        load_graph(tmp_path / "readme.onnx")


def test_missing_and_truncated_data_files_are_named(path: Path) -> None:
    """The error comes while loading, before anything computes, and names the file and the weight."""
    data = path.with_name("model.onnx.data")
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"model\.onnx\.data: 47 bytes, but weight 'weight'.*truncated"):
        load_graph(path)
    data.unlink()
    with pytest.raises(ModelError, match="which does not exist"):
        load_graph(path)


@pytest.mark.parametrize("location", ["../model.onnx.data", "/etc/passwd", "a/../../secret", ""])
def test_data_outside_the_directory_is_refused(path: Path, location: str) -> None:
    """A model file cannot name a file elsewhere on this machine."""
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = location
    path.write_bytes(model.SerializeToString())
    shutil.copy(path.with_name("model.onnx.data"), path.parent.parent / "model.onnx.data")
    with pytest.raises(ModelError, match="outside the model's directory"):
        load_graph(path)
