"""How much memory a position of capacity takes, against what its keys and values are.

NumPy reports its arrays to `tracemalloc`, so the peak of a step is exact. What does not grow with the capacity (weights,
activations, logits) cancels: two capacities are run, and the difference is divided. ONNX Runtime's own tensors are not
seen: a growing graph on `ort` has no figure.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

from ..contract.request import SamplingParams
from ..engine import Engine
from .arms import EngineArm, planted
from .figures import Figure, cache_bytes

STEADY, GROWING = 1.25, 1.75
"""Most that was promised: the cache itself, or the old and the twice as large new one, and a quarter for everything else."""


def memory(arm: EngineArm, capacity: int) -> list[Figure]:
    """Peak bytes a position of capacity: at a full cache, and while it doubles. `capacity` a power of two."""
    if arm.engine.options.backend == "ort" and not arm.engine.spec.shared_buffer:
        return []
    own = cache_bytes(arm.engine.spec.geometry)
    found = []
    for name, start, bound in (("memory, full", 1, STEADY), ("memory, growing", 2, GROWING)):
        _peak(arm.engine, capacity // 2, capacity // 2 // start)  # whatever is made only once is made here
        small, large = (_peak(arm.engine, size, size // start) for size in (capacity // 2, capacity))
        each = (large - small) / (capacity - capacity // 2)
        found.append(
            Figure(
                name=name,
                arm=arm.name,
                against="cache",
                samples=(each / own,),
                ours=each,
                theirs=own,
                unit="bytes a position",
                bound=bound,
            )
        )
    return found


def _peak(engine: Engine, capacity: int, start: int) -> int:
    """Most bytes during a turn of a few tokens that ends at `capacity` or, from a full `start`, grows to it."""
    new = min(8, capacity // 4)
    held = start - new if start == capacity else start
    alone = engine.fresh(pages=0, min_capacity=start, chunk_size=new)
    prompt = [index % engine.spec.vocab_size for index in range(held + new)]

    def run() -> None:
        session = planted(alone, prompt[:held])
        session.generate(prompt, SamplingParams(max_new_tokens=0))

    return traced_peak(run)


def traced_peak(run: Callable[[], object]) -> int:
    """Most bytes that `run` had allocated at once, beside what was there before."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
