"""Dims that no axis divides, of 1, 3, 7, 10 and 50,257 elements, over 2, 4 and 8 devices: equal to
the whole program, with NaN in the padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.graph import Module, Region, Value, arguments
from girih.hlo.sharding import Axis, DimSharding, Mesh, Sharding
from girih.hlo.types import F32, I32, TensorType
from girih.hlo.verify import DECIDED, verify
from girih.optimizer.sharding.choice import choose
from girih.optimizer.sharding.propagated import propagate

from .families import START, arg_region, fold
from .fuzz import NAME, require_equal

Body = Callable[[Builder, Value], Sequence[Value]]


def reducing(name: str) -> Body:
    def body(b: Builder, x: Value) -> Sequence[Value]:
        init = b.constant(np.float32(START[name]))
        return [b("reduce", x, init, regions=(fold(name),), dimensions=(0,))]

    return body


def mean(b: Builder, x: Value) -> Sequence[Value]:
    (total,) = reducing("add")(b, x)
    return [b("divide", total, b.constant(float(x.dims[0]), total.tensor))]


def softmax(b: Builder, x: Value) -> Sequence[Value]:
    (most,) = reducing("maximum")(b, x)
    grown = b("exponential", b("subtract", x, b.broadcast(most, x.dims, (1,))))
    (total,) = reducing("add")(b, grown)
    return [b("divide", grown, b.broadcast(total, x.dims, (1,)))]


def arg_max(b: Builder, x: Value) -> Sequence[Value]:
    index = b("iota", type=x.tensor.with_element(I32), iota_dimension=0)
    starts = [b.constant(np.float32(-np.inf)), b.constant(np.int32(0))]
    return b.op("reduce", [x, index, *starts], {"dimensions": (0,)}, [arg_region("GT")]).results


def sort(b: Builder, x: Value) -> Sequence[Value]:
    def before(b: Builder, x: Value, y: Value) -> Sequence[Value]:
        return [b("compare", x, y, comparison_direction="LT", compare_type="TOTALORDER")]

    region = build_region([TensorType((), F32)] * 2, before)
    return b.op("sort", [x], {"dimension": 0, "is_stable": True}, [region]).results


def order(b: Builder, x: Value) -> Sequence[Value]:
    index = b("iota", type=x.tensor.with_element(I32), iota_dimension=0)
    kinds = [TensorType((), e) for e in (F32, F32, I32, I32)]
    before = build_region(kinds, lambda b, x, y, i, j: [b.compare("LT", x, y)])
    return b.op("sort", [x, index], {"dimension": 0, "is_stable": True}, [before]).results


def top_k(b: Builder, x: Value) -> Sequence[Value]:
    rows = b.transpose(x, (1, 0))
    return b.op("chlo.top_k", [rows], {"k": min(5, x.dims[0])}).results


def convolution(b: Builder, x: Value) -> Sequence[Value]:
    image = b.reshape(x, (1, *x.dims))
    kernel = b.constant(np.arange(6, dtype=np.float32).reshape(3, 2, 1))
    facts: dict[str, Any] = {
        "input_batch_dimension": 0, "input_feature_dimension": 2, "input_spatial_dimensions": (1,),
        "kernel_input_feature_dimension": 1, "kernel_output_feature_dimension": 2,
        "kernel_spatial_dimensions": (0,), "output_batch_dimension": 0,
        "output_feature_dimension": 2, "output_spatial_dimensions": (1,), "padding": ((1, 1),),
        "feature_group_count": 1,
    }  # fmt: skip
    return [b.reshape(b("convolution", image, kernel, **facts), (x.dims[0], 1))]


def concatenation(b: Builder, x: Value) -> Sequence[Value]:
    return [b("concatenate", x, b("negate", x), dimension=0)]


def running_total(b: Builder, x: Value) -> Sequence[Value]:
    n = x.dims[0]
    facts = {"window_dimensions": (n, 1), "padding": ((n - 1, 0), (0, 0))}
    return b.op("reduce_window", [x, b.constant(np.float32(0))], facts, [fold("add")]).results


BODIES: dict[str, Body] = {
    "sum": reducing("add"), "mean": mean, "max": reducing("maximum"), "min": reducing("minimum"),
    "softmax": softmax, "argmax": arg_max, "sort": sort, "order": order, "top_k": top_k,
    "convolution": convolution, "concatenation": concatenation, "running total": running_total,
}  # fmt: skip


def rows_cut(module: Module, devices: int) -> Module:
    """The argument is cut along its rows, and each result that has as many."""
    first = module.body.arguments[0].dims[0]

    def along(value: Value) -> Sharding:
        cut = bool(value.rank) and value.dims[0] >= first > 1
        axes = [(Axis("x"),) if cut and not d else () for d in range(value.rank)]
        return Sharding(NAME, tuple(map(DimSharding, axes)))

    body = module.body
    own = arguments([v.tensor.with_sharding(along(v)) for v in body.arguments])
    values = dict(zip(body.arguments, own, strict=True))
    b = Builder(check=False)
    for op in body.ops:
        new = b.append(op.with_operands([values[v] for v in op.operands], op.regions))
        values.update(zip(op.results, new.results, strict=True))
    results = [
        b("sharding_constraint", values[v], type=v.tensor.with_sharding(along(v)))
        for v in body.results
    ]
    main = module.main.with_body(Region(own, b.ops, results))
    return Module({"main": main}, meshes={NAME: Mesh((("x", devices),))})


@pytest.mark.parametrize("size", [1, 3, 7, 10, 50257])
@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("name", BODIES)
def test_uneven_dims(name: str, devices: int, size: int) -> None:
    module = build_module([TensorType((size, 2), F32)], BODIES[name])
    decided = choose(propagate(rows_cut(module, devices))).module
    verify(decided, DECIDED)
    x = np.random.default_rng(size).integers(-9, 10, (size, 2)).astype(np.float32)
    require_equal(module, decided, [x])
    if size > 10000 and name != "order":  # no device has the whole
        for op in decided.body.ops:
            for value in (*op.operands, *op.results):
                if value.tensor.size >= size:
                    sharding = value.tensor.sharding
                    assert sharding is not None and any(d.axes for d in sharding.dims), op
