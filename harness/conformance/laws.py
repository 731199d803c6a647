"""The contract of a subject, as laws that a third party runs on its own: `warmcold conformance`, or pytest over `LAWS`.

A law is a function of a `Bench` that returns nothing when it holds, raises `BrokenError` when not, `NotApplicableError` where
the subject declares that it does not offer this, and `UnclearError` where nothing could be told. The last laws plant faults
in a wrapper around the subject: an adapter through which no fault shows is not worth a pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from msgspec.structs import replace as changed

from ..arms.arms import Arms
from ..arms.compare import shown_difference
from ..contract.errors import HarnessError, RefusedError
from ..contract.observation import Observation, Tokens
from ..contract.scenario import NewSession, Op, Rewind, Scenario, Settings, Turn
from ..contract.subject import OPERATIONS, Instance
from ..contract.verdict import Level, Verdict
from ..play.exact import Lineup, run_scenario
from .faults import FAULTS, Planted

REPLY = 4
"""Tokens of a reply, so that a turn has decode steps."""


class BrokenError(HarnessError):
    """The law does not hold: what was seen, what was expected."""


class NotApplicableError(HarnessError):
    """The subject declares that it does not offer this."""


class UnclearError(HarnessError):
    """Nothing could be told: why."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one law. `said`: why, unless it holds."""

    law: str
    verdict: Verdict
    said: str = ""


class Bench:
    """A subject and prompts for it. Prompts of different numbers share no first token by more than chance."""

    def __init__(self, arms: Arms, corpus: Sequence[int] | None = None) -> None:
        self.arms = arms
        self.declared = arms.subject.capabilities
        self.unit = max(self.declared.reuse.granularity, 1)
        self._corpus = corpus

    @property
    def apart(self) -> bool:
        """Whether instances can be told apart: an engine without tenants is one for as long as it runs."""
        return "salt" in self.declared.operations or not self.declared.reuse.across_instances

    @cached_property
    def healthy(self) -> bool:
        """Whether a plain conversation shows nothing, before anything is planted."""
        return not run_scenario(self.arms, conversation(self), Lineup(poison=False)).findings

    def open(self) -> Instance:
        """A fresh instance."""
        return self.arms.subject.open(Settings(), poison=None)

    def prompt(self, number: int, length: int = 0) -> Tokens:
        """Of two units and some more, or of `length`; long enough that something can be reused."""
        length = length or 2 * self.unit + 9
        source = random.Random(number)
        if self._corpus:
            at = source.randrange(max(len(self._corpus) - length, 1))
            return tuple(self._corpus[(at + i) % len(self._corpus)] for i in range(length))
        return tuple(source.randrange(self.arms.subject.vocab_size) for _ in range(length))

    def needs(self, *operations: str, level: Level = Level.L0) -> None:
        """NotApplicableError unless the subject declares all this."""
        if missing := [name for name in operations if name not in self.declared.operations]:
            raise NotApplicableError(f"the subject does not declare {', '.join(missing)}")
        if self.declared.level < level:
            raise NotApplicableError(f"the subject declares {self.declared.level.name}: {level.meaning} not shown")


Law = Callable[[Bench], None]

LAWS: dict[str, Law] = {}
"""Every law by name, in the order in which a failure is most useful to an adapter's author."""


def law(holds: Law) -> Law:
    """Register the function below as the law of its name."""
    LAWS[holds.__name__] = holds
    return holds


def tried(bench: Bench, name: str) -> Outcome:
    """One law. Whatever else the subject raises breaks it."""
    try:
        LAWS[name](bench)
    except NotApplicableError as error:
        return Outcome(law=name, verdict=Verdict.NOT_RUN, said=str(error))
    except UnclearError as error:
        return Outcome(law=name, verdict=Verdict.UNKNOWN, said=str(error))
    except BrokenError as error:
        return Outcome(law=name, verdict=Verdict.FAIL, said=str(error))
    except (Exception, SystemExit) as error:  # an adapter may raise anything, and all of it is news about the adapter
        return Outcome(law=name, verdict=Verdict.FAIL, said=f"{type(error).__name__}: {error}")
    return Outcome(law=name, verdict=Verdict.PASS)


