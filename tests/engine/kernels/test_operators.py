"""Standard operators: on every device, exactly what the ONNX reference gives, on data that floats represent exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

GRID = np.arange(-12, 12, dtype=np.float32).reshape(2, 3, 4)
WHOLE = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
FLAG = GRID > 0


def i64(*values: int) -> Any:
    return np.asarray(values, dtype=np.int64)


def scalar(value: float, dtype: Any = np.int64) -> Any:
    return np.asarray(value, dtype=dtype)


@dataclass(frozen=True)
class Case:
    """One call; `note` tells the variant apart."""

    op: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    version: int = 21
    outputs: int = 1
    note: str = ""

    def __str__(self) -> str:
        return f"{self.op}-{self.version}{'-' + self.note if self.note else ''}"


CASES = [
    *(Case(op, (GRID, GRID[:1] + 30)) for op in ("Add", "Sub", "Mul", "Less", "Greater", "Equal", "Max", "Min")),
    *(Case(op, (GRID, GRID[0])) for op in ("LessOrEqual", "GreaterOrEqual")),
    *(Case(op, (FLAG, ~FLAG[:1])) for op in ("And", "Or", "Xor")),
    *(Case(op, (GRID,)) for op in ("Neg", "Abs", "Relu", "Sign", "Identity", "Shape", "Size")),
    *(Case(op, (GRID / 4,)) for op in ("Floor", "Ceil", "Round")),
    Case("Sqrt", (GRID * GRID,)),
    Case("Not", (FLAG,)),
    Case("IsNaN", (np.where(FLAG, GRID, np.float32(np.nan)),)),
    Case("Where", (FLAG, GRID, scalar(7, np.float32))),
    Case("Div", (GRID, scalar(4, np.float32)), note="float"),
    Case("Div", (WHOLE - 12, scalar(5)), note="truncates"),
    Case("Pow", (GRID, scalar(3, np.float32)), note="cube"),
    Case("Mod", (GRID, scalar(5, np.float32)), {"fmod": 1}, note="sign-of-dividend"),
    Case("Mod", (WHOLE - 12, scalar(5)), note="sign-of-divisor"),
    Case("Clip", (GRID, scalar(-3, np.float32), scalar(5, np.float32))),
    Case("Cast", (GRID / 4,), {"to": 7}, note="truncates"),
    Case("Cast", (GRID,), {"to": 9}, note="bool"),
    Case("Cast", (FLAG,), {"to": 1}, note="float"),
    Case("Reshape", (GRID, i64(0, -1, 2)), note="zero-copies"),
    Case("Reshape", (GRID[:0], i64(0, 7)), {"allowzero": 1}, note="zero-is-zero"),
    Case("Flatten", (GRID,), {"axis": 2}),
    Case("Squeeze", (GRID[None, :, None], i64(0, 2))),
    Case("Squeeze", (GRID[None, :, None],), note="all"),
    Case("Squeeze", (GRID[None],), {"axes": [0]}, version=11),
    Case("Unsqueeze", (GRID, i64(-1, 0))),
    Case("Unsqueeze", (GRID,), {"axes": [1]}, version=11),
    Case("Transpose", (GRID,), {"perm": [2, 0, 1]}),
    Case("Transpose", (GRID,), note="reversed"),
    Case("Concat", (GRID, GRID[:, :1]), {"axis": -2}),
    Case("Slice", (GRID, i64(1), i64(9999), i64(2))),
    Case("Slice", (GRID, i64(-1, 0), i64(-9999, 2), i64(1, 0), i64(-1, 1)), note="backwards"),
    Case("Slice", (GRID,), {"starts": [1], "ends": [3], "axes": [2]}, version=9),
    Case("Split", (GRID, i64(1, 3)), {"axis": 2}, outputs=2),
    Case("Split", (GRID,), {"axis": 1, "num_outputs": 2}, outputs=2, note="uneven"),
    Case("Split", (GRID,), {"axis": -1, "split": [3, 1]}, version=11, outputs=2),
    Case("Expand", (GRID[:, :1], i64(2, 3, 1))),
    Case("Tile", (GRID, i64(1, 2, 2))),
    Case("ConstantOfShape", (i64(2, 3),), {"value": helper.make_tensor("v", 7, [1], [5])}),
    Case("Range", (scalar(3), scalar(11), scalar(2))),
    Case("Trilu", (GRID, scalar(1)), {"upper": 0}),
    Case("Gather", (GRID, i64(2, -1).reshape(1, 2)), {"axis": 1}),
    Case("Gather", (GRID, scalar(1)), note="scalar"),
    Case("ReduceSum", (GRID, i64(0, 2)), {"keepdims": 0}),
    Case("ReduceSum", (WHOLE,), note="all"),
    Case("ReduceSum", (GRID, i64()), {"noop_with_empty_axes": 1}, note="nothing"),
    Case("ReduceMean", (GRID, i64(-1))),
    Case("ReduceMean", (GRID,), {"axes": [1]}, version=13),
    Case("ReduceMax", (GRID, i64(1))),
    Case("ReduceMin", (GRID, i64(0)), {"keepdims": 0}),
    Case("MatMul", (GRID, np.moveaxis(GRID, 1, 2).copy())),
    Case("MatMul", (GRID, GRID[0, 0]), note="vector"),
    Case("Gemm", (GRID[0], GRID[1], GRID[0, :, :3]), {"transB": 1, "alpha": 2.0, "beta": 4.0}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator_gives_what_the_reference_gives(apply: Any, case: Case) -> None:
    """A kernel's outputs have the reference's values, shapes and dtypes, whatever the device."""
    names = [f"in{index}" for index in range(len(case.inputs))]
    made = [f"out{index}" for index in range(case.outputs)]
    node = helper.make_node(case.op, names, made, **case.attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_empty_tensor_value_info(name) for name in names],
        [helper.make_empty_tensor_value_info(name) for name in made],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.version)])
    expected = ReferenceEvaluator(model).run(None, dict(zip(names, case.inputs, strict=True)))
    attributes = {name: _plain(value) for name, value in case.attributes.items()}
    found = apply(case.op, *case.inputs, version=case.version, outputs=case.outputs, attributes=attributes)
    for ours, theirs in zip(found if case.outputs > 1 else (found,), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


def _plain(value: Any) -> Any:
    if hasattr(value, "dims"):
        return np.asarray(list(value.int64_data), dtype=np.int64)
    return tuple(value) if isinstance(value, list) else value


def test_constant_takes_every_dense_form(apply: Any) -> None:
    """A Constant node may hold a tensor, a number or a list of numbers."""
    assert apply("Constant", attributes={"value": WHOLE}).sum() == WHOLE.sum()
    assert apply("Constant", attributes={"value_int": 3}).dtype == np.int64
    assert apply("Constant", attributes={"value_floats": (1.0, 2.0)}).dtype == np.float32


@pytest.mark.parametrize("numerics", ["invariant", "fast"])
def test_a_stored_matrix_may_be_stored_transposed(apply: Any, numerics: str) -> None:
    """Gemm with a constant transposed weight is the product it says, integers exact."""
    x, weight = GRID[0], GRID.reshape(6, 4)
    out = apply("Gemm", x, weight, attributes={"transB": 1}, known=(1,), numerics=numerics)
    np.testing.assert_array_equal(out, x @ weight.T)


@pytest.mark.parametrize("op", ["Exp", "Cos", "Sigmoid", "Tanh"])
def test_a_scalar_stays_a_scalar(apply: Any, op: str) -> None:
    """Putting memory in order adds no axis."""
    assert apply(op, scalar(0, np.float32)).shape == ()


def test_square_rounds_once(apply: Any) -> None:
    """x ** 2 with a constant 2 is x * x, so no library's pow can round it differently on another layout."""
    x = np.asarray([[1.1, 2.3, -0.7]], dtype=np.float32)
    squared = apply("Pow", x, scalar(2, np.float32), known=(1,))
    np.testing.assert_array_equal(squared, x * x)


