"""`warmcold verify`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ...command import Backends, command
from ...fixtures.builtin import builtin_models
from ..contract.errors import HarnessError
from ..contract.verdict import Level, Verdict
from ..reporting.console import ConsoleView
from ..reporting.folder import RunFolder
from ..reporting.formats import overall
from ..run.events import LegFinished
from ..run.player import Effort
from ..run.target import Target
from ..run.verify import Cases
from ..run.verify import verify as play
from .options import (
    INTERRUPTED,
    SERVER,
    UNKNOWN,
    Json,
    Options,
    Report,
    SubjectName,
    Threads,
    case_of,
    ended_politely,
    one_blas_thread,
    options_of,
    reported,
    usage,
)

LONGEST_SHRINK_S = 20.0
"""Most seconds that `verify` spends on making a failing conversation small; never more than a quarter of `--time`."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@dataclass(frozen=True, kw_only=True)
class Verify:
    """What `verify` takes."""

    models: Annotated[
        list[str] | None, typer.Argument(help="Model directories or .onnx files; built-in fixtures if none.")
    ] = None
    backend: Annotated[Backends, typer.Option(help="Backend of warmcold's own engine to judge.")] = Backends.both
    subject: SubjectName = None
    url: Annotated[
        list[str] | None,
        typer.Option(help="Judge a running server: its address, http://HOST:PORT (vLLM, SGLang, llama-server, ...)."),
    ] = None
    option: Options = None
    device: Annotated[str, typer.Option(help="Device that warmcold's own engine runs on.")] = "cpu"
    numerics: Annotated[
        str, typer.Option(help="invariant: bits do not depend on the schedule; fast: free shapes (native).")
    ] = "invariant"
    examples: Annotated[int, typer.Option(help="Conversations to generate for each leg.", min=0, max=1_000_000)] = 30
    seconds: Annotated[float, typer.Option("--time", help="Seconds to spend on each leg, after loading.", min=1)] = 120
    seed: Annotated[int, typer.Option(help="Seed of the generated conversations.")] = 0
    longest: Annotated[int, typer.Option(help="Longest context of a generated conversation, in positions.", min=16)] = (
        64
    )
    cases: Annotated[list[Path] | None, typer.Option("--case", help="Case files to play first.")] = None
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Do not stop a leg at its first failure.")] = False
    no_shrink: Annotated[bool, typer.Option("--no-shrink", help="Leave a failing conversation as it is.")] = False
    require_level: Annotated[str, typer.Option(help="Least level a PASS may have: L0 to L4.")] = "L0"
    threads: Threads = 2
    report: Report = Path("reports")
    as_json: Json = False

    @property
    def effort(self) -> Effort:
        """How much to play."""
        return Effort(
            examples=self.examples,
            seconds=self.seconds,
            seed=self.seed,
            longest=self.longest,
            keep_going=self.keep_going,
            shrink_s=0.0 if self.no_shrink else min(LONGEST_SHRINK_S, self.seconds / 4),
            threads=self.threads,
        )

    def targets(self) -> list[Target]:
        """What to judge, one leg each; ends with a usage error for what does not go together."""
        if self.url and (self.models or self.subject):
            usage("--url: judges what the server has loaded; give no model and no --subject beside it")
        if self.subject and not self.models:
            usage(f"--subject {self.subject}: give the model that it shall load, as MODEL")
        other = SERVER if self.url else self.subject
        if other and self.device != "cpu":
            usage(
                f"--device {self.device}: chooses the device of warmcold's own engine; another engine takes its own by --option"
            )
        if self.option and not other:
            usage(f"--option {self.option[0]}: options belong to --subject or --url")
        models = self.url or self.models or [str(model) for model in builtin_models()]
        return [target for model in models for target in self._of(model, other)]

    def _of(self, model: str, other: str | None) -> list[Target]:
        if other is not None:
            return [Target(model=model, subject=other, options=options_of(self.option))]
        numerics = {"native": {"numerics": self.numerics}}
        return [
            Target(model=model, subject=name, options=numerics.get(name, {}), device=self.device)
            for name in self.backend.names
        ]


@command(app, Verify)
def verify(asked: Verify) -> None:
    """Check that a model's KV reuse is right: warm = matched = cold = oracle, tokens and KV bytes, after every turn.

    Exit status: 0 PASS, 1 FAIL, 2 a usage error, 3 UNKNOWN (nothing that could be judged was), 4 a fault of warmcold.
    """
    if asked.require_level not in Level.__members__:
        usage(f"--require-level {asked.require_level}: give one of {', '.join(Level.__members__)}")
    cases = [(file.name, case_of(file).scenario) for file in asked.cases or []]
    run = Run(report=asked.report / f"{time.strftime('%Y%m%d-%H%M%S')}-verify", as_json=asked.as_json)
    legs = run.play(asked.targets(), asked.effort, cases)
    run.end(legs, Level[asked.require_level])


class Run:
    """A run folder and a terminal, both told of everything that happens. Ends the process with the verdict's exit status."""

    def __init__(self, *, report: Path, as_json: bool) -> None:
        self._console = Console(stderr=as_json)
        self._as_json = as_json
        try:
            self._folder = RunFolder(report)
        except OSError as error:
            usage(f"--report {report.parent}: cannot be written ({error.strerror}); give another folder")

    def play(self, targets: Sequence[Target], effort: Effort, cases: Cases) -> list[LegFinished]:
        """Verify one target after the other."""
        legs: list[LegFinished] = []
        with reported(), ended_politely(), one_blas_thread(), ConsoleView(self._console) as view:
            for target in targets:
                try:
                    for event in play(target, effort, cases):
                        self._folder(event)
                        view(event)
                        if isinstance(event, LegFinished):
                            legs.append(event)
                except HarnessError as error:
                    self._folder.close()
                    usage(f"{target.leg}: {error}{_other(targets)}")
                except KeyboardInterrupt:
                    self._folder.close()
                    where = self._folder.path / "report.md"
                    typer.echo(f"interrupted; what was finished by then: {where}", err=True)
                    raise typer.Exit(INTERRUPTED) from None
        return legs

    def end(self, legs: Sequence[LegFinished], least: Level) -> None:
        """Write the report, say the verdict, and end."""
        data = self._folder.close()
        verdict = overall(list(legs))
        if self._as_json:
            typer.echo(json.dumps(data, indent=1))
        else:
            self._say(f"{verdict.shown} at level {data['level']}: {self._folder.path / 'report.md'}")
            for file in [*data["shrunk"], *data["cases"]][:1]:
                self._say(f"shown again by: warmcold replay {file}")
        low = [leg for leg in legs if leg.level < least and leg.verdict is Verdict.PASS]
        if low:
            typer.echo(f"level {low[0].level.name} is below the required {least.name}", err=True)
        raise typer.Exit(UNKNOWN if low else verdict.exit_code)

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _other(targets: Sequence[Target]) -> str:
    """A model that one backend refuses may do for the other."""
    several = len({target.subject for target in targets}) > 1
    return " (other backends: --backend native or --backend ort)" if several else ""
