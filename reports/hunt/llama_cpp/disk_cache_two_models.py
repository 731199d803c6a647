"""llama-cpp-python: LlamaDiskCache is keyed by token ids alone, so one model answers on what another one computed.

The default directory is ".cache/llama_cache" in the working directory, whatever the model. A state that model A left is loaded
into model B when the shapes agree (another fine-tune, say): B then answers on keys and values that A's weights made. The script
keeps the cache in a directory that it removes.

Usage: python disk_cache_two_models.py MODEL_A.gguf MODEL_B.gguf    (the same architecture and sizes, other weights)
Ends with 1: shown (the last line says so), 0: not shown. Needs llama_cpp and numpy only (diskcache comes with llama_cpp).
"""

import sys
import tempfile

import llama_cpp
import numpy as np

first, second = sys.argv[1:3]
draw = np.random.RandomState(0)
before = [int(token) for token in draw.randint(3, 256, 40)]
prompt = before + [int(token) for token in draw.randint(3, 256, 3)]
print("llama_cpp", llama_cpp.__version__, flush=True)


def load(path):
    return llama_cpp.Llama(path, n_ctx=256, n_threads=1, verbose=False)


def ask(path, prompt, cache=None):
    """The tokens of one create_completion of a new Llama, and how many tokens of the prompt were reused."""
    llm = load(path)
    if cache:
        llm.set_cache(llama_cpp.LlamaDiskCache(cache))
    first, tokens, decode, sample = [], [], llm._ctx.decode, llm.sample

    def heard(batch):
        first.append(llm.n_tokens)
        decode(batch)

    def drawn(*args, **more):
        tokens.append(sample(*args, **more))
        return tokens[-1]

    llm._ctx.decode, llm.sample = heard, drawn
    llm.create_completion(prompt, max_tokens=12, temperature=0.0)
    return tokens, first[0]


def after(context):
    """The logits of model B after the context, by four legal schedules."""
    rows = []
    for step in (len(context), 1, 2, 7):
        llm = load(second)
        for at in range(0, len(context), step):
            llm.eval(context[at : at + step])
        rows.append(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, -1), (llm.n_vocab(),)).copy())
    return np.stack(rows)


with tempfile.TemporaryDirectory() as shared, tempfile.TemporaryDirectory() as own:
    ask(first, before, shared)  # yesterday, model A
    warm, reused = ask(second, prompt, shared)  # today, model B, the same working directory
    ask(second, before, own)
    control, again = ask(second, prompt, own)  # the control: what model B left itself
cold, _ = ask(second, prompt)
print(f"   model B on A's cache, {reused} of {len(prompt)} reused: {warm}")
print(f"   model B on its own,   {again} of {len(prompt)} reused: {control}\n   model B, no cache: {cold}")
at = next((i for i, pair in enumerate(zip(warm, cold, strict=False)) if pair[0] != pair[1]), None)
if at is None or not reused or control != cold:
    print("not shown" if control == cold else "no verdict: the control goes wrong too")
    sys.exit(0)
legal = after(prompt + cold[:at])
lead, spread = float((legal[:, cold[at]] - legal[:, warm[at]]).min()), float(np.ptp(legal, axis=0).max())
print(f"   token {at}: the right one leads by {lead:.3g}; {len(legal)} legal schedules lie within {spread:.3g}")
print("shown" if lead > spread else "not shown")
sys.exit(int(lead > spread))
