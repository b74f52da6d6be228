"""What one process sends, receives and copies in an exchange step of a plan."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from ...hlo.errors import UserError
from ...hlo.messages import Box, Messages, size_of
from ...specs.generated import plan_pb2
from ..devices.limits import malformed
from .world import Message, World

Array = np.ndarray[Any, Any]


class Exchange:
    """One step of a plan, as process number `rank` takes part in it."""

    def __init__(self, plan: plan_pb2.Plan, step: plan_pb2.Exchange, rank: int) -> None:
        width, dims = step.element_bytes, tuple(step.result_dims)
        self.operand = _layout(plan, step.operand, tuple(step.operand_dims), width)
        self.result = _layout(plan, step.result, dims, width)
        self.messages = messages_of(plan, step, rank)
        self.operation = step.part_of or "exchange"
        self.place = place_of(step.origin)
        self.scratch = self.messages.staged(width)
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
        moved = self.messages
        before = [(made[_target(box)], given[_source(box)]) for box in moved.own]
        if not moved.covers:
            before.insert(0, (made, np.zeros((), made.dtype)))
        after: list[tuple[Array, Array]] = []
        outgoing: list[Message] = []
        incoming: list[Message] = []
        for peer, boxes in moved.outgoing.items():
            message = given[_source(boxes[0])]
            if moved.packed(peer):
                parts, message = _parts(scratch, boxes, given.dtype)
                scratch += message.nbytes
                before += [(p, given[_source(box)]) for p, box in zip(parts, boxes, strict=True)]
            outgoing.append((peer, message))
        for peer, boxes in moved.incoming.items():
            message = made[_target(boxes[0])]
            if moved.unpacked(peer):
                parts, message = _parts(scratch, boxes, made.dtype)
                scratch += message.nbytes
                after += [(made[_target(box)], p) for p, box in zip(parts, boxes, strict=True)]
            incoming.append((peer, message))
        received = sum(array.nbytes for _, array in incoming)
        return _Messages(before, outgoing, incoming, after, received)


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
    message = array_at(address, (size_of(boxes),), dtype)
    parts: list[Array] = []
    begin = 0
    for box in boxes:
        end = begin + box.elements
        parts.append(message[begin:end].reshape(box.sizes))
        begin = end
    return parts, message


def _source(box: Box) -> tuple[slice, ...]:
    return tuple(slice(s, s + n) for s, n in zip(box.source, box.sizes, strict=True))


def _target(box: Box) -> tuple[slice, ...]:
    return tuple(slice(s, s + n) for s, n in zip(box.target, box.sizes, strict=True))


def messages_of(plan: plan_pb2.Plan, step: plan_pb2.Exchange, rank: int) -> Messages:
    """What a process sends and receives in a step; UserError for a malformed one."""
    if any(max(t.source, t.target) >= plan.processes for t in step.transfers):
        raise malformed("an exchange names a process that there is not")
    try:
        return Messages(step.transfers, rank, step.operand_dims, step.result_dims)
    except UserError as error:
        raise malformed(str(error)) from None


def place_of(origin: plan_pb2.PlanOrigin) -> str:
    """The line of a step, as messages begin with it: "model.py:41: "."""
    return f"{origin.file}:{origin.line}: " if origin.file else ""


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
