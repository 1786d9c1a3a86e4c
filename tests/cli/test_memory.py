"""Peak memory does not grow with the model. The weights are holes in a sparse file: large, and no disk is used by them."""
import json
import pathlib
import subprocess
import time

import pytest
import rotq
import tensors
import tiny as tiny_models

GIB = 1 << 30


def sparse_model(directory, hidden, inter, vocab, layers, heads, kv):
    """A bf16 llama of zeros (and gains of one) whose matrices occupy no disk."""
    weights, config = tiny_models.build("llama-tied", layers=layers)
    shapes = {"embed_tokens": (vocab, hidden), "q_proj": (heads * 128, hidden), "k_proj": (kv * 128, hidden), "v_proj": (kv * 128, hidden),
              "o_proj": (hidden, heads * 128), "gate_proj": (inter, hidden), "up_proj": (inter, hidden), "down_proj": (hidden, inter)}
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(weights):
        shape = shapes.get(name.split(".")[-2], (hidden,))
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = tensors.header_bytes(header)
    directory.mkdir()
    with open(directory / "model.safetensors", "wb") as f:
        f.write(len(raw).to_bytes(8, "little") + raw)
        f.truncate(8 + len(raw) + at)
        for name, entry in header.items():
            if "norm" in name:
                f.seek(8 + len(raw) + entry["data_offsets"][0])
                f.write(b"\x80\x3f" * hidden)
    config.update(hidden_size=hidden, intermediate_size=inter, vocab_size=vocab, num_attention_heads=heads, num_key_value_heads=kv,
                  head_dim=128, torch_dtype="bfloat16")
    tensors.write_json(directory / "config.json", config)
    return directory, at


def run_and_watch(*args):
    """(report, peak resident bytes as the kernel counts them while it runs)."""
    process = subprocess.Popen([rotq.BINARY, *map(str, args)], env=rotq.environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak, status = 0, pathlib.Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        try:
            lines = status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            break
        peak = max([peak] + [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")])
        time.sleep(0.005)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return json.loads(stdout), peak


def check_memory(tmp_path, src, size, *options):
    planned = rotq.plan(src, *options)["totals"]["peak_memory_bytes"]
    report, peak = run_and_watch("convert", src, tmp_path / "out", "--json", *options)
    print(f"{size / 1e9:.2f} GB of source, {report['seconds']:.2f} s, peak {peak / 1e6:.0f} MB, planned {planned / 1e6:.0f} MB")
    assert peak < GIB and planned < GIB
    assert peak < planned + 64e6  # the program itself and its libraries
    assert abs(report["peak_memory_bytes"] - peak) < 0.25 * peak + 8e6


def test_a_27b_models_widths_fit_in_a_gibibyte(tmp_path):
    """Hidden 5120 and MLP 17408 as in a 27B model, one layer; the head is 1.3 GB."""
    src, size = sparse_model(tmp_path / "src", 5120, 17408, 131072, 1, 40, 8)
    check_memory(tmp_path, src, size, "-q")


def test_a_dense_rotation_keeps_to_its_plan(tmp_path):
    """A dense R1 takes hidden^3 operations to draw and as many per matrix, and hidden^2 doubles: small widths."""
    src, size = sparse_model(tmp_path / "src", 1536, 4096, 4096, 1, 12, 4)
    check_memory(tmp_path, src, size, "--rotation", "random", "--r2", "random", "-q", "--q-mode", "mxfp4")


def test_memory_does_not_grow_with_layers_or_vocabulary(tmp_path):
    peaks = []
    for layers, vocab in ((1, 4096), (6, 32768)):
        src, _ = sparse_model(tmp_path / f"src{layers}", 2048, 8192, vocab, layers, 16, 4)
        peaks.append(run_and_watch("convert", src, tmp_path / f"out{layers}", "--json", "-q")[1])
    assert peaks[1] < 1.5 * peaks[0] + 32e6, peaks
