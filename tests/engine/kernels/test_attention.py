"""GroupQueryAttention on exact data: uniform weights, and queries that point at one key.

A key holds its position as a code of +-1. The query's score is 100 times the product with the code it wants: another
key is at least 200 behind, exp(-200) is exactly zero in float32, so the result is the value pointed at, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from warmcold.engine.contract.arrays import HOST, Device, silence
from warmcold.engine.contract.errors import ModelError
from warmcold.engine.kernels.arithmetic import Anchored, Free
from warmcold.engine.kernels.call import Call
from warmcold.engine.kernels.node import Node
from warmcold.engine.kernels.table import find_kernel
from warmcold.engine.kv.buffers import KvBuffers, KvOptions, KvSlot
from warmcold.engine.kv.layout import KvGeometry, LayerKv, Part

KV_HEADS, GROUP, WIDTH = 2, 3, 8
LENGTH = 150
POINTER = {"num_heads": KV_HEADS * GROUP, "kv_num_heads": KV_HEADS, "scale": 100.0}


def node(attributes: dict[str, Any], inputs: int = 7) -> Node:
    names = tuple(f"in{index}" for index in range(inputs))
    return Node("GroupQueryAttention", "com.microsoft", "attention", names, ("y", "k", "v"), attributes, 1)


def codes(positions: Any) -> Any:
    bits = (np.asarray(positions)[..., None] >> np.arange(WIDTH)) & 1
    return (2 * bits - 1).astype(np.float32)


class Subject:
    """The kernel over a cache of its own, fed in steps."""

    def __init__(self, device: Device, attributes: dict[str, Any], *, free: bool = False, capacity: int = 70) -> None:
        self.device = device
        geometry = KvGeometry(layers=(LayerKv(heads=KV_HEADS, head_dim=WIDTH),))
        options = KvOptions(min_capacity=capacity, max_context=LENGTH + 1, poison=float("nan"))
        self.buffers = KvBuffers(geometry, device.xp, options)
        kernel = find_kernel("com.microsoft", "GroupQueryAttention", 1)
        assert kernel is not None
        math = Free(device) if free else Anchored(device, 8)
        self.run = kernel.build(Call(node=node(attributes), device=device, math=math))

    def step(self, query: Any, key: Any, value: Any, *rest: Any) -> Any:
        """Feed `[S, channels]` rows; returns `[S, H * D]` on the host."""
        rows = query.shape[0]
        total = self.buffers.current_kv_len() + rows
        self.buffers.reserve(total)
        slots = [KvSlot(self.buffers, 0, part) for part in Part]
        lengths = np.asarray([total - 1], np.int32), np.asarray(total, np.int32)
        moved = [self.device.from_host(np.ascontiguousarray(x)[None]) for x in (query, key, value)]
        with silence():
            out, *_ = self.run(*moved, *slots, *lengths, *(self.device.from_host(x) for x in rest))
        self.buffers.advance(rows)
        return self.device.to_host(out)[0]

    def steps(self, schedule: tuple[int, ...], *arrays: Any) -> Any:
        """Feed the arrays' rows in chunks of the sizes `schedule`, the last one repeated to the end."""
        return np.concatenate([self.step(*(x[a:b] for x in arrays)) for a, b in chunks(schedule, len(arrays[0]))])


def chunks(schedule: tuple[int, ...], length: int) -> Iterator[tuple[int, int]]:
    start, sizes = 0, list(schedule)
    while start < length:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        yield start, min(start + size, length)
        start += size


