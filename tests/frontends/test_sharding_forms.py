"""Every way in which exports state shardings is imported and written back as it was.

Programs are read by jaxlib on both sides and compared as it prints them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.frontends.stablehlo import gspmd
from girih.frontends.stablehlo.write import write_artifact, write_text
from girih.hlo.errors import ExportBlockers, ImportBlockers
from girih.hlo.graph import Module
from girih.hlo.sharding import Mesh, parse_sharding
from girih.hlo.text import print_module
from girih.hlo.verify import HLO, verify
from girih.hlo.wire import decode, encode
from girih.optimizer.passes.inline import Inline

from . import sharding_texts

pytest.importorskip("jax")

SCRIPT = Path(__file__).parent / "sharding_programs.py"
NAMES = (
    "in_out", "constraints", "of_argument", "open_dims", "group", "whole", "partly", "two_meshes",
    "calls", "loop", "donated", "explicit", "unreduced", "unreduced_map",
)  # fmt: skip
OLDER = ("older_in_out", "older_constraints", "older_open_dims", "older_order")
OLDER_AS_SHARDY = ("older_group", "older_whole", "older_partly")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("shardings") / "programs.npz"
    subprocess.run([sys.executable, str(SCRIPT), str(path)], check=True)
    return dict(np.load(path))


def canonical(text: str) -> str:
    """As jaxlib prints it, without what says nothing: defaults, a second form of the mesh, the
    order of functions."""
    from jaxlib.mlir import ir
    from mlir_reference import mlir_context

    with mlir_context():
        module = ir.Module.parse(text)
        assert module.operation.verify()
        printed = str(module.operation.get_asm())
    for silent in (", precision = [DEFAULT, DEFAULT]", 'backend_config = "", ', "public "):
        printed = printed.replace(silent, "")
    printed = printed.replace(", type = 1>", ", type = 0>")  # of a channel, on one partition
    printed = re.sub(r" \{stablehlo.mesh = \{axes = \[.*?\]\}\}\n", "\n", printed)
    head, *functions = re.split(r"\n  (?=func.func)", printed.rstrip("}\n"))
    return "\n  ".join([head, *sorted(f.rstrip(" }\n") for f in functions)])


def from_bytes(data: bytes) -> str:
    """A portable artifact as jaxlib prints it."""
    from jaxlib.mlir.dialects import stablehlo
    from mlir_reference import mlir_context

    with mlir_context() as context:
        return str(stablehlo.deserialize_portable_artifact(context, data).operation.get_asm())


def said(module: Module) -> list[str]:
    """Every sharding in the module, in order."""
    values = [*module.body.arguments]
    values += [value for op in module.walk() for value in op.results]
    found = [getattr(value.type, "sharding", None) for value in values]
    return [str(sharding) for sharding in found if sharding is not None]


def imported(text: Any) -> Module:
    module = girih.import_model(text)
    verify(module, HLO)
    assert print_module(decode(encode(module))) == print_module(module)
    return module


@pytest.mark.parametrize("name", NAMES + OLDER)
def test_what_jax_states_is_written_back(programs: Mapping[str, Any], name: str) -> None:
    text = str(programs[name])
    module = imported(text)
    assert canonical(write_text(module).text) == canonical(text)
    assert not any("sharding" in key for op in module.walk() for key in op.attributes) or (
        name in ("whole", "partly", "unreduced_map")
    )


@pytest.mark.parametrize("name", NAMES)
def test_exports_and_artifacts_say_the_same(programs: Mapping[str, Any], name: str) -> None:
    module = imported(str(programs[name]))
    exported = imported(programs[f"{name}.export"].tobytes())
    assert sorted(said(exported)) == sorted(said(module))
    assert exported.meshes == module.meshes
    data = write_artifact(module).data
    assert canonical(from_bytes(data)) == canonical(write_text(module).text)
    assert said(imported(data)) == said(module)


@pytest.mark.parametrize("name", OLDER_AS_SHARDY)
def test_older_groups_and_programs_per_device_become_shardys(
    programs: Mapping[str, Any], name: str
) -> None:
    text = str(programs[name])
    assert "sdy." not in text
    module = imported(text)
    assert set(module.meshes) == {"gspmd"}
    written = write_text(module).text
    assert "mhlo.sharding" not in written and said(imported(written)) == said(module)
    canonical(written)


def test_values_unreduced_by_a_manual_computation_are_sums(programs: Mapping[str, Any]) -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    (result,) = girih.interpret(imported(str(programs["unreduced_map"])), [x])
    np.testing.assert_allclose(result, x.sum(0))


def test_a_custom_partitioning_blocks_with_its_rule(programs: Mapping[str, Any]) -> None:
    with pytest.raises(ImportBlockers) as caught:
        girih.import_model(str(programs["custom"]))
    message = str(caught.value)
    assert "partitioned by the rule <([i, j])->([i, j]) {i=8, j=8}, custom>" in message
    assert "write it as a girih.kernel(sharding='i j -> i j'), or call it without" in message


def test_a_custom_partitioning_by_callbacks_alone_blocks(programs: Mapping[str, Any]) -> None:
    text = re.sub(r",? sdy\.sharding_rule = .*? custom>", "", str(programs["custom"]))
    assert "sdy.sharding_rule" not in text
    with pytest.raises(ImportBlockers) as caught:
        girih.import_model(text)
    message = str(caught.value)
    assert "how it is partitioned is a callback in the process that exported it" in message
    assert "whose sharding= says it" in message


@pytest.mark.parametrize("name", sorted(sharding_texts.FORMS))
def test_what_shardy_can_state_is_written_back(name: str) -> None:
    text = sharding_texts.FORMS[name]
    module = imported(text)
    written = write_text(module).text
    assert canonical(written) == canonical(text)
    data = write_artifact(module).data
    assert canonical(from_bytes(data)) == canonical(text)
    assert said(imported(data)) == said(module)


def test_constraints_of_an_inlined_function_stay() -> None:
    """Of its arguments and results as well: they are none of the function around it."""
    module = Inline()(imported(sharding_texts.FORMS["private"]))
    assert said(module) == ['<@mesh, [{"x"}, {}]>', '<@mesh, [{"y"}, {}]>']
    again = imported(write_text(module).text)
    assert said(again) == said(module)
    free = sharding_texts.FORMS["private"].replace("8x8", "?x8")
    example = np.ones((4, 8), np.float32)
    assert said(girih.import_model(free, example)) == said(module)


def test_a_named_computation_becomes_its_body_between_constraints() -> None:
    module = imported(sharding_texts.NAMED)
    assert [op.name for op in module.body.ops] == [
        "sharding_constraint", "sine", "sharding_constraint",
    ]  # fmt: skip
    assert said(module) == ['<@mesh, [{"x"}, {}]>', '<@mesh, [{"y"}, {}]>']


def test_the_kind_of_an_unreduced_value_is_kept() -> None:
    module = imported(sharding_texts.MAXIMUM)
    assert said(module) == ['<@mesh, [{}, {}], unreduced=max{"x"}>']
    assert said(imported(write_text(module).text)) == said(module)


def test_shardings_in_frontend_attributes_are_read() -> None:
    module = imported(sharding_texts.FRONTEND)
    assert module.meshes == {"mesh": Mesh((("x", 4), ("y", 2)))}
    assert said(module) == ['<@mesh, [{"x"}, {}]>', '<@mesh, [{"y"}, {?}]>']


@pytest.mark.parametrize(
    ("sharding", "reason"),
    [
        ('<@mesh, [{"z"}, {}]>', "names no axis of its mesh"),
        ('<@mesh, [{"x"}]>', "has 1 dims, its tensor 2"),
        ('<@mesh, [{"x"}, {"x"}]>', "uses axis 'x' twice"),
        ('<@web, [{"x"}, {}]>', "names the mesh @web, which is not in the file"),
        ('<@mesh, [{"x"}, {}], whole={}>', "cannot be read"),
    ],
)
def test_a_sharding_that_means_nothing_is_refused(sharding: str, reason: str) -> None:
    for text in (
        sharding_texts.with_argument(sharding), sharding_texts.with_constraint(sharding),
    ):  # fmt: skip
        with pytest.raises(girih.UserError, match=re.escape(reason)):
            girih.import_model(text)


def test_a_mesh_without_sizes_cannot_be_exported() -> None:
    module = imported(sharding_texts.NAMED)
    text = print_module(module).replace(r"\"x\"=4", r"\"x\"=?")
    from girih.hlo.parse import parse_module

    with pytest.raises(ExportBlockers, match="has an axis without a size"):
        write_text(parse_module(text))


@pytest.mark.parametrize(
    ("sharding", "mesh", "text"),
    [
        ('[{"x"}, {}]', Mesh((("x", 4), ("y", 2))), "devices=[4,1,2]<=[8] last_tile_dim_replicate"),
        ('[{"y"}, {"x"}]', Mesh((("x", 4), ("y", 2))), "devices=[2,4]<=[4,2]T(1,0)"),
        ("[{}, {}]", Mesh((("x", 4), ("y", 2))), "replicated"),
        ('[{"x":(2)2}, {}]', Mesh((("x", 4),)),
         "devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate"),
        ('[{"x"}, {}]', Mesh((("x", 2), ("y", 2)), (0, 2, 1, 3)),
         "devices=[2,1,2]0,2,1,3 last_tile_dim_replicate"),
        ('[{"x"}, {}], unreduced={"y"}', Mesh((("x", 2), ("y", 2), ("z", 2))),
         "devices=[2,1,2,2]<=[8] last_tile_dims={unreduced, replicated}"),
        ("[{}]", Mesh((), (3,)), "maximal device=3"),
    ],
)  # fmt: skip
def test_older_text_is_spelled_and_read(sharding: str, mesh: Mesh, text: str) -> None:
    stated = parse_sharding(f"<@gspmd, {sharding}>")
    spelled = gspmd.spell(stated, mesh)
    assert spelled == f"{{{text}}}"
    read = gspmd.Spelling([spelled], mesh.devices).sharding(spelled, stated.rank)
    assert read is not None and gspmd.spell(*read) == spelled


def test_older_texts_of_other_kinds() -> None:
    named = "{mesh['a'=2,'b'=4], [{'a', ?}, {}], replicated={'b'}}"
    spelling = gspmd.Spelling([named, "{manual}"], 8)
    found = spelling.sharding(named, 2)
    assert found is not None and found[1] == Mesh((("a", 2), ("b", 4)))
    assert str(found[0]).endswith(', [{"a", ?}, {}], replicated={"b"}>')
    assert spelling.sharding("{manual}", 2) is None
    assert gspmd.members("{{maximal device=1}, {devices=[2,1]<=[2]}}", 2) == [
        "{maximal device=1}", "{devices=[2,1]<=[2]}",
    ]  # fmt: skip
    # Two orders that no one mesh has: each gets its own.
    texts = ["{devices=[4]0,1,2,3}", "{devices=[4]0,2,1,3}"]
    spelling = gspmd.Spelling(texts, 4)
    stated = [spelling.sharding(text, 1) for text in texts]
    assert [found[0].mesh for found in stated if found] == ["gspmd_0", "gspmd_1"]
    assert [found[1].device_ids for found in stated if found] == [(0, 1, 2, 3), (0, 2, 1, 3)]
