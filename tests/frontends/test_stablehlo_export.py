"""Writing StableHLO back: what is read is written again, for every version, and nothing is lost."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlir_reference import flat_attributes, mlir_context, tree_facts

import girih
from girih.frontends import tree
from girih.frontends.stablehlo import read_stablehlo, read_tree
from girih.frontends.stablehlo.bytecode import read_bytecode
from girih.frontends.stablehlo.convert import convert
from girih.frontends.stablehlo.text import read_text
from girih.frontends.stablehlo.versions import NEWEST, OLDEST, STABLE, parse_version, version_text
from girih.frontends.stablehlo.write import write_artifact, write_text
from girih.frontends.stablehlo.write_bytecode import artifact
from girih.frontends.stablehlo.write_text import document_text
from girih.hlo import ops, wire
from girih.hlo.build import Builder, build_module
from girih.hlo.graph import Function, Module, Origin, Weight
from girih.hlo.ops.tile import TILE_OPS
from girih.hlo.types import C64, F32, SymbolicDim, TensorType, tensor_of
from girih.hlo.verify import verify

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
from programs import CHOSEN, read_programs  # type: ignore[import-not-found]

CHECK = re.compile(
    r"^\s*(%\w+) = stablehlo\.custom_call @check\.eq\((.*?)\).* : \((.*)\) -> tensor<i1>\n", re.M
)


def programs() -> Iterator[tuple[str, str]]:
    """Name and text of each program; one that checks its answer gives what it compares instead."""
    for name, text in read_programs(CHOSEN):
        for number, part in enumerate(text.split("// -----")):
            if (check := CHECK.search(part)) is not None:
                flag, values, types = check.groups()
                part = CHECK.sub("", part)
                part = part.replace(f"return {flag} : tensor<i1>", f"return {values} : {types}")
                part = part.replace("-> tensor<i1> {", f"-> ({types}) {{", 1)
            yield f"{name}#{number}", part


PROGRAMS = dict(programs())
SHARDS = 8
DATA = Path(__file__).parents[1] / "data" / "readers"
FROZEN = {
    path.stem: parse_version(path.stem.removeprefix("stablehlo_").replace("_", "."))
    for path in DATA.glob("stablehlo_*.mlirbc")
}
EMPTY = re.compile(r"dense<[^>]*> : (tensor<(?:\d+x)*0x)")


def functions_of(text: str) -> dict[str, str]:
    """Each function as jaxlib prints it, without assertions, which girih does not import."""
    from jaxlib.mlir import ir

    module = ir.Module.parse(text)
    found = {}
    for function in module.body.operations:
        _drop_assertions(function)
        printed = re.sub(r"func\.func (?:public |private )?@[^(]*", "", str(function), count=1)
        name = str(function.attributes["sym_name"]).strip('"')
        found[name] = EMPTY.sub(r"dense<> : \1", printed)
    return found


def _drop_assertions(owner: Any) -> None:
    for region in owner.operation.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                operation = inner.operation
                target = (
                    "call_target_name" in operation.attributes
                    and (operation.attributes["call_target_name"])
                )
                if "check." in f"{operation.name} {target}":
                    inner.operation.detach_from_parent()
                else:
                    _drop_assertions(inner)


def own_functions(text: str) -> dict[str, Any]:
    """The same by girih's reader: jaxlib's is older than some quantised programs."""
    document = read_text(text)
    found = {}
    for function in document.module.regions[0].operations:
        body = function.regions[0]
        body.operations = [op for op in body.operations if "check." not in spelled(op)]
        name = function.attributes.pop("sym_name")
        function.attributes.pop("sym_visibility", None)
        one = tree.Operation("builtin.module", regions=[tree.Region([], [function])])
        alone = dataclasses.replace(document, module=one)
        found[name] = tree_facts(alone), list(flat_attributes(alone))
    return found


def spelled(operation: tree.Operation) -> str:
    return f"{operation.name} {operation.attributes.get('call_target_name', '')}"


def carried(module: Module) -> Module:
    """The module after a trip over the wire."""
    return wire.decode(wire.encode(module), lambda name, kind: module.weights[name].array)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_text_that_is_written_is_the_text_that_was_read(shard: int) -> None:
    with mlir_context():
        for name in sorted(PROGRAMS)[shard::SHARDS]:
            text = PROGRAMS[name]
            written = write_text(carried(read_stablehlo(text)), weights_as_arguments=False).text
            if "!quant" in text or "check.expect_eq_const" in text:
                original, found = own_functions(text), own_functions(written)
            else:
                original, found = functions_of(text), functions_of(written)
            if "main" not in original:
                (entry,) = original.values()
                original = {"main": entry}
            assert {key: original[key] for key in found} == found, name


@pytest.mark.parametrize("version", [OLDEST, STABLE, NEWEST], ids=version_text)
def test_artifacts_read_back_equal(version: tuple[int, int]) -> None:
    names = sorted(name for name in PROGRAMS if "chlo" not in PROGRAMS[name])
    refused = []
    for name in names[::3]:
        module = read_stablehlo(PROGRAMS[name])
        text = write_text(module, weights_as_arguments=False).text
        try:
            data = write_artifact(module, version).data
        except girih.ExportBlockers as error:
            refused.append((name, error))
            continue
        if version >= (1, 4) or "stablehlo.tan " not in PROGRAMS[name]:
            assert wire.encode(read_stablehlo(data)) == wire.encode(read_stablehlo(text)), name
    assert all("came with StableHLO" in str(error) for _, error in refused)
    assert not refused or version < NEWEST


@pytest.mark.parametrize("name", sorted(FROZEN))
def test_frozen_artifact_is_written_again(name: str) -> None:
    document = read_bytecode((DATA / f"{name}.mlirbc").read_bytes(), name)
    data = artifact(document, FROZEN[name])
    again = read_bytecode(data, name)
    assert again.producer == f"StableHLO_v{version_text(FROZEN[name])}"
    assert tree_facts(again) == tree_facts(document)
    assert list(flat_attributes(again)) == list(flat_attributes(document))
    assert places(again) == places(document)
    text = read_text(document_text(document), name)
    assert tree_facts(text) == tree_facts(document)


def places(document: tree.Document) -> list[Any]:
    """Every op's and argument's location, spelled out."""

    def whole(handle: Any) -> Any:
        location = document.location(handle) if isinstance(handle, (int, str)) else handle
        match location:
            case tree.NameLocation(name, child):
                return name, whole(child)
            case tree.CallSite(callee, caller):
                return "call", whole(callee), whole(caller)
            case tree.FusedLocation(parts):
                return tuple(map(whole, parts))
        return location

    return [whole(operation.location) for operation in tree.walk(document.module)]


@pytest.mark.parametrize("name", ["stablehlo_0_9_0", "stablehlo_0_12_0", "stablehlo_1_16_0"])
def test_jaxlib_sees_the_frozen_program_in_what_is_written(name: str) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    data = (DATA / f"{name}.mlirbc").read_bytes()
    document = read_bytecode(data, name)
    with mlir_context() as context, ir.Location.unknown():
        original = str(stablehlo.deserialize_portable_artifact(context, data))
        written = artifact(document, FROZEN[name])
        assert str(stablehlo.deserialize_portable_artifact(context, written)) == original
        assert str(ir.Module.parse(document_text(document))) == original


ENDLESS = "op_while"  # its condition always holds
LARGE = "op_scatter_with_batching_dims"


def functions_alone(name: str) -> Iterator[tuple[str, tree.Document]]:
    """Each function of a frozen artifact as a program of its own, with those that it calls."""
    document = read_bytecode((DATA / f"{name}.mlirbc").read_bytes(), name)
    top = document.module.regions[0].operations
    known = {f.attributes["sym_name"]: f for f in top if f.name == "func.func"}

    def reached(function: tree.Operation, found: dict[str, tree.Operation]) -> None:
        for operation in tree.walk(function):
            facts = operation.attributes
            callees = [facts.get("callee"), facts.get("decomposition")]
            for callee in [*callees, *facts.get("called_computations", ())]:
                if callee in known and callee not in found:
                    found[callee] = known[callee]
                    reached(known[callee], found)

    for entry, function in known.items():
        found = {entry: function}
        reached(function, found)
        parts = [op for op in top if op.name != "func.func"]
        for label, part in found.items():
            visibility = "public" if label == entry else "private"
            facts = {**part.attributes, "sym_visibility": visibility}
            parts.append(tree.Operation(part.name, attributes=facts, regions=part.regions))
        module = tree.Operation("builtin.module", regions=[tree.Region([], parts)])
        yield entry, dataclasses.replace(document, module=module)


def made_up(kind: Any) -> Any:
    """An input of a type; free sizes are 2."""
    if not isinstance(kind, TensorType):
        return None
    shape = [dim if isinstance(dim, int) else 2 for dim in kind.dims]
    values = np.random.default_rng(0).integers(0, 3, shape)
    with np.errstate(all="ignore"):
        return values.astype(kind.dtype)


def executed(name: str) -> dict[str, list[Any]]:
    """Function -> its results; those that one process cannot run are refused by name."""
    found = {}
    for entry, document in functions_alone(name):
        if entry in (ENDLESS, LARGE):
            continue
        try:
            module = convert(document)
            verify(module)
            inputs = [made_up(kind) for kind in module.body.argument_types]
            with np.errstate(all="ignore"):
                found[entry] = [inputs, girih.interpret(module, inputs)]
        except girih.UserError:
            continue  # collectives of several processes, calls of unknown code, invalid programs
    return found


def test_functions_of_frozen_artifacts_give_the_same_at_every_version() -> None:
    newest = executed("stablehlo_1_20_0")
    assert len(newest) >= 180
    for name, least in (("stablehlo_0_9_0", 130), ("stablehlo_1_0_0", 140)):
        older = executed(name)
        assert len(older) >= least, len(older)
        for entry in older.keys() & newest.keys():
            (inputs, left), (others, right) = older[entry], newest[entry]
            if list(map(describe, inputs)) == list(map(describe, others)):
                assert list(map(contents, left)) == list(map(contents, right)), entry


def describe(value: Any) -> Any:
    return None if value is None else (value.dtype, value.shape)


def contents(value: Any) -> Any:
    return None if value is None else (np.asarray(value).dtype, np.asarray(value).tobytes())


def test_every_released_version_is_frozen() -> None:
    minors = {version[1] for version in FROZEN.values() if version[0] == 0}
    assert minors == set(range(9, 21))
    assert {v[1] for v in FROZEN.values() if v[0] == 1} == set(range(21)) - {17}  # none was frozen


# Versions


@pytest.mark.parametrize("text", ["0.8.0", "0.21.0", "1.21.0", "2.0.0", "new", "1", "1.2.3.4", ""])
def test_versions_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(girih.UserError, match="no version of StableHLO that girih writes"):
        parse_version(text)


def main_of(body: str, arguments: str, result: str) -> str:
    return f"""func.func @main({arguments}) -> {result} {{
      {body}
      func.return %0 : {result}
    }}"""


BATCHED = main_of(
    """%0 = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<
         collapsed_slice_dims = [1], operand_batching_dims = [0],
         start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>,
         slice_sizes = array<i64: 1, 1>} : (tensor<2x5xf32>, tensor<2x3x1xi32>) -> tensor<2x3xf32>
    """,
    "%x: tensor<2x5xf32>, %i: tensor<2x3x1xi32>",
    "tensor<2x3xf32>",
)
ALGORITHM = main_of(
    """%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0],
         algorithm = <lhs_precision_type = tf32, rhs_precision_type = tf32,
         accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1,
         num_primitive_operations = 1, allow_imprecise_accumulation = false>
         : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>""",
    "%x: tensor<4x4xf32>",
    "tensor<4x4xf32>",
)
ACCURATE = main_of(
    """%0 = "stablehlo.exponential"(%x) {result_accuracy = #stablehlo.result_accuracy<ulps = 2,
         mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : (tensor<4xf32>) -> tensor<4xf32>""",
    "%x: tensor<4xf32>",
    "tensor<4xf32>",
)
PLAIN = main_of("%0 = stablehlo.add %x, %x : tensor<4xf32>", "%x: tensor<4xf32>", "tensor<4xf32>")
SMALL = main_of("%0 = stablehlo.add %x, %x : tensor<4xi2>", "%x: tensor<4xi2>", "tensor<4xi2>")


@pytest.mark.parametrize(
    ("text", "needed", "what"),
    [
        (BATCHED, (1, 1), "'operand_batching_dims' came with"),
        (ALGORITHM, (1, 6), "'accumulation_type' came with"),
        (ACCURATE, (1, 9), "'result_accuracy' came with"),
        (SMALL, (1, 2), r"the type tensor<4xi2> came with"),
    ],
    ids=["batching", "algorithm", "accuracy", "type"],
)
def test_the_lowest_version_that_can_say_it_is_taken(
    text: str, needed: tuple[int, int], what: str
) -> None:
    written = write_artifact(read_stablehlo(text))
    assert written.version == needed
    assert wire.encode(read_stablehlo(written.data)) == wire.encode(read_stablehlo(text))
    with pytest.raises(girih.ExportBlockers, match=what) as caught:
        write_artifact(read_stablehlo(text), (1, 0))
    assert f"write version {version_text(needed)}" in str(caught.value)
    with pytest.raises(girih.ExportBlockers, match=what):
        write_text(read_stablehlo(text), (1, 0))


def test_plain_programs_are_written_for_the_first_stable_version() -> None:
    assert write_artifact(read_stablehlo(PLAIN)).version == STABLE


def test_all_reasons_are_listed_with_their_places() -> None:
    def body(b: Builder, x: Any, z: Any) -> list[Any]:
        with b.at((Origin("model.py", 7),)):
            first = b("chlo.asin", z)
        with b.at((Origin("model.py", 9),)):
            second = b("exponential", x, result_accuracy={"mode": "HIGHEST"})
        return [first, second]

    module = build_module([TensorType((2,), F32), TensorType((2,), C64)], body)
    with pytest.raises(girih.ExportBlockers) as caught:
        write_artifact(module, (1, 0))
    message = str(caught.value)
    assert "2 reasons" in message
    assert "model.py:7: chlo.asin: StableHLO has no such operation" in message
    reason = "model.py:9: stablehlo.exponential: 'result_accuracy' came with StableHLO 1.9.0"
    assert reason in message


NEWER_THAN_JAXLIB = (
    "collective_broadcast", "collective_reduce", "uniform_quantize", "uniform_dequantize"
)  # fmt: skip


def cases() -> Iterator[tuple[str, Module]]:
    """Programs of one operation: two of each room's cases."""
    for room in ops.DEFINITIONS:
        if room.name in TILE_OPS or room.name in ("weight", "call", "composite", "fusion"):
            continue
        if room.name in ("kernel_call", "foreign_call") or room.name.startswith("linalg."):
            continue
        for case in itertools.islice(room.cases(), 2):
            kinds = case.input_types or [tensor_of(array) for array in case.inputs]
            regions = case.regions() if case.regions else ()

            def body(b: Builder, *values: Any, case=case, room=room, regions=regions) -> Any:
                facts = case.attributes
                return b.op(room.name, values, facts, regions, case.result_types).results

            yield room.name, build_module(kinds, body)


def test_every_operation_is_written_as_others_read_it() -> None:
    from jaxlib.mlir import ir

    seen = set()
    with mlir_context():
        for name, module in cases():
            text = write_text(module).text
            if name not in NEWER_THAN_JAXLIB:
                ir.Module.parse(text)
            again = write_text(read_stablehlo(text)).text
            assert write_text(read_stablehlo(again)).text == again, name
            try:
                data = write_artifact(module).data
            except girih.ExportBlockers as error:
                assert "no decomposition" in str(error) or "no such operation" in str(error)
                continue
            read_stablehlo(data)
            seen.add(name)
    assert len(seen) >= 130


# What girih says in other words


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
        original, found = functions_of(text), functions_of(write_text(carried(module)).text)
    assert original == found
    with pytest.raises(girih.UnsupportedError, match="symbolic dimension"):
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
    module = dataclasses.replace(module, symbols={"n": (1, None)})
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
