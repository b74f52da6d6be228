"""Instructions that the threads of a warp execute together: shuffles, votes, reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .syntax import Instruction, Operand, Pair, Sink
from .table import effect
from .translate import Emitter, kind_of

_LANES = np.arange(32)
_BITS = np.uint64(1) << _LANES.astype(np.uint64)


def by_warp(S: Any, A: Any, value: Any, fill: Any = 0) -> np.ndarray:
    """`value` of the active threads as (warps, 32); `fill` for the others."""
    value = np.asarray(value)
    if A is None:
        return np.broadcast_to(value, S.T).reshape(-1, 32)
    full = np.full(S.T, fill, value.dtype)
    full[A] = value
    return full.reshape(-1, 32)


def per_thread(S: Any, A: Any, value: Any) -> np.ndarray:
    """(warps, 32) or (warps, 1) -> one element per active thread."""
    full = np.broadcast_to(value, (S.T // 32, 32)).reshape(-1)
    return full.copy() if A is None else full[A]


def active(S: Any, A: Any) -> np.ndarray:
    return by_warp(S, A, np.bool_(True), False)


def members(S: Any, A: Any, number: int, mask: Any) -> np.ndarray:
    """(warps, 32, 32): may thread j count for thread i: both active, j named by i's mask.

    A live thread that is named but executes something else is a fault.
    """
    here = active(S, A)
    masks = by_warp(S, A, mask).astype(np.uint64)
    named = (masks[:, :, None] & _BITS) != 0
    away = S.live.reshape(-1, 32) & ~here
    if away.any() and (named & away[:, None, :] & here[:, :, None]).any():
        wrong = np.nonzero((named & away[:, None, :] & here[:, :, None]).any((1, 2)))[0]
        S.fault(
            "divergent",
            "the mask names threads of the warp that are not here",
            number,
            wrong[:1] * 32,
        )
    return named & here[:, None, :] & here[:, :, None]


# ---------------------------------------------------------------- shuffles


def source_lane(mode: str, lane: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """The lane that is read, and whether it lies in the segment."""
    b, clamp, segment = b & 31, c & 31, (c >> 8) & 31
    most = (lane & segment) | (clamp & ~segment)
    if mode == "up":
        wanted = lane - b
        inside = wanted >= most
    elif mode == "down":
        wanted = lane + b
        inside = wanted <= most
    elif mode == "bfly":
        wanted = lane ^ b
        inside = wanted <= most
    else:
        wanted = (lane & segment) | (b & ~segment)
        inside = wanted <= most
    return np.where(inside, wanted, lane), inside


def shuffle(S: Any, A: Any, number: int, mode: str, value: Any, b: Any, c: Any, mask: Any) -> Any:
    """Values and predicates."""
    threads = S.threads(A)
    lanes = threads & 31
    b, c = np.asarray(b).astype(np.int64), np.asarray(c).astype(np.int64)
    source, inside = source_lane(mode, lanes, b, c)
    if A is None:
        value = np.broadcast_to(value, S.T)
        return value[(threads & ~31) + source], inside
    here = np.zeros(S.T, bool)
    here[A] = True
    wanted = (threads & ~31) + source
    missing = ~here[wanted]
    if missing.any():
        reader = int(threads[missing][0])
        S.fault(
            "shuffle",
            f"lane {reader & 31} reads lane {int(source[missing][0])}, which is not here",
            number,
            [reader],
        )
    masks = np.broadcast_to(mask, threads.size).astype(np.int64)
    unnamed = ((masks >> lanes) & 1) == 0
    if unnamed.any():
        S.fault("shuffle", "a thread that its own mask does not name", number, threads[unnamed])
    full = np.zeros(S.T, np.asarray(value).dtype)
    full[A] = value
    return full[wanted], inside


@effect("shfl", cooperative=True)
def shfl(e: Emitter, i: Instruction) -> None:
    assert e.node is not None
    d, a, b, c = i.operands[:4]
    if i.parts[1] == "sync":
        mode, mask = i.parts[2], e.use(i.operands[4], "u4")
    else:
        mode, mask = i.parts[1], e.constant("u4", -1)
    first, second = (d.first, d.second) if isinstance(d, Pair) else (d, None)
    kind = "u4"
    own = getattr(a, "number", None)
    if own is not None:
        kind = e.program.kinds[own]
    result = e.fresh()
    e.line(
        f"{result} = {e.helper(shuffle)}(S, A, {e.node.number}, {mode!r}, {e.use(a, kind)}, "
        f"{e.use(b, 'u4')}, {e.use(c, 'u4')}, {mask})"
    )
    e.define(first, kind, f"{result}[0]")
    if second is not None:
        e.define(second, "b1", f"{result}[1]")


# ---------------------------------------------------------------- votes


def vote(S: Any, A: Any, number: int, mode: str, value: Any, mask: Any) -> Any:
    together = members(S, A, number, mask)
    truth = by_warp(S, A, value, False)[:, None, :]
    if mode == "all":
        result = (truth | ~together).all(2)
    elif mode == "any":
        result = (truth & together).any(2)
    elif mode == "uni":
        result = (truth | ~together).all(2) | (~truth | ~together).all(2)
    else:
        result = ((truth & together) * _BITS).sum(2, dtype=np.uint64).astype(np.uint32)
    return per_thread(S, A, result)


@effect("vote", cooperative=True)
def vote_(e: Emitter, i: Instruction) -> None:
    assert e.node is not None
    d, a = i.operands[:2]
    if i.parts[1] != "sync":
        raise e.error(i, "votes without .sync are not simulated")
    mode = i.parts[2]
    call = (
        f"{e.helper(vote)}(S, A, {e.node.number}, {mode!r}, {e.use(a, 'b1')}, "
        f"{e.use(i.operands[2], 'u4')})"
    )
    e.define(d, "u4" if mode == "ballot" else "b1", call)


def mask_of_active(S: Any, A: Any) -> Any:
    bits = (active(S, A) * _BITS).sum(1, dtype=np.uint64).astype(np.uint32)
    return per_thread(S, A, bits[:, None])


@effect("activemask", cooperative=True)
def activemask(e: Emitter, i: Instruction) -> None:
    e.define(i.operands[0], "u4", f"{e.helper(mask_of_active)}(S, A)")


def match(S: Any, A: Any, number: int, every: bool, value: Any, mask: Any) -> tuple[Any, Any]:
    together = members(S, A, number, mask)
    values = by_warp(S, A, value)
    equal = (values[:, :, None] == values[:, None, :]) & together
    if not every:
        bits = (equal * _BITS).sum(2, dtype=np.uint64).astype(np.uint32)
        return per_thread(S, A, bits), np.bool_(True)
    same = (equal | ~together).all(2)
    bits = (together * _BITS).sum(2, dtype=np.uint64).astype(np.uint32)
    return per_thread(S, A, np.where(same, bits, np.uint32(0))), per_thread(S, A, same)


@effect("match", cooperative=True)
def match_(e: Emitter, i: Instruction) -> None:
    assert e.node is not None
    d, a, mask = i.operands
    every = i.parts[1] == "all"
    result = e.fresh()
    e.line(
        f"{result} = {e.helper(match)}(S, A, {e.node.number}, {every}, "
        f"{e.use(a, kind_of(i.parts[-1]))}, {e.use(mask, 'u4')})"
    )
    first, second = (d.first, d.second) if isinstance(d, Pair) else (d, None)
    e.define(first, "u4", f"{result}[0]")
    if second is not None:
        e.define(second, "b1", f"{result}[1]")


_REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _neutral(name: str, dtype: np.dtype[Any]) -> Any:
    if name in ("add", "or", "xor"):
        return dtype.type(0)
    if name == "and":
        return ~dtype.type(0)
    if dtype.kind == "f":
        return dtype.type(np.inf if name == "min" else -np.inf)
    bounds = np.iinfo(dtype)
    return dtype.type(bounds.max if name == "min" else bounds.min)


def reduce_warp(S: Any, A: Any, number: int, flags: tuple[str, ...], value: Any, mask: Any) -> Any:
    together = members(S, A, number, mask)
    value = np.asarray(value)
    name = next(f for f in flags if f in _REDUCTIONS)
    neutral = _neutral(name, value.dtype)
    values = by_warp(S, A, np.abs(value) if "abs" in flags else value, neutral)[:, None, :]
    chosen = np.where(together, values, neutral)
    if value.dtype.kind == "f":
        nan = together & np.isnan(values)
        chosen = np.where(nan, neutral, chosen)
        result = _REDUCTIONS[name].reduce(chosen, 2)
        every = (nan | ~together).all(2)
        bad = nan.any(2) if "NaN" in flags else every
        result = np.where(bad, value.dtype.type(np.nan), result)
    else:
        result = _REDUCTIONS[name].reduce(chosen, 2)
    return per_thread(S, A, result.astype(value.dtype))


@effect("redux", cooperative=True)
def redux(e: Emitter, i: Instruction) -> None:
    assert e.node is not None
    d, a, mask = i.operands
    kind = kind_of(i.parts[-1])
    flags = tuple(p for p in i.parts[2:-1])
    call = (
        f"{e.helper(reduce_warp)}(S, A, {e.node.number}, {flags!r}, {e.use(a, kind)}, "
        f"{e.use(mask, 'u4')})"
    )
    e.define(d, kind, call)


def elect(S: Any, A: Any, number: int, mask: Any) -> tuple[Any, Any]:
    together = members(S, A, number, mask)
    leader = together.argmax(2).astype(np.uint32)
    return per_thread(S, A, leader), per_thread(S, A, leader == _LANES)


@effect("elect", cooperative=True)
def elect_(e: Emitter, i: Instruction) -> None:
    assert e.node is not None
    d, mask = i.operands
    result = e.fresh()
    e.line(f"{result} = {e.helper(elect)}(S, A, {e.node.number}, {e.use(mask, 'u4')})")
    targets: tuple[Operand, ...] = (d.first, d.second) if isinstance(d, Pair) else (d,)
    for position, (target, kind) in enumerate(zip(targets, ("u4", "b1"), strict=False)):
        if not isinstance(target, Sink):
            e.define(target, kind, f"{result}[{position}]")


def synchronise(S: Any, A: Any, number: int, mask: Any) -> None:
    members(S, A, number, mask)
    if S.races:
        S.races.warps_met(np.unique(S.threads(A) >> 5))
    if S.communication is not None:
        S.communication.knowledge.warps_met(np.unique(S.threads(A) >> 5))
    traffic = S.data.get("traffic")
    if traffic is not None:
        traffic.meet_in_warp(S.threads(A))


@effect("bar.warp.sync", results=0, cooperative=True)
def warp_barrier(e: Emitter, i: Instruction) -> None:
    assert e.node is not None
    mask = e.use(i.operands[0], "u4")
    e.line(f"{e.helper(synchronise)}(S, A, {e.node.number}, {mask})")
