"""What a room says that it reads is all that it reads."""

from __future__ import annotations

import itertools
import math
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from girih.hlo.access import Index, IndexTerm, IterationKind, access_of, reshaped
from girih.hlo.cases import Example, example
from girih.hlo.errors import VerifyError
from girih.hlo.interpret import interpret
from girih.hlo.ops import DEFINITIONS, find
from girih.hlo.ops.convolution import numbers
from girih.hlo.ops.examples import binary_body, f32
from girih.hlo.room import Case, OpDefinition
from girih.hlo.size_text import parse_dim
from girih.hlo.symbols import bound
from girih.hlo.types import F32, TensorType
from girih.optimizer.tiles.access import Box, Span, box, compose, inner_spans
from girih.optimizer.tiles.expressions import Expression, evaluate, expression

MEMORY = ".tile"  # the module of the rooms that move memory, in windows that they name themselves
ROOMS = [
    room
    for room in DEFINITIONS
    if room.pattern != "control" and not type(room).__module__.endswith(MEMORY)
]


def examples(room: OpDefinition) -> list[Example]:
    return [example(room, case) for case in room.cases()]


def number(value: Expression) -> int:
    (found,) = evaluate([value], {})
    return int(found)


def indices(span: Span) -> list[int]:
    """The indices that a span without variables names, inside its dim."""
    first, size = number(span.offset), number(span.size)
    return [i for i in range(first, first + size * span.stride, span.stride) if 0 <= i < span.bound]


def poisoned(array: Any, kept: Box, generator: np.random.Generator) -> Any:
    """Other values wherever the box does not reach."""
    if array.dtype.kind == "b":
        other = ~array
    elif array.dtype.kind in "iu":
        info = np.iinfo(array.dtype)
        other = generator.integers(info.min, info.max, array.shape, array.dtype, endpoint=True)
    elif np.issubdtype(array.dtype, np.inexact) or "float" in array.dtype.name:
        other = np.full_like(array, np.nan)
    else:
        other = np.array(array[..., ::-1]) if array.ndim else array.copy()
    if array.ndim:
        where = np.ix_(*(np.array(indices(span), np.int64) for span in kept.spans))
        other[where] = array[where]
    return other if array.ndim else array


def some_box(dims: tuple[int, ...], generator: np.random.Generator) -> Box:
    ranges = []
    for dim in dims:
        size = int(generator.integers(1, dim + 1)) if dim else 0
        ranges.append((int(generator.integers(0, dim - size + 1)), size))
    return box(ranges, dims)


def check(made: Example, wanted: Box, full: list[Any], generator: np.random.Generator) -> None:
    access = access_of(made.op)
    assert access is not None

    def runtime(operand: int, high: int) -> Expression:
        return expression(min(max(int(made.inputs[operand]), 0), high))

    spans = inner_spans(access)
    boxes = [
        compose(access, k, wanted, value.dims, spans, runtime)
        for k, value in enumerate(made.op.operands)
    ]
    inputs = [poisoned(x, kept, generator) for x, kept in zip(made.inputs, boxes, strict=True)]
    for got, whole in zip(interpret(made.module, inputs), full, strict=True):
        place = np.ix_(*(np.array(indices(span), np.int64) for span in wanted.spans))
        left, right = (x[place] if x.ndim else x for x in map(np.asarray, (got, whole)))
        assert left.dtype == right.dtype
        same = left.tobytes() == right.tobytes()
        if not same and left.dtype.kind in "fc":
            same = bool(np.allclose(left, right, made.tolerance, equal_nan=True))
        assert same, f"{made.name}: {wanted} reads {boxes}"


@pytest.mark.parametrize("room", ROOMS, ids=[room.name for room in ROOMS])
def test_reads_nothing_outside(room: OpDefinition) -> None:
    """The result's box is the same when everything that the access does not name is garbage."""
    generator = np.random.default_rng(zlib.crc32(room.name.encode()))
    for made in examples(room)[:40]:
        if access_of(made.op) is None:
            assert room.opaque, f"{room.name} has neither an access nor a reason for none"
            continue
        full = interpret(made.module, made.inputs)
        dims = made.op.results[0].dims
        corners = itertools.product(*([(0, 1), (d - 1, 1)] for d in dims)) if 0 not in dims else ()
        tries = [some_box(dims, generator) for _ in range(6)]
        tries += [box(corner, dims) for corner in itertools.islice(corners, 4)]
        for wanted in tries:
            check(made, wanted, full, generator)


