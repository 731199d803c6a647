"""A command of the command line as a frozen config and a function of it: the config's fields are its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar, get_type_hints

import typer

C = TypeVar("C")
Run = Callable[[C], None]


class Backends(StrEnum):
    """Which of the engine's backends a command is about."""

    native = "native"
    ort = "ort"
    both = "both"

    @property
    def names(self) -> tuple[str, ...]:
        """The backends, one by one."""
        return ("native", "ort") if self is Backends.both else (self.value,)


def command(app: typer.Typer, config: Callable[..., C], name: str | None = None) -> Callable[[Run[C]], Run[C]]:
    """Register the function below as a command of `app`, called `name` or like the function; its docstring is the help.

    `config`: a frozen dataclass whose fields are annotated with `typer.Option` or `typer.Argument`.
    """

    def register(run: Run[C]) -> Run[C]:
        def call(**given: object) -> None:
            run(config(**given))

        call.__doc__ = run.__doc__
        call.__name__ = run.__name__
        hints = get_type_hints(config, include_extras=True)
        fields = [part.replace(annotation=hints[name]) for name, part in inspect.signature(config).parameters.items()]
        call.__annotations__ = hints
        call.__signature__ = inspect.Signature(fields)  # type: ignore[attr-defined]  # typer reads it
        app.command(name)(call)
        return run

    return register
