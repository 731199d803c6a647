"""The standard's Attention on data whose result is exact: every row sees, or scores by far the highest, a single key.

Scores are whole hundreds, and exp(-200) is exactly zero in float32, so each row is the value that it picks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from warmcold.engine.contract.arrays import HOST, Device, silence
from warmcold.engine.contract.errors import ModelError
from warmcold.engine.kernels.arithmetic import Anchored, Free
from warmcold.engine.kernels.call import Call
from warmcold.engine.kernels.node import Node
from warmcold.engine.kernels.table import find_kernel
from warmcold.engine.kv.buffers import KvBuffers, KvOptions, KvSlot
from warmcold.engine.kv.layout import KvGeometry, LayerKv, Part

KV_HEADS, GROUP, WIDTH, LENGTH = 2, 3, 8, 150
HEADS = KV_HEADS * GROUP
FORM = {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS}
POINTER = {"scale": 100.0}
RNG = np.random.default_rng(0)
VALUES = RNG.standard_normal((1, KV_HEADS, LENGTH, WIDTH), dtype=np.float32)
ANY = RNG.integers(0, LENGTH, (HEADS, LENGTH))
EARLIER = ANY % (np.arange(LENGTH) + 1)


def codes(positions: Any) -> Any:
    bits = (np.asarray(positions)[..., None] >> np.arange(WIDTH)) & 1
    return (2 * bits - 1).astype(np.float32)


KEYS = np.broadcast_to(codes(np.arange(LENGTH)), (1, KV_HEADS, LENGTH, WIDTH)).copy()
POINTING = codes(EARLIER)[None]
ZEROS = np.zeros((1, HEADS, LENGTH, WIDTH), np.float32)


def picked(targets: Any) -> Any:
    """`[1, HEADS, rows, WIDTH]`: for each head and row the value at its target, from its group's head."""
    return np.stack([VALUES[0, head // GROUP, targets[head]] for head in range(HEADS)])[None]


def packed(x: Any) -> Any:
    """`[1, heads, S, D]` as `[1, S, heads * D]`."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(1, x.shape[2], -1))


def only(targets: Any) -> Any:
    """A mask `[1, HEADS, rows, LENGTH]` that leaves each row its target alone."""
    return (np.arange(LENGTH) == targets[..., None])[None]


def attend(apply: Any, *inputs: Any, **attributes: Any) -> Any:
    return apply("Attention", *inputs, version=23, attributes=attributes)


def test_a_causal_row_picks_the_key_it_points_at(apply: Any) -> None:
    """In both forms, with several query heads for one key/value head."""
    out = attend(apply, POINTING, KEYS, VALUES, is_causal=1, **POINTER)
    np.testing.assert_array_equal(out, picked(EARLIER))
    flat = attend(apply, *map(packed, (POINTING, KEYS, VALUES)), is_causal=1, **POINTER, **FORM)
    np.testing.assert_array_equal(flat, packed(picked(EARLIER)))


@pytest.mark.parametrize("split", [1, 64, 149])
def test_behind_a_past_positions_go_on(apply: Any, split: int) -> None:
    """Row i stands at position past + i; the presents are past and new one after the other, as the reference has them."""
    attributes: dict[str, Any] = {"is_causal": 1, **POINTER}
    past = KEYS[:, :, :split], VALUES[:, :, :split]
    inputs = [POINTING[:, :, split:], KEYS[:, :, split:], VALUES[:, :, split:], None, *past]
    found = apply("Attention", *inputs, version=23, outputs=3, attributes=attributes)
    names = ["" if value is None else f"in{index}" for index, value in enumerate(inputs)]
    node = helper.make_node("Attention", names, ["y", "k", "v"], **attributes)
    ins, outs = ([helper.make_empty_tensor_value_info(n) for n in side if n] for side in (names, node.output))
    model = helper.make_model(helper.make_graph([node], "g", ins, outs), opset_imports=[helper.make_opsetid("", 23)])
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if name}
    for ours, theirs in zip(found, ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    np.testing.assert_array_equal(found[0], picked(EARLIER)[:, :, split:])


def test_without_causality_a_row_sees_later_keys(apply: Any) -> None:
    """`is_causal` is 0 unless the node says otherwise."""
    out = attend(apply, codes(ANY)[None], KEYS, VALUES, **POINTER)
    np.testing.assert_array_equal(out, picked(ANY))


def test_a_boolean_mask_leaves_what_is_true(apply: Any) -> None:
    """A key alone gets the whole weight, whatever its score; a mask may differ by head or be one for all."""
    np.testing.assert_array_equal(attend(apply, POINTING, KEYS, VALUES, only(ANY)), picked(ANY))
    shared = np.broadcast_to(ANY[:1], ANY.shape)
    np.testing.assert_array_equal(attend(apply, POINTING, KEYS, VALUES, only(ANY)[0, 0]), picked(shared))


def test_a_float_mask_is_added_to_the_scaled_scores(apply: Any) -> None:
    """Raised by more than any score, the chosen key gets the whole weight."""
    out = attend(apply, ZEROS, KEYS, VALUES, only(ANY).astype(np.float32) * 200)
    np.testing.assert_array_equal(out, picked(ANY))


def test_mask_and_causality_hold_together(apply: Any) -> None:
    """What either forbids is not seen: a mask that leaves a row its target and all later keys."""
    mask = np.arange(LENGTH) >= EARLIER[..., None]
    mask &= (np.arange(LENGTH) == EARLIER[..., None]) | (np.arange(LENGTH) > np.arange(LENGTH)[:, None])
    np.testing.assert_array_equal(attend(apply, ZEROS, KEYS, VALUES, mask[None], is_causal=1), picked(EARLIER))


def test_keys_beyond_a_short_mask_are_not_seen(apply: Any) -> None:
    """The mask's last axis may end before the keys do."""
    few = ANY % 10
    np.testing.assert_array_equal(attend(apply, POINTING, KEYS, VALUES, only(few)[..., :10]), picked(few))


def test_a_row_that_may_see_nothing_is_zero(apply: Any) -> None:
    """As the reference has it; its neighbours are as they were."""
    mask = only(ANY)
    mask[:, :, 7] = False
    out = attend(apply, POINTING, KEYS, VALUES, mask)
    assert not out[:, :, 7].any()
    np.testing.assert_array_equal(out[:, :, 8:], picked(ANY)[:, :, 8:])


def test_the_cap_comes_before_the_mask(apply: Any) -> None:
    """A masked key stays masked: capping afterwards would bring it back."""
    np.testing.assert_array_equal(attend(apply, POINTING, KEYS, VALUES, only(ANY), softcap=2.0), picked(ANY))


class Subject:
    """The kernel over a cache of its own, whose spare capacity holds NaN."""

    def __init__(self, device: Device, *, capacity: int = 70, dtype: str = "float32") -> None:
        self.device = device
        geometry = KvGeometry(layers=(LayerKv(heads=KV_HEADS, head_dim=WIDTH, dtype=dtype),))
        options: dict[str, Any] = {"min_capacity": capacity, "max_context": LENGTH + 1, "poison": float("nan")}
        self.buffers = KvBuffers(geometry, device.xp, KvOptions(**options))
        self.run = build({"is_causal": 1, "scale": 0.3}, math=Anchored(device, 8), device=device)

    def steps(self, size: int, *arrays: Any) -> Any:
        """Feed the arrays' rows `size` at a time; `[1, HEADS, LENGTH, WIDTH]`."""
        return np.concatenate([self._step(*(x[:, :, a : a + size] for x in arrays)) for a in range(0, LENGTH, size)], 2)

    def _step(self, query: Any, key: Any, value: Any) -> Any:
        rows, seen = query.shape[2], self.buffers.current_kv_len() + query.shape[2]
        self.buffers.reserve(seen)
        moved = [self.device.from_host(np.ascontiguousarray(x)) for x in (query, key, value, np.ones((1, seen), bool))]
        with silence():
            out, *_ = self.run(*moved, *(KvSlot(self.buffers, 0, part) for part in Part))
        self.buffers.advance(rows)
        return self.device.to_host(out)


def build(attributes: dict[str, Any], *, inputs: int = 6, outputs: int = 3, math: Any, device: Device) -> Any:
    names = tuple(f"in{i}" for i in range(inputs))
    node = Node("Attention", "", "attention", names, ("y", "k", "v", "qk")[:outputs], attributes, 23)
    kernel = find_kernel("", "Attention", 23)
    assert kernel is not None
    return kernel.build(Call(node=node, device=device, math=math))


@pytest.mark.parametrize("size", [1, 7, 64, 100])
def test_no_schedule_and_no_spare_capacity_changes_a_bit(device: Device, size: int) -> None:
    """On random data: at once and in parts, in buffers that had to grow."""
    query = RNG.standard_normal((1, HEADS, LENGTH, WIDTH), dtype=np.float32)
    whole = Subject(device).steps(LENGTH, query, KEYS / 8, VALUES)
    parts = Subject(device, capacity=1).steps(size, query, KEYS / 8, VALUES)
    assert parts.tobytes() == whole.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_cache_of_sixteen_bits_is_read_as_its_numbers(dtype: str) -> None:
    """Rows that 16 bits hold give the same bits from a cache that stores them so."""
    query = RNG.standard_normal((1, HEADS, LENGTH, WIDTH), dtype=np.float32)
    whole = RNG.integers(-100, 100, VALUES.shape).astype(np.float32)
    wide, stored = (Subject(HOST, dtype=kind).steps(7, query, KEYS / 8, whole) for kind in ("float32", dtype))
    assert stored.tobytes() == wide.tobytes()


@pytest.mark.parametrize(
    ("variant", "what"),
    [
        ({"outputs": 4}, "qk_matmul_output"),
        ({"inputs": 7}, "nonpad_kv_seqlen"),
        ({"attributes": {"softmax_precision": 11}}, "double"),
        ({"attributes": {"left_window_size": 4}}, "left_window_size"),
    ],
)
def test_a_variant_that_is_not_computed_is_refused_when_building(variant: dict[str, Any], what: str) -> None:
    """Rather than silently dropped."""
    with pytest.raises(ModelError, match=f"'attention'.*{what}.*not supported"):
        build(**{"attributes": {}, **variant}, math=Free(HOST), device=HOST)


def test_a_batch_is_refused(apply: Any) -> None:
    """Only a batch of one is computed, and the number is named."""
    with pytest.raises(ValueError, match="batch of 2; only a batch of one"):
        attend(apply, *(np.concatenate([x, x]) for x in (ZEROS, KEYS, VALUES)))