# Random operations of the rooms whose index formulas are the richest.


def lines(draw: Any, count: int, strategy: Any) -> tuple[Any, ...]:
    return tuple(draw(st.lists(strategy, min_size=count, max_size=count)))


@st.composite
def reshapes(draw: Any) -> Case:
    factors = draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=4))
    size = math.prod(factors)
    target, rest = [], size
    while rest > 1:
        divisors = [n for n in range(2, rest + 1) if rest % n == 0]
        target.append(draw(st.sampled_from(divisors)))
        rest //= target[-1]
    x = np.arange(size, dtype=np.float32).reshape(factors)
    return Case("reshape", (x,), result_types=(TensorType(target, F32),))


@st.composite
def paddings(draw: Any) -> Case:
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    facts = {
        "edge_padding_low": lines(draw, 2, st.integers(-2, 3)),
        "edge_padding_high": lines(draw, 2, st.integers(-1, 3)),
        "interior_padding": lines(draw, 2, st.integers(0, 2)),
    }
    return Case("pad", (x, f32(-1)), facts)


@st.composite
def slices(draw: Any) -> Case:
    dims = (6, 9)
    starts = tuple(draw(st.integers(0, dim - 1)) for dim in dims)
    limits = tuple(draw(st.integers(s + 1, dim)) for s, dim in zip(starts, dims, strict=True))
    facts = {
        "start_indices": starts, "limit_indices": limits,
        "strides": lines(draw, 2, st.integers(1, 4)),
    }  # fmt: skip
    return Case("slice", (np.arange(54, dtype=np.float32).reshape(dims),), facts)


@st.composite
def windows(draw: Any) -> Case:
    x = np.arange(42, dtype=np.float32).reshape(6, 7)
    facts = {
        "window_dimensions": lines(draw, 2, st.integers(1, 3)),
        "window_strides": lines(draw, 2, st.integers(1, 3)),
        "base_dilations": lines(draw, 2, st.integers(1, 3)),
        "window_dilations": lines(draw, 2, st.integers(1, 2)),
        "padding": lines(draw, 2, st.tuples(st.integers(-1, 3), st.integers(-1, 3))),
    }
    return Case("reduce_window", (x, f32(0)), facts, regions=binary_body("maximum", F32))


@st.composite
def convolutions(draw: Any) -> Case:
    groups, kind = draw(st.integers(1, 3)), draw(st.sampled_from(("feature", "batch")))
    inputs, outputs = draw(st.integers(1, 2)), draw(st.integers(1, 2)) * groups
    batch = draw(st.integers(1, 2)) * (groups if kind == "batch" else 1)
    features = inputs * (groups if kind == "feature" else 1)
    window = lines(draw, 2, st.integers(1, 3))
    facts = {
        **numbers(2, channels_first=draw(st.booleans())),
        "window_strides": lines(draw, 2, st.integers(1, 3)),
        "lhs_dilation": lines(draw, 2, st.integers(1, 3)),
        "rhs_dilation": lines(draw, 2, st.integers(1, 2)),
        "padding": lines(draw, 2, st.tuples(st.integers(-1, 3), st.integers(-1, 3))),
        "window_reversal": lines(draw, 2, st.booleans()),
        f"{kind}_group_count": groups,
    }
    lhs, rhs = [0] * 4, [0] * 4
    lhs[facts["input_batch_dimension"]], lhs[facts["input_feature_dimension"]] = batch, features
    rhs[facts["kernel_input_feature_dimension"]] = inputs
    rhs[facts["kernel_output_feature_dimension"]] = outputs
    for axis in range(2):
        lhs[facts["input_spatial_dimensions"][axis]] = 5
        rhs[facts["kernel_spatial_dimensions"][axis]] = window[axis]
    arrays = (np.arange(math.prod(d), dtype=np.float32).reshape(d) % 7 for d in (lhs, rhs))
    return Case("convolution", tuple(arrays), facts)


