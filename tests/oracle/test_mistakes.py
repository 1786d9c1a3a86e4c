"""The parity gate sees the classic mistakes. These folds come from the oracle; rotq is judged by the same gate."""
import fold_oracle
import parity
import pytest
import tiny as tiny_models

CAUGHT = [("llama-tied", m) for m in ("r4-half", "gain-after-r1", "no-final-gain", "r2-only-v", "eps-dropped")]
CAUGHT += [("llama-bias", m) for m in ("no-v-bias", "no-writer-bias", "rotated-q-bias")]
CAUGHT += [("qwen2", "no-v-bias"), ("qwen3", "gain-after-r1"), ("mistral", "no-final-gain")]


def compare(src, out, mistakes):
    weights, config = fold_oracle.load(src)
    rotations = fold_oracle.random_rotations(config, seed=7)
    fold_oracle.store(out, *fold_oracle.fold(weights, config, *rotations, mistakes))
    tokens = parity.random_tokens(tiny_models.VOCAB)
    return parity.compare(parity.logits(src, tokens), parity.logits(out, tokens))


@pytest.mark.parametrize("preset", list(tiny_models.PRESETS))
def test_the_oracle_itself_passes_the_gate(tiny, out, preset):
    comparison = compare(tiny(preset), out, [])
    assert parity.is_exact(comparison, max_kl=1e-7), str(comparison)


@pytest.mark.parametrize("preset,mistake", CAUGHT, ids=["-".join(c) for c in CAUGHT])
def test_a_mistake_is_caught(tiny, out, preset, mistake):
    comparison = compare(tiny(preset), out, [mistake])
    assert not parity.is_exact(comparison, max_kl=1e-7), str(comparison)
    assert comparison.kl_worst > 1e-6, str(comparison)
