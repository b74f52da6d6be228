"""`girih dump` shows what a compilation has behind every pass and at every stage."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from girih.cli.dumping import Wanted, dump_source
from girih.optimizer.pipeline import STAGES, Pipeline

PROGRAMS = Path(__file__).with_name("dump_programs.py")
SETTINGS = ["cache=off"]
CASES = [
    ("weights", "cpu", ()),
    ("weights", "null", ("disable=simplify:2,fuse",)),
    ("quantised", "cpu", ()),
    ("bounded", "cpu", ()),
    ("bounded", "ptx-sim", ()),
    ("foreign_kernel", "cpu", ()),
    ("foreign_kernel", "ptx-sim", ()),
    ("attention", "cpu", ("numerics=assumes-finite", "matmul_precision=bfloat16")),
    ("attention", "ptx-sim", ()),
]


@pytest.mark.parametrize(("name", "target", "more"), CASES)
def test_every_pass(name, target, more, girih_command, tmp_path, monkeypatch, capsys) -> None:
    """What compiles is made to write its program down after every pass that runs."""
    listed: list[str] = []
    run = Pipeline.run

    def recorded(self, module, **settings):
        listed.extend(step.name for step in (*self.simplify, *self.references, *self.lower))
        return run(self, module, **settings, dump=tmp_path)

    source, settings = f"{PROGRAMS}:{name}", [*SETTINGS, *more]
    given = [word for setting in settings for word in ("--set", setting)]
    bundle = tmp_path / "x.girih"
    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "run", recorded)
        code, _, err = girih_command("compile", source, "-o", bundle, "--target", target, *given)
    assert code == 0, err

    shown: dict[str, str] = {}
    seen: Counter[str] = Counter()
    before = ""
    for number, step in enumerate(listed):
        seen[step] += 1
        written = tmp_path / f"{number:02d}-{step}.txt"
        compiled = written.read_text() if written.exists() else before
        for after in (step, f"{step}:{seen[step]}")[seen[step] > 1 or step in STAGES :]:
            dump_source(source, Wanted(after), None, target, settings, False)
            shown[after] = capsys.readouterr().out
            assert shown[after] == compiled, after
        before = compiled
    assert len(set(shown.values())) > 2
    if name == "foreign_kernel":
        assert shown["dce"] != shown["use-references"] != shown["simplify:3"]


def test_every_stage(girih_command, tmp_path) -> None:
    """A folder of all, one on stdout, one kernel's, and on from a file."""
    given = ("--target", "ptx-sim", "-s", "cache=off")
    source = f"{PROGRAMS}:attention"
    code, _, err = girih_command("dump", source, "--stage", "all", "-o", tmp_path / "all", *given)
    assert code == 0, err
    texts = {path.stem.partition("-")[2]: path for path in (tmp_path / "all").iterdir()}
    assert sorted(path.stem for path in texts.values()) == [
        "00-import", "01-simplify", "02-fuse", "03-connect", "04-kernels", "05-layouts",
        "06-pipeline", "07-llvm", "08-ptx", "09-plan",
    ]  # fmt: skip
    code, out, err = girih_command("dump", source, "--stage", "kernels", *given)
    assert code == 0 and out == texts["kernels"].read_text(), err
    ptx = texts["ptx"].read_text()
    for since in ("simplify", "llvm"):
        code, out, err = girih_command(
            "dump", texts[since], "--from", since, "--stage", "ptx", *given
        )
        assert code == 0 and out == ptx, err
    name = ptx.split()[2]
    code, out, err = girih_command("dump", source, "--stage", "ptx", "--kernel", name, *given)
    assert code == 0 and f"// kernel {name}\n{out}" == ptx, err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stage", "ptx"], "no stage 'ptx' on target cpu.*: there are import, simplify, .* asm"),
        (["--stage", "all"], "-o which folder"),
        (["--from", "llvm", "--stage", "dce"], "no pass goes on from the text of stage 'llvm'"),
        (["--from", "fuse", "--stage", "connect"], "line 17: unexpected character"),
    ],
)
def test_what_cannot_be_shown(words, message, girih_command) -> None:
    source = PROGRAMS if "--from" in words else f"{PROGRAMS}:weights"
    code, out, err = girih_command("dump", source, *words)
    assert code == 2 and not out and re.search(message, err.replace("\n", " ")), err
