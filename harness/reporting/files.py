"""The run's folder: `events.jsonl` as it goes, `cases/*.json` for what failed, `report.md` and `summary.json` at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..events import Event, LegFinished, LegStarted, ScenarioPlayed
from .markdown import render
from .summary import summary


class RunFolder:
    """Consumes events into `path`, which it makes. Everything is on disk as soon as it happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.legs: list[LegFinished] = []
        self.cases: list[str] = []
        path.mkdir(parents=True, exist_ok=True)
        self._events = (path / "events.jsonl").open("w", encoding="utf-8")

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, ScenarioPlayed) and event.result.findings:
            self.cases.append(str(self._case(event)))
        if isinstance(event, LegFinished):
            self.legs.append(event)
        self._events.write(json.dumps(_plain(event)) + "\n")
        self._events.flush()

    def close(self) -> dict[str, Any]:
        """Write the report; returns the summary."""
        self._events.close()
        data = summary(self.legs, self.cases)
        (self.path / "summary.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        (self.path / "report.md").write_text(render(self.legs, self.cases), encoding="utf-8")
        return data

    def _case(self, event: ScenarioPlayed) -> Path:
        folder = self.path / "cases"
        folder.mkdir(exist_ok=True)
        file = folder / f"{event.leg}-{Path(event.model).name}-{event.number}.json"
        found = {
            "model": event.model,
            "leg": event.leg,
            "findings": [finding.to_json() for finding in event.result.findings],
        }
        file.write_text(
            json.dumps({**event.result.scenario.to_json(), "found": found}, indent=1) + "\n", encoding="utf-8"
        )
        return file


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
