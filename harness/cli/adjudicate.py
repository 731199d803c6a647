"""`warmcold conformance`, the contract of a subject law by law; and `warmcold adjudicate`, float noise or dirty KV."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..adjudicate.ruling import Case
from ..adjudicate.ruling import adjudicate as rule
from ..adjudicate.statistical import adjudicate_server
from ..arms.compare import common_prefix
from ..conformance.known import Divergence, load, shipped
from ..conformance.laws import LAWS, Bench
from ..conformance.laws import tried as try_law
from ..contract.errors import KnownError, RefusedError, ScenarioError, SubjectError
from ..contract.scenario import Scenario, Turn
from ..contract.verdict import Verdict, merge
from ..conversations.texts import material
from ..play.blackbox import Campaign
from ..play.exact import Arms, run_scenario
from ..run.verify import Request
from .verify import Json, Options, SubjectName, Threads, case_of, options_of, usage

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def conformance(
    model: Annotated[str | None, typer.Argument(help="The model that the subject shall load.")] = None,
    subject: SubjectName = None,
    url: Annotated[str | None, typer.Option("--url", help="A running server instead: http://HOST:PORT.")] = None,
    option: Options = None,
    known: Annotated[
        Path | None,
        typer.Option("--known", help="Known divergences, one file; those that come with warmcold unless told."),
    ] = None,
    threads: Threads = 2,
    as_json: Json = False,
) -> None:
    """Try the contract on a subject: does the adapter say what is true, and would a fault show through it?

    Exit status: 0 every law that applies holds (or fails as known), 1 one does not, 2 a usage error, 3 nothing could be told.
    """
    if (url is None) == (model is None) or (url is None and subject is None):
        usage("give MODEL and --subject (a name, or path/to/file.py:Factory), or --url")
    options = options_of(option)
    request = Request(model=url or Path(str(model)), subject=subject or "openai_http", options=options, threads=threads)
    try:
        entries = load(known) if known is not None else shipped(subject or "openai_http")
        arms = request.open()
    except (SubjectError, KnownError) as error:
        usage(str(error))
    try:
        with _own_faults():
            lines = list(tried(arms, entries, request))
    finally:
        arms.subject.close()
    verdict = merge(line["verdict"] for line in lines)
    if as_json:
        shown = [{**line, "verdict": _word(line["verdict"])} for line in lines]
        typer.echo(json.dumps({"warmcold_conformance": 1, "verdict": verdict.shown, "laws": shown}, indent=1))
    else:
        _print(lines, verdict)
    raise typer.Exit(verdict.exit_code)


def tried(arms: Arms, entries: Sequence[Divergence], request: Request) -> Iterator[Mapping[str, Any]]:
    """Each law, then each known case: name, verdict, what is said of it."""
    described, name = arms.subject.describe(), str(request.model)
    entries = [entry for entry in entries if entry.applies(name, described, request.options)]
    laws = {entry.law: entry for entry in entries if entry.law is not None}
    bench = Bench(arms, material(arms.encode, arms.vocab_size))
    for law in LAWS:
        outcome = try_law(bench, law)
        yield _line(law, outcome.verdict, outcome.said, laws.get(law))
    for entry in entries:
        if entry.case is not None:
            found = run_scenario(arms, entry.case).findings
            shown = next((finding for finding in found if entry.check in (None, finding.check)), None)
            yield _line(f"known: {entry.id}", Verdict.FAIL if shown else Verdict.PASS, str(shown or ""), entry)


def _line(law: str, verdict: Verdict, said: str, known: Divergence | None) -> Mapping[str, Any]:
    """An expected failure passes, with its reason; an expected one that does not come is a failure."""
    if known is None:
        return {"law": law, "verdict": verdict, "said": said}
    if verdict is Verdict.FAIL:
        return {"law": law, "verdict": Verdict.PASS, "said": f"fails as known: {known.reason} ({known.link})"}
    return {"law": law, "verdict": Verdict.FAIL,
            "said": f"is listed as a known divergence ({known.id}) and does not show any more: remove the entry"}  # fmt: skip


def _print(lines: Sequence[Mapping[str, Any]], verdict: Verdict) -> None:
    width = max(len(line["law"]) for line in lines)
    for line in lines:
        word = _word(line["verdict"])
        said = str(line["said"]).replace("\n", " ")
        typer.echo(f"{line['law']:{width}}  {word}{': ' + said if said else ''}")
    typer.echo(f"{verdict.shown}: {sum(line['verdict'] is Verdict.PASS for line in lines)} of {len(lines)} laws hold")


@app.command()
def adjudicate(
    model: Annotated[str | None, typer.Argument(help="The model that the subject shall load.")] = None,
    first: Annotated[
        str | None, typer.Option("--first", help="The prompt before: a text, ids as [1, 2, 3], or @FILE with either.")
    ] = None,
    second: Annotated[
        str | None, typer.Option("--second", help="The prompt whose warm and cold replies differ; likewise.")
    ] = None,
    case: Annotated[Path | None, typer.Option("--case", help="A case file instead of two prompts.")] = None,
    subject: Annotated[
        str, typer.Option("--subject", help="native, ort, or another engine's name or path/to/file.py:Factory.")
    ] = "native",
    url: Annotated[str | None, typer.Option("--url", help="A running server instead: http://HOST:PORT.")] = None,
    option: Options = None,
    numerics: Annotated[str, typer.Option(help="invariant or fast (native only).")] = "invariant",
    new: Annotated[int, typer.Option("--max-new-tokens", help="Length of each reply.", min=1)] = 16,
    seconds: Annotated[float, typer.Option("--time", help="Seconds to spend at most on a server.", min=1)] = 120,
    threads: Threads = 2,
    as_json: Json = False,
) -> None:
    """The answer changes when the cache is warm: is it float noise, or dirty KV? Prints a text for a bug report.

    Exit status: 0 float noise or no difference, 1 dirty KV (or a model that is not a function of the prefix), 2 a usage error,
    3 it cannot be told, with what is missing.
    """
    if (url is None) == (model is None):
        usage("give MODEL, or --url")
    if (case is None) == (first is None or second is None):
        usage("give --first and --second, or --case")
    request = _request(
        url or Path(str(model)), "openai_http" if url else subject, options_of(option), numerics, threads
    )
    with _own_faults():
        try:
            arms = request.open()
            scenario = case_of(case) if case is not None else _pair(arms, str(first), str(second), new)
            ruling = _ruled(arms, scenario, seconds)
        except (SubjectError, ScenarioError, RefusedError) as error:
            usage(str(error))
    described = {**arms.subject.describe(), "model": str(request.model), "subject": arms.subject.name}
    arms.subject.close()
    if as_json:
        typer.echo(json.dumps({**ruling.to_json(), "described": described}, indent=1))
    else:
        typer.echo(_text(ruling, described, scenario))
    raise typer.Exit(ruling.ruling.exit_code)


@contextmanager
def _own_faults() -> Iterator[None]:
    """What is left over is a fault of warmcold, which must not read as a ruling; and an interrupt is no traceback."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except typer.Exit:
        raise
    except Exception as error:  # whatever is left is our own fault, and must not exit as a ruling about the engine
        traceback.print_exc()
        typer.echo(f"error: a fault of warmcold itself, not of the engine: {type(error).__name__}: {error}", err=True)
        raise typer.Exit(Verdict.ERROR.exit_code) from error


