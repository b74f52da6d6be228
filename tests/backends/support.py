"""What tests of several backends share: programs of one kernel, arrays for them, comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from girih.hlo.build import build_region, make_op
from girih.hlo.graph import Function, Module, Op, Region, arguments
from girih.hlo.interpret import interpret
from girih.hlo.symbols import Dim
from girih.hlo.types import BF16, F16, F32, I32, ElementType, TensorType

SCALAR = TensorType((), F32)


def kind(*dims: Dim, element: ElementType = F32) -> TensorType:
    return TensorType(dims, element)


def inputs_for(types: Sequence[TensorType], seed: int = 0) -> list[np.ndarray]:
    """Random arrays: normal floats, small integers."""
    generator = np.random.default_rng(seed)
    made = []
    for type in types:
        if type.element.is_integer:
            limit = min(100, (1 << (type.element.bits - 1)) - 1)
            made.append(np.asarray(generator.integers(0, limit, type.dims)).astype(type.dtype))
        elif type.element.is_bool:
            made.append(np.asarray(generator.integers(0, 2, type.dims)).astype(bool))
        elif type.element.is_complex:
            parts = [generator.standard_normal(type.dims) for _ in range(2)]
            made.append(np.asarray(parts[0] + 1j * parts[1]).astype(type.dtype))
        else:
            made.append(np.asarray(generator.standard_normal(type.dims)).astype(type.dtype))
    return made


def fusion(kind: str, region: Region) -> Op:
    """A fusion operation around a region, with fresh operands."""
    operands = arguments(region.argument_types)
    return make_op("fusion", operands, {"kind": kind}, (region,), region.result_types, check=False)


def expected(op: Op, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the interpreter computes."""
    own = arguments([value.type for value in op.operands])
    copy = Op(op.definition, own, op.attributes, op.regions, op.result_types, op.origin)
    module = Module({"main": Function("main", Region(own, (copy,), copy.results))})
    return [np.asarray(result) for result in interpret(module, list(inputs))]


def compare(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """Equal shapes and types, equal numbers within a relative tolerance."""
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    if tolerance == 0 and got.dtype.kind not in "fcV":
        np.testing.assert_array_equal(got, wanted)
        return
    if got.dtype.kind == "V":
        got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    scale = np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0)
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * scale)


# What is computed row by row.


def wide(b: Any, x: Any) -> Any:
    return b.convert(x, F32) if x.element in (BF16, F16) else x


def softmax(b: Any, x: Any, outer: int = 1) -> Any:
    """Over all dims but the first `outer`; of narrow floats in f32."""
    element, x = x.element, wide(b, x)
    scalar = TensorType((), x.element)
    dims, mapped = tuple(range(outer, x.rank)), tuple(range(outer))
    largest = b.reduce("maximum", x, b.constant(-np.inf, scalar), dims)
    grown = b("exponential", b("subtract", x, b.broadcast(largest, x.dims, mapped)))
    total = b.reduce("add", grown, b.constant(0, scalar), dims)
    return b.convert(b("divide", grown, b.broadcast(total, x.dims, mapped)), element)


def layer_norm(b: Any, x: Any, scale: Any, shift: Any, outer: int = 1) -> Any:
    """Over all dims but the first `outer`; of narrow floats in f32."""
    element = x.element
    x, scale, shift = wide(b, x), wide(b, scale), wide(b, shift)
    dims, mapped, last = tuple(range(outer, x.rank)), tuple(range(outer)), (x.rank - 1,)
    rows = TensorType(x.dims[:outer], F32)
    count = float(np.prod(x.dims[outer:]))

    def mean(value: Any) -> Any:
        total = b.reduce("add", value, b.constant(0, SCALAR), dims)
        return b("multiply", total, b.constant(1 / count, rows))

    centred = b("subtract", x, b.broadcast(mean(x), x.dims, mapped))
    variance = mean(b("multiply", centred, centred))
    inverse = b("rsqrt", b("add", variance, b.constant(1e-5, rows)))
    normal = b("multiply", centred, b.broadcast(inverse, x.dims, mapped))
    scaled = b("multiply", normal, b.broadcast(scale, x.dims, last))
    return b.convert(b("add", scaled, b.broadcast(shift, x.dims, last)), element)


def argmax(b: Any, x: Any, dims: tuple[int, ...], start: Sequence[Any] = ()) -> Any:
    """(largest, its first position), from -inf and 0 if `start` says nothing else."""
    places = b("iota", type=TensorType(x.dims, I32), iota_dimension=dims[0])

    def body(b: Any, x: Any, i: Any, y: Any, j: Any) -> Any:
        better = b.compare("GT", x, y)
        ties = b("and", b.compare("EQ", x, y), b.compare("LT", i, j))
        return [b("select", better, x, y), b("select", b("or", better, ties), i, j)]

    scalars = [TensorType((), element) for element in (F32, I32, F32, I32)]
    region = build_region(scalars, body)
    start = start or [b.constant(-np.inf, SCALAR), b.constant(0, TensorType((), I32))]
    return b.op("reduce", [x, places, *start], {"dimensions": dims}, [region]).results
