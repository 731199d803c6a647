"""llama-cpp-python: with swa_full=False a prefix match reuses positions whose window is gone.

Llama(swa_full=False) gives a sliding-window layer window + n_ubatch cells (rounded up to 256), so old positions are
overwritten. generate() trusts llama_memory_seq_rm, which answers True though the positions before the cut are no longer held.
llama-server asks llama_memory_seq_pos_min and computes the prompt again; the Python object does not ask.
The conversation: a long prompt, then one that shares a short beginning with it (a system prompt, say).

Usage: python swa_not_full.py MODEL.gguf [WINDOW]
Ends with 1: shown (the last line says so), 0: not shown. Needs llama_cpp and numpy only.
"""

import sys

import llama_cpp
import numpy as np

path, window = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 16
cells = -(-(window + 32) // 256) * 256
draw = np.random.RandomState(0)
print("llama_cpp", llama_cpp.__version__, flush=True)


def some(n):
    return [int(token) for token in draw.randint(3, 256, n)]


def load():
    return llama_cpp.Llama(
        path, n_ctx=2 * cells + 256, n_batch=32, n_ubatch=32, swa_full=False, n_threads=1, verbose=False
    )


def logits(llm):
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, -1), (llm.n_vocab(),)).copy()


def turn(llm, prompt, count=8):
    """Greedy tokens, the logits that chose the first, and how many tokens of the prompt were reused."""
    first, decode = [], llm._ctx.decode

    def heard(batch):
        first.append(llm.n_tokens)
        decode(batch)

    llm._ctx.decode = heard
    generator = llm.generate(prompt, temp=0.0)
    tokens, seen = [next(generator)], logits(llm)
    tokens += [next(generator) for _ in range(count - 1)]
    generator.close()
    llm._ctx.decode = decode
    return tokens, seen, first[0]


def fed(*calls):
    llm = load()
    for call in calls:
        llm.eval(call)
    return logits(llm)


long = some(cells + 3 * window + 64)
shared, tail = long[: 2 * window], some(6)
llm = load()
turn(llm, long, 1)
least = llama_cpp.llama_memory_seq_pos_min(llama_cpp.llama_get_memory(llm.ctx), 0)
warm, seen, reused = turn(llm, shared + tail)
short = load()  # the control: the same reuse after a first prompt that overwrote nothing
turn(short, shared + some(6), 1)
control, same, again = turn(short, shared + tail)
cold, whole, _ = turn(load(), shared + tail)
ways = [
    [shared, tail],
    [[t] for t in shared + tail],
    [shared[:window], shared[window:] + tail],
    [shared + tail[:1], tail[1:]],
]
legal = np.stack([same, whole, *(fed(*way) for way in ways)])
spread, off = float(np.ptp(legal, axis=0).max()), float(np.abs(legal - seen).max(axis=1).min())
print(f"after {len(long)} tokens the cache holds positions from {least} on; the next prompt reused 0 to {reused - 1}")
print(f"   warm {warm}\n   the same reuse after a short prompt ({again} reused) {control}\n   fresh Llama {cold}")
print(f"   logits off all {len(legal)} legal schedules by at least {off:.3g}; these lie within {spread:.3g}")
shown = reused > 0 and off > spread
print("shown" if shown else "not shown")
sys.exit(int(shown))
