"""onnxruntime-genai: a rewind_to that is refused has already cut the sequence.

rewind_to cuts the token sequence first and asks the cache afterwards. When that refuses (recurrent state without a snapshot, a
window that has slid), the exception leaves sequence, positions and cache at different lengths. Whoever takes the refusal for
what it says and goes on with the generator gets numbers of neither the old sequence nor the shorter one.

Usage: python refused_rewind.py MODEL_DIR [PROMPT_LENGTH]
Ends with 1: shown, 0: not shown, 2: this release cannot load the model. Needs onnxruntime_genai and numpy only.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime_genai as og

length = int(sys.argv[2]) if len(sys.argv) > 2 else 12
config = json.loads((Path(sys.argv[1]) / "genai_config.json").read_text())["model"]
print("onnxruntime-genai", og.__version__, "| model type", config["type"], flush=True)
try:
    model = og.Model(sys.argv[1])
except Exception as error:
    print("cannot be tried:", str(error)[:200])
    sys.exit(2)


def generator(*chunks):
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=128, do_sample=False)
    made = og.Generator(model, params)
    for chunk in chunks:
        made.append_tokens(np.array(chunk, dtype=np.int32))
    return made


def logits(g):
    return np.array(g.get_logits(), dtype=np.float32).reshape(-1)[-config["vocab_size"] :]


def legal(tokens, more):
    """Logits after tokens + more, fed in four ways to generators that nothing was ever dropped from."""
    half = len(tokens) // 2
    ways = [[tokens, more], [[*tokens, *more]], [tokens[:half], tokens[half:], more], [tokens, *([t] for t in more)]]
    return np.stack([logits(generator(*way)) for way in ways])


prompt, more = [10 + (7 * i) % 200 for i in range(length)], [21, 22]
n, shown = length // 2, False
torn = generator(prompt)
try:
    torn.rewind_to(n)
    print(f"append {length}, rewind_to({n}): done, nothing to show")
except Exception as error:
    left = len(torn.get_sequence(0))
    print(f"append {length}, rewind_to({n}) refused: {str(error)[:200]}")
    print(f"   length of the sequence now {left}")
    try:
        torn.append_tokens(np.array(more, dtype=np.int32))
        old, cut = legal(prompt, more), legal(prompt[:n], more)
        spread = max(float(np.ptp(rows, axis=0).max()) for rows in (old, cut))
        off = [float(np.abs(rows - logits(torn)).max(axis=1).min()) for rows in (old, cut)]
        print(
            f"   append {more}: logits off the old sequence's by at least {off[0]}, off the shorter one's by {off[1]}"
        )
        print(f"   four legal schedules of either lie within {spread}")
        shown = left != length and min(off) > spread
    except Exception as again:
        print("   going on fails:", str(again)[:160])
        shown = left != length
print("shown" if shown else "not shown")
sys.exit(int(shown))
