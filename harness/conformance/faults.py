"""Faults planted in a wrapper around any subject: what an engine with that fault would do, told by the prompts it is given.

The wrapper knows nothing of the engine. It asks it for another prompt than it was given, or shows other bytes than it saw,
and reports the counts of a right turn. So these faults can be planted in an engine that nobody here can change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed
from typing_extensions import override

from ..arms.compare import common_prefix
from ..contract.observation import Kv, Observation, Pool, Tokens
from ..contract.scenario import Settings, Turn
from ..contract.subject import Instance, Subject
from ..contract.verdict import Level

Answer = Callable[["PlantedInstance", Turn, Tokens], Observation]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`what` in words; `answer` gives a turn's reply with the fault; `operation`, `level`: what must be there to plant it."""

    what: str
    answer: Answer
    operation: str | None = None
    level: Level = Level.L0

    def needs(self, subject: Subject) -> str | None:
        """Why it cannot be planted around this subject; None if it can."""
        declared = subject.capabilities
        if not subject.stateful:
            return "the model carries no state"
        if self.operation is not None and self.operation not in declared.operations:
            return f"the subject does not declare {self.operation}"
        return None if declared.level >= self.level else f"the subject does not show {self.level.meaning}"


class Planted(Subject):
    """`subject` with a fault from `FAULTS` in every warm turn."""

    def __init__(self, subject: Subject, fault: str) -> None:
        self.name, self.model, self.capabilities = subject.name, subject.model, subject.capabilities
        self.max_context, self.vocab_size, self.stateful = subject.max_context, subject.vocab_size, subject.stateful
        self._subject = subject
        self._fault = FAULTS[fault]

    @override
    def open(self, settings: Settings, *, poison: float | None) -> PlantedInstance:
        return PlantedInstance(self._subject.open(settings, poison=poison), self._fault)

    @override
    def encode(self, text: str) -> Sequence[int]:
        return self._subject.encode(text)


class PlantedInstance(Instance):
    """An instance whose warm turns have the fault; its cold ones are healthy. `held`: what each session was told."""

    def __init__(self, real: Instance, fault: Fault) -> None:
        self.real = real
        self.held: dict[str, Tokens] = {}
        self._fault = fault

    @override
    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        seen = self._fault.answer(self, op, tuple(prompt))
        self.held[op.session] = (*prompt, *seen.tokens)
        return seen

    @override
    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        return self.real.cold(op, prompt)

    @override
    def new_session(self, session: str) -> None:
        self.real.new_session(session)

    @override
    def fork(self, session: str, to: str) -> None:
        self.real.fork(session, to)

    @override
    def rewind(self, session: str, n: int) -> bool:
        return self.real.rewind(session, n)

    @override
    def pool(self) -> Pool | None:
        return self.real.pool()

    @override
    def clear(self) -> None:
        self.real.clear()

    def shared(self, op: Turn, prompt: Tokens) -> int:
        """How much of the prompt the session was told before."""
        return common_prefix(self.held.get(op.session, ()), prompt)


def _told(seen: Observation, prompt: Tokens, reused: int) -> Observation:
    """As the engine would report it that believes itself right."""
    if seen.reused is None:
        return seen
    return replace(seen, reused=reused, prefilled=len(prompt) - reused)


def _late(instance: PlantedInstance, op: Turn, prompt: Tokens) -> Observation:
    n = instance.shared(op, prompt)
    if not 0 < n < len(prompt) - 1:
        return instance.real.turn(op, prompt)
    seen = instance.real.turn(op, (*prompt[:n], *prompt[n + 1 :]))
    return _told(seen, prompt, min(n, seen.reused or n))


def _stale_tail(instance: PlantedInstance, op: Turn, prompt: Tokens) -> Observation:
    n, held = instance.shared(op, prompt), instance.held.get(op.session, ())
    if not 0 < n < len(held) or n >= len(prompt):
        return instance.real.turn(op, prompt)
    seen = instance.real.turn(op, (*held, *prompt[n:]))
    return _told(seen, prompt, n)


def _swapped(instance: PlantedInstance, op: Turn, prompt: Tokens) -> Observation:
    seen = instance.real.turn(op, prompt)
    return replace(seen, seeded=_other_way(seen.seeded), end=_other_way(seen.end))


def _other_way(kv: Kv | None) -> Kv | None:
    return kv and tuple((values, keys) for keys, values in kv)


def _saltless(instance: PlantedInstance, op: Turn, prompt: Tokens) -> Observation:
    return instance.real.turn(changed(op, salt=None), prompt)


FAULTS: Mapping[str, Fault] = {
    "late_token": Fault(what="a turn that reuses anything leaves out the first token after the cut", answer=_late),
    "stale_tail": Fault(what="the rewind is skipped, so that a prompt lands on the old tail", answer=_stale_tail),
    "swapped_kv": Fault(what="keys and values change places", answer=_swapped, level=Level.L3),
    "ignored_salt": Fault(what="tenants share what they must not", answer=_saltless, operation="salt", level=Level.L1),
}
"""By name."""
