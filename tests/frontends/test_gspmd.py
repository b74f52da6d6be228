"""Shardings of exports before Shardy: their text, and one mesh that says them all."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import girih
from girih.frontends.stablehlo.gspmd import Tiles, common_mesh, read_tiles
from girih.hlo.groups import device_array


def test_texts_are_read() -> None:
    assert read_tiles("{replicated}") == Tiles((), (), ())
    assert read_tiles("{devices=[4,2]<=[8]}") == Tiles((4, 2), (8,), (0,))
    tiles = read_tiles("{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}")
    assert tiles == Tiles((2, 1, 4), (4, 2), (1, 0), ("replicated",))
    assert read_tiles("{devices=[2,2]0,1,2,3}") == Tiles((2, 2), (4,), (0,))
    tiles = read_tiles("{devices=[2,2]0,2,1,3}")
    assert tiles == Tiles((2, 2), (4,), (0,), (), (0, 2, 1, 3))
    tiles = read_tiles("{devices=[2,2]<=[4] last_tile_dims={manual}}")
    assert tiles == Tiles((2, 2), (4,), (0,), ("manual",))
    for other in (
        "{manual}", "{maximal device=0}", "{devices=[2,2]0,2,2,3}", "{devices=[4]<=[8]}", "{}",
        "{devices=[0]<=[0]}", "{devices=[2]<=[2]T(1)}", "{devices=[99999]<=[99999]}",
        "{devices=[2,2]<=[4] last_tile_dims={maximal}}",
    ):  # fmt: skip
        assert read_tiles(other) is None


def blocks(tiles: Tiles) -> np.ndarray:
    """The device that holds each block, by definition."""
    order = np.arange(tiles.devices).reshape(tiles.source).transpose(tiles.permutation)
    return order.reshape(tiles.parts)


@pytest.mark.parametrize(
    "texts",
    [
        ("{devices=[4,2]<=[8]}", "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"),
        ("{devices=[8]<=[8]}", "{devices=[2,4]<=[2,2,2]T(1,0,2)}"),
        ("{devices=[1,4,2]<=[8] last_tile_dim_replicate}", "{devices=[2,2,2]<=[2,2,2]T(2,1,0)}"),
        ("{devices=[6,2]<=[3,4]T(1,0)}", "{devices=[12]<=[12]}"),
    ],
)
def test_axes_give_each_device_its_block(texts: Any) -> None:
    tiles = [found for found in map(read_tiles, texts) if found is not None]
    made = common_mesh(tiles)
    if made is None:  # 6 of the transposed 4 x 3 devices is no product of axes
        assert texts[0].startswith("{devices=[6,2]")
        return
    mesh, named = made
    sizes, places = dict(mesh.axes), device_array([(n, s or 0) for n, s in mesh.axes], ())
    for one, cut in zip(tiles, named, strict=True):
        wanted = blocks(one)
        for place in itertools.product(*(range(size) for size in places.shape)):
            at = dict(zip(sizes, place, strict=True))
            block = [0] * len(cut)
            for number, axes in enumerate(cut):
                block[number] = mesh.index(axes, at)
            assert places[place] in np.ravel(wanted[tuple(block)])


def test_what_is_not_understood_blocks() -> None:
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2]1,0}"}
        : (tensor<4xf32>) -> tensor<4xf32>
      %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"}
        : (tensor<4xf32>) -> tensor<2xf32>
      %2 = call @body(%1) : (tensor<2xf32>) -> tensor<2xf32>
      %3 = stablehlo.custom_call @SPMDShardToFullShape(%2) {mhlo.sharding = "{devices=[2]<=[2]}"}
        : (tensor<2xf32>) -> tensor<4xf32>
      return %3 : tensor<4xf32>
    }
    func.func private @body(%x: tensor<2xf32>) -> tensor<2xf32> {
      return %x : tensor<2xf32>
    }
    """
    with pytest.raises(girih.ImportBlockers, match="export the program with Shardy"):
        girih.import_model(text)
    module = girih.import_model(text.replace("[2]1,0", "[2]<=[2]"))
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(girih.interpret(module, [x])[0], x)
