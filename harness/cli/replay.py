"""`warmcold replay` and `warmcold shrink`: a case file played again, or made smaller."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...command import command
from ..contract.errors import NotShownError, ScenarioError
from ..contract.scenario import CaseFile, Scenario
from ..contract.verdict import Level
from ..play.exact import Lineup, run_scenario
from ..reporting.files import write_case
from ..reporting.prose import describe, sizes
from ..run.player import Effort
from ..run.target import Target, target_of
from ..shrinking.confirm import Shrunk, confirm, smallest
from .options import Json, Report, Threads, case_of, reported, usage
from .verify import Run

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@dataclass(frozen=True, kw_only=True)
class Again:
    """A case file, and what to play it on instead of what it was found on."""

    file: Annotated[Path, typer.Argument(help="A case file.")]
    model: Annotated[str | None, typer.Option(help="Model to play it on; the one in the file unless told.")] = None
    backend: Annotated[str | None, typer.Option(help="native or ort; the one in the file unless told.")] = None
    numerics: Annotated[str | None, typer.Option(help="invariant or fast; as in the file unless told.")] = None
    threads: Threads = 2

    def target(self, case: CaseFile) -> Target:
        """What to play it on; a usage error where that is told nowhere."""
        try:
            found = target_of(case.found, model=self.model, subject=self.backend)
        except ScenarioError as error:
            usage(f"{self.file}: {error}")
        if self.numerics is None or found.subject != "native":
            return found
        return Target(model=found.model, options={"numerics": self.numerics}, device=found.device)


@dataclass(frozen=True, kw_only=True)
class Replay(Again):
    """What `replay` takes."""

    report: Report = Path("reports")
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class Shrink(Again):
    """What `shrink` takes."""

    out: Annotated[Path | None, typer.Option(help="Where the small case goes; FILE with .shrunk.json unless told.")] = (
        None
    )
    seconds: Annotated[float, typer.Option("--time", help="Seconds to look for a smaller one.", min=1)] = 60


@command(app, Replay)
def replay(asked: Replay) -> None:
    """Play one case file again. Exit status 1 if it still shows a difference, 0 if not."""
    case = case_of(asked.file)
    target = asked.target(case)
    run = Run(report=asked.report / f"{time.strftime('%Y%m%d-%H%M%S')}-replay", as_json=asked.as_json)
    effort = Effort(examples=0, seconds=float("inf"), threads=asked.threads)
    run.end(run.play([target], effort, [(asked.file.name, case.scenario)]), Level.L0)


@command(app, Shrink)
def shrink(asked: Shrink) -> None:
    """Make a case as small as it gets while it shows the same difference. Exit status 1 if it still shows one, 0 if not."""
    case = case_of(asked.file)
    target = asked.target(case)
    with reported():
        shrunk = _smallest(asked, target, case.scenario)
    where = asked.out or asked.file.with_name(asked.file.name.removesuffix(".json") + ".shrunk.json")
    alone = write_case(where, shrunk, target)
    typer.echo(f"{sizes(case.scenario, shrunk)}\n{describe(shrunk.scenario)}\n{shrunk.finding}")
    typer.echo(f"shown again by: warmcold replay {where}")
    if alone is not None:
        typer.echo(f"without warmcold's harness: {alone}")
    raise typer.Exit(1)


def _smallest(asked: Shrink, target: Target, scenario: Scenario) -> Shrunk:
    """The smallest case, confirmed; ends here where there is nothing to shrink."""
    arms = target.open(threads=asked.threads)
    try:
        found = run_scenario(arms, scenario).findings
        if not found:
            typer.echo(f"{asked.file}: shows no difference any more")
            raise typer.Exit(0)
        small = smallest(arms, scenario, found[0], Lineup(), seconds=asked.seconds)
        return confirm(small, found=target.to_json(), threads=asked.threads)
    except NotShownError as error:
        typer.echo(f"{asked.file}: {error}")
        raise typer.Exit(1) from error
    finally:
        arms.subject.close()
