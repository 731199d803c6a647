"""The run's folder: `events.jsonl` as it goes, `cases/*.json` for what failed, `report.md` and `summary.json` at the end.

A conversation that was shrunk lies beside the one it came from: `.shrunk.json`, and `.py`, which shows it on its own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..run.events import Event, LegFinished, LegStarted, ScenarioPlayed
from ..shrinking.confirm import Shrunk
from . import junit, script
from .markdown import render
from .prose import describe
from .summary import summary


class RunFolder:
    """Consumes events into a new folder at `path`. Everything is on disk as soon as it happened.

    Where there is a folder of that name already, a number is appended: no run writes over another. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.legs: list[LegFinished] = []
        self.cases: list[str] = []
        self.shrunk: list[tuple[str, Shrunk]] = []
        self._found: Mapping[str, Any] = {}
        path = self.path = _new_folder(path)
        self._events = (path / "events.jsonl").open("w", encoding="utf-8")

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, LegStarted):
            self._found = event.found
        if isinstance(event, ScenarioPlayed) and event.result.findings:
            self.cases.append(str(self._case(event)))
        if isinstance(event, LegFinished):
            self.legs.append(event)
        self._events.write(json.dumps(_plain(event)) + "\n")
        self._events.flush()

    def add(self, played: ScenarioPlayed, shrunk: Shrunk) -> None:
        """Take the smallest conversation that shows the first finding of one that failed."""
        file = self._case_file(played).with_suffix(".shrunk.json")
        write_case(file, shrunk, found=self._found)
        self.shrunk.append((str(file), shrunk))

    def close(self) -> dict[str, Any]:
        """Write the report; returns the summary."""
        self._events.close()
        data = {**summary(self.legs, self.cases), "shrunk": [file for file, _ in self.shrunk]}
        (self.path / "summary.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        report = render(self.legs, self.cases) + "".join(_told(file, shrunk) for file, shrunk in self.shrunk)
        (self.path / "report.md").write_text(report, encoding="utf-8")
        (self.path / "junit.xml").write_bytes(junit.render(self.legs))
        return data

    def _case_file(self, event: ScenarioPlayed) -> Path:
        return self.path / "cases" / f"{event.leg}-{Path(event.model).name}-{event.number}.json"

    def _case(self, event: ScenarioPlayed) -> Path:
        file = self._case_file(event)
        file.parent.mkdir(exist_ok=True)
        found = {**self._found, "findings": [finding.to_json() for finding in event.result.findings]}
        file.write_text(
            json.dumps({**event.result.scenario.to_json(), "found": found}, indent=1) + "\n", encoding="utf-8"
        )
        return file


def _new_folder(path: Path) -> Path:
    for number in itertools.count(2):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            path = path.with_name(f"{path.name.rpartition('~')[0] or path.name}~{number}")
        else:
            return path
    raise AssertionError("unreachable")


def write_case(file: Path, shrunk: Shrunk, *, found: Mapping[str, Any]) -> Path | None:
    """Write a shrunk case to `file`, and beside it the script that shows it; returns the script's path.

    None for another engine's subject: its script is the subject's to write, and not all of them can.
    """
    seen = {"findings": [shrunk.finding.to_json()], "confirmed": shrunk.confirmed, "why": shrunk.why}
    content = {**shrunk.scenario.to_json(), "found": {**found, **seen}}
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if "subject" in found:
        return None
    alone = script_beside(file)
    backend, _, device = str(found["leg"]).partition("-")
    text = script.render(
        shrunk.scenario, shrunk.finding, model=str(found["model"]), backend=backend, device=device or "cpu",
        numerics=str(found["numerics"]),
    )  # fmt: skip
    alone.write_text(text, encoding="utf-8")
    return alone


def script_beside(file: Path) -> Path:
    """Where the script of a shrunk case lies."""
    return file.with_name(file.name.removesuffix(".json").removesuffix(".shrunk") + ".py")


def _told(file: str, shrunk: Shrunk) -> str:
    """The shortest conversation as a section of the report."""
    doubt = "" if shrunk.confirmed else f"**Not confirmed: {shrunk.why}.** The fault may not be deterministic.\n\n"
    return (
        f"## Shortest conversation that shows it\n\n{describe(shrunk.scenario)}\n\n{doubt}"
        f"```\n{shrunk.finding}\n```\n\nShown again by `warmcold replay {file}`{_alone(file)}.\n"
    )


def _alone(file: str) -> str:
    alone = script_beside(Path(file))
    return f", and without the harness by `python {alone}`" if alone.is_file() else ""


def _plain(event: Event) -> dict[str, Any]:
    kind = type(event).__name__
    if isinstance(event, LegStarted):
        return {"event": kind, "leg": event.leg, "model": event.model, "planned": event.planned, **event.described}
    if isinstance(event, ScenarioPlayed):
        result = event.result
        return {
            "event": kind,
            "leg": event.leg,
            "model": event.model,
            "number": event.number,
            "origin": event.origin,
            "title": result.scenario.title,
            "verdict": result.verdict.shown,
            "turns": result.turns,
            "reused_turns": result.reused_turns,
            "sources": result.sources,
            "findings": [finding.to_json() for finding in result.findings],
        }
    return {"event": kind, **summary([event], [])["legs"][0]}
