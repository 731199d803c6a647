"""Each check seen green on a healthy turn, and red, alone, when one field of the record is corrupted.

Most corruptions are of the arm that only one check looks at; what the engine itself gave is seen by several, and those
cases name all of them. The checks of bytes and of whole arms are in `test_checks_arms.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from warmcold.harness.arms.record import TurnRecord
from warmcold.harness.checks import ALL, LOOKED_FOR
from warmcold.harness.contract.observation import Tokens
from warmcold.harness.contract.verdict import CheckResult, Finding, Level, Verdict

Judge = Callable[[TurnRecord], dict[str, CheckResult]]
Only = Callable[[TurnRecord, str], Finding]


ROLES = {"input_ids": "ids", "position_ids": "positions", "attention_mask": "mask"}


def red(results: dict[str, CheckResult]) -> set[str]:
    """The checks that found something."""
    return {name for name, result in results.items() if result.findings}


def warm(record: TurnRecord, **fields: Any) -> TurnRecord:
    """Something that the engine showed, replaced."""
    return replace(record, warm=replace(record.warm, **fields))


def feed(record: TurnRecord, step: int, name: str, at: int, value: int) -> TurnRecord:
    """One number of one model call replaced."""
    assert record.warm.calls is not None
    calls = list(record.warm.calls)
    role = ROLES[name]
    array = getattr(calls[step], role).copy()
    array[0, at] = value
    calls[step] = replace(calls[step], **{role: array})
    return warm(record, calls=tuple(calls))


def another(tokens: Tokens, at: int) -> Tokens:
    """One token replaced by its neighbour."""
    return (*tokens[:at], (tokens[at] + 1) % 61, *tokens[at + 1 :])


@pytest.mark.parametrize("name", LOOKED_FOR)
@pytest.mark.parametrize("turn", ["retained", "paged"])
def test_a_healthy_warm_turn_is_green(records: Mapping[str, TurnRecord], turn: str, name: str) -> None:
    """Every check compares something on a warm turn, and finds nothing."""
    result = LOOKED_FOR[name](records[turn])
    assert result.findings == []
    assert result.compared > 0
    assert result.verdict is Verdict.PASS


@pytest.mark.parametrize("turn", ["cold", "empty"])
def test_other_healthy_turns_are_green(judge: Judge, records: Mapping[str, TurnRecord], turn: str) -> None:
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
def test_reuse_wrong_word(only: Only, records: Mapping[str, TurnRecord], turn: str, field: str, value: object) -> None:
    """The count is right, but the engine says another source, reason, gate or fate of its rewind."""
    finding = only(warm(records[turn], **{field: value}), "reuse")
    assert (finding.left, finding.right) == (str(value), str(getattr(records[turn].plan, field)))
    assert finding.place == finding.component == field


def test_reuse_sum(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """Reused and prefilled must add up to the prompt."""
    record = records["retained"]
    finding = only(warm(record, prefilled=4), "reuse")
    assert (finding.left, finding.right, finding.component) == ("12 + 4", str(len(record.prompt)), "sum")


def test_reused_more_than_allowed(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """Unsound, whatever the bytes are. (The calls are hidden: feeds would see them too.)"""
    finding = only(warm(records["retained"], reused=13, prefilled=2, calls=None), "reuse")
    assert (finding.left, finding.right) == ("13", "at most 12 (current)")


def test_efficiency(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """Reused less than the glossary admits."""
    record = warm(records["retained"], reused=11, prefilled=4, calls=None)
    finding = only(record, "efficiency")
    assert (finding.left, finding.right) == ("11 (current)", "12 (current, retained)")


def test_efficiency_is_asked_only_of_those_who_declare(judge: Judge, records: Mapping[str, TurnRecord]) -> None:
    """A subject without a declared reuse model may reuse less."""
    record = warm(records["retained"], reused=11, prefilled=4, calls=None)
    modest = replace(
        record, capabilities=replace(record.capabilities, reuse=replace(record.capabilities.reuse, exact=False))
    )
    assert red(judge(modest)) == set()
    assert LOOKED_FOR["efficiency"](modest).verdict is Verdict.NOT_RUN


@pytest.mark.parametrize(
    ("name", "step", "at", "value"),
    [("input_ids", 0, 1, 60), ("input_ids", 2, 0, 60), ("attention_mask", 0, 3, 0), ("attention_mask", 1, -1, 0)],
)
def test_feeds(only: Only, records: Mapping[str, TurnRecord], name: str, step: int, at: int, value: int) -> None:
    """One wrong number in one call: which input, which call, which index."""
    record = records["retained"]
    assert record.warm.calls is not None
    array = getattr(record.warm.calls[step], ROLES[name])
    right, index = int(array[0, at]), at % array.shape[1]
    finding = only(feed(record, step, name, at, value), "feeds")
    assert (finding.component, finding.step, finding.place) == (name, step, f"{name}, call {step}")
    assert f"index {index}" in finding.message
    assert str(value) in finding.left.split()
    assert str(right) in finding.right.split()


def test_feeds_positions(only: Only, judge: Judge, records: Mapping[str, TurnRecord]) -> None:
    """A position shifted by one is seen where the model has the input."""
    record = records["retained"]
    assert record.warm.calls is not None
    calls = [replace(c, positions=positions(c.mask, c.ids)) for c in record.warm.calls if c.mask is not None]
    routed = warm(record, calls=tuple(calls))
    assert red(judge(routed)) == set()
    finding = only(feed(routed, 1, "position_ids", 0, 13), "feeds")
    assert (finding.component, finding.left, finding.right) == ("position_ids", "13 (1 tokens)", "15 (1 tokens)")


def positions(mask: NDArray[Any], ids: NDArray[Any]) -> NDArray[np.int64]:
    """The absolute positions of a call's tokens."""
    return np.arange(mask.shape[1] - ids.shape[1], mask.shape[1])[None]


