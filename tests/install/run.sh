#!/usr/bin/env bash
# cmake --install works, headers stand alone in C and C++, programs build against both libraries by pkg-config alone, and
# the shared library exports only rq_ names.        Usage: run.sh BUILD_DIR
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
bad=0
try() { # NAME COMMAND...
    local name=$1
    shift
    if "$@"; then echo "[       OK ] $name"; else
        echo "failed: $name"
        bad=$((bad + 1))
    fi
}

install_it() { cmake --install "$build" --prefix "$prefix" >"$prefix/log" || { cat "$prefix/log"; return 1; }; }
headers() { # COMPILER...
    local h
    for h in "$prefix"/include/rotq/*.h; do
        "$@" -fsyntax-only -Wall -Wextra -Wpedantic -Werror -I"$prefix/include" "$h" || return 1
    done
}
pc() { pkg-config "$@" rotq; }
shared() {
    # shellcheck disable=SC2046
    gcc -std=c17 -Wall -Werror $(pc --cflags) "$here/consumer.c" -o "$prefix/shared" $(pc --libs) &&
        LD_LIBRARY_PATH=$libdir "$prefix/shared" && ldd "$prefix/shared" | grep -q librotq.so
}
static() {
    # shellcheck disable=SC2046
    gcc -std=c17 -Wall -Werror $(pc --cflags) "$here/consumer.c" -o "$prefix/static" "$libdir/librotq.a" \
        $(pc --libs --static | sed 's/-lrotq//') && "$prefix/static"
}
exports() {
    local names
    names=$(nm -D --defined-only "$libdir/librotq.so" | awk '{print $3}' | sed 's/@.*//')
    [ "$(grep -c '^rq_' <<<"$names")" -gt 20 ] && ! grep -v '^rq_' <<<"$names"
}
program() { env -u LD_LIBRARY_PATH "$prefix/bin/rotq" --version; }

try "cmake --install works" install_it
libdir=$(dirname "$(find "$prefix" -name librotq.a)")
export PKG_CONFIG_PATH=$libdir/pkgconfig
try "every header stands alone in C" headers gcc -std=c17 -x c
try "every header stands alone in C++" headers clang++ -std=c++17 -x c++ -Wno-pragma-once-outside-header
try "a program builds against the shared library and runs" shared
try "a program builds against the static library and runs" static
try "the shared library exports rq_ names only" exports
try "the installed program runs" program
[ $bad -eq 0 ] || echo "[  FAILED  ] $bad test(s), listed below"
[ $bad -eq 0 ]
