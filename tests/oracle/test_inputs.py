"""What a source may be: dtypes, fp8 blocks, already quantized MLX models."""
import check_formats
import mlx.core as mx
import numpy as np
import parity
import pytest
import rotq
import tensors
import tiny as tiny_models

MODES = [("affine", 4, 64), ("affine", 3, 32), ("affine", 8, 128), ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_every_float_source_folds_exactly(tiny, out, dtype):
    src = tiny("llama-tied", dtype=dtype)
    rotq.convert(src, out, "--dtype", "float32")
    tokens = parity.random_tokens(tiny_models.VOCAB)
    comparison = parity.compare(parity.logits(src, tokens), parity.logits(out, tokens))
    assert parity.is_exact(comparison), str(comparison)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
def test_without_rotation_tensors_are_cast_once(tiny, out, dtype, stored):
    src = tiny("llama-rope3", dtype=dtype)
    rotq.convert(src, out, "--rotation", "none", "--r2", "none", "--dtype", stored)
    tag = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}[stored]
    got = tensors.read_model(out)
    for name, tensor in tensors.read_model(src).items():
        want = tensors.encode(tensors.values(tensor), tag)
        assert got[name][0] == tag and np.array_equal(got[name][1], want[1]), name


# ---- fp8 with block scales ----

SCALES = np.array([[2.0 ** -8, 1.0], [3.7, 100.0]], np.float32)


def fp8_model(directory, codes, block=(128, 128), scales=SCALES):
    """A llama whose q_proj of layer 0 is F8_E4M3 [256, 256] with one scale per block."""
    weights, config = tiny_models.build("llama-tied", hidden=256, heads=8, kv=2, layers=1)
    stored = {n: tensors.encode(w, "BF16") for n, w in weights.items()}
    stored["model.layers.0.self_attn.q_proj.weight"] = ("F8_E4M3", codes)
    stored["model.layers.0.self_attn.q_proj.weight_scale_inv"] = tensors.encode(scales, "F32")
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(block)}
    return tensors.write_model(directory, stored, config)


def all_codes():
    """[256, 256]: every finite code in every block."""
    finite = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    return np.resize(finite, (256, 256))


def test_fp8_values_are_code_times_scale_rounded_once(out):
    """B04."""
    src = fp8_model(out.parent / "src", all_codes())
    rotq.convert(src, out, "--rotation", "none", "--r2", "none")
    scale = np.kron(SCALES.astype(np.float64), np.ones((128, 128)))
    want = tensors.bf16_bits(tensors.e4m3_values(all_codes()) * scale)
    got = tensors.read_model(out)
    tag, bits = got["model.layers.0.self_attn.q_proj.weight"]
    assert tag == "BF16" and np.array_equal(bits, want)
    assert not [n for n in got if "scale" in n]
    assert "quantization_config" not in tensors.read_json(out / "config.json")


def test_fp8_folds_like_its_dequantized_twin(out):
    scales = np.array([[2.0 ** -8, 1.0], [3.75, 100.0]], np.float32)  # products fit float32 exactly
    src = fp8_model(out.parent / "src", all_codes(), scales=scales)
    plain = out.parent / "plain"
    stored, config = tensors.read_model(src), tensors.read_json(src / "config.json")
    del config["quantization_config"]
    scale = np.kron(scales.astype(np.float64), np.ones((128, 128)))
    stored["model.layers.0.self_attn.q_proj.weight"] = tensors.encode(tensors.e4m3_values(all_codes()) * scale, "F32")
    del stored["model.layers.0.self_attn.q_proj.weight_scale_inv"]
    tensors.write_model(plain, stored, config)
    rotq.convert(src, out, "--dtype", "float32")
    rotq.convert(plain, out.parent / "twin", "--dtype", "float32")
    a, b = tensors.read_model(out), tensors.read_model(out.parent / "twin")
    assert set(a) == set(b) and all(np.array_equal(a[n][1], b[n][1]) for n in a)


