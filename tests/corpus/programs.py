"""Programs of the corpus: every case of every room, and some for operations that need company.

`entries()` gives each with the members that are frozen; `replay(parts)` runs one of them again.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.cases import all_examples
from girih.hlo.distributed import interpret_parallel
from girih.hlo.graph import Function, Module, Op, Region, Weight
from girih.hlo.sharding import Mesh, parse_sharding
from girih.hlo.sizes import Symbol, parse_constraint
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import F32, TOKEN, TensorType, TupleType
from girih.hlo.wire import decode, encode

LARGEST = 1 << 14  # bytes of a program's arrays; the corpus is for the format, not for load
CHANNEL = 1
ROW = TensorType((4,), F32)
X = np.linspace(-1, 1, 4, dtype=np.float32)


class Entry(NamedTuple):
    """A program with all that it is given from outside."""

    name: str
    module: Module
    inputs: tuple[Any, ...]
    infeed: tuple[Any, ...] = ()
    received: tuple[Any, ...] = ()


def entries() -> Iterator[Entry]:
    """All programs of today's format."""
    for example in all_examples():
        yield Entry(example.name, example.module, example.inputs)
    yield Entry("host", build_module([ROW], _host), (X,), (X * 2,), (X * 3,))
    yield Entry("asynchronous", build_module([ROW], _asynchronous), (X,))
    yield Entry("functions", _functions(), (X,))
    yield Entry("tuples", build_module([ROW], _tuples), (X,))
    yield Entry("annotations", _annotations(), (X,))
    yield Entry("layers", _layers(), (X,))
    yield Entry("sizes", _sizes(), (X,))
    yield from _variants()
    weight = Weight("w", X * X)
    yield Entry(
        "weights",
        build_module(
            [ROW], lambda b, x: [b("multiply", x, b("weight", type=ROW, weight="w"))]
        ).with_weights({"w": weight}),
        (X,),
    )


def _variants() -> Iterator[Entry]:
    """Kernels that have a program for parts with them."""
    for example in all_examples():
        if example.name in ("kernel_double", "foreign_code"):
            body, op = example.module.body, example.op
            facts = {**op.attributes, "variants": (encode(example.module),)}
            call = Op(op.definition, op.operands, facts, op.regions, op.result_types, op.origin)
            made = example.module.with_main(Region(body.arguments, (call,), call.results))
            yield Entry(f"{example.name}_variants", made, example.inputs)


def _host(b: Builder, x: Any) -> list[Any]:
    """Speaks with the host in every way."""
    start = b.op("create_token", [], {}).result
    fed, token = b.op("infeed", [start], {}, (), [ROW, TOKEN]).results
    first = b.op("after_all", [token, start], {}).result
    transfer = {"channel_id": CHANNEL, "is_host_transfer": True}
    got, token = b.op("recv", [first], {**transfer, "channel_type": 3}, (), [ROW, TOKEN]).results
    token = b.op("send", [b("add", x, fed), token], {**transfer, "channel_type": 2}).result
    b.op("outfeed", [b("multiply", got, fed), token], {})
    return [b("add", x, got)]


def _asynchronous(b: Builder, x: Any) -> list[Any]:
    half = {"start_indices": (0,), "limit_indices": (2,), "strides": (1,)}
    part = build_region([ROW], lambda b, v: [b("slice", v, **half)])
    future = b.op("async_start", [x], {}, (part,)).result
    return [b("negate", b.op("async_done", [future], {}).result)]


def _annotations() -> Module:
    """Every annotation, over two meshes."""
    row = parse_sharding('<@mesh, [{"x":(1)2, ?}p1], replicated={"y"}>')
    sums = parse_sharding('<@"two words", [{}], unreduced=max{"x"}>')

    def body(b: Builder, x: Any) -> list[Any]:
        b.op("sharding_group", [x], {"group_id": 3})
        y = b("sharding_constraint", b("negate", x), type=ROW.with_sharding(sums), stated="reshard")
        return [b("propagation_barrier", y, allowed_direction="BACKWARD")]

    module = build_module([ROW.with_sharding(row)], body)
    meshes = {"mesh": Mesh((("x", 4), ("y", None))), "two words": Mesh((("x", 2),), (1, 0))}
    return replace(module, meshes=meshes)


