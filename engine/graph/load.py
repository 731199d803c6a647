"""Read an ONNX file: ports, nodes, and weights on demand.

Reading is lazy where it costs: external data is checked by size only and mapped when `initializer` asks for it, so that
looking at the ports of a large model reads only its graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs are published
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from ..contract.arrays import HostArray
from ..contract.errors import ModelError
from ..kernels.node import Dim, Node, Port


@dataclass(frozen=True)
class GraphModel:
    """A model as its file describes it. `inputs` are what a caller feeds: initializers are not among them."""

    path: Path
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nodes: tuple[Node, ...]
    opsets: Mapping[str, int]
    _tensors: Mapping[str, TensorProto] = field(repr=False, compare=False)

    @property
    def initializers(self) -> frozenset[str]:
        """Names of the stored weights."""
        return frozenset(self._tensors)

    def initializer(self, name: str) -> HostArray:
        """The weight `name`, read now: a read-only map of external data, else a copy. KeyError for another name."""
        tensor = self._tensors[name]
        if tensor.data_location != TensorProto.EXTERNAL:
            return numpy_helper.to_array(tensor)
        return _mapped(self.path, tensor)

    def external_files(self) -> list[Path]:
        """The files that hold external data, each once, in order of name."""
        external = (t for t in self._tensors.values() if t.data_location == TensorProto.EXTERNAL)
        return sorted({_external_span(self.path, tensor)[0] for tensor in external})


def load_graph(path: Path) -> GraphModel:
    """Read the ONNX file at `path`. ModelError when it is missing, truncated, not ONNX, or its external data is."""
    model = _parsed(path)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for tensor in tensors.values():
        if tensor.data_location == TensorProto.EXTERNAL:
            _external_span(path, tensor)
    opsets = {_domain(entry.domain): entry.version for entry in model.opset_import}
    return GraphModel(
        path=path,
        inputs=tuple(_port(value) for value in model.graph.input if value.name not in tensors),
        outputs=tuple(_port(value) for value in model.graph.output),
        nodes=tuple(_node(path, index, node, opsets) for index, node in enumerate(model.graph.node)),
        opsets=MappingProxyType(opsets),
        _tensors=MappingProxyType(tensors),
    )


def _parsed(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise ModelError(f"{path}: no such file; give the path of an .onnx file that exists")
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        size = path.stat().st_size
        raise ModelError(f"{path}: {size} bytes that are not a whole ONNX file; export or copy it again") from error
    if not model.graph.node or not model.opset_import:
        raise ModelError(
            f"{path}: holds no graph with an opset, so it is not a whole ONNX file; export or copy it again"
        )
    return model


def _node(path: Path, index: int, node: onnx.NodeProto, opsets: Mapping[str, int]) -> Node:
    domain = _domain(node.domain)
    if domain not in opsets:
        raise ModelError(
            f"{path}: node {node.name!r} is {node.op_type} of domain {domain!r}, whose opset the file does not import, "
            "so it is not a whole ONNX file; export or copy it again"
        )
    return Node(
        op_type=node.op_type,
        domain=domain,
        name=node.name or f"#{index}",
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes=MappingProxyType({entry.name: _attribute(entry) for entry in node.attribute}),
        version=opsets[domain],
        proto=node,
    )


def _attribute(entry: AttributeProto) -> Any:
    value = helper.get_attribute_value(entry)
    if entry.type == AttributeProto.TENSOR:
        return numpy_helper.to_array(value)
    if entry.type == AttributeProto.STRING:
        return value.decode()
    if entry.type == AttributeProto.STRINGS:
        return tuple(item.decode() for item in value)
    if entry.type in (AttributeProto.INTS, AttributeProto.FLOATS):
        return tuple(value)
    return value


def _port(value: onnx.ValueInfoProto) -> Port:
    tensor = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name if tensor.elem_type else ""
    return Port(value.name, dtype, tuple(_dim(dim) for dim in tensor.shape.dim))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return dim.dim_param or None


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _mapped(path: Path, tensor: TensorProto) -> HostArray:
    file, offset, length = _external_span(path, tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    shape = tuple(tensor.dims)
    count = math.prod(shape)
    if count * dtype.itemsize != length:  # sub-byte types are packed
        raw = TensorProto()
        raw.CopyFrom(tensor)
        raw.data_location = TensorProto.DEFAULT
        raw.raw_data = np.fromfile(file, np.uint8, length, offset=offset).tobytes()
        return numpy_helper.to_array(raw)
    if not count:
        return np.zeros(shape, dtype)
    return np.memmap(file, dtype, "r", offset, shape).view(np.ndarray)


def _external_span(path: Path, tensor: TensorProto) -> tuple[Path, int, int]:
    """File, first byte and byte count of a tensor's external data, checked against the file as it is.

    Only names below the model's directory are taken. A link found there is followed: whoever made it chose it.
    """
    where = {entry.key: entry.value for entry in tensor.external_data}
    location = PurePosixPath(where.get("location", ""))
    if not location.parts or location.is_absolute() or ".." in location.parts:
        raise ModelError(
            f"{path}: weight {tensor.name!r} lies at {str(location)!r}, outside the model's directory; "
            "put the data file beside the model and export it with a relative name"
        )
    file = path.parent / location
    if not file.is_file():
        raise ModelError(f"{path}: weight {tensor.name!r} lies in {file}, which does not exist; copy it there")
    offset, size = int(where.get("offset", 0)), file.stat().st_size
    length = int(where.get("length", size - offset))
    if min(offset, length) < 0 or offset + length > size:
        raise ModelError(
            f"{file}: {size} bytes, but weight {tensor.name!r} of {path.name} takes bytes {offset} to "
            f"{offset + length}; the file is truncated, copy it again"
        )
    return file, offset, length
