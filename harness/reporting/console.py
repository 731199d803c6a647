"""What a person sees while it runs: a progress line a leg, and the first difference."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..run.events import Event, LegFinished, LegStarted, ScenarioPlayed

_COLOURS = {"PASS": "green", "FAIL": "red", "ERROR": "red", "UNKNOWN": "yellow"}


class ConsoleView:
    """Consumes events onto a terminal. Plain lines where the output is not one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[turns]} turns"), TimeElapsedColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self._task: TaskID | None = None
        self._turns = 0

    def __enter__(self) -> ConsoleView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, LegStarted):
            self._turns = 0
            self._task = self._progress.add_task(f"{event.leg}  {event.model}", total=event.planned, turns=0)
        elif isinstance(event, ScenarioPlayed):
            self._turns += event.result.turns
            if self._task is not None:
                self._progress.update(self._task, advance=1, turns=self._turns)
        elif isinstance(event, LegFinished):
            self._finished(event)

    def _finished(self, leg: LegFinished) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        word = leg.verdict.shown
        share = f", {leg.reused_share:.0%} of their prompts" if leg.reused_share is not None else ""
        self._console.print(
            f"[bold {_COLOURS[word]}]{word:7}[/] {leg.leg:10} {leg.model}: {leg.scenarios} conversations, "
            f"{leg.turns} turns, {leg.reused_turns} of them reused{share}, {leg.seconds:.0f} s "
            f"({leg.turns / max(leg.seconds, 1e-9):.2g} turns/s)",
            highlight=False,
            soft_wrap=True,
        )
        if leg.why:
            self._console.print(f"        {leg.why}", highlight=False, soft_wrap=True)
        for _, finding in leg.findings[:1]:
            self._console.print(str(finding), highlight=False, markup=False, soft_wrap=True)
