"""Each check seen green on a healthy turn, and red, alone, when one field of the record is corrupted.

Most corruptions are of the arm that only one check looks at; what the engine itself gave is seen by several, and those
cases name all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.checks import ALL
from harness.observation import Kv, Observation, Tokens
from harness.record import ClosedForm, TurnRecord
from harness.verdict import CheckResult, Finding, Level, Verdict

Corrupt = Callable[[TurnRecord], TurnRecord]


def judge(record: TurnRecord) -> dict[str, CheckResult]:
    """Every check on one record."""
    return {name: check(record) for name, check in ALL.items()}


def red(record: TurnRecord) -> set[str]:
    """The checks that found something."""
    return {name for name, result in judge(record).items() if result.findings}


def only(record: TurnRecord, check: str) -> Finding:
    """The one finding of a record on which exactly `check` is red, which names its turn."""
    results = judge(record)
    assert {name for name, result in results.items() if result.findings} == {check}
    (finding,) = results[check].findings
    assert (finding.check, finding.turn) == (check, record.name)
    assert f"[{check}]" in str(finding)
    assert f"turn {record.name}" in str(finding)
    return finding


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


def feed(record: TurnRecord, step: int, name: str, at: int, value: int) -> TurnRecord:
    """One number of one model call replaced."""
    assert record.warm.calls is not None
    calls = list(record.warm.calls)
    array = calls[step].feeds[name].copy()
    array[0, at] = value
    calls[step] = replace(calls[step], feeds={**calls[step].feeds, name: array})
    return warm(record, calls=tuple(calls))


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


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("turn", ["retained", "paged"])
def test_a_healthy_warm_turn_is_green(records: Mapping[str, TurnRecord], turn: str, name: str) -> None:
    """Every check compares something on a warm turn, and finds nothing."""
    result = ALL[name](records[turn])
    assert result.findings == []
    assert result.compared > 0
    assert result.verdict is Verdict.PASS


@pytest.mark.parametrize("turn", ["cold", "empty"])
def test_other_healthy_turns_are_green(records: Mapping[str, TurnRecord], turn: str) -> None:
    """A cold turn rules out the seed; a turn without tokens the oracle. Nothing else."""
    ruled_out = {"cold": "kv_seed", "empty": "oracle"}[turn]
    results = judge(records[turn])
    assert {name: result.verdict for name, result in results.items() if result.verdict is not Verdict.PASS} == {
        ruled_out: Verdict.NOT_RUN
    }


@pytest.mark.parametrize("turn", ["retained", "paged"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("source", "thin air"), ("reason", "stateless"), ("gate", "no_kv"), ("declined", True)],
)
def test_reuse_wrong_word(records: Mapping[str, TurnRecord], turn: str, field: str, value: object) -> None:
    """The count is right, but the engine says another source, reason, gate or fate of its rewind."""
    finding = only(warm(records[turn], **{field: value}), "reuse")
    assert (finding.left, finding.right) == (str(value), str(getattr(records[turn].plan, field)))
    assert finding.place == finding.component == field


def test_reuse_sum(records: Mapping[str, TurnRecord]) -> None:
    """Reused and prefilled must add up to the prompt."""
    record = records["retained"]
    finding = only(warm(record, prefilled=4), "reuse")
    assert (finding.left, finding.right, finding.component) == ("12 + 4", str(len(record.prompt)), "sum")


def test_reused_more_than_allowed(records: Mapping[str, TurnRecord]) -> None:
    """Unsound, whatever the bytes are. (The calls are hidden: feeds would see them too.)"""
    finding = only(warm(records["retained"], reused=13, prefilled=2, calls=None), "reuse")
    assert (finding.left, finding.right) == ("13", "at most 12 (current)")


def test_efficiency(records: Mapping[str, TurnRecord]) -> None:
    """Reused less than the glossary admits."""
    record = warm(records["retained"], reused=11, prefilled=4, calls=None)
    finding = only(record, "efficiency")
    assert (finding.left, finding.right) == ("11 (current)", "12 (current, retained)")


def test_efficiency_is_asked_only_of_those_who_declare(records: Mapping[str, TurnRecord]) -> None:
    """A subject without a declared reuse model may reuse less."""
    record = warm(records["retained"], reused=11, prefilled=4, calls=None)
    modest = replace(record, capabilities=replace(record.capabilities, reuse_model=False))
    assert red(modest) == set()
    assert ALL["efficiency"](modest).verdict is Verdict.NOT_RUN


@pytest.mark.parametrize(
    ("name", "step", "at", "value"),
    [("input_ids", 0, 1, 60), ("input_ids", 2, 0, 60), ("attention_mask", 0, 3, 0), ("attention_mask", 1, -1, 0)],
)
def test_feeds(records: Mapping[str, TurnRecord], name: str, step: int, at: int, value: int) -> None:
    """One wrong number in one call: which input, which call, which index."""
    record = records["retained"]
    assert record.warm.calls is not None
    right = int(record.warm.calls[step].feeds[name][0, at])
    index = at % record.warm.calls[step].feeds[name].shape[1]
    finding = only(feed(record, step, name, at, value), "feeds")
    assert (finding.component, finding.step, finding.place) == (name, step, f"{name}, call {step}")
    assert f"index {index}" in finding.message
    assert str(value) in finding.left.split()
    assert str(right) in finding.right.split()


def test_feeds_positions(records: Mapping[str, TurnRecord]) -> None:
    """A position shifted by one is seen where the model has the input."""
    record = records["retained"]
    assert record.warm.calls is not None
    calls = [replace(c, feeds={**c.feeds, "position_ids": positions(c.feeds["attention_mask"], c.feeds["input_ids"])})
             for c in record.warm.calls]  # fmt: skip
    routed = warm(record, calls=tuple(calls))
    assert red(routed) == set()
    finding = only(feed(routed, 1, "position_ids", 0, 13), "feeds")
    assert (finding.component, finding.left, finding.right) == ("position_ids", "13 (1 tokens)", "15 (1 tokens)")


def positions(mask: NDArray[Any], ids: NDArray[Any]) -> NDArray[np.int64]:
    """The absolute positions of a call's tokens."""
    return np.arange(mask.shape[1] - ids.shape[1], mask.shape[1])[None]


