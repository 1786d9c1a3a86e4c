"""The output directory appears complete or not at all, and nothing else is harmed."""
import ctypes
import errno
import os
import pathlib
import resource
import signal
import subprocess
import time

import numpy as np
import pytest
import rotq
import tensors

MS_RDONLY = 1


def mount(directory, options):
    """A tmpfs on `directory`, or a skip where this process may not mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(directory), b"tmpfs", 0, options.encode()) != 0:
        code = ctypes.get_errno()
        if code in (errno.EPERM, errno.EACCES):
            pytest.skip("mounting a small file system needs root")
        raise OSError(code, os.strerror(code))
    return libc


@pytest.fixture
def small_disk(tmp_path):
    """A directory with room for 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    libc = mount(disk, "size=256k")
    yield disk
    libc.umount2(os.fsencode(disk), 2)


@pytest.fixture(scope="session")
def large(tiny):
    """Large enough that a conversion with one thread can be met half-way."""
    return tiny("llama-tied", dtype="BF16", hidden=1024, heads=16, kv=4, head_dim=64, inter=4096, layers=4)


SLOW = ["-q", "--scales", "search", "--threads", "1"]


def start_and_meet(src, dst, *options):
    """The process of a conversion that has begun to write."""
    process = subprocess.Popen([rotq.BINARY, "convert", src, dst, *options], env=rotq.environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if any(f.is_file() for d in dst.parent.glob(".*") for f in d.glob("*")):
            return process
        time.sleep(0.002)
    pytest.fail(f"was not met half-way: exit {process.poll()}, {process.communicate()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_interrupting_leaves_nothing(large, out, number):
    process = start_and_meet(large, out, *SLOW)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == rotq.EXIT["interrupted"], stderr
    assert "rotq: error: " in stderr
    assert list(out.parent.iterdir()) == []


def test_a_kill_leaves_nothing_that_loads_and_the_next_run_works(large, out):
    process = start_and_meet(large, out, *SLOW)
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    left = [p for p in out.parent.rglob("*") if p.is_file()]
    assert left and not [p for p in left if p.suffix == ".safetensors"]
    assert all(p.name.startswith(".") for p in out.parent.iterdir())
    rotq.convert(large, out, "-q")
    assert rotq.succeed("check", out)


def test_an_existing_output_is_refused_and_kept(tiny, out):
    src = tiny("llama-tied")
    rotq.convert(src, out, "-q")
    before = rotq.digests(out)
    rotq.refuse(src, out, "-q", "--seed", "9", code="exists", naming=[str(out), "--force"])
    assert rotq.digests(out) == before


def test_force_replaces_an_existing_output_entirely(tiny, out):
    src = tiny("llama-tied")
    rotq.convert(src, out, "-q")
    tensors.write_file(out / "model-stale.safetensors", {"stale": tensors.encode(np.ones(3), "F32")})
    rotq.convert(src, out, "--force", "--dtype", "float32")
    rotq.convert(src, out.parent / "fresh", "--dtype", "float32")
    assert rotq.digests(out) == rotq.digests(out.parent / "fresh")


def test_a_failed_run_with_force_keeps_the_old_output(own, out):
    src = own("llama-tied")
    rotq.convert(src, out, "-q")
    before = rotq.digests(out)
    stored = tensors.read_model(src)
    w = tensors.values(stored["model.layers.2.mlp.down_proj.weight"])
    w[0, 0] = np.nan
    stored["model.layers.2.mlp.down_proj.weight"] = tensors.encode(w, "F32")
    tensors.write_file(src / "model.safetensors", stored)
    rotq.refuse(src, out, "--force", "-q", code="nonfinite", naming="down_proj")
    assert rotq.digests(out) == before


def test_force_does_not_replace_what_is_no_model(tiny, out):
    out.mkdir()
    (out / "thesis.txt").write_text("years of work\n")
    rotq.refuse(tiny("llama-tied"), out, "--force", code="exists", naming=str(out))
    assert (out / "thesis.txt").read_text() == "years of work\n"


@pytest.mark.parametrize("spelling", ["{}", "{}/", "{}/."])
def test_the_source_cannot_be_the_output(own, spelling):
    src = own("llama-tied")
    before = rotq.digests(src)
    done = rotq.run("convert", src, spelling.format(src), "--force")
    assert done.returncode not in (0, -signal.SIGSEGV) and "rotq: error: " in done.stderr
    assert rotq.digests(src) == before


def test_a_full_disk_is_an_error_and_leaves_nothing(tiny, small_disk):
    done = rotq.run("convert", tiny("llama-tied"), small_disk / "model", "--dtype", "float32")
    assert done.returncode == rotq.EXIT["io"], done.stderr
    assert "rotq: error: " in done.stderr and str(small_disk) in done.stderr
    assert list(small_disk.iterdir()) == []


def test_a_file_size_limit_is_an_error_and_leaves_nothing(tiny, out):
    limit = 64 << 10
    rotq.refuse(tiny("llama-tied"), out, "--dtype", "float32", code="io", naming="too large",
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))


def test_a_missing_parent_is_an_error(tiny, tmp_path):
    done = rotq.run("convert", tiny("llama-tied"), tmp_path / "no" / "such" / "model")
    assert done.returncode == rotq.EXIT["missing"] and str(tmp_path / "no" / "such") in done.stderr
    assert not (tmp_path / "no").exists()


def test_a_parent_that_is_a_file_is_an_error(tiny, tmp_path):
    (tmp_path / "file").write_text("x")
    done = rotq.run("convert", tiny("llama-tied"), tmp_path / "file" / "model")
    assert done.returncode in (rotq.EXIT["io"], rotq.EXIT["missing"]) and str(tmp_path / "file") in done.stderr


def test_a_read_only_parent_is_an_error(tiny, tmp_path):
    parent = tmp_path / "parent"
    parent.mkdir()
    libc = None
    if os.geteuid() == 0:
        libc = mount(parent, "size=64k,ro")
        assert libc.mount(b"tmpfs", os.fsencode(parent), b"tmpfs", 32 | MS_RDONLY, b"") == 0  # MS_REMOUNT
    else:
        parent.chmod(0o500)
    try:
        done = rotq.run("convert", tiny("llama-tied"), parent / "model")
        assert done.returncode == rotq.EXIT["io"] and "rotq: error: " in done.stderr
        assert list(parent.iterdir()) == []
    finally:
        if libc:
            libc.umount2(os.fsencode(parent), 2)
        else:
            parent.chmod(0o700)


def test_a_source_that_shrinks_is_an_error_not_a_crash(own, out):
    """The header is intact, the data ends early: found when the file is opened."""
    src = own("llama-tied")
    path = src / "model.safetensors"
    with open(path, "r+b") as f:
        f.truncate(path.stat().st_size - 1)
    rotq.refuse(src, out, code="format", naming="model.safetensors")


def test_output_files_are_readable_by_others(tiny, out):
    rotq.convert(tiny("llama-tied"), out, "-q", umask=0o022)
    assert out.stat().st_mode & 0o777 == 0o755
    assert {p.stat().st_mode & 0o777 for p in pathlib.Path(out).iterdir()} == {0o644}
