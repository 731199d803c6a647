"""Contiguous KV: strides by capacity, growth as a transaction, rewinds that move no byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warmcold.engine.contract.probe import Growing, ProbeEvent
from warmcold.engine.kv.buffers import KvBuffers, KvOptions, KvSlot
from warmcold.engine.kv.layout import (
    KvGeometry,
    LayerKv,
    Part,
    Physical,
    append_token_kv,
    capacity_bucket,
    extract_present_tokens,
    narrow,
    next_pow2,
    widen,
    write_present,
)

GEOMETRY = KvGeometry(layers=(LayerKv(heads=2, head_dim=3), LayerKv(heads=3, head_dim=2)))


def buffers(**options: Any) -> KvBuffers:
    """Two layers of different shapes, small buckets."""
    return KvBuffers(GEOMETRY, np, KvOptions(**{"min_capacity": 4, "max_context": 20, **options}))


def feed(kv: KvBuffers, rows: int) -> None:
    """Append `rows` positions whose numbers say layer, part, head, position and channel."""
    kv.reserve(kv.current_kv_len() + rows)
    for layer, spec in enumerate(GEOMETRY.layers):
        for part in Part:
            start = kv.current_kv_len()
            kv.append(layer, part, expected(layer, part, spec)[None, :, start : start + rows])
    kv.advance(rows)


def expected(layer: int, part: Part, spec: LayerKv, length: int = 20) -> np.ndarray[Any, Any]:
    """The numbers that `feed` writes, `[heads, length, head_dim]`."""
    head, position, channel = np.ogrid[: spec.heads, :length, : spec.head_dim]
    return (layer * 10000 + part * 5000 + head * 1000 + position * 10 + channel).astype(np.float32)


@pytest.mark.parametrize(("n", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (255, 256), (257, 512)])
def test_next_pow2(n: int, power: int) -> None:
    """The least power of two that is not below n."""
    assert next_pow2(n) == power


@pytest.mark.parametrize(("length", "bucket"), [(1, 4), (4, 4), (5, 8), (9, 16), (16, 16), (17, 20), (20, 20)])
def test_capacity_bucket(length: int, bucket: int) -> None:
    """min(max(next_pow2(length), min_capacity), max_context)."""
    assert capacity_bucket(length, min_capacity=4, max_context=20) == bucket


def test_every_head_of_every_layer_survives_growth() -> None:
    """After growth each head lies at the new stride, key and value, in layers of different shapes."""
    kv = buffers()
    for rows in (3, 1, 1, 6, 8):
        feed(kv, rows)
    for layer, spec in enumerate(GEOMETRY.layers):
        for part in Part:
            view = kv.view(layer, part, kv.current_kv_len())[0]
            assert np.array_equal(view, expected(layer, part, spec, 19))


def test_read_out_uses_the_capacity_as_stride() -> None:
    """With spare room behind every head, the flat read-out finds each head's own rows."""
    kv = buffers(min_capacity=8)
    feed(kv, 5)
    for layer, spec in enumerate(GEOMETRY.layers):
        for part in Part:
            flat, physical = kv.present(layer, part)
            assert physical == Physical(heads=spec.heads, capacity=8, head_dim=spec.head_dim)
            rows = np.stack(extract_present_tokens(flat, physical, 2, 5))
            assert np.array_equal(rows, expected(layer, part, spec)[:, 2:5])


def test_writing_and_reading_are_inverse() -> None:
    """What `write_present` puts into a flat buffer is what the physical array then shows, nowhere else."""
    kv = buffers(min_capacity=8, poison=-1.0)
    kv.reserve(6)
    flat, physical = kv.present(1, Part.VALUE)
    rows = expected(1, Part.VALUE, GEOMETRY.layers[1])[:, :3]
    write_present(flat, physical, 2, rows)
    array = kv.array(1, Part.VALUE)[0]
    assert np.array_equal(array[:, 2:5], rows)
    assert np.all(np.delete(array, slice(2, 5), axis=1) == -1.0)


def test_a_rewind_moves_no_byte() -> None:
    """Only the length changes; the next append overwrites the residue."""
    kv = buffers()
    feed(kv, 6)
    before = kv.array(0, Part.KEY).copy()
    kv.rewind_kv(2)
    assert kv.current_kv_len() == 2
    assert np.array_equal(kv.array(0, Part.KEY), before)
    feed(kv, 2)
    assert np.array_equal(kv.view(0, Part.KEY, 4)[0], expected(0, Part.KEY, GEOMETRY.layers[0], 4))


@pytest.mark.parametrize("failing", [0, 1])
def test_growth_that_fails_leaves_everything_as_it_was(failing: int) -> None:
    """Whichever layer fails while growing: same capacity, same length, same bytes, and growing again works."""
    broken = True

    def probe(event: ProbeEvent) -> object:
        if isinstance(event, Growing) and broken and event.held and event.layer == failing:
            raise MemoryError("planted")
        return None

    kv = buffers(probe=probe)
    feed(kv, 4)
    arrays = [kv.array(layer, part) for layer in (0, 1) for part in Part]
    with pytest.raises(MemoryError, match="planted"):
        kv.reserve(5)
    assert (kv.capacity, kv.current_kv_len()) == (4, 4)
    assert all(a is b for a, b in zip(arrays, [kv.array(la, p) for la in (0, 1) for p in Part], strict=True))
    broken = False
    feed(kv, 2)
    assert np.array_equal(kv.view(1, Part.KEY, 6)[0], expected(1, Part.KEY, GEOMETRY.layers[1], 6))


def test_spare_room_holds_the_poison() -> None:
    """Fresh memory is filled with the pattern, after growth too."""
    kv = buffers(poison=7.5)
    feed(kv, 5)
    assert np.all(kv.array(0, Part.KEY)[0, :, 5:] == 7.5)


def test_a_slot_sees_past_and_present() -> None:
    """A kernel's view: the valid rows before the step, and with the step's own rows behind them."""
    kv = buffers()
    feed(kv, 2)
    kv.reserve(4)
    slot = KvSlot(kv, 0, Part.KEY)
    assert (slot.length, slot.past().shape) == (2, (1, 2, 2, 3))
    rows = expected(0, Part.KEY, GEOMETRY.layers[0])[None, :, 2:4]
    assert np.array_equal(slot.append(rows)[0], expected(0, Part.KEY, GEOMETRY.layers[0], 4))
    assert kv.current_kv_len() == 2


def test_an_unused_buffer_has_an_empty_past() -> None:
    """Before the first step the past is there, with no positions."""
    assert KvSlot(buffers(), 1, Part.VALUE).past().shape == (1, 3, 0, 2)


def test_page_rows_take_positions_at_their_place() -> None:
    """`append_token_kv` writes each head's rows at the place in the page and nowhere else."""
    page = np.zeros((2, 4, 3), np.float32)
    append_token_kv(page, 1, [np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)])
    assert page[:, 1:3].sum() == 18
    assert page.sum() == 18


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_widening_loses_nothing(dtype: str) -> None:
    """Narrowing what was widened gives the same bits back."""
    rows = narrow(np.array([0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, 3.140625], np.float32), dtype)
    again = narrow(widen(rows), dtype)
    assert np.array_equal(again.view(f"u{rows.itemsize}"), rows.view(f"u{rows.itemsize}"))