def test_feeds_schedule(records: Mapping[str, TurnRecord]) -> None:
    """The right tokens in other portions than the reused count implies."""
    record = records["retained"]
    matched = replace(record.matched, rows=(2, 2, *record.matched.rows[1:]))
    finding = only(replace(record, matched=matched, closed=None), "feeds")
    assert (finding.left, finding.right) == ("[3, 1, 1, 1]", "[2, 2, 1, 1, 1]")


PLACES = [(0, 0, (0, 0, 0)), (1, 0, (1, 11, 7)), (0, 1, (1, 5, 3)), (1, 1, (0, 7, 6))]


def placed(finding: Finding, layer: int, part: int, place: tuple[int, int, int]) -> None:
    """The finding names layer, key or value, head, position and channel."""
    kind = ("key", "value")[part]
    assert finding.part == kind
    assert finding.place == f"layer {layer} {kind} head {place[0]} position {place[1]} channel {place[2]}"


@pytest.mark.parametrize(("layer", "part", "place"), PLACES)
@pytest.mark.parametrize("turn", ["retained", "paged"])
def test_kv_seed(
    records: Mapping[str, TurnRecord], turn: str, layer: int, part: int, place: tuple[int, int, int]
) -> None:
    """One element of what a warm turn starts from."""
    seeded, before, after = bumped(records[turn].warm.seeded, layer, part, place)
    finding = only(warm(records[turn], seeded=seeded), "kv_seed")
    assert (finding.left, finding.right, finding.phase) == (after, before, "seed")
    placed(finding, layer, part, place)


@pytest.mark.parametrize(("layer", "part", "place"), PLACES)
def test_kv_end(records: Mapping[str, TurnRecord], layer: int, part: int, place: tuple[int, int, int]) -> None:
    """One element of the matched arm's cache at the end."""
    record = records["retained"]
    end, before, after = bumped(record.matched.end, layer, part, place)
    finding = only(replace(record, matched=replace(record.matched, end=end)), "kv_end")
    assert (finding.left, finding.right, finding.phase) == (before, after, "end of turn")
    placed(finding, layer, part, place)


def test_the_engines_own_end_is_seen_by_four_arms(records: Mapping[str, TurnRecord]) -> None:
    """Matched, closed form, cold and poison all hold the same bits."""
    end, _, _ = bumped(records["retained"].warm.end, 1, 0, (1, 13, 2))
    assert red(warm(records["retained"], end=end)) == {"kv_end", "closed_form", "cold", "poison"}


