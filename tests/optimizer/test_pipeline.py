"""Pipelines: the list, levels, options, notes, failures that name their pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import girih
from girih.backends import find
from girih.hlo.build import build_module, build_region
from girih.hlo.graph import Function, Module, Origin
from girih.hlo.types import F32, I8, QuantizedType, TensorType
from girih.hlo.verify import INLINED, Level
from girih.optimizer import passes
from girih.optimizer.licence import Ledger
from girih.optimizer.passes import Pass
from girih.optimizer.passes.inline import Inline
from girih.optimizer.passes.simplify import Simplify
from girih.optimizer.pipeline import pipeline_for, run_pipeline, simplify_pipeline

from .passes.modules import FLAG, LINE, names, with_functions


def program() -> Module:
    def body(b, p, x):
        b.origin = (Origin("model.py", 5),)
        return [b("multiply", b("call", x, type=LINE, callee="twice"), b.constant(1.0, LINE))]

    twice = Function("twice", build_region([LINE], lambda b, x: [b("add", x, x)]))
    return with_functions(body, twice=twice)


def test_pipeline_stops_and_leaves_out() -> None:
    seen: list[str] = []
    run_pipeline(program(), simplify_pipeline(), on_pass=seen.append)
    assert seen[0] == "mask-bounded" and seen.index("inline") < seen.index("simplify")
    assert seen.count("simplify") == 2
    stopped = run_pipeline(program(), simplify_pipeline(), stop_after="inline")
    assert names(stopped) == ["add", "constant", "multiply"]
    without = run_pipeline(program(), simplify_pipeline(), disable=["simplify"])
    assert "multiply" in names(without)
    second: list[str] = []
    run_pipeline(program(), simplify_pipeline(), disable=["simplify:2"], on_pass=second.append)
    assert second.count("simplify") == 1


def test_pipeline_knows_its_passes() -> None:
    with pytest.raises(
        girih.UserError,
        match="no pass 'layout'; there are mask-bounded, require-static, .*, simplify",
    ):
        run_pipeline(program(), simplify_pipeline(), stop_after="layout")


def test_pipeline_dumps(tmp_path: Path) -> None:
    run_pipeline(program(), simplify_pipeline(), dump=tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files[0] == "00-mask-bounded.txt"
    assert "multiply" in (tmp_path / files[0]).read_text()


def all_passes(target: str) -> list[Pass]:
    options = girih.Options(cache="off", activation_precision="bfloat16")
    passes = pipeline_for(find(target, options), options)
    return [*passes.simplify, *passes.references, *passes.lower]


PASSES: dict[str, Pass] = {
    step.name: step for target in ("cpu", "ptx-sim") for step in all_passes(target)
}


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_has_one_name(name: str) -> None:
    """The command line's name is that of the class, of its file, and of its test's."""
    kind, file = type(PASSES[name]), name.replace("-", "_")
    assert kind.__name__ == "".join(word.capitalize() for word in name.split("-"))
    assert kind.__module__ == f"girih.optimizer.passes.{file}"
    assert (Path(__file__).parent / "passes" / f"test_{file}.py").exists()


def test_every_file_of_passes_is_in_the_list() -> None:
    files = {path.stem for path in Path(passes.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {name.replace("-", "_") for name in PASSES}


def test_a_pass_that_a_program_needs_is_named() -> None:
    for target in ("cpu", "null"):
        options = girih.Options(cache="off", disable=("inline", "dce"))
        with pytest.raises(
            girih.UserError, match=r"(?s)call is not legal .*left out inline, dce, whi"
        ):
            girih.compile(program(), target=target, options=options)
    with pytest.raises(
        girih.UserError, match="no pass 'layout' to disable; .*simplify, [a-z, -]*$"
    ):
        girih.compile(program(), options=girih.Options(disable=("layout",)))
    kind = TensorType((4,), QuantizedType(I8, F32, None, (0.05,), (3,), -128, 127))
    module = build_module([kind, kind], lambda b, x, y: [b("add", x, y, type=kind)])
    for target in ("cpu", "null", "ptx-sim"):
        options = girih.Options(cache="off", disable=("legalize-quantized",))
        with pytest.raises(girih.UserError, match="left out legalize-quantized, which this"):
            girih.compile(module, target=target, options=options)


def test_only_some_rules_may_fire() -> None:
    ledger = Ledger()
    passes = simplify_pipeline(ledger=ledger, only_rules=["multiply-one"])
    assert names(run_pipeline(program(), passes)) == ["add"]
    assert set(ledger.hits) == {"inline", "multiply-one"}
    passes = simplify_pipeline(without_rules=["multiply-one"])
    assert "multiply" in names(run_pipeline(program(), passes))


@dataclass(frozen=True)
class Broken:
    name: ClassVar[str] = "broken"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        return program()


def test_levels_are_checked_on_both_sides() -> None:
    with pytest.raises(girih.CompilerBug, match="call is not legal .* before pass 'simplify'"):
        run_pipeline(program(), [Simplify()])
    inlined = run_pipeline(program(), [Inline()])
    with pytest.raises(girih.CompilerBug, match="call is not legal .* after pass 'broken'"):
        run_pipeline(inlined, [Broken()])


def test_a_large_program_takes_little_time() -> None:
    """3,000 operations; the bound is loose, the usual time is a third of a second."""
    import time

    def body(b, p, x):
        for _ in range(500):
            y = b("multiply", x, b.constant(1.5, LINE))
            x = b("add", b.reshape(b.reshape(y, (2, 2)), (4,)), b("tanh", x))
        return [x]

    module = build_module([FLAG, LINE], body)
    assert sum(1 for _ in module.walk()) == 3000
    start = time.perf_counter()
    after = run_pipeline(module, simplify_pipeline())
    assert time.perf_counter() - start < 60  # a hang, not a speed
    assert names(after).count("reshape") == 0
