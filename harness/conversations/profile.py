"""What a generator must know of a model and its limits; and the lengths at which faults live."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..contract.scenario import Settings
from ..contract.subject import OPERATIONS, Operation


@dataclass(frozen=True, kw_only=True)
class Profile:
    """`longest`: no context may grow beyond it, in positions. `vocab_size`: token ids are 0 to this, exclusive.

    `corpus`: ids of real text to take prompts from, for a model that was trained on text; None: random ids will do.
    `operations`: what the engine offers beside turns. `boundaries`: lengths of its own at which faults may live. `plain`: it
    is not set up by `Settings`, so they are not drawn.
    """

    vocab_size: int
    longest: int
    corpus: tuple[int, ...] | None = None
    operations: frozenset[Operation] = OPERATIONS
    boundaries: tuple[int, ...] = ()
    plain: bool = False


def boundary_lengths(settings: Settings, longest: int, others: tuple[int, ...] = ()) -> list[int]:
    """m - 1, m, m + 1 for small multiples m of page, chunk, bucket and `others`: uniform lengths miss the faults."""

    def multiples() -> Iterator[int]:
        for unit in (settings.page_size, settings.chunk_size):
            yield from (unit * k for k in (1, 2, 3, 5))
        yield from (settings.min_capacity * k for k in (1, 2, 4))
        yield from (unit * k for unit in others for k in (1, 2, 3))

    near = {m + d for m in multiples() for d in (-1, 0, 1)}
    return sorted(n for n in near if 1 <= n <= longest)
