# Sourced by ./demo and ./check: what is missing is installed, what is there is left alone.

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# have cmd:NAME | pc:PKGCONFIG | py:MODULE[,MODULE] | deb:PACKAGE
have() {
    case $1 in
        cmd:*) command -v "${1#cmd:}" >/dev/null ;;
        pc:*) pkg-config --exists "${1#pc:}" 2>/dev/null ;;
        py:*) python3 -c "import ${1#py:}" 2>/dev/null ;;
        deb:*) [ "$(dpkg-query -W -f='${db:Status-Status}' "${1#deb:}" 2>/dev/null)" = installed ] ;;
    esac
}

# need CHECK=PACKAGE ...: installs the Debian packages whose check fails.
need() {
    local pair missing=() root=()
    for pair in "$@"; do have "${pair%%=*}" || missing+=("${pair#*=}"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "missing: ${missing[*]} (Debian package names); there is no apt-get here to install them"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "missing: ${missing[*]}; run as root, or install sudo"
        root=(sudo)
    fi
    say "installing ${missing[*]}"
    local log
    log=$(mktemp)
    if ! { "${root[@]}" apt-get -q -o DPkg::Lock::Timeout=300 update &&
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install \
            --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        rm -f "$log"
        die "cannot install ${missing[*]}"
    fi
    rm -f "$log"
}

need_build_tools() {
    need cmd:cmake=cmake cmd:ninja=ninja-build cmd:gcc=gcc deb:libc6-dev=libc6-dev cmd:pkg-config=pkgconf cmd:python3=python3
    need pc:jansson=libjansson-dev pc:libcrypto=libssl-dev pc:cmocka=libcmocka-dev py:venv,ensurepip=python3-venv \
        deb:ca-certificates=ca-certificates
}

# need_venv REQUIREMENTS [SUPERSET]: .venv with these pinned packages; nothing is done when it has them, or a superset.
need_venv() {
    local pins mark file
    pins=$(cat tools/requirements*.txt | sha256sum | cut -c1-16)
    for file in "$@"; do
        mark=.venv/.$(basename "$file" .txt)-$pins
        [ ! -f "$mark" ] || [ ! -x .venv/bin/python ] || return 0
    done
    mark=.venv/.$(basename "$1" .txt)-$pins
    say "making .venv with the packages of $1"
    [ -x .venv/bin/python ] || python3 -m venv .venv || die "cannot make a virtual environment"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 5 -r "$1" ||
        die "cannot install the Python packages of $1"
    : >"$mark"
}
