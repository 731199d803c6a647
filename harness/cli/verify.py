"""`warmcold verify`, `warmcold replay` and `warmcold shrink`."""

from __future__ import annotations

import json
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from ...fixtures.builtin import builtin_models
from ..contract.errors import NotShownError, ScenarioError, SubjectError
from ..contract.scenario import Scenario, load
from ..contract.verdict import Level, Verdict
from ..play.exact import Arms, Watch, run_scenario
from ..reporting.console import ConsoleView
from ..reporting.files import RunFolder, write_case
from ..reporting.prose import describe
from ..reporting.summary import overall
from ..run.events import Event, LegFinished, ScenarioPlayed
from ..shrinking.confirm import Shrunk, confirm, smallest
from ..shrinking.cost import token_count

LONGEST_SHRINK_S = 20.0
"""Most seconds that `verify` spends on making a failing conversation small; never more than a quarter of `--time`."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


class Backends(StrEnum):
    """Which backends to judge."""

    native = "native"
    ort = "ort"
    both = "both"

    @property
    def names(self) -> tuple[str, ...]:
        """The backends, one by one."""
        return ("native", "ort") if self is Backends.both else (self.value,)


Model = Annotated[
    list[Path] | None, typer.Argument(help="Model directories or .onnx files; built-in fixtures if none.")
]
Backend = Annotated[Backends, typer.Option("--backend", help="Backend of the engine to judge.")]
Device = Annotated[str, typer.Option(help="Device the engine runs on.")]
Numerics = Annotated[
    str, typer.Option(help="invariant: bits do not depend on the schedule; fast: free shapes (native).")
]
Threads = Annotated[int, typer.Option(help="ONNX Runtime's threads.", min=1, max=256)]
Report = Annotated[Path, typer.Option("--report", help="Where run folders go.")]
SubjectName = Annotated[
    str | None,
    typer.Option("--subject", help="Judge another engine: a name (see docs/subjects.md), or path/to/file.py:Factory."),
]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="An option of the subject, NAME=VALUE; may be given several times.")
]
CaseModel = Annotated[
    Path | None, typer.Option("--model", help="Model to play it on; the one in the file unless told.")
]
CaseBackend = Annotated[str | None, typer.Option("--backend", help="native or ort; the one in the file unless told.")]
CaseNumerics = Annotated[str | None, typer.Option("--numerics", help="invariant or fast; as in the file unless told.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")]


@app.command()
def verify(
    models: Model = None,
    backend: Backend = Backends.both,
    subject: SubjectName = None,
    url: Annotated[
        list[str] | None,
        typer.Option(
            "--url", help="Judge a running server: its address, http://HOST:PORT (vLLM, SGLang, llama-server, ...)."
        ),
    ] = None,
    option: Options = None,
    device: Device = "cpu",
    numerics: Numerics = "invariant",
    examples: Annotated[int, typer.Option(help="Conversations to generate for each leg.", min=0, max=1_000_000)] = 30,
    seconds: Annotated[float, typer.Option("--time", help="Seconds to spend on each leg, after loading.", min=1)] = 120,
    seed: Annotated[int, typer.Option(help="Seed of the generated conversations.")] = 0,
    longest: Annotated[
        int, typer.Option("--longest", help="Longest context of a generated conversation, in positions.", min=16)
    ] = 64,
    cases: Annotated[list[Path] | None, typer.Option("--case", help="Case files to play first.")] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Do not stop a leg at its first failure.")] = False,
    no_shrink: Annotated[bool, typer.Option("--no-shrink", help="Leave a failing conversation as it is.")] = False,
    require_level: Annotated[str, typer.Option(help="Least level a PASS may have: L0 to L4.")] = "L0",
    threads: Threads = 2,
    report: Report = Path("reports"),
    as_json: Json = False,
) -> None:
    """Check that a model's KV reuse is right: warm = matched = cold = oracle, tokens and KV bytes, after every turn.

    Exit status: 0 PASS, 1 FAIL, 2 a usage error, 3 UNKNOWN (nothing that could be judged was), 4 a fault of warmcold.
    """
    from ..run.verify import Request

    least = _level(require_level)
    played = [(file.name, case_of(file)) for file in cases or []]
    if url and (models or subject):
        usage("--url: judges what the server has loaded; give no model and no --subject beside it")
    if subject and not models:
        usage(f"--subject {subject}: give the model that it shall load, as MODEL")
    if (url or subject) and device != "cpu":
        usage(
            f"--device {device}: chooses the device of warmcold's own engine; another engine takes its own by --option"
        )
    if option and not (url or subject):
        usage(f"--option {option[0]}: options belong to --subject or --url")
    judged = [(None, name) for name in backend.names] if not (url or subject) else [(subject or "openai_http", "")]
    requests = [
        Request(
            model=model, backend=name, subject=other, options=options_of(option), device=device, numerics=numerics,
            examples=examples, seconds=seconds, seed=seed, longest=longest, threads=threads, cases=played, keep_going=keep_going,
        )
        for model in url or models or builtin_models()
        for other, name in judged
    ]  # fmt: skip
    _judge(requests, report / f"{time.strftime('%Y%m%d-%H%M%S')}-verify", as_json, least,
           shrink=0.0 if no_shrink else min(LONGEST_SHRINK_S, seconds / 4))  # fmt: skip


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A case file.")],
    model: CaseModel = None,
    backend: CaseBackend = None,
    numerics: CaseNumerics = None,
    threads: Threads = 2,
    report: Report = Path("reports"),
    as_json: Json = False,
) -> None:
    """Play one case file again. Exit status 1 if it still shows a difference, 0 if not."""
    request = _again(file, case_of(file), model, backend, numerics, threads)
    _judge([request], report / f"{time.strftime('%Y%m%d-%H%M%S')}-replay", as_json, Level.L0)


@app.command()
def shrink(
    file: Annotated[Path, typer.Argument(help="A case file that shows a difference.")],
    model: CaseModel = None,
    backend: CaseBackend = None,
    numerics: CaseNumerics = None,
    threads: Threads = 2,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the small case goes; FILE with .shrunk.json unless told.")
    ] = None,
    seconds: Annotated[float, typer.Option("--time", help="Seconds to look for a smaller one.", min=1)] = 60,
) -> None:
    """Make a case as small as it gets while it shows the same difference. Exit status 1 if it still shows one, 0 if not."""
    request = _again(file, case_of(file), model, backend, numerics, threads)
    scenario = request.cases[0][1]
    try:
        arms = request.open()
    except SubjectError as error:
        usage(str(error))
    try:
        found = run_scenario(arms, scenario).findings
        if not found:
            typer.echo(f"{file}: shows no difference any more")
            raise typer.Exit(0)
        shrunk = _confirmed(smallest(arms, scenario, found[0], Watch(), seconds=seconds), request)
    except ScenarioError as error:
        usage(str(error))
    except NotShownError as error:
        typer.echo(f"{file}: {error}")
        raise typer.Exit(1) from error
    finally:
        arms.subject.close()
    where = out or file.with_name(file.name.removesuffix(".json") + ".shrunk.json")
    alone = write_case(where, shrunk, found=request.found())
    typer.echo(f"{_sizes(scenario, shrunk)}\n{describe(shrunk.scenario)}\n{shrunk.finding}")
    typer.echo(f"shown again by: warmcold replay {where}")
    if alone is not None:
        typer.echo(f"without warmcold's harness: {alone}")
    raise typer.Exit(1)


def _judge(requests: Sequence[Any], report: Path, as_json: bool, least: Level, shrink: float = 0.0) -> None:
    console = Console(stderr=as_json)
    try:
        run = RunFolder(report)
    except OSError as error:
        usage(f"--report {report.parent}: cannot be written ({error.strerror}); give another folder")
    folder = run.path
    legs: list[LegFinished] = []
    try:
        with _ended_politely(), _one_blas_thread(), ConsoleView(console) as view:
            for request in requests:
                legs.append(_leg(_shrinking(request, run, console, shrink), _both(run, view)))
    except (SubjectError, ScenarioError) as error:
        run.close()
        other = " (other backends: --backend native or --backend ort)" if len({r.backend for r in requests}) > 1 else ""
        usage(f"{request.leg}: {error}{other}")
    except KeyboardInterrupt:
        run.close()
        typer.echo(f"interrupted; what was finished by then: {folder / 'report.md'}", err=True)
        raise typer.Exit(130) from None
    except Exception as error:  # whatever is left is our own fault, and must not read as a verdict about the model
        run.close()
        traceback.print_exc()
        typer.echo(f"error: a fault of warmcold itself, not of the model: {type(error).__name__}: {error}", err=True)
        raise typer.Exit(Verdict.ERROR.exit_code) from error
    data = run.close()
    verdict = overall(legs)
    low = [leg for leg in legs if leg.level < least and leg.verdict is Verdict.PASS]
    if as_json:
        typer.echo(json.dumps(data, indent=1))
    else:
        console.print(
            f"{verdict.shown} at level {data['level']}: {folder / 'report.md'}", highlight=False, soft_wrap=True
        )
        for file in [*data["shrunk"], *data["cases"]][:1]:
            console.print(f"shown again by: warmcold replay {file}", highlight=False, soft_wrap=True)
    if low:
        typer.echo(f"level {low[0].level.name} is below the required {least.name}", err=True)
        raise typer.Exit(3)
    raise typer.Exit(verdict.exit_code)


@contextmanager
def _ended_politely() -> Iterator[None]:
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


def _one_blas_thread() -> Any:
    """The native backend's products are small: more than one thread each only wait for one another."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=1, user_api="blas")


