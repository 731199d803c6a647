"""onnxruntime-genai: rewind_to on an int8 KV cache without a shared buffer writes outside it, and the process dies.

The script plays it in a child process: the same calls without rewind_to first (the control), then with it.

Usage: python kvint8_rewind.py MODEL_DIR   (a model whose past and present keys and values are int8)
Ends with 1: shown, 0: not shown, 2: this release cannot load the model. Needs onnxruntime_genai and numpy only.
"""

import subprocess
import sys

import numpy as np
import onnxruntime_genai as og


def play(path, rewinds):
    """Append 24, drop some if told, append 2, generate 8; ends the process with 2 where the model does not load."""
    try:
        model = og.Model(path)
        append = og.Generator.append_tokens
    except Exception as error:
        print("cannot be tried:", str(error)[:200])
        sys.exit(2)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=64, do_sample=False, past_present_share_buffer=False)
    for n in (20, 12, 5, 1):
        g = og.Generator(model, params)
        prompt = np.array([11 + (7 * i) % 200 for i in range(24)], dtype=np.int32)
        append(g, prompt if rewinds else prompt[:n])
        if rewinds:
            g.rewind_to(n)
        append(g, np.array([21, 22], dtype=np.int32))
        for _ in range(8):
            g.generate_next_token()
        print([int(token) for token in g.get_sequence(0)][n:], flush=True)


if len(sys.argv) > 2:
    play(sys.argv[1], sys.argv[2] == "rewind")
    sys.exit(0)
print("onnxruntime-genai", og.__version__, flush=True)
ran = {}
for way in ("plain", "rewind"):
    done = subprocess.run([sys.executable, __file__, sys.argv[1], way], capture_output=True, text=True, check=False)
    ran[way] = done.returncode
    print(f"{way}: ended with {done.returncode}; {done.stdout.strip() or 'nothing printed'}")
    print("  ", " ".join(done.stderr.split())[:200])
if ran["plain"]:
    print("the control does not run: no verdict")
    sys.exit(2)
print("shown" if ran["rewind"] < 0 else "not shown")
sys.exit(int(ran["rewind"] < 0))
