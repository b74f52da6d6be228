"""What one process sends, receives and copies in an exchange step of a plan."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from ...specs.generated import plan_pb2
from ..devices.limits import malformed
from .world import World

Array = np.ndarray[Any, Any]
Window = tuple[slice, ...]


class Box(NamedTuple):
    """A part of the operand, and one of the same shape of the result; not both of them are this
    process's where another one sends or receives."""

    source: Window
    target: Window


class Exchange:
    """One step of a plan, as process number `rank` takes part in it."""

    def __init__(self, plan: plan_pb2.Plan, step: plan_pb2.Exchange, rank: int) -> None:
        width, dims = step.element_bytes, tuple(step.result_dims)
        self.operand = _layout(plan, step.operand, tuple(step.operand_dims), width)
        self.result = _layout(plan, step.result, dims, width)
        self.own: list[Box] = []
        self.outgoing: dict[int, list[Box]] = {}
        self.incoming: dict[int, list[Box]] = {}
        covered = 0
        for transfer in step.transfers:
            if rank not in (transfer.source, transfer.target):
                continue
            if max(transfer.source, transfer.target) >= plan.processes:
                raise malformed("an exchange names a process that there is not")
            sizes = tuple(transfer.sizes)
            box = Box(
                _window(transfer.source_start, sizes, step.operand_dims),
                _window(transfer.target_start, sizes, dims),
            )
            if transfer.target == rank:
                covered += math.prod(sizes)
            if transfer.source == transfer.target:
                self.own.append(box)
            elif transfer.source == rank:
                self.outgoing.setdefault(transfer.target, []).append(box)
            else:
                self.incoming.setdefault(transfer.source, []).append(box)
        self.covers = covered == math.prod(dims)  # boxes of a result are disjoint
        origin = step.origin
        self.operation = step.part_of or "exchange"
        self.place = f"{origin.file}:{origin.line}: " if origin.file else ""

    def run(
        self, world: World, operand: int, result: int, received: Counter[str], seconds: float
    ) -> None:
        """The step on the memory at these addresses; counts what other processes send, for which
        it waits so many seconds at most."""
        given, made = _array(operand, *self.operand), _array(result, *self.result)
        if not self.covers:
            made[...] = np.zeros((), made.dtype)
        for box in self.own:
            made[box.target] = given[box.source]
        if not self.outgoing and not self.incoming:
            return
        outgoing = [
            (peer, _packed([given[box.source] for box in boxes]))
            for peer, boxes in self.outgoing.items()
        ]
        arriving: list[tuple[int, Array]] = []
        unpack: list[tuple[Array, list[Array]]] = []
        for peer, boxes in self.incoming.items():
            views = [made[box.target] for box in boxes]
            if len(views) == 1 and views[0].flags.c_contiguous:  # straight to where it belongs
                arriving.append((peer, views[0]))
                continue
            message = np.empty(sum(view.size for view in views), made.dtype)
            arriving.append((peer, message))
            unpack.append((message, views))
        with world.lock:
            world.exchange(outgoing, arriving, f"{self.place}{self.operation}", seconds)
            received[self.operation] += sum(message.nbytes for _, message in arriving)
        for message, views in unpack:
            begin = 0
            for view in views:
                view[...] = message[begin : begin + view.size].reshape(view.shape)
                begin += view.size


def _packed(views: list[Array]) -> Array:
    if len(views) == 1:
        return np.ascontiguousarray(views[0])
    return np.concatenate([view.reshape(-1) for view in views])


# As wide as elements are: bits are moved, not numbers.
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


def _layout(
    plan: plan_pb2.Plan, argument: plan_pb2.Argument, dims: tuple[int, ...], width: int
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The dims and the type of a tensor in a buffer."""
    if width not in _WORDS:
        raise malformed(f"an exchange has elements of {width} bytes")
    if argument.offset + math.prod(dims) * width > plan.buffers[argument.buffer].bytes:
        raise malformed("a tensor of an exchange lies outside its buffer")
    return dims, np.dtype(_WORDS[width])


def _array(address: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    count = math.prod(dims) * dtype.itemsize
    memory = (ctypes.c_char * count).from_address(address)
    return np.frombuffer(memoryview(memory), dtype).reshape(dims)


def _window(starts: Any, sizes: tuple[int, ...], dims: Any) -> Window:
    if not len(starts) == len(sizes) == len(dims):
        raise malformed("a box of an exchange has another rank than its tensor")
    if any(s + n > d for s, n, d in zip(starts, sizes, dims, strict=True)):
        raise malformed("a box of an exchange lies outside its tensor")
    return tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))
