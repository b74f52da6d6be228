"""What rooms say of being cut is true: parts are evaluated, put together, and are the whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from girih.hlo.access import Access
from girih.hlo.build import Builder
from girih.hlo.cases import Example, example
from girih.hlo.errors import CompilerBug, VerifyError
from girih.hlo.factors import Dims, Factor, FactorKind, Factors
from girih.hlo.graph import Function, Module, Op
from girih.hlo.interpret import interpret
from girih.hlo.ops import DEFINITIONS, find
from girih.hlo.ops.examples import binary_body, counting, f32, i32, scalar_body
from girih.hlo.room import Case, OpDefinition
from girih.hlo.sharding import MAX, MIN, SUM
from girih.hlo.types import F32, TensorType

from .indexing_cases import gathers, scatters
from .test_access import convolutions, windows

LOCAL = (FactorKind.PASS, FactorKind.REDUCTION)


def factors_of(made: Example) -> Factors | None:
    return made.definition.shard(made.op)


def rule(name: str, *inputs: Any, **attributes: Any) -> str:
    return str(factors_of(example(find(name), Case(name, inputs, attributes))))


# Every room says it.


@pytest.mark.parametrize("room", DEFINITIONS, ids=[room.name for room in DEFINITIONS])
def test_factors_or_a_reason(room: OpDefinition) -> None:
    """Where there are factors, they are the tensors': each dim of a size holds some."""
    for case in room.cases():
        made = example(room, case)
        factors = factors_of(made)
        if factors is None:
            assert room.uncut, f"{room.name} has neither factors nor a reason for none"
            continue
        assert not room.uncut or room.pattern == "kernel", (
            f"{room.name} gives a reason for factors that it has"
        )
        values = (*made.op.operands, *made.op.results)
        for value, dims in zip(values, factors.tensors, strict=True):
            assert len(dims) == value.rank, made.name
            held = list(itertools.chain(*dims))
            assert len(held) == len(set(held)), f"{made.name}: a tensor holds a factor twice"
            for size, numbers in zip(value.dims, dims, strict=True):
                assert size == 1 or numbers, made.name
        assert all(factor.size != 1 for factor in factors.factors), made.name
        used = set(itertools.chain(*(dim for dims in factors.tensors for dim in dims)))
        assert used == set(range(len(factors.factors))), f"{made.name}: nobody holds a factor"


def test_rooms_without_cases_say_it_too() -> None:
    for room in DEFINITIONS:
        if not list(room.cases()):
            assert room.uncut or room.pattern == "source", room.name


# Parts, and the whole of them.


def _axes(dims: Sequence[int], held: Dims, factors: Factors, number: int) -> Any:
    """The shape with a dim split into its factors, and which axis the factor is; None without."""
    for dim, numbers in enumerate(held):
        if number in numbers:
            sizes = [factors.factors[n].size for n in numbers]
            assert math.prod(sizes) == dims[dim], "a factor that parts can have is of the whole dim"
            return (*dims[:dim], *sizes, *dims[dim + 1 :]), dim + numbers.index(number), dim
    return None


def parts_of(factor: Factor) -> int:
    """How many equal parts to take: as few as there are."""
    return next(n for n in range(2, factor.size + 1) if factor.size % n == 0)