def _shrinking(request: Any, run: RunFolder, console: Console, seconds: float) -> Any:
    """The request with its first failing conversation made small, where there is time for that."""

    def on_failure(arms: Arms, watch: Watch, played: ScenarioPlayed) -> None:
        scenario = played.result.scenario
        try:
            shrunk = smallest(arms, scenario, played.result.findings[0], watch, seconds=seconds)
        except NotShownError as error:
            console.print(str(error), highlight=False, markup=False, soft_wrap=True)
            return
        shrunk = _confirmed(shrunk, request)
        run.add(played, shrunk)
        console.print(_sizes(scenario, shrunk), highlight=False, markup=False, soft_wrap=True)

    return replace(request, on_failure=on_failure) if seconds else request


def _confirmed(shrunk: Shrunk, request: Any) -> Shrunk:
    return confirm(shrunk, found=request.found(), threads=request.threads)


def _sizes(before: Scenario, shrunk: Shrunk) -> str:
    """How much smaller, how sure, how hard it was."""
    after = shrunk.scenario
    sure = (
        "confirmed in a fresh process" if shrunk.confirmed else f"NOT CONFIRMED, maybe nondeterministic: {shrunk.why}"
    )
    end = "" if shrunk.complete else ", stopped by the time"
    return (
        f"shrunk from {before.turns} turns with {token_count(before)} tokens to {after.turns} with {token_count(after)} "
        f"({shrunk.tries} tries, {shrunk.seconds:.0f} s{end}); {sure}"
    )


