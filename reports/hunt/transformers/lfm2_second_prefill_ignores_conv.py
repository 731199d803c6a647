"""transformers: LFM2: more than one token fed on a filled cache ignores the convolution state.

A second turn of a conversation: the tokens before it are missing from every convolution. Nothing is cropped.

Usage: python lfm2_second_prefill_ignores_conv.py      (it makes its own tiny model with drawn weights, in float64)
Ends with 1: shown (the last line says so), 0: not shown. Needs transformers and torch only.
"""

import sys
import warnings
from inspect import signature

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

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


model = build(
    "lfm2",
    layer_types=["conv", "full_attention", "conv", "full_attention"],
    conv_L_cache=3,
    block_auto_adjust_ff_dim=False,
)
prompt, more = [5, 6, 7, 8, 9, 10, 11, 12], [20, 21]
_, cache = feed(prompt)
warm, _ = feed(more, cache)
_, cache = feed(prompt)
for token in more:
    straight, _ = feed([token], cache)  # the control: one by one
verdict(warm, [*uncached(prompt + more), straight])
