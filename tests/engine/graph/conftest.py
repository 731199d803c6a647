"""Small graphs, written to files as an exporter would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(nodes, inputs, outputs, weights)` saves a model and returns its path; ports are name -> (type, shape)."""

    def run(
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, tuple[int, Sequence[Any]]],
        outputs: Mapping[str, tuple[int, Sequence[Any]]],
        weights: Mapping[str, Any] | None = None,
        *,
        opset: int = 21,
        external: bool = False,
    ) -> Path:
        graph = helper.make_graph(
            nodes,
            "small",
            [helper.make_tensor_value_info(name, *port) for name, port in inputs.items()],
            [helper.make_tensor_value_info(name, *port) for name, port in outputs.items()],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
        )
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        path = tmp_path / "model.onnx"
        onnx.save(model, path, save_as_external_data=external, location="model.onnx.data", size_threshold=0)
        return path

    return run


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
