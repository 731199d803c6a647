"""llama-cpp-python as a subject: `Llama.generate` and its prefix match, sessions by `save_state` and `load_state`.

What was fed is seen at the one place where the `Llama` object calls `llama_decode`; keys and values are read from what
`llama_state_seq_get_data` writes. The matched arm replays the calls with `llama_decode` on contexts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct
from typing_extensions import override

from ...contract.errors import RefusedError, SubjectError
from ...contract.observation import Call, Kv, Observation
from ...contract.scenario import Settings, Turn
from ...contract.subject import Capabilities, Instance, Operation, Recompute, Subject
from ...contract.verdict import Level
from ..options import Positions, converted, texts
from .replay import Foreign, Replay, read_state, recurrent

_KV = {"f32": 0, "f16": 1, "q8_0": 8}
"""ggml's numbers for them."""


class LlamaCppOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`n_ctx`, `n_batch` in positions. `way`: `generate`, which matches prefixes itself, or `n_tokens` set and `eval` called.

    `sessions`: `state`, one Llama whose state is saved and loaded when another session's turn comes; `reload`, at every turn;
    `objects`, one Llama for each.
    """

    n_ctx: Positions = 512
    n_batch: Positions = 512
    kv: Literal["f32", "f16", "q8_0"] = "f16"
    flash_attn: Literal["off", "on"] = "off"
    way: Literal["generate", "eval"] = "generate"
    sessions: Literal["state", "reload", "objects"] = "state"
    swa_full: Literal["on", "off"] = "on"


class LlamaCpp(Subject):
    """One GGUF file; its options are `LlamaCppOptions`. SubjectError for a file, option or installation that will not do.

    A prompt that is just what the cache holds would be sampled from the last call's logits, with no call to compare: they are
    marked as stale, as after `load_state`, so that the library feeds the last token again. With sliding windows a restored
    cache is written in another order, and sums are rounded otherwise: there is no matched arm then, unless every session
    has its own Llama.
    """

    name = "llama_cpp"
    model: Path

    def __init__(self, model: Path | str, *, threads: int = 2, **options: object) -> None:
        self.options = converted(LlamaCppOptions, options, self.name)
        self.model = Path(model)
        if not self.model.is_file():
            raise SubjectError(f"{self.model}: no such file; give a .gguf file")
        self.library = _import()
        self._threads = threads
        self._first = self.load()
        self.max_context = min(int(self._first.n_ctx()), self.options.n_ctx)
        self.vocab_size = int(self._first.n_vocab())
        self.heads = int(self.library.llama_model_n_head_kv(self._first.model))
        self.recurrent = recurrent(self.library, self._first.model)
        self.window = int(self.library.llama_model_n_swa(self._first.model))
        self._matched = not self.window or (self.options.sessions == "objects" and self.options.swa_full == "on")
        self.capabilities = self._declared()

    def _declared(self) -> Capabilities:
        operations: set[Operation] = {"sessions", "new", "cancel"}
        if not (self.window and self._matched):
            operations.add("fork")
        return Capabilities(
            level=Level.L1 if not self._matched else Level.L4 if self._shows_kv() else Level.L2,
            operations=frozenset(operations),
            has=frozenset({"feeds"}),
            boundaries=tuple(sorted({self.options.n_batch, self.window or 256, 256})),
        )

    def load(self) -> Foreign:
        """A new `Llama` over the file, which the operating system maps once. SubjectError where the library refuses it."""
        options, kv = self.options, _KV[self.options.kv]
        try:
            return self.library.Llama(
                str(self.model), n_threads=self._threads, n_threads_batch=self._threads, type_k=kv, type_v=kv,
                flash_attn=options.flash_attn == "on", swa_full=options.swa_full == "on", n_gpu_layers=0,
                verbose=False, n_ctx=options.n_ctx, n_batch=options.n_batch,
            )  # fmt: skip
        except (ValueError, RuntimeError) as error:
            raise SubjectError(f"{self.model}: llama_cpp cannot load it with {texts(options)}: {error}") from error

    @override
    def open(self, settings: Settings, *, poison: float | None) -> LlamaCppInstance:
        """Neither page sizes nor poison mean anything here."""
        return LlamaCppInstance(self)

    @override
    def loop(self) -> Replay | None:
        return Replay(self.library, self._first, self.heads) if self._matched else None

    @override
    def recompute(self) -> Recompute:
        return Replay(self.library, self._first, self.heads).recompute

    @override
    def encode(self, text: str) -> Sequence[int]:
        try:
            return [int(token) for token in self._first.tokenize(text.encode(), add_bos=False)]
        except RuntimeError as error:
            raise RefusedError(f"{self.model} cannot encode {text!r:.40}: {error}; give token ids") from error

    @override
    def describe(self) -> dict[str, object]:
        system = self.library.llama_print_system_info().decode()
        return {
            "llama_cpp": self.library.__version__, "system": system, **texts(self.options), "threads": self._threads,
        }  # fmt: skip

    @override
    def close(self) -> None:
        self._first.close()

    def _shows_kv(self) -> bool:
        """Whether the keys and values of a model like this one can be read from its state."""
        self._first.eval([0, 0])
        seen = read_state(self.library, self._first.ctx, self.heads)
        self._first.reset()
        return seen is not None


class LlamaCppInstance(Instance):
    """The `Llama` objects of one scenario."""

    def __init__(self, subject: LlamaCpp) -> None:
        self._subject = subject
        self._apart = subject.options.sessions == "objects"
        self._objects: dict[str, Foreign] = {} if self._apart else {"": subject.load()}
        self._saved: dict[str, Foreign] = {}
        self._entered: str | None = None

    @override
    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        longest = self._subject.max_context
        if not 0 < len(prompt) <= longest:
            raise RefusedError(f"the prompt has {len(prompt)} tokens; llama_cpp takes 1 to n_ctx={longest}")
        return _play(self._subject, self._enter(op.session), op, prompt)

    @override
    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        """On a new `Llama`."""
        fresh = self._subject.load()
        try:
            return _play(self._subject, fresh, op, prompt)
        finally:
            fresh.close()

    @override
    def new_session(self, session: str) -> None:
        if self._apart and session in self._objects:
            self._objects[session].reset()
        self._saved.pop(session, None)
        if self._entered == session:
            self._entered = None

    @override
    def fork(self, session: str, to: str) -> None:
        if self._apart:
            self._object(to).load_state(self._object(session).save_state())
            return
        self._leave()
        self.new_session(to)
        if session in self._saved:
            self._saved[to] = self._saved[session]

    def _object(self, session: str) -> Foreign:
        if session not in self._objects:
            self._objects[session] = self._subject.load()
        return self._objects[session]

    def _enter(self, session: str) -> Foreign:
        """The `Llama` that is to answer, holding what the session retains."""
        if self._apart:
            return self._object(session)
        llama = self._objects[""]
        if self._entered != session or self._subject.options.sessions == "reload":
            self._leave()
            if session in self._saved:
                llama.load_state(self._saved[session])
            else:
                llama.reset()
            self._entered = session
        return llama

    def _leave(self) -> None:
        if self._entered is not None:
            self._saved[self._entered] = self._objects[""].save_state()
            self._entered = None


class _StopError(Exception):
    """The turn is cancelled before its next call."""


class _Ear:
    """Stands where a `Llama` calls `llama_decode`, and writes down what goes by."""

    def __init__(self, subject: LlamaCpp, llama: Foreign, most: int | None) -> None:
        self._subject, self._llama, self._most = subject, llama, most
        self.calls: list[Call] = []
        self.reused: int | None = None
        self.seeded: Kv | None = None

    def __enter__(self) -> _Ear:
        self._decode = self._llama._ctx.decode
        self._llama._ctx.decode = self
        return self

    def __exit__(self, *_: object) -> None:
        self._llama._ctx.decode = self._decode
        self.begin()

    def __call__(self, batch: Foreign) -> None:
        if self._most is not None and len(self.calls) == self._most:
            raise _StopError
        self.begin()
        raw = batch.batch
        ids, positions = (np.array([fed[: raw.n_tokens]], np.int64) for fed in (raw.token, raw.pos))
        self._decode(batch)
        row = self._subject.library.llama_get_logits_ith(self._llama.ctx, -1)
        logits = np.ctypeslib.as_array(row, (self._subject.vocab_size,)).copy()
        self.calls.append(Call(ids=ids, positions=positions, logits=logits))

    def begin(self) -> None:
        """Before the first call, or after a turn that made none: what it starts from."""
        if self.reused is None:
            self.reused, self.seeded = int(self._llama.n_tokens), self.kv()

    def kv(self) -> Kv | None:
        """What the cache holds now."""
        return read_state(self._subject.library, self._llama.ctx, self._subject.heads)


def _play(subject: LlamaCpp, llama: Foreign, op: Turn, prompt: Sequence[int]) -> Observation:
    """One turn on a `Llama` that holds the session's state. Nothing here ends it at an end token: `generate` does not."""
    if op.cancel_after == 0:
        return Observation(tokens=(), stop="cancelled")
    tokens: list[int] = []
    llama._requires_eval = True  # as after load_state
    replies = _generate if subject.options.way == "generate" else _evaluate
    stop = "length"
    with _Ear(subject, llama, op.cancel_after) as ear:
        try:
            for token in islice(replies(llama, prompt), max(op.max_new_tokens, 1)):
                tokens.append(int(token))
                if llama.n_tokens >= subject.max_context:
                    break
        except _StopError:
            stop = "cancelled"
    reused = ear.reused or 0
    return Observation(
        tokens=tuple(tokens[: op.max_new_tokens]), stop=stop, reused=reused, prefilled=len(prompt) - reused,
        calls=tuple(ear.calls), seeded=ear.seeded, end=ear.kv(),
    )  # fmt: skip


def _generate(llama: Foreign, prompt: Sequence[int]) -> Iterator[int]:
    yield from llama.generate(list(prompt), temp=0.0)


def _evaluate(llama: Foreign, prompt: Sequence[int]) -> Iterator[int]:
    held = [int(token) for token in llama.input_ids[: llama.n_tokens]]
    same = (at for at, (old, new) in enumerate(zip(held, prompt, strict=False)) if old != new)
    llama.n_tokens = min(next(same, min(len(held), len(prompt))), len(prompt) - 1)
    if llama._ctx.kv_cache_seq_rm(-1, llama.n_tokens, -1) is False:
        llama.reset()  # a recurrent state, which cannot go back
    rest = list(prompt[llama.n_tokens :])
    while True:
        llama.eval(rest)
        rest = [llama.sample(temp=0.0)]
        yield rest[0]


def _import() -> Foreign:
    try:
        return import_module("llama_cpp")
    except (ImportError, RuntimeError, OSError) as error:
        raise SubjectError(f"llama_cpp cannot be imported ({error}); run: pip install 'warmcold[llama-cpp]'") from error
