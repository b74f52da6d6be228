"""Programs that rules meet by chance: empty tensors, odd windows, operations alone, other types.

No rule claims to fire on them; what it makes of them must mean the same. Each is there because some
condition of some rule could be dropped without any example noticing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...hlo.graph import Value
from ...hlo.types import BF16, F32, F64, I1, I8, I32, UI8, ElementType, TensorType
from ..rule import Example, example
from . import hostile_sums
from .contractions import f32
from .slices import cut, padded

A, B, CUBE, EMPTY = f32(4, 6), f32(6, 4), f32(2, 3, 4), f32(0, 4)
SCALAR = f32()
FLAGS = TensorType((4, 6), I1)
INTEGERS = TensorType((40,), I32)
INDEX = TensorType((), I32)


def programs() -> Iterator[Example]:
    """Small programs without a claim about which rules fire on them."""
    for name, types, body in (
        *_elementwise(),
        *_conversions(),
        *_moves(),
        *_joined(),
        *_cuts(),
        *_gathers(),
        *_pads(),
        *hostile_sums.programs(),
    ):
        yield example(name, types, body)._replace(fires=None)


Programs = Iterator[tuple[str, Sequence[TensorType], Any]]


def _constant(b: Any, number: Any, type: TensorType) -> Value:
    return b.constant(number, type)


def _elementwise() -> Programs:
    line = f32(40)
    for name, bound in itertools.product(
        ("maximum", "minimum", "remainder", "divide"), (-1.5, 8.0, 0.0)
    ):
        yield (
            f"{name} {bound}",
            [line],
            lambda b, x, n=name, c=bound: b(n, x, _constant(b, c, line)),
        )
    for direction, bound in itertools.product(("LT", "EQ", "GE"), (-1.0, 0.0)):
        yield (
            f"compare {direction} {bound}",
            [line],
            lambda b, x, d=direction, c=bound: b.compare(d, x, _constant(b, c, line)),
        )
    for direction in ("EQ", "NE", "LT", "GE"):
        yield (
            f"{direction} of two",
            [INTEGERS, INTEGERS],
            lambda b, x, y, d=direction: b.compare(d, x, y),
        )
        for number in (0, 1, 2):
            yield (
                f"{direction} {number} of flags",
                [FLAGS],
                lambda b, p, d=direction, n=number: b.compare(
                    d, b.convert(p, F32), _constant(b, n, A)
                ),
            )
        yield (
            f"{direction} of converted flags",
            [FLAGS, A],
            lambda b, p, x, d=direction: b.compare(d, b.convert(p, F32), x),
        )
        yield (
            f"{direction} of converted numbers",
            [INTEGERS],
            lambda b, x, d=direction: b.compare(d, b.convert(x, F32), _constant(b, 0, line)),
        )
    for name in ("divide", "remainder"):
        yield f"{name} of two", [INTEGERS, INTEGERS], lambda b, x, y, n=name: b(n, x, y)
        for number in (0, 1, 2, 4):
            yield (
                f"{name} of positive by {number}",
                [INTEGERS],
                lambda b, x, n=name, c=number: b(
                    n, b("maximum", x, _constant(b, 0, INTEGERS)), _constant(b, c, INTEGERS)
                ),
            )
    for name in ("floor", "ceil", "round_nearest_even"):
        yield f"{name} alone", [A], lambda b, x, n=name: b(n, x)
    yield (
        "clamp of floats",
        [line],
        lambda b, x: b("clamp", _constant(b, -1.0, line), x, _constant(b, 9.0, line)),
    )
    yield "clamp between values", [INTEGERS] * 3, lambda b, x, y, z: b("clamp", x, y, z)


def _conversions() -> Programs:
    elements: tuple[ElementType, ...] = (I1, I8, UI8, I32, BF16, F32, F64)
    for first, second, third in itertools.product(elements, repeat=3):
        yield (
            f"{first} to {second} to {third}",
            [TensorType((40,), first)],
            lambda b, x, s=second, t=third: b.convert(b.convert(x, s), t),
        )


def _moves() -> Programs:
    yield "broadcast of one", [f32(3, 1)], lambda b, x: b.broadcast(x, (3, 4), (0, 1))
    yield "broadcast turned", [f32(2, 3)], lambda b, x: b.broadcast(x, (3, 2), (1, 0))
    yield "broadcast turned, wider", [f32(2, 3)], lambda b, x: b.broadcast(x, (3, 4, 2), (2, 0))
    yield "broadcast of ones", [f32(1, 3)], lambda b, x: b.broadcast(x, (2, 3, 5), (0, 1))
    yield (
        "broadcast of a split",
        [f32(6)],
        lambda b, x: b.broadcast(b.reshape(x, (2, 3)), (2, 4, 3), (0, 2)),
    )
    yield (
        "broadcast of a split, wider",
        [f32(6)],
        lambda b, x: b.broadcast(b.reshape(x, (2, 3, 1)), (2, 3, 4), (0, 1, 2)),
    )
    yield (
        "reshape of a broadcast",
        [f32(3)],
        lambda b, x: b.reshape(b.broadcast(x, (2, 3), (1,)), (3, 2)),
    )
    yield "flat broadcast", [f32(3)], lambda b, x: b.reshape(b.broadcast(x, (2, 3), (1,)), (6,))
    yield (
        "reshape of ones",
        [f32(3, 1)],
        lambda b, x: b.reshape(b.broadcast(x, (3, 4), (0, 1)), (3, 2, 2)),
    )
    for order in itertools.permutations(range(3)):
        yield (
            f"transposed {order}",
            [CUBE],
            lambda b, x, o=order: b.reshape(b.transpose(x, o), (6, 4)),
        )
        yield (
            f"a sum transposed {order}",
            [CUBE, f32(2, 2, 2)],
            lambda b, x, y, o=order: b(
                "add", b.transpose(cut(b, x, (0, 0, 0), (2, 2, 2)), o), b.transpose(y, (2, 0, 1))
            ),
        )
        yield (
            f"reshape transposed {order}",
            [f32(6, 4)],
            lambda b, x, o=order: b.transpose(b.reshape(x, (2, 3, 4)), o),
        )
        yield (
            f"joined {order}",
            [CUBE, CUBE],
            lambda b, x, y, o=order: b(
                "concatenate", b.transpose(x, o), b.transpose(y, o), dimension=0
            ),
        )
    yield (
        "other orders joined",
        [f32(3, 3, 2), f32(3, 3, 2)],
        lambda b, x, y: b(
            "concatenate", b.transpose(x, (2, 0, 1)), b.transpose(y, (2, 1, 0)), dimension=0
        ),
    )
    yield (
        "broadcasts of two kinds",
        [f32(4), f32(4)],
        lambda b, x, y: b("add", b.broadcast(x, (4, 4), (0,)), b.broadcast(y, (4, 4), (1,))),
    )
    yield (
        "broadcast and value",
        [f32(6), A],
        lambda b, x, y: b("add", b.broadcast(x, (4, 6), (1,)), y),
    )
    yield (
        "broadcast of one and of all",
        [f32(1), f32(6)],
        lambda b, x, y: b("add", b.broadcast(x, (4, 6), (1,)), b.broadcast(y, (4, 6), (1,))),
    )


def _joined() -> Programs:
    def joined(*dims: tuple[int, ...], target: tuple[int, ...], d: int) -> Any:
        return lambda b, x, y: b(
            "concatenate", b.reshape(x, target), b.reshape(y, target), dimension=d
        )

    for first, second, target, d in (
        ((6, 4), (6, 4), (4, 6), 0),
        ((2, 12), (4, 6), (4, 6), 0),
        ((1, 6, 4), (6, 4), (6, 4), 0),
        ((6, 4), (6, 4), (6, 1, 4), 1),
        ((6, 4), (1, 6, 4), (6, 4, 1), 2),
        ((3, 2, 4), (2, 3, 4), (6, 4), 1),
        ((1, 4), (1, 4), (4, 1), 1),
        ((4,), (1, 4), (4, 1), 1),
    ):
        yield (
            f"{first} and {second} as {target} along {d}",
            [f32(*first), f32(*second)],
            joined(target=target, d=d),
        )
    yield (
        "reshape and value",
        [f32(1, 4), f32(4)],
        lambda b, x, y: b("concatenate", b.reshape(x, (4,)), y, dimension=0),
    )
    yield (
        "reshape joined alone",
        [f32(1, 4)],
        lambda b, x: b("concatenate", b.reshape(x, (4,)), dimension=0),
    )


def _cuts() -> Programs:
    for start, limit, steps in (
        ((0, 0), (4, 6), (3, 2)),
        ((1, 2), (4, 5), (2, 1)),
        ((3, 0), (4, 6), (1, 5)),
    ):
        yield (
            f"slice {start} of slices",
            [f32(9, 14)],
            lambda b, x, s=start, e=limit, n=steps: cut(
                b, cut(b, x, (1, 2), (9, 14), (2, 2)), s, e, n
            ),
        )
        yield (
            f"slice {start} of broadcast",
            [f32(1, 6)],
            lambda b, x, s=start, e=limit, n=steps: cut(b, b.broadcast(x, (4, 6), (0, 1)), s, e, n),
        )
        yield (
            f"slice {start} alone",
            [A],
            lambda b, x, s=start, e=limit, n=steps: cut(b, x, s, e, n),
        )
        yield (
            f"slice {start} of interior",
            [f32(2, 3)],
            lambda b, x, s=start, e=limit, n=steps: cut(
                b, padded(b, x, _constant(b, 0.5, SCALAR), (1, 0), (0, 1), (1, 1)), s, e, n
            ),
        )
        yield (
            f"slice {start} of select",
            [TensorType((), I1), A, A],
            (lambda b, p, x, y, s=start, e=limit, n=steps: cut(b, b("select", p, x, y), s, e, n)),
        )
    yield (
        "row of broadcast",
        [f32(2, 1)],
        lambda b, x: cut(b, b.broadcast(x, (2, 3), (0, 1)), (1, 1), (2, 3), (1, 1)),
    )


def _gathers() -> Programs:
    for rows in ([[1], [3]], [[5], [4]], [[0], [9]], [[2], [3]]):
        for sizes in ((1, 4), (1, 2), (2, 4)):
            yield (
                f"rows {rows} of {sizes}",
                [B],
                lambda b, x, r=rows, s=sizes: b(
                    "gather",
                    x,
                    b.constant(np.array(r, np.int32)),
                    offset_dims=(1, 2),
                    collapsed_slice_dims=(),
                    start_index_map=(0,),
                    index_vector_dim=1,
                    slice_sizes=s,
                ),
            )
    labels = TensorType((3, 2), I32)
    yield (
        "places",
        [B, labels],
        lambda b, x, i: b(
            "gather",
            x,
            i,
            offset_dims=(),
            collapsed_slice_dims=(0, 1),
            start_index_map=(0, 1),
            index_vector_dim=1,
            slice_sizes=(1, 1),
        ),
    )
    yield (
        "diagonal",
        [f32(3, 3)],
        lambda b, x: b(
            "gather",
            x,
            b(
                "concatenate",
                *(b("iota", type=TensorType((3, 1), I32), iota_dimension=0) for _ in range(2)),
                dimension=1,
            ),
            offset_dims=(),
            collapsed_slice_dims=(0, 1),
            start_index_map=(0, 1),
            index_vector_dim=1,
            slice_sizes=(1, 1),
        ),
    )


def _pads() -> Programs:
    edges = ((0, 0), (-1, 1), (1, -1), (2, 0), (-2, -1), (-3, -1))
    for (low, high), inner in itertools.product(edges, (0, 1)):

        def once(
            b: Any, x: Value, v: Value, low: int = low, high: int = high, inner: int = inner
        ) -> Value:
            return padded(b, x, v, (low, 0), (high, 0), (inner, 0))

        yield f"pad {low} {high} {inner}", [A, SCALAR], once

        def twice(
            b: Any, x: Value, v: Value, low: int = low, high: int = high, inner: int = inner
        ) -> Value:
            return padded(b, padded(b, x, v, (1, 0), (0, 1)), v, (low, 0), (high, 0), (inner, 0))

        yield f"twice {low} {high} {inner}", [A, SCALAR], twice

        def turned(b: Any, x: Value, v: Value, low: int = low, high: int = high) -> Value:
            return padded(b, padded(b, x, v, (low, 0), (high, 0)), v, (2, 0), (1, 0))

        yield f"turned {low} {high} {inner}", [A, SCALAR], turned
    yield "of a constant", [SCALAR], lambda b, v: padded(b, _constant(b, 1.0, A), v, (1, 0), (0, 0))
    yield "by a constant", [A], lambda b, x: padded(b, x, _constant(b, 1.0, SCALAR), (1, 0), (0, 0))
