"""Reported failures whose right outcome shows only in the stock loader (the others are in tests/cli)."""
import check_formats
import mlx.core as mx
import numpy as np
import parity
import pytest
import rotq
import tensors
import tiny as tiny_models

TOKENS = parity.random_tokens(tiny_models.VOCAB, sequences=2, positions=48)


def assert_same_function(src, dst):
    comparison = parity.compare(parity.logits(src, TOKENS), parity.logits(dst, TOKENS))
    assert parity.is_exact(comparison), str(comparison)


# ---- B05 ----

def test_gains_from_a_half_to_two_fold_exactly_and_become_ones(own, out):
    src = own("llama-rope3")
    stored, config = tensors.read_model(src), tensors.read_json(src / "config.json")
    for name in stored:
        if "norm" in name:
            stored[name] = tensors.encode(np.random.default_rng(len(name)).uniform(0.5, 2.0, 128), "F32")
    tensors.write_model(src, stored, config)
    rotq.convert(src, out, "--dtype", "float32")
    assert_same_function(src, out)
    for name, tensor in tensors.read_model(out).items():
        assert "norm" not in name or np.array_equal(tensors.values(tensor), np.ones(128))


# ---- B06 ----

@pytest.mark.parametrize("where", ["top", "nested", "both", "neither"])
def test_every_copy_of_the_tie_flag_turns_false(own, out, where):
    src = own("llama-tied")
    config = tensors.read_json(src / "config.json")
    nested = dict(config)
    if where in ("nested", "neither"):
        del config["tie_word_embeddings"]
    if where in ("top", "neither"):
        del nested["tie_word_embeddings"]
    config["text_config"] = nested
    tensors.write_json(src / "config.json", config)
    rotq.convert(src, out, "--dtype", "float32")
    written = tensors.read_json(out / "config.json")
    assert written["tie_word_embeddings"] is False and written["text_config"]["tie_word_embeddings"] is False
    assert "lm_head.weight" in tensors.read_model(out)
    assert_same_function(src, out)


def test_keeping_the_tie_is_exact_when_the_final_gain_is_one(own, out):
    src = own("llama-tied")
    stored, config = tensors.read_model(src), tensors.read_json(src / "config.json")
    stored["model.norm.weight"] = tensors.encode(np.ones(192), "F32")
    tensors.write_model(src, stored, config)
    rotq.convert(src, out, "--dtype", "float32", "--keep-tied")
    assert "lm_head.weight" not in tensors.read_model(out)
    assert tensors.read_json(out / "config.json")["tie_word_embeddings"] is True
    assert_same_function(src, out)


@pytest.mark.parametrize("preset", ["llama-tied", "llama-rope3"])
def test_a_missing_flag_means_what_the_stock_loader_takes_it_to_mean_when_no_head_is_stored(own, out, preset):
    src = own(preset)
    config = tensors.read_json(src / "config.json")
    del config["tie_word_embeddings"]
    tensors.write_json(src / "config.json", config)
    if preset == "llama-tied":
        rotq.convert(src, out, "--dtype", "float32")
        assert_same_function(src, out)
    else:  # a head is stored, and the flag's default would drop it: the user has to say which is right
        options = ["--dtype", "float32", "--tie-word-embeddings"]
        rotq.convert(src, out, *options, "false")
        rotq.convert(src, out.parent / "tied", *options, "true")
        config["tie_word_embeddings"] = False
        tensors.write_json(src / "config.json", config)
        assert_same_function(src, out)
        config["tie_word_embeddings"] = True
        tensors.write_json(src / "config.json", config)
        assert_same_function(src, out.parent / "tied")


