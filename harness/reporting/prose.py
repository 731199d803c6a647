"""A conversation told in plain English: what a person reads before any data."""

from __future__ import annotations

from ..contract.scenario import Fork, NewSession, Op, Rewind, Scenario, Turn
from ..shrinking.confirm import Shrunk
from ..shrinking.cost import DEFAULTS, session_names, token_count

_LONGEST_TEXT = 40


def describe(scenario: Scenario) -> str:
    """One sentence for each operation, and one for settings that are not the usual ones."""
    alone = len(session_names(scenario)) == 1
    met: set[str] = set()
    sentences = []
    for op in scenario.ops:
        sentences.append(_sentence(op, _where(op.session, met, alone)))
        met.add(op.session)
    return " ".join([*sentences, *_settings(scenario)])


def sizes(before: Scenario, shrunk: Shrunk) -> str:
    """How much smaller a shrunk conversation is, how sure that is, how hard it was."""
    after = shrunk.scenario
    sure = (
        "confirmed in a fresh process" if shrunk.confirmed else f"NOT CONFIRMED, maybe nondeterministic: {shrunk.why}"
    )
    end = "" if shrunk.complete else ", stopped by the time"
    return (
        f"shrunk from {before.turns} turns with {token_count(before)} tokens to {after.turns} with {token_count(after)} "
        f"({shrunk.tries} tries, {shrunk.seconds:.0f} s{end}); {sure}"
    )


def _where(session: str, met: set[str], alone: bool) -> str:
    if not met:
        return ""
    if session not in met:
        return f", on another session ({session}),"
    return ", on the same session," if alone else f", on session {session},"


def _sentence(op: Op, where: str) -> str:
    if isinstance(op, NewSession):
        return f"Session {op.session} is opened anew."
    if isinstance(op, Rewind):
        return f"Session {op.session} is rewound to {_share(op.to)}."
    if isinstance(op, Fork):
        return f"Session {op.session} is forked as {op.to}."
    return f"Turn {op.name}{where} sends {_prompt(op)} and {_reply(op)}{_oddities(op)}."


def _prompt(turn: Turn) -> str:
    if turn.base is None:
        return _appended(turn)
    kept = _kept(turn)
    if turn.drop is not None:
        kept += f" without positions {turn.drop[0]} to {turn.drop[1] - 1}"
    return f"{kept} and then {_appended(turn)}" if turn.append else kept


def _kept(turn: Turn) -> str:
    of = f"the prompt of {turn.base}" if turn.part == "prompt" else f"the prompt and reply of {turn.base}"
    if turn.keep is None:
        return of
    if isinstance(turn.keep, int) and turn.keep < 0:
        return f"all but the last {_tokens(-turn.keep)} of {of}"
    return f"the first {_share(turn.keep)} of {of}"


def _share(length: int | float) -> str:
    return f"{length:.0%}" if isinstance(length, float) else _tokens(length)


def _appended(turn: Turn) -> str:
    if isinstance(turn.append, str):
        text = turn.append if len(turn.append) <= _LONGEST_TEXT else turn.append[:_LONGEST_TEXT] + "..."
        return f"the text {text!r}"
    return _tokens(len(turn.append))


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"


def _reply(turn: Turn) -> str:
    return f"gets {turn.max_new_tokens}" if turn.max_new_tokens else "asks for no reply"


def _oddities(turn: Turn) -> str:
    odd = []
    if turn.salt is not None:
        odd.append(f"under the salt {turn.salt!r}")
    if turn.decline_rewind:
        odd.append("its rewind declined")
    if turn.cancel_after is not None:
        odd.append(f"cancelled after {turn.cancel_after} model calls")
    if turn.fail is not None:
        odd.append(f"with an error planted at visit {turn.fail[1]} of {turn.fail[0]!r}")
    return "".join(f", {text}" for text in odd)


def _settings(scenario: Scenario) -> list[str]:
    odd = [f"{name} is {value}" for name in DEFAULTS if (value := getattr(scenario.settings, name)) != DEFAULTS[name]]
    return [f"{', '.join(odd).capitalize()}."] if odd else []
