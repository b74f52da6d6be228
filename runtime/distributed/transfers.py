"""What one process sends, receives and copies in an exchange step of a plan."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from ...specs.generated import plan_pb2
from ..devices.limits import malformed
from .world import Message, World

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

        packed = sum(map(_size, filter(self._is_packed, self.outgoing.values())))
        unpacked = sum(map(_size, filter(self._is_unpacked, self.incoming.values())))
        self.scratch = (packed + unpacked) * width  # bytes of messages that are not in one piece
        self._known: dict[tuple[int, int, int], _Messages] = {}

    def run(
        self,
        world: World,
        operand: int,
        result: int,
        scratch: int,
        received: Counter[str],
        seconds: float,
        tag: int,
    ) -> None:
        """The step on the memory at these addresses; counts what other processes send, for which
        it waits so many seconds at most. At `scratch` there are self.scratch bytes that keep
        nothing. `tag`: of the plan's messages."""
        key = operand, result, scratch
        if (known := self._known.get(key)) is None:
            if len(self._known) == _KNOWN:
                self._known.pop(next(iter(self._known)))
            known = self._known[key] = self._messages(operand, result, scratch)
        for target, source in known.before:
            target[...] = source
        if known.outgoing or known.incoming:
            what = f"{self.place}{self.operation}"
            with world.lock:
                world.exchange(known.outgoing, known.incoming, what, seconds, tag)
                received[self.operation] += known.received
            for target, source in known.after:
                target[...] = source

    def _messages(self, operand: int, result: int, scratch: int) -> _Messages:
        """Who sends and copies what where the step's memory is at these addresses."""
        given, made = array_at(operand, *self.operand), array_at(result, *self.result)
        before = [(made[box.target], given[box.source]) for box in self.own]
        if not self.covers:
            before.insert(0, (made, np.zeros((), made.dtype)))
        after: list[tuple[Array, Array]] = []
        outgoing: list[Message] = []
        incoming: list[Message] = []
        for peer, boxes in self.outgoing.items():
            message = given[boxes[0].source]
            if self._is_packed(boxes):
                parts, message = _parts(scratch, boxes, given.dtype)
                scratch += message.nbytes
                before += [(p, given[box.source]) for p, box in zip(parts, boxes, strict=True)]
            outgoing.append((peer, message))
        for peer, boxes in self.incoming.items():
            message = made[boxes[0].target]
            if self._is_unpacked(boxes):
                parts, message = _parts(scratch, boxes, made.dtype)
                scratch += message.nbytes
                after += [(made[box.target], p) for p, box in zip(parts, boxes, strict=True)]
            incoming.append((peer, message))
        received = sum(array.nbytes for _, array in incoming)
        return _Messages(before, outgoing, incoming, after, received)

    def _is_packed(self, boxes: list[Box]) -> bool:
        return len(boxes) > 1 or not _in_one_piece(boxes[0].source, self.operand[0])

    def _is_unpacked(self, boxes: list[Box]) -> bool:
        return len(boxes) > 1 or not _in_one_piece(boxes[0].target, self.result[0])


class _Messages(NamedTuple):
    """An exchange at given addresses: copies (target, source) before and after its messages."""

    before: list[tuple[Array, Array]]
    outgoing: list[Message]
    incoming: list[Message]
    after: list[tuple[Array, Array]]
    received: int  # bytes


_KNOWN = 8  # addresses of a step: callers' arrays come and go


def _parts(address: int, boxes: list[Box], dtype: np.dtype[Any]) -> tuple[list[Array], Array]:
    """The boxes one behind the other in the memory at the address, and all of them."""
    message = array_at(address, (_size(boxes),), dtype)
    parts: list[Array] = []
    begin = 0
    for box in boxes:
        end = begin + _elements(box)
        parts.append(message[begin:end].reshape([s.stop - s.start for s in box.source]))
        begin = end
    return parts, message


def _elements(box: Box) -> int:
    return math.prod(s.stop - s.start for s in box.source)


def _size(boxes: list[Box]) -> int:
    return sum(map(_elements, boxes))


def _in_one_piece(window: Window, dims: tuple[int, ...]) -> bool:
    """Whether the window's elements follow each other in memory."""
    sizes = [s.stop - s.start for s in window]
    first = next((place for place, size in enumerate(sizes) if size != 1), len(sizes))
    return all(n == d for n, d in zip(sizes[first + 1 :], dims[first + 1 :], strict=True))


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


def array_at(address: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The memory there as an array."""
    count = math.prod(dims) * dtype.itemsize
    memory = (ctypes.c_char * count).from_address(address)
    return np.frombuffer(memoryview(memory), dtype).reshape(dims)


def _window(starts: Any, sizes: tuple[int, ...], dims: Any) -> Window:
    if not len(starts) == len(sizes) == len(dims):
        raise malformed("a box of an exchange has another rank than its tensor")
    if any(s + n > d for s, n, d in zip(starts, sizes, dims, strict=True)):
        raise malformed("a box of an exchange lies outside its tensor")
    return tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))
