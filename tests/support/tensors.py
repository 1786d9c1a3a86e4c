"""Safetensors files with numpy alone: every dtype keeps its stored bits, so that comparisons are exact.

A tensor is a pair (tag, bits): the safetensors dtype name and an array of the stored integers or floats. BF16 lives in
uint16 and the F8 types in uint8. `values` decodes to float64, `encode` rounds to nearest even.
"""
import json
import pathlib

import numpy as np

STORAGE = {"BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
           "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "BF16": np.uint16,
           "F32": np.float32, "F64": np.float64, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "F8_E8M0": np.uint8}


def bf16_bits(x):
    """float -> bf16 bit patterns, one rounding to nearest even (also from float64), NaN kept quiet."""
    x = np.asarray(x)
    with np.errstate(over="ignore", invalid="ignore"):
        f = x.astype(np.float32)
    u = f.view(np.uint32) if f.ndim else f.reshape(1).view(np.uint32).reshape(())
    if x.dtype == np.float64:  # round to odd first: then the second rounding cannot tie by accident
        inexact = (f.astype(np.float64) != x) & np.isfinite(x)
        away = np.abs(f.astype(np.float64)) > np.abs(x)
        u = np.where(inexact, np.where(away, u - 1, u) | 1, u).astype(np.uint32)
    rounded = (u.astype(np.uint64) + 0x7FFF + ((u >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (u >> 16) | 0x40, rounded).astype(np.uint16)


def bf16_values(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def e4m3_values(codes):
    """OCP E4M3: bias 7, no infinity, 0x7F and 0xFF are NaN."""
    codes = np.asarray(codes, np.uint8).astype(np.int64)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    x = np.where(exponent == 0, mantissa * 2.0 ** -9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    x = np.where((codes & 0x7F) == 0x7F, np.nan, x)
    return np.where(codes & 0x80, -x, x)


def encode(x, tag):
    if tag == "BF16":
        return tag, bf16_bits(x)
    return tag, np.ascontiguousarray(np.asarray(x).astype(STORAGE[tag]))


def values(tensor):
    tag, bits = tensor
    if tag == "BF16":
        return bf16_values(bits).astype(np.float64)
    if tag == "F8_E4M3":
        return e4m3_values(bits)
    return bits.astype(np.float64)


def header_bytes(header):
    raw = json.dumps(header, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8)


def write_raw(path, header, data=b"", claimed=None):
    """A file with this header (object or bytes) and data, right or wrong; `claimed` overrides the length prefix."""
    raw = header if isinstance(header, bytes) else header_bytes(header)
    pathlib.Path(path).write_bytes((len(raw) if claimed is None else claimed).to_bytes(8, "little") + raw + data)


def layout(tensors, metadata=None):
    """Header object and data of {name: (tag, bits)}, in order of name."""
    header, at, blobs = {}, 0, []
    if metadata is not None:
        header["__metadata__"] = metadata
    for name in sorted(tensors):
        tag, bits = tensors[name]
        blob = np.ascontiguousarray(bits).tobytes()
        header[name] = {"dtype": tag, "shape": list(np.shape(bits)), "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    return header, b"".join(blobs)


def write_file(path, tensors, metadata=None):
    write_raw(path, *layout(tensors, metadata or {"format": "pt"}))


def read_header(path):
    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        return json.loads(f.read(n)), 8 + n


def read_file(path):
    header, start = read_header(path)
    blob = np.memmap(path, np.uint8, "r")[start:] if pathlib.Path(path).stat().st_size > start else b""
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            bits = np.frombuffer(bytes(blob[begin:end]), STORAGE[entry["dtype"]])
            out[name] = entry["dtype"], bits.reshape(entry["shape"])
    return out


def model_files(directory):
    """What stock mlx-lm loads: every model*.safetensors."""
    return sorted(pathlib.Path(directory).glob("model*.safetensors"))


def read_model(directory):
    out = {}
    for path in model_files(directory):
        for name, tensor in read_file(path).items():
            assert name not in out, f"{name} is in two files of {directory}"
            out[name] = tensor
    return out


def write_model(directory, tensors, config, shards=1):
    """A model directory; tensors {name: (tag, bits)} are dealt round-robin over the shards."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    names, weight_map, total = sorted(tensors), {}, 0
    for s in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: tensors[n] for n in names[s::shards]}
        write_file(directory / file, part)
        weight_map.update({n: file for n in part})
        total += sum(np.asarray(bits).nbytes for _, bits in part.values())
    if shards > 1:
        write_json(directory / "model.safetensors.index.json",
                   {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})
    write_json(directory / "config.json", config)
    return directory


def write_json(path, value):
    pathlib.Path(path).write_text(json.dumps(value, indent=1) + "\n")


def read_json(path):
    return json.loads(pathlib.Path(path).read_text())
