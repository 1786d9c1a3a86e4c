"""Failures that users of such tools have reported, each with the outcome they would accept. No mlx needed here; the
cases that need the stock loader are in tests/oracle/test_failures_in_loader.py."""
import json

import numpy as np
import pytest
import rotq
import tensors

PLAIN = ["--rotation", "none", "--r2", "none", "--dtype", "float32"]
FORMATS = [[], ["-q"], ["-q", "--q-bits", "2", "--q-group-size", "32"], ["-q", "--q-mode", "mxfp4"], ["-q", "--q-mode", "mxfp8"],
           ["-q", "--q-mode", "nvfp4"], ["-q", "--scales", "search"]]
FORMAT_IDS = [" ".join(f) or "dense" for f in FORMATS]


def rewrite(directory, change, shards=1):
    """Applies change(tensors, config) to a model directory in place; tensors are {name: (tag, bits)}."""
    stored, config = tensors.read_model(directory), tensors.read_json(directory / "config.json")
    change(stored, config)
    for path in directory.glob("model*"):
        path.unlink()
    return tensors.write_model(directory, stored, config, shards)


def note(report, code):
    found = [n for n in report["notes"] if n["code"] == code]
    assert len(found) == 1, report["notes"]
    return found[0]


# ---- B01: an index that promises more than the directory holds ----

def test_missing_shard_is_refused_by_name_and_count(own, out):
    src = own("llama-tied", shards=2)
    lost = "model-00002-of-00002.safetensors"
    count = len(tensors.read_file(src / lost))
    (src / lost).unlink()
    rotq.refuse(src, out, code="missing", naming=[lost, str(count)])


def test_tensor_missing_from_its_shard_is_refused_by_both_names(own, out):
    src = own("llama-tied", shards=2)
    shard, name = "model-00001-of-00002.safetensors", "model.norm.weight"
    index = tensors.read_json(src / "model.safetensors.index.json")
    shard = index["weight_map"][name]
    stored = tensors.read_file(src / shard)
    del stored[name]
    tensors.write_file(src / shard, stored)
    rotq.refuse(src, out, code="missing", naming=[shard, name])


def test_a_layer_that_lacks_a_matrix_is_refused_by_name(own, out):
    name = "model.layers.1.mlp.up_proj.weight"
    src = rewrite(own("llama-tied"), lambda stored, config: stored.pop(name))
    rotq.refuse(src, out, code="missing", naming=name)


# ---- B02: one name in two shards ----

@pytest.mark.parametrize("indexed", [0, 1])
def test_the_indexed_copy_of_a_doubled_tensor_wins(own, out, indexed):
    src = own("llama-tied", shards=2)
    files = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, file in enumerate(files):
        stored = tensors.read_file(src / file)
        stored["model.norm.weight"] = tensors.encode(np.full(192, 1.0 if i == indexed else 5.0), "F32")
        tensors.write_file(src / file, stored)
    index = tensors.read_json(src / "model.safetensors.index.json")
    index["weight_map"]["model.norm.weight"] = files[indexed]
    tensors.write_json(src / "model.safetensors.index.json", index)
    report = rotq.convert(src, out, *PLAIN)
    warning = note(report, "duplicate-tensor")
    assert warning["level"] == "warning" and "model.norm.weight" in warning["text"] and files[1 - indexed] in warning["text"]
    assert np.array_equal(tensors.values(tensors.read_model(out)["model.norm.weight"]), np.ones(192))


def test_the_same_name_twice_without_an_index_is_refused(own, out):
    src = own("llama-tied", shards=2)
    (src / "model.safetensors.index.json").unlink()
    stored = tensors.read_file(src / "model-00001-of-00002.safetensors")
    stored["model.norm.weight"] = tensors.encode(np.ones(192), "F32")
    tensors.write_file(src / "model-00001-of-00002.safetensors", stored)
    other = tensors.read_file(src / "model-00002-of-00002.safetensors")
    other["model.norm.weight"] = tensors.encode(np.ones(192), "F32")
    tensors.write_file(src / "model-00002-of-00002.safetensors", other)
    rotq.refuse(src, out, code="format", naming="model.norm.weight")


# ---- B03: tied, and yet a head is stored ----

def with_head(own, noise):
    def change(stored, config):
        embed = tensors.values(stored["model.embed_tokens.weight"])
        moved = embed + noise * np.sign(embed)
        stored["lm_head.weight"] = tensors.encode(moved, "F32")
    return rewrite(own("llama-tied"), change)