def cut(array: Any, held: Dims, factors: Factors, number: int, part: int, count: int) -> Any:
    """Part `part` of `count` along a factor; the array itself where it does not hold it."""
    found = _axes(array.shape, held, factors, number)
    if found is None:
        return array
    shape, axis, dim = found
    piece = np.split(array.reshape(shape), count, axis)[part]
    return piece.reshape(*(n // count if d == dim else n for d, n in enumerate(array.shape)))


def joined(parts: Sequence[Any], whole: Any, held: Dims, factors: Factors, number: int) -> Any:
    """The parts one after the other along a factor."""
    shape, axis, _ = _axes(whole.shape, held, factors, number)
    local = list(shape)
    local[axis] //= len(parts)
    return np.concatenate([p.reshape(local) for p in parts], axis).reshape(whole.shape)


def identity_of(reduction: str, like: Any) -> Any:
    kind = like.dtype.kind
    if reduction == SUM:
        return np.zeros_like(like)
    if kind == "b":
        return np.full_like(like, reduction == MIN)
    if kind in "iu":
        info = np.iinfo(like.dtype)
        return np.full_like(like, info.min if reduction == MAX else info.max)
    return np.full_like(like, -np.inf if reduction == MAX else np.inf)


def folded(reduction: str, parts: Sequence[Any]) -> Any:
    function = {SUM: np.add, MAX: np.maximum, MIN: np.minimum}[reduction]
    total = parts[0]
    for part in parts[1:]:
        total = function(total, part)
    return total


def local_op(op: Op, inputs: Sequence[Any], results: Sequence[TensorType]) -> Module:
    """The operation on operands of these dims, its attributes adapted to them."""
    b = Builder()
    values = b.arguments(
        [v.tensor.with_dims(x.shape) for v, x in zip(op.operands, inputs, strict=True)]
    )
    facts = dict(op.attributes)
    if op.name == "slice":
        facts["limit_indices"] = tuple(map(min, op.limit_indices, inputs[0].shape))
    elif op.name == "dynamic_slice":
        facts["slice_sizes"] = results[0].dims
    elif op.name == "gather":
        pairs = zip(op.slice_sizes, op.operand.dims, inputs[0].shape, strict=True)
        facts["slice_sizes"] = tuple(n if old == size else size for size, old, n in pairs)
    elif op.name == "broadcast":
        facts["broadcast_sizes"] = results[0].dims[: len(op.broadcast_sizes)]
    elif op.name == "convolution":
        inner = inputs[1].shape[op.kernel_input_feature_dimension]
        batch = results[0].dims[op.output_batch_dimension]
        facts["feature_group_count"] = inputs[0].shape[op.input_feature_dimension] // inner
        facts["batch_group_count"] = inputs[0].shape[op.input_batch_dimension] // batch
    made = b.op(op.name, values, facts, op.regions, results)
    return Module({"main": Function("main", b.region(made.results))})


def check(made: Example, factors: Factors, number: int) -> None:
    """Parts along one factor, evaluated each for itself, are the whole."""
    factor, op = factors.factors[number], made.op
    count = parts_of(factor)
    whole = interpret(made.module, made.inputs)
    types = [
        value.tensor.with_dims(
            cut(np.empty(value.dims, np.bool_), held, factors, number, 0, count).shape
        ).with_sharding(value.tensor.sharding)
        for value, held in zip(op.results, factors.results, strict=True)
    ]
    parts = []
    for part in range(count):
        inputs = [
            cut(np.asarray(x), held, factors, number, part, count)
            for x, held in zip(made.inputs, factors.operands, strict=True)
        ]
        if factor.kind is FactorKind.REDUCTION and part:
            for n in factors.once:
                inputs[n] = identity_of(factor.reduction, inputs[n])
        if op.name in ("dynamic_reshape", "dynamic_broadcast_in_dim"):
            inputs[1] = np.array(types[0].dims, inputs[1].dtype)
        parts.append(interpret(local_op(op, inputs, types), inputs))
    for n, (wanted, held) in enumerate(zip(whole, factors.results, strict=True)):
        pieces = [np.asarray(results[n]) for results in parts]
        if any(number in dim for dim in held):
            compare(made, joined(pieces, wanted, held, factors, number), wanted)
        elif factor.kind is FactorKind.REDUCTION:
            compare(made, folded(factor.reduction, pieces), wanted)
        else:
            for piece in pieces:
                compare(made, piece, wanted)


def compare(made: Example, got: Any, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, made.name
    if got.dtype.kind in "biu" or got.dtype.name.startswith(("int", "uint")):
        assert np.array_equal(got, wanted), made.name
        return
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            got.astype(wide), wanted.astype(wide), made.tolerance, 1e-5, err_msg=made.name
        )


@pytest.mark.parametrize("room", DEFINITIONS, ids=[room.name for room in DEFINITIONS])
def test_parts_are_the_whole(room: OpDefinition) -> None:
    if room.uncut:
        pytest.skip(room.uncut)
    for case in room.cases():
        made = example(room, case)
        factors = factors_of(made)
        assert factors is not None
        for number, factor in enumerate(factors.factors):
            if factor.kind in LOCAL and factor.size and not factor.placed:
                check(made, factors, number)


@pytest.mark.parametrize(
    ("name", "case"), [("sort", "sort_stable_pairs"), ("reduce", "reduce_multiply")]
)
def test_a_false_claim_is_seen(name: str, case: str) -> None:
    """What needs all of a dim, said to pass or to be a sum."""
    room = find(name)
    for one in room.cases():
        made = example(room, one)
        factors = factors_of(made)
        assert factors is not None
        for number in factors.of_kind(FactorKind.REPLICATE):
            kind = LOCAL[name == "reduce"]
            claim = list(factors.factors)
            claim[number] = claim[number]._replace(kind=kind)
            with pytest.raises(AssertionError):
                check(made, replace(factors, factors=tuple(claim)), number)
            return
    raise AssertionError(f"no case of {name} has such a factor")


@settings(max_examples=60)
@given(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=4), st.data())
def test_reshapes(source: list[int], data: Any) -> None:
    target, rest = [], math.prod(source)
    while rest > 1:
        target.append(data.draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0])))
        rest //= target[-1]
    made = example(
        find("reshape"),
        Case("reshape", (counting(*source),), result_types=(TensorType(target, F32),)),
    )
    factors = factors_of(made)
    assert factors is not None
    for value, dims in zip((made.op.operand, made.op.result), (*factors.tensors,), strict=True):
        products = [math.prod(factors.factors[n].size for n in dim) for dim in dims]
        assert products == list(value.dims)
    for number in factors.of_kind(FactorKind.PASS):
        check(made, factors, number)