def _functions() -> Module:
    helper = build_region([ROW], lambda b, x: [b("negate", x)])

    def body(b: Builder, x: Any) -> list[Any]:
        called = b.op("call", [x], {"callee": "helper"}, (), [ROW]).result
        named = {"name": "test.negate", "decomposition": "helper", "composite_attributes": {"n": 1}}
        return [called, b.op("composite", [x], {**named, "version": 1}, (), [ROW]).result]

    main = build_module([ROW], body)
    return Module({**main.functions, "helper": Function("helper", helper)}, name="functions")


def _layers() -> Module:
    """One function for two layers, each with its own weight."""
    layer = build_region([ROW], lambda b, x: [b("multiply", x, b("weight", type=ROW, weight="w0"))])

    def body(b: Builder, x: Any) -> list[Any]:
        for name in ("w0", "w1"):
            facts = {"callee": "layer", "weights": (("w0", name),)}
            x = b.op("call_with_weights", [x], facts, (), [ROW]).result
        return [x]

    main = build_module([ROW], body)
    module = Module({**main.functions, "layer": Function("layer", layer)}, name="layers")
    return module.with_weights({"w0": Weight("w0", X * X), "w1": Weight("w1", X + X)})


def _sizes() -> Module:
    """An open size, halved, with what is known of it."""
    n = SymbolicDim("n")

    def body(b: Builder, x: Any) -> list[Any]:
        facts = {"start_indices": (0,), "limit_indices": (n // 2 * 2,), "strides": (2,)}
        half = b.op("slice", [x], facts).result
        return [half, b.reshape(b.broadcast(half, (n // 2, n), (0,)), (n // 2 * n,))]

    module = build_module([TensorType((n,), F32)], body)
    return replace(
        module,
        symbols={"n": Symbol(2, 64, 2, 0, "model.py:3")},
        constraints=(parse_constraint("n*n <= 4096", "model.py:5"),),
    )


def _tuples(b: Builder, x: Any) -> list[Any]:
    both = b.op("tuple", [x, b("negate", x)], {}, (), [TupleType((ROW, ROW))]).result
    return [b.op("get_tuple_element", [both], {"index": 1}, (), [ROW]).result]


def frozen(entry: Entry) -> dict[str, bytes] | None:
    """The members of an entry; None where its arrays are too large."""
    parts = {"program.pb": encode(entry.module)}
    parts |= {f"in{i}": _bytes(array) for i, array in enumerate(entry.inputs)}
    for kind, arrays in (("infeed", entry.infeed), ("received", entry.received)):
        parts |= {f"{kind}{i}.npy": _npy(array) for i, array in enumerate(arrays)}
    for name, weight in entry.module.weights.items():
        parts[f"weight.{name}.npy"] = _npy(weight.array)
    found, told = replay(parts)
    parts |= {f"out{i}": _bytes(array) for i, array in enumerate(found)}
    parts |= {f"{name}.npy": _npy(array) for name, array in told.items()}
    if sum(len(data) for name, data in parts.items() if name != "program.pb") > LARGEST:
        return None
    return parts


def replay(parts: Mapping[str, bytes]) -> tuple[list[Any], dict[str, Any]]:
    """The results of a frozen program, and by member what it told the host."""

    def weight(name: str, type: TensorType) -> Any:
        return np.load(io.BytesIO(parts[f"weight.{name}.npy"]), allow_pickle=False)

    module = decode(parts["program.pb"], weight)
    types = [value.tensor for value in module.body.arguments]
    inputs = [
        np.frombuffer(parts[f"in{i}"], type.dtype).reshape(
            [dim if isinstance(dim, int) else -1 for dim in type.dims]
        )
        for i, type in enumerate(types)
    ]
    run = interpret_parallel(
        module,
        [inputs],
        num_replicas=1,
        num_partitions=1,
        infeed=[_loaded(parts, "infeed")],
        received={CHANNEL: _loaded(parts, "received")},
    )
    told = {f"outfeed{i}": values[0] for i, values in enumerate(run.outfeed[0])}
    told |= {f"sent{i}": values[0] for i, values in enumerate(run.sent.get(CHANNEL, ()))}
    return [np.asarray(result) for result in run.results[0]], told


def _loaded(parts: Mapping[str, bytes], kind: str) -> list[Any]:
    names = sorted(name for name in parts if name.startswith(kind))
    return [np.load(io.BytesIO(parts[name]), allow_pickle=False) for name in names]


def _bytes(array: Any) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.ascontiguousarray(array), allow_pickle=False)
    return out.getvalue()