@pytest.mark.parametrize("part", [0, 1])
def test_kv_end_of_another_length(records: Mapping[str, TurnRecord], part: int) -> None:
    """A cache one position short is a difference of shape, before any value."""
    record = records["retained"]
    held = [list(layer) for layer in record.matched.end]
    held[0][part] = held[0][part][:, :-1]
    matched = replace(record.matched, end=tuple((keys, values) for keys, values in held))
    finding = only(replace(record, matched=matched), "kv_end")
    assert (finding.left, finding.right) == ("float32[2, 18, 8]", "float32[2, 17, 8]")


def test_kv_end_of_another_number_of_layers(records: Mapping[str, TurnRecord]) -> None:
    """A missing layer is a finding for keys and one for values, never a silent zip."""
    record = records["retained"]
    results = judge(replace(record, matched=replace(record.matched, end=record.matched.end[:1])))
    assert {name for name, result in results.items() if result.findings} == {"kv_end"}
    assert [(f.part, f.left, f.right) for f in results["kv_end"].findings] == [("key", "2", "1"), ("value", "2", "1")]


def test_kv_pages(records: Mapping[str, TurnRecord]) -> None:
    """One element of a published page, at its absolute position."""
    record = records["paged"]
    key = next(key for key in record.shadow_pages if len(key[1]) == 8)
    rows, before, after = bumped(record.shadow_pages[key], 1, 1, (0, 2, 5))
    finding = only(replace(record, shadow_pages={**record.shadow_pages, key: rows}), "kv_pages")
    assert (finding.left, finding.right, finding.phase) == (before, after, "page")
    placed(finding, 1, 1, (0, 6, 5))


def test_kv_pages_published_too_much(records: Mapping[str, TurnRecord]) -> None:
    """A prefix that no turn could have published."""
    record = records["paged"]
    key = next(key for key in record.legal if len(key[1]) == 8)
    finding = only(replace(record, legal=record.legal - {key}), "kv_pages")
    assert (finding.component, finding.left, finding.right) == ("published", "published, 8 tokens", "not published")
    assert "prefix of 8 tokens" in finding.place


def test_kv_pages_lost(records: Mapping[str, TurnRecord]) -> None:
    """A prefix that should be there, while the pool has room."""
    record = records["paged"]
    key = ("x", (1, 2, 3))
    finding = only(replace(record, legal=record.legal | {key}), "kv_pages")
    assert (finding.component, finding.left, finding.right) == ("lost", "not published", "published, 3 tokens")
    assert finding.place == "prefix of 3 tokens ending [1, 2, 3], salt 'x'"


def test_kv_pages_orphan(records: Mapping[str, TurnRecord]) -> None:
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
    crowded = replace(record, settings=replace(record.settings, pages=len(record.before)), before=record.before - {parent})
    finding = only(warm(crowded, pool=short), "kv_pages")
    assert (finding.component, finding.left, finding.right) == ("orphan", "leaf kept", "leaf first")


def test_kv_pages_evicted_too_many(records: Mapping[str, TurnRecord]) -> None:
    """Three published prefixes went although the turn wanted no page."""
    record = records["paged"]
    gone = {("x", (1,)), ("x", (2,)), ("x", (3,))}
    finding = only(replace(record, before=record.before | gone, wanted_pages=0), "kv_pages")
    assert (finding.component, finding.left) == ("excess", "3 evicted")


@pytest.mark.parametrize("step", [0, 3])
def test_logits(records: Mapping[str, TurnRecord], step: int) -> None:
    """One entry of one call's row of the matched arm."""
    record = records["retained"]
    rows = [row.copy() for row in record.matched.logits]
    before, rows[step][5] = repr(float(rows[step][5])), rows[step][5] - 1
    finding = only(replace(record, matched=replace(record.matched, logits=tuple(rows))), "logits")
    assert (finding.left, finding.right) == (before, repr(float(rows[step][5])))
    assert (finding.step, finding.place) == (step, f"call {step}, token (5,)")