@law
def declares(bench: Bench) -> None:
    """What is declared makes sense: known operations, a vocabulary, room for a conversation, a granularity."""
    if unknown := bench.declared.operations - OPERATIONS:
        raise BrokenError(f"unknown operations {sorted(unknown)}; known are {sorted(OPERATIONS)}")
    for what, value, least in (
        ("vocab_size", bench.arms.subject.vocab_size, 2),
        ("max_context", bench.arms.subject.max_context, 4 * bench.unit + 32),
        ("granularity", bench.declared.reuse.granularity, 1),
        ("leaves", bench.declared.reuse.leaves, 0),
    ):
        if value < least:
            raise BrokenError(f"{what} is {value}; {least} or more")


@law
def answers(bench: Bench) -> None:
    """A turn gives as many tokens as were asked for, all of the vocabulary, and none where none were."""
    instance = bench.open()
    for name, count in (("some", REPLY), ("none", 0)):
        seen = instance.turn(Turn(name=name, max_new_tokens=count), bench.prompt(1))
        if len(seen.tokens) != count:
            raise BrokenError(f"{count} tokens were asked for, {len(seen.tokens)} given: are end tokens ignored?")
        if foreign := [token for token in seen.tokens if not 0 <= token < bench.arms.subject.vocab_size]:
            raise BrokenError(f"token {foreign[0]} is not in the vocabulary of {bench.arms.subject.vocab_size}")


@law
def shows_its_level(bench: Bench) -> None:
    """Everything that the declared level includes is there to be seen, on a turn that reuses."""
    seen = _two_turns(bench)[1]
    shown = (
        (Level.L1, "the reused count", seen.reused),
        (Level.L2, "logits or log-probabilities", seen.last_rows or seen.logprobs),
        (Level.L3, "the KV at the end of a turn", seen.end),
        (Level.L4, "something that replays its schedule (loop(), or an ONNX file)", bench.arms.matched),
    )
    for level, what, value in shown:
        if bench.declared.level >= level and value is None:
            raise BrokenError(f"declares {bench.declared.level.name}, but does not show {what}")


@law
def counts_add_up(bench: Bench) -> None:
    """Reused and prefilled make the prompt; the rows of the calls make what is left of the context, and have logits each."""
    bench.needs(level=Level.L1)
    for prompt, seen in zip(_prompts(bench), _two_turns(bench), strict=True):
        assert seen.reused is not None
        if seen.prefilled is not None and seen.reused + seen.prefilled != len(prompt):
            raise BrokenError(f"reused {seen.reused} + prefilled {seen.prefilled} is not the prompt's {len(prompt)}")
        rows = seen.fed_rows
        if rows is None:
            continue
        fed, least = seen.reused + sum(rows), len(prompt) + len(seen.tokens) - 1
        if fed not in (least, least + 1):
            raise BrokenError(f"reused {seen.reused} + rows {list(rows)} is {fed}; prompt and reply need {least}")
        if seen.last_rows is not None and len(seen.last_rows) != len(rows):
            raise BrokenError(f"{len(rows)} calls, but {len(seen.last_rows)} rows of logits")


@law
def reuses(bench: Bench) -> None:
    """The second turn of a conversation reuses most of the first, or there is nothing to verify."""
    bench.needs(level=Level.L1)
    if not bench.arms.subject.stateful:
        raise NotApplicableError("the model carries no state")
    first, second = _two_turns(bench)
    if first.reused and bench.apart:
        raise BrokenError(f"the first turn of a fresh instance reused {first.reused}")
    if not second.reused:
        raise BrokenError("the second turn reused nothing of the first, which it extends")


@law
def cold_is_cold(bench: Bench) -> None:
    """After warm turns a cold one reuses nothing and disturbs nothing: the warm conversation goes on as if it had not been."""
    prompts = _prompts(bench)
    ops = _turns()
    instance, other = bench.open(), bench.open()
    instance.turn(ops[0], prompts[0])
    cold = instance.cold(ops[1], prompts[1])
    if cold.reused not in (0, None) or (cold.reused is None and bench.declared.level >= Level.L1):
        raise BrokenError(f"the cold arm reports {cold.reused} reused positions, not 0")
    other.turn(ops[0], prompts[0])
    _same(bench, instance.turn(ops[1], prompts[1]), other.turn(ops[1], prompts[1]), "a cold request in between changed")


