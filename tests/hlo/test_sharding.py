"""Meshes and shardings: grammar, parts of axes, which device holds what."""

import pytest

from girih.hlo.errors import UserError
from girih.hlo.sharding import (
    Axis,
    DimSharding,
    Mesh,
    Sharding,
    ShardingReader,
    opened,
    parse_mesh,
    parse_sharding,
    replicated,
)

MESH = Mesh((("data", 2), ("model", 4)))

MESHES = (
    '<["data"=2, "model"=4]>',
    '<["x"=2], device_ids=[1, 0]>',
    '<["batch axis"=?, "m"=2]>',
    "<[]>",
)

SHARDINGS = (
    "<@mesh, []>",
    '<@mesh, [{"data"}, {}]>',
    '<@mesh, [{"data", ?}p1, {?}, {"model":(1)2, "x":(2)2}p0]>',
    '<@mesh_0, [{}, {?}], replicated={"data"}, unreduced={"model":(2)2}>',
    '<@mesh, [{}], unreduced=max{"data", "model"}>',
    '<@mesh, [{"a \\"quoted\\" axis"}]>',
)


@pytest.mark.parametrize("text", MESHES)
def test_meshes_print_as_they_are_read(text: str):
    assert str(parse_mesh(text)) == text
    assert parse_mesh("#sdy.mesh" + text) == parse_mesh(text)


@pytest.mark.parametrize("text", SHARDINGS)
def test_shardings_print_as_they_are_read(text: str):
    assert str(parse_sharding(text)) == text
    assert parse_sharding("#sdy.sharding" + text.replace(" ", "")) == parse_sharding(text) or (
        "quoted" in text
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "<", "<@mesh>", "<@mesh, [{x}]>", '<@mesh, [{"x"}]', '<@mesh, [{"x"}]> more',
        '<@mesh, [{?, "x"}]>', '<@mesh, [{"x":(0)2}]>', '<@mesh, [{"x":(1)1}]>',
        '<@mesh, [{}], unreduced=mean{"x"}>', '<@mesh, [{"x"}, {"x"}]>',
        '<@mesh, [{"x"}], other={"y"}>', '<mesh<["x"=2]>, [{"x"}]>',
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str):
    with pytest.raises(UserError):
        parse_sharding(text)


def test_a_mesh_that_stands_in_a_sharding_gets_a_name():
    met: list[Mesh] = []

    def inline(mesh: Mesh) -> str:
        met.append(mesh)
        return "mesh_7"

    reader = ShardingReader('<mesh<["x"=2]>, [{"x"}]>', inline)
    assert str(reader.sharding()) == '<@mesh_7, [{"x"}]>'
    assert met == [Mesh((("x", 2),))]


@pytest.mark.parametrize(
    "mesh",
    [
        lambda: Mesh((("x", 2), ("x", 3))),
        lambda: Mesh((("x", 0),)),
        lambda: Mesh((("x", 2),), (0, 0)),
        lambda: Mesh((("x", 2),), (0, 2)),
    ],
)
def test_meshes_that_mean_nothing_are_refused(mesh):
    with pytest.raises(UserError):
        mesh()


@pytest.mark.parametrize(
    ("text", "rank", "says"),
    [
        ('<@mesh, [{"modle"}]>', 1, "did you mean 'model'"),
        ('<@mesh, [{"data"}]>', 2, "has 1 dims, its tensor 2"),
        ('<@mesh, [{"model":(2)4}]>', 1, "no part of an axis of size 4"),
        ('<@mesh, [{"model":(1)4}, {"model":(2)2}]>', 2, "'model' twice"),
    ],
)
def test_shardings_are_checked_against_their_mesh(text: str, rank: int, says: str):
    with pytest.raises(UserError, match=says):
        parse_sharding(text).check(MESH, rank)


def test_an_open_size_is_told():
    with pytest.raises(UserError, match="'data' is open"):
        _ = Mesh((("data", None),)).devices


def test_parts_of_axes():
    model, left, right = Axis("model"), Axis("model", 1, 2), Axis("model", 2, 2)
    assert MESH.size(model) == 4 and MESH.size(right) == 2
    assert MESH.overlap(model, left) and not MESH.overlap(left, right)
    assert MESH.merged([left, right]) == (model,)
    assert MESH.merged([right, left]) == (right, left)
    assert MESH.merged([Axis("data"), left]) == (Axis("data"), left)


def test_which_part_a_device_holds():
    sharding = Sharding("mesh", (DimSharding((Axis("model", 2, 2), Axis("data"))), DimSharding()))
    found = [MESH.index(sharding.dims[0].axes, MESH.coordinates(i)) for i in range(8)]
    assert found == [0, 2, 0, 2, 1, 3, 1, 3]
    assert sharding.local_dims(MESH, (10, 3)) == (3, 3)


def test_nothing_said_and_nothing_cut():
    assert str(opened("mesh", 2)) == "<@mesh, [{?}, {?}]>"
    assert str(replicated("mesh", 1)) == "<@mesh, [{}]>"
