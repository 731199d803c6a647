"""The battery itself, on the real sources. Slow: each mutant is a process with a copy of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from warmcold.mutations.apply import copy_tree, package, plant
from warmcold.mutations.battery import BatteryError, legs, run_battery
from warmcold.mutations.catalog import MUTANTS
from warmcold.mutations.mutant import Mutant, Outcome

BY_ID = {mutant.id: mutant for mutant in MUTANTS}
SHORT = replace(BY_ID["seed-swaps-key-and-value"], fixture=("snap-gqa-shared",), backend=("ort",))
SCANNED = BY_ID["reused-prefix-built-elsewhere"]

pytestmark = [pytest.mark.slow, pytest.mark.source_scan]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package."""
    copy_tree(package(), tmp_path / "warmcold")
    return tmp_path / "warmcold"


def test_two_mutants_are_killed_by_the_checks_that_ought_to() -> None:
    """One that is played and one that is scanned; the witness of the latter names file, line and rule."""
    seen = run_battery(package(), [SHORT, SCANNED])
    assert [result.outcome for result in seen.results] == [Outcome.KILLED, Outcome.KILLED]
    assert "tokens" not in seen.clean.found
    assert "engine/turn/turn.py:" in seen.results[1].witness
    assert "ReusedPrefix is made only" in seen.results[1].witness


def test_a_tree_that_does_not_pass_proves_nothing(tree: Path) -> None:
    """With a fault already in the sources no mutant is run at all."""
    plant(SHORT, tree)
    other = replace(SHORT, id="other", text="size = self._pool.page_size", file="engine/kv/prefix_cache.py")
    with pytest.raises(BatteryError, match="the clean tree does not pass"):
        run_battery(tree, [other])


def test_each_leg_is_judged_clean_once() -> None:
    """Models and backends that several mutants share are played once on the clean tree; scanned ones are not."""
    mutants: list[Mutant] = [SHORT, replace(SHORT, id="again"), SCANNED]
    assert legs(mutants) == [("fixtures/models/snap-gqa-shared", "ort")]
