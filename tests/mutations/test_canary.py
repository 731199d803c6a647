"""What the two canaries are for: a mutation run that cannot tell them apart proves nothing."""

from __future__ import annotations

from warmcold.mutations.canary import seen, unseen


def test_every_mutant_of_this_one_dies() -> None:
    """The value is compared."""
    assert seen(1) == 2


def test_every_mutant_of_this_one_lives() -> None:
    """The value is computed and compared with nothing."""
    unseen(1)
