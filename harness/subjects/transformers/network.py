"""A transformers model as the subject and its matched arm both call it, and how rows and states are read from a cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...contract.errors import SubjectError
from ...contract.observation import Array, Pair
from ..options import Natural, Positions

Foreign = Any
"""An object of torch or transformers: a tensor, a cache, a layer of one, a module. They have no types here."""

State = tuple[Foreign, Foreign, int | None]
"""Convolution and recurrent state of a layer, None where it has none; and the convolution's width."""

NOTHING: Pair = (np.zeros((0, 0, 0), np.float32), np.zeros((0, 0, 0), np.float32))
"""A layer that holds no rows."""

_LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


class TransformersOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cache`: DynamicCache(config), DynamicCache(), StaticCache, or whatever the model itself makes when given none.

    `way`: forward by forward, or left to `generate`. `empty`: how a session whose prompt shares nothing is emptied. `record`:
    `activate_past_recording`, so that windows can be cropped. `ask`: whether the cache's `is_croppable` is asked before `crop`;
    if not given, unless it records. `seed`: of the weights drawn where the directory has none. `capacity`: positions of a
    StaticCache.
    """

    cache: Literal["dynamic", "plain", "static", "model"] = "dynamic"
    way: Literal["forward", "generate"] = "forward"
    attn: Literal["eager", "sdpa"] = "eager"
    empty: Literal["reset", "crop", "fresh"] = "reset"
    record: Literal["no", "yes"] = "no"
    ask: Literal["yes", "no"] | None = None
    dtype: Literal["float32", "float64"] = "float32"
    seed: Natural = 0
    capacity: Positions | None = None

    @property
    def records(self) -> bool:
        """Whether the cache keeps what it would forget."""
        return self.record == "yes"

    @property
    def asks(self) -> bool:
        """Whether `is_croppable` decides."""
        return not self.records if self.ask is None else self.ask == "yes"


class Network:
    """One loaded model. SubjectError for a directory, option or installation that will not do."""

    def __init__(self, model: Path, options: TransformersOptions, threads: int) -> None:
        self.options = options
        self.torch, self.library = _import("torch"), _import("transformers")
        self.torch.set_num_threads(threads)
        self.library.logging.set_verbosity_error()
        if options.records and not hasattr(self.library.DynamicCache, "activate_past_recording"):
            raise SubjectError(
                f"option record=yes: transformers {self.library.__version__} cannot record; leave it out"
            )
        self.module, self.drawn = self._load(model)
        self._takes = set(signature(self.module.forward).parameters)
        self.past_name = "cache" if "cache" in self._takes else "past_key_values"  # renamed on the way to 5.40
        self.config = self.module.config.get_text_config(decoder=True)
        longest = next((n for name in _LONGEST if isinstance(n := getattr(self.config, name, None), int)), 2048)
        self.max_context = min(longest, options.capacity or longest)

    def _load(self, model: Path) -> tuple[Foreign, bool]:
        """The module, and whether its weights were drawn."""
        files = [model / name for name in ("config.json", "hf_config.json") if (model / name).is_file()]
        if not files:
            raise SubjectError(f"{model}: neither config.json nor hf_config.json; give a transformers model directory")
        try:
            return self._made(model, files[0])
        except Exception as error:  # whatever a library throws while loading is a reason to name, not a traceback
            raise SubjectError(f"{files[0]}: transformers cannot load it: {type(error).__name__}: {error}") from error

    def _made(self, model: Path, file: Path) -> tuple[Foreign, bool]:
        data = json.loads(file.read_text(encoding="utf-8"))
        maker, dtype, attn = _auto(self.library, data), getattr(self.torch, self.options.dtype), self.options.attn
        if list(model.glob("*.safetensors")):
            return maker.from_pretrained(model, dtype=dtype, attn_implementation=attn).eval(), False
        config = self.library.AutoConfig.for_model(**data)
        self.torch.manual_seed(self.options.seed)
        return maker.from_config(config, attn_implementation=attn).to(dtype).eval(), True

    def fresh(self) -> Foreign:
        """A cache that holds nothing; None where the model is to make its own."""
        kind, config = self.options.cache, self.module.config
        if kind == "model":
            return None
        if kind == "static":
            return self.library.StaticCache(config=config, max_cache_len=self.max_context)
        cache = self.library.DynamicCache(config=config) if kind == "dynamic" else self.library.DynamicCache()
        if self.options.records:
            cache.activate_past_recording()
        return cache

    def forward(self, tokens: Sequence[int], cache: Foreign, *, use_cache: bool = True) -> Foreign:
        """One call of the model on token ids `[rows]`: its output, logits `[1, rows, V]`; as `generate` calls it, `[1, 1, V]`."""
        more = {self.past_name: cache} if cache is not None else {}
        if use_cache and self.options.way == "generate":
            more |= {name: 1 for name in ("logits_to_keep", "num_logits_to_keep") if name in self._takes}
        with self.torch.no_grad():
            return self.module(input_ids=self.torch.tensor([list(tokens)]), use_cache=use_cache, **more)

    def recompute(self, tokens: Sequence[int], schedule: Sequence[int] | None) -> NDArray[np.float32]:
        """`[len(tokens), V]` in passes that each begin at position 0, so that no cache has a part in them."""
        parts, end = [], 0
        for rows in schedule or [len(tokens)]:
            end += rows
            parts.append(self.forward(tokens[:end], None, use_cache=False).logits[0, end - rows :])
        assert end == len(tokens), f"schedule covers {end} of {len(tokens)} tokens"
        return as_float(self.torch.cat(parts))

    def partial(self) -> bool:
        """Whether a layer keeps less than all positions, so that the library cannot rewind to wherever it is asked."""
        return any(_sliding(layer) or has_state(layer) for layer in getattr(self.fresh(), "layers", ()))


def visible(layer: Foreign, keys: Foreign, values: Foreign) -> Pair:
    """Of keys and values `[1, heads, length, dim]` what this layer of a cache still lets a next query see, without the 1."""
    size = getattr(layer, "sliding_window", None) or (layer.max_cache_len if _sliding(layer) else None)
    start = max(keys.shape[2] - (int(size) - 1), 0) if size is not None else 0
    return as_numpy(keys[0, :, start:]), as_numpy(values[0, :, start:])


def has_state(layer: Foreign) -> bool:
    """Whether this layer of a cache holds a convolution or recurrent state in place of rows."""
    return hasattr(layer, "conv_states")


def state_of(layer: Foreign, behind: int = 0) -> State:
    """Copies of the first convolution and recurrent state of a layer, and the kernel's width.

    `behind`: the convolution state so many positions ago, of a layer that records the past; the part that a next step sees.
    """
    conv, recurrent = layer.conv_states[0], layer.recurrent_states[0]
    if conv is not None:
        conv = conv[..., : conv.shape[-1] - behind][..., -layer.conv_kernel_size[0] :].clone()
    return conv, recurrent.clone() if recurrent is not None else None, layer.conv_kernel_size[0]


def arrays(state: State) -> Pair:
    """A state as a pair of `[heads or 1, positions or rows, channels]`."""
    conv, recurrent, _ = state
    first = as_numpy(conv.transpose(1, 2)) if conv is not None else NOTHING[0]
    return first, as_numpy(recurrent[0]) if recurrent is not None else NOTHING[1]


def as_numpy(tensor: Foreign) -> Array:
    """A copy that the caller owns."""
    array: Array = tensor.detach().contiguous().numpy().copy()
    return array


def as_float(tensor: Foreign) -> NDArray[np.float32]:
    """Likewise, as float32."""
    return as_numpy(tensor).astype(np.float32)


def _sliding(layer: Foreign) -> bool:
    return bool(getattr(layer, "is_sliding", False))


def _import(name: str) -> Foreign:
    try:
        return import_module(name)
    except ImportError as error:
        raise SubjectError(
            f"the transformers subject needs {name}; run: pip install 'warmcold[transformers]'"
        ) from error


def _auto(library: Foreign, data: Mapping[str, Foreign]) -> Foreign:
    """The automatic class that knows the architecture which the configuration names."""
    whole = any(str(name).endswith("ForConditionalGeneration") for name in data.get("architectures") or ())
    return library.AutoModelForImageTextToText if whole else library.AutoModelForCausalLM
