"""The commands on bundles: results, JSON, files, and one line with exit code 2 for every error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from girih.hlo.signature import Signature
from girih.runtime.archive import Archive

from ..runtime.fakes import FLAT, NESTED, adding_program

ONES = np.ones((2, 3), np.float32)


@pytest.fixture
def flat(tmp_path):
    program = adding_program(weights={"bias": np.float32(1).reshape(())})
    program.with_checks([ONES, ONES]).save(tmp_path / "flat.girih")
    return tmp_path / "flat.girih"


@pytest.fixture
def nested(tmp_path):
    adding_program(NESTED).save(tmp_path / "nested.girih")
    return tmp_path / "nested.girih"


def succeeds(outcome) -> str:
    code, out, err = outcome
    assert code == 0 and not err, (code, out, err)
    return out


def fails(outcome) -> str:
    code, out, err = outcome
    assert code == 2 and not out and "Traceback" not in err, (code, out, err)
    assert err.startswith("girih: ") and err.count("\n") == 1
    return err


def test_help_teaches(girih_command):
    out = succeeds(girih_command("--help"))
    for name in ("compile", "run", "inspect", "verify", "bench", "dump", "machine", "doctor"):
        assert name in out
        text = succeeds(girih_command(name, "--help"))
        assert f"girih {name} " in text and "Examples" in text and "--json" in text


def test_version(girih_command):
    assert succeeds(girih_command("--version")).startswith("girih 0.")


def savez(path: Path, arrays: dict[str, Any]) -> None:
    np.savez(path, **arrays)


def test_run_with_files(girih_command, flat, tmp_path):
    np.save(tmp_path / "a.npy", ONES)
    np.savez(tmp_path / "unnamed.npz", ONES, 2 * ONES)
    savez(tmp_path / "named.npz", {"input[1]": ONES, "input[0]": 4 * ONES})
    savez(tmp_path / "half.npz", {"input[1]": 6 * ONES})
    safetensors.numpy.save_file(
        {"input[0]": ONES, "input[1]": 4 * ONES}, tmp_path / "x.safetensors"
    )
    a = tmp_path / "a.npy"
    for inputs, expected in (
        ([a, a], 3),
        ([tmp_path / "unnamed.npz"], 4),
        ([tmp_path / "named.npz"], 6),
        ([tmp_path / "half.npz", a], 8),
        ([f"input[1]={a}", a], 3),
        ([tmp_path / "x.safetensors"], 6),
    ):
        out = json.loads(succeeds(girih_command("run", flat, *inputs, "--json")))
        assert out["outputs"][0]["mean"] == expected
        assert out["outputs"][0]["shape"] == [2, 3]


def test_run_with_made_up_inputs(girih_command, nested, tmp_path):
    outs = [
        json.loads(succeeds(girih_command("run", nested, "--random", "--seed", seed, "--json")))[
            "outputs"
        ]
        for seed in (0, 0, 1)
    ]
    assert outs[0] == outs[1] != outs[2]
    assert [o["name"] for o in outs[0]] == [
        "output['loss']", "output['more'][0]", "output['more'][1][0]",
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_results_are_saved(girih_command, flat, tmp_path, suffix):
    np.save(tmp_path / "a.npy", ONES)
    output = tmp_path / f"out{suffix}"
    succeeds(girih_command("run", flat, tmp_path / "a.npy", tmp_path / "a.npy", "-o", output))
    safe = suffix == ".safetensors"
    found: Any = safetensors.numpy.load_file(output) if safe else np.load(output)
    array = found if suffix == ".npy" else found["output[0]"]
    assert array.tolist() == (3 * ONES).tolist()


def test_numpy_files_keep_bfloat16(girih_command, tmp_path):
    signature = Signature.plain([((2,), "bf16")], [((2,), "bf16")])
    adding_program(signature).save(tmp_path / "x.girih")
    np.save(tmp_path / "a.npy", np.array([1, 2], ml_dtypes.bfloat16))
    out = succeeds(girih_command("run", tmp_path / "x.girih", tmp_path / "a.npy"))
    assert "bfloat16[2]" in out


def test_run_shows_times_and_kernels(girih_command, flat, tmp_path):
    trace = tmp_path / "trace.json"
    out = succeeds(girih_command("run", flat, "--random", "--repeat", 3, "--profile", trace))
    assert "median of 3 runs" in out and "add_0" in out and "float32[2,3]" in out
    assert json.loads(trace.read_text())["traceEvents"]


def test_inspect(girih_command, flat):
    out = succeeds(girih_command("inspect", flat, "--members"))
    for words in ("entry point main", "f32[2,3]", "add_0", "variant adding", "program.pb"):
        assert words in out
    data = json.loads(succeeds(girih_command("inspect", flat, "--json")))
    assert data["variants"]["adding"]["memory"]["arena_bytes"] == 512
    assert data["variants"]["adding"]["kernels"][0]["origin"] == "model.py:41"
    assert data["trusted"] and data["checks"] == 1
    assert data["bytes"] == flat.stat().st_size


def test_verify(girih_command, flat):
    assert "1 golden case)" in succeeds(girih_command("verify", flat))
    data = json.loads(succeeds(girih_command("verify", flat, "--json")))
    assert data["passed"] and data["cases"] == [{"error": 0.0, "tolerance": 0.001}]


def test_verify_finds_other_results(girih_command, tmp_path):
    golden = adding_program().with_checks([ONES, ONES]).parts.checks
    biased = adding_program(weights={"bias": np.float32(1).reshape(())})
    biased.with_golden(golden).save(tmp_path / "x.girih")
    assert "golden case 0 differs by 0.5" in fails(girih_command("verify", tmp_path / "x.girih"))
    succeeds(girih_command("verify", tmp_path / "x.girih", "--no-run"))


def test_a_flipped_byte_in_any_member(girih_command, flat):
    data = flat.read_bytes()
    for entry in Archive(flat).entries.values():
        changed = bytearray(data)
        changed[entry.start + entry.bytes // 2] ^= 1
        flat.write_bytes(changed)
        for command in (["run", flat, "--random"], ["verify", flat]):
            assert "damaged" in fails(girih_command(*command))


def test_cut_files(girih_command, flat):
    data = flat.read_bytes()
    for length in (0, 1, 30, 1000, len(data) // 2, len(data) - 1):
        flat.write_bytes(data[:length])
        for command in (["run", flat, "--random"], ["inspect", flat], ["verify", flat]):
            fails(girih_command(*command))


def test_errors_are_one_line(girih_command, flat, nested, tmp_path):
    np.save(tmp_path / "a.npy", ONES)
    np.save(tmp_path / "wide.npy", ONES.astype(np.float64))
    np.save(tmp_path / "pickle.npy", np.array([{}], object), allow_pickle=True)
    np.savez(tmp_path / "other.npz", strange=ONES)
    (tmp_path / "bad.npz").write_bytes(b"PK\3\4 not really")
    a = tmp_path / "a.npy"
    for arguments, words in (
        (["run", tmp_path / "no.girih"], "no such file"),
        (["run", tmp_path], "folder"),
        (["run", flat], "or --random"),
        (["run", flat, a], "no input for input[1]: f32[2,3]"),
        (["run", flat, a, a, a], "3 inputs are given"),
        (["run", flat, a, tmp_path / "wide.npy"], "input[1]: expected float32[2,3], got float64"),
        (["run", flat, a, tmp_path / "pickle.npy"], "pickle.npy: not a whole file"),
        (["run", flat, a, tmp_path / "bad.npz"], "bad.npz: not a whole file"),
        (["run", flat, a, tmp_path / "no.npy"], "no.npy: cannot be read"),
        (["run", flat, a, flat], "inputs are read from"),
        (["run", flat, tmp_path / "other.npz"], "strange: the program has no such argument"),
        (["run", flat, "--random", "-o", tmp_path / "x.txt"], "results are written as"),
        (["run", nested, "--random", "-o", tmp_path / "x.npy"], "3 results need"),
        (["run", flat, "--random", "-o", tmp_path / "no" / "x.npy"], "cannot write"),
        (["inspect", a], "this is an array of numpy"),
        (["compile", tmp_path / "no.pt2", "-o", tmp_path / "x"], "no such file"),
        (["compile", tmp_path / "no.py:f", "-o", tmp_path / "x"], "no such file"),
        (["compile", a, "-o", tmp_path / "x", "-s", "speed=11"], "options are"),
        (["compile", a, "-o", tmp_path / "x", "-s", "threads=many"], "whole number"),
        (["compile", a, "-o", tmp_path / "x", "-s", "strict=yes"], "true or false"),
        (["compile", a, "-o", tmp_path / "x", "-s", "numerics=fast"], "numerics must be"),
        (["dump", tmp_path / "no.mlir"], "no such file"),
    ):
        assert words in fails(girih_command(*arguments)), arguments


def test_unsealed_code_needs_consent(girih_command, tmp_path):
    adding_program(FLAT, b"code").save(tmp_path / "x.girih", seal=False)
    assert "--allow-native" in fails(girih_command("run", tmp_path / "x.girih", "--random"))
    succeeds(girih_command("run", tmp_path / "x.girih", "--random", "--allow-native"))


def test_a_python_file_as_source(tmp_path):
    from girih import UserError
    from girih.cli.compiling import call_function

    (tmp_path / "m.py").write_text("def two():\n    return 1, 2\n\n\ndef one():\n    return 1\n")
    assert call_function(str(tmp_path / "m.py"), "two") == (1, 2)
    assert call_function(str(tmp_path / "m.py"), "one") == (1,)
    with pytest.raises(UserError, match="no function 'three'"):
        call_function(str(tmp_path / "m.py"), "three")


def test_bench_takes_turns():
    from girih.cli.benching import measure

    order: list[str] = []
    times = measure({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.01)
    assert set(times) == {"a", "b"} and all(len(found) >= 8 for found in times.values())
    assert order[0] == "a" and order.index("b") < len(order) - order[::-1].index("a") - 1


def test_a_file_that_is_no_array(girih_command, flat, tmp_path):
    (tmp_path / "x.npy").write_bytes(b"\xff\xfe\x00abc")
    message = fails(girih_command("run", flat, tmp_path / "x.npy"))
    assert "not a whole file" in message and "pickle" not in message


def test_without_typer_a_sentence_says_what_to_install():
    script = "import sys; sys.modules['typer'] = None\nfrom girih.cli import main\nmain(['run'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "girih[cli]" in done.stderr


def test_machine(girih_command, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    out = succeeds(girih_command("machine"))
    assert "typical of its feature level" in out and "memory" in out and "fma.f32" in out
    file = tmp_path / "mine.json"
    file.write_text(succeeds(girih_command("machine", "--json")))
    assert json.loads(file.read_text())["schema"] == "girih.machine"
    assert str(file) in succeeds(girih_command("machine", file)).replace("\n", "")
    file.write_text("{}")
    assert "no machine file" in fails(girih_command("machine", file))
