"""What the program prints: help, usage errors, plans, reports."""
import json
import pathlib
import re
import subprocess

import numpy as np
import pytest
import rotq
import tensors

EXPECTED = pathlib.Path(__file__).resolve().parent / "expected"
COMMANDS = ["convert", "plan", "check", "rotation"]


@pytest.mark.parametrize("command", [[], *([c] for c in COMMANDS)], ids=lambda c: c[0] if c else "rotq")
def test_help_goes_to_stdout_and_shows_an_example_or_its_usage(command):
    done = rotq.succeed(*command, "--help")
    assert "usage: rotq" in done.stdout and done.stderr == ""
    for name in [] if command else COMMANDS:
        assert f"  {name}" in done.stdout


def test_version_is_the_one_in_the_changelog():
    version = rotq.succeed("--version").stdout.split()[1]
    assert f"## {version}" in (rotq.ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("arguments,naming", [
    (["frobnicate"], "frobnicate"), (["convert"], "SRC"), (["convert", "a"], "DST"), (["convert", "a", "b", "c"], "two"),
    (["convert", "a", "b", "--q-bits", "four"], "--q-bits"), (["convert", "a", "b", "-q", "--q-bits", "7"], "7"),
    (["convert", "a", "b", "-q", "--q-group-size", "48"], "48"), (["convert", "a", "b", "-q", "--q-mode", "mxfp6"], "--q-mode"),
    (["convert", "a", "b", "-q", "--q-mode", "nvfp4", "--q-group-size", "32"], "nvfp4"),
    (["convert", "a", "b", "--dtype", "int8"], "--dtype"), (["convert", "a", "b", "--rotation", "fourier"], "fourier"),
    (["convert", "a", "b", "--rotation", "block:0"], "block:0"), (["convert", "a", "b", "--seed", "-1"], "--seed"),
    (["convert", "a", "b", "--threads", "0"], "--threads"), (["convert", "a", "b", "--scales", "best"], "--scales"),
    (["convert", "a", "b", "--r2", "both"], "--r2"), (["convert", "a", "b", "--fold-precision", "bf16"], "--fold-precision"),
    (["convert", "a", "b", "--q-bits", "4"], "-q"), (["plan"], "SRC"), (["check"], "one"), (["plan", "a", "--recipe"], "recipe"),
    (["convert", "a", "b", "-q", "--q-bits", "0"], "--q-bits"), (["convert", "a", "b", "-q", "--q-group-size", "0"], "--q-group-size")],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_wrong_use_exits_with_2_and_names_the_argument(arguments, naming):
    done = rotq.run(*arguments)
    assert done.returncode == rotq.EXIT["usage"], done.stderr
    assert naming in done.stderr and done.stdout == ""


@pytest.mark.parametrize("options,needs", [
    (["--scales", "search"], "-q"), (["--strict"], "-q"), (["--rotation", "none", "--seed", "3"], "--rotation none"),
    (["--rotation", "none", "--r2", "hadamard"], "--rotation none"), (["--rotation", "none", "--r2", "random"], "--rotation none"),
    (["--rotation", "none", "--keep-tied"], "--rotation none"), (["--rotation", "none", "--fold-precision", "fp32"], "--rotation none")],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_an_option_that_would_be_ignored_is_wrong_use(tiny, out, options, needs):
    src = tiny("llama-tied")
    option = [o for o in options if o.startswith("--") and o != "--rotation"][0]
    rotq.refuse(src, out, *options, code="usage", naming=[option, needs])
    if option != "--fold-precision":
        assert rotq.run("plan", src, *options).returncode == rotq.EXIT["usage"]
    asked = ["-q", *options] if needs == "-q" else options[2:]  # where it has an effect it is no wrong use
    assert rotq.run("convert", src, out, "--dry-run", *asked).returncode == 0


def test_no_rotation_at_all_may_be_spelled_out(tiny):
    rotq.succeed("plan", tiny("llama-tied"), "--rotation", "none", "--r2", "none", "--scales", "mlx")


@pytest.mark.parametrize("arguments,sentence", [
    (["convert", "a", "b", "--frob"], "convert: unknown or ambiguous option --frob"),
    (["convert", "a", "b", "--q"], "convert: unknown or ambiguous option --q"),
    (["plan", "a", "-qz"], "plan: unknown option -z"), (["check", "a", "-q"], "check: unknown option -q"),
    (["convert", "a", "b", "--quiet=3"], "convert: --quiet=3: this option takes no value"),
    (["plan", "a", "--recipe"], "plan: --recipe needs a value"), (["check", "--jsn", "a"], "check: unknown or ambiguous option --jsn"),
    (["rotation", "show", "a", "--jsn"], "rotation show: unknown or ambiguous option --jsn"),
    (["rotation", "make", "--n"], "rotation make: --n needs a value")], ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_an_option_that_cannot_be_read_is_an_error_of_rotq(arguments, sentence):
    done = rotq.run(*arguments)
    assert done.returncode == rotq.EXIT["usage"] and done.stdout == ""
    assert done.stderr.splitlines()[0] == f"rotq: error: {sentence}"


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [
    ["--help"], ["--version"], ["convert", "--help"], ["rotation", "--help"], ["plan", "SRC"], ["plan", "SRC", "--json"],
    ["check", "SRC"], ["check", "SRC", "--json"], ["convert", "SRC", "OUT"], ["convert", "SRC", "OUT", "--json"],
    ["rotation", "make", "--n", "8", "--r2", "none", "--out", "OUT"], ["rotation", "show", "SIDECAR"],
    ["rotation", "show", "SIDECAR", "--json"], ["rotation", "verify", "SIDECAR", "--json"]], ids=" ".join)
def test_output_that_is_lost_is_an_error(tiny, out, arguments):
    places = {"SRC": tiny("llama-tied"), "OUT": out, "SIDECAR": out.parent / "r"}
    if "SIDECAR" in arguments:
        rotq.succeed("rotation", "make", "--n", 8, "--r2", "none", "--out", places["SIDECAR"])
    with open("/dev/full", "w") as full:
        done = subprocess.run([rotq.BINARY, *(str(places.get(a, a)) for a in arguments)], stdout=full, stderr=subprocess.PIPE,
                              text=True, env=rotq.environment(), timeout=60)
    assert done.returncode == rotq.EXIT["io"], done.stderr
    assert [line for line in done.stderr.splitlines() if "error" in line] == [
        "rotq: error: standard output did not take everything that was printed"]


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no /dev/full")
def test_lost_output_does_not_hide_why_a_command_failed(own):
    src = own("llama-tied")
    (src / "model.safetensors").unlink()
    with open("/dev/full", "w") as full:
        done = subprocess.run([rotq.BINARY, "check", src, "--json"], stdout=full, stderr=subprocess.PIPE, env=rotq.environment())
    assert done.returncode == rotq.run("check", src).returncode != 0


def test_names_from_files_cannot_drive_the_terminal(own, out):
    src = own("llama-tied")
    stored = tensors.read_model(src)
    stored["model.\x1b[31mred\u009b\u202f\u00e9\r\nrotq: error: none.weight"] = tensors.encode(np.ones((2, 2)), "F32")
    tensors.write_model(src, stored, tensors.read_json(src / "config.json"))
    seen = "model.\\x1b[31mred\\xc2\\x9b\u202f\u00e9\\x0d\\x0arotq: error: none.weight"
    rotq.refuse(src, out, code="unsupported", naming=seen)
    noted = rotq.succeed("plan", src, "--allow-unknown").stderr
    assert seen in noted and "\x1b" not in noted and "\r" not in noted
    done = rotq.run("plan", src, "--frob\x1b[2J")
    assert "--frob\\x1b[2J" in done.stderr and "\x1b" not in done.stderr


def test_no_command_shows_the_help_on_stderr():
    done = rotq.run()
    assert done.returncode == rotq.EXIT["usage"] and "usage: rotq" in done.stderr


def test_report_has_every_field_and_only_json_is_on_stdout(tiny, out):
    src = tiny("llama-tied", dtype="BF16")
    done = rotq.succeed("convert", src, out, "-q", "--json")
    report = json.loads(done.stdout)
    assert set(report) == {"output", "source_bytes", "output_bytes", "bits_per_weight", "seconds", "cpu_seconds",
                           "peak_memory_bytes", "threads", "kernel", "notes"}
    assert report["output"] == str(out) and report["seconds"] > 0 and report["threads"] >= 1
    assert report["source_bytes"] == sum(bits.nbytes for _, bits in tensors.read_model(src).values())
    assert report["output_bytes"] == sum(bits.nbytes for _, bits in tensors.read_model(out).values())
    assert 4.5 < report["bits_per_weight"] < 5.0
    assert report["peak_memory_bytes"] < 1 << 30
    assert "\033" not in done.stderr  # the progress line is for terminals


def test_quiet_says_nothing(tiny, out):
    done = rotq.succeed("convert", tiny("llama-rope3"), out, "-q", "--quiet")
    assert done.stdout == "" and done.stderr == ""


def test_the_summary_is_one_line_with_the_numbers(tiny, out):
    done = rotq.succeed("convert", tiny("llama-rope3"), out, "-q")
    assert re.fullmatch(rf"{re.escape(str(out))}: .* bits per weight, .* GB/s.*\n", done.stdout), done.stdout


def test_plan_prints_the_expected_table(tiny):
    done = rotq.succeed("plan", tiny("llama-bias", dtype="BF16"), "-q", "--q-group-size", "32", "--threads", "2")
    lines = done.stdout.splitlines(keepends=True)
    memory = [line for line in lines if line.startswith("memory")]  # an estimate that may change with the engine
    assert len(memory) == 1 and re.fullmatch(r"memory +[\d.]+ MB at most\n", memory[0])
    lines.remove(memory[0])
    assert "".join(lines) == (EXPECTED / "plan-llama-bias.txt").read_text()


def test_plan_reads_no_weights(own):
    """The same plan although every weight is gone: a sparse file of the right size."""
    src = own("llama-tied", dtype="BF16")
    path = src / "model.safetensors"
    expected = rotq.plan(src, "-q")
    _, start = tensors.read_header(path)
    size = path.stat().st_size
    with open(path, "r+b") as f:
        f.truncate(start)
        f.truncate(size)
    assert rotq.plan(src, "-q") == expected


def test_dry_run_is_the_plan_and_writes_nothing(tiny, out):
    src = tiny("llama-tied")
    assert rotq.succeed("convert", src, out, "-q", "--dry-run").stdout == rotq.succeed("plan", src, "-q").stdout
    assert not out.exists() and list(out.parent.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["-q"], ["-q", "--q-mode", "nvfp4"], ["--recipe", "tq-mixed"], ["--dtype", "float32"]],
                         ids=lambda o: " ".join(o) or "dense")
def test_the_plan_foretells_the_output(tiny, out, options):
    src = tiny("qwen3", dtype="BF16")
    plan, report = rotq.plan(src, *options), rotq.convert(src, out, *options)
    assert plan["totals"]["bytes"] == report["output_bytes"]
    assert plan["totals"]["bits_per_weight"] == pytest.approx(report["bits_per_weight"], abs=1e-9)
    stored = tensors.read_model(out)
    assert {t["name"] for t in plan["tensors"]} == {n for n in stored if not n.endswith((".scales", ".biases"))}
    for t in plan["tensors"]:
        parts = [stored[n][1].nbytes for n in (t["name"], t["name"].removesuffix("weight") + "scales",
                                               t["name"].removesuffix("weight") + "biases") if n in stored]
        assert t["bytes"] == sum(parts), t["name"]


def test_rotation_show_and_verify_read_what_convert_wrote(tiny, out):
    rotq.convert(tiny("qwen3"), out, "--seed", "21")
    shown = rotq.succeed("rotation", "show", out / "rotation.json").stdout
    assert "320" in shown and "21" in shown and "hadamard" in shown
    verified = rotq.succeed("rotation", "verify", out / "rotation.json").stdout
    errors = [float(x) for x in re.findall(r"(?:R1|R2) ([\d.]+(?:e-\d+)?)", verified)]
    assert len(errors) == 2 and max(errors) < 1e-14


def test_metadata_names_what_was_done(tiny, out):
    rotq.convert(tiny("qwen3", dtype="BF16"), out, "-q", "--seed", "21", "--scales", "search")
    metadata = (out / "optiq_metadata.json").read_text()
    for word in ("qwen3", "21", "hadamard", "search", "QuaRot", "SpinQuant"):
        assert word in metadata, word
    card = (out / "README.md").read_text()
    assert card.startswith("---\n") and "library_name: mlx" in card and "pipeline_tag: text-generation" in card


@pytest.mark.parametrize("command", ["convert", "plan"])
def test_a_failure_under_json_prints_the_error_as_json(own, out, command):
    src = own("llama-tied")
    (src / "model.safetensors").unlink()
    done = rotq.run(command, src, *([out] if command == "convert" else []), "--json")
    report = json.loads(done.stdout)
    assert done.returncode != 0 and report["exit_code"] == done.returncode
    assert report["error"] in done.stderr and isinstance(report["notes"], list)


def test_an_instruction_set_that_is_not_there_is_said(tiny, out):
    report = rotq.convert(tiny("llama-tied"), out, env=rotq.environment(ROTQ_SIMD="bogus"))
    assert any(n["code"] == "simd" and "bogus" in n["text"] for n in report["notes"])
