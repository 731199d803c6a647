"""The checks of bytes and of whole arms: the cache at three moments, the closed form, the cold arm, the poison arm.

Each is seen red, alone, when one number of one arm is corrupted; see `test_checks.py` for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as changed
from numpy.typing import NDArray

from warmcold.harness.arms.record import ClosedForm, TurnRecord
from warmcold.harness.checks.kv_pages import kv_pages
from warmcold.harness.contract.observation import Kv, Observation, PageKey, Tokens
from warmcold.harness.contract.verdict import CheckResult, Finding

Judge = Callable[[TurnRecord], dict[str, CheckResult]]
Only = Callable[[TurnRecord, str], Finding]


def red(results: dict[str, CheckResult]) -> set[str]:
    """The checks that found something."""
    return {name for name, result in results.items() if result.findings}


def warm(record: TurnRecord, **fields: Any) -> TurnRecord:
    """Something that the engine showed, replaced."""
    return replace(record, warm=replace(record.warm, **fields))


def bumped(kv: Kv | None, layer: int, part: int, place: tuple[int, int, int]) -> tuple[Kv, str, str]:
    """`kv` with one element one greater, and both values as text: before, after."""
    assert kv is not None
    arrays = [[keys.copy(), values.copy()] for keys, values in kv]
    before = arrays[layer][part][place]
    arrays[layer][part][place] = before + 1
    return tuple((keys, values) for keys, values in arrays), repr(float(before)), repr(float(before + 1))


def another(tokens: Tokens, at: int) -> Tokens:
    """One token replaced by its neighbour."""
    return (*tokens[:at], (tokens[at] + 1) % 61, *tokens[at + 1 :])


@dataclass
class WrongForm:
    """A closed form that disagrees with the real one in one thing."""

    real: ClosedForm
    wrong: str

    def _bump(self, name: str, array: NDArray[np.int64], place: tuple[int, ...]) -> NDArray[np.int64]:
        if name == self.wrong:
            array[place] += 1
        return array

    def greedy(self, prompt: Any, count: int) -> list[int]:
        """Tokens, the last one wrong."""
        tokens = self.real.greedy(prompt, count)
        return list(another(tuple(tokens), count - 1)) if self.wrong == "tokens" else tokens

    def logits(self, tokens: Any) -> NDArray[np.int64]:
        """Logits, one wrong in the last row."""
        return self._bump("logits", self.real.logits(tokens), (-1, 5))

    def keys(self, tokens: Any) -> NDArray[np.int64]:
        """Keys, one wrong."""
        return self._bump("key", self.real.keys(tokens), (1, 0, 3, 2))

    def values(self, tokens: Any) -> NDArray[np.int64]:
        """Values, one wrong."""
        return self._bump("value", self.real.values(tokens), (0, 1, 6, 4))


PLACES = [(0, 0, (0, 0, 0)), (1, 0, (1, 11, 7)), (0, 1, (1, 5, 3)), (1, 1, (0, 7, 6))]


def placed(finding: Finding, layer: int, part: int, place: tuple[int, int, int]) -> None:
    """The finding names layer, key or value, head, position and channel."""
    kind = ("key", "value")[part]
    assert finding.part == kind
    assert finding.place == f"layer {layer} {kind} head {place[0]} position {place[1]} channel {place[2]}"


@pytest.mark.parametrize(("layer", "part", "place"), PLACES)
@pytest.mark.parametrize("turn", ["retained", "paged"])
def test_kv_seed(
    only: Only, records: Mapping[str, TurnRecord], turn: str, layer: int, part: int, place: tuple[int, int, int]
) -> None:
    """One element of what a warm turn starts from."""
    seeded, before, after = bumped(records[turn].warm.seeded, layer, part, place)
    finding = only(warm(records[turn], seeded=seeded), "kv_seed")
    assert (finding.left, finding.right, finding.phase) == (after, before, "seed")
    placed(finding, layer, part, place)


@pytest.mark.parametrize(("layer", "part", "place"), PLACES)
def test_kv_end(
    only: Only, records: Mapping[str, TurnRecord], layer: int, part: int, place: tuple[int, int, int]
) -> None:
    """One element of the matched arm's cache at the end."""
    record = records["retained"]
    end, before, after = bumped(record.matched.end, layer, part, place)
    finding = only(replace(record, matched=replace(record.matched, end=end)), "kv_end")
    assert (finding.left, finding.right, finding.phase) == (before, after, "end of turn")
    placed(finding, layer, part, place)