@pytest.mark.parametrize("at", [0, 3])
def test_tokens(records: Mapping[str, TurnRecord], at: int) -> None:
    """The matched arm says another token."""
    record = records["retained"]
    matched = replace(record.matched, tokens=another(record.matched.tokens, at))
    finding = only(replace(record, matched=matched), "tokens")
    assert (finding.step, finding.place) == (at, f"generated token {at}")
    assert str(record.warm.tokens[at]) in finding.left.split()
    assert str(matched.tokens[at]) in finding.right.split()


def test_tokens_too_few(records: Mapping[str, TurnRecord]) -> None:
    """A reply that ends early differs where it ends."""
    record = records["retained"]
    shorter = warm(record, tokens=record.warm.tokens[:-1], calls=None, end=None)
    (finding,) = ALL["tokens"](shorter).findings
    assert (finding.step, "(3 tokens)" in finding.left, "(4 tokens)" in finding.right) == (3, True, True)


def test_a_wrong_token_is_seen_by_every_arm(records: Mapping[str, TurnRecord]) -> None:
    """The engine's last token (which is not fed) differs from all five."""
    record = records["retained"]
    expected = {"tokens", "closed_form", "cold", "oracle", "poison"}
    assert red(warm(record, tokens=another(record.warm.tokens, 3))) == expected


@pytest.mark.parametrize("wrong", ["tokens", "logits", "key", "value"])
def test_closed_form(records: Mapping[str, TurnRecord], wrong: str) -> None:
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


def test_cold_control(records: Mapping[str, TurnRecord]) -> None:
    """A cold arm that reused something proves nothing, and says so."""
    record = records["retained"]
    finding = only(replace(record, cold=replace(cold_of(record), reused=3)), "cold")
    assert (finding.component, finding.left, finding.right) == ("control", "0 expected", "3")


def test_cold_tokens(records: Mapping[str, TurnRecord]) -> None:
    """Cold and warm reply differently."""
    record = records["retained"]
    tokens = another(record.warm.tokens, 1)
    finding = only(replace(record, cold=replace(cold_of(record), tokens=tokens)), "cold")
    assert finding.place == "generated token 1"
    assert str(record.warm.tokens[1]) in finding.left.split()
    assert str(tokens[1]) in finding.right.split()


def test_cold_logits(records: Mapping[str, TurnRecord]) -> None:
    """The bits of the row that gave a token."""
    record = records["retained"]
    calls = list(cold_of(record).calls or ())
    row = calls[-1].logits.copy()
    before, row[7] = repr(float(row[7])), row[7] - 1
    calls[-1] = replace(calls[-1], logits=row)
    finding = only(replace(record, cold=replace(cold_of(record), calls=tuple(calls))), "cold")
    assert (finding.left, finding.right) == (before, repr(float(row[7])))
    assert finding.place == "logits of token 3, entry (7,)"


@pytest.mark.parametrize(("layer", "part", "place"), PLACES)
def test_cold_kv(records: Mapping[str, TurnRecord], layer: int, part: int, place: tuple[int, int, int]) -> None:
    """The bits of the cache at the end."""
    record = records["retained"]
    end, before, after = bumped(cold_of(record).end, layer, part, place)
    finding = only(replace(record, cold=replace(cold_of(record), end=end)), "cold")
    assert (finding.left, finding.right) == (before, after)
    placed(finding, layer, part, place)


def test_cold_bits_may_differ_where_the_schedule_shows(records: Mapping[str, TurnRecord]) -> None:
    """Without a closed form and without invariant numerics only tokens are compared."""
    record = records["retained"]
    assert not record.capabilities.invariant
    end, _, _ = bumped(cold_of(record).end, 0, 0, (0, 0, 0))
    loose = replace(record, closed=None, cold=replace(cold_of(record), end=end))
    assert red(loose) == set()
    strict = replace(loose, capabilities=replace(record.capabilities, invariant=True))
    assert red(strict) == {"cold"}


def test_oracle(records: Mapping[str, TurnRecord]) -> None:
    """The model file says another token at one step."""
    record = records["retained"]
    recompute = record.recompute
    assert recompute is not None
    row = len(record.prompt) + 1

    def other(tokens: Any, schedule: Any) -> NDArray[np.float32]:
        rows = recompute(tokens, schedule).copy()
        if len(rows) > row:
            rows[row, 60] = 9.0
        return rows

    finding = only(replace(record, recompute=other), "oracle")
    assert (finding.step, finding.place) == (2, "generated token 2")
    assert finding.left.startswith(f"{record.warm.tokens[2]} (logit ")
    assert finding.right == "60 (logit 9)"


