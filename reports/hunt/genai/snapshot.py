"""onnxruntime-genai: snapshot_state after generate_next_token is filed one position too far.

snapshot_state notes the length of the sequence, which counts the token generated last; the recurrent state has not seen that
token yet. rewind_to(that length) restores the state, cuts the keys and values and appends on top: no error, other numbers.

Usage: python snapshot.py MODEL_DIR   (a model with recurrent state, such as qwen3_5_text)
Ends with 1: shown, 0: not shown, 2: this release cannot load the model or has no snapshot_state. Needs onnxruntime_genai and
numpy only.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime_genai as og

vocabulary = json.loads((Path(sys.argv[1]) / "genai_config.json").read_text())["model"]["vocab_size"]
print("onnxruntime-genai", og.__version__, flush=True)
try:
    model = og.Model(sys.argv[1])
    snapshot = og.Generator.snapshot_state
except Exception as error:
    print("cannot be tried:", str(error)[:200])
    sys.exit(2)


def generator(*chunks):
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=64, do_sample=False)
    made = og.Generator(model, params)
    for chunk in chunks:
        made.append_tokens(np.array(chunk, dtype=np.int32))
    return made


def logits(g):
    return np.array(g.get_logits(), dtype=np.float32).reshape(-1)[-vocabulary:]


def wrong(generated):
    """Whether the branch that starts at the snapshot has other logits than a generator that went there straight."""
    prompt, more = [11, 12, 13, 14, 15], [21, 22]
    g = generator(prompt)
    for _ in range(generated):
        g.generate_next_token()
    snapshot(g)
    tokens = [int(token) for token in g.get_sequence(0)]
    for _ in range(3):  # a branch that is then dropped
        g.generate_next_token()
    g.rewind_to(len(tokens))
    g.append_tokens(np.array(more, dtype=np.int32))
    ways = [
        [prompt, *([t] for t in tokens[5:]), more],
        [[*tokens, *more]],
        [[t] for t in [*tokens, *more]],
        [tokens, more],
    ]
    legal = np.stack([logits(generator(*way)) for way in ways])
    spread, off = float(np.ptp(legal, axis=0).max()), float(np.abs(legal - logits(g)).max(axis=1).min())
    print(f"5 appended, {generated} generated, snapshot_state, 3 generated, rewind_to({len(tokens)}), 2 appended:")
    print(f"   logits off all {len(ways)} legal schedules by at least {off}; these lie within {spread}", flush=True)
    return off > spread


control = wrong(0)
shown = wrong(2) and not control
print("no verdict: the control without generating goes wrong too" if control else "shown" if shown else "not shown")
sys.exit(int(shown))
