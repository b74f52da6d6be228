"""`girih dump --after PASS` shows what a compilation has there, for every pass."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from girih.cli.compiling import dump_source
from girih.optimizer.pipeline import Pipeline

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
        for after in (step, f"{step}:{seen[step]}")[seen[step] > 1 :]:
            dump_source(source, after, None, target, settings, False)
            shown[after] = capsys.readouterr().out
            assert shown[after] == compiled, after
        before = compiled
    assert len(set(shown.values())) > 2
    if name == "foreign_kernel":
        assert shown["dce"] != shown["use-references"] != shown["simplify:3"]
