"""Which version of StableHLO a program is written for, and that others read it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from mlir_reference import mlir_context

import girih
from girih.frontends.stablehlo import read_stablehlo
from girih.frontends.stablehlo.versions import STABLE, parse_version, version_text
from girih.frontends.stablehlo.write import write_artifact, write_text
from girih.hlo import ops, wire
from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.graph import Module, Origin
from girih.hlo.tiling import TILE_OPS
from girih.hlo.types import C64, F32, TensorType, tensor_of

from .stablehlo_programs import PLAIN, SMALL, main_of


@pytest.mark.parametrize("text", ["0.8.0", "0.21.0", "1.21.0", "2.0.0", "new", "1", "1.2.3.4", ""])
def test_versions_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(girih.UserError, match="no version of StableHLO that girih writes"):
        parse_version(text)


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
        ours = ("kernel_call", "foreign_call", "exchange")
        if room.name in ours or room.name.startswith("linalg."):
            continue
        for case in itertools.islice(room.cases(), 2):
            kinds = case.input_types or [tensor_of(array) for array in case.inputs]
            regions = case.regions(build_region) if case.regions else ()

            def body(b: Builder, *values: Any, case=case, room=room, regions=regions) -> Any:
                facts = case.attributes
                return b.op(room.name, values, facts, regions, case.result_types).results

            yield room.name, replace(build_module(kinds, body), meshes=case.meshes)


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
