"""The conversations that every mutant has to face: small, fixed, and chosen so that each kind of fault shows.

Lengths sit around the settings on purpose: pages of 4, chunks of 7, buckets from 8. Most are followed by one more turn
on the same session and one on another, because many faults show only after the turn that made them.
"""

from __future__ import annotations

from typing import Any

from ..harness.contract.scenario import Fork, NewSession, Op, Rewind, Scenario, Settings, Turn

# Ids up to 60: the smallest vocabulary among the fixtures is 61.
_A = (7, 3, 19, 28, 5, 41, 2, 33, 11, 17, 8)
_B = (50, 4, 22, 9, 36, 13, 27, 1, 45, 6)


def scenarios() -> tuple[Scenario, ...]:
    """All of them, in a fixed order."""
    return (
        _scenario("extend", _extend()),
        _scenario("extend, unpaged", _extend(), pages=0),
        _scenario("identical", _identical()),
        _scenario("strict prefix", _strict_prefix()),
        _scenario("diverge", _diverge()),
        _scenario("diverge, unpaged", _diverge(), pages=0),
        _scenario("a, b, a over sessions", _there_and_back()),
        _scenario("branch inside a page", _branches()),
        _scenario("same words, other tenant", _tenants()),
        _scenario("permuted pages", _permuted()),
        _scenario("rewind", _rewinds()),
        _scenario("declined rewind", _declined()),
        _scenario("small pool", _crowd(), pages=7),
        _scenario("pool too small for the reply", _long_reply(), pages=4),
        _scenario("growth", _growth(), min_capacity=4),
        _scenario("chunk boundaries", _chunks()),
        _scenario("no new tokens", _nothing_new()),
        _scenario("cancelled", _cancelled()),
        _scenario("cancelled in a tight pool", _cancelled(), pages=12),
        _scenario("failing", _failing()),
        _scenario("failing while growing", _failing_growth(), min_capacity=4),
        _scenario("forked", _forked()),
    )


def _scenario(title: str, ops: tuple[Op, ...], *, pages: int = 64, min_capacity: int = 8) -> Scenario:
    return Scenario(title=title, ops=ops, settings=Settings(pages=pages, min_capacity=min_capacity))


def _turn(name: str, **fields: Any) -> Turn:
    """A turn of two new tokens unless told: one that is fed, and the last, which is not."""
    return Turn(name=name, **{"max_new_tokens": 2, **fields})


def _extend() -> tuple[Op, ...]:
    return (
        _turn("one", append=_A, max_new_tokens=6),
        _turn("two", base="one", append=(5, 6, 7)),
        _turn("three", base="two", append=(9,)),
        _turn("elsewhere", session="t", base="three", append=(12, 14)),
    )


def _identical() -> tuple[Op, ...]:
    """Whole pages (8), one more (9), and less than a page (3): the whole prompt is held, yet its last row is wanted."""
    ops: list[Op] = []
    for length in (8, 9, 3, 1):
        first = _turn(f"first {length}", session=f"s{length}", append=_B[-length:])
        again = _turn(f"again {length}", session=f"s{length}", base=first.name, part="prompt")
        ops += [first, again, _turn(f"paged {length}", session=f"t{length}", base=first.name, part="prompt")]
    return (*ops, _turn("after", session="t8", base="paged 8", append=(2, 3)))


def _strict_prefix() -> tuple[Op, ...]:
    return (
        _turn("whole", append=(*_A, 21, 30, 16)),
        _turn("inside", session="t", base="whole", part="prompt", keep=10),
        _turn("boundary", session="u", base="whole", part="prompt", keep=8),
        _turn("behind", session="v", base="whole", part="prompt", keep=9),
        _turn("back", base="whole", part="prompt", keep=6),
        _turn("on", base="back", append=(44, 3)),
    )


def _diverge() -> tuple[Op, ...]:
    return (
        _turn("one", append=_A, max_new_tokens=6),
        _turn("inside", base="one", part="prompt", keep=6, append=(52, 53, 54)),
        _turn("boundary", base="inside", part="prompt", keep=4, append=(55, 1)),
        _turn("unrelated", append=_B),
        _turn("cut out", base="unrelated", drop=(3, 6), append=(4,)),
        _turn("other", session="t", base="one", part="prompt", keep=6, append=(56, 57)),
        _turn("reply", session="t", base="other", append=(58,)),
    )