def poisoned_of(record: TurnRecord) -> Observation:
    """The observation under the other pattern."""
    assert record.poisoned is not None
    return record.poisoned


def test_poison_tokens(records: Mapping[str, TurnRecord]) -> None:
    """The reply depends on unused memory."""
    record = records["retained"]
    tokens = another(record.warm.tokens, 2)
    finding = only(replace(record, poisoned=replace(poisoned_of(record), tokens=tokens)), "poison")
    assert (finding.component, finding.step, finding.place) == ("tokens", 2, "generated token 2")
    assert str(tokens[2]) in finding.right.split()


def test_poison_logits(records: Mapping[str, TurnRecord]) -> None:
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
def test_poison_kv(records: Mapping[str, TurnRecord], layer: int, part: int, place: tuple[int, int, int]) -> None:
    """The cache at the end depends on unused memory."""
    record = records["retained"]
    end, before, after = bumped(poisoned_of(record).end, layer, part, place)
    finding = only(replace(record, poisoned=replace(poisoned_of(record), end=end)), "poison")
    assert (finding.left, finding.right) == (before, after)
    placed(finding, layer, part, place)


def test_conservation_holders(records: Mapping[str, TurnRecord]) -> None:
    """A page held once more than there are prefixes that end in it: a leak."""
    pool = records["paged"].warm.pool
    assert pool is not None
    page = min(pool.entries.values())
    leaked = replace(pool, holders=tuple(n + (at == page) for at, n in enumerate(pool.holders)))
    finding = only(warm(records["paged"], pool=leaked), "conservation")
    assert (finding.component, finding.place) == ("holders", "page pool")
    assert "2" in finding.left
    assert "2" not in finding.right.split("]")[0]


def test_conservation_free_list(records: Mapping[str, TurnRecord]) -> None:
    """A page twice in the free list, and one that is in no list at all."""
    pool = records["paged"].warm.pool
    assert pool is not None
    lost = only(warm(records["paged"], pool=replace(pool, free=pool.free[1:])), "conservation")
    assert (lost.component, f"({len(pool.free) - 1} in all)" in lost.left) == ("free", True)
    twice = judge(warm(records["paged"], pool=replace(pool, free=(*pool.free, pool.free[0]))))
    assert {f.component for f in twice["conservation"].findings} == {"duplicates", "free"}
    assert {name for name, result in twice.items() if result.findings} == {"conservation"}


@pytest.mark.parametrize(
    ("hidden", "blind"),
    [
        ({"reused": None}, {"reuse", "efficiency"}),
        ({"calls": None}, {"feeds", "logits"}),
        ({"seeded": None}, {"kv_seed"}),
        ({"end": None}, {"kv_end"}),
        ({"pool": None}, {"kv_pages", "conservation"}),
    ],
)
def test_what_is_not_shown_is_not_observable(
    records: Mapping[str, TurnRecord], hidden: dict[str, None], blind: set[str]
) -> None:
    """The checks that need it say so, and none invents a pass or a failure."""
    results = judge(warm(records["retained"], **hidden))
    assert {name for name, result in results.items() if result.not_observable} >= blind
    assert all(results[name].compared == 0 for name in blind)
    assert {name for name, result in results.items() if result.findings} == set()


def test_dropping_the_dearer_arms(records: Mapping[str, TurnRecord]) -> None:
    """An arm that was not run rules its check out, with the reason."""
    bare = replace(records["retained"], cold=None, closed=None, poisoned=None, recompute=None)
    results = judge(bare)
    assert {name for name, result in results.items() if result.not_applicable} == {"cold", "closed_form", "poison", "oracle"}
    assert all(result.verdict is not Verdict.UNKNOWN for result in results.values())


def test_without_state_the_kv_checks_are_ruled_out(records: Mapping[str, TurnRecord]) -> None:
    """A stateless model has no KV to look at."""
    record = replace(records["cold"], stateful=False)
    for name in ("kv_seed", "kv_pages", "kv_end"):
        assert ALL[name](record).not_applicable == "the model carries no state"


def test_the_level_of_the_subject(records: Mapping[str, TurnRecord]) -> None:
    """The engine shows everything."""
    assert records["cold"].capabilities.level is Level.L4