@pytest.mark.parametrize("name", ["gather", "scatter", "convolution", "reduce_window"])
def test_parts_of_random_operations_are_the_whole(name: str) -> None:
    made = {
        "gather": gathers, "scatter": scatters, "convolution": convolutions,
        "reduce_window": windows,
    }[name]()  # fmt: skip

    @settings(max_examples=60)
    @given(made)
    def run(case: Case) -> None:
        try:
            one = example(find(name), case)
        except VerifyError:
            assume(False)
            return
        factors = factors_of(one)
        assert factors is not None
        for number, factor in enumerate(factors.factors):
            if factor.kind in LOCAL and factor.size and not factor.placed:
                check(one, factors, number)

    run()


# Factors whose parts have to know their place, each with what it has to do.


def placed(made: Example, kind: FactorKind) -> tuple[Factors, int, int]:
    """The factors, the first placed one's number, and two parts' size."""
    factors = factors_of(made)
    assert factors is not None
    for number, factor in enumerate(factors.factors):
        if factor.placed and factor.kind is kind:
            return factors, number, factor.size // parts_of(factor)
    raise AssertionError(f"{made.name} has no such factor")


def alone(array: Any, held: Dims, factors: Factors, number: int, part: int, other: Any) -> Any:
    """The array with `other` everywhere but in one part along a factor that it holds."""
    found = _axes(array.shape, held, factors, number)
    if found is None:
        return array
    count = parts_of(factors.factors[number])
    shape, axis, _ = found
    here = np.arange(shape[axis]) * count // shape[axis] == part
    inside = here.reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return np.where(inside, array.reshape(shape), other).astype(array.dtype).reshape(array.shape)


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_parts_need_nothing_of_others(name: str) -> None:
    """What lies outside of a part changes nothing in the part's results, if these hold the factor;
    read as zero, it adds nothing to a sum."""

    @settings(max_examples=60)
    @given({"gather": gathers, "scatter": scatters}[name]())
    def run(case: Case) -> None:
        one = example(find(name), case)
        factors = factors_of(one)
        assert factors is not None
        whole = interpret(one.module, one.inputs)[0]
        for number, factor in enumerate(factors.factors):
            if not factor.placed or not factor.size:
                continue
            kept = factor.kind is FactorKind.PASS
            count, parts = parts_of(factor), []
            for part in range(count):
                other = np.nan if kept else 0
                pairs = zip(one.inputs, factors.operands, strict=True)
                inputs = [alone(x, held, factors, number, part, other) for x, held in pairs]
                result = interpret(one.module, inputs)[0]
                held = factors.results[0]
                parts.append(cut(result, held, factors, number, part, count) if kept else result)
            if kept:
                compare(one, joined(parts, whole, factors.results[0], factors, number), whole)
            else:
                compare(one, folded(factor.reduction, parts), whole)

    run()


