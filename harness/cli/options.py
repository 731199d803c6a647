"""What several commands take and say: options, usage errors, exit statuses, and the end of a run."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from threadpoolctl import threadpool_limits

from ..contract.errors import HarnessError, ScenarioError
from ..contract.scenario import CaseFile, load
from ..contract.verdict import Verdict

Threads = Annotated[int, typer.Option(help="ONNX Runtime's threads.", min=1, max=256)]
Report = Annotated[Path, typer.Option("--report", help="Where run folders go.")]
SubjectName = Annotated[
    str | None,
    typer.Option("--subject", help="The engine to judge: a name (see docs/subjects.md), or path/to/file.py:Factory."),
]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="An option of the subject, NAME=VALUE; may be given several times.")
]
Url = Annotated[str | None, typer.Option("--url", help="A running server instead: http://HOST:PORT.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")]

SERVER = "openai_http"
"""The subject that a `--url` is judged as."""

INTERRUPTED = 130
UNKNOWN = Verdict.UNKNOWN.exit_code


def usage(message: str) -> NoReturn:
    """End with a usage error."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


def options_of(given: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` texts as options of a subject."""
    pairs = [text.partition("=") for text in given or []]
    for name, equals, value in pairs:
        if not (name and equals):
            usage(f"--option {name}{equals}{value}: give NAME=VALUE")
    return {name: value for name, _, value in pairs}


def case_of(file: Path) -> CaseFile:
    """Read a case file, or end with a usage error."""
    try:
        return load(file)
    except ScenarioError as error:
        usage(str(error))


@contextmanager
def reported(what: str = "") -> Iterator[None]:
    """What is raised inside, as people should read it: one line and exit status 2 for what the caller can mend, 130 for an
    interrupt, 4 and a traceback for a fault of our own, which must not read as a verdict. `what`: said before the line."""
    try:
        yield
    except typer.Exit:
        raise
    except HarnessError as error:
        usage(f"{what}{error}")
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:  # whatever is left is our own fault
        traceback.print_exc()
        typer.echo(f"error: a fault of warmcold itself, not of the model: {type(error).__name__}: {error}", err=True)
        raise typer.Exit(Verdict.ERROR.exit_code) from error


@contextmanager
def ended_politely() -> Iterator[None]:
    """A TERM, which is how CI systems cancel, ends the run as Ctrl-C does: with the report of what was done."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def one_blas_thread() -> AbstractContextManager[object]:
    """The native backend's products are small: more than one thread each only wait for one another."""
    limits: AbstractContextManager[object] = threadpool_limits(limits=1, user_api="blas")
    return limits
