"""Malformed and malicious files are refused with a sentence that names them: no crash, no hang, no memory for claims."""
import os
import resource

import numpy as np
import pytest
import rotq
import tensors
import tiny as tiny_models

MEMORY = 2 << 30
F = "model.safetensors"


def limits():
    if "ROTQ_SANITIZED" not in os.environ:  # sanitizers reserve terabytes of address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def refuse(src, out, *options, code="format", naming=F):
    sentence = rotq.refuse(src, out, *options, code=code, naming=naming, timeout=60, preexec_fn=limits)
    planned = rotq.run("plan", src, *options, timeout=60, preexec_fn=limits)
    assert planned.returncode == rotq.EXIT[code], planned.stderr
    return sentence


def entry(dtype="F32", shape=(2, 2), offsets=(0, 16), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def raw(text):
    return text.encode() if isinstance(text, str) else text


ONE = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
# name: (header object or bytes, data, claimed header length or None)
HEADERS = {
    "a header length of zero": (b"", b"", 0),
    "a header length beyond the file": (b"{}", b"", 1 << 20),
    "a header length of 2^63": (b"{}", b"", 1 << 63),
    "a header length of 2^64 - 1": (b"{}", b"", (1 << 64) - 1),
    "not JSON": (b"this is not JSON", b"", None),
    "an array": (b"[1,2,3]", b"", None),
    "a number": (b"12345678", b"", None),
    "bad UTF-8": (b'{"\xff\xfe":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4, None),
    "NUL padding": (raw(ONE) + b"\0" * 7, b"\0" * 4, None),
    "garbage after the object": (raw(ONE + "{}"), b"\0" * 4, None),
    "nesting a hundred thousand deep": (b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}", b"", None),
    "a name twice": (raw(ONE[:-1] + "," + ONE[1:]), b"\0" * 4, None),
    "metadata twice": (raw('{"__metadata__":{},"__metadata__":{},' + ONE[1:]), b"\0" * 4, None),
    "metadata that is no text": ({"__metadata__": {"format": 1}, "a": entry()}, b"\0" * 16, None),
    "an entry that is a number": ({"a": 7}, b"", None),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4, None),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, b"\0" * 4, None),
    "no offsets": ({"a": {"dtype": "F32", "shape": [1]}}, b"\0" * 4, None),
    "a dtype that is a number": ({"a": entry(dtype=3)}, b"\0" * 16, None),
    "a shape of fractions": (raw('{"a":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}}'), b"\0" * 16, None),
    "a negative dimension": ({"a": entry(shape=(-2, -2))}, b"\0" * 16, None),
    "a shape whose product overflows": ({"a": entry(shape=(1 << 32, 1 << 32, 4))}, b"\0" * 16, None),
    "a dimension beyond 64 bits": (raw('{"a":{"dtype":"F32","shape":[36893488147419103236],"data_offsets":[0,16]}}'), b"\0" * 16, None),
    "a thousand dimensions": ({"a": entry(shape=[1] * 1000, offsets=(0, 4))}, b"\0" * 4, None),
    "a size that is too small": ({"a": entry(shape=(3, 3))}, b"\0" * 16, None),
    "a size that is too large": ({"a": entry(shape=(1, 1))}, b"\0" * 16, None),
    "an end before its begin": ({"a": entry(offsets=(16, 0))}, b"\0" * 16, None),
    "negative offsets": ({"a": entry(offsets=(-16, 0))}, b"\0" * 16, None),
    "three offsets": ({"a": entry(offsets=(0, 16, 16))}, b"\0" * 16, None),
    "an end beyond the file": ({"a": entry()}, b"\0" * 15, None),
    "an end far beyond the file": ({"a": entry(shape=(1 << 40,), offsets=(0, 1 << 42))}, b"\0" * 16, None),
    "two tensors on one range": ({"a": entry(), "b": entry()}, b"\0" * 16, None),
    "an overlap": ({"a": entry(), "b": entry(offsets=(8, 24))}, b"\0" * 24, None),
    "a hole": ({"a": entry(), "b": entry(offsets=(32, 48))}, b"\0" * 48, None),
    "a hole at the start": ({"a": entry(offsets=(16, 32))}, b"\0" * 32, None),
    "bytes after the last tensor": ({"a": entry()}, b"\0" * 17, None),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_with(own, out, name):
    header, data, claimed = HEADERS[name]
    src = own("llama-bias")
    tensors.write_raw(src / F, header, data, claimed)
    refuse(src, out)


@pytest.mark.parametrize("dtype", ["F23", "f32", "F4", ""])
def test_a_header_with_an_unknown_dtype(own, out, dtype):
    src = own("llama-bias")
    tensors.write_raw(src / F, {"a": entry(dtype=dtype)}, b"\0" * 16)
    refuse(src, out, code="unsupported", naming=[F, f'"{dtype}"'])


@pytest.mark.parametrize("size", range(9))
def test_a_file_of_a_few_bytes(own, out, size):
    src = own("llama-bias")
    (src / F).write_bytes(b"\x08\0\0\0\0\0\0\0"[:size] + b"{"[: max(0, size - 8)])
    refuse(src, out)


def test_a_header_of_a_hundred_megabytes_that_is_really_there(own, out):
    src, size = own("llama-bias"), 100_000_000
    with open(src / F, "wb") as f:  # sparse: no disk is used
        f.write(size.to_bytes(8, "little") + b"{}")
        f.truncate(8 + size)
    assert str(size) in refuse(src, out)


def test_a_large_header_that_is_legal_is_read(own, out):
    """Two megabytes of names; the tensors have no role and are refused by name, not for their number."""
    src = own("llama-bias")
    stored = tensors.read_file(src / F)
    stored.update({f"filler.{i:06d}.{'x' * 40}": tensors.encode(np.zeros(1), "F32") for i in range(20000)})
    tensors.write_file(src / F, stored)
    refuse(src, out, code="unsupported", naming=["20000 tensors", "filler."])


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file(own, out, keep):
    src = own("llama-bias")
    blob = (src / F).read_bytes()
    (src / F).write_bytes(blob[:int(len(blob) * keep)])
    refuse(src, out)


@pytest.mark.parametrize("kind", ["directory", "fifo", "dangling link", "link to itself"])
def test_a_weights_file_that_is_no_file(own, out, kind):
    src = own("llama-bias")
    (src / F).unlink()
    if kind == "directory":
        (src / F).mkdir()
    elif kind == "fifo":
        os.mkfifo(src / F)
    else:
        (src / F).symlink_to("nowhere" if kind == "dangling link" else F)
    done = rotq.run("convert", src, out, timeout=60)
    assert done.returncode in (rotq.EXIT["io"], rotq.EXIT["format"], rotq.EXIT["missing"]), done.stderr
    assert "rotq: error: " in done.stderr and not out.exists()


SHARD_NAMES = ["../model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ".", "", "./model.safetensors",
               "sub\\..\\..\\model.safetensors/x", "model\n.safetensors/../x", "\u0000"]


@pytest.mark.parametrize("name", SHARD_NAMES, ids=[repr(n) for n in SHARD_NAMES])
def test_a_shard_name_that_leaves_the_directory(own, out, name):
    src = own("llama-bias", shards=2)
    (out.parent.parent / F).write_bytes((src / "model-00001-of-00002.safetensors").read_bytes())  # bait
    index = tensors.read_json(src / "model.safetensors.index.json")
    index["weight_map"]["model.norm.weight"] = name
    tensors.write_json(src / "model.safetensors.index.json", index)
    refuse(src, out, naming="model.safetensors.index.json")


INDEXES = {"not JSON": b"weight_map", "an array": b"[]", "empty": b"", "without weight_map": b'{"metadata":{}}',
           "a list as weight_map": b'{"weight_map":[]}', "a number as shard": b'{"weight_map":{"model.norm.weight":1}}',
           "deep nesting": b'{"weight_map":' + b'{"a":' * 100000 + b"1" + b"}" * 100001,
           "bad UTF-8": b'{"weight_map":{"\xff":"model.safetensors"}}'}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_that_is(own, out, name):
    src = own("llama-bias", shards=2)
    (src / "model.safetensors.index.json").write_bytes(INDEXES[name])
    refuse(src, out, naming="model.safetensors.index.json")


CONFIGS = {"not JSON": (b"model_type: llama", "format"), "empty": (b"", "format"), "an array": (b"[]", "format"),
           "cut off": (b'{"model_type":"llama","hidden_size":12', "format"), "deep": (b"[" * 200000, "format"),
           "bad UTF-8": (b'{"model_type":"\xff"}', "format"), "a NUL": (b'{"model_type":"llama"}\0', "format")}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_is(own, out, name):
    src = own("llama-bias")
    content, code = CONFIGS[name]
    (src / "config.json").write_bytes(content)
    refuse(src, out, code=code, naming="config.json")


VALUES = [("hidden_size", 0), ("hidden_size", -128), ("hidden_size", 1 << 62), ("hidden_size", "128"), ("hidden_size", 127),
          ("num_hidden_layers", 0), ("num_hidden_layers", 10 ** 9), ("num_hidden_layers", 3), ("num_hidden_layers", -1),
          ("num_attention_heads", 0), ("num_attention_heads", 3), ("num_attention_heads", 1 << 40), ("num_key_value_heads", 0),
          ("num_key_value_heads", 3), ("head_dim", 0), ("head_dim", 31), ("head_dim", 1 << 60), ("vocab_size", 319),
          ("vocab_size", 1 << 61), ("intermediate_size", 255), ("tie_word_embeddings", "no"), ("model_type", 7), ("model_type", None),
          ("hidden_size", None), ("hidden_size", 128.5), ("num_attention_heads", [4])]


@pytest.mark.parametrize("key,value", VALUES, ids=[f"{k}={v}" for k, v in VALUES])
def test_a_config_that_lies(own, out, key, value):
    """Refused with any code that fits, quickly, in one sentence."""
    src = own("llama-bias")
    config = tensors.read_json(src / "config.json")
    config[key] = value
    tensors.write_json(src / "config.json", config)
    done = rotq.run("convert", src, out, timeout=60, preexec_fn=limits)
    assert done.returncode in (rotq.EXIT["format"], rotq.EXIT["shape"], rotq.EXIT["missing"], rotq.EXIT["unsupported"]), done.stderr
    assert done.stderr.count("rotq: error: ") == 1 and not out.exists() and list(out.parent.iterdir()) == []


def test_no_weights_and_no_config_are_named(own, out):
    src = own("llama-bias")
    (src / F).rename(src / "elsewhere.bin")
    refuse(src, out, code="missing", naming=str(src))
    (src / "elsewhere.bin").rename(src / F)
    (src / "config.json").unlink()
    refuse(src, out, code="missing", naming="config.json")
    done = rotq.run("convert", src / "nowhere", out)
    assert done.returncode in (rotq.EXIT["io"], rotq.EXIT["missing"]) and "nowhere" in done.stderr


@pytest.mark.parametrize("name,change", [
    ("extra rows", lambda w: np.vstack([w, w[:1]])), ("a missing column", lambda w: w[:, :-1]), ("rank 3", lambda w: w[None]),
    ("rank 1", lambda w: w.reshape(-1)), ("no elements", lambda w: w[:0])])
def test_a_matrix_with(own, out, name, change):
    src, tensor = own("llama-bias"), "model.layers.1.self_attn.k_proj.weight"
    stored = tensors.read_file(src / F)
    stored[tensor] = tensors.encode(change(tensors.values(stored[tensor])), "F32")
    tensors.write_file(src / F, stored)
    refuse(src, out, code="shape", naming=tensor)


@pytest.mark.parametrize("dtype", ["I32", "F64", "BOOL", "U8"])
def test_a_matrix_of_an_unfit_type_is_refused_or_computed(own, out, dtype):
    """Integers have no place in a fold. F64 is a float like any other."""
    src, tensor = own("llama-bias"), "model.layers.1.self_attn.k_proj.weight"
    stored = tensors.read_file(src / F)
    stored[tensor] = tensors.encode(np.zeros((32, 128)), dtype)
    tensors.write_file(src / F, stored)
    done = rotq.run("convert", src, out)
    if dtype == "F64":
        assert done.returncode == 0
    else:
        assert done.returncode == rotq.EXIT["unsupported"] and tensor in done.stderr and not out.exists()


# ---- the sidecar ----

@pytest.fixture
def sidecar(tiny, tmp_path):
    """A rotation.json with dense matrices beside it, and the model it fits."""
    made = tmp_path / "made"
    src = tiny("llama-bias")
    rotq.convert(src, made, "--rotation", "random")
    return src, made / "rotation.json", made / "rotation.safetensors"


def test_a_sidecar_that_is_not_json(sidecar, out):
    src, path, _ = sidecar
    path.write_bytes(path.read_bytes()[:-20])
    refuse_rotation(src, out, path)


def refuse_rotation(src, out, path):
    done = rotq.run("convert", src, out, "--rotation", path, timeout=60)
    assert done.returncode in (rotq.EXIT["format"], rotq.EXIT["shape"], rotq.EXIT["missing"], rotq.EXIT["mismatch"]), done.stderr
    assert "rotq: error: " in done.stderr and not out.exists()


@pytest.mark.parametrize("name", ["../rotation.safetensors", "/etc/passwd", "sub/rotation.safetensors", ""])
def test_a_sidecar_whose_matrices_lie_elsewhere(sidecar, out, name):
    src, path, matrices = sidecar
    text = path.read_text()
    assert f'"{matrices.name}"' in text
    path.write_text(text.replace(f'"{matrices.name}"', f'"{name}"'))
    (matrices.parent.parent / matrices.name).write_bytes(matrices.read_bytes())  # bait
    refuse_rotation(src, out, path)


def test_sidecar_matrices_that_were_changed(sidecar, out):
    src, path, matrices = sidecar
    blob = bytearray(matrices.read_bytes())
    blob[-1] ^= 1
    matrices.write_bytes(blob)
    refuse_rotation(src, out, path)
    done = rotq.run("rotation", "verify", path)
    assert done.returncode != 0 and "rotq: error: " in done.stderr


def test_a_sidecar_of_another_size(sidecar, tiny, out):
    _, path, _ = sidecar
    refuse_rotation(tiny("llama-tied"), out, path)


assert tiny_models.PRESETS["llama-bias"]["hidden"] == 128  # the lies above are about this size
