"""``warmcold mutate``: plant faults in the engine and see whether the harness notices."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .apply import package
from .battery import BatteryError, Report, run_battery
from .catalog import MUTANTS
from .mutant import Mutant, Result
from .scorecard import counts, passed, write

app = typer.Typer(name="mutate", help="Plant faults in the engine; each must be seen.", add_completion=False)


@app.command("mutate")
def mutate(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="ID", help="Only this mutant; may be given again.")
    ] = None,
    changed: Annotated[
        str | None, typer.Option("--changed", metavar="BASE", help="Only mutants of files changed since BASE.")
    ] = None,
    report: Annotated[Path, typer.Option("--report", metavar="DIR", help="Where the scorecard goes.")] = Path(
        "reports"
    ),
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes at a time.")] = 2,
    list_: Annotated[bool, typer.Option("--list", help="Print the mutants and run none.")] = False,
) -> None:
    """Plant each fault of the catalogue in a copy of the sources and see which checks notice.

    Ends with 0 only when no mutant is stale, every one is seen by a check, and 95% by the check that ought to.
    """
    chosen = _chosen(only or [], changed)
    if list_:
        for mutant in chosen:
            typer.echo(f"{mutant.id:<34} {mutant.file:<28} {mutant.expected_check:<12} {mutant.note}")
        return
    if not chosen:
        typer.echo(f"PASS  no mutant lies in a file changed since {changed}: nothing to run")
        return
    if find_spec("onnxruntime") is None:
        typer.echo("error: the mutants are judged with onnxruntime; run: pip install 'warmcold[cpu]'", err=True)
        raise typer.Exit(2)
    raise typer.Exit(_run(chosen, report, jobs))


def _run(chosen: Sequence[Mutant], folder: Path, jobs: int) -> int:
    console = Console()
    try:
        outcome = _watched(chosen, jobs, console)
    except BatteryError as error:
        typer.echo(f"FAIL  {error}", err=True)
        return 1
    page = write(outcome, folder)
    good = passed(outcome.results)
    typer.echo(f"{'PASS' if good else 'FAIL'}  {len(chosen)} mutants: {counts(outcome.results)}; scorecard: {page}")
    return 0 if good else 1


def _watched(chosen: Sequence[Mutant], jobs: int, console: Console) -> Report:
    """Run with a progress bar, and print at once what was not killed; into a file or pipe, print every result."""
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("copying the sources", total=len(chosen))

        def told(news: str | Result) -> None:
            if isinstance(news, str):
                progress.update(task, description=news)
                return
            progress.advance(task)
            if news.outcome.value != "KILLED" or not console.is_terminal:
                seen = ", ".join(news.killed_by) or "nothing"
                console.print(f"{news.outcome.value}  {news.mutant.id}  seen by: {seen}", markup=False)

        return run_battery(package(), chosen, jobs=jobs, told=told)


def _chosen(only: Sequence[str], changed: str | None) -> list[Mutant]:
    known = {mutant.id: mutant for mutant in MUTANTS}
    if unknown := sorted(set(only) - set(known)):
        typer.echo(f"unknown mutant {unknown}; `warmcold mutate --list` prints those there are", err=True)
        raise typer.Exit(2)
    chosen = [known[name] for name in only] if only else list(MUTANTS)
    if changed is None:
        return chosen
    files = _changed(changed)
    return [mutant for mutant in chosen if concerns(mutant, files)]


def concerns(mutant: Mutant, files: Sequence[str]) -> bool:
    """Whether a change to `files` asks for this mutant again: its own file, or anything that judges."""
    return any(file == mutant.file or file.startswith(("harness/", "mutations/", "fixtures/")) for file in files)


def _changed(base: str) -> list[str]:
    """Tracked and untracked files that differ from `base`, relative to the repository."""
    try:
        return [
            *_git("diff", "--name-only", base, "--").splitlines(),
            *_git("ls-files", "--others", "--exclude-standard", "--full-name", ":/").splitlines(),
        ]
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        typer.echo(f"--changed {base}: git cannot say what changed: {detail.strip()}", err=True)
        raise typer.Exit(2) from error


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=Path(__file__).resolve().parent, capture_output=True, text=True, check=True
    )
    return done.stdout