def test_fp8_nan_code_is_refused_by_name_and_index(out):
    codes = all_codes()
    codes[3, 7] = 0x7F
    src = fp8_model(out.parent / "src", codes)
    rotq.refuse(src, out, code="nonfinite", naming=["model.layers.0.self_attn.q_proj.weight", "3", "7"])


def test_fp8_without_its_scale_is_refused(out):
    src = fp8_model(out.parent / "src", all_codes())
    stored, config = tensors.read_model(src), tensors.read_json(src / "config.json")
    del stored["model.layers.0.self_attn.q_proj.weight_scale_inv"]
    tensors.write_model(src, stored, config)
    rotq.refuse(src, out, code="missing", naming="model.layers.0.self_attn.q_proj.weight")


# ---- already quantized by MLX ----

def to_tensor(a):
    """mx.array -> (tag, stored bits)."""
    tag = {mx.uint32: "U32", mx.uint8: "U8", mx.bfloat16: "BF16", mx.float32: "F32", mx.float16: "F16"}[a.dtype]
    return tag, np.array(a.view(mx.uint16) if tag == "BF16" else a)


def quantized_model(tiny, directory, mode, bits, group):
    """(directory, {name: what stock mx.dequantize gives}), every 2-D weight of a bf16 llama quantized by stock mlx."""
    src = tiny("llama-rope3", dtype="BF16")
    stored, plain = {}, {}
    for name, w in check_formats.load_tensors(src).items():
        plain[name] = to_tensor(w)
        if w.ndim == 2:
            parts = mx.quantize(w, group_size=group, bits=bits, mode=mode)
            back = mx.dequantize(*parts, group_size=group, bits=bits, mode=mode, dtype=mx.bfloat16)
            plain[name] = to_tensor(back)
            for part, a in zip(("weight", "scales", "biases"), parts):
                stored[name.removesuffix("weight") + part] = to_tensor(a)
        else:
            stored[name] = plain[name]
    config = tensors.read_json(src / "config.json")
    plain_dir = tensors.write_model(directory.parent / "plain", plain, dict(config))
    config["quantization"] = config["quantization_config"] = {"group_size": group, "bits": bits, "mode": mode}
    return tensors.write_model(directory, stored, config), plain_dir


@pytest.mark.parametrize("mode,bits,group", MODES, ids=[f"{m}-{b}-g{g}" for m, b, g in MODES])
def test_dequantize_gives_what_stock_mlx_gives(tiny, out, mode, bits, group):
    src, plain = quantized_model(tiny, out.parent / "src", mode, bits, group)
    rotq.convert(src, out, "--dequantize", "--rotation", "none", "--r2", "none")
    got, want = tensors.read_model(out), tensors.read_model(plain)
    assert set(got) == set(want)
    for name in want:
        assert got[name][0] == want[name][0] and np.array_equal(got[name][1], want[name][1]), name
    assert "quantization" not in tensors.read_json(out / "config.json")


def test_a_quantized_source_is_folded_and_quantized_again(tiny, out):
    src, plain = quantized_model(tiny, out.parent / "src", "affine", 4, 64)
    rotq.convert(src, out, "--dequantize", "-q", "--q-bits", "6")
    rotq.convert(plain, out.parent / "twin", "-q", "--q-bits", "6")
    a, b = tensors.read_model(out), tensors.read_model(out.parent / "twin")
    assert set(a) == set(b) and all(np.array_equal(a[n][1], b[n][1]) for n in a)


def test_a_quantized_source_is_refused_without_dequantize(tiny, out):
    src, _ = quantized_model(tiny, out.parent / "src", "affine", 4, 64)
    rotq.refuse(src, out, code="unsupported", naming="--dequantize")


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "bitsandbytes"])
def test_foreign_quantization_is_refused_by_name(own, out, method):
    src = own("llama-tied")
    config = tensors.read_json(src / "config.json")
    config["quantization_config"] = {"quant_method": method, "bits": 4}
    tensors.write_json(src / "config.json", config)
    rotq.refuse(src, out, code="unsupported", naming=method)
