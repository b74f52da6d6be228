"""Hostile programs with reductions, products and updates; see hostile.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...hlo.build import build_region
from ...hlo.graph import Value
from ...hlo.types import BF16, F32, I1, I32, TensorType
from .contractions import convolution, dot, f32
from .indexing import update, window
from .reductions import reduced
from .reductions import window as reduced_window
from .slices import cut, padded

Programs = Iterator[tuple[str, Sequence[TensorType], Any]]

A, B, CUBE, EMPTY = f32(4, 6), f32(6, 4), f32(2, 3, 4), f32(0, 4)
SCALAR = f32()
FLAGS = TensorType((4, 6), I1)
INDEX = TensorType((), I32)


def programs() -> Programs:
    """(name, types of the arguments, body) of each."""
    yield from _reductions()
    yield from _windows()
    yield from _products()
    yield from _outer_products()
    yield from _selections()
    yield from _ones()
    yield from _gathered_by_rows()
    yield from _updates()
    yield from _empties()


def _constant(b: Any, number: Any, type: TensorType) -> Value:
    return b.constant(number, type)


def _two_sums(b: Any, x: Value) -> list[Value]:
    """A reduction of two values at once."""
    body = build_region([SCALAR] * 4, lambda c, p, q, r, s: [c("add", p, r), c("maximum", q, s)])
    starts = [_constant(b, 0.0, SCALAR), _constant(b, -np.inf, SCALAR)]
    op = b.op("reduce", [x, x, *starts], {"dimensions": (0,)}, [body])
    return [b("add", *op.results)]


def _reductions() -> Programs:
    inners = {
        "reshape": lambda b, x: b.reshape(x, (2, 2, 6)),
        "ones": lambda b, x: b.reshape(x, (4, 1, 6)),
        "transpose": lambda b, x: b.transpose(x, (1, 0)),
        "broadcast": lambda b, x: b.broadcast(x, (3, 4, 6), (1, 2)),
        "turned broadcast": lambda b, x: b.broadcast(x, (6, 3, 4), (2, 0)),
        "stretched": lambda b, x: b.broadcast(b.reshape(x, (4, 1, 6)), (4, 3, 6), (0, 1, 2)),
        "negate": lambda b, x: b("negate", x),
        "scaled": lambda b, x: b("multiply", x, _constant(b, -2.0, x.tensor)),
        "sum": lambda b, x: reduced(b, "add", b.reshape(x, (2, 2, 6)), (2,)),
        "greatest": lambda b, x: reduced(b, "maximum", b.reshape(x, (2, 2, 6)), (2,)),
        "alone": lambda b, x: x,
        "square": lambda b, x: b("multiply", x, x),
        "with ones": lambda b, x: b.reshape(x, (1, 4, 6, 1)),
    }
    for (name, inner), monoid, start in itertools.product(
        inners.items(), ("add", "maximum", "multiply"), (None, 2.0)
    ):
        for dims in ((0,), (1,), (0, 1)):
            yield (
                f"{monoid} {dims} of {name} from {start}",
                [A],
                (lambda b, x, i=inner, m=monoid, s=start, d=dims: reduced(b, m, i(b, x), d, s)),
            )
    yield "two at once", [A], _two_sums
    yield "two at once, reshaped", [A], lambda b, x: _two_sums(b, b.reshape(x, (2, 2, 6)))
    yield "two at once, of ones", [f32(1, 6)], _two_sums


def _windows() -> Programs:
    image = f32(1, 2, 4, 4)
    for attributes in (
        {"window_dimensions": (1, 1)},
        {"window_dimensions": (1, 1), "padding": ((1, -1), (0, 0))},
        {"window_dimensions": (1, 1), "window_strides": (2, 1)},
        {"window_dimensions": (1, 1), "base_dilations": (2, 1), "padding": ((-3, 0), (0, 0))},
        {"window_dimensions": (3, 1), "padding": ((1, 1), (0, 0))},
        {"window_dimensions": (1, 1), "padding": ((1, 0), (0, 0))},
        {"window_dimensions": (1, 1), "window_strides": (2, 1), "padding": ((2, 1), (0, 0))},
    ):
        yield (
            f"window {attributes}",
            [A],
            lambda b, x, a=attributes: reduced_window(b, "maximum", x, **a),
        )
        yield (
            f"window of pad {attributes}",
            [A],
            lambda b, x, a=attributes: reduced_window(
                b, "maximum", padded(b, x, _constant(b, -np.inf, SCALAR), (1, 0), (0, 2)), **a
            ),
        )

    def started(b: Any, x: Value, number: float = 2.0) -> Value:
        body = build_region([SCALAR] * 2, lambda c, p, q: [c("add", p, q)])
        return b(
            "reduce_window",
            x,
            _constant(b, number, SCALAR),
            regions=(body,),
            window_dimensions=(1, 1),
        )

    yield "window from two", [A], started
    yield (
        "window from two of pad",
        [A],
        lambda b, x: started(b, padded(b, x, _constant(b, 2.0, SCALAR), (1, 0), (0, 2))),
    )
    for low, high, inner in (((0, 0), (0, 0), (1, 0)), ((-1, 0), (0, 0), (0, 0))):
        yield (
            f"window of pad {low} {inner}",
            [A],
            lambda b, x, e=(low, high, inner): reduced_window(
                b,
                "maximum",
                padded(b, x, _constant(b, -np.inf, SCALAR), *e),
                window_dimensions=(2, 2),
            ),
        )
    kernel = f32(3, 2, 2, 2)
    for numbers in (
        {"lhs_dilation": (2, 2)},
        {"rhs_dilation": (2, 1)},
        {"lhs_dilation": (2, 1)},
        {},
    ):
        for low, inner in (((0, 0, 0, 0), (0, 0, 1, 0)), ((0, 0, 1, 1), (0, 0, 0, 0))):
            yield (
                f"convolution of pad {numbers} {inner}",
                [image, kernel],
                (
                    lambda b, x, k, n=numbers, lo=low, i=inner: convolution(
                        b, padded(b, x, _constant(b, 0.0, SCALAR), lo, lo, i), k, **n
                    )
                ),
            )
    yield (
        "one by one, stepping",
        [image, f32(3, 2, 1, 1)],
        lambda b, x, k: b.transpose(convolution(b, x, k), (0, 2, 3, 1)),
    )


def _products() -> Programs:
    yield "dot alone", [A, B], lambda b, x, y: dot(b, x, y, ((1,), (0,)))
    yield "batched dot", [CUBE, CUBE], lambda b, x, y: dot(b, x, y, ((2,), (2,)), ((0, 1), (0, 1)))
    yield "two sums", [CUBE, CUBE], lambda b, x, y: dot(b, x, y, ((1, 2), (1, 2)), ((0,), (0,)))
    yield (
        "turned",
        [CUBE, CUBE],
        lambda b, x, y: b.transpose(dot(b, x, y, ((2,), (2,))), (1, 0, 2, 3)),
    )
    yield (
        "turned blocks",
        [CUBE, CUBE],
        lambda b, x, y: b.transpose(dot(b, x, y, ((2,), (2,))), (2, 3, 0, 1)),
    )
    yield "transpose alone", [A], lambda b, x: b.transpose(x, (1, 0))
    yield (
        "halves",
        [TensorType((4, 6), BF16), TensorType((6, 4), BF16)],
        lambda b, x, y: reduced(b, "add", b.convert(dot(b, x, y, ((1,), (0,))), F32), (0,)),
    )

    def wide(b: Any, x: Value, y: Value, contract: Any = ((1,), (0,)), **dims: Any) -> Value:
        return b(
            "dot_general",
            x,
            y,
            type=f32(x.dims[0], y.dims[1]),
            lhs_batching_dimensions=(),
            rhs_batching_dimensions=(),
            lhs_contracting_dimensions=contract[0],
            rhs_contracting_dimensions=contract[1],
        )

    small = TensorType((4, 6), BF16), TensorType((6, 4), BF16)
    yield "wide sum", small, lambda b, x, y: reduced(b, "add", wide(b, x, y), (0,))
    yield "wide outer", [TensorType((4, 1), BF16), TensorType((1, 4), BF16)], wide
    yield (
        "wide chain",
        [*small, f32(4, 1)],
        lambda b, x, y, z: dot(b, wide(b, x, y), z, ((1,), (0,))),
    )
    yield (
        "mixed turned",
        [TensorType((4, 6), BF16), f32(6, 4)],
        lambda b, x, y: b.transpose(wide(b, x, y), (1, 0)),
    )
    yield (
        "mixed static",
        [f32(6, 4)],
        lambda b, y: wide(b, b.constant(0.5, TensorType((4, 6), BF16)), y),
    )


def _outer_products() -> Programs:
    """Products of broadcasts that are summed, and operands that broadcasts make."""
    dims = (4, 12, 5)
    for left, right in (((0, 1), (1, 2)), ((1, 0), (1, 2)), ((0, 1), (0, 2)), ((0,), (1, 2))):
        types = [f32(*(dims[d] for d in left)), f32(*(dims[d] for d in right))]
        for monoid, element in itertools.product(("add", "maximum"), (F32, I32)):
            for summed in ((1,), (0,), (2,), (1, 2)):
                yield (
                    f"{monoid} {element} over {summed} of {left} times {right}",
                    [type.with_element(element) for type in types],
                    lambda b, x, y, p=left, q=right, m=monoid, s=summed: reduced(
                        b, m, b("multiply", b.broadcast(x, dims, p), b.broadcast(y, dims, q)), s
                    ),
                )
    yield (
        "one stretched",
        [f32(4, 1), f32(12, 5)],
        lambda b, x, y: reduced(
            b,
            "add",
            b("multiply", b.broadcast(x, dims, (0, 1)), b.broadcast(y, dims, (1, 2))),
            (1,),
        ),
    )
    yield (
        "stretched",
        [f32(1, 6), f32(6, 4)],
        lambda b, x, y: dot(b, b.broadcast(x, (4, 6), (0, 1)), y, ((1,), (0,))),
    )
    yield (
        "turned operand",
        [f32(3, 4), f32(4, 2)],
        lambda b, x, y: dot(b, b.broadcast(x, (4, 5, 3), (2, 0)), y, ((0,), (0,))),
    )


_LABELS = TensorType((4,), I32)


def _selections() -> Programs:
    """Selections that are summed."""

    def hot(b: Any, i: Value, along: int = 1) -> Value:
        other = 1 - along
        size = A.dims[along]
        line = b("iota", type=TensorType((size,), I32), iota_dimension=0)
        index = i if i.dims[0] == A.dims[other] else cut(b, i, (0,), (A.dims[other],))
        return b.compare(
            "EQ", b.broadcast(line, A.dims, (along,)), b.broadcast(index, A.dims, (other,))
        )

    def zeros(b: Any) -> Value:
        return b.constant(0.0, A)

    for monoid, dims in itertools.product(("add", "maximum"), ((0,), (1,), (0, 1))):
        yield (
            f"{monoid} of flags {dims}",
            [FLAGS, A],
            lambda b, p, x, m=monoid, d=dims: reduced(b, m, b("select", p, x, zeros(b)), d),
        )
        yield (
            f"{monoid} of one flag {dims}",
            [TensorType((), I1), A],
            lambda b, p, x, m=monoid, d=dims: reduced(b, m, b("select", p, x, zeros(b)), d),
        )
        yield (
            f"{monoid} of varying ones {dims}",
            [_LABELS, A],
            lambda b, i, x, m=monoid, d=dims: reduced(b, m, b("select", hot(b, i), x, zeros(b)), d),
        )
        yield (
            f"{monoid} of constant ones {dims}",
            [_LABELS],
            lambda b, i, m=monoid, d=dims: reduced(
                b, m, b("select", hot(b, i), b.constant(-2.5, A), zeros(b)), d
            ),
        )
        yield (
            f"{monoid} of row flags {dims}",
            [TensorType((4,), I1), f32(4)],
            lambda b, p, x, m=monoid, d=dims: reduced(
                b,
                m,
                b("select", b.broadcast(p, A.dims, (0,)), b.broadcast(x, A.dims, (0,)), zeros(b)),
                d,
            ),
        )


def _ones() -> Programs:
    """Products with flags."""
    yield (
        "flags times",
        [TensorType((4, 8), I1), f32(8, 3)],
        lambda b, p, x: dot(b, b.convert(p, F32), x, ((1,), (0,))),
    )

    def eight(b: Any, i: Value) -> Value:
        line = b("iota", type=TensorType((9,), I32), iota_dimension=0)
        return b.compare("EQ", b.broadcast(line, (4, 9), (1,)), b.broadcast(i, (4, 9), (0,)))

    yield (
        "ones per batch",
        [_LABELS, f32(4, 9, 3)],
        lambda b, i, x: dot(b, b.convert(eight(b, i), F32), x, ((1,), (1,)), ((0,), (0,))),
    )
    yield (
        "ones along rows",
        [_LABELS, f32(9, 3)],
        lambda b, i, x: dot(b, b.convert(b.transpose(eight(b, i), (1, 0)), F32), x, ((0,), (0,))),
    )
    nine = TensorType((9,), I32)
    yield (
        "ones summed over the other dim",
        [nine, f32(9, 3)],
        lambda b, i, x: dot(
            b,
            b.convert(
                b.compare(
                    "EQ",
                    b("iota", type=TensorType((9, 9), I32), iota_dimension=1),
                    b.broadcast(i, (9, 9), (0,)),
                ),
                F32,
            ),
            x,
            ((0,), (0,)),
        ),
    )
    yield (
        "wide product of ones",
        [_LABELS, TensorType((9, 3), BF16)],
        lambda b, i, x: b(
            "dot_general",
            b.convert(eight(b, i), BF16),
            x,
            type=f32(4, 3),
            lhs_batching_dimensions=(),
            rhs_batching_dimensions=(),
            lhs_contracting_dimensions=(1,),
            rhs_contracting_dimensions=(0,),
        ),
    )


def _gathered_by_rows() -> Programs:
    grid = TensorType((2, 3, 1), I32)
    yield (
        "all by rows",
        [f32(2, 3)],
        lambda b, x: b(
            "gather",
            x,
            b(
                "concatenate",
                *(b("iota", type=grid, iota_dimension=d) for d in (0, 1)),
                dimension=2,
            ),
            offset_dims=(),
            collapsed_slice_dims=(0, 1),
            start_index_map=(0, 1),
            index_vector_dim=2,
            slice_sizes=(1, 1),
        ),
    )
    for low, high, inner in ((0, -2, 1), (-2, 0, 1), (-1, 1, 0), (1, -1, 0)):
        yield (
            f"same size {low} {high} {inner}",
            [f32(3), SCALAR],
            lambda b, x, v, e=((low,), (high,), (inner,)): padded(b, x, v, *e),
        )


def _updates() -> Programs:
    part, row = f32(2, 4), f32(1, 4)

    def at(b: Any, x: Value, u: Value, i: Value) -> Value:
        return update(b, x, u, [i, _constant(b, 0, INDEX)])

    yield "update alone", [B, part, INDEX], at
    yield "update of a constant", [part, INDEX], lambda b, u, i: at(b, _constant(b, 0.5, B), u, i)
    yield (
        "slice alone",
        [B, INDEX],
        lambda b, x, i: window(b, x, [i, _constant(b, 0, INDEX)], (2, 4)),
    )
    yield (
        "slice of another update",
        [B, row, INDEX],
        lambda b, x, u, i: window(b, at(b, x, u, i), [i, _constant(b, 0, INDEX)], (2, 4)),
    )
    yield (
        "smaller after larger",
        [B, part, row, INDEX],
        lambda b, x, u, v, i: at(b, at(b, x, u, i), v, i),
    )
    yield (
        "elsewhere",
        [B, part, part],
        lambda b, x, u, v: at(b, at(b, x, u, _constant(b, 0, INDEX)), v, _constant(b, 3, INDEX)),
    )
    yield (
        "sum with an update",
        [B, part, INDEX],
        lambda b, x, u, i: b("add", at(b, _constant(b, 0.0, B), u, i), x),
    )
    yield (
        "sum of updates",
        [part, row, INDEX],
        lambda b, u, v, i: b(
            "add", at(b, _constant(b, 0.0, B), u, i), at(b, _constant(b, 0.0, B), v, i)
        ),
    )
    yield (
        "twice an update",
        [part, INDEX],
        lambda b, u, i: b("add", *[at(b, _constant(b, 0.0, B), u, i)] * 2),
    )
    yield "sum of two", [B, B], lambda b, x, y: b("add", x, y)

    def scattered(operation: str, count: int, *more: str) -> Any:
        def build(b: Any, i: Value, u: Value) -> Value:
            def body(c: Any, p: Value, q: Value) -> list[Value]:
                found = c(operation, p, q)
                for name in more:
                    found = c(name, found, q)
                return [found]

            return b(
                "scatter",
                _constant(b, 0.5, f32(6)),
                i,
                u,
                regions=(build_region([SCALAR] * 2, body),),
                update_window_dims=(),
                inserted_window_dims=(0,),
                scatter_dims_to_operand_dims=(0,),
                index_vector_dim=1,
            )

        return build

    for count, names in itertools.product(
        (0, 1, 2), (("subtract",), ("add", "multiply"), ("add",))
    ):
        yield (
            f"scatter of {count} {names}",
            [TensorType((count, 1), I32), f32(count)],
            scattered(names[0], count, *names[1:]),
        )


def _empties() -> Programs:
    nothing = f32(0, 4)
    yield "empty reshape", [EMPTY], lambda b, x: b.transpose(b.reshape(x, (0, 2, 2)), (2, 0, 1))
    yield "empty transpose", [EMPTY], lambda b, x: b.reshape(b.transpose(x, (1, 0)), (2, 2, 0))
    yield "empty broadcast", [EMPTY], lambda b, x: b.broadcast(x, (3, 0, 4), (1, 2))
    yield "empty stretched", [f32(1, 4)], lambda b, x: b.broadcast(x, (0, 4), (0, 1))
    yield (
        "broadcast to nothing",
        [f32(4)],
        lambda b, x: b.broadcast(b.reshape(x, (2, 2)), (2, 0, 2), (0, 2)),
    )
    yield (
        "reshape of nothing",
        [f32(4)],
        lambda b, x: b.reshape(b.broadcast(x, (0, 4), (1,)), (4, 0)),
    )
    for dims in ((0,), (1,), (0, 1), (1, 2), (0, 2)):
        yield (
            f"empty sum {dims}",
            [EMPTY],
            lambda b, x, d=dims: reduced(b, "add", b.reshape(x, (2, 0, 2)), d),
        )
        yield (
            f"empty sum of broadcast {dims}",
            [EMPTY],
            lambda b, x, d=dims: reduced(b, "add", b.broadcast(x, (3, 0, 4), (1, 2)), d),
        )
        yield (
            f"sum of nothing {dims}",
            [f32(4)],
            lambda b, x, d=dims: reduced(b, "maximum", b.broadcast(x, (3, 0, 4), (2,)), d),
        )
    yield "empty parts", [nothing, nothing], lambda b, x, y: b("concatenate", x, y, dimension=0)
    yield (
        "empty slice of pad",
        [A, SCALAR],
        lambda b, x, v: cut(b, padded(b, x, v, (1, 0), (0, 0)), (2, 0), (2, 6)),
    )
    yield (
        "empty slice of broadcast",
        [f32(1, 6)],
        lambda b, x: cut(b, b.broadcast(x, (4, 6), (0, 1)), (2, 0), (2, 6)),
    )
    yield (
        "empty rows",
        [B],
        lambda b, x: b(
            "gather",
            x,
            b.constant(np.zeros((0, 1), np.int32)),
            offset_dims=(1,),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            index_vector_dim=1,
            slice_sizes=(1, 4),
        ),
    )
    yield (
        "empty sum of reshapes",
        [EMPTY, EMPTY],
        lambda b, x, y: b("add", b.reshape(x, (0, 2, 2)), b.reshape(y, (0, 2, 2))),
    )
    yield "empty product", [f32(3, 0), f32(0, 4)], lambda b, x, y: dot(b, x, y, ((1,), (0,)))
    yield "two results without elements", [f32(2, 0)], _two_sums