@pytest.mark.parametrize("rotation", ["hadamard", "none"])
@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_a_stored_head_of_a_tied_model_is_not_used_and_that_is_said(own, tiny, out, rotation, noise):
    src, plain = with_head(own, noise), out.parent / "plain"
    options = ["--dtype", "float32", "--rotation", rotation]
    report = rotq.convert(src, out, *options)
    said = note(report, "stored-head")
    assert said["level"] == ("warning" if noise else "info")
    assert ("0.25" in said["text"]) == (noise > 0)
    rotq.convert(tiny("llama-tied"), plain, *options)  # the same model without the stored head
    got, want = tensors.read_model(out), tensors.read_model(plain)
    assert set(got) == set(want) and all(np.array_equal(got[n][1], want[n][1]) for n in want)
    assert ("lm_head.weight" in got) == (tensors.read_json(out / "config.json")["tie_word_embeddings"] is False)


def test_a_nan_in_an_unused_head_is_a_difference(own, out):
    def change(stored, config):
        embed = tensors.values(stored["model.embed_tokens.weight"]).copy()
        embed[0, 0] = np.nan
        stored["lm_head.weight"] = tensors.encode(embed, "F32")
    report = rotq.convert(rewrite(own("llama-tied"), change), out, "--dtype", "float32")
    assert note(report, "stored-head")["level"] == "warning"


@pytest.mark.parametrize("preset, said", [("llama-tied", "false"), ("llama-rope3", "true")])
def test_a_tie_option_that_contradicts_the_config_is_refused(tiny, out, preset, said):
    rotq.refuse(tiny(preset), out, "--tie-word-embeddings", said, code="usage", naming="--tie-word-embeddings")


# ---- B05: parts of a rotation that nothing would undo ----

@pytest.mark.parametrize("option", ["--r3", "--r4", "--no-gain-fold"])
def test_run_time_rotations_and_unfolded_gains_are_refused_with_the_reason(tiny, out, option):
    done = rotq.run("convert", tiny("llama-tied"), out, option)
    assert done.returncode == rotq.EXIT["unsupported"] and option in done.stderr and "run time" in done.stderr
    assert not out.exists()


# ---- B06: keeping the tie ----

def test_keeping_the_tie_is_refused_when_the_final_gain_is_not_one(tiny, out):
    rotq.refuse(tiny("llama-tied"), out, "--keep-tied", code="unsupported", naming="model.norm.weight")


# ---- B07: unknown families, unknown tensors ----

def test_an_unknown_family_is_refused_for_folding_but_quantizes_plainly(own, out):
    src = rewrite(own("llama-tied"), lambda stored, config: config.update(model_type="madeup"))
    rotq.refuse(src, out, code="unsupported", naming=["madeup", "llama", "mistral", "qwen2", "qwen3"])
    rotq.convert(src, out, "-q", "--rotation", "none")
    assert tensors.read_json(out / "config.json")["quantization"]["bits"] == 4


def test_an_unknown_reader_of_the_residual_is_refused_by_name_unless_allowed(own, out):
    name = "model.layers.{}.self_attn.sink_proj.weight"

    def change(stored, config):
        for i in range(3):
            stored[name.format(i)] = tensors.encode(np.random.default_rng(i).standard_normal((6, 192)), "F32")

    src = rewrite(own("llama-tied"), change)
    rotq.refuse(src, out, code="unsupported", naming=["self_attn.sink_proj.weight", "3 tensors", "--allow-unknown"])
    report = rotq.convert(src, out, "--allow-unknown", "--dtype", "float32")
    assert "unknown-tensor" in rotq.note_codes(report)
    before, after = tensors.read_model(src), tensors.read_model(out)
    assert all(np.array_equal(before[name.format(i)][1], after[name.format(i)][1]) for i in range(3))


@pytest.mark.parametrize("family", ["gemma2", "cohere", "olmo2", "glm4"])
def test_families_where_r1_is_not_exact_are_refused_with_a_reason(own, out, family):
    src = rewrite(own("llama-tied"), lambda stored, config: config.update(model_type=family))
    rotq.refuse(src, out, code="unsupported", naming=family)


# ---- no Hadamard matrix ----

def test_a_size_without_a_hadamard_matrix_names_the_way_out(tiny, out):
    rotq.refuse(tiny("qwen2"), out, code="unsupported", naming=["200", "--rotation random"])


