"""llama-cpp-python: a load_state that fails leaves the object claiming tokens that its cache does not hold.

Llama.load_state sets input_ids and n_tokens first and calls llama_state_set_data afterwards. When that refuses the state
(here: saved without flash attention, loaded with it) it has emptied the cache, RuntimeError is raised, and input_ids and
n_tokens stay. The next generate() finds its prefix there, reuses it, and decodes the rest of the prompt on an empty cache:
wrong, with no error.

Usage: python failed_load_state.py MODEL.gguf
Ends with 1: shown (the last line says so), 0: not shown. Needs llama_cpp and numpy only.
"""

import sys

import llama_cpp
import numpy as np

draw = np.random.RandomState(0)
print("llama_cpp", llama_cpp.__version__, flush=True)


def some(n):
    return [int(token) for token in draw.randint(3, 256, n)]


def load(flash_attn=True):
    return llama_cpp.Llama(sys.argv[1], n_ctx=256, n_threads=1, verbose=False, flash_attn=flash_attn)


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


def fed(prompt, rows):
    llm = load()
    for at in range(0, len(prompt), rows):
        llm.eval(prompt[at : at + rows])
    return logits(llm)


before, prompt = some(40), []
saver = load(flash_attn=False)
turn(saver, before, 1)
llm = load()
try:
    llm.load_state(saver.save_state())
    print("not shown: the state was accepted")
    sys.exit(0)
except RuntimeError as error:
    held = llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(llm.ctx), 0) + 1
    print(f"load_state raised RuntimeError: {error}; n_tokens is {llm.n_tokens}, the cache holds {held} positions")
prompt = before + some(3)
warm, seen, reused = turn(llm, prompt)
healthy = load()  # the control: the same reuse, with no load_state
turn(healthy, before, 1)
_, same, again = turn(healthy, prompt)
cold, whole, _ = turn(load(), prompt)
legal = np.stack([same, whole, *(fed(prompt, rows) for rows in (1, 2, 7, len(prompt) - 1))])
spread, off = float(np.ptp(legal, axis=0).max()), float(np.abs(legal - seen).max(axis=1).min())
print(f"the next generate reused {reused} of {len(prompt)} tokens ({again} on a Llama that was not loaded)")
print(f"   after the failed load {warm}\n   fresh Llama           {cold}")
print(f"   logits off all {len(legal)} legal schedules by at least {off:.3g}; these lie within {spread:.3g}")
shown = reused > held and off > spread
print("shown" if shown else "not shown")
sys.exit(int(shown))