def case_of(name: str, case: str) -> Example:
    return next(example(find(name), one) for one in find(name).cases() if one.name == case)


@pytest.mark.parametrize(
    ("name", "case"), [("gather", "gather_rows"), ("torch_index_select", "index_select_rows")]
)
def test_each_part_looks_up_what_it_has(name: str, case: str) -> None:
    """Rows that another part has count as zero: the sum of all is the whole."""
    made = case_of(name, case)
    factors, number, size = placed(made, FactorKind.REDUCTION)
    table, rows = made.inputs
    whole = interpret(made.module, made.inputs)[0]
    total = np.zeros_like(whole)
    clamped = np.clip(rows, 0, len(table) - 1)
    for start in range(0, len(table), size):
        inside = (clamped >= start) & (clamped < start + size)
        inputs = [table[start : start + size], np.where(inside, clamped - start, 0)]
        got = interpret(local_op(made.op, inputs, [made.op.type]), inputs)[0]
        total += np.where(inside.reshape(-1, 1), got, 0)
    assert factors.factors[number].reduction == SUM
    compare(made, total, whole)


@pytest.mark.parametrize("case", ["scatter_add", "scatter_set", "scatter_general"])
def test_each_part_takes_the_updates_that_fall_into_it(case: str) -> None:
    made = case_of("scatter", case)
    _, _, size = placed(made, FactorKind.PASS)
    table, rows, updates = made.inputs
    parts = []
    for start in range(0, len(table), size):
        inputs = [table[start : start + size], rows - start, updates]
        local = [made.op.result.tensor.with_dims(inputs[0].shape)]
        parts += interpret(local_op(made.op, inputs, local), inputs)
    compare(made, np.concatenate(parts), interpret(made.module, made.inputs)[0])


def test_windows_as_large_as_the_input_may_still_move() -> None:
    facts = {
        "update_window_dims": (0,), "inserted_window_dims": (),
        "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 0,
    }  # fmt: skip
    inputs = (counting(4), i32([1]), counting(4) * 10)
    made = example(find("scatter"), Case("s", inputs, facts, regions=binary_body("add", F32)))
    _, _, size = placed(made, FactorKind.PASS)
    parts = []
    for start in range(0, 4, size):
        local = [inputs[0][start : start + size], inputs[1] - start]
        # an update of the part's own size would be another one: the window is left out there
        window = [k - int(local[1][0]) for k in range(size)]
        given = np.array([inputs[2][k] if 0 <= k < 4 else 0 for k in window], np.float32)
        parts.append(local[0] + given)
    compare(made, np.concatenate(parts), interpret(made.module, inputs)[0])


def test_each_part_is_updated_where_the_update_falls_into_it() -> None:
    made = case_of("dynamic_update_slice", "dynamic_update_slice_inside")
    factors, number, size = placed(made, FactorKind.PASS)
    x, update, *starts = made.inputs
    assert factors.operands[0][0] == (number,)
    parts, margin = [], len(update)
    for first in range(0, len(x), size):
        wide = np.pad(x[first : first + size], ((margin, margin), (0, 0)))
        inputs = [wide, update, starts[0] - np.int32(first) + np.int32(margin), starts[1]]
        inputs[2] = np.asarray(inputs[2], np.int32)
        local = [made.op.result.tensor.with_dims(wide.shape)]
        got = interpret(local_op(made.op, inputs, local), inputs)[0]
        parts.append(got[margin:-margin])
    compare(made, np.concatenate(parts), interpret(made.module, made.inputs)[0])


@pytest.mark.parametrize("reverse", [False, True])
def test_parts_of_a_window_are_summed(reverse: bool) -> None:
    """Each part pads less on the side that the other parts' places come first."""
    made = case_of("convolution", "convolution_1d")
    facts = {**made.op.attributes, "window_reversal": (reverse,), "padding": ((2, 1),)}
    inputs = (counting(1, 7, 2), counting(6, 2, 2))
    whole = example(find("convolution"), Case("c", inputs, facts))
    factors, number, size = placed(whole, FactorKind.REDUCTION)
    assert factors.operands[1][0] == (number,)
    window = inputs[1].shape[0]
    total: Any = 0
    for first in range(0, window, size):
        before = window - first - size if reverse else first
        padding = ((2 - before, 1 - (window - size - before)),)
        part = (inputs[0], inputs[1][first : first + size])
        one = example(find("convolution"), Case("c", part, {**facts, "padding": padding}))
        total = total + interpret(one.module, part)[0]
    compare(whole, total, interpret(whole.module, inputs)[0])


