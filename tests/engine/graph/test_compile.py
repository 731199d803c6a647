"""From graph to plan: what is folded, dropped, appended, refused, and where values live."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from warmcold.engine.contract.errors import BackendError, ModelError, UsageError
from warmcold.engine.graph.compile import compile_model
from warmcold.engine.graph.load import load_graph
from warmcold.engine.graph.plan import CompiledModel
from warmcold.engine.graph.signature import Signature
from warmcold.engine.kv.buffers import KvBuffers, KvOptions, KvSlot
from warmcold.engine.kv.layout import KvGeometry, LayerKv, Part

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def stateless(path: Path, output: str = "y", **options: Any) -> CompiledModel:
    return compile_model(load_graph(path), Signature(input_ids="x", logits=output), **options)


def labels(plan: CompiledModel) -> list[str]:
    return [step.label for step in plan.plan.steps]


def test_what_follows_from_weights_alone_is_computed_once(write: Any) -> None:
    """A transposed weight and the shape arithmetic around it leave one product in the plan."""
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    nodes = [node("Transpose", ["w"], ["wt"], perm=[1, 0]), node("MatMul", ["x", "wt"], ["y"], name="product")]
    plan = stateless(write(nodes, {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 4])}, {"w": weight}))
    assert labels(plan) == ["ai.onnx.MatMul (opset 21) at node 'product'"]
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(plan.execute({"x": x}, {})["y"], x @ weight.T)


def test_an_output_that_is_constant_is_an_output(write: Any) -> None:
    """Folding may reach an output; it is returned all the same."""
    plan = stateless(write([node("Neg", ["w"], ["y"])], {}, {"y": (FLOAT, [1])}, {"w": np.ones(1, np.float32)}))
    np.testing.assert_array_equal(plan.execute({}, {})["y"], [-1])


def test_dead_nodes_are_not_run_and_not_looked_up(write: Any) -> None:
    """A node nobody reads may even be of an unknown operator; its input need not be fed."""
    nodes = [node("Nonsense", ["unused"], ["nothing"]), node("Neg", ["x"], ["y"])]
    plan = stateless(write(nodes, {"x": (FLOAT, [1]), "unused": (FLOAT, [1])}, {"y": (FLOAT, [1])}))
    assert [label.split()[0] for label in labels(plan)] == ["ai.onnx.Neg"]
    np.testing.assert_array_equal(plan.execute({"x": np.ones(1, np.float32)}, {})["y"], [-1])


def test_nodes_out_of_order_are_ordered(write: Any) -> None:
    """A value is made before it is read, whatever the file's order."""
    nodes = [node("Neg", ["a"], ["y"]), node("Abs", ["x"], ["a"])]
    plan = stateless(write(nodes, {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])}))
    np.testing.assert_array_equal(plan.execute({"x": np.asarray([-3], np.float32)}, {})["y"], [-3])


def test_every_intermediate_is_released_once_after_its_last_use(write: Any) -> None:
    """Whatever is neither constant nor an output is dropped by exactly one step, and read by none after it."""
    nodes = [node("Abs", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Add", ["a", "b"], ["y"])]
    plan = stateless(write(nodes, {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])}))
    gone: list[int] = []
    for step in plan.plan.steps:
        assert not set(step.inputs) & set(gone)
        gone += step.release
    assert len(gone) == len(set(gone)) == 3
    assert plan.plan.results["y"] not in gone


def test_an_unknown_operator_is_named_when_loading(write: Any) -> None:
    """Path, operator, domain, opset and node: enough to find it in the file."""
    path = write(
        [node("Nonsense", ["x"], ["y"], name="here", domain="com.microsoft")], {"x": (1, [1])}, {"y": (1, [1])}
    )
    with pytest.raises(ModelError, match=r"model\.onnx.*com\.microsoft\.Nonsense \(opset 1\) at node 'here'"):
        stateless(path)


def test_an_operator_outside_the_hot_path_runs_on_the_reference(write: Any) -> None:
    """With the graph's own opset, and the plan says how often a run takes the slow path."""
    nodes = [node("CumSum", ["x", "axis"], ["a"]), node("CumSum", ["a", "axis"], ["y"])]
    plan = stateless(write(nodes, {"x": (FLOAT, [3])}, {"y": (FLOAT, [3])}, {"axis": np.asarray(0)}))
    np.testing.assert_array_equal(plan.execute({"x": np.ones(3, np.float32)}, {})["y"], [1, 3, 6])
    assert plan.fallbacks == {"CumSum": 2}