@law
def repeats(bench: Bench) -> None:
    """The same calls on a fresh instance give the same tokens and the same bits, if it is declared deterministic."""
    if not bench.declared.deterministic:
        raise NotApplicableError("the subject does not declare itself deterministic")
    for left, right in zip(_two_turns(bench), _two_turns(bench), strict=True):
        _same(bench, left, right, "a second run changed")


@law
def instances_are_apart(bench: Bench) -> None:
    """What one instance has seen, another does not reuse."""
    bench.needs(level=Level.L1)
    op = _turns()[0]
    bench.open().turn(op, bench.prompt(1))
    seen = bench.open().turn(op, bench.prompt(1))
    if seen.reused and bench.apart:
        raise BrokenError(f"a fresh instance reused {seen.reused} positions of another's")


@law
def refuses(bench: Bench) -> None:
    """An empty prompt and one that is too long are refused by RefusedError, and the conversation then goes on unharmed."""
    prompts, ops = _prompts(bench), _turns()
    instance = bench.open()
    instance.turn(ops[0], prompts[0])
    for what, bad in (
        ("an empty prompt", ()),
        ("a prompt longer than the context", (1,) * (bench.arms.subject.max_context + 1)),
    ):
        try:
            instance.turn(Turn(name="bad", max_new_tokens=1), bad)
        except RefusedError:
            continue
        raise BrokenError(f"{what} was answered; raise RefusedError")
    other = bench.open()
    other.turn(ops[0], prompts[0])
    _same(bench, instance.turn(ops[1], prompts[1]), other.turn(ops[1], prompts[1]), "a refused request changed")


@law
def operations_are_as_declared(bench: Bench) -> None:
    """What is declared works, and what is not is refused by RefusedError."""
    attempts: Mapping[str, Callable[[Instance], object]] = {
        "new": lambda instance: instance.new_session("s"),
        "rewind": lambda instance: instance.rewind("s", 3),
        "fork": lambda instance: instance.fork("s", "t"),
    }
    for name, attempt in attempts.items():
        instance = bench.open()
        instance.turn(_turns()[0], bench.prompt(1))
        try:
            attempt(instance)
        except RefusedError as error:
            if name in bench.declared.operations:
                raise BrokenError(f"declares {name}, but refuses it: {error}") from error
        else:
            if name not in bench.declared.operations:
                raise BrokenError(f"does not declare {name}, but does not refuse it either; raise RefusedError")


@law
def sessions_are_apart(bench: Bench) -> None:
    """A conversation is the same alone and with another one in between."""
    bench.needs("sessions")
    prompts, ops = _prompts(bench), _turns()
    instance = bench.open()
    instance.turn(ops[0], prompts[0])
    instance.turn(changed(ops[0], name="other", session="t"), bench.prompt(2))
    alone = bench.open()
    alone.turn(ops[0], prompts[0])
    _same(bench, instance.turn(ops[1], prompts[1]), alone.turn(ops[1], prompts[1]), "another session changed")


@law
def salts_are_apart(bench: Bench) -> None:
    """Under another salt nothing is reused, though the tokens are the same."""
    bench.needs("salt", level=Level.L1)
    instance = bench.open()
    op = _turns()[0]
    instance.turn(changed(op, salt="x"), bench.prompt(1))
    seen = instance.turn(changed(op, salt="y", session="t"), bench.prompt(1))
    if seen.reused:
        raise BrokenError(f"under another salt {seen.reused} positions were reused")


@law
def is_sensitive(bench: Bench) -> None:
    """Another token early in the prompt changes something that is shown; else no fault could ever be seen."""
    op = _turns()[0]
    for number in range(1, 6):
        prompt = bench.prompt(number)
        other = (prompt[0], (prompt[1] + 1) % bench.arms.subject.vocab_size, *prompt[2:])
        left, right = (bench.open().turn(op, given) for given in (prompt, other))
        if shown_difference(left, right) is not None:
            return
    raise UnclearError("five prompts, each with its second token changed, gave just the same: nothing can be seen here")


