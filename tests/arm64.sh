#!/bin/sh
# Cross-compiles the kernels for AArch64 and compares NEON with the scalar reference under emulation.
# Needs aarch64-linux-gnu-gcc and qemu-aarch64-static; only libc and libm of the target.
set -eu
cd "$(dirname "$0")/.."
CC=${ARM64_CC:-aarch64-linux-gnu-gcc}
QEMU=${ARM64_QEMU:-qemu-aarch64-static}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
kernels="src/kernels/dispatch.c src/kernels/ref/*.c src/kernels/arm/*.c src/tensor/dtype.c"
compile() {
    target=$1
    shift
    # shellcheck disable=SC2086
    "$CC" -std=c17 -O2 -ffunction-sections -Wl,--gc-sections -ffp-contract=off -static -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE \
        -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wvla -Wstrict-prototypes -Werror -Wno-psabi \
        -Itests/support/bare -Iinclude -Isrc -Itests ${ARM64_EXTRA:-} $kernels "$@" -lm -lpthread -o "$out/$target"
}
compile quantize tests/kernels/quantize_compare_main.c
"$QEMU" "$out/quantize"
compile fold tests/kernels/fold_test.c tests/support/bare/fail.c src/linalg/fwht_plan.c src/linalg/hadamard.c
"$QEMU" "$out/fold"
