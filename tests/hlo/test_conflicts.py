"""Which shardings of an operation's tensors agree: each row says them, and the reason where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from girih.hlo.build import build_region
from girih.hlo.conflicts import conflict
from girih.hlo.errors import VerifyError
from girih.hlo.graph import Function, Module, Op, arguments
from girih.hlo.ops import find
from girih.hlo.sharding import Mesh, parse_sharding
from girih.hlo.types import BF16, F32, I1, I32, TensorType
from girih.hlo.verify import DECIDED, verify

MESH = Mesh((("x", 4), ("y", 2)))


def kind(dims: tuple[int, ...], text: str = "", element: Any = F32) -> TensorType:
    """The text has a letter or more for each dim, `-` for none: `x,-`; behind `|` unreduced axes,
    with `max` before them where that is the fold."""
    cuts, _, pending = text.partition("|")
    said = cuts.split(",") if cuts else ["-"] * len(dims)
    assert len(said) == len(dims)
    axes = (", ".join(f'"{axis}"' for axis in dim if axis in "xy") for dim in said)
    body = ", ".join(f"{{{dim}}}" for dim in axes)
    fold = "max" if pending.startswith("max") else ""
    over = ", ".join(f'"{axis}"' for axis in pending.removeprefix("max"))
    more = f", unreduced={fold}{{{over}}}" if over else ""
    return TensorType(dims, element).with_sharding(parse_sharding(f"<@m, [{body}]{more}>"))


def fault(
    name: str,
    operands: list[TensorType],
    results: list[TensorType],
    regions: Any = (),
    **facts: Any,
) -> str:
    values = arguments(operands)
    return conflict(Op(find(name), values, facts, regions, results), MESH)


def folding(name: str) -> Any:
    scalar = TensorType((), F32)
    return (build_region([scalar, scalar], lambda b, x, y: [b(name, x, y)]),)


EIGHT, SQUARE = (8,), (8, 8)


@pytest.mark.parametrize(
    ("one", "other", "result", "reason"),
    [
        ("x", "x", "x", ""),
        ("xy", "xy", "xy", ""),
        ("x", "y", "x", "cut in two ways"),
        ("x", "-", "x", "cut in two ways"),
        ("x", "x", "-", "cut in two ways"),
        ("-|x", "-|x", "-|x", ""),
        ("-|x", "-", "-|x", "needs its elements"),
        ("-|x", "-|x", "-", "has to be unreduced"),
        ("-", "-", "-|x", "has to be unreduced"),
        ("-|x", "-|y", "-|xy", "needs its elements"),
        ("-|maxx", "-|maxx", "-|maxx", "needs its elements"),
        ("-|x", "-|maxx", "-|x", "by different folds"),
    ],
)
def test_a_sum(one: str, other: str, result: str, reason: str) -> None:
    types = [kind(EIGHT, one), kind(EIGHT, other)]
    found = fault("add", types, [kind(EIGHT, result)])
    assert reason in found and bool(reason) == bool(found)


@pytest.mark.parametrize(
    ("name", "one", "other", "result", "reason"),
    [
        ("multiply", "-|x", "-", "-|x", ""),
        ("multiply", "-|x", "-|x", "-|x", "needs its elements"),
        ("multiply", "-|x", "-|y", "-|xy", ""),
        ("divide", "-|x", "-", "-|x", ""),
        ("divide", "-", "-|x", "-|x", "needs its elements"),
        ("maximum", "-|maxx", "-|maxx", "-|maxx", ""),
        ("maximum", "-|x", "-|x", "-|x", "needs its elements"),
        ("power", "-|x", "-", "-|x", "needs its elements"),
    ],
)
def test_two_operands(name: str, one: str, other: str, result: str, reason: str) -> None:
    found = fault(name, [kind(EIGHT, one), kind(EIGHT, other)], [kind(EIGHT, result)])
    assert reason in found and bool(reason) == bool(found)


@pytest.mark.parametrize(
    ("left", "right", "result", "reason"),
    [
        ("x,-", "-,y", "x,y", ""),
        ("-,x", "x,-", "-,-|x", ""),
        ("-,x", "x,-", "-,-", "has to be unreduced"),
        ("-,xy", "xy,-", "-,-|yx", ""),
        ("-,x", "x,-", "-,-|maxx", "has to be unreduced"),
        ("-,x", "-,-", "-,-|x", "cut in two ways"),
        ("x,-", "-,x", "x,-", "cut in two ways"),
        ("-,-|x", "-,y", "-,y|x", ""),
        ("x,-|y", "-,y", "x,y", "an operand is unreduced over it"),
    ],
)
def test_a_product(left: str, right: str, result: str, reason: str) -> None:
    facts = {
        "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
    }  # fmt: skip
    types = [kind(SQUARE, left), kind(SQUARE, right)]
    found = fault("dot_general", types, [kind(SQUARE, result)], **facts)
    assert reason in found and bool(reason) == bool(found)


@pytest.mark.parametrize(
    ("operand", "init", "result", "reason"),
    [
        ("x,-", "", "-", "has to be unreduced"),
        ("x,-", "", "-|x", ""),
        ("-,x", "", "x", ""),
        ("y,x", "", "x|y", ""),
        ("-,-|x", "", "-|x", "needs its elements"),  # its start would be added by every device
        ("x,-", "|x", "-|x", "an operand is unreduced over it"),
    ],
)
def test_a_fold(operand: str, init: str, result: str, reason: str) -> None:
    scalar = parse_sharding('<@m, [], unreduced={"x"}>' if init else "<@m, []>")
    types = [kind(SQUARE, operand), TensorType((), F32).with_sharding(scalar)]
    found = fault("reduce", types, [kind(EIGHT, result)], folding("add"), dimensions=(0,))
    assert reason in found and bool(reason) == bool(found)


def test_the_largest_of_parts() -> None:
    types = [kind(SQUARE, "x,-"), kind((), "")]
    over = [kind(EIGHT, "-|maxx")]
    assert not fault("reduce", types, over, folding("maximum"), dimensions=(0,))
    assert fault("reduce", types, over, folding("add"), dimensions=(0,))
    assert fault("reduce", types, [kind(EIGHT, "-|x")], folding("maximum"), dimensions=(0,))


@pytest.mark.parametrize(
    ("operand", "dims", "result", "reason"),
    [
        ("x,-", (32, 2), "x,-", ""),
        ("x,y", (64,), "x", "cut in two ways"),
        ("xy,-", (64,), "xy", ""),
        ("-,x", (64,), "-", "each device needs all"),
        ("xy,-", (4, 16), "x,y", ""),
        ("xy,-", (4, 16), "y,x", "cut in two ways"),
        ("-,-|x", (64,), "-|x", ""),
    ],
)
def test_a_reshape(operand: str, dims: tuple[int, ...], result: str, reason: str) -> None:
    found = fault("reshape", [kind(SQUARE, operand)], [kind(dims, result)])
    assert bool(reason) == bool(found), found


@pytest.mark.parametrize(
    ("operand", "result", "reason"),
    [
        ("x,-", "-,-|x", ""),
        ("x,y", "-,y|x", ""),
        ("-,y", "-,y", ""),
        ("x,-", "-,-", "has to be unreduced"),  # one device has the row, the others zeros
        ("x,-", "-,-|maxx", "has to be unreduced"),
        ("x,-", "x,-", "each device needs all"),
        ("-,-", "-,-|x", "has to be unreduced"),
    ],
)
def test_a_row_at_a_computed_place(operand: str, result: str, reason: str) -> None:
    types = [kind(SQUARE, operand), kind((), "", I32), kind((), "", I32)]
    found = fault("dynamic_slice", types, [kind((4, 8), result)], slice_sizes=(4, 8))
    assert reason in found and bool(reason) == bool(found)


def test_what_is_needed_whole() -> None:
    """The candidates of a row's parts are put together; a sort leaves a row as it is cut; nobody
    solves a system of parts."""
    rows, best = kind(SQUARE, "y,x"), [kind((8, 2), "y,-"), kind((8, 2), "y,-", I32)]
    assert not fault("chlo.top_k", [rows], best, k=2)
    cut = [kind((8, 2), "y,x"), kind((8, 2), "y,x", I32)]
    assert "cuts two factors" in fault("chlo.top_k", [rows], cut, k=2)
    facts = {"dimension": 1, "is_stable": True}
    order = build_region(
        [TensorType((), F32)] * 2, lambda b, x, y: [b("compare", x, y, comparison_direction="LT")]
    )
    assert fault("sort", [rows], [kind(SQUARE, "y,-")], (order,), **facts)
    for both in ("y,x", "xy,-"):
        assert not fault("sort", [kind(SQUARE, both)], [kind(SQUARE, both)], (order,), **facts)
    assert "needs all" in fault("cholesky", [rows], [rows], lower=True)


def test_blocks_of_merged_dims() -> None:
    """Six elements in four blocks are 2, 2, 2, 0; rows of three in two each are 2, 1, 2, 1. Blocks
    of whole rows are intervals of all elements too."""
    assert "two ways" in fault("reshape", [kind((6,), "yx")], [kind((2, 3), "y,x")])
    assert "two ways" in fault("reshape", [kind((12,), "yx")], [kind((2, 6), "y,x")])
    assert not fault("reshape", [kind((6,), "yx")], [kind((2, 3), "yx,-")])
    assert not fault("reshape", [kind((16,), "yx")], [kind((2, 8), "y,x")])


@pytest.mark.parametrize(
    ("source", "target", "fine"),
    [
        ("x,y", "y,x", True),
        ("-,-|x", "x,-", True),
        ("-,-|xy", "-,-|y", True),
        ("-,-", "-,-|x", True),  # one device keeps it, the others have nothing to add
        ("-,-|y", "-,-|x", True),
        ("-,-|x", "-,-|maxx", False),
    ],
)
def test_a_reshard(source: str, target: str, fine: bool) -> None:
    types = [kind(SQUARE, source)], [kind(SQUARE, target)]
    assert fine == (not fault("sharding_constraint", *types, stated="constraint"))


def test_what_loses_parts_of_sums() -> None:
    narrow = [kind(EIGHT, "-|x", BF16)]
    assert not fault("convert", narrow, [kind(EIGHT, "-|x")])
    assert fault("convert", [kind(EIGHT, "-|x")], narrow)
    assert fault("tanh", [kind(EIGHT, "-|x")], [kind(EIGHT, "-|x")])
    assert not fault("negate", [kind(EIGHT, "-|x")], [kind(EIGHT, "-|x")])


def test_what_decides_is_whole() -> None:
    predicate = TensorType((8,), I1)
    types = [kind((), "", I1), kind(EIGHT, "x"), kind(EIGHT, "x")]
    assert not fault("select", types, [kind(EIGHT, "x")])
    cut = [kind(EIGHT, "-|maxx", predicate.element), kind(EIGHT, "-"), kind(EIGHT, "-")]
    assert "needs its elements" in fault("select", cut, [kind(EIGHT, "-|maxx")])


def loop(before: str, inside: str, after: str) -> str:
    values = [kind((), "", I32), kind(EIGHT, before)]
    types = [kind((), "", I32), kind(EIGHT, inside)]
    cond = build_region(
        types,
        lambda b, i, x: [b("compare", i, i, comparison_direction="LT", type=kind((), "", I1))],
    )
    body = build_region(types, lambda b, i, x: [i, x])
    return fault("while", values, [values[0], kind(EIGHT, after)], (cond, body))


def test_a_carried_value_lies_alike() -> None:
    assert not loop("x", "x", "x")
    assert not loop("-|x", "-|x", "-|x")
    for change in (("y", "x", "x"), ("x", "x", "y"), ("x", "-", "x"), ("x", "-|x", "-|x")):
        assert "one value is" in loop(*change)


def test_the_level() -> None:
    def module(result: str) -> Module:
        def body(b: Any, x: Any) -> Any:
            y = b("tanh", x, type=kind(EIGHT, "x"))
            return [b("sharding_constraint", y, type=kind(EIGHT, result), stated="constraint")]

        main = Function("main", build_region([kind(EIGHT, "x")], body))
        return Module({"main": main}, meshes={"m": MESH})

    verify(module("y"), DECIDED)

    def wrong(b: Any, x: Any) -> Any:
        return [b("tanh", x, type=kind(EIGHT, "y"))]

    main = Function("main", build_region([kind(EIGHT, "x")], wrong))
    with pytest.raises(VerifyError, match="cut in two ways"):
        verify(Module({"main": main}, meshes={"m": MESH}), DECIDED)


def test_every_case_of_a_sum_is_folded_once() -> None:
    """The folds that may come later are those that give the same: numbers say it, not the table."""
    terms = np.arange(1.0, 9.0).reshape(4, 2), np.arange(11.0, 3.0, -1.0).reshape(4, 2)
    for name, function in (("add", np.add), ("multiply", np.multiply), ("maximum", np.maximum)):
        types = [kind(EIGHT, "-|x"), kind(EIGHT, "-|x")]
        later = function(*terms).sum(0)
        first = function(terms[0].sum(0), terms[1].sum(0))
        assert (not fault(name, types, [kind(EIGHT, "-|x")])) == np.array_equal(later, first)
