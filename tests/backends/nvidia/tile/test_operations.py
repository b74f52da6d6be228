"""Every operation that has a kernel of its own also stands inside of a tile function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.backends.llvm import elementwise
from girih.backends.nvidia import tile
from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.plain.single import LIMITATIONS
from girih.hlo.build import build_region
from girih.hlo.errors import UnsupportedError
from girih.hlo.graph import Op
from girih.hlo.ops import DEFINITIONS
from girih.hlo.types import F32, I1, I32, ElementType, TensorType

from .. import harness
from ..loops.test_scan import running
from ..loops.test_windows import CONVOLUTIONS
from .support import INDEX, SM_80, call, check, tensor, values

EACH = 1  # examples of an operation


def inside(op: Op) -> Op:
    """A tile function that loads the operands, computes, and stores the results."""
    given = [value.tensor for value in op.operands]

    def body(b: Any, *memory: Any) -> None:
        zero = b.constant(0, INDEX)
        inputs = zip(memory, given, strict=False)
        tiles = [b("tile_load", m, *[zero] * len(t.dims), sizes=t.dims) for m, t in inputs]
        found = b.op(op.name, tiles, op.attributes, op.regions, op.result_types).results
        for value, m in zip(found, memory[len(given) :], strict=True):
            b.op("tile_store", [m, value, *[zero] * len(m.dims)], {})

    return call(body, given, [value.tensor for value in op.results], (1,))


def examples() -> list[tuple[str, Op, Any]]:
    """Some examples of every operation that is no formula of single elements."""
    found = []
    for definition in DEFINITIONS:
        control = definition.pattern in ("control", "source", "kernel", "tile")
        if control or definition.name in LIMITATIONS or definition.communicates:
            continue
        own = []
        for case in definition.cases():
            op = harness.operation(definition, case)
            values = (*op.operands, *op.results)
            static = all(isinstance(v.type, TensorType) and v.type.is_static for v in values)
            plain = op.definition.pattern == "elementwise" and elementwise.supports(op)
            if static and op.results and not plain:
                own.append((case.name, op, case.inputs))
        found += own if definition.name in ("reduce", "convolution") else own[:EACH]
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=[name for name, _, _ in EXAMPLES])
def test_examples(number: int) -> None:
    _, op, given = EXAMPLES[number]
    kernel = inside(op)
    if op.name.startswith("linalg.") and op.name != "linalg.pivots_to_permutation":
        # As outside of tile functions: factorisations are LAPACK's.
        with pytest.raises(UnsupportedError, match="no code"):
            tile.emit(kernel, SM_80)
        return
    inputs = [np.asarray(x) for x in given]
    check(kernel, inputs, tolerance=2e-3)


ALONE = [name for name in CONVOLUTIONS if name not in ("7x7", "with what follows")]


@pytest.mark.parametrize("name", ALONE)
def test_convolutions_of_each_channel(name: str) -> None:
    (op,) = CONVOLUTIONS[name].regions[0].ops
    check(inside(op), values(op), tolerance=1e-5)


def ordered(dims: tuple[int, ...], over: tuple[int, ...]) -> Op:
    """The greatest elements along some dims, and where the first of them stand."""

    def step(b: Any, x: Any, i: Any, y: Any, j: Any) -> list[Any]:
        better = b(
            "or", b.compare("GT", x, y), b("and", b.compare("EQ", x, y), b.compare("LE", i, j))
        )
        return [b("select", better, x, y), b("select", better, i, j)]

    scalars = [TensorType((), F32), TensorType((), I32)]
    region = build_region(scalars * 2, step)
    kind, places = tensor(*dims), tensor(*dims, element=I32)
    kept = tuple(n for d, n in enumerate(dims) if d not in over)

    def body(b: Any, x: Any, i: Any, top: Any, place: Any) -> None:
        zero = b.constant(0, INDEX)
        tiles = [b("tile_load", m, *[zero] * len(dims), sizes=dims) for m in (x, i)]
        start = [b.constant(-np.inf, scalars[0]), b.constant(-1, scalars[1])]
        found = b.op("reduce", [*tiles, *start], {"dimensions": over}, [region]).results
        for value, m in zip(found, (top, place), strict=True):
            b.op("tile_store", [m, value, *[zero] * len(kept)], {})

    return call(body, [kind, places], [tensor(*kept), tensor(*kept, element=I32)], (1,))


@settings(max_examples=8, deadline=None)
@given(
    dims=st.lists(st.sampled_from([1, 2, 3, 7, 16, 33]), min_size=1, max_size=3),
    data=st.data(),
)
def test_bodies_of_several_values_meet_elements_in_their_order(
    dims: list[int], data: st.DataObject
) -> None:
    over = data.draw(st.sets(st.integers(0, len(dims) - 1), min_size=1))
    op = ordered(tuple(dims), tuple(sorted(over)))
    x = np.random.default_rng(4).integers(-3, 3, dims).astype(np.float32)
    places = np.arange(x.size, dtype=np.int32).reshape(dims)
    check(op, [x, places])


@pytest.mark.parametrize("length", [1, 31, 4096, 5000, 8191])
def test_one_result_is_a_tree_of_all_threads(length: int) -> None:
    op = ordered((length,), (0,))
    x = np.random.default_rng(length).integers(0, 50, length).astype(np.float32)
    check(op, [x, np.arange(length, dtype=np.int32)])


def projections(dims: tuple[int, int]) -> Op:
    """The last element of each row that is not negative: a body that does not commute."""
    scalar = TensorType((), F32)

    def step(b: Any, x: Any, y: Any) -> list[Any]:
        return [b("select", b.compare("GE", y, b.constant(0, scalar)), y, x)]

    region = build_region([scalar] * 2, step)

    def body(b: Any, x: Any, out: Any) -> None:
        zero = b.constant(0, INDEX)
        tile_ = b("tile_load", x, zero, zero, sizes=dims)
        attributes = {"dimensions": (1,)}
        found = b.op("reduce", [tile_, b.constant(-7, scalar)], attributes, [region]).result
        b.op("tile_store", [out, found, zero], {})

    return call(body, [tensor(*dims)], [tensor(dims[0])], (1,))


@pytest.mark.parametrize("dims", [(3, 40), (1, 4099), (5, 1000), (64, 64), (300, 5)], ids=str)
def test_a_body_that_does_not_commute(dims: tuple[int, int]) -> None:
    x = np.random.default_rng(9).standard_normal(dims).astype(np.float32)
    x[0] = -1
    check(projections(dims), [x])


def totals(dims: tuple[int, ...], dimension: int, backward: bool, start: int) -> Op:
    whole = tensor(*dims)

    def body(b: Any, x: Any, out: Any) -> None:
        places = [b.constant(0, INDEX)] * len(dims)
        tile_ = b("tile_load", x, *places, sizes=dims)
        op = running(dims, dimension, F32, backward=backward)
        first = b.constant(start, TensorType((), F32))
        found = b.op(op.name, [tile_, first], op.attributes, op.regions, op.result_types).result
        b.op("tile_store", [out, found, *places], {})

    return call(body, [whole], [whole], (1,))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize(
    ("dims", "dimension"),
    [((40,), 0), ((3, 150), 1), ((33, 5), 0), ((2, 1, 64), 2)],
)
def test_running_totals(dims: tuple[int, ...], dimension: int, start: int, backward: bool) -> None:
    """Padding adds the initial value once for each place, also here."""
    x = np.random.default_rng(5).integers(-4, 5, dims).astype(np.float32)
    check(totals(dims, dimension, backward, start), [x])


@pytest.mark.parametrize("element", [F32, I1], ids=str)
def test_a_sort_in_a_loop_of_windows(element: ElementType) -> None:
    """What threads do together stands in loops and beside registers."""

    scalar = TensorType((), element)
    less = build_region([scalar] * 2, lambda b, x, y: [b.compare("LT", x, y)])

    def body(b: Any, x: Any, out: Any) -> None:
        zero = b.constant(0, INDEX)

        def step(b: Any, number: Any) -> list[Any]:
            row = b("multiply", number, b.constant(4, INDEX))
            rows = b("tile_load", x, row, zero, sizes=(4, 32))
            attributes = {"dimension": 1, "is_stable": True}
            found = b.op("sort", [rows], attributes, [less]).result
            both = b("or" if element is I1 else "add", found, rows)
            b.op("tile_store", [out, both, row, zero], {})
            return []

        region = build_region([INDEX], step)
        b.op("tile_for", [zero, b.constant(3, INDEX)], {}, (region,))

    whole = tensor(12, 32, element=element)
    x = np.random.default_rng(1).standard_normal((12, 32)).astype(element.dtype)
    check(call(body, [whole], [whole], (1,)), [x])


@pytest.mark.requires_ptxas
def test_what_threads_do_together_assembles() -> None:
    for op in (ordered((16, 256), (1,)), ordered((4096,), (0,)), projections((64, 128))):
        ptx = compile_ptx(tile.emit(op, SM_80).text, SM_80.architecture)
        assert assemble(ptx, SM_80.architecture).faults() == []