def test_feeds_schedule(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """The right tokens in other portions than the reused count implies."""
    record = records["retained"]
    matched = replace(record.matched, rows=(2, 2, *record.matched.rows[1:]))
    finding = only(replace(record, matched=matched, closed=None), "feeds")
    assert (finding.left, finding.right) == ("[3, 1, 1, 1]", "[2, 2, 1, 1, 1]")


@pytest.mark.parametrize("step", [0, 3])
def test_logits(only: Only, records: Mapping[str, TurnRecord], step: int) -> None:
    """One entry of one call's row of the matched arm."""
    record = records["retained"]
    rows = [row.copy() for row in record.matched.logits]
    before, rows[step][5] = repr(float(rows[step][5])), rows[step][5] - 1
    finding = only(replace(record, matched=replace(record.matched, logits=tuple(rows))), "logits")
    assert (finding.left, finding.right) == (before, repr(float(rows[step][5])))
    assert (finding.step, finding.place) == (step, f"call {step}, token (5,)")


@pytest.mark.parametrize("at", [0, 3])
def test_tokens(only: Only, records: Mapping[str, TurnRecord], at: int) -> None:
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
    (finding,) = LOOKED_FOR["tokens"](shorter).findings
    assert (finding.step, "(3 tokens)" in finding.left, "(4 tokens)" in finding.right) == (3, True, True)


def test_a_wrong_token_is_seen_by_every_arm(judge: Judge, records: Mapping[str, TurnRecord]) -> None:
    """The engine's last token (which is not fed) differs from all five."""
    record = records["retained"]
    expected = {"tokens", "closed_form", "cold", "oracle", "poison"}
    assert red(judge(warm(record, tokens=another(record.warm.tokens, 3)))) == expected


def test_oracle(only: Only, records: Mapping[str, TurnRecord]) -> None:
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


def test_conservation_holders(only: Only, records: Mapping[str, TurnRecord]) -> None:
    """A page held once more than there are prefixes that end in it: a leak."""
    pool = records["paged"].warm.pool
    assert pool is not None
    page = min(pool.entries.values())
    leaked = replace(pool, holders=tuple(n + (at == page) for at, n in enumerate(pool.holders)))
    finding = only(warm(records["paged"], pool=leaked), "conservation")
    assert (finding.component, finding.place) == ("holders", "page pool")
    assert "2" in finding.left
    assert "2" not in finding.right.split("]")[0]


def test_conservation_free_list(only: Only, judge: Judge, records: Mapping[str, TurnRecord]) -> None:
    """A page twice in the free list, and one that is in no list at all."""
    pool = records["paged"].warm.pool
    assert pool is not None
    lost = only(warm(records["paged"], pool=replace(pool, free=pool.free[1:])), "conservation")
    assert (lost.component, f"({len(pool.free) - 1} in all)" in lost.left) == ("free", True)
    twice = judge(warm(records["paged"], pool=replace(pool, free=(*pool.free, pool.free[0]))))
    assert {f.component for f in twice["conservation"].findings} == {"duplicates", "free"}
    assert red(twice) == {"conservation"}


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
    judge: Judge, records: Mapping[str, TurnRecord], hidden: dict[str, None], blind: set[str]
) -> None:
    """The checks that need it say so, and none invents a pass or a failure."""
    results = judge(warm(records["retained"], **hidden))
    assert {name for name, result in results.items() if result.not_observable} >= blind
    assert all(results[name].compared == 0 for name in blind)
    assert red(results) == set()


def test_dropping_the_dearer_arms(judge: Judge, records: Mapping[str, TurnRecord]) -> None:
    """An arm that was not run rules its check out, with the reason."""
    bare = replace(records["retained"], cold=None, closed=None, poisoned=None, recompute=None)
    results = judge(bare)
    assert {name for name, result in results.items() if result.not_applicable} == {
        "cold",
        "closed_form",
        "poison",
        "oracle",
    }
    assert all(result.verdict is not Verdict.UNKNOWN for result in results.values())


def test_without_state_the_kv_checks_are_ruled_out(records: Mapping[str, TurnRecord]) -> None:
    """A stateless model has no KV to look at."""
    record = replace(records["cold"], stateful=False)
    for name in ("kv_seed", "kv_pages", "kv_end"):
        assert LOOKED_FOR[name](record).not_applicable == "the model carries no state"


def test_the_level_of_the_subject(records: Mapping[str, TurnRecord]) -> None:
    """The engine shows everything."""
    assert records["cold"].capabilities.level is Level.L4


def test_the_readme_tells_what_each_check_points_at() -> None:
    """Its table has every check that is registered, and no other."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    table = text.split("| check | it fired: look at |\n|---|---|\n")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()))
    assert sorted(named) == sorted(ALL)
