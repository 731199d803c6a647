"""The catalogue as a whole."""

from __future__ import annotations

from collections import Counter

from warmcold.harness.checks import ALL, LOOKED_FOR
from warmcold.mutations.apply import package
from warmcold.mutations.catalog import MUTANTS
from warmcold.mutations.mutant import ALLOWLIST, REQUIRED


def test_ids_are_unique() -> None:
    """A mutant is named by its id, on the command line and in reports."""
    assert not [name for name, count in Counter(mutant.id for mutant in MUTANTS).items() if count > 1]


def test_every_expected_check_exists() -> None:
    """A mutant that waits for a check that nobody runs would never be KILLED."""
    known = {*ALL, ALLOWLIST}
    assert {mutant.expected_check for mutant in MUTANTS} <= known


def test_every_model_exists() -> None:
    """Each model directory that a mutant is played on is in the package."""
    missing = {model for mutant in MUTANTS for model in mutant.models if not (package() / model).is_dir()}
    assert not missing


def test_every_source_is_a_report_or_the_required_list() -> None:
    """A fault is cited, or demanded."""
    assert all(mutant.source == REQUIRED or mutant.source.startswith("https://") for mutant in MUTANTS)


def test_every_check_of_the_reuse_mechanism_has_a_mutant() -> None:
    """A check that no fault is expected to fall to was never seen red."""
    assert set(LOOKED_FOR) - {mutant.expected_check for mutant in MUTANTS} <= {"oracle", "logits"}
