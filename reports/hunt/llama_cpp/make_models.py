"""Tiny random GGUFs of several architectures for the reproductions (gguf + numpy). usage: make_models.py OUTDIR"""

import sys
from pathlib import Path

import gguf
import numpy as np

V, H, HD, NH, NKV, FF = 320, 64, 16, 4, 2, 96


def vocab(w, size=V):
    toks = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    toks += [chr(0x4E00 + n) for n in range(size - len(toks))]
    w.add_tokenizer_model("llama")
    w.add_token_list(toks)
    w.add_token_scores([0.0] * size)
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * (size - 259))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_space_prefix(False)


def build(out, arch, tensors, describe, seed=0):
    w = gguf.GGUFWriter(out, arch)
    w.add_context_length(4096)
    w.add_embedding_length(H)
    w.add_vocab_size(V)
    describe(w)
    vocab(w)
    r = np.random.RandomState(seed)

    def draw(*shape):
        step = 2.0 ** -(6 + round(np.log2(shape[-1]) / 2))
        return (r.randint(-127, 128, shape) * step).astype(np.float32)

    for name, value in tensors(draw).items():
        w.add_tensor(name, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def one(n=H):
    return np.ones(n, np.float32)


def common(w, layers, ff=FF):
    w.add_block_count(layers)
    w.add_feed_forward_length(ff)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_layer_norm_eps(1e-5)


def attn(w, window=None, kv=NKV):
    w.add_head_count(NH)
    w.add_head_count_kv(kv)
    w.add_rope_dimension_count(HD)
    w.add_rope_freq_base(10000.0)
    if window:
        w.add_sliding_window(window)


def block(d, i, ffn=True, norm2=True):
    b = f"blk.{i}."
    t = {
        b + "attn_norm.weight": one(),
        b + "attn_q.weight": d(NH * HD, H),
        b + "attn_k.weight": d(NKV * HD, H),
        b + "attn_v.weight": d(NKV * HD, H),
        b + "attn_output.weight": d(H, NH * HD),
    }
    return t | ffn_block(d, i, norm2)


def ffn_block(d, i, norm2=True):
    b = f"blk.{i}."
    t = {b + "ffn_gate.weight": d(FF, H), b + "ffn_up.weight": d(FF, H), b + "ffn_down.weight": d(H, FF)}
    if norm2:
        t[b + "ffn_norm.weight"] = one()
    return t


def top(d, out=True):
    t = {"token_embd.weight": d(V, H), "output_norm.weight": one()}
    if out:
        t["output.weight"] = d(V, H)
    return t


def llama(out, seed=0, layers=2):
    build(
        out,
        "llama",
        lambda d: top(d) | {k: v for i in range(layers) for k, v in block(d, i).items()},
        lambda w: (common(w, layers), attn(w)),
        seed,
    )


def cohere2(out, window=16):
    build(
        out,
        "cohere2",
        lambda d: top(d, False) | {k: v for i in range(4) for k, v in block(d, i, norm2=False).items()},
        lambda w: (common(w, 4), attn(w, window), w.add_logit_scale(1.0)),
    )


def gemma3(out, window=16):
    def tensors(d):
        t = top(d, False)
        for i in range(6):
            b = f"blk.{i}."
            t |= block(d, i) | {
                b + "post_attention_norm.weight": one(),
                b + "post_ffw_norm.weight": one(),
                b + "attn_q_norm.weight": one(HD),
                b + "attn_k_norm.weight": one(HD),
            }
        return t

    build(
        out, "gemma3", tensors, lambda w: (common(w, 6), attn(w, window), w.add_key_length(HD), w.add_value_length(HD))
    )


def mamba(out):
    di, ds, dr, dc = 2 * H, 8, 8, 4

    def tensors(d):
        t = top(d)
        for i in range(2):
            b = f"blk.{i}."
            t |= {
                b + "attn_norm.weight": one(),
                b + "ssm_in.weight": d(2 * di, H),
                b + "ssm_conv1d.weight": d(di, dc),
                b + "ssm_conv1d.bias": d(di),
                b + "ssm_x.weight": d(dr + 2 * ds, di),
                b + "ssm_dt.weight": d(di, dr),
                b + "ssm_dt.bias": d(di),
                b + "ssm_a": -np.abs(d(di, ds)) - np.float32(0.01),
                b + "ssm_d": d(di),
                b + "ssm_out.weight": d(H, di),
            }
        return t

    def desc(w):
        common(w, 2, 0)
        w.add_head_count(0)
        w.add_ssm_conv_kernel(dc)
        w.add_ssm_inner_size(di)
        w.add_ssm_state_size(ds)
        w.add_ssm_time_step_rank(dr)

    build(out, "mamba", tensors, desc)


def lfm2(out, window=None):
    kvs = [0, NKV, 0, NKV]

    def tensors(d):
        t = {"token_embd.weight": d(V, H), "token_embd_norm.weight": one()}
        for i, kv in enumerate(kvs):
            b = f"blk.{i}."
            t |= ffn_block(d, i) | {b + "attn_norm.weight": one()}
            if kv:
                t |= {
                    b + "attn_q_norm.weight": one(HD),
                    b + "attn_k_norm.weight": one(HD),
                    b + "attn_q.weight": d(H, H),
                    b + "attn_k.weight": d(kv * HD, H),
                    b + "attn_v.weight": d(kv * HD, H),
                    b + "attn_output.weight": d(H, H),
                }
            else:
                t |= {
                    b + "shortconv.conv.weight": d(H, 3),
                    b + "shortconv.in_proj.weight": d(3 * H, H),
                    b + "shortconv.out_proj.weight": d(H, H),
                }
        return t

    build(out, "lfm2", tensors, lambda w: (common(w, 4), attn(w, window, kvs), w.add_shortconv_l_cache(3)))


def qwen2(out):
    def tensors(d):
        t = top(d)
        for i in range(2):
            b = f"blk.{i}."
            t |= block(d, i) | {
                b + "attn_q.bias": d(NH * HD),
                b + "attn_k.bias": d(NKV * HD),
                b + "attn_v.bias": d(NKV * HD),
            }
        return t

    build(out, "qwen2", tensors, lambda w: (common(w, 2), attn(w)))


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    llama(out / "llama.gguf")
    llama(out / "llama_b.gguf", seed=1)
    cohere2(out / "cohere2.gguf")
    gemma3(out / "gemma3.gguf")
    mamba(out / "mamba.gguf")
    lfm2(out / "lfm2.gguf")
    lfm2(out / "lfm2_swa.gguf", 16)
    qwen2(out / "qwen2.gguf")
