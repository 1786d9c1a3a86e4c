#!/usr/bin/env python3
"""Are rq_quantize and rq_dequantize stock mx.quantize and mx.dequantize, byte for byte?

usage: quantize_oracle.py QUANTIZE_TOOL [--seeds N] [--method-errors]

QUANTIZE_TOOL is the built rotq_quantize_tool. Runs random and adversarial tensors through every format and storage
dtype on the CPU. Groups whose exponent stock wraps (the one deviation, docs/formats.md) must read back as at most a
few times their largest value instead. Then checks that `search` never has a larger error than `mlx`.
Exit code 1 on any difference. Set ROTQ_SIMD to choose the kernel version.
"""
import argparse
import subprocess
import sys

import mlx.core as mx
import numpy as np

f32 = np.float32
DTYPES = {"BF16": mx.bfloat16, "F16": mx.float16, "F32": mx.float32}
FORMATS = [("affine", b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
FORMATS += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
LARGEST = {"mxfp4": 6, "mxfp8": 448, "nvfp4": 6}


def families(seed):
    """name -> [24, 384] float32; not rounded to a storage dtype."""
    r = np.random.default_rng(seed)
    shape = (24, 384)
    n = r.standard_normal(shape)
    yield "normal", n * 0.02
    yield "wide normal", n * 3
    yield "heavy-tailed", r.standard_t(2, shape) * 0.02
    yield "positive", np.abs(n) + 0.1
    yield "negative", -np.abs(n)
    yield "mixed zeros", np.where(r.random(shape) < 0.5, 0.0, -0.0)
    yield "zeros", np.zeros(shape)
    yield "negative zeros", np.full(shape, -0.0)
    yield "sparse", n * (r.random(shape) < 0.05)
    yield "tiny", n * 1e-7
    yield "at the affine floor", n * 5e-7
    yield "subnormal", n * 1e-39
    yield "at the E8M0 floor", n * np.exp2(r.integers(-140, -110, (24, 1)))
    yield "f16 subnormal", n * np.exp2(r.integers(-26, -10, (24, 1)))
    yield "huge", np.clip(n * 6e4, -65000, 65000)
    yield "near the end of f32", np.clip(n, -3, 3) * 1e38
    yield "constant", np.repeat(r.standard_normal((24, 1)), 384, 1)
    yield "one-hot", np.eye(24, 384) * 0.3 + np.roll(np.eye(24, 384), 200, 1) * -7
    yield "quarter ties", r.integers(-40, 41, shape) * 0.25
    yield "code ties", (r.integers(0, 31, shape) - 15) * 0.5
    yield "thresholds", np.sign(n) * r.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6], shape) * np.exp2(r.integers(-8, 8, (24, 1)))
    yield "wild row scales", n * np.exp2(r.integers(-30, 15, (24, 1)).astype(float))
    yield "wild element scales", n * np.exp2(r.integers(-24, 10, shape).astype(float))
    holes = n.copy()
    holes[r.random(shape) < 0.02] = np.nan
    yield "NaN", holes
    holes = n.copy()
    holes[r.random(shape) < 0.02] = -np.nan
    holes[r.random(shape) < 0.02] = 0
    yield "negative NaN", holes
    holes = n.copy()
    holes[r.random(shape) < 0.01] = np.inf
    holes[r.random(shape) < 0.01] = -np.inf
    holes[r.random(shape) < 0.02] = -0.0
    yield "infinity", holes
    yield "only NaN", np.full(shape, np.nan)


