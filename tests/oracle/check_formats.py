#!/usr/bin/env python3
"""Does a quantized MLX model directory hold exactly what stock MLX would write?

Every module NAME with NAME.scales in QUANT_DIR is quantized again from SOURCE_DIR with stock mx.quantize, by the
settings that QUANT_DIR/config.json gives for it, and compared bit for bit (packed words, scales, biases). Every other
tensor is compared bit for bit with its source. SOURCE_DIR is what was quantized, i.e. the folded weights.
Exit code: 0 identical, 1 not.          Usage: check_formats.py QUANT_DIR SOURCE_DIR [--verbose]
"""
import argparse
import json
import pathlib
import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
DEFAULTS = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
GOOD = ("identical", "dense-same")


def load_tensors(directory):
    out = {}
    for path in sorted(pathlib.Path(directory).glob("model*.safetensors")):
        for name, tensor in mx.load(str(path)).items():
            assert name not in out, f"{name} is in two files"
            out[name] = tensor
    assert out, f"no model*.safetensors in {directory}"
    return out


def bits(a):
    """The stored bits, so that NaN payloads and -0 count."""
    if a.dtype in (mx.bfloat16, mx.float16):
        a = a.view(mx.uint16)
    elif a.dtype == mx.float32:
        a = a.view(mx.uint32)
    return np.array(a)


def difference(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
    n = int((bits(a) != bits(b)).sum())
    return f"{n} of {a.size} differ" if n else None


def settings(quantization, path, weight, scales, width):
    """((group_size, bits, mode), None) as the strictest loader resolves them, or (None, problem)."""
    own = quantization.get(path, quantization)
    if own is False:
        return None, "config says dense but there are scales"
    extra = set(own) - {"group_size", "bits", "mode"} if own is not quantization else set()
    if extra:
        return None, f"unknown keys {sorted(extra)}"
    if not {"group_size", "bits", "mode"} <= set(own):
        return None, "group_size, bits or mode is not spelled out"
    group, width_bits, mode = own["group_size"], own["bits"], own["mode"]
    if weight.shape[-1] * 32 != width * width_bits or scales.shape[-1] * group != width:
        return None, f"{weight.shape} and {scales.shape} do not fit width {width}, group {group}, bits {width_bits}"
    if (scales.dtype == mx.uint8) != (mode != "affine"):
        return None, f"scales of {scales.dtype} do not fit {mode}"
    return (group, width_bits, mode), None


def check_index(directory, tensors, verdicts):
    index = json.loads((pathlib.Path(directory) / "model.safetensors.index.json").read_text())
    where = {}
    for path in pathlib.Path(directory).glob("model*.safetensors"):
        where.update({name: path.name for name in mx.load(str(path))})
    if index["weight_map"] != where:
        verdicts.append(("bad-index", "weight_map", "disagrees with the files"))
    if list(index["weight_map"]) != sorted(index["weight_map"]):
        verdicts.append(("bad-index", "weight_map", "is not sorted"))
    total = sum(t.nbytes for t in tensors.values())
    if index["metadata"]["total_size"] != total:
        verdicts.append(("bad-index", "total_size", f"{index['metadata']['total_size']} instead of {total}"))


def check(quant_dir, source_dir):
    """[(verdict, name, detail)]; verdicts outside GOOD are findings."""
    q, src = load_tensors(quant_dir), load_tensors(source_dir)
    config = json.loads((pathlib.Path(quant_dir) / "config.json").read_text())
    quantization, verdicts = config["quantization"], []
    if config.get("quantization_config") != quantization:
        verdicts.append(("bad-config", "quantization_config", "is not the mirror of quantization"))
    check_index(quant_dir, q, verdicts)
    done = set()
    for path in sorted(n[:-len(".scales")] for n in q if n.endswith(".scales")):
        done |= {path + part for part in (".weight", ".scales", ".biases")}
        w = src.get(path + ".weight")
        if w is None:
            verdicts.append(("no-source", path, ""))
            continue
        how, problem = settings(quantization, path, q[path + ".weight"], q[path + ".scales"], w.shape[-1])
        if problem:
            verdicts.append(("bad-config", path, problem))
            continue
        group, width_bits, mode = how
        want = mx.quantize(w, group_size=group, bits=width_bits, mode=mode)
        findings = []
        for part, tensor in zip(("weight", "scales", "biases"), want):
            got = q.get(f"{path}.{part}")
            found = "missing" if got is None else difference(got, tensor)
            if found:
                findings.append(f"{part}: {found}")
        if len(want) == 2 and path + ".biases" in q:
            findings.append("biases: must not exist")
        verdicts.append(("differs" if findings else "identical", path, f"[{mode} g{group} b{width_bits}] " + "; ".join(findings)))
    for name in sorted(set(q) - done):
        path = name.removesuffix(".weight")
        if isinstance(quantization.get(path), dict):
            verdicts.append(("bad-config", name, "config says quantized but there are no scales"))
        elif name not in src:
            verdicts.append(("no-source", name, ""))
        else:
            found = difference(q[name], src[name])
            verdicts.append(("dense-differs" if found else "dense-same", name, found or ""))
    verdicts += [("lost", name, "is not in the output") for name in sorted(set(src) - set(q))]
    return verdicts


def findings(verdicts):
    return [" ".join(v) for v in verdicts if v[0] not in GOOD]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("quant_dir"), ap.add_argument("source_dir")
    ap.add_argument("--verbose", action="store_true", help="also list what is identical")
    a = ap.parse_args()
    verdicts = check(a.quant_dir, a.source_dir)
    for v in verdicts:
        if a.verbose or v[0] not in GOOD:
            print(*v)
    bad = len(findings(verdicts))
    print(f"{len(verdicts) - bad} tensors identical, {bad} not")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
