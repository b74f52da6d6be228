"""Loads, stores and atomics at run time: addresses of many threads -> elements of arrays.

An access resolves to pieces `(elements, index, selection)`: a flat array, positions in it, and the
threads that they belong to (None: all). Usually there is one piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .memory import (
    DTYPES,
    GLOBAL_BASE,
    LOCAL_BASE,
    PARAMETER_BASE,
    SHARED_BASE,
)

if TYPE_CHECKING:
    from .engine import Batch

Piece = tuple[np.ndarray, Any, Any]
SHIFTS = {1: 0, 2: 1, 4: 2, 8: 3}


def _range(address: Any) -> tuple[int, int]:
    if address.ndim:
        return int(address.min()), int(address.max())
    value = int(address)
    return value, value


def _aligned(S: Batch, A: Any, n: int, index: Any, size: int, space: str) -> None:
    if size == 1:
        return
    bits = int(np.bitwise_or.reduce(index)) if index.ndim else int(index)
    if bits & (size - 1):
        wrong = np.nonzero(np.atleast_1d(index) & (size - 1))[0]
        S.fault(
            "alignment",
            f"{space} access of {size} bytes at {int(np.atleast_1d(index)[wrong[0]]):#x}",
            n,
            S.threads(A)[wrong] if index.ndim else None,
        )


def resolve_global(
    S: Batch, A: Any, n: int, address: Any, offset: int, kind: str, size: int
) -> list[Piece]:
    low, high = _range(address)
    low += offset
    high += offset
    segment = S.segment
    if not (segment.low <= low and high + size <= segment.end):
        found = S.memory.find(low)
        if found is None or high + size > found.end:
            return _scattered(S, A, n, np.atleast_1d(address) + offset, kind, size)
        segment = S.segment = found
    index = address - (segment.base - offset)
    _aligned(S, A, n, index, size, "global")
    if S.counting:
        S.counting.sectors(S, A, n, index, size)
    width = DTYPES[kind].itemsize
    return [(segment.view(kind), index >> SHIFTS[width] if width > 1 else index, None)]


def _scattered(S: Batch, A: Any, n: int, address: np.ndarray, kind: str, size: int) -> list[Piece]:
    """Addresses in several allocations, or outside of all."""
    pieces: list[Piece] = []
    rest = np.arange(address.size)
    width = DTYPES[kind].itemsize
    while rest.size:
        first = int(address[rest[0]])
        segment = S.memory.find(first)
        if segment is None or first + size > segment.end:
            where = S.memory.place(first) if segment is None else S.memory.over(segment)
            threads = S.threads(A)
            S.fault(
                "bounds",
                f"global access of {size} bytes at {first:#x}, {where}",
                n,
                threads[rest[:1]] if address.size == threads.size else None,
            )
            return []
        here = (address[rest] >= segment.low) & (address[rest] + size <= segment.end)
        chosen = rest[here]
        index = address[chosen] - segment.base
        _aligned(S, A, n, index, size, "global")
        pieces.append((segment.view(kind), index // width, chosen))
        rest = rest[~here]
    return pieces


def resolve_shared(
    S: Batch, A: Any, n: int, address: Any, offset: int, kind: str, size: int
) -> list[Piece]:
    index = address + offset if offset else address
    low, high = _range(index)
    if low >= 0 and high + size <= S.shared_bytes:
        _aligned(S, A, n, index, size, "shared")
        if S.counting:
            S.counting.banks(S, A, n, index, size)
        if S.cta_count > 1:
            index = index + (S.shared_base if A is None else S.shared_base[A])
    else:
        index = np.broadcast_to(index, S.size(A))
        cta, local = S.locate_shared(S.threads(A), index)
        wrong = np.nonzero((local < 0) | (local + size > S.shared_bytes))[0]
        if wrong.size:
            at, has = int(index[wrong[0]]), f"the block has {S.shared_bytes} bytes"
            threads = S.threads(A)[wrong[:1]]
            S.fault("bounds", f"shared access of {size} bytes at {at}, {has}", n, threads)
        _aligned(S, A, n, local, size, "shared")
        index = cta * S.shared_stride + local
    width = DTYPES[kind].itemsize
    return [(S.shared_view(kind), index >> SHIFTS[width] if width > 1 else index, None)]


def resolve_local(
    S: Batch, A: Any, n: int, address: Any, offset: int, kind: str, size: int
) -> list[Piece]:
    low, high = _range(address)
    if low + offset < 0 or high + offset + size > S.local_bytes:
        S.fault(
            "bounds",
            f"local access of {size} bytes at {low + offset}, a thread has {S.local_bytes} bytes",
            n,
        )
    index = address + offset
    _aligned(S, A, n, index, size, "local")
    base = S.local_base()
    index = index + (base if A is None else base[A])
    width = DTYPES[kind].itemsize
    return [(S.local_view(kind), index >> SHIFTS[width] if width > 1 else index, None)]


def resolve_param(
    S: Batch, A: Any, n: int, address: Any, offset: int, kind: str, size: int
) -> list[Piece]:
    low, high = _range(address)
    if low + offset < 0 or high + offset + size > S.parameters.nbytes:
        S.fault("bounds", f"access to parameters at {low + offset}", n)
    index = address + offset
    _aligned(S, A, n, index, size, "parameter")
    width = DTYPES[kind].itemsize
    return [(S.parameters.view(kind), index // width, None)]


_WINDOWS = (
    (GLOBAL_BASE, SHARED_BASE, resolve_global, 0),
    (SHARED_BASE, LOCAL_BASE, resolve_shared, SHARED_BASE),
    (LOCAL_BASE, PARAMETER_BASE, resolve_local, LOCAL_BASE),
    (PARAMETER_BASE, 1 << 47, resolve_param, PARAMETER_BASE),
)


def resolve_generic(
    S: Batch, A: Any, n: int, address: Any, offset: int, kind: str, size: int
) -> list[Piece]:
    low, high = _range(address)
    low += offset
    high += offset
    for start, end, resolve, base in _WINDOWS:
        if start <= low and high < end:
            return resolve(S, A, n, address, offset - base, kind, size)
    address = np.broadcast_to(address, S.size(A)) + offset
    threads, pieces = S.threads(A), []
    known = np.zeros(address.size, bool)
    for start, end, resolve, base in _WINDOWS:
        chosen = np.nonzero((address >= start) & (address < end))[0]
        if chosen.size:
            known[chosen] = True
            for elements, index, part in resolve(
                S, threads[chosen], n, address[chosen], -base, kind, size
            ):
                pieces.append((elements, index, chosen if part is None else chosen[part]))
    if not known.all():
        wrong = int(np.nonzero(~known)[0][0])
        S.fault("bounds", f"access at {int(address[wrong]):#x}", n, threads[[wrong]])
    return pieces


RESOLVE = {
    "global": resolve_global,
    "const": resolve_global,
    "shared": resolve_shared,
    "local": resolve_local,
    "param": resolve_param,
    "": resolve_generic,
}


def _read(
    S: Batch, A: Any, n: int, space: str, address: Any, offset: int, kind: str, size: int
) -> list[Piece]:
    """Where a load reads, told to all who watch."""
    pieces = RESOLVE[space](S, A, n, address, offset, kind, size)
    if S.blocks and space in ("global", ""):
        S.blocks.loaded(S, A, n, pieces, size)
    if space in ("shared", ""):
        if S.races:
            S.races.read(S, A, n, pieces, size)
        if S.on_shared_load:
            S.tell(S.on_shared_load, A, pieces, size, n)
    return pieces


def load(
    S: Batch, A: Any, n: int, space: str, address: Any, offset: int, kind: str, size: int
) -> Any:
    """One element of `kind` per thread. A uniform address gives a scalar."""
    pieces = _read(S, A, n, space, address, offset, kind, size)
    if len(pieces) == 1 and pieces[0][2] is None:
        return pieces[0][0].take(pieces[0][1])
    result = np.zeros(S.size(A), DTYPES[kind])
    for elements, index, chosen in pieces:
        result[slice(None) if chosen is None else chosen] = elements.take(index)
    return result


def strong_load(
    S: Batch, A: Any, n: int, space: str, address: Any, offset: int, kind: str, size: int
) -> Any:
    """`load` where blocks may look at each other."""
    if S.communication is None or space not in ("global", ""):
        return load(S, A, n, space, address, offset, kind, size)
    pieces = RESOLVE[space](S, A, n, address, offset, kind, size)
    return S.communication.load(A, n, pieces, size)


def load_vector(
    S: Batch,
    A: Any,
    n: int,
    space: str,
    address: Any,
    offset: int,
    kind: str,
    size: int,
    count: int,
) -> list[Any]:
    """`count` neighbouring elements per thread; `size` bytes in all."""
    pieces = _read(S, A, n, space, address, offset, kind, size)
    if len(pieces) == 1 and pieces[0][2] is None:
        elements, index, _ = pieces[0]
        return [elements.take(index + j) for j in range(count)]
    results = [np.zeros(S.size(A), DTYPES[kind]) for _ in range(count)]
    for elements, index, chosen in pieces:
        for j, result in enumerate(results):
            result[slice(None) if chosen is None else chosen] = elements.take(index + j)
    return results


def store(
    S: Batch,
    A: Any,
    n: int,
    space: str,
    address: Any,
    offset: int,
    kind: str,
    size: int,
    values: list[Any],
) -> None:
    pieces = RESOLVE[space](S, A, n, address, offset, kind, size)
    if S.blocks and space in ("global", ""):
        S.blocks.stored(S, A, n, pieces, size, values)
    if space in ("shared", ""):
        if S.races:
            S.races.write(S, A, n, pieces, size, values)
        if S.on_shared_store:
            S.tell(S.on_shared_store, A, pieces, size, n)
    for elements, index, chosen in pieces:
        for j, value in enumerate(values):
            if chosen is not None and value.ndim:
                value = value[chosen]
            elif value.ndim and not index.ndim:
                value = value[-1]
            elements[index + j if j else index] = value


def strong_store(
    S: Batch, A: Any, n: int, space: str, address: Any, offset: int, kind: str, size: int,
    values: list[Any],
) -> None:  # fmt: skip
    """`store` of one element where blocks may look at each other."""
    if S.communication is None or space not in ("global", ""):
        store(S, A, n, space, address, offset, kind, size, values)
        return
    pieces = RESOLVE[space](S, A, n, address, offset, kind, size)
    S.communication.store(A, n, pieces, size, values[0])


def fence(S: Batch, A: Any, n: int) -> None:
    if S.communication is not None:
        S.communication.fence(A, n)


def atomic(
    S: Batch,
    A: Any,
    n: int,
    space: str,
    address: Any,
    offset: int,
    kind: str,
    size: int,
    function: Any,
    values: list[Any],
    wanted: bool,
) -> Any:
    """`element = function(element, *values)`, thread after thread; gives the elements before.

    Threads go in the order of their numbers, or of the seed.
    """
    count = S.size(A)
    pieces = RESOLVE[space](S, A, n, address, offset, kind, size)
    if S.on_shared_store and space in ("shared", ""):
        S.tell(S.on_shared_store, A, pieces, size, n)
    if S.races and space in ("shared", ""):
        S.races.update(A, pieces, size)
    result = np.zeros(count, DTYPES[kind])
    for elements, index, chosen in pieces:
        members = np.arange(count) if chosen is None else chosen
        if S.communication is not None:
            piece = elements, index, chosen
            before = S.communication.atomic(A, n, piece, size, function, values)
            if before is not None:
                result[members] = before
                continue
        if S.seed:
            shuffled = S.random.permutation(members.size)
            members = members[shuffled]
            index = index[shuffled] if index.ndim else index
        index = np.broadcast_to(index, members.size)
        operands = [v[members] if v.ndim else np.broadcast_to(v, members.size) for v in values]
        result[members] = _in_turn(elements, index, function, operands, wanted)
    return result


def _in_turn(
    elements: np.ndarray, index: np.ndarray, function: Any, values: list[Any], wanted: bool
) -> np.ndarray:
    before = np.zeros(index.size, elements.dtype)
    plain = isinstance(function, np.ufunc)
    if plain and not wanted:
        function.at(elements, index, values[0])
        return before
    order = np.argsort(index, kind="stable")
    placed = index[order]
    fresh = np.ones(order.size, bool)
    fresh[1:] = placed[1:] != placed[:-1]
    starts = np.nonzero(fresh)[0]
    lengths = np.diff(np.append(starts, order.size))
    if plain and lengths.max() > 4 * starts.size:
        for start, length in zip(starts, lengths, strict=True):
            members = order[start : start + length]
            spot = index[members[0]]
            steps = function.accumulate(
                np.concatenate((elements[spot : spot + 1], values[0][members])),
                dtype=elements.dtype,
            )
            before[members] = steps[:-1]
            elements[spot] = steps[-1]
        return before
    turn = np.arange(order.size) - np.repeat(starts, lengths)
    order = order[np.argsort(turn, kind="stable")]
    ends = np.cumsum(np.bincount(turn))
    for members in np.split(order, ends[:-1]):
        spots = index[members]
        before[members] = elements[spots]
        elements[spots] = function(before[members], *(v[members] for v in values))
    return before
