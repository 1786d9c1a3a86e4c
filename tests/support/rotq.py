"""Running the rotq program from tests: what it printed, what it left behind."""
import hashlib
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = pathlib.Path(os.environ.get("ROTQ_BINARY", ROOT / "build" / "rotq")).resolve()
EXIT = {"usage": 2, "io": 3, "format": 5, "shape": 6, "missing": 7, "unsupported": 8, "nonfinite": 9, "exists": 10,
        "mismatch": 11, "interrupted": 130}  # include/rotq/error.h


def environment(**changes):
    """Without LD_PRELOAD: the BLAS that speeds up mlx is no business of rotq."""
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "ROTQ_SIMD")}
    env.update({k: str(v) for k, v in changes.items()})
    return env


def run(*args, env=None, timeout=300, **kwargs):
    return subprocess.run([BINARY, *map(str, args)], env=env or environment(), capture_output=True, text=True,
                          timeout=timeout, stdin=subprocess.DEVNULL, **kwargs)


def succeed(*args, **kwargs):
    done = run(*args, **kwargs)
    assert done.returncode == 0, f"rotq {' '.join(map(str, args))}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def convert(src, dst, *options, **kwargs):
    """The report that `convert --json` prints."""
    return json.loads(succeed("convert", src, dst, "--json", *options, **kwargs).stdout)


def plan(src, *options):
    return json.loads(succeed("plan", src, "--json", *options).stdout)


def note_codes(report):
    return {n["code"] for n in report["notes"]}


def beside(dst):
    """Everything in dst's parent except dst: temporary directories that were left behind show up here."""
    return sorted(p.name for p in pathlib.Path(dst).parent.iterdir() if p.name != pathlib.Path(dst).name)


def refuse(src, dst, *options, code, naming, **kwargs):
    """The conversion fails with this exit code and one `rotq: error:` sentence that contains every word of `naming`;
    dst does not exist and nothing new lies beside it. Returns the sentence."""
    before, existed = beside(dst), pathlib.Path(dst).exists()
    done = run("convert", src, dst, "--quiet", *options, **kwargs)
    words = [naming] if isinstance(naming, str) else naming
    told = f"exit {done.returncode}\nstdout: {done.stdout}\nstderr: {done.stderr}"
    assert done.returncode == EXIT[code], told
    errors = [line for line in done.stderr.splitlines() if line.startswith("rotq: error: ")]
    assert len(errors) == 1, told
    missing = [w for w in words if w not in errors[0]]
    assert not missing, f"{missing} not named: {told}"
    assert pathlib.Path(dst).exists() == existed, "an output directory appeared"
    assert beside(dst) == before, f"left behind: {set(beside(dst)) - set(before)}"
    return errors[0]


def digests(directory, leave_out=()):
    """{file name: SHA-256} of everything in a directory."""
    return {p.relative_to(directory).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(pathlib.Path(directory).rglob("*")) if p.is_file() and p.name not in leave_out}
