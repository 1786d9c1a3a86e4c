#!/usr/bin/env python3
"""Synthetic bf16 llama checkpoints of real sizes, written fast: what a benchmark reads, with nothing to learn from.

Weights are windows into one block of normal draws (a converter cannot tell); gains lie between 0.5 and 1.5.
  h2048   hidden 2048, 16 layers, the shapes of Llama-3.2-1B (tied, 128256 words)     2.47 GB
  h5120   hidden 5120 = 20 * 256, 4 layers with the widths of a 27B model             2.6 GB
Usage: make_model.py SHAPE DIR
"""
import json
import pathlib
import sys

import numpy as np

SHAPES = {
    "h2048": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                  head_dim=64, vocab_size=128256),
    "h5120": dict(hidden_size=5120, intermediate_size=17408, num_hidden_layers=4, num_attention_heads=40, num_key_value_heads=8,
                  head_dim=128, vocab_size=8192),
}
SHARD_BYTES = 5 << 30


def shapes(c):
    h, inter, hd = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (h,)
        yield p + "post_attention_layernorm.weight", (h,)
        for name, shape in (("q", (q, h)), ("k", (kv, h)), ("v", (kv, h)), ("o", (h, q))):
            yield f"{p}self_attn.{name}_proj.weight", shape
        for name, shape in (("gate", (inter, h)), ("up", (inter, h)), ("down", (h, inter))):
            yield f"{p}mlp.{name}_proj.weight", shape
    yield "model.norm.weight", (h,)


def bf16(x):
    u = x.astype(np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def make(shape, directory):
    """Writes the model; returns its weight bytes."""
    config = SHAPES[shape]
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    block = bf16(0.02 * rng.standard_normal(1 << 24, dtype=np.float32)).tobytes()
    gain = bf16(rng.uniform(0.5, 1.5, config["hidden_size"])).tobytes()
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dims in sorted(shapes(config)):
        size = 2 * int(np.prod(dims))
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with open(directory / "model.safetensors", "wb") as f:
        f.write(len(raw).to_bytes(8, "little") + raw)
        for name, dims in sorted(shapes(config)):
            left = 2 * int(np.prod(dims))
            start = 2 * int(rng.integers(0, len(block) // 4))
            while left:
                part = gain if len(dims) == 1 else block[start:start + left]
                f.write(part)
                left, start = left - len(part), 0
    with open(directory / "config.json", "w", encoding="utf-8") as f:
        json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **config, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
                   "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16", "max_position_embeddings": 4096}, f)
    # mlx_lm.convert insists on a tokenizer
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
                 "post_processor": None, "decoder": None, "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "b"}))
    return at


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(__doc__)
    print(f"{sys.argv[2]}: {make(sys.argv[1], sys.argv[2]) / 1e9:.2f} GB")