def _request(model: Path | str, subject: str, options: dict[str, str], numerics: str, threads: int) -> Request:
    if subject in ("native", "ort"):
        return Request(model=model, backend=subject, numerics=numerics, threads=threads)
    return Request(model=model, subject=subject, options=options, threads=threads)


def _pair(arms: Arms, first: str, second: str, new: int) -> Scenario:
    """Two prompts as a conversation on one session: the second is told as what it shares with the first, and the rest."""
    one, other = (tuple(_ids(arms, text)) for text in (first, second))
    shared = common_prefix(one, other)
    return Scenario(
        ops=(
            Turn(name="first", append=one, max_new_tokens=new),
            Turn(name="second", base="first", part="prompt", keep=shared, append=other[shared:], max_new_tokens=new),
        ),
        title="two prompts",
    )


def _ids(arms: Arms, given: str) -> Sequence[int]:
    """A prompt as it may be given."""
    text = _file(Path(given[1:])) if given.startswith("@") else given
    if not text.lstrip().startswith("["):
        ids: Sequence[int] = arms.encode(text)
    else:
        try:
            ids = json.loads(text)
        except (ValueError, RecursionError) as error:
            usage(f"a prompt of {text!r:.60}: begins like a list of token ids and is none ({error})")
    if not ids or not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        usage(f"a prompt of {given!r:.60}: give a text, or a list of token ids, of one token at least")
    if foreign := [token for token in ids if not 0 <= token < arms.vocab_size]:
        usage(f"a prompt of {given!r:.60}: token id {foreign[0]}; this model's are 0 to {arms.vocab_size - 1}")
    return list(ids)


def _file(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        usage(f"@{file}: cannot be read ({error}); give a text file")


def _ruled(arms: Arms, scenario: Scenario, seconds: float) -> Case:
    if arms.judgeable:
        return rule(arms, scenario)
    corpus = material(arms.encode, arms.vocab_size) or tuple(range(arms.vocab_size))
    return adjudicate_server(Campaign(arms.subject, corpus, seconds=seconds), scenario)


def _text(case: Case, described: Mapping[str, Any], scenario: Scenario) -> str:
    """What a maintainer can paste."""
    lines = [f"## {case.ruling}", "", f"Turn {case.turn}: {case.because}."]
    if case.place:
        lines.append(f"First place: {case.place}.")
    if case.missing:
        lines.append(f"To tell, it would take {case.missing}.")
    lines += ["", *(f"- {fact}" for fact in case.facts)]
    lines += [
        "",
        "Engine: " + ", ".join(f"{name} {value}" for name, value in described.items() if value not in ({}, None)),
    ]
    return "\n".join([*lines, "", "Conversation (`warmcold adjudicate --case FILE` rules on it again):", "```json",
                      json.dumps(scenario.to_json()), "```"])  # fmt: skip


def _word(verdict: Verdict) -> str:
    """A law that does not apply has not been run, which is no news."""
    return "NOT_APPLICABLE" if verdict is Verdict.NOT_RUN else verdict.shown
