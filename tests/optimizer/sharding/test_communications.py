"""What a decided program is said to send is what its devices receive when it runs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from girih.hlo.build import build_module, build_region
from girih.hlo.distributed import interpret_parallel
from girih.hlo.factors import FactorKind, Factors
from girih.hlo.graph import Dense, Function, Module, Op
from girih.hlo.ops import find
from girih.hlo.sharding import Mesh, parse_sharding
from girih.hlo.types import F32, I1, I32, TensorType
from girih.hlo.verify import DECIDED, verify
from girih.optimizer.sharding.communications import REDUCTION, RESHARD, communications
from girih.optimizer.sharding.partition.program import partition

from .decided import Decider

MESH = Mesh((("x", 4), ("y", 2)))
KIND = TensorType((16, 8), F32)


def passing(op: Op, factors: Factors, number: int) -> bool:
    return factors.factors[number].kind in (FactorKind.PASS, FactorKind.REDUCTION)


def received(local: Module) -> float:
    """Bytes that a device gets, the mean of all."""
    blocks = [np.ones(kind.dims, kind.dtype) for kind in local.body.argument_types]  # type: ignore[union-attr]
    found = interpret_parallel(local, [blocks] * MESH.devices)
    return sum(sum(counts.values()) for counts in found.received) / MESH.devices


@pytest.mark.parametrize("seed", range(12))
def test_explained_is_counted(seed: int) -> None:
    def body(b: Any, x: Any, w: Any) -> Any:
        y = b("tanh", b("add", x, w))
        product = b(
            "dot_general", y, w, lhs_batching_dimensions=(), rhs_batching_dimensions=(),
            lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(1,),
        )  # fmt: skip
        return [b("multiply", product, product), y]

    decided = Decider(MESH, passing, random.Random(seed)).module(build_module([KIND, KIND], body))
    verify(decided, DECIDED)
    rows = communications(decided)
    assert [row.number for row in rows] == list(range(len(rows)))
    assert sum(row.total for row in rows) == received(partition(decided))
    for row in rows:
        assert row.collectives and set(row.axes) <= {"x", "y"}
        assert f"{row.bytes:.12g} bytes a device" in str(row)


def lying(text: str, kind: TensorType = KIND) -> TensorType:
    return kind.with_sharding(parse_sharding(f"<@m, {text}>"))


WHOLE = "[{}, {}]"
CUT = '[{"x"}, {}]'


def test_a_reduction_is_one() -> None:
    def body(b: Any, x: Any) -> Any:
        partial = b("sharding_constraint", x, type=lying(WHOLE))
        y = b("multiply", x, x, type=lying(CUT))
        facts = {
            "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
            "lhs_contracting_dimensions": (0,), "rhs_contracting_dimensions": (0,),
        }  # fmt: skip
        square = TensorType((8, 8), F32)
        z = b("dot_general", y, y, type=lying(WHOLE + ', unreduced={"x"}', square), **facts)
        return [partial, b("sharding_constraint", z, type=lying(WHOLE, square))]

    main = Function("main", build_region([lying(CUT)], body))
    decided = Module({"main": main}, meshes={"m": MESH})
    verify(decided, DECIDED)
    rows = communications(decided)
    assert [row.kind for row in rows] == [RESHARD, REDUCTION]
    assert rows[0].bytes == 16 * 8 * 4 * 3 / 4
    assert rows[1].bytes == 2 * 8 * 8 * 4 * 3 / 4
    assert rows[1].axes == ("x",)
    assert str(rows[0]).startswith('#0 reshard of an argument: <@m, [{"x"}, {}]> -> <@m, [{}, {}]>')


def number(b: Any, value: int, kind: TensorType) -> Any:
    facts = {"value": Dense.of(np.asarray(value, np.int32))}
    return b.append(Op(find("constant"), (), facts, (), (kind,))).result


@pytest.mark.parametrize("turns", [0, 3])
def test_turns_of_loops_are_counted(turns: int) -> None:
    count, scalar = (
        TensorType((), kind).with_sharding(parse_sharding("<@m, []>")) for kind in (I32, I1)
    )
    types = [count, lying(CUT)]

    def cond(b: Any, i: Any, x: Any) -> Any:
        end = number(b, turns, count)
        return [b("compare", i, end, comparison_direction="LT", type=scalar)]

    def step(b: Any, i: Any, x: Any) -> Any:
        one = number(b, 1, count)
        whole = b("sharding_constraint", x, type=lying(WHOLE))
        return [b("add", i, one, type=count), b("sharding_constraint", whole, type=lying(CUT))]

    def body(b: Any, x: Any) -> Any:
        zero = number(b, 0, count)
        regions = (build_region(types, cond), build_region(types, step))
        return [b.op("while", [zero, x], {}, regions, types).results[1]]

    main = Function("main", build_region([lying(CUT)], body))
    decided = Module({"main": main}, meshes={"m": MESH})
    verify(decided, DECIDED)
    (row,) = communications(decided)
    assert row.times == turns and row.total == turns * 16 * 8 * 4 * 3 / 4
    assert sum(row.total for row in communications(decided)) == received(partition(decided))
    assert row.axes == ("x",)


def test_what_is_fetched_twice_comes_once() -> None:
    """Two shifts by one row share its halo, in every region anew; a shift by two has another."""
    scalar = TensorType((), F32).with_sharding(parse_sharding("<@m, []>"))
    flag = TensorType((), I1).with_sharding(parse_sharding("<@m, []>"))

    def shifted(b: Any, x: Any, rows: int, fill: float) -> Any:
        facts = {"value": Dense.of(np.asarray(fill, np.float32))}
        number = b.append(Op(find("constant"), (), facts, (), (scalar,))).result
        return b(
            "pad", x, number, type=lying(CUT), edge_padding_low=(rows, 0),
            edge_padding_high=(-rows, 0), interior_padding=(0, 0),
        )  # fmt: skip

    def step(b: Any, x: Any) -> Any:
        twice = b("add", shifted(b, x, 1, 0.0), shifted(b, x, 1, 2.0), type=lying(CUT))
        return b("add", twice, shifted(b, x, 2, 0.0), type=lying(CUT))

    def inside(b: Any) -> Any:
        return [step(b, outer[0])]

    outer: list[Any] = []

    def body(b: Any, x: Any) -> Any:
        y = step(b, x)
        outer.append(y)
        yes = b.append(
            Op(find("constant"), (), {"value": Dense.of(np.asarray(True))}, (), (flag,))
        ).result
        branches = (build_region([], inside), build_region([], inside))
        return [step(b, y), b.op("if", [yes], {}, branches, [lying(CUT)]).result]

    main = Function("main", build_region([lying(CUT)], body))
    decided = Module({"main": main}, meshes={"m": MESH})
    verify(decided, DECIDED)
    rows = communications(decided)
    size = 3 / 4 * 8 * 4  # a row comes to all but the first of four
    assert [row.bytes for row in rows] == [size, 2 * size] * 4
    local = partition(decided)
    blocks = [
        [np.random.default_rng(n // 2).integers(-4, 5, (4, 8)).astype(np.float32)]
        for n in range(MESH.devices)
    ]
    ran = interpret_parallel(local, blocks)
    received = sum(sum(counts.values()) for counts in ran.received) / MESH.devices
    assert received == sum(row.bytes for row in rows[:6])  # one branch
    x = np.concatenate([blocks[n][0] for n in range(0, MESH.devices, 2)])

    def whole(x: Any) -> Any:
        one, two = np.zeros_like(x), np.zeros_like(x)
        one[1:], two[2:] = 2 * x[:-1], x[:-2]
        one[0] = 2
        return one + two

    for number, device in enumerate(range(0, MESH.devices, 2)):
        for result in ran.results[device]:
            np.testing.assert_array_equal(result, whole(whole(x))[4 * number : 4 * number + 4])
