"""onnxruntime-genai: without a shared KV buffer, rewind_to(length - 1) is refused after generating, and done by half.

A generator that has generated holds one row of keys and values less than tokens. rewind_to(length - 1), which drops just the
last token, raises "Requested length of rewind is greater than the current length", though it is smaller. By then the sequence
has been cut and the rest has not: generating on gives tokens of neither the old nor the shorter sequence.

Usage: python half_rewind.py MODEL_DIR
Ends with 1: shown, 0: not shown, 2: this release cannot load the model. Needs onnxruntime_genai and numpy only.
"""

import sys

import numpy as np
import onnxruntime_genai as og

print("onnxruntime-genai", og.__version__, flush=True)
try:
    model = og.Model(sys.argv[1])
    rewind = og.Generator.rewind_to
except Exception as error:
    print("cannot be tried:", str(error)[:200])
    sys.exit(2)


def generator(share, *chunks):
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=64, do_sample=False, past_present_share_buffer=share)
    made = og.Generator(model, params)
    for chunk in chunks:
        made.append_tokens(np.array(chunk, dtype=np.int32))
    return made


def sequence(g):
    return [int(token) for token in g.get_sequence(0)]


def after_rewind(share):
    """Five tokens, four generated, one dropped, four generated: what rewind_to said, the length then, the sequence."""
    g = generator(share, [11, 12, 13, 14, 15])
    for _ in range(4):
        g.generate_next_token()
    length = len(sequence(g))
    try:
        rewind(g, length - 1)
        said = "done"
    except Exception as error:
        said = f"refused ({str(error)[:100]})"
    cut = len(sequence(g))
    for _ in range(4):
        g.generate_next_token()
    print(f"share_buffer {share}: rewind_to({length - 1}) of {length}: {said}; length then {cut}; then {sequence(g)}")
    return said, cut, sequence(g)


right = generator(False, [11, 12, 13, 14, 15])
for _ in range(8):
    right.generate_next_token()
right = sequence(right)
print("never rewound:", right)
print("Greedy choices are made again, so that both must go on as the one that was never rewound.")
_, _, control = after_rewind(True)
said, cut, torn = after_rewind(False)

at = next((i for i, pair in enumerate(zip(torn, right, strict=False)) if pair[0] != pair[1]), None)
if at is None or control != right[: len(control)]:
    print("not shown" if at is None else "no verdict: the control with a shared buffer goes wrong too")
    sys.exit(0)
# Is it a near tie? How far the right token stands above the one chosen, over four legal ways to feed what is before it.
before = right[:at]
ways = [[before], [[token] for token in before], [before[:5], before[5:]], [before[:-1], before[-1:]]]
rows = np.stack([np.array(generator(False, *way).get_logits(), np.float32).reshape(-1) for way in ways])
spread, lead = float(np.ptp(rows, axis=0).max()), float((rows[:, right[at]] - rows[:, torn[at]]).min())
print(
    f"position {at}: token {torn[at]}, must be {right[at]}, which leads by {lead}; {len(ways)} legal ways lie within {spread}"
)
print("shown" if lead > spread else "not shown")
sys.exit(int(lead > spread))