def pointers() -> tuple[Any, Any, Any, Any]:
    """Queries that each point at a random earlier (or their own) key of their head; keys, values, and the truth."""
    rng = np.random.default_rng(0)
    at = np.arange(LENGTH)
    target = (rng.random((LENGTH, KV_HEADS * GROUP)) * (at[:, None] + 1)).astype(int)
    key = np.repeat(codes(at)[:, None], KV_HEADS, axis=1)
    value = rng.standard_normal((LENGTH, KV_HEADS, WIDTH), dtype=np.float32)
    truth = np.stack([value[target[:, head], head // GROUP] for head in range(KV_HEADS * GROUP)], axis=1)
    return tuple(x.reshape(LENGTH, -1) for x in (codes(target), key, value, truth))  # type: ignore[return-value]


@pytest.mark.parametrize("schedule", [(150,), (1,), (7,), (64,), (63, 1, 86), (100, 50)])
@pytest.mark.parametrize("free", [False, True], ids=["invariant", "fast"])
def test_a_query_that_points_gets_the_value_pointed_at(device: Device, schedule: tuple[int, ...], free: bool) -> None:
    """Heads, groups, causality and the cache are right for every chunking; NaN beyond the length is never seen."""
    query, key, value, truth = pointers()
    found = Subject(device, POINTER, free=free).steps(schedule, query, key, value)
    np.testing.assert_array_equal(found, truth)


@pytest.mark.parametrize("window", [1, 5, 64, 149])
def test_a_window_counts_the_query_itself(device: Device, window: int) -> None:
    """With all scores equal, the result is the mean of the last `window` values: integers over a count."""
    value = np.random.default_rng(1).integers(-8, 9, (LENGTH, KV_HEADS * WIDTH)).astype(np.float32)
    zero = np.zeros((LENGTH, KV_HEADS * WIDTH), np.float32)
    query = np.zeros((LENGTH, KV_HEADS * GROUP * WIDTH), np.float32)
    found = Subject(device, {**POINTER, "local_window_size": window}).steps((40,), query, zero, value)
    for position in (0, 1, 63, 64, 149):
        seen = value[max(0, position - window + 1) : position + 1].reshape(-1, KV_HEADS, WIDTH)
        mean = seen.sum(axis=0) / np.float32(len(seen))
        np.testing.assert_array_equal(found[position], np.repeat(mean, GROUP, axis=0).reshape(-1))


def test_softcap_levels_what_exceeds_it(device: Device) -> None:
    """tanh saturates at +-1: scores of 1e6 and 2e6 both become the cap and share, one of -1e6 gets exactly nothing."""
    scores = np.asarray([1e6, 2e6, -1e6, 1e6], dtype=np.float32)
    key = np.zeros((4, KV_HEADS, WIDTH), np.float32)
    key[..., 0] = scores[:, None]
    query = np.zeros((4, KV_HEADS * GROUP, WIDTH), np.float32)
    query[..., 0] = 1
    value = np.arange(4 * KV_HEADS * WIDTH, dtype=np.float32).reshape(4, -1)
    subject = Subject(device, {**POINTER, "scale": 1.0, "softcap": 200.0})
    last = subject.step(query.reshape(4, -1), key.reshape(4, -1), value)[3].reshape(KV_HEADS, GROUP, WIDTH)
    mean = value[[0, 1, 3]].sum(axis=0).reshape(KV_HEADS, WIDTH) / np.float32(3)
    np.testing.assert_array_equal(last, np.repeat(mean[:, None], GROUP, axis=1))


def random_rows() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(2)
    return tuple(
        rng.standard_normal((LENGTH, heads * WIDTH), dtype=np.float32)
        for heads in (KV_HEADS * GROUP, KV_HEADS, KV_HEADS)
    )  # type: ignore[return-value]


@pytest.mark.parametrize("schedule", [(1,), (2,), (13,), (64,), (149, 1), (1, 149)])
@pytest.mark.parametrize("capacity", [1, 64, 100, 151])
@pytest.mark.parametrize("extra", [{}, {"local_window_size": 20}, {"softcap": 3.0}], ids=str)
def test_no_chunking_and_no_capacity_changes_a_bit(
    schedule: tuple[int, ...], capacity: int, extra: dict[str, Any]
) -> None:
    """On random data, where every rounding shows: fed at once, one by one or in between, into buffers of any size."""
    attributes = {**POINTER, "scale": 0.3, **extra}
    whole = Subject(HOST, attributes).steps((LENGTH,), *random_rows())
    parts = Subject(HOST, attributes, capacity=capacity).steps(schedule, *random_rows())
    np.testing.assert_array_equal(parts, whole)


def test_packed_rows_are_query_then_key_then_value(device: Device) -> None:
    """One input `[1, S, (H + 2 KH) * D]` means what three inputs mean."""
    query, key, value = random_rows()
    attributes = {**POINTER, "scale": 0.3}
    apart, packed = Subject(device, attributes), Subject(device, attributes)
    expected = apart.step(query, key, value)
    total = np.asarray([LENGTH - 1], np.int32), np.asarray(LENGTH, np.int32)
    packed.buffers.reserve(LENGTH)
    joined = device.from_host(np.concatenate([query, key, value], axis=1)[None])
    slots = [KvSlot(packed.buffers, 0, part) for part in Part]
    out, *_ = packed.run(joined, None, None, *slots, *total)
    np.testing.assert_array_equal(device.to_host(out)[0], expected)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotation_inside_is_rotation_outside(apply: Any, device: Device, interleaved: int) -> None:
    """do_rotary turns queries and keys by their absolute positions, across steps, as RotaryEmbedding does."""
    query, key, value = random_rows()
    angle = np.random.default_rng(3).random((LENGTH, WIDTH // 2), dtype=np.float32)
    caches = np.cos(angle), np.sin(angle)
    inside = {**POINTER, "scale": 0.3, "do_rotary": 1, "rotary_interleaved": interleaved}
    subject = Subject(device, inside)
    found = [subject.step(query[a:b], key[a:b], value[a:b], *caches) for a, b in chunks((60,), LENGTH)]

    def turned(x: Any, heads: int) -> Any:
        positions = np.arange(LENGTH, dtype=np.int64)[None]
        options = {"interleaved": interleaved, "num_heads": heads}
        return apply("RotaryEmbedding", x[None], positions, *caches, domain="com.microsoft", attributes=options)[0]

    outside = Subject(device, {**POINTER, "scale": 0.3})
    expected = outside.steps((60,), turned(query, KV_HEADS * GROUP), turned(key, KV_HEADS), value)
    np.testing.assert_array_equal(np.concatenate(found), expected)


def test_a_mask_with_gaps_is_refused() -> None:
    """A seqlens_k that is not our own length would attend to other positions: an error, not a guess."""
    subject = Subject(HOST, POINTER)
    subject.buffers.reserve(4)
    rows = [np.zeros((1, 4, heads * WIDTH), np.float32) for heads in (KV_HEADS * GROUP, KV_HEADS, KV_HEADS)]
    slots = [KvSlot(subject.buffers, 0, part) for part in Part]
    with pytest.raises(ValueError, match="seqlens_k says 3 positions, the cache and this step hold 4"):
        subject.run(*rows, *slots, np.asarray([2], np.int32), np.asarray(4, np.int32))


@pytest.mark.parametrize("inputs", range(10, 13))
def test_an_input_that_is_not_computed_is_refused_when_building(inputs: int) -> None:
    """A bias, a sink or explicit positions would silently be dropped otherwise."""
    kernel = find_kernel("com.microsoft", "GroupQueryAttention", 1)
    assert kernel is not None
    with pytest.raises(ModelError, match=r"'attention'.*not supported"):
        kernel.build(Call(node=node(POINTER, inputs), device=HOST, math=Free(HOST)))