# ---- B09: an override that fits where the default does not ----

def test_an_override_that_fits_is_used_and_the_rest_is_listed(tiny, out):
    recipe = out.parent / "recipe.json"
    tensors.write_json(recipe, {"default": {"bits": 4, "group_size": 128}, "rules": [{"match": "*.q_proj", "group_size": 64}]})
    src = tiny("llama-tied", dtype="BF16")  # hidden 192: 64 divides it, 128 does not
    report = rotq.convert(src, out, "--recipe", recipe)
    stored, config = tensors.read_model(out), tensors.read_json(out / "config.json")["quantization"]
    assert stored["model.layers.0.self_attn.q_proj.scales"][1].shape == (192, 3)
    assert config["model.layers.0.self_attn.q_proj"] == {"group_size": 64, "bits": 4, "mode": "affine"}
    assert "model.layers.0.self_attn.k_proj.scales" not in stored and config["model.layers.0.self_attn.k_proj"] is False
    assert "model.layers.0.mlp.down_proj.scales" in stored  # 384 columns
    listed = " ".join(n["text"] for n in report["notes"] if n["code"] == "left-dense")
    assert "k_proj" in listed and "q_proj" not in listed
    rotq.refuse(src, out.parent / "strict", "--recipe", recipe, "--strict", code="unsupported", naming=["192 columns", "128", "--strict"])


# ---- B13: NaN and infinity ----

