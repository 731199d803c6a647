"""Servers that give canned answers, for dialects to be tried on: the real client over a transport that needs no socket."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import httpx

from warmcold.harness.contract.scenario import Turn
from warmcold.harness.subjects.http.client import Http
from warmcold.harness.subjects.http.protocol import Json

TURN = Turn(name="t", max_new_tokens=4)
PIECES = ("<s>", " ", "a", "b", "ab", " a", "\n", "")
"""A vocabulary that takes the longest piece first, so that `a` and `b` are two tokens only as long as they are apart."""


def answering(handler: Callable[[httpx.Request], httpx.Response]) -> Http:
    """A client of a server that answers so."""
    return Http("http://canned", transport=httpx.MockTransport(handler))


def canned(**answers: object) -> Http:
    """A server that knows a few answers by heart: `v1_models` is what it says at /v1/models."""

    def answer(request: httpx.Request) -> httpx.Response:
        said = answers.get(request.url.path.strip("/").replace("/", "_"))
        return httpx.Response(404) if said is None else httpx.Response(200, json=said)

    return answering(answer)


def models(**card: object) -> dict[str, object]:
    """What /v1/models says."""
    return {"data": [{"id": "m", **card}]}


def text_server(*, logprobs: bool = True, refusal: str | None = None) -> Http:
    """A server that takes text, and puts token 0 before each. With a `refusal`, it completes nothing."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content or b"{}")
        match request.url.path:
            case "/v1/models":
                return httpx.Response(200, json=models(owned_by="me"))
            case "/extras/tokenize":
                parts = re.findall(" a|ab|[ ab\n]", body["input"])
                return httpx.Response(200, json={"tokens": [0, *map(PIECES.index, parts)]})
            case "/extras/detokenize":
                return httpx.Response(200, json={"text": "".join(PIECES[token] for token in body["tokens"])})
            case "/v1/completions" if "logprobs" in body and logprobs:
                return httpx.Response(200, json={})
            case "/v1/completions":
                return httpx.Response(400, json={"error": {"message": refusal}})
        return httpx.Response(404)

    return answering(answer)


def completed(text: str, sent: int, count: int, **rest: object) -> Json:
    """What a text server says."""
    usage = {"prompt_tokens": sent, "completion_tokens": count}
    return {"choices": [{"text": text, "finish_reason": "length", **rest}], "usage": usage}