@pytest.mark.parametrize("name", ["reshape", "pad", "slice", "reduce_window", "convolution"])
def test_random_operations_read_nothing_outside(name: str) -> None:
    made = {
        "reshape": reshapes, "pad": paddings, "slice": slices, "reduce_window": windows,
        "convolution": convolutions,
    }[name]()  # fmt: skip

    @settings(max_examples=60, deadline=None)
    @given(made, st.integers(0, 2**32))
    def run(case: Case, seed: int) -> None:
        try:
            one = example(find(name), case)
        except VerifyError:
            assume(False)
            return
        dims = one.op.results[0].dims
        assume(0 not in dims)
        generator = np.random.default_rng(seed)
        full = interpret(one.module, one.inputs)
        for _ in range(3):
            check(one, some_box(dims, generator), full, generator)

    run()


# What a result dim needs of an operand.


def test_dims_that_tile_together() -> None:
    def access(name: str, *operands: Any, **facts: Any) -> Any:
        return access_of(example(find(name), Case(name, operands, facts)).op)

    x, y = np.zeros((4, 6), np.float32), np.zeros((6, 8), np.float32)
    matrix = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    product = access("dot_general", x, y, **matrix)
    assert [product.aligned(k, d) for k in (0, 1) for d in (0, 1)] == [0, None, None, 1]
    assert product.uses(0, 0) and not product.uses(0, 1) and product.uses(0, 2)
    assert [i.kind for i in product.inner] == [IterationKind.REDUCE] and product.inner[
        0
    ].monoid == "add"
    turned = access("transpose", x, permutation=(1, 0))
    assert (turned.aligned(0, 0), turned.aligned(0, 1)) == (1, 0)
    assert access("reverse", x, dimensions=(1,)).aligned(0, 1) is None
    assert access("add", x, x).aligned(1, 1) == 1
    table = access("torch_index_select", x, np.zeros(3, np.int32), dim=0)
    assert table.gathers(0) and not table.gathers(1) and table.aligned(0, 1) == 1


def test_reshapes_mix_no_more_dims_than_they_must() -> None:
    def same(source: tuple[int, ...], target: tuple[int, ...]) -> list[int | None]:
        return [index.same for index in reshaped(source, target)]

    assert same((2, 3, 4), (2, 12)) == [0, None, None]
    assert same((2, 3, 20), (2, 3, 4, 5)) == [0, 1, None]
    assert same((5, 1, 7), (5, 7)) == [0, None, 1]
    assert reshaped((2, 6), (4, 3))[0] == Index((IndexTerm(0),), divisor=2)
    assert same((2, 0, 3), (0,)) == same((0, 2, 3), (3, 0)) == [None, None, None]


def test_every_room_has_an_access_or_a_reason() -> None:
    for room in DEFINITIONS:
        stated = type(room).access is not OpDefinition.access
        if type(room).__module__.endswith(MEMORY):
            continue
        if stated or room.pattern == "elementwise":
            assert not room.opaque, f"{room.name} gives a reason for an access that it has"
        else:
            assert room.opaque, f"{room.name} has neither an access nor a reason for none"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("b,s,4", "b*s,4"), ("b*s,4", "b,s,4"), ("b,s,8,2", "b,s,16"), ("b*s", "s,b"),
        ("b,1,s", "1,b,s"), ("b,s", "s,b"), ("7*((b+6)//7),s", "(b+6)//7,7,s"), ("2*b", "b,2"),
    ],
)  # fmt: skip
def test_reshapes_of_open_sizes(source, target):
    """At each size the formulas name the element that a reshape puts there."""
    left, right = ([parse_dim(dim) for dim in dims.split(",")] for dims in (source, target))
    found = reshaped(left, right)
    values = {"b": 3, "s": 5}
    sizes, wanted = ([bound(dim, values) for dim in dims] for dims in (left, right))
    numbers_of = np.arange(math.prod(sizes)).reshape(sizes)
    for place in itertools.product(*map(range, wanted)):
        at = []
        for index in found:
            total = sum(bound(t.coefficient, values) * place[t.dim] for t in index.terms)
            total //= bound(index.divisor, values)
            modulus = bound(index.modulus, values)
            at.append(total % modulus if modulus else total)
        assert numbers_of[tuple(at)] == np.ravel_multi_index(place, wanted)