def test_the_engines_own_end_is_seen_by_four_arms(judge: Judge, records: Mapping[str, TurnRecord]) -> None:
    """Matched, closed form, cold and poison all hold the same bits."""
    end, _, _ = bumped(records["retained"].warm.end, 1, 0, (1, 13, 2))
    assert red(judge(warm(records["retained"], end=end))) == {"kv_end", "closed_form", "cold", "poison"}


@pytest.mark.parametrize("part", [0, 1])
def test_kv_end_of_another_length(only: Only, records: Mapping[str, TurnRecord], part: int) -> None:
    """A cache one position short is a difference of shape, before any value."""
    record = records["retained"]
    held = [list(layer) for layer in record.matched.end]
    held[0][part] = held[0][part][:, :-1]
    matched = replace(record.matched, end=tuple((keys, values) for keys, values in held))
    finding = only(replace(record, matched=matched), "kv_end")
    assert (finding.left, finding.right) == ("float32[2, 18, 8]", "float32[2, 17, 8]")


def test_kv_end_of_another_number_of_layers(judge: Judge, records: Mapping[str, TurnRecord]) -> None:
    """A missing layer is a finding for keys and one for values, never a silent zip."""
    record = records["retained"]
    results = judge(replace(record, matched=replace(record.matched, end=record.matched.end[:1])))
    assert red(results) == {"kv_end"}
    assert [(f.part, f.left, f.right) for f in results["kv_end"].findings] == [("key", "2", "1"), ("value", "2", "1")]


