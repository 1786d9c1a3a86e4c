#!/usr/bin/env python3
"""Float64 reference of the fold for llama, mistral, qwen2 and qwen3: untie, norm gains, residual R1, per-head R2.

Dense matrix products in the plainest order, no blocking, no fast transform: slow and obvious on purpose.
R comes from a safetensors file (`rotq rotation export`: F64 R1 and R2.<layer>) or is drawn by numpy from --seed.
--break reproduces one classic mistake, so that a parity gate can be seen to fail.
Usage: fold_oracle.py SRC DST [--rotations R.safetensors | --seed 7] [--dtype F32|BF16] [--break MISTAKE ...]
"""
import argparse
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from tensors import encode, read_file, read_json, read_model, values, write_model  # noqa: E402

MISTAKES = {
    "r4-half": "an R4 applied to down_proj's input although nothing applies its inverse at run time",
    "gain-after-r1": "the norm gain multiplied in after R1 instead of before",
    "no-final-gain": "the final gain set to one without folding it into the head",
    "no-v-bias": "v_proj's bias not rotated by R2",
    "no-writer-bias": "o_proj's and down_proj's biases not rotated by R1",
    "rotated-q-bias": "a reader's bias rotated although it is not in the residual stream",
    "r2-only-v": "R2 applied to v_proj but not undone in o_proj",
    "eps-dropped": "rms_norm_eps lost from the config, so that the loader's default applies",
}


def random_orthogonal(n, rng):
    q, r = np.linalg.qr(rng.standard_normal((n, n)))
    return q * np.sign(np.diag(r))  # the sign fix makes the draw Haar-distributed


def head_dim(config):
    natural = config["hidden_size"] // config["num_attention_heads"]
    return natural if config["model_type"] == "qwen2" else config.get("head_dim") or natural


def random_rotations(config, seed, r2=True):
    rng = np.random.default_rng(seed)
    r1 = random_orthogonal(config["hidden_size"], rng)
    layers = range(config["num_hidden_layers"])
    return r1, [random_orthogonal(head_dim(config), rng) for _ in layers] if r2 else None


def load_rotations(path, layers):
    stored = read_file(path)
    r2 = [values(stored[f"R2.{i}"]) for i in range(layers)] if "R2.0" in stored else None
    return values(stored["R1"]), r2


def fold(weights, config, r1, r2=None, mistakes=()):
    """Folded copies of ({name: float64}, config). r1 [H, H]; r2 a list of [head_dim, head_dim], or None."""
    unknown = set(mistakes) - set(MISTAKES)
    assert not unknown, unknown
    w, out = dict(weights), dict(config)
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    kv = config.get("num_key_value_heads", heads)

    def gain(name):
        g = w[name + ".weight"]
        w[name + ".weight"] = np.ones_like(g)
        return g

    def read(name, g):
        W = w[name + ".weight"]
        w[name + ".weight"] = (W @ r1) * g if "gain-after-r1" in mistakes else (W * g) @ r1

    def write(name):
        w[name + ".weight"] = r1.T @ w[name + ".weight"]
        if name + ".bias" in w and "no-writer-bias" not in mistakes:
            w[name + ".bias"] = r1.T @ w[name + ".bias"]

    def rotate_heads(attn, R):
        V, O = w[attn + ".v_proj.weight"], w[attn + ".o_proj.weight"]
        d = len(R)
        w[attn + ".v_proj.weight"] = np.concatenate([R.T @ V[h * d:(h + 1) * d] for h in range(kv)])
        if "r2-only-v" not in mistakes:
            w[attn + ".o_proj.weight"] = np.hstack([O[:, h * d:(h + 1) * d] @ R for h in range(heads)])
        bias = attn + ".v_proj.bias"
        if bias in w and "no-v-bias" not in mistakes:
            w[bias] = (w[bias].reshape(kv, d) @ R).reshape(-1)

    if config["tie_word_embeddings"]:
        w["lm_head.weight"] = w["model.embed_tokens.weight"]
        out["tie_word_embeddings"] = False
    w["model.embed_tokens.weight"] = w["model.embed_tokens.weight"] @ r1
    for i in range(layers):
        p = f"model.layers.{i}"
        g = gain(p + ".input_layernorm")
        for name in ("q_proj", "k_proj", "v_proj"):
            read(f"{p}.self_attn.{name}", g)
        write(p + ".self_attn.o_proj")
        g = gain(p + ".post_attention_layernorm")
        read(p + ".mlp.gate_proj", g)
        read(p + ".mlp.up_proj", g)
        write(p + ".mlp.down_proj")
        if r2 is not None:
            rotate_heads(p + ".self_attn", r2[i])
        if "rotated-q-bias" in mistakes:
            b = w[f"{p}.self_attn.q_proj.bias"]
            w[f"{p}.self_attn.q_proj.bias"] = random_orthogonal(len(b), np.random.default_rng(3)) @ b
        if "r4-half" in mistakes:
            d = w[p + ".mlp.down_proj.weight"]
            w[p + ".mlp.down_proj.weight"] = d @ random_orthogonal(d.shape[1], np.random.default_rng(4))
    g = gain("model.norm")
    read("lm_head", np.ones_like(g) if "no-final-gain" in mistakes else g)
    if "eps-dropped" in mistakes:
        out["rms_norm_eps"] = 1e-2
    return w, out


def load(directory):
    return {n: values(t) for n, t in read_model(directory).items()}, read_json(pathlib.Path(directory) / "config.json")


def store(directory, weights, config, dtype="F32"):
    return write_model(directory, {n: encode(w, dtype) for n, w in weights.items()}, config)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("src", type=pathlib.Path)
    ap.add_argument("dst", type=pathlib.Path)
    ap.add_argument("--rotations", type=pathlib.Path)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--no-r2", action="store_true")
    ap.add_argument("--dtype", default="F32", choices=["F32", "BF16", "F16"])
    ap.add_argument("--break", dest="mistakes", nargs="*", default=[], choices=MISTAKES)
    a = ap.parse_args()
    weights, config = load(a.src)
    if a.rotations:
        r1, r2 = load_rotations(a.rotations, config["num_hidden_layers"])
    else:
        r1, r2 = random_rotations(config, a.seed)
    store(a.dst, *fold(weights, config, r1, None if a.no_r2 else r2, a.mistakes), a.dtype)


if __name__ == "__main__":
    main()
