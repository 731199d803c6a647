"""Small servers that speak vLLM's dialect over the engine: one that conforms, and some with a fault planted behind it.

The model is a random llama of two layers in fast numerics, so that legal schedules really differ in rounding.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from warmcold.engine import Engine, ProbeEvent, SamplingParams, Seeded, Stepped, UsageError
from warmcold.fixtures.graph import serialise
from warmcold.fixtures.llama import LlamaConfig, LlamaLayer, write_llama

PAGE = 16
CONFIG = LlamaConfig(
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    hidden=64,
    intermediate=96,
    vocab=97,
    context_length=1024,
    rope_theta=10000.0,
    epsilon=1e-5,
)
_GENAI = {
    "model": {
        "type": "llama",
        "context_length": CONFIG.context_length,
        "vocab_size": CONFIG.vocab,
        "eos_token_id": 0,
        "decoder": {
            "filename": "model.onnx",
            "num_attention_heads": CONFIG.heads,
            "num_key_value_heads": CONFIG.kv_heads,
            "head_size": CONFIG.head_dim,
            "num_hidden_layers": CONFIG.layers,
            "hidden_size": CONFIG.hidden,
            "inputs": {
                "input_ids": "input_ids",
                "attention_mask": "attention_mask",
                "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value",
            },
            "outputs": {
                "logits": "logits",
                "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
        },
    }
}

FAULTS = ("swapped", "late", "stale", "saltless", "overstated", "crowded")
"""Keys and values swapped on a hit; the first token after a hit skipped; the last page of a hit holds older rows; salts
ignored; a page more reported than there is; a hit after somebody else's request has one number off by less than rounding."""


