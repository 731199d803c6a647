"""Ways to make a scenario smaller. Each yields candidates, the boldest first; whoever searches decides which to keep.

Only candidates of a lower `size.cost` count, so a search over them ends, and a move may offer what is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from msgspec.structs import replace

from ..contract.scenario import Op, Rewind, Scenario, Settings, Turn
from ..conversations.profile import boundary_lengths
from .cost import DEFAULTS, FLAGS, ids, on_session, renamed, session_names

Move = Callable[[Scenario], Iterator[Scenario]]

_LEAST = {"page_size": 1, "pages": 0, "chunk_size": 1, "min_capacity": 1}
_FEW = 8
"""Up to so many operations all pairs are tried."""


def without(scenario: Scenario, dropped: Sequence[int]) -> Iterator[Scenario]:
    """The operations of these numbers dropped. A turn that was made from a dropped one then starts from nothing, or from
    what that one was made from, or from there with what that one appended, and zeros for its reply."""
    for adopt in (_orphan, _rebase, _inherit, _spell):
        ops: list[Op | None] = list(scenario.ops)
        for at in sorted(dropped, reverse=True):
            gone, ops[at] = ops[at], None
            if isinstance(gone, Turn):
                ops[at:] = [adopt(op, gone) if isinstance(op, Turn) and op.base == gone.name else op for op in ops[at:]]
        left = tuple(op for op in ops if op is not None)
        if any(isinstance(op, Turn) for op in left):
            yield replace(scenario, ops=left)


def one_or_two_ops(scenario: Scenario) -> Iterator[Scenario]:
    """Any one operation dropped, and any two where there are few."""
    count = len(scenario.ops)
    for size in (1, 2) if count <= _FEW else (1,):
        for dropped in combinations(range(count - 1, -1, -1), size):
            yield from without(scenario, dropped)


def apart(scenario: Scenario) -> Iterator[Scenario]:
    """Any one operation dropped, and what came after it on its session put on a session of its own.

    For a turn whose only part was to displace what the session retained.
    """
    for at, gone in enumerate(scenario.ops):
        other = {gone.session: f"{gone.session} after {at}"}
        for left in without(scenario, [at]):
            yield replace(left, ops=(*left.ops[:at], *(on_session(op, other) for op in left.ops[at:])))


def sessions(scenario: Scenario) -> Iterator[Scenario]:
    """All on one session; then any one merged into an earlier one."""
    found = session_names(scenario)
    merges = [dict.fromkeys(found, found[0]), *({name: into} for into, name in combinations(found, 2))]
    for merge in merges:
        yield replace(scenario, ops=tuple(on_session(op, merge) for op in scenario.ops))


def settings(scenario: Scenario) -> Iterator[Scenario]:
    """All at their defaults; each at its default."""
    yield replace(scenario, settings=Settings())
    for name, default in DEFAULTS.items():
        yield _set(scenario, name, default)


def small_settings(scenario: Scenario) -> Iterator[Scenario]:
    """Each setting that cannot be at its default smaller."""
    for name in DEFAULTS:
        for value in _smaller(getattr(scenario.settings, name), scenario, least=_LEAST[name]):
            yield _set(scenario, name, value)


def flags(scenario: Scenario) -> Iterator[Scenario]:
    """Salts, cuts, planted errors, references: each dropped in all turns at once, then turn by turn."""
    for name, value in {**FLAGS, "base": None, "part": "context"}.items():
        plain: dict[str, Any] = {name: value}
        for places in _all_then_each(scenario):
            yield _changed(scenario, places, partial(replace, **plain))


def appended(scenario: Scenario) -> Iterator[Scenario]:
    """What a turn says cut to a length at a boundary, or said by pointing at an earlier turn."""
    for at, turn in _turns(scenario):
        said = ids(turn)
        for length in (0, *boundary_lengths(scenario.settings, len(said) - 1)):
            yield from says_less(at, scenario, length, len(said))
        for earlier in (op for op in scenario.ops[:at] if isinstance(op, Turn)):
            for part in ("context", "prompt"):
                for tail in ((), said[-1:]):
                    same = replace(turn, base=earlier.name, part=part, keep=None, drop=None, append=tail)
                    yield with_op(scenario, at, same)


def replies(scenario: Scenario) -> Iterator[Scenario]:
    """Shorter replies: in all turns at once, then turn by turn."""
    for most in (0, 1, 2):
        yield _changed(scenario, range(len(scenario.ops)), partial(_shorter, most))
    for at, turn in _turns(scenario):
        for n in _smaller(turn.max_new_tokens, scenario):
            yield with_op(scenario, at, replace(turn, max_new_tokens=n))


def cuts(scenario: Scenario) -> Iterator[Scenario]:
    """Cuts, rewinds and interruptions at small whole numbers, near a boundary where there is one."""
    for at, op in enumerate(scenario.ops):
        if isinstance(op, Rewind):
            for n in _lengths(op.to, scenario):
                yield with_op(scenario, at, replace(op, to=n))
        elif isinstance(op, Turn):
            yield from (with_op(scenario, at, turn) for turn in _cut(op, scenario))


def small_ids(scenario: Scenario) -> Iterator[Scenario]:
    """Token ids 0, or as small as will do: in all turns at once, turn by turn, one by one."""
    for places in _all_then_each(scenario):
        yield _changed(
            scenario, places, lambda turn: replace(turn, append=(0,) * len(ids(turn))) if ids(turn) else turn
        )
    for at, turn in _turns(scenario):
        said = ids(turn)
        for place, token in enumerate(said):
            for small in sorted(n for n in {0, 1, 2, 3, token // 2} if n < token):
                yield with_op(scenario, at, replace(turn, append=(*said[:place], small, *said[place + 1 :])))


def names(scenario: Scenario) -> Iterator[Scenario]:
    """Plain names."""
    yield renamed(scenario)


def says_less(at: int, scenario: Scenario, start: int, stop: int) -> Iterator[Scenario]:
    """Tokens [start, stop) of what a turn appends left out; then also every later cut moved with what it was meant for."""
    turn = scenario.ops[at]
    if isinstance(turn, Turn):
        left = with_op(scenario, at, replace(turn, append=ids(turn)[:start] + ids(turn)[stop:]))
        yield left
        yield replace(left, ops=(*left.ops[: at + 1], *(_moved(op, stop - start) for op in left.ops[at + 1 :])))


def with_op(scenario: Scenario, at: int, op: Op) -> Scenario:
    """The scenario with its operation number `at` replaced."""
    return replace(scenario, ops=(*scenario.ops[:at], op, *scenario.ops[at + 1 :]))


def _orphan(turn: Turn, gone: Turn) -> Turn:
    return replace(turn, base=None, part="context", keep=None, drop=None)


def _rebase(turn: Turn, gone: Turn) -> Turn:
    return replace(turn, base=gone.base, part=gone.part)


def _inherit(turn: Turn, gone: Turn) -> Turn:
    whole = turn.keep is None and turn.drop is None
    cut: dict[str, Any] = {"keep": gone.keep, "drop": gone.drop} if whole else {}
    return replace(turn, base=gone.base, part=gone.part, append=(*ids(gone), *ids(turn)), **cut)


def _spell(turn: Turn, gone: Turn) -> Turn:
    reply = (0,) * gone.max_new_tokens if turn.part == "context" else ()
    return _inherit(turn, replace(gone, append=(*ids(gone), *reply)))


def _moved(op: Op, by: int) -> Op:
    if isinstance(op, Rewind) and isinstance(op.to, int):
        return replace(op, to=max(op.to - by, 0))
    if not isinstance(op, Turn):
        return op
    drop = (max(op.drop[0] - by, 0), max(op.drop[1] - by, 0)) if op.drop is not None else None
    absolute = isinstance(op.keep, int) and op.keep >= by
    return replace(op, drop=drop, keep=op.keep - by if absolute and op.keep is not None else op.keep)


def _shorter(most: int, turn: Turn) -> Turn:
    return replace(turn, max_new_tokens=min(turn.max_new_tokens, most))


def _cut(turn: Turn, scenario: Scenario) -> Iterator[Turn]:
    if turn.keep is not None:
        yield from (replace(turn, keep=n) for n in _lengths(turn.keep, scenario))
    if turn.drop is not None:
        start, stop = turn.drop
        for drop in ((0, 1), (1, 2), (start, start + 1), (0, stop - start), (start, stop - 1)):
            if drop[0] < drop[1]:
                yield replace(turn, drop=drop)
    if turn.cancel_after is not None:
        yield from (replace(turn, cancel_after=n) for n in _smaller(turn.cancel_after, scenario))
    if turn.fail is not None:
        yield from (replace(turn, fail=(turn.fail[0], n)) for n in _smaller(turn.fail[1], scenario, least=1))


def _turns(scenario: Scenario) -> Iterator[tuple[int, Turn]]:
    for at, op in enumerate(scenario.ops):
        if isinstance(op, Turn):
            yield at, op


def _all_then_each(scenario: Scenario) -> Iterator[Sequence[int]]:
    yield range(len(scenario.ops))
    yield from ([at] for at in range(len(scenario.ops)))


def _changed(scenario: Scenario, places: Sequence[int], change: Callable[[Turn], Turn]) -> Scenario:
    ops = tuple(change(op) if at in places and isinstance(op, Turn) else op for at, op in enumerate(scenario.ops))
    return replace(scenario, ops=ops)


def _set(scenario: Scenario, name: str, value: int) -> Scenario:
    return replace(scenario, settings=replace(scenario.settings, **{name: value}))


def _smaller(value: int, scenario: Scenario, *, least: int = 0) -> list[int]:
    """Smaller values to try, the smallest first: near the least, at the boundaries, and less by a half, a quarter, ... one."""
    less = (value - (value >> halvings) for halvings in range(1, value.bit_length()))
    near = {*range(least, least + 4), *boundary_lengths(scenario.settings, value - 1), *less}
    return sorted(n for n in near if least <= n < value)


def _lengths(length: int | float, scenario: Scenario) -> list[int]:
    if isinstance(length, float):
        return [*range(4), *boundary_lengths(scenario.settings, 32)]
    return _smaller(length, scenario) if length >= 0 else [*range(4), *range(-1, length, -1)]
