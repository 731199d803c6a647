"""llama-cpp-python: after load_state a sliding-window model loses its window at the next prefix match (default settings).

The conversation, on one Llama with default settings (so swa_full is on), W the window:
  1. a prompt A of W tokens, one token generated
  2. load_state(save_state()), as LlamaRAMCache does on a hit, or a server that swaps conversations
  3. A and the reply, one token generated
  4. the first W - 2 tokens of A
Turn 4 reuses W - 3 positions. A restored cache starts writing at cell 0, which holds position 0; the window masks that for
position W, so turn 3 is written over it, although the cache has full size and room. Turn 4 needs position 0 again, and
llama_memory_seq_rm answers True.

Usage: python swa_load_state.py MODEL.gguf [WINDOW]    (gemma3, cohere2, ...; the window is 16 in those of make_models.py)
Ends with 1: shown (the last line says so), 0: not shown. Needs llama_cpp and numpy only.
"""

import sys

import llama_cpp
import numpy as np

path, window = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 16
draw = np.random.RandomState(0)
print("llama_cpp", llama_cpp.__version__, flush=True)


def load():
    return llama_cpp.Llama(path, n_ctx=2 * window + 64, n_threads=1, verbose=False)


def logits(llm):
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, -1), (llm.n_vocab(),)).copy()


def turn(llm, prompt, count):
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


def conversation(prompt, restored):
    llm = load()
    reply, _, _ = turn(llm, prompt, 1)
    if restored:
        llm.load_state(llm.save_state())
    turn(llm, prompt + reply, 1)
    seen = turn(llm, prompt[: window - 2], 6)
    return *seen, llama_cpp.llama_memory_seq_pos_min(llama_cpp.llama_get_memory(llm.ctx), 0)


def fed(prompt, rows):
    """The logits after the prompt on a Llama that holds nothing, so many tokens to a call."""
    llm = load()
    for at in range(0, len(prompt), rows):
        llm.eval(prompt[at : at + rows])
    return logits(llm)


shown = 0
for trial in range(5):
    prompt = [int(token) for token in draw.randint(3, 256, window)]
    warm, seen, reused, least = conversation(prompt, True)
    control, same, again, whole = conversation(prompt, False)
    asked = prompt[: window - 2]
    legal = np.stack([same, *(fed(asked, rows) for rows in (len(asked), 1, 2, 5, len(asked) - 1))])
    spread, off = float(np.ptp(legal, axis=0).max()), float(np.abs(legal - seen).max(axis=1).min())
    shown += off > spread and reused == again
    print(
        f"prompt {trial}: {reused} of {len(asked)} reused ({again} without load_state), least position held {least} ({whole})"
    )
    print(f"   with load_state {warm}, without {control}, on a fresh Llama {turn(load(), asked, 6)[0]}")
    print(
        f"   logits off all {len(legal)} legal schedules by at least {off:.3g}; these lie within {spread:.3g}",
        flush=True,
    )
print(f"{'shown' if shown else 'not shown'} by {shown} of 5 prompts")
sys.exit(int(shown > 0))
