"""Folds stored in float32 compute the same function in stock mlx-lm, whatever the family and the rotation."""
import functools

import fold_oracle
import numpy as np
import parity
import pytest
import rotq
import tensors
import tiny as tiny_models

HADAMARD = [p for p in tiny_models.PRESETS if p not in tiny_models.NO_HADAMARD]
BLOCK = {"qwen2": 8}  # 200 = 25 * 8
CASES = ([(p, "hadamard", r2, 1) for p in HADAMARD for r2 in ("hadamard", "random", "none")]
         + [(p, "random", r2, 1) for p in tiny_models.PRESETS for r2 in ("hadamard", "random", "none")]
         + [(p, f"block:{BLOCK.get(p, 32)}", "random", 1) for p in tiny_models.PRESETS]
         + [(p, "none", "none", 1) for p in tiny_models.PRESETS]
         + [(p, "hadamard" if p in HADAMARD else "random", "hadamard", 3) for p in tiny_models.PRESETS])
TENSOR_CASES = ([(p, "hadamard", "hadamard") for p in HADAMARD] + [(p, "random", "random") for p in tiny_models.PRESETS]
                + [(p, f"block:{BLOCK.get(p, 32)}", "none") for p in tiny_models.PRESETS])


@functools.cache
def reference(directory):
    tokens = parity.random_tokens(tiny_models.VOCAB)
    return tokens, parity.logits(directory, tokens)


def assert_same_function(src, dst):
    tokens, expected = reference(src)
    comparison = parity.compare(expected, parity.logits(dst, tokens))
    print(comparison)
    assert parity.is_exact(comparison, max_kl=1e-7), str(comparison)


def assert_folded(src, dst):
    """Gains are exactly one, the head stands alone, and the weights really moved."""
    before, after = tensors.read_model(src), tensors.read_model(dst)
    assert set(after) == set(before) | {"lm_head.weight"}
    for name, tensor in after.items():
        if name.endswith(("layernorm.weight", "model.norm.weight")):
            assert np.array_equal(tensors.values(tensor), np.ones(tensor[1].shape)), name
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            assert np.array_equal(tensor[1], before[name][1]), name
    config = tensors.read_json(dst / "config.json")
    assert config["tie_word_embeddings"] is False
    assert config["rms_norm_eps"] == tensors.read_json(src / "config.json")["rms_norm_eps"]
    gate = "model.layers.0.mlp.gate_proj.weight"
    assert not np.array_equal(before[gate][1], after[gate][1])


@pytest.mark.parametrize("preset,r1,r2,shards", CASES, ids=["-".join(map(str, c)) for c in CASES])
def test_float32_fold_keeps_the_function(tiny, out, preset, r1, r2, shards):
    src = tiny(preset, shards=shards)
    seed = [] if r1 == "none" else ["--seed", 5]
    rotq.convert(src, out, "--dtype", "float32", "--rotation", r1, "--r2", r2, *seed)
    if r1 != "none":
        assert_folded(src, out)
        embed = "model.embed_tokens.weight"
        assert not np.array_equal(tensors.read_model(src)[embed][1], tensors.read_model(out)[embed][1])
    assert_same_function(src, out)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("preset", list(tiny_models.PRESETS))
def test_other_weights_and_other_rotations_keep_the_function_too(tiny, out, preset, seed):
    src = tiny(preset, seed=seed)
    rotq.convert(src, out, "--dtype", "float32", "--rotation", "hadamard" if preset in HADAMARD else "random", "--seed", seed)
    assert_folded(src, out)
    assert_same_function(src, out)


@pytest.mark.parametrize("preset", ["llama-tied", "qwen3", "llama-bias"])
def test_fp32_fold_precision_keeps_the_function(tiny, out, preset):
    src = tiny(preset)
    rotq.convert(src, out, "--dtype", "float32", "--fold-precision", "fp32")
    assert_folded(src, out)
    assert_same_function(src, out)


@pytest.mark.parametrize("preset,r1,r2", [("llama-tied", "hadamard", "hadamard"), ("qwen2", "random", "random"),
                                          ("mistral", "block:32", "hadamard"), ("qwen3", "random", "none")])
def test_sidecar_of_an_output_gives_the_same_output_again(tiny, out, preset, r1, r2):
    src, again = tiny(preset), out.parent / "again"
    rotq.convert(src, out, "--dtype", "float32", "--rotation", r1, "--r2", r2, "--seed", 11)
    rotq.convert(src, again, "--dtype", "float32", "--rotation", out / "rotation.json")
    first, second = tensors.read_model(out), tensors.read_model(again)
    assert all(np.array_equal(first[n][1], second[n][1]) for n in first) and set(first) == set(second)
    assert_same_function(src, again)


def assert_same_tensors(src, dst, r_file):
    """rotq's float32 tensors are the float64 oracle's, rounded once: within one unit in the last place, plus what the
    order of float64 sums can move (2^-40 of the largest weight, thousands of times their rounding)."""
    weights, config = fold_oracle.load(src)
    expected, _ = fold_oracle.fold(weights, config, *fold_oracle.load_rotations(r_file, config["num_hidden_layers"]))
    got = tensors.read_model(dst)
    assert set(got) == set(expected)
    for name, want in expected.items():
        assert got[name][0] == "F32"
        error = np.abs(tensors.values(got[name]) - want)
        bound = np.abs(want) * 2.0 ** -23 + np.abs(want).max() * 2.0 ** -40
        assert (error <= bound).all(), f"{name}: {np.max(error / bound):.3g} times the bound"


@pytest.mark.parametrize("preset,r1,r2", TENSOR_CASES, ids=["-".join(c) for c in TENSOR_CASES])
def test_same_rotation_gives_the_tensors_of_the_float64_oracle(tiny, out, preset, r1, r2):
    src, r_file = tiny(preset, shards=2), out.parent / "R.safetensors"
    rotq.convert(src, out, "--dtype", "float32", "--rotation", r1, "--r2", r2, "--seed", 3)
    rotq.succeed("rotation", "export", out, "--out", r_file)
    assert_same_tensors(src, out, r_file)


def test_exported_rotations_are_orthogonal_and_differ_by_layer(tiny, out):
    src, r_file = tiny("qwen3"), out.parent / "R.safetensors"
    rotq.convert(src, out, "--dtype", "float32", "--seed", 3)
    rotq.succeed("rotation", "export", out, "--out", r_file)
    r1, r2 = fold_oracle.load_rotations(r_file, 3)
    for R in (r1, *r2):
        assert np.abs(R.T @ R - np.eye(len(R))).max() < 1e-12
    assert r1.shape == (320, 320) and [r.shape for r in r2] == [(64, 64)] * 3
    assert not np.array_equal(r2[0], r2[1])


def test_seeds_give_different_rotations(tiny, out):
    src, other = tiny("llama-tied"), out.parent / "other"
    rotq.convert(src, out, "--dtype", "float32", "--seed", 1)
    rotq.convert(src, other, "--dtype", "float32", "--seed", 2)
    embed = "model.embed_tokens.weight"
    assert not np.array_equal(tensors.read_model(out)[embed][1], tensors.read_model(other)[embed][1])
