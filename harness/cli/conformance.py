"""`warmcold conformance`: the contract of a subject, law by law."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...command import command
from ..conformance.known import Divergence, load, shipped
from ..conformance.laws import Outcome
from ..conformance.run import conformance as conform
from ..contract.verdict import Verdict, merge
from ..run.target import Target
from .options import SERVER, Json, Options, SubjectName, Threads, Url, options_of, reported, usage

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """What `conformance` takes."""

    model: Annotated[str | None, typer.Argument(help="The model that the subject shall load.")] = None
    subject: SubjectName = None
    url: Url = None
    option: Options = None
    known: Annotated[
        Path | None, typer.Option(help="Known divergences, one file; those that come with warmcold unless told.")
    ] = None
    threads: Threads = 2
    as_json: Json = False

    def target(self) -> Target:
        """What to try it on."""
        if (self.url is None) == (self.model is None) or (self.url is None and self.subject is None):
            usage("give MODEL and --subject (a name, or path/to/file.py:Factory), or --url")
        subject = SERVER if self.url else self.subject
        return Target(model=str(self.url or self.model), subject=str(subject), options=options_of(self.option))

    def entries(self, target: Target) -> tuple[Divergence, ...]:
        """What is known of it."""
        return load(self.known) if self.known is not None else shipped(target.subject)


@command(app, Conformance)
def conformance(asked: Conformance) -> None:
    """Try the contract on a subject: does the adapter say what is true, and would a fault show through it?

    Exit status: 0 every law that applies holds (or fails as known), 1 one does not, 2 a usage error, 3 nothing could be told.
    """
    target = asked.target()
    with reported():
        entries = asked.entries(target)
        arms = target.open(threads=asked.threads)
        try:
            outcomes = list(conform(arms, entries, target.options))
        finally:
            arms.subject.close()
    verdict = merge(outcome.verdict for outcome in outcomes)
    if asked.as_json:
        laws = [{"law": each.law, "verdict": _word(each.verdict), "said": each.said} for each in outcomes]
        typer.echo(json.dumps({"warmcold_conformance": 1, "verdict": verdict.shown, "laws": laws}, indent=1))
    else:
        _print(outcomes, verdict)
    raise typer.Exit(verdict.exit_code)


def _print(outcomes: Sequence[Outcome], verdict: Verdict) -> None:
    width = max(len(each.law) for each in outcomes)
    for each in outcomes:
        said = each.said.replace("\n", " ")
        typer.echo(f"{each.law:{width}}  {_word(each.verdict)}{': ' + said if said else ''}")
    held = sum(each.verdict is Verdict.PASS for each in outcomes)
    typer.echo(f"{verdict.shown}: {held} of {len(outcomes)} laws hold")


def _word(verdict: Verdict) -> str:
    """A law that does not apply has not been run, which is no news."""
    return "NOT_APPLICABLE" if verdict is Verdict.NOT_RUN else verdict.shown
