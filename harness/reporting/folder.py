"""The run's folder: `events.jsonl` as it goes, `cases/*.json` for what failed, and every registered format at the end.

A conversation that was shrunk lies beside the one it came from: `.shrunk.json`, and `.py`, which shows it on its own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from ..contract.scenario import Scenario
from ..run.events import Event, FailureShrunk, LegFinished, LegStarted, ScenarioPlayed
from ..run.target import Target
from ..shrinking.confirm import Shrunk
from . import __path__ as _room
from . import script
from .formats import FORMATS, Small, Told
from .summary import Summary, leg_summary, summary


class RunFolder:
    """Consumes events into a new folder at `path`. Everything is on disk as soon as it happened.

    Where there is a folder of that name already, a number is appended: no run writes over another. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = _new_folder(path)
        self._told = Told()

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, ScenarioPlayed) and event.result.findings:
            self._case(event)
        elif isinstance(event, FailureShrunk) and event.shrunk is not None:
            self._small(event, event.shrunk)
        elif isinstance(event, LegFinished):
            self._told.legs.append(event)
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as events:
            events.write(json.dumps(_plain(event)) + "\n")

    def close(self) -> Summary:
        """Write every format; returns the summary."""
        for found in iter_modules(_room):
            import_module(f"{__package__}.{found.name}")
        for name, render in FORMATS.items():
            (self.path / name).write_bytes(render(self._told))
        return summary(self._told)

    def _file(self, target: Target, number: int) -> Path:
        folder = self.path / "cases"
        folder.mkdir(exist_ok=True)
        return folder / f"{target.leg}-{Path(target.model).name}-{number}.json"

    def _case(self, event: ScenarioPlayed) -> None:
        file = self._file(event.target, event.number)
        findings = [finding.to_json() for finding in event.result.findings]
        _write(file, event.result.scenario, {**event.target.to_json(), "findings": findings})
        self._told.cases.append(str(file))

    def _small(self, event: FailureShrunk, shrunk: Shrunk) -> None:
        file = self._file(event.target, event.number).with_suffix(".shrunk.json")
        alone = write_case(file, shrunk, event.target)
        self._told.small.append(Small(file=str(file), shrunk=shrunk, alone=str(alone) if alone else None))


def write_case(file: Path, shrunk: Shrunk, target: Target) -> Path | None:
    """Write a shrunk case to `file`, and beside it the script that shows it; the script's path, None where there is none."""
    seen = {"findings": [shrunk.finding.to_json()], "confirmed": shrunk.confirmed, "why": shrunk.why}
    _write(file, shrunk.scenario, {**target.to_json(), **seen})
    text = script.render(shrunk, target)
    if text is None:
        return None
    alone = file.with_name(file.name.removesuffix(".json").removesuffix(".shrunk") + ".py")
    alone.write_text(text, encoding="utf-8")
    return alone


def _write(file: Path, scenario: Scenario, found: Mapping[str, object]) -> None:
    file.write_text(json.dumps({**scenario.to_json(), "found": found}, indent=1) + "\n", encoding="utf-8")


def _new_folder(path: Path) -> Path:
    for number in itertools.count(2):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            path = path.with_name(f"{path.name.rpartition('~')[0] or path.name}~{number}")
        else:
            return path
    raise AssertionError("unreachable")


def _plain(event: Event) -> Mapping[str, object]:
    """The event as one line of JSON."""
    head = {"event": type(event).__name__, "leg": event.target.leg, "model": event.target.model}
    if isinstance(event, LegStarted):
        return {**event.described, **event.target.to_json(), **head, "planned": event.planned}
    if isinstance(event, FailureShrunk):
        small = event.shrunk
        turns = small.scenario.turns if small is not None else None
        return {
            **head,
            "number": event.number,
            "turns": turns,
            "confirmed": small and small.confirmed,
            "why": event.why or (small.why if small is not None else None),
        }
    if isinstance(event, LegFinished):
        return {**head, **leg_summary(event)}
    result = event.result
    return {
        **head,
        "number": event.number,
        "origin": event.origin,
        "title": result.scenario.title,
        "verdict": result.verdict.shown,
        "turns": result.turns,
        "reused_turns": result.reused_turns,
        "sources": result.sources,
        "findings": [finding.to_json() for finding in result.findings],
    }