# What rooms say, read at a glance.


def test_rules() -> None:
    x, y = counting(4, 6), counting(6, 8)
    matrix = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    said = rule("dot_general", x, y, **matrix)
    assert said == "([i, k], [k, j])->([i, j]) {i=4, j=8, k=6} reduction={k}"
    assert rule("transpose", x, permutation=(1, 0)) == "([j, i])->([i, j]) {i=6, j=4}"
    said = rule("reverse", x, dimensions=(1,))
    assert said == "([i, j])->([i, j]) {i=4, j=6} permutation={j}"
    said = rule("concatenate", x, x, dimension=0)
    assert said == "([i, j], [i, j])->([i, j]) {i=8, j=6} need_replication={i}"
    cuts = {"start_indices": (0, 1), "limit_indices": (4, 5), "strides": (1, 1)}
    assert rule("slice", x, **cuts) == "([i, j])->([i, j]) {i=4, j=6} permutation={j}"


def test_parts_of_larger_tensors_that_are_joined_are_shifts() -> None:
    b = Builder()
    (x,) = b.arguments([TensorType((4, 6), F32)])
    left, right = (
        b("slice", x, start_indices=(0, s), limit_indices=(4, s + 3), strides=(1, 1))
        for s in (0, 3)
    )
    (y,) = b.arguments([TensorType((4, 6), F32)])

    def joined_rule(*parts: Any) -> str:
        made = b.op("concatenate", parts, {"dimension": 1})
        return str(made.definition.shard(made))

    rolled = joined_rule(right, left)
    assert rolled == "([i, j], [i, j])->([i, j]) {i=4, j=6} permutation={j}"
    assert "permutation" in joined_rule(x, left)  # parts of one tensor
    assert "need_replication" in joined_rule(y, left)


@pytest.mark.parametrize(
    ("name", "reduction"), [("add", SUM), ("maximum", MAX), ("minimum", MIN), ("multiply", None)]
)
def test_only_known_folds_are_reductions(name: str, reduction: str | None) -> None:
    case = Case("r", (counting(4, 6), f32(1)), {"dimensions": (1,)}, None, binary_body(name, F32))
    factors = factors_of(example(find("reduce"), case))
    assert factors is not None
    wanted = Factor(6, FactorKind.REPLICATE)
    if reduction:
        wanted = Factor(6, FactorKind.REDUCTION, reduction=reduction)
    assert factors.factors == (Factor(4), wanted)
    assert factors.once == (1,)


@pytest.mark.parametrize(("second", "cuts"), [("add", True), ("maximum", False)])
def test_folds_of_several_results(second: str, cuts: bool) -> None:
    """One body folds each result for itself: cut if all are folded alike."""

    def body(b: Any, x: Any, y: Any, u: Any, v: Any) -> list[Any]:
        return [b("add", x, u), b(second, v, y)]

    inputs = (counting(3, 4), counting(3, 4) - 5, f32(1), f32(2))
    regions = scalar_body(body, F32, F32, F32, F32)
    made = example(find("reduce"), Case("r", inputs, {"dimensions": (1,)}, None, regions))
    factors = factors_of(made)
    assert factors is not None and factors.once == (2, 3)
    assert factors.factors[1].kind is (FactorKind.REDUCTION if cuts else FactorKind.REPLICATE)
    if cuts:
        check(made, factors, 1)


def test_scales_of_a_dim_keep_it_whole() -> None:
    """Devices run one program: they cannot have types with different scales."""
    factors = factors_of(case_of("uniform_dequantize", "uniform_dequantize_axis"))
    assert str(factors) == "([i, j])->([i, j]) {i=5, j=2} need_replication={j}"


def test_access_alone_does_not_say_what_data_decides() -> None:
    class Choice(OpDefinition):
        """An operation that reads what data tells, and states no factors."""

        def access(self, o: Op) -> Access | None:
            return find("sort").access(o)

    made = case_of("sort", next(find("sort").cases()).name)
    with pytest.raises(CompilerBug, match="its own factors"):
        Choice().shard(made.op)
