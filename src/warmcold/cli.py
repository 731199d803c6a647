"""The `warmcold` command: knows where each command lives, and loads that alone when it is asked for."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Command, HelpFormatter  # typer brings its own click, and names it here alone


@dataclass(frozen=True)
class Place:
    """`module` has the typer app `app` that holds the command; `help` is told without loading it."""

    module: str
    help: str


COMMANDS: Mapping[str, Place] = {
    "verify": Place("harness.cli.verify", "Check that a model's KV reuse is right."),
    "replay": Place("harness.cli.replay", "Play one case file again."),
    "shrink": Place("harness.cli.replay", "Make a case file as small as it gets."),
    "conformance": Place("harness.cli.conformance", "Try the contract on an adapter for another engine."),
    "adjudicate": Place("harness.cli.adjudicate", "Float noise or dirty KV? Rule on two prompts, a case or a server."),
    "generate": Place("engine.cli", "Generate from a prompt, or several turns on one session."),
    "chat": Place("engine.cli", "Talk to a model; see what each turn reused."),
    "inspect": Place("engine.cli", "What was resolved of a model, and which reuse it is admitted to."),
    "mutate": Place("mutations.cli", "Plant deliberate faults and see which check kills each."),
    "bench": Place("engine.bench.cli", "Measure speed and memory, as ratios of one run."),
    "models": Place("fixtures.cli", "Build the real models that are not committed."),
}
"""In the order in which `--help` lists them."""


class Commands(TyperGroup):
    """A group whose commands are loaded one by one."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # typer's own context
        """All names, without loading any."""
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Command:  # type: ignore[override]  # likewise
        """Load the command of that name; a usage error, with the nearest name, where there is none."""
        if cmd_name not in COMMANDS:
            close = get_close_matches(cmd_name, COMMANDS, n=1)
            ctx.fail(f"No such command {cmd_name!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        command = typer.main.get_command(importlib.import_module(f".{COMMANDS[cmd_name].module}", __package__).app)
        # An app of one command is that command; one of several, or with a callback, is a group that may hold it.
        return command.commands.get(cmd_name, command) if isinstance(command, TyperGroup) else command

    def format_commands(self, ctx: typer.Context, formatter: HelpFormatter) -> None:  # type: ignore[override]  # likewise
        """The table of `--help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.help) for name, place in COMMANDS.items()])


main = typer.Typer(cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False)
"""The console script."""


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"warmcold {importlib.metadata.version('warmcold')}")
        raise typer.Exit


@main.callback(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
def warmcold(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Makes wrong KV-cache reuse visible: warm = cold = oracle, to the last bit. `COMMAND --help` says more."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