def _there_and_back() -> tuple[Op, ...]:
    return (
        _turn("a", append=_A, max_new_tokens=6),
        _turn("b", append=_B),
        _turn("a again", base="a", append=(31,)),
        _turn("b again", base="b", append=(32, 33, 34, 35)),
        NewSession(session="s"),
        _turn("a fresh", base="a again", append=(36, 37)),
        _turn("a on", base="a fresh", append=(38,)),
    )


def _branches() -> tuple[Op, ...]:
    """Two replies to one prefix that ends inside a page, then each goes on; a page written by both would show."""
    return (
        _turn("root", append=_A[:10], max_new_tokens=1),
        _turn("left", session="l", base="root", part="prompt", append=(20, 24)),
        _turn("right", session="r", base="root", part="prompt", append=(25, 29)),
        _turn("left on", session="l", base="left", append=(1,)),
        _turn("left again", session="x", base="left", append=(39,)),
        _turn("right again", session="y", base="right", append=(40,)),
    )


def _tenants() -> tuple[Op, ...]:
    return (
        _turn("nobody", append=_A),
        _turn("empty name", session="t", base="nobody", part="prompt", salt=""),
        _turn("x", session="u", base="nobody", part="prompt", salt="x"),
        _turn("y", session="v", base="nobody", part="prompt", salt="y"),
        _turn("handed over", base="nobody", append=(10,), salt="x"),
        _turn("nobody again", session="w", base="nobody", append=(10,)),
    )


def _permuted() -> tuple[Op, ...]:
    """Pages with the same last token, and the same tokens in another order: told apart by comparing all of them."""
    return (
        _turn("one", append=(1, 2, 3, 4, 5, 6, 7, 8, 9), max_new_tokens=1),
        _turn("last alike", session="t", append=(31, 32, 33, 4, 5, 6, 7, 8, 9), max_new_tokens=1),
        _turn("swapped", session="u", append=(5, 6, 7, 8, 1, 2, 3, 4, 9), max_new_tokens=1),
        _turn("shuffled", session="w", append=(4, 3, 2, 1, 5, 6, 7, 8, 9), max_new_tokens=1),
        _turn("first alike", session="v", append=(1, 40, 41, 42, 5, 6, 7, 8, 9), max_new_tokens=1),
    )


def _rewinds() -> tuple[Op, ...]:
    return (
        _turn("one", append=_A, max_new_tokens=6),
        Rewind(session="s", to=5),
        _turn("same way", base="one", part="prompt", keep=5, append=(46, 47)),
        Rewind(session="s", to=0.5),
        _turn("on", base="same way", append=(48,)),
        Rewind(session="s", to=0),
        _turn("anew", append=_B[:5]),
        _turn("elsewhere", session="t", base="on", append=(49,)),
    )


def _declined() -> tuple[Op, ...]:
    return (
        _turn("one", append=_A, max_new_tokens=6),
        _turn("declined", base="one", part="prompt", keep=6, append=(52, 53), decline_rewind=True),
        _turn("on", base="declined", append=(54,)),
        _turn("elsewhere", session="t", base="on", append=(55,)),
    )


def _crowd() -> tuple[Op, ...]:
    """Seven pages for prompts of three to five: eviction, hits in a full pool, and a prompt that cannot be held."""
    return (
        _turn("a", session="a", append=_A),
        _turn("b", session="b", append=_B[:9]),
        _turn("c", session="c", append=(*_B[5:], *_A[5:])),
        _turn("c again", session="d", base="c", append=(3,), max_new_tokens=6),
        _turn("b again", session="e", base="b", append=(8, 9)),
        _turn("too long", session="f", append=(*_A, *_B, *_A)),
        _turn("b on", session="e", base="b again", append=(10,), max_new_tokens=6),
        _turn("a anew", session="g", base="a", append=(11,)),
        _turn("a on", session="h", base="a anew", append=(12,)),
    )


def _long_reply() -> tuple[Op, ...]:
    return (
        _turn("one", append=_A, max_new_tokens=12),
        _turn("two", session="t", base="one", part="prompt", append=(15,), max_new_tokens=8),
        _turn("three", session="u", base="one", keep=14, append=(16,)),
    )


