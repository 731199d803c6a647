"""``warmcold mutate``: what is chosen, and what is printed."""

from __future__ import annotations

from typer.testing import CliRunner

from warmcold.mutations.catalog import MUTANTS
from warmcold.mutations.cli import app, concerns

MUTANT = MUTANTS[0]


def test_list_prints_and_runs_nothing() -> None:
    """One line a mutant, with the check that ought to kill it."""
    shown = CliRunner().invoke(app, ["--list", "--only", MUTANT.id])
    assert shown.exit_code == 0
    assert MUTANT.id in shown.output
    assert MUTANT.expected_check in shown.output


def test_an_unknown_mutant_is_a_usage_error() -> None:
    """Exit 2, with the name and where to find the right ones."""
    shown = CliRunner().invoke(app, ["--only", "no-such"])
    assert shown.exit_code == 2
    assert "no-such" in shown.output
    assert "--list" in shown.output


def test_an_unknown_base_is_a_usage_error() -> None:
    """What git cannot compare with is named."""
    shown = CliRunner().invoke(app, ["--list", "--changed", "no-such-commit"])
    assert shown.exit_code == 2
    assert "no-such-commit" in shown.output


def test_a_change_concerns_the_file_and_whatever_judges() -> None:
    """A mutant runs again when its file changes, or the harness, the battery or the models."""
    assert concerns(MUTANT, [MUTANT.file])
    assert concerns(MUTANT, ["harness/play/exact.py"])
    assert not concerns(MUTANT, ["engine/cli.py", "README.md"])
