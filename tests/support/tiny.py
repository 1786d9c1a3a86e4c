#!/usr/bin/env python3
"""Small random checkpoints whose norm gains and outlier channels exercise every fold.

Each preset is a complete Hugging Face model directory. Weights are a pure function of (preset, seed); every tensor has
its own generator, so a preset can grow without disturbing the others.
Usage: tiny.py --preset llama-tied --out DIR [--seed 0] [--shards 2] [--dtype F32|BF16|F16]; --preset all.
"""
import argparse
import pathlib
import zlib

import numpy as np
from tensors import encode, write_model

# 192 = 12 * 16, 128 = 2^7, 320 = 20 * 16 and 544 = 68 * 8 have Hadamard matrices that we generate; 200 = 100 * 2 has none
# (it needs --rotation random). All but 200 are multiples of 32 and so can be quantized.
PRESETS = {
    "llama-tied": dict(family="llama", hidden=192, heads=6, kv=2, head_dim=32, inter=384, layers=3, tied=True),
    "llama-rope3": dict(family="llama", hidden=128, heads=4, kv=2, head_dim=32, inter=256, layers=3, tied=False,
                        rope=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                  original_max_position_embeddings=32)),
    "llama-bias": dict(family="llama", hidden=128, heads=4, kv=1, head_dim=32, inter=256, layers=2, tied=False,
                       attention_bias=True, mlp_bias=True),
    "mistral": dict(family="mistral", hidden=192, heads=4, kv=2, head_dim=64, inter=384, layers=2, tied=False),
    "qwen2": dict(family="qwen2", hidden=200, heads=5, kv=1, head_dim=40, inter=256, layers=3, tied=False),
    "qwen2-q": dict(family="qwen2", hidden=544, heads=17, kv=1, head_dim=32, inter=256, layers=2, tied=True),
    "qwen3": dict(family="qwen3", hidden=320, heads=4, kv=2, head_dim=64, inter=384, layers=3, tied=True),
}
ARCHITECTURE = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
                "qwen3": "Qwen3ForCausalLM"}
NO_HADAMARD = {"qwen2"}
VOCAB = 320
TORCH = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class Builder:
    def __init__(self, preset, seed, hidden):
        self.preset, self.seed, self.tensors = preset, seed, {}
        self.outliers = self.rng("outliers").choice(hidden, size=4, replace=False)

    def rng(self, name):
        return np.random.default_rng([self.seed, zlib.crc32(f"{self.preset}/{name}".encode())])

    def linear(self, name, rows, cols, std=1.0, bias=False, writes_residual=False):
        rng = self.rng(name)
        w = rng.standard_normal((rows, cols)) * std / np.sqrt(cols)
        w[:, rng.choice(cols, size=max(1, cols // 64), replace=False)] *= 4.0
        if writes_residual:
            w[self.outliers] *= 5.0
        self.tensors[name + ".weight"] = w
        if bias:
            self.tensors[name + ".bias"] = 0.5 * self.rng(name + ".bias").standard_normal(rows)

    def gain(self, name, n):
        self.tensors[name + ".weight"] = np.exp(self.rng(name).uniform(np.log(0.5), np.log(3.0), n))

    def embedding(self, name, hidden, std):
        w = self.rng(name).standard_normal((VOCAB, hidden)) * std
        w[:, self.outliers] *= 4.0
        self.tensors[name + ".weight"] = w


def build(preset, seed=0, **overrides):
    """({name: float64 array}, config). Overrides change the preset's entries, e.g. hidden=256."""
    c = dict(PRESETS[preset], **overrides)
    family, hidden, head_dim, inter = c["family"], c["hidden"], c["head_dim"], c["inter"]
    attention_bias, mlp_bias = c.get("attention_bias", False), c.get("mlp_bias", False)
    b = Builder(preset, seed, hidden)
    b.embedding("model.embed_tokens", hidden, 0.06 if c["tied"] else 0.3)
    for i in range(c["layers"]):
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        for name, heads in (("q", c["heads"]), ("k", c["kv"]), ("v", c["kv"])):
            b.linear(f"{attn}.{name}_proj", heads * head_dim, hidden, bias=attention_bias or family == "qwen2")
        b.linear(f"{attn}.o_proj", hidden, c["heads"] * head_dim, 0.5, attention_bias, writes_residual=True)
        if family == "qwen3":
            b.gain(f"{attn}.q_norm", head_dim)
            b.gain(f"{attn}.k_norm", head_dim)
        b.linear(f"{mlp}.gate_proj", inter, hidden, bias=mlp_bias)
        b.linear(f"{mlp}.up_proj", inter, hidden, bias=mlp_bias)
        b.linear(f"{mlp}.down_proj", hidden, inter, 0.7, mlp_bias, writes_residual=True)
        b.gain(f"model.layers.{i}.input_layernorm", hidden)
        b.gain(f"model.layers.{i}.post_attention_layernorm", hidden)
    b.gain("model.norm", hidden)
    if not c["tied"]:
        b.linear("lm_head", VOCAB, hidden, 0.8)
    config = dict(model_type=family, architectures=[ARCHITECTURE[family]], hidden_size=hidden,
                  num_hidden_layers=c["layers"], intermediate_size=inter, num_attention_heads=c["heads"],
                  num_key_value_heads=c["kv"], head_dim=head_dim, vocab_size=VOCAB, hidden_act="silu",
                  rms_norm_eps=1e-6 if family.startswith("qwen") else 1e-5, max_position_embeddings=2048,
                  rope_theta=10000.0, tie_word_embeddings=c["tied"])
    if family == "llama":
        config.update(attention_bias=attention_bias, mlp_bias=mlp_bias)
    if "rope" in c:
        config["rope_scaling"] = c["rope"]
    return b.tensors, config


def make(directory, preset, seed=0, dtype="F32", shards=1, **overrides):
    tensors, config = build(preset, seed, **overrides)
    config["torch_dtype"] = TORCH[dtype]
    return write_model(directory, {n: encode(w, dtype) for n, w in tensors.items()}, config, shards)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--preset", required=True, choices=[*PRESETS, "all"])
    ap.add_argument("--out", required=True, type=pathlib.Path, help="directory; with --preset all, its parent")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--shards", type=int, default=1)
    ap.add_argument("--dtype", default="F32", choices=list(TORCH))
    a = ap.parse_args()
    for preset in PRESETS if a.preset == "all" else [a.preset]:
        out = a.out / preset if a.preset == "all" else a.out
        print(make(out, preset, a.seed, a.dtype, a.shards))


if __name__ == "__main__":
    main()
