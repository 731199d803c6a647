"""Servers that give canned answers, for dialects to be tried on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from warmcold.harness.contract.errors import RefusedError
from warmcold.harness.contract.scenario import Turn

TURN = Turn(name="t", max_new_tokens=4)
PIECES = ("<s>", " ", "a", "b", "ab", " a", "\n", "")
"""A vocabulary that takes the longest piece first, so that `a` and `b` are two tokens only as long as they are apart."""


class Canned:
    """A server that knows a few answers by heart."""

    url = "http://canned"

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def find(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """See `Transport.find`."""
        return self._answers.get(path.strip("/").replace("/", "_"))

    def ask(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Transport.ask`."""
        raise RefusedError(str(self._answers["refusal"]))


def models(**card: Any) -> dict[str, Any]:
    """What /v1/models says."""
    return {"data": [{"id": "m", **card}]}


class Text(Canned):
    """A server that takes text, and puts token 0 before each."""

    def __init__(self, *, logprobs: bool = True, **answers: Any) -> None:
        super().__init__(v1_models=models(owned_by="me"), **answers)
        self._logprobs = logprobs

    def find(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """See `Transport.find`."""
        if path == "/extras/tokenize" and body is not None:
            return {"tokens": [0, *(PIECES.index(part) for part in re.findall(" a|ab|[ ab\n]", body["input"]))]}
        if path == "/extras/detokenize" and body is not None:
            return {"text": "".join(PIECES[token] for token in body["tokens"])}
        if path == "/v1/completions":
            return {} if self._logprobs else None
        return super().find(method, path, body)


def completed(text: str, sent: int, count: int, **rest: Any) -> dict[str, Any]:
    """What a text server says."""
    usage = {"prompt_tokens": sent, "completion_tokens": count}
    return {"choices": [{"text": text, "finish_reason": "length", **rest}], "usage": usage}