def test_kv_pages(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """One element of a published page, at its absolute position."""
    record = records["paged"]
    key = next(key for key in record.shadow_pages if len(key[1]) == 8)
    rows, before, after = bumped(record.shadow_pages[key], 1, 1, (0, 2, 5))
    finding = only(replace(record, shadow_pages={**record.shadow_pages, key: rows}), "kv_pages")
    assert (finding.left, finding.right, finding.phase) == (before, after, "page")
    placed(finding, 1, 1, (0, 6, 5))


def test_kv_pages_published_too_much(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """A prefix that no turn could have published."""
    record = records["paged"]
    key = next(key for key in record.legal if len(key[1]) == 8)
    finding = only(replace(record, legal=record.legal - {key}), "kv_pages")
    assert (finding.component, finding.left, finding.right) == ("published", "published, 8 tokens", "not published")
    assert "prefix of 8 tokens" in finding.place


def test_kv_pages_lost(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """A prefix that should be there, while the pool has room."""
    record = records["paged"]
    key = PageKey("x", (1, 2, 3))
    finding = only(replace(record, legal=record.legal | {key}, required=record.required | {key}), "kv_pages")
    assert (finding.component, finding.left, finding.right) == ("lost", "not published", "published, 3 tokens")
    assert finding.place == "prefix of 3 tokens ending [1, 2, 3], salt 'x'"


def test_kv_pages_orphan(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """A leaf stays although its parent was evicted."""
    record = records["paged"]
    pool = record.warm.pool
    assert pool is not None
    parent = next(key for key in pool.entries if len(key[1]) == 4)
    page = pool.entries[parent]
    short = replace(
        pool,
        entries={key: at for key, at in pool.entries.items() if key != parent},
        holders=tuple(0 if at == page else count for at, count in enumerate(pool.holders)),
        free=(*pool.free, page),
    )
    crowded = replace(
        record, settings=changed(record.settings, pages=len(record.before)), before=record.before - {parent}
    )
    orphan, own = kv_pages(warm(crowded, pool=short)).findings
    assert (orphan.component, orphan.left, orphan.right) == ("orphan", "leaf kept", "leaf first")
    assert own.component == "own"


def test_kv_pages_evicted_too_many(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """Three published prefixes went although the turn wanted no page."""
    record = records["paged"]
    gone = {PageKey("x", (n,)) for n in (1, 2, 3)}
    finding = only(replace(record, before=record.before | gone, wanted_pages=0), "kv_pages")
    assert (finding.component, finding.left) == ("excess", "3 evicted")


@pytest.mark.parametrize("wrong", ["tokens", "logits", "key", "value"])
def test_closed_form(only: Only, records: Mapping[str, TurnRecord], wrong: str) -> None:
    """Tokens, logits, keys and values against the fixture's integers."""
    record = records["retained"]
    assert record.closed is not None
    finding = only(replace(record, closed=WrongForm(record.closed, wrong)), "closed_form")
    expected = {
        "tokens": "generated token 3",
        "logits": "call 3, token (5,)",
        "key": "layer 1 key head 0 position 3 channel 2",
        "value": "layer 0 value head 1 position 6 channel 4",
    }
    assert finding.place == expected[wrong]
    if wrong == "tokens":
        assert finding.left != finding.right
    else:
        assert float(finding.right) == float(finding.left) + 1


def cold_of(record: TurnRecord) -> Observation:
    """The cold arm's observation."""
    assert record.cold is not None
    return record.cold


def test_cold_control(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """A cold arm that reused something proves nothing, and says so."""
    record = records["retained"]
    finding = only(replace(record, cold=replace(cold_of(record), reused=3)), "cold")
    assert (finding.component, finding.left, finding.right) == ("control", "0 expected", "3")


def test_cold_tokens(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """Cold and warm reply differently."""
    record = records["retained"]
    tokens = another(record.warm.tokens, 1)
    finding = only(replace(record, cold=replace(cold_of(record), tokens=tokens)), "cold")
    assert finding.place == "generated token 1"
    assert str(record.warm.tokens[1]) in finding.left.split()
    assert str(tokens[1]) in finding.right.split()


def test_cold_logits(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """The bits of the row that gave a token."""
    record = records["retained"]
    calls = list(cold_of(record).calls or ())
    row = calls[-1].logits.copy()
    before, row[7] = repr(float(row[7])), row[7] - 1
    calls[-1] = replace(calls[-1], logits=row)
    finding = only(replace(record, cold=replace(cold_of(record), calls=tuple(calls))), "cold")
    assert (finding.left, finding.right) == (before, repr(float(row[7])))
    assert finding.place == "reply token 3, token (7,)"


@pytest.mark.parametrize(("layer", "part", "place"), PLACES)
def test_cold_kv(
    only: Only, records: Mapping[str, TurnRecord], layer: int, part: int, place: tuple[int, int, int]
) -> None:
    """The bits of the cache at the end."""
    record = records["retained"]
    end, before, after = bumped(cold_of(record).end, layer, part, place)
    finding = only(replace(record, cold=replace(cold_of(record), end=end)), "cold")
    assert (finding.left, finding.right) == (before, after)
    placed(finding, layer, part, place)


def test_cold_bits_may_differ_where_the_schedule_shows(judge: Judge, records: Mapping[str, TurnRecord]) -> None:
    """Without a closed form and without invariant numerics only tokens are compared."""
    record = records["retained"]
    assert not record.capabilities.invariant
    end, _, _ = bumped(cold_of(record).end, 0, 0, (0, 0, 0))
    loose = replace(record, closed=None, cold=replace(cold_of(record), end=end))
    assert red(judge(loose)) == set()
    strict = replace(loose, capabilities=replace(record.capabilities, invariant=True))
    assert red(judge(strict)) == {"cold"}


def poisoned_of(record: TurnRecord) -> Observation:
    """The observation under the other pattern."""
    assert record.poisoned is not None
    return record.poisoned


def test_poison_tokens(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """The reply depends on unused memory."""
    record = records["retained"]
    tokens = another(record.warm.tokens, 2)
    finding = only(replace(record, poisoned=replace(poisoned_of(record), tokens=tokens)), "poison")
    assert (finding.component, finding.step, finding.place) == ("tokens", 2, "generated token 2")
    assert str(tokens[2]) in finding.right.split()


def test_poison_logits(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """Only the sign of a zero differs: still a difference."""
    record = records["retained"]
    calls = list(poisoned_of(record).calls or ())
    row = calls[2].logits.copy()
    at = int(np.argmax(row))
    row[at] = -row[at]
    calls[2] = replace(calls[2], logits=row)
    finding = only(replace(record, poisoned=replace(poisoned_of(record), calls=tuple(calls))), "poison")
    assert (finding.component, finding.step) == ("logits", 2)
    assert {finding.left, finding.right} == {"0.0", "-0.0"}


@pytest.mark.parametrize(("layer", "part", "place"), PLACES)
def test_poison_kv(
    only: Only, records: Mapping[str, TurnRecord], layer: int, part: int, place: tuple[int, int, int]
) -> None:
    """The cache at the end depends on unused memory."""
    record = records["retained"]
    end, before, after = bumped(poisoned_of(record).end, layer, part, place)
    finding = only(replace(record, poisoned=replace(poisoned_of(record), end=end)), "poison")
    assert (finding.left, finding.right) == (before, after)
    placed(finding, layer, part, place)
