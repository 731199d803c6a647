"""A stand-alone script for a case: plays it through the engine's public API alone, warm against cold.

It needs no part of the harness, so it shows the difference to somebody who does not want to trust one. What it compares
is what a user of the engine can see: the tokens, the KV that a session holds after its turn, and the reused count.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from ..checks.poison import PATTERNS
from ..contract.scenario import Fork, NewSession, Op, Rewind, Scenario, Turn
from ..contract.verdict import Finding
from ..shrinking.cost import turns_of
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

_HEAD = '''"""{title}

{prose}

warmcold found, in turn {turn}:
{finding}

Needs the engine alone. Every turn is played warm, as the conversation goes, and once more
cold. Ends with 1 if that makes a difference, else with 0.
"""

import sys

import numpy as np

from warmcold.engine import Engine, SamplingParams

MODEL = sys.argv[1] if len(sys.argv) > 1 else {model!r}


class Planted(Exception):
    """The error that a turn asks for."""


declining, failing = False, None  # whether a rewind is declined; [point, visit] at which an error is raised


def probe(event):
    if failing is not None and event.point == failing[0]:
        failing[1] -= 1
        if failing[1] == 0:
            raise Planted(f"planted at {{event.point!r}}")
    return not (event.point == "rewind" and declining)


warm = Engine.load(
    MODEL, {options},
    poison={poison},  # what memory holds before it is written
    probe=probe,
)
sessions, prompts, contexts = {{}}, {{}}, {{}}
differs = False


def session(name):
    if name not in sessions:
        sessions[name] = warm.session()
    return sessions[name]


def held(name):
    live = warm.observe(session(name)).live
    return live.length if live is not None else 0


def play(live, prompt, params, salt, cancel_after):
    turn = live.stream(prompt, params, salt=salt)
    for count, _ in enumerate(turn if cancel_after != 0 else (), start=1):
        if count == cancel_after:
            break
    turn.close()
    return turn.completion if cancel_after != 0 else None


def turn(name, where, prompt, new, *, salt=None, decline=False, cancel_after=None, fail=None, said=None):
    """One turn warm, and the same one cold. `said`: what to read off the reply, what was wrong, what is right."""
    global declining, failing
    live, params = session(where), SamplingParams(max_new_tokens=new, ignore_eos=True)
    prompts[name] = contexts[name] = list(prompt)
    declining, failing = decline, list(fail) if fail else None
    try:
        reply = play(live, prompt, params, salt, cancel_after)
    except Exception as error:
        declining, failing = False, None
        print(f"{{name}}: {{len(prompt)}} tokens sent\\n    warm {{type(error).__name__}}: {{error}}")
        if fail is None:
            refused(error, prompt, params, salt)
        return
    declining, failing = False, None
    if reply is None:
        return
    contexts[name] += reply.tokens
    print(f"{{name}}: {{len(prompt)}} tokens sent, {{reply.reused}} of them reused ({{reply.source}}, {{reply.reason}})")
    if cancel_after is None:
        compare(live, prompt, params, salt, reply)
    if said is not None and str(said[0](reply)) == said[1]:
        show(f"reported {{said[1]}}, which is wrong; right: {{said[2]}}")


def refused(error, prompt, params, salt):
    """The warm turn raised: so must the cold one, in the same way."""
    try:
        cold = warm.fresh().session().generate(prompt, params, salt=salt, reuse=False)
    except type(error) as same:
        print(f"    cold {{type(same).__name__}}: {{same}}")
    else:
        print(f"    cold {{list(cold.tokens)}}")
        show("warm raises an error, cold does not")


def compare(live, prompt, params, salt, reply):
    fresh = warm.fresh()
    cold = fresh.session().generate(prompt, params, salt=salt, reuse=False)
    print(f"    warm {{list(reply.tokens)}}\\n    cold {{list(cold.tokens)}}")
    if reply.tokens != cold.tokens:
        show("the tokens differ")
        return
    keeping = fresh.session()  # a turn with reuse=False keeps nothing, and nothing can be reused on a fresh engine
    keeping.generate(prompt, params, salt=salt)
    difference(warm.observe(live).live, fresh.observe(keeping).live)


def difference(left, right):
    """Print the first number in which the KV after the turn differs."""
    if left is None or right is None or left.length != right.length:
        show(f"KV held: warm {{left and left.length}}, cold {{right and right.length}} positions")
        return
    for layer, pairs in enumerate(zip(left.arrays, right.arrays)):
        for part, one, other in zip(("key", "value"), *pairs):
            one, other = (np.asarray(x, dtype=np.float64)[0, :, : left.length] for x in (one, other))
            places = np.argwhere((one != other) & ~(np.isnan(one) & np.isnan(other)))
            if len(places):
                at = tuple(places[0])
                where = "head {{}} position {{}} channel {{}}".format(*at)
                show(f"the KV differs: layer {{layer}} {{part}} {{where}}: warm {{one[at]}}, cold {{other[at]}}")
                return


def show(what):
    global differs
    differs = True
    print(f"    DIFFERENCE: {{what}}")


'''

_TAIL = """

if not differs and len(contexts[{last!r}]) < warm.max_context:
    print("Nothing yet. What the turns left in the prefix cache shows in one turn more, on a session of its own:")
    turn("after", "after", contexts[{last!r}] + [0], 1{salt})
print("warm and cold differ" if differs else "no difference that shows in tokens, KV or counts")
sys.exit(differs)
"""


def render(scenario: Scenario, finding: Finding, *, model: str, backend: str, device: str, numerics: str) -> str:
    """The script's text. `scenario` must hold token ids, not texts."""
    last = turns_of(scenario)[-1]
    options = {"backend": backend, "device": device, "numerics": numerics, **structs.asdict(scenario.settings)}
    head = _HEAD.format(
        title=_quoted(scenario.title or "A conversation on which warm and cold differ"),
        prose=_quoted(describe(scenario)),
        turn=finding.turn,
        finding=_quoted(str(finding)),
        model=model,
        options=", ".join(f"{name}={value!r}" for name, value in options.items()),
        poison=PATTERNS[0],
    )
    salt = f", salt={last.salt!r}" if last.salt is not None else ""
    return head + "\n".join(_lines(scenario, finding)) + _TAIL.format(last=last.name, salt=salt)


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


def _quoted(text: str) -> str:
    """Text that may stand in a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''")
