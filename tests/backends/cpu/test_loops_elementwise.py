"""`loop` fusions: shapes, index operations and element types that the rooms' cases leave out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from girih.backends.cpu import codegen
from girih.backends.llvm.target import KernelCode
from girih.hlo.build import build_region
from girih.hlo.types import (
    BF16,
    C64,
    F16,
    F32,
    F64,
    I1,
    I4,
    I8,
    I32,
    I64,
    UI8,
    ElementType,
    TensorType,
)  # fmt: skip

from ...levels import levels
from ..support import inputs_for, kind
from . import harness

pytestmark = pytest.mark.usefixtures("each_level")
LEVELS = levels()


def check(
    types: Sequence[TensorType],
    body: Callable[..., Any],
    fusion: str = "loop",
    tolerance: float = 0.0,
    level: str | None = None,
) -> KernelCode:
    """The fusion's kernel agrees with the interpreter; its code is returned."""
    op = harness.fusion(fusion, build_region(types, body))
    target = codegen.host_target(level)
    harness.check(op, inputs_for(types), tolerance=tolerance, target=target)
    return harness.kernels.emit(op, target)


def pad(b: Any, x: Any, value: Any, low: Any, high: Any, interior: Any) -> Any:
    return b("pad", x, value, edge_padding_low=low, edge_padding_high=high,
             interior_padding=interior)  # fmt: skip


