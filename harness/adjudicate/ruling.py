"""What is ruled of a turn whose warm and cold replies differ, as data and in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..contract.scenario import Scenario


class Kind(StrEnum):
    """What it is. `unsound`: the same schedule explains it, but the model itself depends on the schedule beyond rounding."""

    same = "no difference"
    noise = "float noise"
    dirty = "dirty KV"
    unsound = "the model is not a function of the prefix"
    unclear = "cannot tell"

    @property
    def exit_code(self) -> int:
        """1 for a fault, of the engine or of the model; 3 where it cannot be told; else 0."""
        return {Kind.dirty: 1, Kind.unsound: 1, Kind.unclear: 3}.get(self, 0)


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """The ruling on one turn. `place`: where the cache is wrong; `missing`: what it would take to tell; `facts`: evidence."""

    kind: Kind
    turn: str
    because: str
    place: str | None = None
    missing: str | None = None
    facts: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "warmcold_ruling": 1,
            "ruling": str(self.kind),
            "turn": self.turn,
            "because": self.because,
            "place": self.place,
            "missing": self.missing,
            "facts": self.facts,
        }


def told(ruling: Ruling, described: Mapping[str, object], scenario: Scenario) -> str:
    """A text that a maintainer can paste into a bug report."""
    lines = [f"## {ruling.kind}", "", f"Turn {ruling.turn}: {ruling.because}."]
    if ruling.place:
        lines.append(f"First place: {ruling.place}.")
    if ruling.missing:
        lines.append(f"To tell, it would take {ruling.missing}.")
    engine = ", ".join(f"{name} {value}" for name, value in described.items() if value not in ({}, None))
    lines += ["", *(f"- {fact}" for fact in ruling.facts), "", f"Engine: {engine}", ""]
    lines += ["Conversation (`warmcold adjudicate --case FILE` rules on it again):", "```json"]
    return "\n".join([*lines, json.dumps(scenario.to_json()), "```"])