@pytest.mark.parametrize("options", FORMATS, ids=FORMAT_IDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.layers.1.self_attn.k_proj.weight"])
def test_a_bad_weight_is_refused_by_name_and_index(own, out, options, bad, name):
    def change(stored, config):
        w = tensors.values(stored[name])
        w[17, 5] = bad
        stored[name] = tensors.encode(w, "F32")

    src = rewrite(own("llama-tied"), change)
    sentence = rotq.refuse(src, out, *options, code="nonfinite", naming=name)
    assert "17" in sentence and "5" in sentence


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.input_layernorm.weight", "model.embed_tokens.weight"])
def test_a_bad_gain_or_embedding_is_refused_by_name(own, out, name):
    def change(stored, config):
        w = tensors.values(stored[name])
        w.flat[3] = np.nan
        stored[name] = tensors.encode(w, "F32")

    rotq.refuse(rewrite(own("llama-tied"), change), out, code="nonfinite", naming=name)


def test_allow_nonfinite_goes_on(own, out):
    name = "model.layers.1.self_attn.k_proj.weight"

    def change(stored, config):
        w = tensors.values(stored[name])
        w[17, 5] = np.inf
        stored[name] = tensors.encode(w, "F32")

    rotq.convert(rewrite(own("llama-tied"), change), out, "--allow-nonfinite", *PLAIN)
    assert np.isinf(tensors.values(tensors.read_model(out)[name])[17, 5])


def test_weights_beyond_the_storage_type_are_refused(own, out):
    """float16 ends at 65504: a finite weight that would be stored as infinity is a bad weight too."""
    name = "model.layers.1.self_attn.k_proj.weight"

    def change(stored, config):
        w = tensors.values(stored[name])
        w[17, 5] = 1e6
        stored[name] = tensors.encode(w, "F32")

    rotq.refuse(rewrite(own("llama-tied"), change), out, "--rotation", "none", "--dtype", "float16", code="nonfinite", naming=name)


# ---- B22: check finds what a config promises and the files do not hold ----

@pytest.fixture
def good(tiny, out):
    rotq.convert(tiny("llama-bias", dtype="BF16"), out, "-q")
    return out


MODULE = "model.layers.0.mlp.up_proj"


def dense_weight(stored, config):
    del stored[MODULE + ".scales"], stored[MODULE + ".biases"]
    stored[MODULE + ".weight"] = tensors.encode(np.zeros((256, 128)), "BF16")


def no_scales(stored, config):
    del stored[MODULE + ".scales"]


def short_scales(stored, config):
    tag, bits = stored[MODULE + ".scales"]
    stored[MODULE + ".scales"] = tag, bits[:, :-1]


def no_entry(stored, config):
    del config["quantization"], config["quantization_config"]


def damage(directory, change):
    stored, config = tensors.read_model(directory), tensors.read_json(directory / "config.json")
    change(stored, config)
    for path in directory.glob("model*"):
        path.unlink()
    tensors.write_model(directory, stored, config)
    (directory / "model.safetensors").rename(directory / "model-00001-of-00001.safetensors")
    total = sum(np.asarray(b).nbytes for _, b in stored.values())
    tensors.write_json(directory / "model.safetensors.index.json",
                       {"metadata": {"total_size": total}, "weight_map": {n: "model-00001-of-00001.safetensors" for n in sorted(stored)}})


def check(directory):
    done = rotq.run("check", directory, "--json")
    return done.returncode, json.loads(done.stdout)


def test_a_good_output_passes_check(good):
    code, report = check(good)
    assert code == 0 and report["findings"] == [] and report["ok"] is True


def test_four_damages_have_four_names(good):
    codes = {}
    pristine = tensors.read_model(good), tensors.read_json(good / "config.json")
    for change in (dense_weight, no_scales, short_scales, no_entry):
        tensors.write_json(good / "config.json", pristine[1])
        damage(good, lambda stored, config, change=change: (stored.clear(), stored.update(pristine[0]), change(stored, config)))
        code, report = check(good)
        assert code == rotq.EXIT["mismatch"], change.__name__
        assert report["findings"], change.__name__
        if change is not no_entry:
            assert any(MODULE in f["text"] for f in report["findings"])
        codes[change.__name__] = frozenset(f["code"] for f in report["findings"])
    assert len(set(codes.values())) == 4, codes


@pytest.mark.parametrize("gone", ["model.layers.1.", "model.norm.weight", "lm_head."])
def test_check_misses_tensors_without_an_index(good, gone):
    stored, config = tensors.read_model(good), tensors.read_json(good / "config.json")
    for name in [n for n in stored if n.startswith(gone)]:
        del stored[name]
    for path in good.glob("model*"):
        path.unlink()
    tensors.write_model(good, stored, config)
    code, report = check(good)
    assert code == rotq.EXIT["mismatch"] and report["findings"], report


def test_check_sees_a_norm_of_the_wrong_size(good):
    stored, config = tensors.read_model(good), tensors.read_json(good / "config.json")
    tag, bits = stored["model.norm.weight"]
    stored["model.norm.weight"] = tag, bits[:-1]
    for path in good.glob("model*"):
        path.unlink()
    tensors.write_model(good, stored, config)
    code, report = check(good)
    assert code == rotq.EXIT["mismatch"] and "model.norm.weight" in report["findings"][0]["text"], report


def test_check_sees_a_head_beside_a_tie_flag_and_a_stray_file(good):
    config = tensors.read_json(good / "config.json")
    config["tie_word_embeddings"] = True
    tensors.write_json(good / "config.json", config)
    tensors.write_file(good / "model-extra.safetensors", {"stray.weight": tensors.encode(np.ones(4), "F32")})
    code, report = check(good)
    assert code == rotq.EXIT["mismatch"]
    text = " ".join(f["text"] for f in report["findings"])
    assert "tie_word_embeddings" in text and "model-extra.safetensors" in text
    assert len({f["code"] for f in report["findings"]}) >= 2


# ---- B23: end tokens ----

def test_end_tokens_survive_and_a_disagreement_is_noted(own, out):
    src = own("llama-tied")
    files = {"generation_config.json": {"eos_token_id": [7, 9], "temperature": 0.5}, "tokenizer.json": {"version": "1.0"},
             "tokenizer_config.json": {"eos_token": "<e9>", "added_tokens_decoder": {"9": {"content": "<e9>"}}},
             "special_tokens_map.json": {"eos_token": "<e9>"}}
    for name, content in files.items():
        tensors.write_json(src / name, content)
    (src / "chat_template.jinja").write_text("{{ messages }}\n")
    rewrite(src, lambda stored, config: config.update(eos_token_id=7))
    report = rotq.convert(src, out, "-q")
    for name in [*files, "chat_template.jinja"]:
        assert (out / name).read_bytes() == (src / name).read_bytes(), name
    assert tensors.read_json(out / "config.json")["eos_token_id"] == 7
    said = note(report, "eos-disagrees")
    assert "7" in said["text"] and "9" in said["text"]


def test_agreeing_end_tokens_are_not_noted(own, out):
    src = own("llama-tied")
    tensors.write_json(src / "generation_config.json", {"eos_token_id": [7]})
    rewrite(src, lambda stored, config: config.update(eos_token_id=7))
    assert "eos-disagrees" not in rotq.note_codes(rotq.convert(src, out))
