"""What is judged, as data: which subject, on which model, with which options, on which device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..arms.arms import Arms
from ..contract.data import Json
from ..contract.errors import ScenarioError
from ..subjects.load import open_subject


@dataclass(frozen=True, kw_only=True)
class Target:
    """`subject`: a name that ships with warmcold or is registered, or `path/to/file.py:Factory`. `model`: a path, or the address
    of a server. `options`: the subject's own, as texts."""

    model: str
    subject: str = "native"
    options: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"

    @property
    def leg(self) -> str:
        """Subject and device: the name that `--require-legs` uses."""
        return f"{self.subject.rpartition(':')[2]}-{self.device}"

    def open(self, *, threads: int = 2) -> Arms:
        """Load the model into what is to be judged, and into everything that judges it. Raises what loading raises."""
        device = {} if self.device == "cpu" else {"device": self.device}
        subject = open_subject(self.subject, self.model, threads=threads, options={**self.options, **device})
        return Arms.of(subject, threads=threads)

    def to_json(self) -> dict[str, object]:
        """What a case file says about where it was found, enough to play it there again."""
        return {
            "model": self.model,
            "leg": self.leg,
            "subject": self.subject,
            "options": dict(self.options),
            "device": self.device,
        }


def target_of(found: Json, *, model: str | None = None, subject: str | None = None) -> Target:
    """The target that a case file names, or the model or subject asked for instead. ScenarioError where it names none.

    Files of older releases name our own engine by its leg, and its numerics beside.
    """
    chosen = model or found.get("model")
    if not isinstance(chosen, str):
        raise ScenarioError("does not say on which model it was found; give --model MODEL_DIR")
    backend, _, device = str(found.get("leg", "native-cpu")).partition("-")
    named, options = found.get("subject", backend), found.get("options", {})
    if not isinstance(named, str) or not isinstance(options, Mapping):
        raise ScenarioError(f'"found" has subject {named!r:.40} and options {options!r:.40}; give a text and an object')
    given = {str(name): str(value) for name, value in options.items()}
    if "numerics" in found and named == "native":
        given.setdefault("numerics", str(found["numerics"]))
    if subject is not None and subject != named:
        named, given = subject, {}
    return Target(
        model=chosen,
        subject=named,
        options=given,
        device=str(found.get("device", device if "subject" not in found else "cpu")),
    )
