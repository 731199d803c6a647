"""llama-cpp-python: with a LlamaRAMCache a sliding-window model answers a shared beginning wrongly (default settings).

create_completion, four requests on one Llama with set_cache(LlamaRAMCache()): a conversation, another one, the first one
continued (a cache hit, so load_state), and a new one that shares a beginning with the first. The last answer is another one
than that of the same Llama without a cache, and of a fresh one. The cause is that of swa_load_state.py.

Usage: python swa_ram_cache.py MODEL.gguf [WINDOW]
Ends with 1: shown (the last line says so), 0: not shown. Needs llama_cpp and numpy only.
"""

import sys

import llama_cpp
import numpy as np

path, window = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 16
draw = np.random.RandomState(0)
print("llama_cpp", llama_cpp.__version__, flush=True)


def some(n):
    return [int(token) for token in draw.randint(3, 256, n)]


def load():
    return llama_cpp.Llama(path, n_ctx=8 * window + 128, n_threads=1, verbose=False)


def answers(prompts, cache):
    """The tokens of each completion, and how many tokens of its prompt were reused."""
    llm = load()
    if cache:
        llm.set_cache(llama_cpp.LlamaRAMCache())
    found, decode, sample = [], llm._ctx.decode, llm.sample

    def heard(batch):
        found[-1][1].append(llm.n_tokens)
        decode(batch)

    def drawn(*args, **more):
        found[-1][0].append(sample(*args, **more))
        return found[-1][0][-1]

    llm._ctx.decode, llm.sample = heard, drawn
    for prompt in prompts:
        found.append(([], []))
        llm.create_completion(prompt, max_tokens=8, temperature=0.0)
    return [(tokens, starts[0]) for tokens, starts in found]


def lead(context, right, wrong):
    """How far the right token stands above the wrong one at the least, and how far four legal schedules lie apart."""
    rows = []
    for step in (len(context), 1, 2, 7):
        llm = load()
        for at in range(0, len(context), step):
            llm.eval(context[at : at + step])
        rows.append(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, -1), (llm.n_vocab(),)).copy())
    return float(min(row[right] - row[wrong] for row in rows)), float(np.ptp(np.stack(rows), axis=0).max())


shown = 0
for _ in range(10):
    system, one, two, more, new = some(window), some(window), some(2 * window), some(window), some(4)
    prompts = [system + one, two, system + one + more, system + new]
    try:
        cached, plain = answers(prompts, True)[-1], answers(prompts, False)[-1]
        fresh = answers(prompts[-1:], False)[-1]
    except RuntimeError:  # a reply that ends inside a character goes on until the context is full: another conversation
        continue
    at = next((i for i, pair in enumerate(zip(cached[0], plain[0], strict=False)) if pair[0] != pair[1]), None)
    if at is None or plain[0] != fresh[0]:
        continue
    ahead, spread = lead(prompts[-1] + plain[0][:at], plain[0][at], cached[0][at])
    if ahead <= spread:
        continue
    shown += 1
    if shown == 1:
        print(f"last request, {len(prompts[-1])} tokens\n   with LlamaRAMCache {cached[0]}, {cached[1]} reused")
        print(f"   without a cache    {plain[0]}, {plain[1]} reused\n   fresh Llama        {fresh[0]}")
        print(
            f"   token {at}: the right one leads by {ahead:.3g}; four legal schedules lie within {spread:.3g}",
            flush=True,
        )
print(f"{'shown' if shown else 'not shown'} by {shown} of 10 conversations")
sys.exit(int(shown > 0))
