"""The questions that `warmcold bench` answers, one function each. Every answer is a list of figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..contract.errors import UsageError
from ..engine import Engine
from ..graph.load import load_graph
from .arms import Arm, EngineArm, Prompts, RawArm
from .figures import Figure, Sizes, compared, interleaved
from .memory import memory

DECODE = {"native-fast": 2.0}
"""Most that a decode step may take, in raw ONNX Runtime's."""

WARM = {"native-fast": 1.5, "native-invariant": 2.0, "ort": 1.5}
"""Most that a warm turn may take, in cold prefills of its new tokens. For shared buffers: a growing graph copies its past."""

LEAST_WEIGHTS = 64 << 20
"""Bytes of stored weights below which nothing is promised: Python's own time and memory outweigh the model's."""


def bench(
    path: Path, *, backends: Sequence[str], quick: bool, threads: int, say: Callable[[str], None]
) -> tuple[Sizes, list[Figure]]:
    """All figures of one model. `say` hears what is being measured. Raises as `Engine.load`."""
    arms, raw = _open(path, backends, threads)
    engine = arms[0].engine
    if not engine.spec.has_state:
        raise UsageError(f"{path}: the model keeps nothing between steps, so there is nothing to compare")
    sizes = Sizes.fitting(engine.max_context, quick=quick)
    figures: list[Figure] = []
    for what, answers in _questions(arms, raw, sizes):
        say(what)
        figures += answers()
    for arm in arms:
        arm.engine.close()
    judged = _weight_bytes(engine) >= LEAST_WEIGHTS
    return sizes, figures if judged else [replace(figure, bound=None) for figure in figures]


def _weight_bytes(engine: Engine) -> int:
    graph = load_graph(engine.spec.graph_path)
    return sum(file.stat().st_size for file in (graph.path, *graph.external_files()))


def _open(path: Path, backends: Sequence[str], threads: int) -> tuple[list[EngineArm], RawArm]:
    """An arm for each backend and numerics, all on one stream of prompts, and the yardstick."""
    ort = Engine.load(path, backend="ort", threads=threads)
    prompts = Prompts(ort.spec.vocab_size)
    arms = [EngineArm("ort", ort, prompts)] if "ort" in backends else []
    if "native" in backends:
        for numerics in ("fast", "invariant"):
            engine = Engine.load(path, backend="native", numerics=numerics)
            arms.insert(0, EngineArm(f"native-{numerics}", engine, prompts))
    return arms, RawArm(ort, prompts)


def _questions(
    arms: Sequence[EngineArm], raw: RawArm, sizes: Sizes
) -> Iterator[tuple[str, Callable[[], list[Figure]]]]:
    yield "prefill and decode against raw ONNX Runtime", partial(requests, arms, raw, sizes)
    yield "the first token, warm against cold", partial(first_token, arms, sizes)
    yield "a warm turn as the history grows", partial(turns, arms, raw, sizes)
    yield "memory", lambda: [found for arm in arms for found in memory(arm, sizes.capacity)]


def requests(arms: Sequence[EngineArm], raw: RawArm, sizes: Sizes) -> list[Figure]:
    """A cold request's prefill and its median decode step, each in raw ONNX Runtime's."""
    every: list[Arm] = [*arms, raw]
    found = interleaved(sizes.rounds, {arm.name: partial(arm.request, sizes.prompt, sizes.decode) for arm in every})
    prefill = {name: [first for first, _ in rounds] for name, rounds in found.items()}
    decode = {name: [statistics.median(steps) for _, steps in rounds] for name, rounds in found.items()}
    return [
        replace(compared(what, arm.name, raw.name, series[arm.name], series[raw.name]), bound=bounds.get(arm.name))
        for what, series, bounds in ((f"prefill of {sizes.prompt}", prefill, {}), ("decode step", decode, DECODE))
        for arm in arms
    ]


def first_token(arms: Sequence[EngineArm], sizes: Sizes) -> list[Figure]:
    """The first token of a long prompt of which all but the new tokens is held, in that of the same prompt cold."""
    held = sizes.cold - sizes.new
    runs: dict[tuple[str, str], Callable[[], float]] = {}
    for arm in arms:
        runs[arm.name, "warm"] = partial(arm.conversation(held), sizes.new)
        runs[arm.name, "cold"] = partial(arm.cold, sizes.cold)
    found = interleaved(sizes.rounds, runs)
    name = f"first token of {sizes.cold}, {held} held"
    return [compared(name, arm.name, "cold", found[arm.name, "warm"], found[arm.name, "cold"]) for arm in arms]


def turns(arms: Sequence[EngineArm], raw: RawArm, sizes: Sizes) -> list[Figure]:
    """A turn of `new` tokens on each history, in a cold prefill of as many, in raw ONNX Runtime's call on the same
    history, and, for four times the tokens on the longest history, in the turn of `new`.

    The second tells what the engine adds to the model call: it must not grow with the history. A warm turn itself does,
    by attention.
    """
    new, longest = sizes.new, sizes.histories[-1]
    runs: dict[tuple[str, int, int], Callable[[], float]] = {}
    every: list[Arm] = [*arms, raw]
    for arm in every:
        for history in sizes.histories:
            turn = arm.conversation(history)
            runs[arm.name, history, new] = partial(turn, new)
        runs[arm.name, longest, 4 * new] = partial(turn, 4 * new)
    for one in arms:
        runs[one.name, 0, new] = partial(one.cold, new)
    found = interleaved(sizes.rounds, runs)
    return [figure for arm in arms for figure in _turn_figures(arm, raw.name, sizes, found)]


def _turn_figures(
    arm: EngineArm, raw: str, sizes: Sizes, found: dict[tuple[str, int, int], list[float]]
) -> Iterator[Figure]:
    name, new, longest = arm.name, sizes.new, sizes.histories[-1]
    for history in sizes.histories:
        bound = WARM[name] if arm.engine.spec.shared_buffer and history == longest else None
        ours = found[name, history, new]
        cold = compared(f"turn of {new} on {history}", name, f"cold {new}", ours, found[name, 0, new])
        yield replace(cold, bound=bound)
        yield compared(f"turn of {new} on {history}", name, raw, ours, found[raw, history, new])
    more, once = found[name, longest, 4 * new], found[name, longest, new]
    yield compared(f"turn of {4 * new} on {longest}", name, f"turn of {new}", more, once)
