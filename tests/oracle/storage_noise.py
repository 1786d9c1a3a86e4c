"""The control arm of bf16 storage: the unfolded source with the rounding error that bf16 storage would bring.

Every matrix element moves by a uniform draw from half a bf16 unit in the last place to either side, which is the
distribution of bf16's rounding error, and stays in float32. Gains do not move, as the fold stores exact ones.
"""
import numpy as np


def jitter(w, rng):
    magnitude = np.abs(np.where(w == 0, 1.0, w))
    ulp = np.exp2(np.floor(np.log2(magnitude)) - 7)
    return w + ulp * rng.uniform(-0.5, 0.5, w.shape)


def control(weights, seed):
    rng = np.random.default_rng(seed)
    return {n: w if n.endswith("norm.weight") else jitter(w, rng) for n, w in sorted(weights.items())}
