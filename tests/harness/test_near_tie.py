"""A token may differ from the oracle's only within twice the error that legal schedules show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from warmcold.harness.arms.near_tie import explained_by_schedule
from warmcold.harness.arms.record import TurnRecord
from warmcold.harness.checks import LOOKED_FOR

VOCABULARY = 61
OTHER = 60


@dataclass
class Oracle:
    """Logits of its own: token `mine` leads `OTHER` by `gap`; a schedule of one-row steps moves entry `moved` by `error`.

    All numbers are sums of quarters, so the comparison with `2 * error` is exact.
    """

    mine: int
    gap: float
    error: float
    moved: int = 0
    asked: list[tuple[int, list[int] | None]] = field(default_factory=list)

    def __call__(self, tokens: Sequence[int], schedule: Sequence[int] | None) -> NDArray[np.float32]:
        self.asked.append((len(tokens), list(schedule) if schedule is not None else None))
        rows = np.full((len(tokens), VOCABULARY), -8, np.float32)
        rows[:, self.mine] = 0
        rows[:, OTHER] = -self.gap
        if schedule is not None and list(schedule) == [1] * len(tokens):
            rows[:, self.moved] += self.error
        return rows


@pytest.fixture
def turn(records: Mapping[str, TurnRecord]) -> TurnRecord:
    """A warm turn of four tokens."""
    return records["retained"]


def explained(turn: TurnRecord, oracle: Oracle, at: int = 1) -> bool:
    """Whether `OTHER` may stand for the token at `at`."""
    other = [*turn.warm.tokens[:at], OTHER, *turn.warm.tokens[at + 1 :]]
    return explained_by_schedule(replace(turn, recompute=oracle), other, at)


@pytest.mark.parametrize(
    ("gap", "error", "legal"),
    [
        (0.0, 0.0, True),
        (0.25, 0.0, False),
        (0.5, 0.25, True),
        (0.75, 0.25, False),
        (0.25, 0.25, True),
        (4.0, 2.0, True),
    ],
)
def test_twice_the_error_and_no_more(turn: TurnRecord, gap: float, error: float, legal: bool) -> None:
    """A tie is explained without any error; a gap up to twice the error is; one above it is not."""
    assert explained(turn, Oracle(turn.warm.tokens[1], gap, error)) is legal


def test_the_error_is_the_greatest_of_any_entry(turn: TurnRecord) -> None:
    """Sup norm over the vocabulary: the entry that moves need not be one of the two tokens."""
    entry = next(t for t in range(VOCABULARY) if t not in (turn.warm.tokens[1], OTHER))
    assert explained(turn, Oracle(turn.warm.tokens[1], 0.5, 0.25, moved=entry))


def test_both_tokens_must_be_near_the_top(turn: TurnRecord) -> None:
    """Two tokens that are near each other and far below a third are no tie."""
    third = next(t for t in range(VOCABULARY) if t not in (turn.warm.tokens[1], OTHER))
    assert not explained(turn, Oracle(third, 0.0, 0.25))


def test_the_controls_are_legal_schedules(turn: TurnRecord) -> None:
    """One pass, the chunk size, halves, one row at a time: each over exactly the tokens before the difference."""
    oracle = Oracle(turn.warm.tokens[1], 0.0, 0.0)
    explained(turn, oracle)
    length = len(turn.prompt) + 1
    assert [total for total, _ in oracle.asked] == [length] * 4
    assert [schedule for _, schedule in oracle.asked] == [[16], [7, 7, 2], [8, 8], [1] * 16]


def test_a_reply_that_ended_early_is_never_explained(turn: TurnRecord) -> None:
    """There is no token to compare."""
    record = replace(turn, recompute=Oracle(turn.warm.tokens[0], 0.0, 8.0))
    assert not explained_by_schedule(record, turn.warm.tokens[:2], 2)
    assert not explained_by_schedule(record, [*turn.warm.tokens, 5], 4)


def test_without_an_oracle_nothing_is_explained(turn: TurnRecord) -> None:
    """No controls, no excuse."""
    assert not explained_by_schedule(replace(turn, recompute=None), [OTHER], 0)


@pytest.mark.parametrize(("gap", "findings"), [(0.5, 0), (0.75, 1)])
def test_the_oracle_and_the_cold_check_use_it(turn: TurnRecord, gap: float, findings: int) -> None:
    """On a model whose bits depend on the schedule, a near-tie is no finding and a gap is."""
    oracle = Oracle(OTHER, gap, 0.25)
    tokens = (*turn.warm.tokens[:3], OTHER)
    # The oracle prefers OTHER everywhere; a turn of one token that lies `gap` below is judged.
    single = replace(turn, warm=replace(turn.warm, tokens=turn.warm.tokens[:1]), closed=None)

    def flipped(context: Sequence[int], schedule: Sequence[int] | None) -> NDArray[np.float32]:
        rows = oracle(context, schedule)
        rows[:, OTHER] = 0
        rows[:, single.warm.tokens[0]] += 8 - gap
        return rows

    assert len(LOOKED_FOR["oracle"](replace(single, recompute=flipped)).findings) == findings
    assert turn.cold is not None
    cold = replace(turn, closed=None, cold=replace(turn.cold, tokens=tokens))
    near = Oracle(turn.warm.tokens[3], gap, 0.25)
    assert len(LOOKED_FOR["cold"](replace(cold, recompute=near)).findings) == findings
