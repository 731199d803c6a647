"""Sixteen-bit graphs: computed in float32, rounded wherever the graph declares a 16-bit value, and nowhere else.

Above 2048 float16 holds even numbers only, and above 256 bfloat16: 2048 + 1 is 2048 again if it was rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import warmcold.fixtures
from warmcold.engine.backends.buffered import BufferState
from warmcold.engine.backends.native import NativeBackend
from warmcold.engine.contract.arrays import HOST
from warmcold.engine.graph.compile import compile_model
from warmcold.engine.graph.fallback import with_facts
from warmcold.engine.graph.load import load_graph
from warmcold.engine.graph.plan import CompiledModel
from warmcold.engine.graph.precision import Precision, output_kinds
from warmcold.engine.graph.signature import Signature
from warmcold.engine.kernels.call import Kernel
from warmcold.engine.kernels.node import Node
from warmcold.engine.kernels.table import kernel_of
from warmcold.engine.kv.buffers import KvOptions
from warmcold.engine.kv.layout import Part
from warmcold.engine.package.resolve import resolve
from warmcold.fixtures.closed_forms import load as load_closed_form

FLOAT, HALF, BRAIN, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT64
MODELS = Path(warmcold.fixtures.__file__).parent / "models"
node = helper.make_node
DTYPES: dict[int, Any] = {HALF: np.float16, BRAIN: ml_dtypes.bfloat16}
EDGE: dict[int, int] = {HALF: 2048, BRAIN: 256}
KINDS = pytest.mark.parametrize("kind", [HALF, BRAIN], ids=["float16", "bfloat16"])


def compiled(path: Path) -> CompiledModel:
    return compile_model(load_graph(path), Signature(input_ids="x", logits="y"))


def result(write: Any, kind: int, nodes: Sequence[Any], x: Any, **weights: Any) -> Any:
    """Feed `x`, as declared, to a small graph whose `weights` are of the 16-bit `kind`; its output `y`."""
    stored = {name: np.asarray(value, DTYPES[kind]) for name, value in weights.items()}
    plan = compiled(write(nodes, {"x": (kind, [None])}, {"y": (kind, [None])}, stored))
    return plan.execute({"x": np.asarray(x, DTYPES[kind])}, {})["y"]


@KINDS
def test_every_node_rounds_what_it_makes(write: Any, kind: int) -> None:
    """Two additions of 1 are lost one by one, although float32 would hold their sum."""
    nodes = [node("Add", ["x", "one"], ["a"]), node("Add", ["a", "one"], ["y"])]
    assert result(write, kind, nodes, [EDGE[kind]], one=1) == EDGE[kind]


@KINDS
def test_a_product_is_rounded_once(write: Any, kind: int) -> None:
    """Its terms are added in float32: 1 + 1 + edge is edge + 2, where adding in 16 bits may give edge."""
    edge = EDGE[kind]
    found = result(write, kind, [node("MatMul", ["x", "w"], ["y"])], [[edge, 1, 1]], w=np.ones((3, 1)))
    assert found == edge + 2
    assert result(write, kind, [node("MatMul", ["x", "w"], ["y"])], [[edge, 1, 0]], w=np.ones((3, 1))) == edge


@KINDS
def test_between_casts_nothing_is_rounded(write: Any, kind: int) -> None:
    """What the graph declares float32 is: the two ones survive until the cast back."""
    nodes = [
        node("Cast", ["x"], ["wide"], to=FLOAT),
        node("Cast", ["one"], ["wide_one"], to=FLOAT),
        node("Add", ["wide", "wide_one"], ["a"]),
        node("Add", ["a", "wide_one"], ["b"]),
        node("Cast", ["b"], ["y"], to=kind),
    ]
    assert result(write, kind, nodes, [EDGE[kind]], one=1) == EDGE[kind] + 2


@KINDS
def test_a_cast_rounds_to_nearest_even(write: Any, kind: int) -> None:
    """Of every kind of cast, from a float or an integer, or to the type of another value."""
    edge = EDGE[kind]
    for source, nodes in (
        (INT64, [node("Cast", ["x"], ["y"], to=kind)]),
        (FLOAT, [node("Cast", ["x"], ["y"], to=kind)]),
        (FLOAT, [node("CastLike", ["x", "like"], ["y"])]),
    ):
        like = {"like": np.zeros(1, DTYPES[kind])}
        plan = compiled(write(nodes, {"x": (source, [None])}, {"y": (kind, [None])}, like))
        fed = np.asarray([edge + 1, edge + 3, -edge - 1], np.int64 if source == INT64 else np.float32)
        assert plan.execute({"x": fed}, {})["y"].tolist() == [edge, edge + 4, -edge]


@KINDS
def test_folded_constants_are_rounded_as_computed_ones(write: Any, kind: int) -> None:
    """What follows from weights alone has the same value as if it followed from an input."""
    nodes = [node("Add", ["edge", "one"], ["a"]), node("Add", ["a", "one"], ["b"]), node("Sub", ["b", "x"], ["y"])]
    assert result(write, kind, nodes, [EDGE[kind]], edge=EDGE[kind], one=1) == 0


@KINDS
def test_weights_are_widened_once_when_compiling(write: Any, kind: int) -> None:
    """The plan holds no 16-bit array, so no call pays for the conversion."""
    weight = np.arange(200).reshape(1, 200)
    path = write(
        [node("MatMul", ["x", "w"], ["y"])],
        {"x": (kind, [1, 1])},
        {"y": (kind, [1, 200])},
        {"w": weight.astype(DTYPES[kind])},
    )
    held = [value for value in compiled(path).plan.values if value is not None]
    assert [value.dtype for value in held] == [np.float32]
    np.testing.assert_array_equal(held[0], weight)


def test_a_graph_of_float32_is_bound_as_it_was() -> None:
    """No node pays for a precision that it does not have."""
    plain = Node("Add", "", "sum", ("a", "b"), ("y",), {}, 21)

    def run(a: Any, b: Any) -> Any:
        return a + b

    assert Precision({}, lambda name: None).bound(plain, Kernel(lambda call: run), run, set(), HOST) is run


HALVES = ["float16"] * 4


@pytest.mark.parametrize(
    ("op", "outputs", "inputs", "kinds"),
    [
        ("Add", 1, HALVES[:2], ["float16"]),
        ("Where", 1, [None, "float16", "float16"], ["float16"]),
        ("Split", 2, ["float16", None], ["float16"] * 2),
        ("DequantizeLinear", 1, [None, "bfloat16"], ["bfloat16"]),
        ("Equal", 1, HALVES[:2], [None]),
        ("ArgMax", 1, HALVES[:1], [None]),
        ("Shape", 1, ["float16"], [None]),
        ("LayerNormalization", 3, HALVES[:3], ["float16", None, None]),
        ("SkipSimplifiedLayerNormalization", 4, HALVES[:3], ["float16", None, None, "float16"]),
        ("Exp", 1, [None], [None]),
    ],
)
def test_outputs_are_declared_as_the_operator_has_it(
    op: str, outputs: int, inputs: list[str | None], kinds: list[str | None]
) -> None:
    """Comparisons and extents are no floats, and the statistics of a normalisation stay in float32."""
    names = tuple(f"out{i}" for i in range(outputs))
    domain = "com.microsoft" if op.startswith("Skip") else ""
    one = Node(op, domain, "n", tuple(f"in{i}" for i in range(len(inputs))), names, {}, 21)
    kernel = kernel_of(one) or with_facts(one, lambda call: lambda *inputs: None)
    assert output_kinds(one, kernel, inputs) == tuple(kinds)


def fed(name: str, chunks: Sequence[int], tokens: list[int], numerics: str) -> tuple[Any, BufferState]:
    """All logits of `tokens` fed in `chunks`, and the state; fresh memory holds NaN and buffers start small."""
    spec, graph = resolve(MODELS / name)
    plan = compile_model(graph, spec, numerics=numerics)
    backend = NativeBackend(plan, KvOptions(min_capacity=4, max_context=spec.context_length, poison=float("nan")))
    state = backend.new_state()
    assert isinstance(state, BufferState)
    rows = [backend.run(state, feeds)[0] for feeds in _feeds(chunks, tokens)]
    return np.concatenate(rows), state


def _feeds(chunks: Sequence[int], tokens: list[int]) -> Iterator[dict[str, Any]]:
    at = 0
    for size in chunks:
        ids, stop = tokens[at : at + size], at + size
        mask, positions = np.ones((1, stop), np.int64), np.arange(at, stop, dtype=np.int64)[None]
        yield {"input_ids": np.asarray([ids], np.int64), "attention_mask": mask, "position_ids": positions}
        at = stop


@pytest.mark.parametrize("numerics", ["invariant", "fast"])
@pytest.mark.parametrize("chunks", [[120], [1] * 120, [7, 1, 64, 48], [64, 56], [119, 1]], ids=lambda c: f"{c[:3]}")
@pytest.mark.parametrize("name", ["snap-attention", "snap-decomposed-f16", "snap-gqa-f16"])
def test_a_snap_model_is_its_closed_form(name: str, chunks: list[int], numerics: str) -> None:
    """Logits of every position and the whole cache, in the dtype that the ports declare, for every chunking."""
    oracle = load_closed_form(MODELS / name)
    assert oracle is not None
    tokens = [(7 + 11 * i + i * i // 3) % 61 for i in range(120)]
    logits, state = fed(name, chunks, tokens, numerics)
    np.testing.assert_array_equal(logits, oracle.logits(tokens))
    for part, expected in ((Part.KEY, oracle.keys(tokens)), (Part.VALUE, oracle.values(tokens))):
        for layer, rows in enumerate(expected):
            held = state.physical(layer, part)
            assert held.dtype == oracle.config.dtype
            np.testing.assert_array_equal(held[0, :, :120], rows)
