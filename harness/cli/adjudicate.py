"""`warmcold adjudicate`: float noise or dirty KV."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...command import command
from ..adjudicate.adjudicate import adjudicate as ruled
from ..adjudicate.ruling import told
from ..arms.compare import common_prefix
from ..contract.scenario import Scenario, Turn
from ..contract.subject import Subject
from ..run.target import Target
from .options import SERVER, Json, Options, Threads, Url, case_of, options_of, reported, usage

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@dataclass(frozen=True, kw_only=True)
class Adjudicate:
    """What `adjudicate` takes."""

    model: Annotated[str | None, typer.Argument(help="The model that the subject shall load.")] = None
    first: Annotated[
        str | None, typer.Option(help="The prompt before: a text, ids as [1, 2, 3], or @FILE with either.")
    ] = None
    second: Annotated[str | None, typer.Option(help="The prompt whose warm and cold replies differ; likewise.")] = None
    case: Annotated[Path | None, typer.Option(help="A case file instead of two prompts.")] = None
    subject: Annotated[str, typer.Option(help="native, ort, or another engine's name or path/to/file.py:Factory.")] = (
        "native"
    )
    url: Url = None
    option: Options = None
    numerics: Annotated[str, typer.Option(help="invariant or fast (native only).")] = "invariant"
    new: Annotated[int, typer.Option("--max-new-tokens", help="Length of each reply.", min=1)] = 16
    seconds: Annotated[float, typer.Option("--time", help="Seconds to spend at most on a server.", min=1)] = 120
    threads: Threads = 2
    as_json: Json = False

    def target(self) -> Target:
        """What is accused."""
        if (self.url is None) == (self.model is None):
            usage("give MODEL, or --url")
        if (self.case is None) == (self.first is None or self.second is None):
            usage("give --first and --second, or --case")
        subject = SERVER if self.url else self.subject
        options = {"numerics": self.numerics} if subject == "native" else options_of(self.option)
        return Target(model=str(self.url or self.model), subject=subject, options=options)

    def scenario(self, subject: Subject) -> Scenario:
        """The conversation: a case file, or two prompts."""
        if self.case is not None:
            return case_of(self.case).scenario
        one, other = (tuple(_ids(subject, str(text))) for text in (self.first, self.second))
        return _pair(one, other, self.new)


@command(app, Adjudicate)
def adjudicate(asked: Adjudicate) -> None:
    """The answer changes when the cache is warm: is it float noise, or dirty KV? Prints a text for a bug report.

    Exit status: 0 float noise or no difference, 1 dirty KV (or a model that is not a function of the prefix), 2 a usage error,
    3 it cannot be told, with what is missing.
    """
    target = asked.target()
    with reported():
        arms = target.open(threads=asked.threads)
        try:
            scenario = asked.scenario(arms.subject)
            ruling = ruled(arms, scenario, seconds=asked.seconds)
            described = {**arms.subject.describe(), "model": target.model, "subject": arms.subject.name}
        finally:
            arms.subject.close()
    if asked.as_json:
        typer.echo(json.dumps({**ruling.to_json(), "described": described}, indent=1))
    else:
        typer.echo(told(ruling, described, scenario))
    raise typer.Exit(ruling.kind.exit_code)


def _pair(one: tuple[int, ...], other: tuple[int, ...], new: int) -> Scenario:
    """Two prompts as a conversation on one session: the second is told as what it shares with the first, and the rest."""
    shared = common_prefix(one, other)
    return Scenario(
        ops=(
            Turn(name="first", append=one, max_new_tokens=new),
            Turn(name="second", base="first", part="prompt", keep=shared, append=other[shared:], max_new_tokens=new),
        ),
        title="two prompts",
    )


def _ids(subject: Subject, given: str) -> Sequence[int]:
    """A prompt as it may be given."""
    text = _file(Path(given[1:])) if given.startswith("@") else given
    if not text.lstrip().startswith("["):
        ids: Sequence[int] = subject.encode(text)
    else:
        try:
            ids = json.loads(text)
        except (ValueError, RecursionError) as error:
            usage(f"a prompt of {text!r:.60}: begins like a list of token ids and is none ({error})")
    if not ids or not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        usage(f"a prompt of {given!r:.60}: give a text, or a list of token ids, of one token at least")
    if foreign := [token for token in ids if not 0 <= token < subject.vocab_size]:
        usage(f"a prompt of {given!r:.60}: token id {foreign[0]}; this model's are 0 to {subject.vocab_size - 1}")
    return list(ids)


def _file(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        usage(f"@{file}: cannot be read ({error}); give a text file")