BODIES: dict[str, tuple[list[TensorType], Callable[..., Any]]] = {
    "add": ([kind(1000, 37)] * 2, lambda b, x, y: [b("add", x, y)]),
    "long": ([kind(20001)], lambda b, x: [b("negate", x)]),
    "bias": (
        [kind(4, 33, 48), kind(48)],
        lambda b, x, y: [b("add", x, b.broadcast(y, (4, 33, 48), (2,)))],
    ),
    "row scale": (
        [kind(4, 33, 48), kind(4, 33)],
        lambda b, x, y: [b("multiply", x, b.broadcast(y, (4, 33, 48), (0, 1)))],
    ),
    "transpose": ([kind(100, 130)], lambda b, x: [b.transpose(x, (1, 0))]),
    "transpose outer": ([kind(2, 24, 4, 32)], lambda b, x: [b.transpose(x, (0, 2, 1, 3))]),
    "transpose to last": ([kind(2, 12, 64, 33)], lambda b, x: [b.transpose(x, (0, 2, 3, 1))]),
    "transpose and add": (
        [kind(70, 50), kind(50, 70)],
        lambda b, x, y: [b("add", b.transpose(x, (1, 0)), y), b.transpose(x, (1, 0))],
    ),
    "concatenate": (
        [kind(3, 5, 16), kind(3, 7, 16)], lambda b, x, y: [b("concatenate", x, y, dimension=1)],
    ),
    "concatenate last": (
        [kind(3, 5), kind(3, 17)], lambda b, x, y: [b("concatenate", x, y, dimension=1)],
    ),
    "concatenate inside": (
        [kind(3, 5), kind(3, 17)],
        lambda b, x, y: [b.transpose(b("concatenate", x, y, dimension=1), (1, 0))],
    ),
    "pad": (
        [kind(3, 5, 16), kind()],
        lambda b, x, v: [pad(b, x, v, (0, 1, 2), (1, 0, 3), (0, 0, 0))],
    ),
    "pad between": (
        [kind(3, 5, 16), kind()],
        lambda b, x, v: [pad(b, x, v, (0, 1, -2), (1, 0, 3), (1, 0, 2))],
    ),
    "pad of sum": (
        [kind(9, 40), kind(9, 40), kind()],
        lambda b, x, y, v: [pad(b, b("add", x, y), v, (2, 3), (1, 5), (0, 0))],
    ),
    "slice": (
        [kind(20, 40)],
        lambda b, x: [b("slice", x, start_indices=(1, 3), limit_indices=(20, 40), strides=(2, 3))],
    ),
    "reverse": ([kind(20, 40)], lambda b, x: [b("reverse", x, dimensions=(0, 1))]),
    "iota": ([], lambda b: [b("iota", type=kind(3, 5, 7), iota_dimension=1)]),
    "reshape": (
        [kind(6, 35)], lambda b, x: [b.transpose(b.reshape(x, (6, 5, 7)), (0, 2, 1))],
    ),
    "reshape across": (
        [kind(6, 35), kind(21)],
        lambda b, x, y: [b("add", b.reshape(x, (10, 21)), b.broadcast(y, (10, 21), (1,)))],
    ),
    "dynamic slice": (
        [kind(20, 40), kind(element=I32), kind(element=I32)],
        lambda b, x, i, j: [b("dynamic_slice", x, i, j, slice_sizes=(5, 17))],
    ),
    "embedding": (
        [kind(50, 33), kind(7, element=I64)],
        lambda b, x, i: [
            b("gather", x, b.reshape(i, (7, 1)), offset_dims=(1,), collapsed_slice_dims=(0,),
              start_index_map=(0,), index_vector_dim=1, slice_sizes=(1, 33))
        ],
    ),
    "element gather": (
        [kind(50), kind(70, element=I32)],
        lambda b, x, i: [
            b("gather", x, i, offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,),
              index_vector_dim=1, slice_sizes=(1,))
        ],
    ),
    "scalar": ([kind(), kind()], lambda b, x, y: [b("multiply", x, y)]),
    "empty": ([kind(0, 4)], lambda b, x: [b("negate", x)]),
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", BODIES)
def test_loop(name: str, level: str | None) -> None:
    types, body = BODIES[name]
    check(types, body, level=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", [F32, F64, BF16, F16, I8, UI8, I32, I64, I4, C64])
def test_element_types(element: ElementType, level: str | None) -> None:
    """Neighbours of the last element stay untouched too (the harness guards every result)."""
    for size in (1, 17, 33, 64, 100):
        types = [kind(size, element=element)] * 2
        tolerance = 1e-6 if element is C64 else 0.0
        check(types, lambda b, x, y: [b("multiply", b("add", x, y), y)], "loop", tolerance, level)


@pytest.mark.parametrize("level", LEVELS)
def test_booleans(level: str | None) -> None:
    types = [kind(37, element=I1)] * 2
    check(types, lambda b, x, y: [b("xor", x, y), b("and", x, y)], level=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "name", ["exponential", "tanh", "logistic", "chlo.erf", "log", "sine", "sqrt", "cbrt"]
)
def test_functions(name: str, level: str | None) -> None:
    def body(b: Any, x: Any) -> Any:
        return [b(name, b("abs", x))]

    check([kind(300)], body, tolerance=2e-6, level=level)


def test_seams_become_boxes() -> None:
    """A concatenation is copied piece by piece: no element is computed twice."""
    types, body = BODIES["concatenate"]
    assert "select" not in check(types, body).ir_text


def test_many_short_pieces_become_boxes() -> None:
    """So is one of many pieces, each with operations of its own; not where all of them need what
    costs most."""

    def side_by_side(b: Any, *pieces: Any) -> list[Any]:
        return [b("concatenate", *(b("abs", one) for one in pieces), dimension=1)]

    assert "select" not in check([kind(3, 2, 8)] * 20, side_by_side).ir_text

    def behind_much(b: Any, whole: Any, *pieces: Any) -> list[Any]:
        for _ in range(12):
            whole = b("negate", b("abs", whole))
        return [b("add", whole, b("concatenate", *pieces, dimension=1))]

    assert "select" in check([kind(3, 40), *[kind(3, 2)] * 20], behind_much).ir_text


def test_one_kernel_is_small() -> None:
    """Code does not grow with the arrays."""
    small = check([kind(64, 64)] * 2, lambda b, x, y: [b("add", x, y)])
    large = check([kind(640, 640)] * 2, lambda b, x, y: [b("add", x, y)])
    assert len(large.ir_text) < 2 * len(small.ir_text) < 20_000


def test_what_rows_have_in_common_is_computed_once() -> None:
    """The deviations of a group norm belong to features: they are no work of each pixel."""

    def body(b: Any, x: Any, sums: Any) -> list[Any]:
        scale = b.broadcast(b("rsqrt", sums), (60, 5, 12, 4), (2,))
        return [b.reshape(b("multiply", b.reshape(x, (60, 5, 12, 4)), scale), (300, 48))]

    for level in LEVELS:
        text = check([kind(300, 48), kind(12)], body, tolerance=1e-6, level=level).ir_text
        text = text[: text.index("\n}\n")]
        last_loop = text.rindex("phi i64")
        assert "sqrt" in text[:last_loop] and "sqrt" not in text[last_loop:]


@pytest.mark.parametrize(
    ("rows", "channels", "groups"), [((3, 8, 32), 48, 4), ((2, 6, 20), 96, 8), ((2, 5, 7), 64, 16)]
)
def test_what_rows_of_an_image_have_in_common_is_computed_once_for_many(
    rows: tuple[int, ...], channels: int, groups: int
) -> None:
    """The deviations of a group norm belong to an image's features: rows of pixels share them."""
    dims = (*rows, groups, channels // groups)

    def body(b: Any, x: Any, sums: Any) -> list[Any]:
        scale = b.broadcast(b("rsqrt", sums), dims, (0, 3))
        return [b.reshape(b("multiply", b.reshape(x, dims), scale), (*rows, channels))]

    types = [kind(*rows, channels), kind(rows[0], groups)]
    for level in LEVELS:
        text = check(types, body, tolerance=1e-6, level=level).ir_text
        text = text[: text.index("\n}\n")]
        last_loop = text.rindex("phi i64")
        assert "sqrt" not in text[last_loop:]


@pytest.mark.parametrize("dims", [(2, 3, 5, 33), (3, 300), (2, 7, 16), (4, 9), (1, 2, 2000)])
@pytest.mark.parametrize("element", [F32, BF16])
def test_few_planes_become_pixels(dims: tuple[int, ...], element: Any) -> None:
    """Vectors run from pixel to pixel, where each plane lies side by side."""
    batch = len(dims) > 2
    order = (0, *range(2, len(dims)), 1) if batch else (1, 0)

    def body(b: Any, x: Any) -> list[Any]:
        return [b.convert(b.transpose(b("negate", x), order), element)]

    for level in LEVELS:
        check([kind(*dims)], body, level=level)
