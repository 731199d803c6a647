"""`warmcold generate`, `warmcold chat` and `warmcold inspect`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ..command import command
from .backends.registry import BACKENDS
from .contract.errors import UsageError, WarmcoldError
from .contract.request import Completion, SamplingParams
from .engine import Engine
from .graph.compile import NUMERICS
from .package.inspect import inspect
from .text.chat import ChatTemplate
from .turn.session import Session

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Model = Annotated[Path, typer.Argument(help="A model directory, or a decoder .onnx file.")]
Backend = Annotated[str, typer.Option(help=f"{' or '.join(BACKENDS)}.")]
Device = Annotated[str, typer.Option(help="Device to run on.")]
Numerics = Annotated[str, typer.Option(help=f"{' or '.join(NUMERICS)} (native).")]
Count = Annotated[int, typer.Option("--max-new-tokens", help="Most tokens of a reply.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampler.")]


@dataclass(frozen=True, kw_only=True)
class Chat:
    """What `chat` takes."""

    model: Model
    max_new_tokens: Count = 256
    temperature: Temperature = 0.0
    seed: Seed = 0
    backend: Backend = "native"
    device: Device = "cpu"
    numerics: Numerics = "invariant"

    def load(self) -> Engine:
        """The model on the backend asked for."""
        return Engine.load(self.model, backend=self.backend, device=self.device, numerics=self.numerics)

    def params(self) -> SamplingParams:
        """How to sample."""
        return SamplingParams(max_new_tokens=self.max_new_tokens, temperature=self.temperature, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class Generate(Chat):
    """What `generate` takes."""

    max_new_tokens: Count = 32
    prompt: Annotated[str | None, typer.Option(help="Prompt as text, by the model's own tokenizer.")] = None
    prompt_ids: Annotated[str | None, typer.Option(help="Prompt as token ids: '[1, 2, 3]'.")] = None
    turns: Annotated[Path | None, typer.Option(help="Several turns on one session; see docs/formats.md.")] = None
    top_k: Annotated[int, typer.Option(help="Keep the k most probable; 0 is off.")] = 0
    top_p: Annotated[float, typer.Option(help="Keep the least set that reaches this probability.")] = 1.0
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the reply; repeatable.")] = None
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end token.")] = False
    cold: Annotated[bool, typer.Option("--cold", help="Reuse nothing.")] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print tokens, reused, prefilled, reason, stop of each turn.")
    ] = False

    def params(self) -> SamplingParams:
        """How to sample."""
        return replace(
            super().params(),
            top_k=self.top_k,
            top_p=self.top_p,
            stop=tuple(self.stop or ()),
            ignore_eos=self.ignore_eos,
        )

    def steps(self) -> list[dict[str, Any]]:
        """The turns to play. Raises UsageError."""
        if sum(value is not None for value in (self.prompt, self.prompt_ids, self.turns)) != 1:
            raise UsageError("give exactly one of --prompt, --prompt-ids and --turns")
        if self.turns is not None:
            return _turns(self.turns)
        return [{"append": _ids(self.prompt_ids) if self.prompt_ids else self.prompt}]


@command(app, Generate)
def generate(asked: Generate) -> None:
    """Generate from one prompt, or play several turns on one session."""
    with _reported():
        steps, params = asked.steps(), asked.params()
        with asked.load() as engine:
            session = engine.session()
            context: tuple[int, ...] = ()
            for number, step in enumerate(steps):
                ids = _prompt(engine, step, context)
                reply = session.generate(ids, params, reuse=not asked.cold)
                context = (*ids, *reply.tokens)
                _show(engine, number, ids, reply, as_json=asked.as_json)


@command(app, Chat)
def chat(asked: Chat) -> None:
    """Talk to a model through its own chat template. /stats, /pages and /reset show and drop what is kept; /quit ends."""
    with _reported(), asked.load() as engine:
        _Repl(engine, asked.params()).run()


@app.command("inspect")
def inspect_model(
    model: Model, as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False
) -> None:
    """Say what was resolved of a model, what was inferred, and which reuse paths it is admitted to, with reasons."""
    with _reported():
        facts = inspect(model)
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for name, value in facts.items():
        if isinstance(value, list):
            typer.echo(f"{name}:" + ("" if value else " none"))
            for item in value:
                typer.echo(f"  - {item}")
        else:
            typer.echo(f"{name}: {value}")


class _Repl:
    """The whole conversation is rendered anew each turn, and the session finds out what it can reuse."""

    def __init__(self, engine: Engine, params: SamplingParams) -> None:
        self._engine = engine
        self._params = params
        self._template = ChatTemplate(engine.spec.directory)
        self._session: Session = engine.session()
        self._messages: list[dict[str, str]] = []
        self._last: Completion | None = None

    def run(self) -> None:
        while True:
            try:
                said = input("> ")
            except EOFError:
                return
            if said.strip() == "/quit":
                return
            if said.strip():
                self._say(said.strip())

    def _say(self, said: str) -> None:
        commands = {"/reset": self._reset, "/stats": self._stats, "/pages": self._pages}
        if said in commands:
            commands[said]()
        elif said.startswith("/"):
            typer.echo(f"no command {said}; there are {', '.join(commands)} and /quit")
        else:
            self._answer(said)

    def _answer(self, said: str) -> None:
        messages = [*self._messages, {"role": "user", "content": said}]
        ids = self._engine.tokenizer().encode(self._template.render(messages))
        try:
            self._last = self._session.generate(ids, self._params)
        except UsageError as error:
            typer.echo(f"{error} (/reset begins anew)")
            return
        text = self._engine.tokenizer().decode(self._last.tokens)
        self._messages = [*messages, {"role": "assistant", "content": text}]
        typer.echo(text)

    def _reset(self) -> None:
        self._session, self._messages, self._last = self._engine.session(), [], None

    def _stats(self) -> None:
        if self._last is None:
            typer.echo("nothing was said yet")
        else:
            typer.echo(
                f"reused {self._last.reused} ({self._last.source}, cut by {self._last.reason}), "
                f"prefilled {self._last.prefilled}, generated {len(self._last.tokens)}, stopped by {self._last.stop}"
            )

    def _pages(self) -> None:
        view = self._engine.observe(self._session)
        total = len(view.holders)
        typer.echo(f"{total - len(view.free)} of {total} pages hold {len(view.entries)} published prefixes")


def _prompt(engine: Engine, step: dict[str, Any], context: Sequence[int]) -> tuple[int, ...]:
    value = step["prompt"] if "prompt" in step else step["append"]
    ids = engine.tokenizer().encode(value) if isinstance(value, str) else value
    return tuple(ids) if "prompt" in step else (*context, *ids)


def _show(engine: Engine, number: int, ids: Sequence[int], reply: Completion, *, as_json: bool) -> None:
    if not as_json:
        text = str(list(reply.tokens))
        if (engine.spec.directory / "tokenizer.json").is_file():
            text = engine.tokenizer().decode(reply.tokens)
        typer.echo(text)
        return
    facts = {
        "turn": number,
        "prompt_len": len(ids),
        "tokens": list(reply.tokens),
        "reused": reply.reused,
        "prefilled": reply.prefilled,
        "source": reply.source,
        "reason": reply.reason,
        "declined": reply.declined,
        "gate": reply.gate,
        "mirror_stop": reply.mirror_stop,
        "stop": reply.stop,
        "calls": list(reply.calls),
    }
    typer.echo(json.dumps(facts))


def _ids(text: str) -> list[int]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--prompt-ids {text!r}: not a JSON list of token ids ({error})") from error
    if not isinstance(value, list):
        raise UsageError(f"--prompt-ids {text!r}: give a JSON list of token ids, like '[1, 2, 3]'")
    return value


def _turns(file: Path) -> list[dict[str, Any]]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"{file}: not JSON ({error})") from error
    if not isinstance(value, list) or not value:
        raise UsageError(f"{file}: expected a list of at least one turn")
    return [_turn(file, at, item) for at, item in enumerate(value)]


def _turn(file: Path, at: int, item: Any) -> dict[str, Any]:
    """A list of ids or a text is appended; {"prompt": ...} replaces the whole history."""
    step = item if isinstance(item, dict) else {"append": item}
    if (
        len(step) != 1
        or not set(step) <= {"append", "prompt"}
        or not isinstance(next(iter(step.values())), (list, str))
    ):
        raise UsageError(
            f'{file}: turn {at} is {item!r:.60}; give ids or a text to append, or {{"prompt": ids or text}}'
        )
    return step


@contextmanager
def _reported() -> Iterator[None]:
    """What is wrong with the call or the model: one line on stderr, exit status 2; a failed backend: 1."""
    try:
        yield
    except WarmcoldError as error:
        _fail(error)


def _fail(error: WarmcoldError) -> NoReturn:
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(1 if type(error).__name__ == "BackendError" else 2) from error
