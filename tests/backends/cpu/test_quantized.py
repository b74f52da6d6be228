"""Quantised programs as compiled code: bit for bit what the interpreter gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder, build_module
from girih.hlo.graph import Dense, Function, Module, Value, Weight
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, I8, QuantizedType, TensorType
from girih.optimizer.rewrite import copied
from girih.runtime.plans import parse_plan

from ...hlo.quantized_programs import Program, programs

pytestmark = pytest.mark.usefixtures("each_level")
PROGRAMS = programs()
SHARDS = 12


def together(group: list[Program]) -> Module:
    """One module that does all of them: it compiles once."""
    b = Builder()
    values = iter(b.arguments([a.type for p in group for a in p.module.body.arguments]))
    results: list[Value] = []
    for program in group:
        body = program.module.body
        known = {argument: next(values) for argument in body.arguments}
        for op in body.ops:
            again = b.append(copied(op, known))
            known.update(zip(op.results, again.results, strict=True))
        results += [known[value] for value in body.results]
    return Module({"main": Function("main", b.region(results))})


@pytest.mark.parametrize("shard", range(SHARDS))
def test_compiled_code_gives_the_interpreters_integers(shard: int) -> None:
    group = PROGRAMS[shard::SHARDS]
    program = girih.compile(together(group))
    found = iter(program(*(x for member in group for x in member.inputs)))
    for member in group:
        for wanted in interpret(member.module, member.inputs):
            got = np.asarray(next(found))
            assert got.dtype == wanted.dtype and got.shape == wanted.shape, member.name
            if member.steps:
                assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1, member.name
            else:
                np.testing.assert_array_equal(got, wanted, member.name)


EIGHTHS = QuantizedType(I8, F32, None, (0.125,), (-3,), -128, 127)


def test_a_bundle_takes_stored_integers_and_says_what_they_are(tmp_path: Path) -> None:
    kind = TensorType((3,), EIGHTHS)
    program = girih.compile(build_module([kind], lambda b, x: [b("negate", x)]))
    program.save(tmp_path / "negate.girih")
    loaded = girih.load(tmp_path / "negate.girih")
    (argument,), (result,) = loaded.signature.arguments, loaded.signature.results
    assert (argument.element, argument.quantization) == ("i8", EIGHTHS.name)
    assert (result.element, result.quantization) == ("i8", EIGHTHS.name)
    (found,) = loaded(np.array([-3, 5, -128], np.int8))
    assert found.tolist() == [-3, -11, 122]
    with pytest.raises(girih.UserError):
        loaded(np.zeros(3, np.float32))


def test_a_quantised_layer_is_one_kernel_of_integers() -> None:
    """Zero points, scales per column and the next activation are the product's epilogue."""
    scales = tuple(np.linspace(0.01, 0.05, 64))
    columns = QuantizedType(I8, F32, 1, scales, (0,) * 64, -127, 127)
    stored = np.random.default_rng(0).integers(-127, 128, (32, 64)).astype(np.int8)
    weight = Weight("w", stored, TensorType((32, 64), columns))
    rows, result = TensorType((16, 32), EIGHTHS), TensorType((16, 64), EIGHTHS)

    def body(b: Any, x: Any) -> Any:
        w = b("weight", type=weight.type, weight="w")
        y = b("dot_general", x, w, type=result, lhs_contracting_dimensions=(1,),
              rhs_contracting_dimensions=(0,))  # fmt: skip
        zero = b("constant", type=result, value=Dense.splat(-3, result))
        return [b("maximum", y, zero)]

    module = build_module([rows], body).with_weights({"w": weight})
    program = girih.compile(module)
    (kernel,) = parse_plan(program.parts.variants["cpu"]).kernels
    assert kernel.kind in ("contract", "tile") and "dot_general" in kernel.ops
    x = np.random.default_rng(1).integers(-128, 128, (16, 32)).astype(np.int8)
    (found,) = program(x)
    np.testing.assert_array_equal(found, interpret(module, [x])[0])
