"""onnxruntime-genai: append_tokens after generate_next_token never computes the last generated token.

A chat turn ends by its token limit, by a stop text or by the user, so not by an end token. The next turn is appended to the
same generator ("continuous decoding"). The sequence holds the last generated token and the attention mask counts it, but the
model never saw it: its row of keys and values is whatever the buffer held.

Usage: python lost_token.py MODEL_DIR [true|false for past_present_share_buffer]
Ends with 1: shown, 0: not shown, 2: this release cannot load the model. Needs onnxruntime_genai and numpy only.
"""

import sys

import numpy as np
import onnxruntime_genai as og

SHARE = len(sys.argv) < 3 or sys.argv[2] == "true"
print("onnxruntime-genai", og.__version__, "| past_present_share_buffer", SHARE, flush=True)
try:
    model = og.Model(sys.argv[1])
    append = og.Generator.append_tokens
except Exception as error:
    print("cannot be tried:", str(error)[:200])
    sys.exit(2)


def generator(*chunks):
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=64, do_sample=False, past_present_share_buffer=SHARE)
    made = og.Generator(model, params)
    for chunk in chunks:
        append(made, np.array(chunk, dtype=np.int32))
    return made


def logits(g):
    return np.array(g.get_logits(), dtype=np.float32).reshape(-1)


def keys(g, n):
    """Of layer 0: [heads, n, head size]."""
    return np.array(g.get_output("present.0.key"), np.float32)[0, :, :n]


prompt, more = [11, 12, 13, 14, 15], [21, 22]
warm = generator(prompt)
for _ in range(3):  # the caller stops here, at no end token
    warm.generate_next_token()
try:
    append(warm, np.array(more, dtype=np.int32))
except Exception as error:
    print("shown: the second append_tokens fails:", str(error)[:300])
    sys.exit(1)
tokens = [int(token) for token in warm.get_sequence(0)]
said = tokens[5:8]

# The same tokens on generators that generated nothing: five legal ways to feed them.
ways = [
    [prompt, *([token] for token in said), more],
    [tokens],
    [[token] for token in tokens],
    [prompt, [*said, *more]],
    [[*prompt, *said], more],
]
legal = [logits(generator(*way))[-len(logits(warm)) :] for way in ways]
spread = float(np.ptp(np.stack(legal), axis=0).max())
off = min(float(np.abs(logits(warm) - other).max()) for other in legal)
print("sequence", tokens, "of which generated", said)
print("continued: best token", int(logits(warm).argmax()), "first logits", logits(warm)[:4].tolist())
print("fed anew:  best token", int(legal[0].argmax()), "first logits", legal[0][:4].tolist())
print(f"the continued one is off all {len(legal)} legal schedules by at least {off}; these lie within {spread}")
try:
    left, right = keys(warm, len(tokens)), keys(generator(*ways[0]), len(tokens))
    print("keys of layer 0, largest difference by position:", np.abs(left - right).max(axis=(0, 2)).tolist())
    print("   of position 7 the continued one holds", left[0, 7, :4].tolist(), "and must", right[0, 7, :4].tolist())
except Exception as error:
    print("this release does not show keys:", str(error)[:100])
print("shown" if off > spread else "not shown")
sys.exit(int(off > spread))
