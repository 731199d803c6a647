"""Buffers own their memory: limits, dtype, copies that share nothing, and what a probe is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warmcold.engine.contract.probe import Appending, Growing, ProbeEvent
from warmcold.engine.kv.buffers import KvBuffers, KvOptions, KvSlot
from warmcold.engine.kv.layout import KvGeometry, LayerKv, Part, storage_dtype

GEOMETRY = KvGeometry(layers=(LayerKv(heads=2, head_dim=3), LayerKv(heads=1, head_dim=5, dtype="float16")))
EVERY = [(layer, part) for layer in (0, 1) for part in Part]

Told = list[ProbeEvent]


def buffers(length: int = 0, **options: Any) -> KvBuffers:
    """Buckets of 4 to 20 with `length` positions in them; position p holds p + 1 everywhere."""
    kv = KvBuffers(GEOMETRY, np, KvOptions(**{"min_capacity": 4, "max_context": 20, **options}))
    feed(kv, length)
    return kv


def rows(layer: int, start: int, stop: int) -> np.ndarray[Any, Any]:
    """Rows of one layer, `[1, H, n, D]`."""
    spec = GEOMETRY.layers[layer]
    count = np.arange(start + 1, stop + 1, dtype=storage_dtype(spec.dtype))
    return np.broadcast_to(count[:, None], (1, spec.heads, stop - start, spec.head_dim))


def feed(kv: KvBuffers, count: int) -> None:
    """Append positions to every layer and part."""
    if count:
        start = kv.current_kv_len()
        kv.reserve(start + count)
        for layer, part in EVERY:
            kv.append(layer, part, rows(layer, start, start + count))
        kv.advance(count)


def test_memory_has_the_dtype_of_its_layer() -> None:
    """Each layer its own, poisoned or not, empty or not."""
    for kv in (buffers(3), buffers(3, poison=1.5)):
        assert [kv.array(layer, part).dtype for layer, part in EVERY] == [np.float32] * 2 + [np.float16] * 2
        assert [kv.view(layer, part, 2).dtype for layer, part in EVERY] == [np.float32] * 2 + [np.float16] * 2
    assert [buffers().view(layer, part, 0).dtype for layer, part in EVERY] == [np.float32] * 2 + [np.float16] * 2


def test_without_poison_spare_room_is_zero() -> None:
    """Fresh memory holds no residue."""
    assert not buffers(3).array(0, Part.KEY)[0, :, 3:].any()


def test_the_flat_view_is_the_array() -> None:
    """One axis, every float, and writes go through."""
    kv = buffers(3)
    flat, _ = kv.present(0, Part.KEY)
    assert flat.shape == (2 * 4 * 3,)
    flat[:] = 9
    assert np.all(kv.array(0, Part.KEY) == 9)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_rewind_reaches_from_nothing_to_everything(n: int) -> None:
    """Both ends are legal."""
    kv = buffers(3)
    kv.rewind_kv(n)
    assert kv.current_kv_len() == n


@pytest.mark.parametrize("n", [-1, 4])
def test_a_rewind_beyond_what_is_held_is_our_bug(n: int) -> None:
    """The message has both numbers, and nothing changed."""
    kv = buffers(3)
    with pytest.raises(AssertionError, match=rf"^rewind_kv\({n}\) with 3 positions held"):
        kv.rewind_kv(n)
    assert kv.current_kv_len() == 3


def test_only_written_rows_can_become_valid() -> None:
    """As far as there is room, and no further."""
    kv = buffers(3)
    with pytest.raises(AssertionError):
        kv.advance(2)
    assert kv.current_kv_len() == 3
    kv.advance(1)
    assert (kv.current_kv_len(), kv.capacity) == (4, 4)


def test_room_that_is_there_is_not_made_again() -> None:
    """Up to the capacity itself the arrays stay where they are: pointers bound to them stay true."""
    kv = buffers(3)
    before = [kv.array(layer, part) for layer, part in EVERY]
    for length in (0, 1, 4):
        kv.reserve(length)
    assert all(kv.array(layer, part) is array for (layer, part), array in zip(EVERY, before, strict=True))


def test_more_than_the_context_is_our_bug() -> None:
    """The message has both numbers, and the old buffers stay."""
    kv = buffers(3)
    with pytest.raises(AssertionError, match=r"^21 positions do not fit a context of 20"):
        kv.reserve(21)
    assert (kv.capacity, kv.current_kv_len()) == (4, 3)
    kv.reserve(20)
    assert kv.capacity == 20


def test_a_slot_returns_its_own_rows_and_no_spare_ones() -> None:
    """With room to spare the present ends behind the step's rows, however many channels or heads there are."""
    kv = buffers(2)
    for layer, part in EVERY:
        slot = KvSlot(kv, layer, part)
        present = slot.append(rows(layer, 2, 3))
        assert np.array_equal(present, rows(layer, 0, 3))
        assert np.shares_memory(present, kv.array(layer, part))


def test_a_probe_hears_of_growth_and_of_every_append() -> None:
    """Layer by layer, before it happens: from which capacity to which, and which part is written."""
    told: Told = []
    kv = buffers(probe=told.append)
    feed(kv, 1)
    growth: Told = [Growing(layer=layer, held=0, to=4) for layer in (0, 1)]
    appends: Told = [Appending(layer=layer, part=part) for layer, part in EVERY]
    assert told == growth + appends
    told.clear()
    kv.reserve(5)
    assert told == [Growing(layer=layer, held=4, to=8) for layer in (0, 1)]


def test_a_copy_holds_the_same_in_memory_of_its_own() -> None:
    """Every layer and part; a later step, rewind or growth of either leaves the other alone."""
    kv = buffers(5, poison=7.5)
    twin = kv.copy()
    for layer, part in EVERY:
        assert np.array_equal(twin.view(layer, part, 5), rows(layer, 0, 5))
        assert np.all(twin.array(layer, part)[:, :, 5:] == 7.5)
        assert not np.shares_memory(twin.array(layer, part), kv.array(layer, part))
    assert (twin.current_kv_len(), twin.capacity) == (5, 8)
    kv.rewind_kv(1)
    kv.array(0, Part.KEY)[:] = 99
    feed(twin, 4)
    assert (kv.current_kv_len(), twin.current_kv_len(), twin.capacity) == (1, 9, 16)
    assert all(np.array_equal(twin.view(layer, part, 9), rows(layer, 0, 9)) for layer, part in EVERY)


def test_a_copy_has_the_same_limits() -> None:
    """Its buckets begin and end where the original's do."""
    twin = buffers(1).copy()
    assert twin.capacity == 4
    twin.reserve(17)
    assert twin.capacity == 20


def test_a_copy_reports_to_the_same_probe() -> None:
    """Its growth is heard of too, as its first reservation was."""
    told: Told = []
    kv = buffers(2, probe=told.append)
    told.clear()
    twin = kv.copy()
    twin.reserve(5)
    assert told == [Growing(layer=layer, held=held, to=to) for held, to in ((0, 4), (4, 8)) for layer in (0, 1)]


@pytest.mark.parametrize("used", [False, True], ids=["unused", "rewound"])
def test_a_copy_of_nothing_is_empty(used: bool) -> None:
    """Whether nothing was ever held or all of it was given up; it can be fed like a new one."""
    kv = buffers(3 if used else 0)
    kv.rewind_kv(0)
    twin = kv.copy()
    assert (twin.current_kv_len(), twin.capacity) == (0, 0)
    feed(twin, 2)
    assert np.array_equal(twin.view(1, Part.VALUE, 2), rows(1, 0, 2))