@pytest.mark.parametrize("preset,theta", [("llama-rope3", 50000.0), ("qwen2-q", 3000.0), ("qwen3", 70000.0)])
def test_the_newer_spelling_of_rope_reaches_the_stock_loader(own, out, preset, theta):
    """transformers 5 writes rope_parameters, which mlx-lm's llama and qwen2 do not read: they would run at 10000 or 1e6."""
    src = own(preset)
    config = tensors.read_json(src / "config.json")
    config["rope_theta"] = theta
    tensors.write_json(src / "config.json", config)
    expected = parity.logits(src, TOKENS)
    scaling = config.pop("rope_scaling", None) or {"rope_type": "default"}
    config["rope_parameters"] = {**scaling, "rope_theta": config.pop("rope_theta")}
    tensors.write_json(src / "config.json", config)
    rotq.convert(src, out, "--dtype", "float32", "--rotation", "random")
    comparison = parity.compare(expected, parity.logits(out, TOKENS))
    assert parity.is_exact(comparison), str(comparison)
    assert tensors.read_json(out / "config.json")["rope_theta"] == theta


# ---- B08 ----

@pytest.mark.parametrize("mode,group,fits", [("affine", 64, False), ("affine", 32, False), ("mxfp4", 32, False), ("nvfp4", 16, True)])
def test_a_width_that_the_group_does_not_divide_stays_dense_and_counts(tiny, out, mode, group, fits):
    src, dense = tiny("llama-rope3", dtype="BF16", inter=4304, layers=1), out.parent / "dense"
    options = ["-q", "--q-mode", mode, "--q-group-size", group]
    rotq.convert(src, dense)
    report = rotq.convert(src, out, *options)
    stored, down = tensors.read_model(out), "model.layers.0.mlp.down_proj"
    assert (down + ".scales" in stored) == fits
    assert stored[down + ".weight"][1].shape == ((128, 4304 // 8) if fits else (128, 4304))
    told = [n for n in report["notes"] if n["code"] == "left-dense"]
    assert bool(told) == (not fits) and all(down in n["text"] for n in told)
    assert (tensors.read_json(out / "config.json")["quantization"].get(down) is False) == (not fits)
    assert not check_formats.findings(check_formats.check(out, dense))
    logits = parity.logits(out, TOKENS[:, :8], widen=False)
    assert np.isfinite(logits).all()
    parameters = tensors.read_json(out / "model.safetensors.index.json")["metadata"]["total_parameters"]
    total = sum(np.asarray(b).nbytes for _, b in stored.values())
    assert abs(report["bits_per_weight"] - 8 * total / parameters) < 1e-6
    if not fits:
        rotq.refuse(src, out.parent / "strict", *options, "--strict", code="unsupported", naming=down)


# ---- B13 ----

@pytest.mark.parametrize("mode,bits,group", [("affine", 4, 32), ("affine", 8, 32), ("affine", 2, 64), ("mxfp4", 4, 32),
                                             ("mxfp8", 8, 32), ("nvfp4", 4, 16)], ids=lambda v: str(v))
@pytest.mark.parametrize("scales", ["mlx", "search"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_zero_and_subnormal_groups_read_back_small(own, out, mode, bits, group, scales, dtype):
    src, name = own("llama-rope3"), "model.layers.0.mlp.up_proj"
    stored, config = tensors.read_model(src), tensors.read_json(src / "config.json")
    w = tensors.values(stored[name + ".weight"])
    w[0], w[1], w[2, :64] = 0.0, 1e-40 * np.sign(w[1]), 1e-40
    stored[name + ".weight"] = tensors.encode(w, "F32")
    tensors.write_model(src, stored, config)
    rotq.convert(src, out, "-q", "--q-mode", mode, "--q-bits", bits, "--q-group-size", group, "--scales", scales,
                 "--rotation", "none", "--r2", "none", "--dtype", dtype)
    q = check_formats.load_tensors(out)
    back = mx.dequantize(*[q[f"{name}.{p}"] for p in ("weight", "scales", "biases") if f"{name}.{p}" in q], group_size=group,
                         bits=bits, mode=mode, dtype=mx.float32)
    back = np.abs(np.array(back.astype(mx.float32), dtype=np.float64))
    # affine's smallest scale is 1e-7, and its codes for such a group are 0: at most that bias can come back
    assert back[0].max() == 0.0
    assert back[1].max() <= 1e-39 and back[2, :64].max() <= 1e-39
