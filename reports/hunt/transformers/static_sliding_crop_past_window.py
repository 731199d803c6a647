"""transformers: StaticCache with a sliding window: crop() past the window neither refuses nor restores.

Once the window has slid, the rows before it are gone. crop(-2) needs two of them again, does not refuse, and leaves the last
two rows in their place.

Usage: python static_sliding_crop_past_window.py      (it makes its own tiny model with drawn weights, in float64)
Ends with 1: shown (the last line says so), 0: not shown. Needs transformers and torch only.
"""

import sys
import warnings
from inspect import signature

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
print("transformers", transformers.__version__, "| torch", torch.__version__, "| float64", flush=True)


def build(kind, attention="eager", **more):
    size = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "head_dim": 8}
    size |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    size |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.3}
    config = AutoConfig.for_model(kind, **(size | more))
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).double().eval()


@torch.no_grad()
def feed(ids, cache=None):
    """One forward on top of the cache (the model makes one if None): the last position's logits, and the cache."""
    name = next(n for n in ("cache", "past_key_values", "cache_params") if n in signature(model.forward).parameters)
    out = model(input_ids=torch.tensor([ids]), use_cache=True, **({} if cache is None else {name: cache}))
    return out.logits[0, -1], getattr(out, name, None) or getattr(out, "past_key_values", None)


@torch.no_grad()
def uncached(ids):
    """The logits after ids by six legal schedules without a cache: alone, and with more tokens behind them."""
    behind = [[3 + i for i in range(n)] for n in (0, 1, 2, 5, 9, 20)]
    return [model(input_ids=torch.tensor([ids + b]), use_cache=False).logits[0, len(ids) - 1] for b in behind]


def verdict(warm, legal):
    """Shown if the warm logits are further from every legal schedule than any two of those are from each other."""
    spread = (torch.stack(legal).amax(0) - torch.stack(legal).amin(0)).max().item()
    off = min((warm - one).abs().max().item() for one in legal)
    print("warm: best token", int(warm.argmax()), "first logits", [round(x, 6) for x in warm[:4].tolist()])
    print("cold: best token", int(legal[0].argmax()), "first logits", [round(x, 6) for x in legal[0][:4].tolist()])
    print(f"warm is off all {len(legal)} legal schedules by at least {off:.3g}; these lie within {spread:.3g}")
    print("shown" if not off <= spread else "not shown")
    sys.exit(int(not off <= spread))


model = build("mistral", sliding_window=16)
context, more = [(7 * i) % 90 + 3 for i in range(20)], [50]


def filled(n):
    cache = StaticCache(config=model.config, max_cache_len=64)
    feed(context[:14], cache)
    for token in context[14:n]:
        feed([token], cache)
    return cache


cache = filled(20)
print("is_croppable:", getattr(cache, "is_croppable", "no such property"))
try:
    cache.crop(-2)
except Exception as error:
    print(f"not shown: crop refuses: {type(error).__name__}: {str(error)[:120]}")
    sys.exit(0)
warm, _ = feed(more, cache)
straight, _ = feed(more, filled(18))  # the control: the same calls, nothing cropped
verdict(warm, [*uncached(context[:18] + more), straight])
