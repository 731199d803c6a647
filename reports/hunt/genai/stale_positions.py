"""onnxruntime-genai, Qwen-VL family (also its text decoders): rewind_to keeps the position offset of what it dropped.

The first append computes an offset between index and rotary position: each pad token in it counts one less. rewind_to drops
those tokens but keeps the offset, so whatever is appended next gets shifted positions: after rewind_to(n) silently wrong keys
and logits, after rewind_to(0) a negative position, which ONNX Runtime refuses. Nothing that stays holds a pad token.

Usage: python stale_positions.py MODEL_DIR
Ends with 1: shown, 0: not shown, 2: this release cannot load the model. Needs onnxruntime_genai and numpy only.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime_genai as og

config = json.loads((Path(sys.argv[1]) / "genai_config.json").read_text())["model"]
PAD = config["pad_token_id"]
print("onnxruntime-genai", og.__version__, "| model type", config["type"], "| pad", PAD, flush=True)
try:
    model = og.Model(sys.argv[1])
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
    return np.array(g.get_logits(), dtype=np.float32).reshape(-1)[-config["vocab_size"] :]


def positions(g):
    try:
        return np.array(g.get_input("position_ids")).reshape(3, -1)[0].tolist()
    except Exception:
        return "not shown by this release"


kept, more = [11, 12, 13], [21, 22]
legal = [generator(kept, more), generator([*kept, *more]), generator(*([token] for token in [*kept, *more]))]
spread = float(np.ptp(np.stack([logits(g) for g in legal]), axis=0).max())


def rewound(*dropped):
    """kept + dropped appended, rewind_to(3), more appended."""
    warm = generator([*kept, *dropped])
    warm.rewind_to(len(kept))
    warm.append_tokens(np.array(more, dtype=np.int32))
    off = min(float(np.abs(logits(warm) - logits(g)).max()) for g in legal)
    print(f"append {[*kept, *dropped]}, rewind_to(3), append {more}:")
    print("   positions", positions(warm), "must be", positions(legal[0]))
    print("   best token", int(logits(warm).argmax()), "must be", int(logits(legal[0]).argmax()))
    print(f"   logits off all {len(legal)} legal schedules by at least {off}; these lie within {spread}", flush=True)
    return off > spread


control = rewound(14, 15, 16)
shown = rewound(14, PAD, PAD) and not control
warm = generator([*kept, 14, PAD, PAD])
warm.rewind_to(0)
try:
    warm.append_tokens(np.array(more, dtype=np.int32))
    print("rewind_to(0), append: positions", positions(warm), "must be", positions(generator(more)))
except Exception as error:
    print("rewind_to(0), append fails:", str(error).split("Message: ")[-1][:150])
print("no verdict: the control without pad tokens goes wrong too" if control else "shown" if shown else "not shown")
sys.exit(int(shown))