@law
def judged_healthy(bench: Bench) -> None:
    """Every check passes on a plain conversation: grow, identical, shorter, diverge, come back."""
    if not bench.arms.judgeable:
        raise NotApplicableError(
            "nothing to judge single turns with (no loop, no oracle): `verify` judges statistically"
        )
    result = run_scenario(bench.arms, conversation(bench), Lineup())
    if result.findings:
        raise BrokenError(str(result.findings[0]))


def planted(fault: str) -> Law:
    """The law that a fault of this name, planted in a wrapper, is found; registered last."""

    def finds(bench: Bench) -> None:
        why = FAULTS[fault].needs(bench.arms.subject)
        if why is not None:
            raise NotApplicableError(why)
        if not bench.arms.judgeable:
            raise NotApplicableError("nothing to judge single turns with: see `verify`'s power gate")
        if not bench.healthy:
            raise NotApplicableError("the subject shows a fault of its own, so a planted one could not be told from it")
        wrong = replace(bench.arms, subject=Planted(bench.arms.subject, fault))
        for number in range(3):
            if run_scenario(wrong, conversation(bench, number), Lineup(poison=False)).findings:
                return
        raise BrokenError(f"planted in a wrapper: {FAULTS[fault].what}; nothing was found in three conversations")

    finds.__doc__ = f"A fault planted in a wrapper is found: {FAULTS[fault].what}."
    finds.__name__ = f"finds_{fault}"
    return law(finds)


for _fault in FAULTS:
    planted(_fault)


def conversation(bench: Bench, number: int = 0) -> Scenario:
    """A plain conversation with every way to reuse that the subject offers."""
    first, more, other = (bench.prompt(10 * number + at) for at in (1, 2, 3))
    salted = {"salt": "x"} if "salt" in bench.declared.operations else {}

    def turn(name: str, **rest: object) -> Turn:
        rest.setdefault("max_new_tokens", REPLY)
        return Turn(name=name, **rest)  # type: ignore[arg-type]  # Turn's own fields

    ops: list[Op] = [
        turn("first", append=first),
        turn("extend", base="first", append=more[: bench.unit + 3]),
        turn("diverge", base="first", keep=len(first) - 3, append=other[:5]),
        turn("identical", base="diverge", part="prompt"),
        turn("shorter", base="first", keep=bench.unit + 4),
        turn("back", base="extend", append=other[:2]),
    ]
    if salted:
        ops.append(turn("tenant", base="back", append=other[2:4], salt="x"))
    if "rewind" in bench.declared.operations:
        ops += [Rewind(session="s", to=5), turn("rewound", base="back", append=more[:2])]
    if "new" in bench.declared.operations:
        ops += [NewSession(session="s"), turn("afresh", base="back", append=more[2:4])]
    return Scenario(ops=tuple(ops), title=f"conformance {number}")


def _turns() -> tuple[Turn, Turn]:
    return Turn(name="first", max_new_tokens=REPLY), Turn(name="second", base="first", max_new_tokens=REPLY)


def _prompts(bench: Bench) -> tuple[Tokens, Tokens]:
    """A prompt, and one that extends it: not the reply, so that it does not depend on what the first turn said."""
    return bench.prompt(1), (*bench.prompt(1), *bench.prompt(2, bench.unit + 3))


def _two_turns(bench: Bench) -> tuple[Observation, Observation]:
    instance = bench.open()
    first, second = (instance.turn(op, prompt) for op, prompt in zip(_turns(), _prompts(bench), strict=True))
    return first, second


def _same(bench: Bench, left: Observation, right: Observation, what: str) -> None:
    """Bit for bit, where the subject declares itself deterministic; BrokenError if not."""
    found = shown_difference(left, right) if bench.declared.deterministic else None
    if found is not None:
        raise BrokenError(f"{what} {found}")