def test_a_failing_kernel_is_named_and_its_cause_chained(write: Any) -> None:
    """The node and the original exception both reach the caller."""
    plan = stateless(
        write([node("Add", ["x", "w"], ["y"], name="sum")], {"x": (1, [None])}, {"y": (1, [None])}, {"w": [1.0, 2]})
    )
    with pytest.raises(BackendError, match="node 'sum'") as caught:
        plan.execute({"x": np.ones(3, np.float32)}, {})
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_missing_feed_is_named(write: Any) -> None:
    """The caller learns which input, and what it did feed."""
    plan = stateless(write([node("Neg", ["x"], ["y"])], {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])}))
    with pytest.raises(UsageError, match=r"'x' \(1,\) was not fed; got \['z'\]"):
        plan.execute({"z": np.ones(1)}, {})


def test_unknown_numerics_and_ports_are_refused(write: Any) -> None:
    """A misspelt option or port name never reaches a run."""
    path = write([node("Neg", ["x"], ["y"])], {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])})
    with pytest.raises(UsageError, match="'exact' is unknown"):
        stateless(path, numerics="exact")
    with pytest.raises(UsageError, match="no output 'logits'"):
        stateless(path, "logits")


GEOMETRY = KvGeometry(layers=(LayerKv(heads=2, head_dim=3),))
PORTS = Signature(input_ids="new", logits="y", past=(("pk", "pv"),), present=(("k", "v"),), states=GEOMETRY.layers)
CACHE = (FLOAT, [1, 2, None, 3])


def cached(write: Any, *nodes: Any, axis: int = 2) -> Path:
    """A graph whose keys and values are `new` appended to the past, beside whatever `nodes` do."""
    appends = [node("Concat", [past, "new"], [present], axis=axis) for past, present in (("pk", "k"), ("pv", "v"))]
    inputs = {"new": CACHE, "pk": CACHE, "pv": CACHE}
    return write([*appends, *nodes], inputs, {"y": (INT64, [4]), "k": CACHE, "v": CACHE})  # type: ignore[no-any-return]


def slots(held: int) -> tuple[KvBuffers, dict[str, KvSlot]]:
    buffers = KvBuffers(GEOMETRY, np, KvOptions(min_capacity=5, max_context=9, poison=float("nan")))
    buffers.reserve(held + 2)
    buffers.array(0, Part.KEY)[:, :, :held] = 7
    buffers.array(0, Part.VALUE)[:, :, :held] = 8
    buffers.advance(held)
    return buffers, {"pk": KvSlot(buffers, 0, Part.KEY), "pv": KvSlot(buffers, 0, Part.VALUE)}


@pytest.mark.parametrize("axis", [2, -2])
def test_concat_with_the_past_becomes_an_append(write: Any, axis: int) -> None:
    """New rows go into the cache in place; the present is a view of past and new, and no past is copied."""
    plan = compile_model(load_graph(cached(write, node("Shape", ["k"], ["y"]), axis=axis)), PORTS)
    buffers, both = slots(held=3)
    found = plan.execute({"new": np.ones((1, 2, 2, 3), np.float32)}, both)
    np.testing.assert_array_equal(found["y"], [1, 2, 5, 3])
    assert np.shares_memory(found["k"], buffers.array(0, Part.KEY))
    np.testing.assert_array_equal(found["k"][0, 0, :, 0], [7, 7, 7, 1, 1])


def test_another_use_of_the_past_sees_the_past(write: Any) -> None:
    """Its shape is the one before this step, and its rows are those already there."""
    plan = compile_model(load_graph(cached(write, node("Shape", ["pv"], ["y"]))), PORTS)
    _, both = slots(held=3)
    np.testing.assert_array_equal(plan.execute({"new": np.ones((1, 2, 2, 3), np.float32)}, both)["y"], [1, 2, 3, 3])


def test_a_present_that_is_not_the_past_extended_is_refused(write: Any) -> None:
    """Appending along the heads, or the other port's past, would leave the cache without the new rows."""
    with pytest.raises(ModelError, match=r"output 'k' \(layer 0\) is not its past with new positions appended"):
        compile_model(load_graph(cached(write, node("Shape", ["k"], ["y"]), axis=1)), PORTS)
    swapped = replace(PORTS, past=(("pv", "pk"),))
    with pytest.raises(ModelError, match="is not its past"):
        compile_model(load_graph(cached(write, node("Shape", ["k"], ["y"]))), swapped)
