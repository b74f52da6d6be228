"""What is only declared costs nothing to read; what nests without end is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from girih.frontends.stablehlo import read_stablehlo
from girih.hlo.build import build_module
from girih.hlo.errors import UserError
from girih.hlo.graph import Dense
from girih.hlo.parse import parse_module
from girih.hlo.text import print_module
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import verify
from girih.hlo.wire import decode, encode

HUGE = TensorType((99_999_999_999,), F32)
MEGABYTE = 1 << 20


def huge() -> object:
    return build_module([HUGE], lambda b, x: [b("add", x, b.constant(Dense.splat(1.0, HUGE)))])


STABLEHLO = """
func.func @main(%arg0: tensor<99999999999xf32>) -> tensor<99999999999xf32> {
  %0 = stablehlo.constant dense<1.0> : tensor<99999999999xf32>
  %1 = stablehlo.add %arg0, %0 : tensor<99999999999xf32>
  return %1 : tensor<99999999999xf32>
}
"""


@pytest.mark.parametrize(
    "read",
    [
        lambda: read_stablehlo(STABLEHLO),
        lambda: parse_module(print_module(huge())),  # pyright: ignore[reportArgumentType]
        lambda: decode(encode(huge())),  # pyright: ignore[reportArgumentType]
    ],
    ids=["stablehlo", "text", "wire"],
)
def test_a_huge_constant_of_one_value_is_one_value(read: Callable[[], object]):
    read()  # whatever is imported and cached
    tracemalloc.start()
    module = read()
    verify(module)  # pyright: ignore[reportArgumentType]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MEGABYTE


@pytest.mark.parametrize("count", [70, 10_000])
def test_nesting_without_end(count):
    regions = '"stablehlo.case"(%0) ({' * count
    for text in (
        f"func.func @main(%0: tensor<i32>) {{ {regions}",
        "module { " * count,
        "func.func @main(%0: " + "tuple<" * count,
    ):
        with pytest.raises(UserError):
            read_stablehlo(text)
    own = 'girih 1.0 module "m" entry @main { function @main(%0: i32[]) { '
    for inner in ("%1 = case(%0) : i32[] [region() { " * count, "%1 = add(%0) {a = " + "(" * count):
        with pytest.raises(UserError):
            parse_module(own + inner)
