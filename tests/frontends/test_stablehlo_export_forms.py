"""Writing StableHLO back: what girih says in other words, or only some programs say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mlir_reference import mlir_context, tree_facts

import girih
from girih.frontends import tree
from girih.frontends.stablehlo import read_stablehlo, read_tree
from girih.frontends.stablehlo.bytecode import read_bytecode
from girih.frontends.stablehlo.text import read_text
from girih.frontends.stablehlo.versions import NEWEST
from girih.frontends.stablehlo.write import write_artifact, write_text
from girih.frontends.stablehlo.write_bytecode import artifact
from girih.hlo import wire
from girih.hlo.build import Builder, build_module
from girih.hlo.graph import Function, Module, Origin, Weight
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import F32, TensorType

from .stablehlo_programs import DATA, PLAIN, carried, functions_of, main_of


def composites(document: tree.Document) -> Iterator[str]:
    for operation in tree.walk(document.module):
        if operation.name == "stablehlo.composite":
            yield operation.attributes["name"]


def test_chlo_becomes_composites_that_are_read_as_chlo() -> None:
    text = main_of(
        "%1 = chlo.erf %x : tensor<4xf32> -> tensor<4xf32>\n"
        "%0, %2 = chlo.top_k(%1, k = 2) : tensor<4xf32> -> (tensor<2xf32>, tensor<2xi32>)",
        "%x: tensor<4xf32>",
        "tensor<2xf32>",
    )
    module = read_stablehlo(text)
    data = write_artifact(module, NEWEST).data
    assert list(composites(read_tree(data))) == ["chlo.erf", "chlo.top_k"]
    names = [op.name for op in read_stablehlo(data).body.ops]
    assert names == [op.name for op in module.body.ops]
    older = write_artifact(module, (0, 18)).data
    assert not list(composites(read_tree(older)))
    x = np.array([3.0, -1.0, 0.5, 2.0], np.float32)
    (expected,) = girih.interpret(module, [x])
    (found,) = girih.interpret(read_stablehlo(older), [x])
    np.testing.assert_array_equal(found, expected)


def test_the_tangent_is_a_quotient_in_old_versions() -> None:
    text = main_of("%0 = stablehlo.tan %x : tensor<4xf32>", "%x: tensor<4xf32>", "tensor<4xf32>")
    module = read_stablehlo(text)
    old = read_stablehlo(write_artifact(module, (1, 3)).data)
    assert [op.name for op in old.body.ops] == ["sine", "cosine", "divide"]
    new = read_stablehlo(write_artifact(module, (1, 4)).data)
    assert [op.name for op in new.body.ops] == ["tan"]


def test_weights_go_in_or_become_arguments_of_every_function() -> None:
    kind = TensorType((40, 40), F32)
    table = np.arange(1600, dtype=np.float32).reshape(kind.dims)
    inner = Builder()
    (a,) = inner.arguments([kind])
    callee = inner.region([inner("add", a, inner("weight", type=kind, weight="layer.table"))])
    outer = Builder()
    (x,) = outer.arguments([kind])
    called = outer.op("call", [x], {"callee": "layer"}, types=[kind])
    main = outer.region([called.result])
    functions = {"layer": Function("layer", callee), "main": Function("main", main)}
    weights = {"layer.table": Weight("layer.table", table)}
    module = Module(functions, "main", "m", weights)
    x = np.ones(kind.dims, np.float32)

    inside = write_artifact(module)
    assert inside.weights == ()
    (found,) = girih.interpret(read_stablehlo(inside.data), [x])
    np.testing.assert_array_equal(found, x + table)

    outside = write_artifact(module, weights_as_arguments=True)
    assert outside.weights == ("layer.table",)
    again = read_stablehlo(outside.data)
    assert [argument.type for argument in again.body.arguments] == [kind, kind]
    (found,) = girih.interpret(again, [x, table])
    np.testing.assert_array_equal(found, x + table)


def test_a_weight_that_is_used_twice_is_stored_once() -> None:
    kind = TensorType((64, 64), F32)
    b = Builder()
    (x,) = b.arguments([kind])
    both = [b("weight", type=kind, weight="w") for _ in range(2)]
    body = b.region([b("add", b("multiply", x, both[0]), both[1])])
    data = np.random.default_rng(0).standard_normal(kind.dims).astype(np.float32)
    module = Module({"main": Function("main", body)}, weights={"w": Weight("w", data)})
    assert len(write_artifact(module).data) < 1.2 * data.nbytes


def test_places_are_written() -> None:
    def body(b: Builder, x: Any) -> list[Any]:
        with b.at((Origin("model.py", 7, "encoder"), Origin("other.py", 3))):
            return [b("negate", x)]

    module = build_module([TensorType((2,), F32)], body)
    for source in (write_artifact(module).data, write_text(module).text):
        (op,) = read_stablehlo(source).body.ops
        assert op.origin == (Origin("model.py", 7, "encoder"),)
    assert '"other.py":3:0' in write_text(module).text


def test_sharding_annotations_stay_attributes_of_their_dialect() -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    module = girih.import_model(DATA / "sharded.jax_export")
    written = write_artifact(module, (1, 16)).data
    assert wire.encode(read_stablehlo(written, "x")) == wire.encode(
        read_stablehlo(write_text(module, weights_as_arguments=False).text, "x")
    )
    with mlir_context() as context, ir.Location.unknown():
        text = str(stablehlo.deserialize_portable_artifact(context, written))
    assert "sdy.mesh @mesh" in text and "#sdy.sharding<@mesh" in text


MANUAL = """module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
    %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}, {}]>]
        out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%b: tensor<4x4xf32>) {
      %1 = stablehlo.add %b, %b : tensor<4x4xf32>
      sdy.return %1 : tensor<4x4xf32>
    } : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %2 = stablehlo.negate %0 : tensor<8x4xf32>
    return %2 : tensor<8x4xf32>
  }
}"""


def test_operations_of_shardy_stand_between_casts() -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    document = read_text(MANUAL)
    data = artifact(document, (1, 16))
    assert tree_facts(read_bytecode(data)) == tree_facts(document)
    with mlir_context() as context, ir.Location.unknown():
        found = str(stablehlo.deserialize_portable_artifact(context, data))
        assert found == str(ir.Module.parse(MANUAL))
    with pytest.raises(girih.ExportBlockers, match=r"Shardy's operations came with 1\.11\.0"):
        artifact(document, (1, 10))
    assert write_artifact(read_stablehlo(MANUAL)).version == (1, 11)


def test_free_sizes_stay_free() -> None:
    text = """func.func @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
      %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
      %1 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>
      %2 = stablehlo.constant dense<4> : tensor<1xi32>
      %3 = stablehlo.concatenate %1, %2, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
      %4 = stablehlo.constant dense<1.0> : tensor<f32>
      %5 = stablehlo.dynamic_broadcast_in_dim %4, %3, dims = []
             : (tensor<f32>, tensor<2xi32>) -> tensor<?x4xf32>
      %6 = stablehlo.add %x, %5 : tensor<?x4xf32>
      return %6 : tensor<?x4xf32>
    }"""
    module = read_stablehlo(text)
    assert not module.body.arguments[0].tensor.is_static
    with mlir_context():
        (found,) = functions_of(written := write_text(carried(module)).text).values()
    assert found.startswith("(%arg0: tensor<?x4xf32>) -> tensor<?x4xf32>")
    assert "get_dimension_size %arg0" in found and "dynamic_broadcast_in_dim" in found
    back = read_stablehlo(written)
    for rows in (1, 5):
        x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
        for one in (module, back):
            np.testing.assert_array_equal(girih.interpret(one, [x])[0], x + 1)
    with pytest.raises(girih.UnsupportedError, match="no largest value"):
        girih.compile(module)


def test_symbols_are_computed_from_the_sizes_of_arguments() -> None:
    from jaxlib.mlir import ir

    n = SymbolicDim("n")
    wide, long = TensorType((2 * n + 1, 3), F32), TensorType((6 * n + 3,), F32)

    def body(b: Builder, x: Any) -> list[Any]:
        bias = b.constant(np.array([1, 2, 3], np.float32))
        total = b("add", x, b.broadcast(bias, wide.dims, (1,)))
        ramp = b("iota", type=TensorType((n,), F32), iota_dimension=0)
        return [b("reshape", total, type=long), ramp]

    module = build_module([wide], body)
    module = dataclasses.replace(module, symbols={"n": Symbol(1)})
    text = write_text(carried(module)).text
    with mlir_context():
        ir.Module.parse(text)
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    for source in (text, write_artifact(module).data):
        flat, ramp = girih.interpret(read_stablehlo(source), [x])
        np.testing.assert_array_equal(flat, (x + np.array([1, 2, 3])).reshape(-1))
        np.testing.assert_array_equal(ramp, np.arange(2))


def test_a_symbol_that_no_argument_has_is_a_reason() -> None:
    kind = TensorType((SymbolicDim("n"),), F32)
    module = build_module([], lambda b: [b("iota", type=kind, iota_dimension=0)])
    with pytest.raises(girih.ExportBlockers, match=r"the sizes of f32\[n\] are not those"):
        write_text(module)


def test_strings_and_symbols_of_any_characters() -> None:
    text = """module {
      func.func private @"a b\\"c"(%x: tensor<2xf32>) -> tensor<2xf32> {
        return %x : tensor<2xf32>
      }
      func.func @main(%x: tensor<2xf32> {jax.note = "\\C3\\A9 \\\\ \\0A"}) -> tensor<2xf32> {
        %0 = call @"a b\\"c"(%x) : (tensor<2xf32>) -> tensor<2xf32>
        return %0 : tensor<2xf32>
      }
    }"""
    module = read_stablehlo(text)
    for source in (write_text(module).text, write_artifact(module).data):
        again = read_stablehlo(source)
        assert set(again.functions) == {'a b"c', "main"}
        assert again.main.argument_attributes[0]["jax.note"] == "é \\ \n"


def test_the_public_function() -> None:
    data = girih.export_stablehlo(PLAIN, version="1.9.0")
    assert isinstance(data, bytes)
    assert read_bytecode(data).producer == "StableHLO_v1.9.0"
    again = girih.export_stablehlo(data, text=True)
    assert isinstance(again, str) and "stablehlo.add" in again
