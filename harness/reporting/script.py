"""A stand-alone script for a case: plays it through the engine's public API alone, warm against cold.

It needs no part of the harness, so it shows the difference to somebody who does not want to trust one. What it compares
is what a user of the engine can see: the tokens, the KV that a session holds after its turn, and the reused count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import structs

from ..checks.poison import PATTERNS
from ..contract.scenario import Fork, NewSession, Op, Rewind, Scenario, Turn
from ..contract.verdict import Finding
from ..run.target import Target
from ..shrinking.confirm import Shrunk
from ..shrinking.cost import turns_of
from .escape import template
from .prose import describe

_COUNTED = {
    ("reuse", "count"): "reply.reused",
    ("efficiency", "count"): 'f"{reply.reused} ({reply.reason})"',
    ("reuse", "sum"): 'f"{reply.reused} + {reply.prefilled}"',
    ("reuse", "source"): "reply.source",
    ("reuse", "reason"): "reply.reason",
    ("reuse", "gate"): "reply.gate",
    ("reuse", "declined"): "reply.declined",
}
"""Findings about what the engine reports of a turn: how a script reads that off the reply."""


def render(small: Shrunk, target: Target) -> str | None:
    """The script's text; None for a subject that has none: it is the subject's to write, and not all of them can."""
    write = SCRIPTS.get(target.subject)
    return write(small.scenario, small.finding, target) if write is not None else None


def _engine(scenario: Scenario, finding: Finding, target: Target) -> str:
    """For warmcold's own engine. `scenario` must hold token ids, not texts."""
    last = turns_of(scenario)[-1]
    chosen = {"backend": target.subject, "device": target.device, **target.options}
    options = {**chosen, **structs.asdict(scenario.settings)}
    return template("case.py.jinja").render(
        title=scenario.title or "A conversation on which warm and cold differ",
        prose=describe(scenario),
        finding=finding,
        model=target.model,
        options=", ".join(f"{name}={value!r}" for name, value in options.items()),
        poison=PATTERNS[0],
        lines=list(_lines(scenario, finding)),
        last=last.name,
        salt=last.salt,
    )


SCRIPTS: Mapping[str, Callable[[Scenario, Finding, Target], str]] = {"native": _engine, "ort": _engine}
"""Subject -> what writes its script."""


def _lines(scenario: Scenario, finding: Finding) -> Iterator[str]:
    known: set[str] = set()
    for op in scenario.ops:
        yield _line(op, finding, known)
        if isinstance(op, Turn):
            known.add(op.name)


def _line(op: Op, finding: Finding, known: set[str]) -> str:
    if isinstance(op, NewSession):
        return f"sessions.pop({op.session!r}, warm.session()).close()"
    if isinstance(op, Fork):
        return f"sessions[{op.to!r}] = session({op.session!r}).fork()"
    if isinstance(op, Rewind):
        held = f"held({op.session!r})"
        to = f"round({op.to} * {held})" if isinstance(op.to, float) else f"min({op.to}, {held})"
        return f"session({op.session!r}).rewind({to})"
    return f"turn({op.name!r}, {op.session!r}, {_prompt(op, known)}, {op.max_new_tokens}{_options(op, finding)})"


def _prompt(turn: Turn, known: set[str]) -> str:
    """The prompt as an expression over earlier prompts and contexts."""
    if turn.base not in known:
        return repr(list(turn.append))
    text = f"{'contexts' if turn.part == 'context' else 'prompts'}[{turn.base!r}]"
    if isinstance(turn.keep, float):
        text += f"[: round({turn.keep} * len({text}))]"
    elif turn.keep is not None:
        text += f"[:{turn.keep}]" if turn.keep >= 0 else f"[: max(len({text}) - {-turn.keep}, 0)]"
    if turn.drop is not None:
        text = f"{text}[: {turn.drop[0]}] + {text}[{turn.drop[1]} :]"
    return f"{text} + {list(turn.append)!r}" if turn.append else text


def _options(turn: Turn, finding: Finding) -> str:
    given = {"salt": turn.salt, "cancel_after": turn.cancel_after, "fail": turn.fail}
    text = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)
    text += ", decline=True" if turn.decline_rewind else ""
    read = _COUNTED.get((finding.check, finding.component))
    if read is not None and finding.turn == turn.name:
        text += f", said=(lambda reply: {read}, {finding.left!r}, {finding.right!r})"
    return text
