"""llama-cpp-python's own server on a free port, with at most one fault planted. It prints its address, then serves.

`python -m tests.llama_cpp_server MODEL.gguf [late] [cache] [unscored]`: a prefix match takes one token too many; earlier
states are kept (`--cache`); no log-probabilities (`--logits_all false`).
"""

from __future__ import annotations

import socket
import sys
from typing import Any


def plant() -> None:
    """The first token that differs counts as if it matched, wherever the state goes on behind it."""
    import llama_cpp

    generate = llama_cpp.Llama.generate

    def late(self: Any, tokens: Any, *rest: Any, **named: Any) -> Any:
        held = self._input_ids
        at = next((at for at, (a, b) in enumerate(zip(held, tokens, strict=False)) if a != b), len(tokens))
        if 0 < at < min(len(held), len(tokens) - 1):
            self.input_ids[at] = tokens[at]
        return generate(self, tokens, *rest, **named)

    llama_cpp.Llama.generate = late


def serve(model: str, faults: set[str]) -> None:
    """Until killed."""
    import uvicorn
    from llama_cpp.server.app import create_app
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    if "late" in faults:
        plant()
    settings = ModelSettings(
        model=model,
        n_ctx=1024,
        n_threads=1,
        n_threads_batch=1,
        verbose=False,
        cache="cache" in faults,
        logits_all="unscored" not in faults,
    )
    app = create_app(server_settings=ServerSettings(), model_settings=[settings])
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    serve(sys.argv[1], set(sys.argv[2:]))