class Tool:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, mode, bits, group, method, dtype, w):
        """codes u8, scales, biases (or None) as raw integers, dequantized f32"""
        rows, cols = w.shape
        request = f"{mode} {bits} {group} {method} {dtype} {rows} {cols}\n".encode() + w.astype("<f4").tobytes()
        self.process.stdin.write(request)
        self.process.stdin.flush()
        kind = "u1" if mode != "affine" else "<u4" if dtype == "F32" else "<u2"

        def read(shape, kind):
            n = int(np.prod(shape)) * np.dtype(kind).itemsize
            data = self.process.stdout.read(n)
            if len(data) != n:
                sys.exit("the tool stopped early")
            return np.frombuffer(data, kind).reshape(shape)

        codes = read((rows, cols * bits // 8), "u1")
        scales = read((rows, cols // group), kind)
        biases = read((rows, cols // group), kind) if mode == "affine" else None
        return codes, scales, biases, read((rows, cols), "<f4")


def raw(a):
    if a.dtype in (mx.bfloat16, mx.float16):
        return np.array(a.view(mx.uint16))
    if a.dtype == mx.float32:
        return np.array(a.view(mx.uint32))
    return np.array(a)


def values(a):
    return np.array(a.astype(mx.float32))


def same_values(a, b):
    return (a == b) | (np.isnan(a) & np.isnan(b))


def wrapped_groups(mode, group, w, dtype):
    """Which groups have an exponent below -127, where stock wraps the byte."""
    if mode not in ("mxfp4", "mxfp8"):
        return np.zeros((w.shape[0], w.shape[1] // group), bool)
    amax = np.abs(w.reshape(w.shape[0], -1, group)).max(-1)
    s = values(mx.array((amax / f32(LARGEST[mode])).astype(f32)).astype(DTYPES[dtype]))
    return (s > 0) & (s <= np.ldexp(1.0, -128))


def compare_mlx(tool, counts, label, mode, bits, group, dtype, w):
    stock = mx.quantize(mx.array(w).astype(DTYPES[dtype]), group_size=group, bits=bits, mode=mode)
    back = mx.dequantize(*stock, group_size=group, bits=bits, mode=mode, dtype=DTYPES[dtype])
    mx.eval(*stock, back)
    ours = tool.run(mode, bits, group, "mlx", dtype, w)
    theirs = [raw(stock[0]).view(np.uint8), raw(stock[1]), raw(stock[2]) if len(stock) == 3 else None, values(back)]
    wrapped = wrapped_groups(mode, group, w, dtype)
    per_group = lambda a: np.repeat(wrapped, a.shape[1] // wrapped.shape[1], 1)
    for what, a, b in zip(("codes", "scales", "biases", "values"), ours, theirs):
        if b is None:
            continue
        equal = same_values(a, b) if what == "values" else a == b
        if what in ("scales", "biases") and mode == "affine":  # a NaN scale is a NaN scale, whatever its payload
            bits_nan = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}[dtype]
            sign = {"BF16": 0x8000, "F16": 0x8000, "F32": 0x80000000}[dtype]
            equal |= ((a & ~np.array(sign, a.dtype)) > bits_nan) & ((b & ~np.array(sign, b.dtype)) > bits_nan)
        equal |= per_group(equal)
        counts["cases"] += 1
        if not equal.all():
            counts["differ"] += 1
            at = tuple(np.argwhere(~equal)[0])
            print(f"differs: {label}: {what}: {np.count_nonzero(~equal)} of {equal.size}, first at {at}: "
                  f"{a[at]} instead of {b[at]}")
    if wrapped.any():
        counts["wrapped"] += int(wrapped.sum())
        w_groups, d = (x.reshape(x.shape[0], -1, group) for x in (w, ours[3]))
        if (np.abs(d).max(-1) > 2 * np.abs(w_groups).max(-1) + np.ldexp(1.0, -133))[wrapped].any() or ours[1][wrapped].any():
            counts["differ"] += 1
            print(f"differs: {label}: a group below the exponent range does not read back small")


def unrounded(mode, bits, group, dtype, out):
    """code * scale + bias in f64, the values before any rounding of the reader."""
    codes, scales, biases, _ = out
    rows = codes.shape[0]
    stream = np.unpackbits(codes, axis=1, bitorder="little").reshape(rows, -1, bits)
    q = (stream << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.int64) if bits < 8 else codes.astype(np.int64)
    q = q.reshape(rows, -1, group)
    if mode == "affine":
        as_f = lambda a: values(mx.array(a).view(DTYPES[dtype])).astype(np.float64)[..., None]
        return (q * as_f(scales) + as_f(biases)).reshape(rows, -1)
    e4m3 = np.array([(c & 7) / 512 if c & 127 < 8 else (8 + (c & 7)) * 2.0 ** ((c >> 3 & 15) - 10) for c in range(256)])
    e4m3[128:] *= -1
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    e2m1 = np.concatenate([e2m1, -e2m1])
    s = e4m3[scales] if mode == "nvfp4" else np.ldexp(1.0, scales.astype(np.int64) - 127)
    return ((e2m1 if bits == 4 else e4m3)[q] * s[..., None]).reshape(rows, -1)


def compare_search(tool, counts, errors, label, mode, bits, group, dtype, w):
    rounded = values(mx.array(w).astype(DTYPES[dtype]))
    sums = []
    for method, x in (("mlx", rounded), ("search", w)):
        back = unrounded(mode, bits, group, dtype, tool.run(mode, bits, group, method, dtype, x))
        sums.append(((back - w.astype(np.float64)) ** 2).reshape(w.shape[0], -1, group).sum(-1))
    counts["cases"] += 1
    # Search compares f32 sums of squares, so it may take a candidate that is worse by their rounding.
    floor = 1e-12 * (w.astype(np.float64) ** 2).reshape(w.shape[0], -1, group).sum(-1)
    if (sums[1] > sums[0] * (1 + 1e-5) + floor).any():
        counts["differ"] += 1
        worst = np.nanmax(sums[1] / np.maximum(sums[0], 1e-300))
        print(f"worse: {label}: search has {worst:.6f} times the squared error of mlx in some group")
    key = (mode, bits, group, dtype)
    if label.startswith("normal "):
        total = errors.setdefault(key, np.zeros(2))
        total += [s.sum() for s in sums]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--method-errors", action="store_true", help="print how much search gains on normal weights")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    tool = Tool(args.tool)
    counts = {"cases": 0, "differ": 0, "wrapped": 0}
    errors = {}
    with np.errstate(all="ignore"):
        for seed in range(args.seeds):
            for family, w in families(seed):
                w = w.astype(f32)
                for dtype, mx_dtype in DTYPES.items():
                    rounded = values(mx.array(w).astype(mx_dtype))
                    for mode, bits, group in FORMATS:
                        label = f"{family} {dtype} {mode} {bits} bits, groups of {group}, seed {seed}"
                        compare_mlx(tool, counts, label, mode, bits, group, dtype, rounded)
                        if np.isfinite(rounded).all():
                            compare_search(tool, counts, errors, label, mode, bits, group, dtype, w)
    if args.method_errors:
        for (mode, bits, group, dtype), (a, b) in errors.items():
            print(f"{mode} {bits} bits, groups of {group}, {dtype}: search has {b / a:.4f} of mlx's squared error")
    print(f"quantizers against mlx {mx.__version__}: {counts['cases']} comparisons, {counts['wrapped']} groups below the exponent range, "
          f"{counts['differ']} differences")
    return 1 if counts["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
