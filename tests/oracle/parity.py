#!/usr/bin/env python3
"""Teacher-forced logit parity of two model directories through stock mlx-lm, in float32 on the CPU.

Prints worst and mean KL(ref || test) per position, argmax flips with the reference's top-2 margin, and max |dlogit|.
Weights are widened to float32 after loading: stored rounding counts, the arithmetic of the comparison does not.
Exit code 0 when worst KL <= --max-kl and nothing flipped. Preload OpenBLAS over mlx for speed (docs/testing.md).
Usage: parity.py REF TEST [--positions 64 --sequences 4] [--seed 1] [--max-kl 1e-7] [--json]
"""
import argparse
import dataclasses
import json
import pathlib
import sys

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.utils import load_model

mx.set_default_device(mx.cpu)


def load(directory, widen=True):
    model, _ = load_model(pathlib.Path(directory))
    if widen:
        model.update(tree_map(lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p,
                              model.parameters()))
    return model


def random_tokens(vocabulary, sequences=4, positions=64, seed=1):
    return np.random.default_rng(seed).integers(0, vocabulary, (sequences, positions))


def logits(directory, tokens, widen=True):
    """[positions, vocabulary] float64: every position of every sequence."""
    out = load(directory, widen)(mx.array(tokens)).astype(mx.float32)
    return np.array(out, dtype=np.float64).reshape(-1, out.shape[-1])


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@dataclasses.dataclass
class Comparison:
    positions: int
    kl_worst: float
    kl_mean: float
    flip_margins: list  # the reference's top-2 margin at each position whose argmax changed
    max_abs_logit: float

    def __str__(self):
        return (f"positions {self.positions}  KL worst {self.kl_worst:.3e} mean {self.kl_mean:.3e}  "
                f"flips {len(self.flip_margins)} (largest margin {max(self.flip_margins, default=0.0):.2e})  "
                f"max |dlogit| {self.max_abs_logit:.2e}")


def compare(reference, test):
    assert reference.shape == test.shape, (reference.shape, test.shape)
    assert np.isfinite(reference).all() and np.isfinite(test).all()
    lp, lq = log_softmax(reference), log_softmax(test)
    kl = np.maximum((np.exp(lp) * (lp - lq)).sum(-1), 0.0)
    top = np.sort(reference, axis=-1)[:, -2:]
    flipped = reference.argmax(-1) != test.argmax(-1)
    return Comparison(len(kl), float(kl.max()), float(kl.mean()), [float(m) for m in (top[:, 1] - top[:, 0])[flipped]],
                      float(np.abs(reference - test).max()))


def is_exact(c, max_kl=1e-7):
    """The gate for folds stored in float32."""
    return c.kl_worst <= max_kl and not c.flip_margins


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("ref"), ap.add_argument("test")
    ap.add_argument("--positions", type=int, default=64)
    ap.add_argument("--sequences", type=int, default=4)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--max-kl", type=float, default=1e-7)
    ap.add_argument("--json", action="store_true")
    a = ap.parse_args()
    vocabulary = json.loads((pathlib.Path(a.ref) / "config.json").read_text())["vocab_size"]
    tokens = random_tokens(vocabulary, a.sequences, a.positions, a.seed)
    c = compare(logits(a.ref, tokens), logits(a.test, tokens))
    ok = is_exact(c, a.max_kl)
    print(json.dumps(dataclasses.asdict(c)) if a.json else f"{c}  {'ok' if ok else 'DIFFERS'}")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