def _again(
    file: Path, scenario: Scenario, model: Path | None, backend: str | None, numerics: str | None, threads: int
) -> Any:
    """The request that plays a case as it was found, or as told."""
    from ..run.verify import Request

    found = _found(file)
    named = found.get("model")
    subject, options = found.get("subject"), found.get("options", {})
    if not (subject is None or isinstance(subject, str)) or not isinstance(options, dict):
        usage(f'{file}: "found" has subject {subject!r:.40} and options {options!r:.40}; give a text and an object')
    chosen: Path | str | None = model
    if chosen is None and isinstance(named, str):
        chosen = named if "://" in named else Path(named)
    if chosen is None:
        usage(f"{file}: does not say on which model it was found; give --model MODEL_DIR")
    leg, _, device = str(found.get("leg", "native-cpu")).partition("-")
    return Request(
        model=chosen, backend=backend or leg, device=device or "cpu", subject=None if backend else subject,
        options={str(name): str(value) for name, value in options.items()},
        numerics=numerics or str(found.get("numerics", "invariant")), examples=0, seconds=1e9, threads=threads,
        cases=[(file.name, scenario)],
    )  # fmt: skip


def options_of(given: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` texts as options of a subject."""
    pairs = [text.partition("=") for text in given or []]
    for name, equals, value in pairs:
        if not (name and equals):
            usage(f"--option {name}{equals}{value}: give NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _leg(request: Any, emit: Callable[[Event], None]) -> LegFinished:
    from ..run.verify import verify as play

    return play(request, emit)


def _both(*consumers: Callable[[Event], None]) -> Callable[[Event], None]:
    def emit(event: Event) -> None:
        for consumer in consumers:
            consumer(event)

    return emit


def case_of(file: Path) -> Scenario:
    """Read a case file, or end with a usage error."""
    try:
        return load(file).scenario
    except ScenarioError as error:
        usage(str(error))


def _found(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_text(encoding="utf-8")).get("found", {})
    return found if isinstance(found, dict) else {}


def _level(name: str) -> Level:
    if name not in Level.__members__:
        usage(f"--require-level {name}: give one of {', '.join(Level.__members__)}")
    return Level[name]


def usage(message: str) -> NoReturn:
    """End with a usage error."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
