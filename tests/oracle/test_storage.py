"""Storing the fold in bf16 costs no more than rounding any model to bf16 does."""
import fold_oracle
import numpy as np
import parity
import pytest
import rotq
import storage_noise
import tensors
import tiny as tiny_models

SEEDS = range(4)


def losses(tiny, root, preset, rotation, seed):
    src = tiny(preset, seed=seed)
    rotq.convert(src, root / f"fold{seed}", "--rotation", rotation, "--seed", seed)
    stored = tensors.read_model(root / f"fold{seed}")
    assert {tag for tag, _ in stored.values()} == {"BF16"}
    weights, config = fold_oracle.load(src)
    arm = fold_oracle.store(root / f"control{seed}", storage_noise.control(weights, seed), config)
    tokens = parity.random_tokens(tiny_models.VOCAB)
    expected = parity.logits(src, tokens)
    return [parity.compare(expected, parity.logits(d, tokens)).kl_mean for d in (root / f"fold{seed}", arm)]


@pytest.mark.parametrize("preset", list(tiny_models.PRESETS))
def test_bf16_storage_loses_at_most_half_more_than_a_rounded_source(tiny, tmp_path, preset):
    rotation = "random" if preset in tiny_models.NO_HADAMARD else "hadamard"
    fold, arm = np.mean([losses(tiny, tmp_path, preset, rotation, seed) for seed in SEEDS], axis=0)
    print(f"{preset}: mean KL {fold:.3e} folded in bf16, {arm:.3e} in the control arm, ratio {fold / arm:.2f}")
    assert 0 < fold <= 1.5 * arm


def test_output_is_the_fold_rounded_once(tiny, out):
    """bf16 of the float64 value, of which float32 output shows the neighbourhood: rounding twice differs on ties only."""
    src, wide = tiny("llama-bias"), out.parent / "wide"
    rotq.convert(src, out)
    rotq.convert(src, wide, "--dtype", "float32")
    narrow = tensors.read_model(out)
    for name, (_, near) in tensors.read_model(wide).items():
        allowed = [tensors.bf16_bits(np.nextafter(near, np.float32(x))) for x in (-np.inf, np.inf)] + [tensors.bf16_bits(near)]
        got = narrow[name][1]
        assert np.any([got == a for a in allowed], axis=0).all(), name
        assert (got == allowed[2]).mean() > 0.999, name
