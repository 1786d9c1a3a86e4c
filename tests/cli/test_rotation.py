"""`rotq rotation`: make, show, verify, export. The matrices are compared with a second implementation in this file that
shares nothing with the C code: Paley I by Legendre's formula, Sylvester by doubling, Philox with Python's integers."""
import hashlib
import json
import struct

import numpy as np
import pytest
import rotq


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def signs(seed, stream, n):
    bits = []
    for block in range(-(-n // 128)):
        for word in philox((block, 0, stream, 0), (seed & 0xFFFFFFFF, seed >> 32)):
            bits += [word >> i & 1 for i in range(32)]
    return 1.0 - 2.0 * np.array(bits[:n])


def sylvester(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h


def paley1(k):
    q = k - 1
    legendre = [0] + [1 if pow(x, (q - 1) // 2, q) == 1 else -1 for x in range(1, q)]
    h = np.eye(k)
    h[0, 1:] += 1
    h[1:, 0] -= 1
    h[1:, 1:] += np.array([[legendre[(j - i) % q] for j in range(q)] for i in range(q)])
    return h


def signed(hk, length, seed, stream):
    h = np.kron(hk, sylvester(length))
    return signs(seed, stream, len(h))[:, None] * h / np.sqrt(len(h))


def load(path):
    """A safetensors file of F64 matrices, without the library."""
    raw = path.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    data = raw[8 + size:]
    return {name: np.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]], "<f8").reshape(t["shape"])
            for name, t in header.items() if name != "__metadata__" and t["dtype"] == "F64"}


def make(out, n, *options, head_dim=8, layers=3, seed=42):
    rotq.succeed("rotation", "make", "--n", n, "--head-dim", head_dim, "--layers", layers, "--seed", seed, "--out", out,
                 *options)
    return out


def fail(*args, code, naming):
    done = rotq.run("rotation", *args)
    assert done.returncode == rotq.EXIT[code], done.stderr
    assert done.stderr.startswith("rotq: error: ")
    for word in [naming] if isinstance(naming, str) else naming:
        assert word in done.stderr
    return done


def test_hadamard_rotations_are_the_matrices_of_the_definition(tmp_path):
    make(tmp_path / "r", 80, head_dim=16, seed=(1 << 40) + 5)
    rotq.succeed("rotation", "export", tmp_path / "r", "--out", tmp_path / "all.safetensors")
    got = load(tmp_path / "all.safetensors")
    assert sorted(got) == ["R1", "R2.0", "R2.1", "R2.2"]
    assert np.abs(got["R1"] - signed(paley1(20), 4, (1 << 40) + 5, 0)).max() < 1e-15
    for layer in range(3):
        assert np.abs(got[f"R2.{layer}"] - signed(np.ones((1, 1)), 16, (1 << 40) + 5, 1 + layer)).max() < 1e-15


def test_block_rotations_repeat_one_signed_block(tmp_path):
    make(tmp_path / "r", 96, "--rotation", "block:32", "--r2", "none")
    rotq.succeed("rotation", "export", tmp_path / "r", "--out", tmp_path / "all.safetensors")
    got = load(tmp_path / "all.safetensors")
    assert list(got) == ["R1"]
    assert np.abs(got["R1"] - np.kron(np.eye(3), signed(np.ones((1, 1)), 32, 42, 0))).max() < 1e-15


def test_random_rotations_are_orthogonal_and_stored(tmp_path):
    make(tmp_path / "r", 23, "--rotation", "random", "--r2", "random", head_dim=5, layers=12)
    got = load(tmp_path / "r" / "rotation.safetensors")
    described = json.loads((tmp_path / "r" / "rotation.json").read_text())
    assert len(got) == 13
    for name, q in got.items():
        assert np.abs(q.T @ q - np.eye(len(q))).max() < 1e-13, name
    assert described["R1"]["sha256"] == hashlib.sha256(got["R1"].tobytes()).hexdigest()
    assert described["R2"]["sha256"][11] == hashlib.sha256(got["R2.11"].tobytes()).hexdigest()
    rotq.succeed("rotation", "export", tmp_path / "r", "--out", tmp_path / "all.safetensors")
    assert {k: v.tobytes() for k, v in load(tmp_path / "all.safetensors").items()} == {k: v.tobytes() for k, v in got.items()}


@pytest.mark.parametrize("options", [[], ["--rotation", "block:8"], ["--rotation", "random", "--r2", "random"],
                                     ["--rotation", "none"], ["--r2", "none"]], ids=" ".join)
def test_every_kind_verifies_and_shows_itself(tmp_path, options):
    make(tmp_path / "r", 24, *options)
    report = json.loads(rotq.succeed("rotation", "verify", tmp_path / "r", "--json").stdout)
    assert report["ok"] is True
    assert report["R1"]["orthogonality_error"] < 1e-14
    assert (report["R2"] is None) == ("none" in options)
    file = tmp_path / "r" / "rotation.json"
    assert rotq.succeed("rotation", "show", file, "--json").stdout == file.read_text()
    assert "seed 42" in rotq.succeed("rotation", "show", file).stdout
    assert "every digest" in rotq.succeed("rotation", "verify", file).stdout


def test_the_same_seed_makes_the_same_bytes_and_another_does_not(tmp_path):
    options = ["--rotation", "random", "--r2", "random"]
    a, b = make(tmp_path / "a", 24, *options), make(tmp_path / "b", 24, *options)
    assert rotq.digests(a) == rotq.digests(b)
    c = make(tmp_path / "c", 24, *options, seed=43)
    assert rotq.digests(a)["rotation.safetensors"] != rotq.digests(c)["rotation.safetensors"]


def test_a_sidecar_can_be_copied_through_the_rotation_option(tmp_path):
    a = make(tmp_path / "a", 24, "--rotation", "random")
    b = make(tmp_path / "b", 24, "--rotation", a / "rotation.json", seed=7)
    assert rotq.digests(a) == rotq.digests(b)
    fail("make", "--n", 48, "--head-dim", 8, "--layers", 3, "--rotation", a / "rotation.json", "--out", tmp_path / "c",
         code="shape", naming=["24", "48"])


def test_the_rotation_option_takes_the_directory_of_a_sidecar(tiny, tmp_path):
    a = make(tmp_path / "a", 24, "--rotation", "random")
    for name, directory in (("b", a), ("c", "a"), ("d", "a/")):  # "a" alone is neither a path with '/' nor .json
        rotq.succeed("rotation", "make", "--n", 24, "--head-dim", 8, "--layers", 3, "--rotation", directory, "--out", name,
                     cwd=tmp_path)
        assert rotq.digests(a) == rotq.digests(tmp_path / name)
    (tmp_path / "empty").mkdir()
    done = rotq.run("rotation", "make", "--n", 24, "--r2", "none", "--rotation", "empty", "--out", "e", cwd=tmp_path)
    assert done.returncode == rotq.EXIT["missing"] and "empty/rotation.json" in done.stderr

    src = tiny("qwen3")
    rotq.convert(src, tmp_path / "first", "--seed", 21)
    rotq.convert(src, tmp_path / "again", "--rotation", tmp_path / "first")
    leave_out = ("optiq_metadata.json", "README.md")  # they say where the rotations came from
    assert rotq.digests(tmp_path / "first", leave_out) == rotq.digests(tmp_path / "again", leave_out)


def test_verify_finds_a_changed_seed_and_a_changed_matrix(tmp_path):
    file = make(tmp_path / "a", 24) / "rotation.json"
    file.write_text(file.read_text().replace('"seed": 42', '"seed": 41'))
    done = fail("verify", file, "--json", code="mismatch", naming="signs_sha256")
    assert json.loads(done.stdout)["ok"] is False

    stored = make(tmp_path / "b", 24, "--rotation", "random") / "rotation.safetensors"
    raw = bytearray(stored.read_bytes())
    raw[-1] ^= 1
    stored.write_bytes(raw)
    fail("verify", tmp_path / "b", code="mismatch", naming=["R1", "SHA-256"])


def test_a_learned_matrix_can_be_brought_along(tmp_path):
    """docs/rotations.md, "Bring your own matrix"."""
    q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))
    body = q.astype("<f8").tobytes()
    header = json.dumps({"R1": {"dtype": "F64", "shape": [12, 12], "data_offsets": [0, len(body)]}}).encode()
    header += b" " * (-len(header) % 8)
    (tmp_path / "mine.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + body)
    sidecar = {"format": "rotq-rotation", "version": 1, "generator": "rotq-hadamard-1", "seed": 0,
               "R1": {"kind": "dense", "n": 12, "apply": "W@Q, Q = tensor[row, column]", "file": "mine.safetensors",
                      "tensor": "R1", "sha256": hashlib.sha256(body).hexdigest()},
               "R2": None, "deviations": []}
    (tmp_path / "mine.json").write_text(json.dumps(sidecar))
    report = json.loads(rotq.succeed("rotation", "verify", tmp_path / "mine.json", "--json").stdout)
    assert report["R1"]["kind"] == "dense" and report["R1"]["limit"] == 1e-5
    sidecar["R1"]["file"] = "../" + tmp_path.name + "/mine.safetensors"
    (tmp_path / "mine.json").write_text(json.dumps(sidecar))
    fail("verify", tmp_path / "mine.json", code="format", naming="plain name")


def test_nothing_is_overwritten(tmp_path):
    before = rotq.digests(make(tmp_path / "r", 24))
    fail("make", "--n", 24, "--r2", "none", "--out", tmp_path / "r", code="exists", naming="rotation.json")
    assert rotq.digests(tmp_path / "r") == before


@pytest.mark.parametrize("args, code, naming", [
    (["make", "--n", 92, "--r2", "none", "--out", "OUT"], "unsupported", ["92", "--rotation random"]),
    (["make", "--n", 24, "--head-dim", 92, "--layers", 1, "--out", "OUT"], "unsupported", ["92", "--r2 random", "--r2 none"]),
    (["make", "--n", 24, "--rotation", "block:16", "--r2", "none", "--out", "OUT"], "unsupported", ["16", "24"]),
    (["make", "--n", 24, "--out", "OUT"], "usage", "--r2 none"),
    (["make", "--n", "x", "--out", "OUT"], "usage", "--n"),
    (["make", "--n", 24, "--r2", "none", "--seed", 2**63, "--out", "OUT"], "usage", "--seed"),
    (["make", "--n", 24, "--r2", "none"], "usage", "--out"),
    (["make", "--n", 24, "--r2", "some", "--out", "OUT"], "usage", "some"),
    (["make", "--n", 24, "--rotation", "hadamrd", "--r2", "none", "--out", "OUT"], "usage", "hadamrd"),
    (["make", "--n"], "usage", "--n"),
    (["show", "OUT"], "missing", "OUT"),
    (["show"], "usage", "FILE"),
    (["show", "OUT", "--jsn"], "usage", "--jsn"),
    (["export", "OUT"], "usage", "--out"),
    (["turn"], "usage", "turn"),
    ([], "usage", "verify"),
], ids=lambda v: " ".join(map(str, v)) if isinstance(v, list) else None)
def test_each_wrong_call_has_its_sentence_and_makes_nothing(tmp_path, args, code, naming):
    done = rotq.run("rotation", *args, cwd=tmp_path)
    assert done.returncode == rotq.EXIT[code], done.stderr
    for word in [naming] if isinstance(naming, str) else naming:
        assert word in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_explains_every_action():
    text = rotq.succeed("rotation", "--help").stdout
    for word in ("show", "verify", "make", "export", "--rotation", "--r2", "--seed"):
        assert word in text
    assert rotq.succeed("rotation", "make", "--help").stdout == text
