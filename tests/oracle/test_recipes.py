"""Mixed precision: named recipes and recipe files give each module the intended bits, in rotq's plan and in mlx-lm."""
import check_formats
import mlx.nn as nn
import parity
import pytest
import rotq
import tensors
from mlx_lm.convert import mixed_quant_predicate_builder

DEEP = dict(layers=9, hidden=128, heads=4, kv=2, inter=128)  # nine layers reach every branch of the mixed recipes


def loaded_bits(directory):
    """{module: bits} of the model that stock mlx-lm builds; 16 when dense."""
    out = {}
    for path, module in parity.load(directory, widen=False).named_modules():
        if isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
            out[path] = module.bits
        elif isinstance(module, (nn.Linear, nn.Embedding)):
            out[path] = 16
    return out


def planned_bits(src, *options):
    return {t["module"]: t["bits"] if t["quantized"] else 16
            for t in rotq.plan(src, *options)["tensors"] if t["module"]}


@pytest.mark.parametrize("recipe", ["mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6"])
def test_mixed_recipes_are_those_of_mlx_lm(tiny, out, recipe):
    src, dense = tiny("llama-tied", dtype="BF16", **DEEP), out.parent / "dense"
    rotq.convert(src, dense)
    rotq.convert(src, out, "--recipe", recipe)
    model = parity.load(dense, widen=False)
    predicate = mixed_quant_predicate_builder(recipe, model)
    expected = {p: predicate(p, m)["bits"] for p, m in model.named_modules() if hasattr(m, "to_quantized")}
    assert len(set(expected.values())) == 2
    assert loaded_bits(out) == expected
    assert planned_bits(src, "--recipe", recipe) == expected
    assert not check_formats.findings(check_formats.check(out, dense))


def test_tq_mixed_is_three_bits_in_the_mlp_and_four_elsewhere(tiny, out):
    src, dense = tiny("qwen3", dtype="BF16"), out.parent / "dense"
    rotq.convert(src, dense)
    rotq.convert(src, out, "--recipe", "tq-mixed")
    bits = loaded_bits(out)
    assert len(bits) == 7 * 3 + 2
    assert all(b == (3 if ".mlp." in path else 4) for path, b in bits.items())
    assert not check_formats.findings(check_formats.check(out, dense))


def test_a_recipe_file_mixes_modes_and_dense_modules(tiny, out):
    src, dense, recipe = tiny("llama-rope3", dtype="BF16"), out.parent / "dense", out.parent / "recipe.json"
    tensors.write_json(recipe, {
        "default": {"bits": 4, "group_size": 64},
        "rules": [{"match": "lm_head", "quantize": False}, {"match": "model.layers.0.mlp.down_proj", "bits": 8, "group_size": 32},
                  {"match": "*.mlp.*", "bits": 3}, {"match": "*.v_proj", "mode": "mxfp8"}]})
    rotq.convert(src, dense)
    rotq.convert(src, out, "--recipe", recipe)
    bits = loaded_bits(out)
    assert bits["lm_head"] == 16 and bits["model.layers.0.mlp.down_proj"] == 8
    assert bits["model.layers.1.mlp.down_proj"] == 3 and bits["model.layers.2.self_attn.v_proj"] == 8
    assert bits["model.layers.2.self_attn.q_proj"] == 4 and bits["model.embed_tokens"] == 4
    config = tensors.read_json(out / "config.json")["quantization"]
    assert config["lm_head"] is False
    assert config["model.layers.0.mlp.down_proj"] == {"group_size": 32, "bits": 8, "mode": "affine"}
    assert config["model.layers.1.self_attn.v_proj"] == {"group_size": 32, "bits": 8, "mode": "mxfp8"}
    assert not check_formats.findings(check_formats.check(out, dense))


def test_a_rule_that_matches_nothing_is_an_error(tiny, out):
    recipe = out.parent / "recipe.json"
    tensors.write_json(recipe, {"rules": [{"match": "*.mlp.*", "bits": 3}, {"match": "*.experts.*", "bits": 2}]})
    rotq.refuse(tiny("llama-rope3"), out, "--recipe", recipe, code="usage", naming="*.experts.*")


def test_an_unknown_recipe_name_lists_the_known_ones(tiny, out):
    rotq.refuse(tiny("llama-rope3"), out, "--recipe", "mixed_9_9", code="usage", naming=["mixed_9_9", "tq-mixed", "mixed_2_6"])
