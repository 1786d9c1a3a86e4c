"""The same input, options and seed give the same bytes."""
import os
import shutil

import pytest
import rotq
import tensors

OPTIONS = [["-q"], ["-q", "--q-mode", "nvfp4", "--scales", "search", "--rotation", "random"], ["--dtype", "float32"],
           ["--recipe", "tq-mixed", "--rotation", "block:32", "--r2", "random", "--fold-precision", "fp32"]]
IDS = ["affine", "nvfp4-search", "float32", "mixed-fp32"]


def cpu_kernels():
    found = open("/proc/cpuinfo", encoding="ascii", errors="replace").read() if os.path.exists("/proc/cpuinfo") else ""
    return ["scalar"] + [k for k, flag in (("avx2", " avx2"), ("avx512", " avx512bw")) if flag in found]


@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
def test_threads_do_not_change_a_byte(tiny, out, options):
    src = tiny("qwen3", dtype="BF16")
    expected = None
    for threads in (1, 2, 3, 8):
        report = rotq.convert(src, out, "--force", "--threads", threads, *options)
        assert report["threads"] <= threads
        got = rotq.digests(out)
        expected = expected or got
        assert got == expected, f"{threads} threads"


@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
@pytest.mark.parametrize("preset", ["llama-bias", "qwen3"])
def test_kernels_do_not_change_a_byte(tiny, out, preset, options):
    src = tiny(preset, dtype="BF16")
    expected = None
    for kernel in cpu_kernels():
        report = rotq.convert(src, out, "--force", *options, env=rotq.environment(ROTQ_SIMD=kernel))
        assert report["kernel"] == kernel
        got = rotq.digests(out)
        expected = expected or got
        assert got == expected, kernel


@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
def test_two_runs_give_the_same_directory(tiny, out, options):
    src = tiny("llama-tied")
    rotq.convert(src, out, *options)
    first = rotq.digests(out)
    rotq.convert(src, out.parent / "second", *options)
    assert rotq.digests(out.parent / "second") == first
    assert {"config.json", "rotation.json", "optiq_metadata.json", "README.md", "model.safetensors.index.json"} <= set(first)


def test_shards_of_the_source_do_not_change_weights(tiny, out):
    rotq.convert(tiny("qwen3", shards=1), out, "-q")
    rotq.convert(tiny("qwen3", shards=4), out.parent / "sharded", "-q")
    one, many = rotq.digests(out), rotq.digests(out.parent / "sharded")
    for name in one:
        if name.endswith(".safetensors") or name in ("config.json", "model.safetensors.index.json", "rotation.json"):
            assert one[name] == many[name], name


def test_renaming_the_source_and_working_elsewhere_changes_no_weight(tiny, out, tmp_path):
    src = tiny("llama-tied")
    rotq.convert(src, out, "-q")
    moved = tmp_path / "a different name"
    shutil.copytree(src, moved)
    rotq.convert(moved.name, out.parent / "again", "-q", cwd=tmp_path)
    may_name_the_source = ("README.md", "optiq_metadata.json")
    assert rotq.digests(out, may_name_the_source) == rotq.digests(out.parent / "again", may_name_the_source)


def test_renamed_shards_change_no_weight(own, tiny, out):
    """B02: the result does not depend on the order of directory entries."""
    src = own("llama-tied", shards=3)
    rotq.convert(src, out, "-q")
    index = tensors.read_json(src / "model.safetensors.index.json")
    new_name = {f"model-0000{i}-of-00003.safetensors": f"model-part-{'zya'[i - 1]}.safetensors" for i in (1, 2, 3)}
    for old, new in new_name.items():
        (src / old).rename(src / new)
    index["weight_map"] = {n: new_name[f] for n, f in index["weight_map"].items()}
    tensors.write_json(src / "model.safetensors.index.json", index)
    rotq.convert(src, out.parent / "again", "-q")
    weights = ("README.md", "optiq_metadata.json")
    assert rotq.digests(out, weights) == rotq.digests(out.parent / "again", weights)