def _growth() -> tuple[Op, ...]:
    """Across 4, 8, 16, 32 and 64 positions: at prefill, while decoding, and on a state that another turn left."""
    return (
        _turn("one", append=_A[:3], max_new_tokens=12),
        _turn("two", base="one", append=(*_B, *_A)),
        _turn("three", base="two", append=(42,), max_new_tokens=4),
        _turn("elsewhere", session="t", base="three", append=(43,)),
    )


def _chunks() -> tuple[Op, ...]:
    long = (*_A, *_B)
    return (
        *(_turn(f"{n}", session=f"s{n}", append=(n, *long[: n - 1])) for n in (6, 7, 8, 14, 15)),
        _turn("warm 7", session="s6", base="6", append=_B[:7]),
        _turn("warm 8", session="s7", base="7", append=_B[:8]),
        _turn("paged 8", session="t", base="15", append=_A[:8]),
    )


def _nothing_new() -> tuple[Op, ...]:
    return (
        _turn("read", append=_A[:8], max_new_tokens=0),
        _turn("ask", base="read", max_new_tokens=3),
        _turn("read on", base="ask", append=(23,), max_new_tokens=0),
        _turn("elsewhere", session="t", base="read on", append=(26,)),
    )


def _cancelled() -> tuple[Op, ...]:
    """While queued, between chunks, after the first token, in the middle of the reply; each time both sessions go on."""
    long = (*_A, *_B)
    return (
        _turn("one", append=_A, max_new_tokens=4),
        _turn("queued", base="one", append=_B, cancel_after=0),
        _turn("chunks", base="one", append=long, cancel_after=1),
        _turn("on", base="chunks", append=(3,)),
        _turn("first", base="on", append=_B[:3], max_new_tokens=6, cancel_after=1),
        _turn("middle", session="t", base="on", append=_B[:8], max_new_tokens=6, cancel_after=4),
        _turn("on t", session="t", base="middle", append=(4,)),
        _turn("on s", base="first", append=(6,)),
    )


def _failing() -> tuple[Op, ...]:
    """An error strikes at each point in turn; the same session and another go on from there."""
    ops: list[Op] = [_turn("one", append=_A, max_new_tokens=4)]
    for point in ("feed", "rewind", "seeded", "mirror", "publish"):
        ops += [
            _turn(f"{point} strikes", base="one", keep=10, append=(*_B, *_A[:3]), max_new_tokens=5, fail=(point, 1)),
            _turn(f"after {point}", base="one", append=(14, 15), max_new_tokens=3),
            _turn(f"{point} strikes t", session="t", base="one", append=_B, max_new_tokens=5, fail=(point, 3)),
            _turn(f"after {point} t", session="t", base="one", append=(16,)),
        ]
    return tuple(ops)


def _failing_growth() -> tuple[Op, ...]:
    """Growth fails for the first layer, then for the second; afterwards the same request goes through."""
    ops: list[Op] = [_turn("one", append=_A[:3])]
    for visit in (1, 2):
        ops += [
            _turn(f"strikes {visit}", base="one", append=(*_A, *_B), fail=("grow", visit)),
            _turn(f"after {visit}", base="one", append=(*_A, *_B)),
            _turn(f"short {visit}", session="t", append=_B[:2]),
        ]
    return tuple(ops)


def _forked() -> tuple[Op, ...]:
    """Both go on from the same state, first one and then the other, with and without a rewind."""
    return (
        _turn("one", append=_A, max_new_tokens=5),
        Fork(session="s", to="f"),
        _turn("origin", base="one", append=_B[:4], max_new_tokens=4),
        _turn("fork", session="f", base="one", append=(31, 32), max_new_tokens=4),
        Fork(session="f", to="g"),
        _turn("back", session="g", base="one", keep=6, append=_B[:5]),
        _turn("fork on", session="f", base="fork", append=(33,)),
        _turn("origin on", base="origin", append=(34,)),
        Rewind(session="s", to=0),
        Fork(session="s", to="h"),
        _turn("h", session="h", append=_B[:7], salt="none of the others"),
        _turn("origin anew", append=_A[:5], salt="none of the others"),
        _turn("h on", session="h", base="h", append=(35,), salt="none of the others"),
    )