def test_softmax_of_equal_entries_is_exact(apply: Any) -> None:
    """Four equal scores weigh 1/4 each, and an entry masked by the lowest float weighs exactly zero."""
    scores = np.asarray([[2, 2, 2, 2, np.finfo(np.float32).min]], dtype=np.float32)
    np.testing.assert_array_equal(apply("Softmax", scores), [[0.25, 0.25, 0.25, 0.25, 0]])


def test_softmax_before_opset_13_flattens(apply: Any) -> None:
    """Until opset 12 the axes from `axis` on are one distribution."""
    scores = np.zeros((2, 2, 2), dtype=np.float32)
    old = apply("Softmax", scores, version=11, attributes={"axis": 1})
    np.testing.assert_array_equal(old, np.full((2, 2, 2), 0.25))
    np.testing.assert_array_equal(apply("Softmax", scores, attributes={"axis": 1}), np.full((2, 2, 2), 0.5))


def test_sigmoid_reaches_its_limits(apply: Any) -> None:
    """At 0 it is 1/2; far out exp overflows or vanishes and the limits are exact."""
    x = np.asarray([0, 200, -200], dtype=np.float32)
    np.testing.assert_array_equal(apply("Sigmoid", x), np.asarray([0.5, 1, 0], dtype=np.float32))
