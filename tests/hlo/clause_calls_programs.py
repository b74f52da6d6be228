"""Calls that break clauses, of kernels and of operations that communicate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from girih.hlo.build import build_region
from girih.hlo.graph import Region
from girih.hlo.sharding import parse_sharding
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import (
    F32,
    F64,
    I32,
    TOKEN,
    TensorType,
)

from .clause_calls import ADD, Call, S, body, t


def kernel(*memory: TensorType, store: bool = True, give: bool = False) -> Region:
    """The body of a kernel: loads from its first memory, stores to its last."""

    def build(b: Any, *values: Any) -> list[Any]:
        zero = b.constant(0, t(e=I32))
        value = b("tile_load", values[0], zero, sizes=(2,))
        if store:
            b.op("tile_store", [values[-1], value, zero])
        return [value] if give else []

    return build_region(memory, build)


def leaks(b: Any, x: Any, out: Any) -> list[Any]:
    b("add", x, x)
    return []


def loads_a_tile(b: Any, x: Any, out: Any) -> list[Any]:
    zero = b.constant(0, t(e=I32))
    b("tile_load", b.constant(0, t(2)), zero, sizes=(1,))
    return []


LAUNCH = {"entry": "k", "grid": (1, 1, 1), "block": (1, 1, 1), "cluster": (1, 1, 1), "shared": 0}
FAR: dict[str, Any] = {
    "target": "nvidia", "language": "ptx", "code": "", "scratch": 0,
    "launches": ({**LAUNCH, "arguments": ({"slot": 2, "offset": 0},)},),
}  # fmt: skip
NO_CODE: dict[str, Any] = {"kernel": "k", "codes": ()}
SAME = build_region([t(2)], lambda b, x: [x])
CALLS = {
    "foreign_call.C1": Call([t(2)], NO_CODE, [t(2)], lambda: [SAME, SAME]),
    "foreign_call.C2": Call([t(3)], NO_CODE, [t(2)], lambda: [SAME]),
    "foreign_call.C3": Call([t(2)], NO_CODE, [t(2)]),
    "foreign_call.C4": Call([t(2)], {**NO_CODE, "codes": ({"target": "cpu"},)}, [t(2)]),
    "foreign_call.C5": Call([t(2)], {**NO_CODE, "codes": (FAR,)}, [t(2)]),
}


GRID: dict[str, Any] = {"kernel": "k", "grid": (1,)}
PLAIN = kernel(t(2), t(2))
ROW: dict[str, Any] = {"axis": 0, "sizes": (2,)}
N = t(e=I32)
CALLS |= {
    "kernel_call.C1": Call([t(2)], GRID, [t(2)]),
    "kernel_call.C2": Call([t(2)], {**GRID, "grid": (-1,)}, [t(2)], lambda: [PLAIN]),
    "kernel_call.C3": Call([t(2)], GRID, [t(2)], lambda: [kernel(t(2), t(2), give=True)]),
    "kernel_call.C4": Call([t(2)], GRID, [t(2)], lambda: [build_region([t(2), t(2)], leaks)]),
    "kernel_call.C5": Call(
        [t(2)], GRID, [t(2)], lambda: [build_region([t(2), t(2)], loads_a_tile)]
    ),
    "kernel_call.C6": Call([t(2), t(2)], GRID, [], lambda: [kernel(t(2), t(2))]),
    "kernel_call.C7": Call([t(2)], {**GRID, "starts": (1,)}, [t(2)], lambda: [PLAIN]),
    "kernel_call.C8": Call([t(2)], GRID, [t(2)], lambda: [PLAIN, *body(F32)()]),
    "tile_id.C1": Call([], {"axis": -1}),
    "tile_load.C1": Call([t(2), N], {"sizes": (1, 1)}),
    "tile_load.C2": Call([t(2), S], {"sizes": (1,)}),
    "tile_gather.C1": Call([t(2), t(2, e=I32), N, N], ROW),
    "tile_gather.C2": Call([t(2), t(2, e=I32), S], ROW),
    "tile_gather.C3": Call([t(2), t(3, e=I32), N], ROW),
    "tile_store.C1": Call([t(2), t(2)]),
    "tile_store.C2": Call([t(2), t(2), S]),
    "tile_store.C3": Call([t(2), t(1, 2), N]),
    "tile_store.C4": Call([t(2), t(2), N], {"combine": "subtract"}),
    "tile_store.C5": Call([t(2), t(2), N, t(2)], {"masked": True}),
    "tile_scatter.C1": Call([t(2), t(2), t(2, e=I32)], {"axis": 0}),
    "tile_scatter.C2": Call([t(2), t(2), t(2, e=I32), S], {"axis": 0}),
    "tile_scatter.C3": Call([t(2), t(2, e=I32), t(2, e=I32), N], {"axis": 0}),
    "tile_scatter.C4": Call([t(2), t(2), t(2, e=I32), N], {"axis": 0, "combine": "x"}),
    "tile_scatter.C5": Call([t(2), t(2), t(3, e=I32), N], {"axis": 0}),
    "tile_for.C1": Call([S, N, t(2)], {}, None, body(I32, F32)),
    "tile_for.C2": Call([N, N, S], {"step": 0}, None, body(I32, F32)),
    "tile_for.C3": Call([N, N, S], {}, None, body(F32, F32)),
    "tile_for.C4": Call([N, N, S], {}, None, body(I32, F32, gives=2)),
}  # fmt: skip

ONE: dict[str, Any] = {"replica_groups": ((0,),)}
TWICE: dict[str, Any] = {"replica_groups": ((0, 0),)}
HIGH: dict[str, Any] = {"replica_groups": ((0, 5),)}
NEGATIVE: dict[str, Any] = {"replica_groups": ((0, -2),)}
GLOBAL: dict[str, Any] = {**ONE, "use_global_device_ids": True}
RAGGED_GROUPS: dict[str, Any] = {"replica_groups": ((0, 1), (2,))}
GATHER_ALL: dict[str, Any] = {"all_gather_dim": 0}
SCATTERED_SUM: dict[str, Any] = {"scatter_dimension": 0}
EXCHANGE: dict[str, Any] = {"split_dimension": 0, "concat_dimension": 0, "split_count": 1}
ROOT: dict[str, Any] = {"has_dynamic_root": True}


def channel(**facts: Any) -> dict[str, Any]:
    return {"channel_id": 1, **facts}


def pairs(*found: Any) -> dict[str, Any]:
    return {"source_target_pairs": found}


def boxes(*found: Any) -> dict[str, Any]:
    return {"transfers": found}


def one_sine(*types: TensorType, name: str = "sine") -> Callable[[], Sequence[Region]]:
    return lambda: (build_region(types, lambda b, x: [b(name, x)]),)


def blocks(given: TensorType, gives: TensorType) -> Callable[[], Sequence[Region]]:
    return lambda: (build_region([given], lambda b, x: [b.constant(0, gives)]),)


CUT = t(4).with_sharding(parse_sharding('<@mesh, [{"x"}]>'))
MANUAL: dict[str, Any] = {
    "mesh": {"axes": ({"name": "x", "size": 2},)}, "manual_axes": ("x",),
    "in_shardings": ((("x",),),), "out_shardings": ((("x",),),),
}  # fmt: skip
CALLS |= {
    "all_gather.C0": Call([t(2)], {**GATHER_ALL, **RAGGED_GROUPS}, [t(2)]),
    "all_gather.C1": Call([t(2)], {**ONE, "all_gather_dim": 1}, [t(2)]),
    "all_gather.C2": Call([t(2)], {**GATHER_ALL, **TWICE}, [t(2)]),
    "all_gather.C4": Call([t(2)], {**GATHER_ALL, **HIGH}, [t(2)]),
    "all_gather.C5": Call([t(2)], {**GATHER_ALL, **GLOBAL}, [t(2)]),
    "all_gather.C6": Call([t(2)], {**GATHER_ALL, **ONE}, [t(3)]),
    "all_reduce.C0": Call([t(2)], RAGGED_GROUPS, None, ADD),
    "all_reduce.C1": Call([t(2)], TWICE, None, ADD),
    "all_reduce.C2": Call([TOKEN], ONE, None, ADD),
    "all_reduce.C3": Call([t(2)], HIGH, None, ADD),
    "all_reduce.C4": Call([t(2)], GLOBAL, None, ADD),
    "all_reduce.C5": Call([t(2)], ONE, None, body(F32)),
    "all_reduce.C6": Call([t(2)], ONE, [t(3)], ADD),
    "all_reduce.C7": Call([t(2)], ONE, [t(2, e=F64)], ADD),
    "cross-replica-sum.C0": Call([t(2)], RAGGED_GROUPS),
    "cross-replica-sum.C1": Call([t(2)], TWICE),
    "cross-replica-sum.C2": Call([TOKEN], ONE),
    "cross-replica-sum.C3": Call([t(2)], HIGH),
    "reduce_scatter.C0": Call([t(2)], {**SCATTERED_SUM, **RAGGED_GROUPS}, [t(2)], ADD),
    "reduce_scatter.C1": Call(
        [t(3)], {**SCATTERED_SUM, "replica_groups": ((0, 1),)}, [t(1)], ADD
    ),
    "reduce_scatter.C2": Call([t(2)], {**ONE, "scatter_dimension": 1}, [t(2)], ADD),
    "reduce_scatter.C3": Call([t(2)], {**SCATTERED_SUM, **TWICE}, [t(2)], ADD),
    "reduce_scatter.C5": Call([t(2)], {**SCATTERED_SUM, **HIGH}, [t(2)], ADD),
    "reduce_scatter.C6": Call([t(2)], {**SCATTERED_SUM, **GLOBAL}, [t(2)], ADD),
    "reduce_scatter.C7": Call([t(2)], {**SCATTERED_SUM, **ONE}, [t(2)], body(F32)),
    "reduce_scatter.C8": Call([t(4)], {**SCATTERED_SUM, **ONE}, [t(3)], ADD),
    "reduce_scatter.C9": Call([t(2)], {**SCATTERED_SUM, **ONE}, [t(2, e=F64)], ADD),
    "all_to_all.C0": Call([t(2)], {**EXCHANGE, **RAGGED_GROUPS}),
    "all_to_all.C1": Call([t(2)], {**EXCHANGE, **ONE, "split_dimension": 1}),
    "all_to_all.C2": Call([t(3)], {**EXCHANGE, **ONE, "split_count": 2}),
    "all_to_all.C3": Call([t(2)], {**EXCHANGE, **ONE, "concat_dimension": 1}),
    "all_to_all.C4": Call([t(2)], {**EXCHANGE, **ONE, "split_count": 0}),
    "all_to_all.C5": Call([t(2)], {**EXCHANGE, **TWICE}),
    "all_to_all.C7": Call([t(2)], {**EXCHANGE, **HIGH}),
    "all_to_all.C8": Call([t(2)], {**EXCHANGE, **ONE, "split_count": 2}),
    "collective_broadcast.C0": Call([t(2)], RAGGED_GROUPS),
    "collective_broadcast.C1": Call([t(2)], TWICE),
    "collective_broadcast.C2": Call([t(2)], NEGATIVE),
    "collective_broadcast.C3": Call([t(1, e=I32)], {**ONE, **ROOT}),
    "collective_broadcast.C4": Call([t(2), t(2, e=I32)], {**ONE, **ROOT}),
    "collective_reduce.C0": Call([t(2)], RAGGED_GROUPS, None, ADD),
    "collective_reduce.C1": Call([t(2)], TWICE, None, ADD),
    "collective_reduce.C2": Call([t(2)], NEGATIVE, None, ADD),
    "collective_reduce.C3": Call([t(1, e=I32)], {**ONE, **ROOT}, None, ADD),
    "collective_reduce.C4": Call([t(2)], ONE, None, body(F32)),
    "exchange.C1": Call([t(SymbolicDim("n"))], boxes(), [t(2)]),
    "exchange.C2": Call([t(2)], boxes((0, 0, (0,), (0, 0), (1,))), [t(2)]),
    "exchange.C3": Call([t(2)], boxes((0, 0, (1,), (0,), (2,))), [t(2)]),
    "exchange.C4": Call([t(2)], boxes(), [t(2, 2)]),
    "exchange.C5": Call([t(3)], boxes((0, 0, (0,), (1,), (2,))), [t(2)]),
    "exchange.C6": Call([t(3)], boxes((0, 0, (0,), (0,), (2,)), (1, 0, (0,), (1,), (1,))), [t(2)]),
    "collective_permute.C1": Call([t(2)], pairs((0, 1, 2))),
    "collective_permute.C2": Call([t(2)], pairs((0, 1), (0, 2))),
    "collective_permute.C3": Call([t(2)], pairs((0, 1), (2, 1))),
    "collective_permute.C4": Call([t(2)], pairs((0, -1))),
    "collective_permute.C5": Call([TOKEN], pairs()),
    "send.C0": Call([TOKEN, t(2)], channel()),
    "send.C1": Call([t(2), TOKEN], channel(**pairs((0, 1, 2)))),
    "send.C2": Call([t(2), TOKEN], channel(**pairs((0, 1), (0, 2)))),
    "send.C3": Call([t(2), TOKEN], channel(**pairs((0, 1), (2, 1)))),
    "send.C4": Call([t(2), TOKEN], channel(**pairs((0, -1)))),
    "send.C5": Call([t(2), TOKEN], channel(is_host_transfer=True)),
    "recv.C0": Call([t(2)], channel(), [t(2), TOKEN]),
    "recv.C1": Call([TOKEN], channel(**pairs((0, 1, 2))), [t(2), TOKEN]),
    "recv.C2": Call([TOKEN], channel(**pairs((0, 1), (0, 2))), [t(2), TOKEN]),
    "recv.C3": Call([TOKEN], channel(**pairs((0, 1), (2, 1))), [t(2), TOKEN]),
    "recv.C4": Call([TOKEN], channel(**pairs((0, -1))), [t(2), TOKEN]),
    "recv.C5": Call([TOKEN], channel(is_host_transfer=True), [t(2), TOKEN]),
    "recv.C6": Call([TOKEN], channel(), [TOKEN, t(2)]),
    "infeed.C0": Call([t(2)], {}, [t(2), TOKEN]),
    "infeed.C1": Call([TOKEN], {}, [t(2)]),
    "outfeed.C0": Call([t(2), t(2)]),
    "async_start.C1": Call([t(2)], {}, None, body(F32)),
    "async_start.C2": Call([t(2)], {}, None, one_sine(t(2))),
    "async_start.C3": Call(
        [t(2)], {}, None,
        lambda: [build_region([t(3)], lambda b, x: [b("collective_permute", x, **pairs())])],
    ),
    "async_done.C1": Call([t(2)]),
    "sdy.manual_computation.C0": Call(
        [t(4)], {**MANUAL, "manual_axes": ("y",)}, [t(4)], one_sine(t(2))
    ),
    "sdy.manual_computation.C1": Call([t(4)], MANUAL, [t(4)], blocks(t(4), t(2))),
    "sdy.manual_computation.C3": Call(
        [t(4)], {**MANUAL, "out_shardings": ()}, [], one_sine(t(2))
    ),
    "sdy.manual_computation.C2": Call([t(4)], MANUAL, [t(4)], blocks(t(2), t(4))),
    "sdy.manual_computation.C4": Call(
        [t(4)], {**MANUAL, "shardings": ("", '<@m, [{}]>')}, [t(4)], one_sine(t(2))
    ),
    "sharding_constraint.C0": Call([TOKEN], {}, [CUT]),
    "sharding_constraint.C1": Call([t(3)], {}, [CUT]),
    "sharding_constraint.C2": Call([t(4)], {}, [t(4)]),
    "sharding_constraint.C3": Call([t(4)], {"stated": "aloud"}, [CUT]),
    "sharding_group.C0": Call([TOKEN], {"group_id": 0}),
    "sharding_group.C1": Call([t(4)], {"group_id": -1}),
    "propagation_barrier.C0": Call([TOKEN], {"allowed_direction": "NONE"}),
    "propagation_barrier.C1": Call([t(4)], {"allowed_direction": "UP"}),
}  # fmt: skip
