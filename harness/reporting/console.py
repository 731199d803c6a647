"""What a person sees while it runs: a progress line a leg, and the first difference."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..run.events import Event, FailureShrunk, LegFinished, LegStarted, ScenarioPlayed
from .escape import plain
from .prose import sizes

_COLOURS = {"PASS": "green", "FAIL": "red", "ERROR": "red", "UNKNOWN": "yellow"}


class ConsoleView:
    """Consumes events onto a terminal. Plain lines where the output is not one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        turns = TextColumn("{task.fields[turns]} turns")
        columns = (TextColumn("{task.description}"), BarColumn(), turns, TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
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
            what = f"{event.target.leg}  {escape(event.target.model)}"
            self._task = self._progress.add_task(what, total=event.planned, turns=0)
        elif isinstance(event, ScenarioPlayed):
            self._turns += event.result.turns
            if self._task is not None:
                self._progress.update(self._task, advance=1, turns=self._turns)
        elif isinstance(event, FailureShrunk):
            self._say(sizes(event.before.scenario, event.shrunk) if event.shrunk is not None else event.why)
        else:
            self._finished(event)

    def _finished(self, leg: LegFinished) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        word, count = leg.verdict.shown, leg.count
        share = f", {count.reused_share:.0%} of their prompts" if count.reused_share is not None else ""
        self._console.print(
            f"[bold {_COLOURS[word]}]{word:7}[/] {leg.target.leg:10} {escape(leg.target.model)}: "
            f"{count.scenarios} conversations, {count.turns} turns, {count.reused_turns} of them reused{share}, "
            f"{leg.seconds:.0f} s ({count.turns / max(leg.seconds, 1e-9):.2g} turns/s)",
            highlight=False,
            soft_wrap=True,
        )
        if leg.why:
            self._say(f"        {leg.why}")
        for _, finding in leg.findings[:1]:
            self._say(str(finding))

    def _say(self, text: str) -> None:
        self._console.print(plain(text), highlight=False, markup=False, soft_wrap=True)
