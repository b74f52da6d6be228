"""`shardings="auto"`: what is found fits into the memory that is given, and costs little."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.graph import Module, Op, Value, arguments
from girih.hlo.parse import parse_module
from girih.hlo.regions import rewritten
from girih.hlo.sharding import Sharding
from girih.hlo.types import F32, TensorType, Type
from girih.optimizer.passes.dce import Dce
from girih.optimizer.sharding.choice import choose
from girih.optimizer.sharding.memory import PerDeviceMemory, memory_of
from girih.optimizer.sharding.propagated import propagate
from girih.partitioning import Partitioned

from .gold import programs

MESH = {"data": 2, "model": 4}
DOT = {
    "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
    "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
}  # fmt: skip


def mlp() -> Module:
    """64 KiB each of x and the result, 1 MiB each of two weights, 256 KiB between them."""

    def body(b: Any, x: Any, w1: Any, w2: Any) -> Any:
        return [b("dot_general", b("tanh", b("dot_general", x, w1, **DOT)), w2, **DOT)]

    dims = (64, 256), (256, 1024), (1024, 256)
    return build_module([TensorType(size, F32) for size in dims], body)


def bare(module: Module) -> Module:
    """The program without a mesh and without annotations."""

    def change(b: Any, op: Op, mapping: dict[Value, Value]) -> bool:
        if op.name != "sharding_constraint":
            return False
        mapping[op.result] = mapping[op.operands[0]]
        return True

    body = module.body
    own = arguments([kind.with_sharding(None) for kind in map(tensor, body.argument_types)])
    renamed = dict(zip(body.arguments, own, strict=True))
    return replace(module.with_main(rewritten(body, renamed, change, own)), meshes={})


def tensor(kind: Type) -> TensorType:
    assert isinstance(kind, TensorType)
    return kind


def lying(parts: Partitioned, name: str) -> Sharding:
    return next(held.sharding for held in parts.explain().arguments if held.name == name)


def held_whole(module: Module) -> int:
    return memory_of(girih.partition(module, mesh={"data": 1}, shardings="auto").decided).total


def test_without_a_bound_nothing_is_sent_and_the_batch_is_cut() -> None:
    parts = girih.partition(mlp(), mesh=MESH, shardings="auto")
    assert parts.bytes == 0 and lying(parts, "input[0]").dims[0].axes


@pytest.mark.parametrize("divisor", [2, 3, 4, 6])
def test_what_is_found_fits_and_computes_the_same(divisor: int) -> None:
    module = mlp()
    bound = held_whole(module) // divisor
    parts = girih.partition(module, mesh=MESH, shardings="auto", memory=bound)
    held = memory_of(parts.decided).total
    assert held <= bound
    generator = np.random.default_rng(0)
    inputs = [
        generator.standard_normal(kind.tensor.dims).astype(np.float32)
        for kind in module.body.arguments
    ]
    (got,), (wanted,) = parts.interpret(inputs), girih.interpret(module, inputs)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_less_memory_costs_no_fewer_bytes() -> None:
    module = mlp()
    bounds = [held_whole(module) // divisor for divisor in (1, 2, 4, 6)]
    sent = [
        girih.partition(module, mesh=MESH, shardings="auto", memory=bound).bytes for bound in bounds
    ]
    assert sent == sorted(sent) and sent[0] == 0 < sent[-1]


def test_too_little_memory_is_said_with_what_there_is() -> None:
    with pytest.raises(girih.UserError, match="fits into 1000 bytes of a device, the least takes"):
        girih.partition(mlp(), mesh=MESH, shardings="auto", memory=1000)


def test_what_the_user_says_stays() -> None:
    said = {"input[1]": ("model",)}
    module = girih.partition(mlp(), mesh=MESH, shardings=said).propagated.module
    parts = girih.partition(module, mesh=MESH, shardings="auto")
    found = [[axis.name for axis in dim.axes] for dim in lying(parts, "input[1]").dims]
    assert found == [["model"], []]


def test_other_words_and_other_meshes_are_refused() -> None:
    with pytest.raises(girih.UserError, match="'auto', not 'automatic'"):
        girih.partition(mlp(), mesh=MESH, shardings="automatic")
    with pytest.raises(girih.UserError, match="needs the size of each axis"):
        girih.partition(mlp(), mesh={"data": None}, shardings="auto")
    module = girih.partition(mlp(), mesh=MESH, shardings="auto").propagated.module
    with pytest.raises(girih.UserError, match="fills the program's own mesh"):
        girih.partition(module, mesh={"data": 8}, shardings="auto")


@pytest.mark.parametrize("name", ["mlp", "layer, x wq w1"])
def test_as_few_bytes_as_with_annotations_in_their_memory(name: str) -> None:
    module = Dce()(parse_module(programs()[name].text))
    annotated = girih.partition(module)
    bound, most = memory_of(annotated.decided).total, 1.05 * annotated.bytes
    sizes = dict(annotated.mesh.axes)
    parts = girih.partition(bare(module), mesh=sizes, shardings="auto", memory=bound)
    held, sent = memory_of(parts.decided).total, parts.bytes
    assert held <= bound and sent <= most


def test_memory_counts_what_is_held_at_once() -> None:
    """x, w1 and w2 always; then the product before tanh, which its reader computes, beside the
    result."""
    module = girih.partition(mlp(), mesh={"data": 2}, shardings={"input[0]": ("data",)})
    between, result = 64 * 1024 * 4 // 2, 64 * 256 * 4 // 2
    arguments = 64 * 256 * 4 // 2 + 2 * 256 * 1024 * 4
    assert memory_of(module.decided) == PerDeviceMemory(arguments, between + result)


def test_a_value_for_one_reader_that_is_computed_element_by_element_is_not_held() -> None:
    def body(b: Any, x: Any) -> Any:
        return [b("tanh", b("negate", b("tanh", x)))]

    module = build_module([TensorType((8, 8), F32)], body)
    parts = girih.partition(module, mesh={"data": 2}, shardings={"input[0]": ("data",)})
    decided = choose(propagate(parts.propagated.module)).module
    assert memory_of(decided) == PerDeviceMemory(128, 0)


def test_results_lie_as_was_found_cheapest() -> None:
    """The last product is left as terms of a sum, of which each device adds its part."""
    parts = girih.partition(mlp(), mesh=MESH, shardings="auto", memory="400KiB")
    (result,) = parts.explain().results
    assert {axis.name for dim in result.sharding.dims for axis in dim.axes} == {"data", "model"}
    assert parts.automatic is not None and parts.automatic.gap < 0.5


def test_three_processes_with_two_seeds_of_hashes_find_the_same(tmp_path: Path) -> None:
    script = tmp_path / "found.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import girih\n"
        "from girih.hlo.text import print_module\n"
        "from tests.optimizer.sharding.test_automatic import MESH, mlp\n"
        "parts = girih.partition(mlp(), mesh=MESH, shardings='auto', memory='400KiB')\n"
        "print(print_module(parts.local), parts.automatic.facts())\n"
    )
    root = str(Path(girih.__file__ or "").parent)
    texts = {
        subprocess.run(
            [sys.executable, str(script), root],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "1")
    }  # fmt: skip
    assert len(texts) == 1