def write_model(directory: Path) -> Path:
    """The random llama as a directory that the engine loads."""
    source = np.random.default_rng(0)

    def weight(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        return (source.standard_normal(shape) * scale * shape[0] ** -0.5).astype(np.float32)

    def layers() -> Iterator[LlamaLayer]:
        ones = np.ones(CONFIG.hidden, np.float32)
        inner, narrow = CONFIG.heads * CONFIG.head_dim, CONFIG.kv_heads * CONFIG.head_dim
        for _ in range(CONFIG.layers):
            yield LlamaLayer(
                attention_norm=ones,
                query=weight(CONFIG.hidden, inner, scale=2),
                key=weight(CONFIG.hidden, narrow, scale=2),
                value=weight(CONFIG.hidden, narrow),
                output=weight(inner, CONFIG.hidden, scale=2),
                mlp_norm=ones,
                gate=weight(CONFIG.hidden, CONFIG.intermediate),
                up=weight(CONFIG.hidden, CONFIG.intermediate),
                down=weight(CONFIG.intermediate, CONFIG.hidden),
            )

    embedding = weight(CONFIG.vocab, CONFIG.hidden, scale=3)
    model = write_llama(CONFIG, embedding, layers(), np.ones(CONFIG.hidden, np.float32), format="fused")
    directory.mkdir(exist_ok=True)
    (directory / "model.onnx").write_bytes(serialise(model))
    (directory / "genai_config.json").write_text(json.dumps(_GENAI))
    return directory


class Model:
    """The engine behind a server, one request at a time, with at most one fault."""

    def __init__(self, engine: Engine, fault: str | None = None) -> None:
        self._fault = fault
        self._logits: list[NDArray[np.float32]] = []
        self._hit = 0
        self._before: tuple[int, ...] = ()
        self._crowded = False
        self._older: list[tuple[NDArray[Any], NDArray[Any]]] | None = None
        self._engine = engine.fresh(probe=self._probe, page_size=PAGE, pages=2048)
        self.lock = threading.Lock()

    def _probe(self, event: ProbeEvent) -> None:
        if isinstance(event, Stepped):
            self._logits.append(np.array(event.logits))
        if isinstance(event, Seeded) and event.n:
            self._hit = event.n
            self._spoil(event.state, event.n)

    def _spoil(self, state: Any, n: int) -> None:
        for layer in range(CONFIG.layers):
            keys, values = state.physical(layer, 0), state.physical(layer, 1)
            if self._fault == "swapped":
                swapped = keys[0, :, :n].copy()
                keys[0, :, :n], values[0, :, :n] = values[0, :, :n], swapped
            if self._crowded:
                values[0, 0, 0, 0] *= 1 + 2**-14
            if self._fault == "stale" and n > PAGE:
                keys[0, :, n - PAGE : n], values[0, :, n - PAGE : n] = keys[0, :, :PAGE], values[0, :, :PAGE]

    def _fed(self, prompt: Sequence[int], salt: str | None) -> Sequence[int]:
        """`late` looks up what would be a hit, and then leaves out the token that follows it."""
        if self._fault != "late":
            return prompt
        cut = self._cut(prompt, salt)
        return [*prompt[:cut], *prompt[cut + 1 :]] if 0 < cut < len(prompt) - 1 else prompt

    def _cut(self, prompt: Sequence[int], salt: str | None) -> int:
        identity = self._engine.identity(salt)
        held = {tokens for owner, tokens, _ in self._engine.observe().entries if owner == identity}
        stops = range(PAGE, len(prompt), PAGE)
        return max((stop for stop in stops if tuple(prompt[:stop]) in held), default=0)

    def stream(self, prompt: Sequence[int], count: int, salt: str | None) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Tokens with the logits `[V]` that chose them. Closing it cancels the turn."""
        self._logits.clear()
        self._hit = 0
        earlier, self._before = self._before, tuple(prompt)
        self._crowded = self._fault == "crowded" and self._before[: len(earlier)] != earlier
        salt = None if self._fault == "saltless" else salt
        turn = self._engine.stream(
            self._fed(prompt, salt), SamplingParams(max_new_tokens=count, ignore_eos=True), salt=salt
        )
        try:
            for step in turn:
                if step.token is not None:
                    yield step.token, self._logits[-1]
        finally:
            turn.close()

    @property
    def cached(self) -> int:
        """What the last turn says that it reused."""
        return self._hit + PAGE if self._fault == "overstated" and self._hit else self._hit


def _shown(row: NDArray[np.float32], count: int) -> dict[str, float]:
    wide = row.astype(np.float64)
    scores = wide - wide.max()
    scores -= np.log(np.exp(scores).sum())
    return {f"token_id:{token}": float(scores[token]) for token in np.argsort(-scores, kind="stable")[:count]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: Model
    counts = True

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Version and models."""
        card = {"id": "tiny", "owned_by": "vllm", "max_model_len": CONFIG.context_length}
        found = {"/version": {"version": "0.32.0"}, "/v1/models": {"data": [card]}}.get(self.path)
        self._answer(200 if found else 404, found or {"detail": "Not Found"})

    def do_POST(self) -> None:
        """Completions, and a tokenizer of one id per character."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._answer(200, {"tokens": [ord(character) % CONFIG.vocab for character in body["prompt"]]})
        elif self.path == "/v1/completions":
            with self.model.lock:
                self._complete(body)
        else:
            self._answer(404, {"detail": "Not Found"})

    def _complete(self, body: Mapping[str, Any]) -> None:
        if len(body["prompt"]) + body["max_tokens"] > CONFIG.context_length:
            message = f"maximum context length is {CONFIG.context_length} tokens"
            return self._answer(400, {"error": {"message": message, "code": 400}})
        try:
            turn = self.model.stream(body["prompt"], body["max_tokens"], body.get("cache_salt"))
            return self._stream(turn) if body.get("stream") else self._whole(body, list(turn))
        except UsageError as error:
            return self._answer(400, {"error": {"message": str(error), "code": 400}})

    def _whole(self, body: Mapping[str, Any], steps: Sequence[tuple[int, NDArray[np.float32]]]) -> None:
        tokens = [token for token, _ in steps]
        shown = [_shown(row, body["logprobs"]) for _, row in steps]
        details = {"cached_tokens": self.model.cached} if self.counts and self.model.cached else None
        self._answer(
            200,
            {
                "choices": [{"text": "", "token_ids": tokens, "logprobs": {"top_logprobs": shown}}],
                "usage": {"prompt_tokens": len(body["prompt"]), "prompt_tokens_details": details},
            },
        )

    def _stream(self, turn: Iterator[tuple[int, NDArray[np.float32]]]) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for token, _ in turn:
                self.wfile.write(f"data: {json.dumps({'choices': [{'token_ids': [token]}]})}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            turn.close()  # type: ignore[attr-defined]  # a generator

    def _answer(self, status: int, content: Mapping[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(engine: Engine, fault: str | None = None, *, counts: bool = True) -> Iterator[str]:
    """A server on a free port of the loopback; its URL. It ends with the block."""
    handler: Callable[..., Any] = type("Handler", (_Handler,), {"model": Model(engine, fault), "counts": counts})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        with threadpool_limits(limits=1, user_api="blas"):  # more threads may share a product out differently each time
            yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
