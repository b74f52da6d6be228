"""Exchanges of a plan for GPUs, as one process takes part in them: launches that copy boxes around
messages of device memory, all in the order of the stream."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...hlo.messages import Box, Messages, size_of
from ...specs.generated import plan_pb2
from ..distributed.library import Collective
from ..distributed.transfers import messages_of, place_of
from .driver import LaunchConfiguration
from .gpu_steps import Array, KernelStep, Parameter, Started, Where
from .limits import malformed

_THREADS = 256
_MOST_BLOCKS = 2048
_MOST_WORDS = 1 << 30  # of one launch, whose threads count in 32 bits
_WORDS = (16, 8, 4, 2, 1)  # bytes

Strides = tuple[int, ...]
Dim = tuple[int, int, int]  # size, stride in the target, stride in the source
Dead = tuple[tuple[int, int], ...]


class Message(NamedTuple):
    """Bytes of device memory that go to another process, or come from it."""

    peer: int
    where: Where
    nbytes: int


class Communicate(NamedTuple):
    """Sends and receives all of them at once. operation: as counters name it; what: with its line,
    as errors do; dead: as of `KernelStep`."""

    operation: str
    what: str
    outgoing: tuple[Message, ...]
    incoming: tuple[Message, ...]
    dead: Dead = ()

    @property
    def received(self) -> int:
        return sum(message.nbytes for message in self.incoming)

    @property
    def bases(self) -> Iterator[int]:
        """The bases that its memory lies behind."""
        return (message.where.base for message in (*self.outgoing, *self.incoming))


class Collect(NamedTuple):
    """A collective of the processes' library, on memory at `operand` and `result`."""

    collective: Collective
    operand: Where
    result: Where
    dead: Dead = ()

    @property
    def bases(self) -> Iterator[int]:
        """The bases that its memory lies behind."""
        return iter((self.operand.base, self.result.base))


class DeviceTensor(NamedTuple):
    """A dense row-major tensor in device memory; strides in elements."""

    where: Where
    dims: tuple[int, ...]

    @property
    def strides(self) -> Strides:
        dims = self.dims
        return tuple(math.prod(dims[place + 1 :]) for place in range(len(dims)))


def exchange_steps(
    plan: plan_pb2.Plan,
    step: plan_pb2.Exchange,
    rank: int,
    operand: tuple[Where, int],
    result: tuple[Where, int],
    scratch: tuple[Where, int] | None,
    dead: Dead,
) -> list[KernelStep | Communicate]:
    """What process number `rank` does in an exchange. operand, result, scratch: where they lie, and
    how many bytes are there; UserError for a malformed step."""
    width = step.element_bytes
    if width not in _WORDS:
        raise malformed(f"an exchange has elements of {width} bytes")
    if not step.copy:
        raise malformed("an exchange of GPUs has no entry that copies boxes")
    given = DeviceTensor(operand[0], tuple(step.operand_dims))
    made = DeviceTensor(result[0], tuple(step.result_dims))
    for tensor, (_, room) in ((given, operand), (made, result)):
        if math.prod(tensor.dims) * width > room:
            raise malformed("a tensor of an exchange lies outside its buffer")
    moved = messages_of(plan, step, rank)
    alignment = max(1, plan.arena_alignment)
    place, room = scratch or (Where(0, 0), 0)
    if moved.staged(width, alignment) > room:
        raise malformed("the messages of an exchange are larger than their scratch")
    packing = _Packing(_Copies(step.copy, width), given, made, place, alignment)
    before, outgoing = packing.sent(moved)
    after, incoming = packing.received(moved)
    operation, line = step.part_of or "exchange", place_of(step.origin)
    arrays = [_array(operand, "the operand"), _array(result, "the result")]
    if scratch is not None:
        arrays.append(_array(scratch, "the messages"))

    def work(launches: list[Started], verb: str) -> KernelStep:
        return KernelStep(
            f"{operation} ({verb})", line.removesuffix(": "), tuple(launches), (), tuple(arrays),
            place, 0, copies=True,
        )  # fmt: skip

    found: list[KernelStep | Communicate] = []
    if before:
        found.append(work(before, "packs"))
    if outgoing or incoming:
        what = f"{line}{operation}"
        found.append(Communicate(operation, what, tuple(outgoing), tuple(incoming)))
    if after:
        found.append(work(after, "unpacks"))
    if not found:
        found.append(work([], "of nothing"))
    return [*found[:-1], found[-1]._replace(dead=dead)]


class _Packing:
    """How the boxes of an exchange become messages: where several lie apart they are copied to the
    scratch at `place`, one message behind the other, or from there."""

    def __init__(
        self, copies: _Copies, given: DeviceTensor, made: DeviceTensor, place: Where, alignment: int
    ) -> None:
        self.copies, self.width = copies, copies.width
        self.given, self.made = given, made
        self.place, self.alignment = place, alignment
        self.end = place.offset

    def sent(self, moved: Messages) -> tuple[list[Started], list[Message]]:
        """Launches before the messages, what stays in this process among them; the messages."""
        started: list[Started] = []
        outgoing: list[Message] = []
        if not moved.covers:
            zero = (0,) * len(self.made.dims)
            started += self.copies.started(self.made, zero, None, zero, self.made.dims)
        for box in moved.own:
            started += self.copies.started(self.made, box.target, self.given, box.source, box.sizes)
        for peer, boxes in moved.outgoing.items():
            where = _at(self.given, boxes[0].source, self.width)
            if moved.packed(peer):
                where, parts = self._staged(boxes)
                for part, box in zip(parts, boxes, strict=True):
                    zero = (0,) * len(box.sizes)
                    started += self.copies.started(part, zero, self.given, box.source, box.sizes)
            outgoing.append(Message(peer, where, size_of(boxes) * self.width))
        return started, outgoing

    def received(self, moved: Messages) -> tuple[list[Started], list[Message]]:
        """Launches behind the messages; the messages."""
        started: list[Started] = []
        incoming: list[Message] = []
        for peer, boxes in moved.incoming.items():
            where = _at(self.made, boxes[0].target, self.width)
            if moved.unpacked(peer):
                where, parts = self._staged(boxes)
                for part, box in zip(parts, boxes, strict=True):
                    zero = (0,) * len(box.sizes)
                    started += self.copies.started(self.made, box.target, part, zero, box.sizes)
            incoming.append(Message(peer, where, size_of(boxes) * self.width))
        return started, incoming

    def _staged(self, boxes: Sequence[Box]) -> tuple[Where, list[DeviceTensor]]:
        """Where a message lies in the scratch, and each of its boxes."""
        where, parts = Where(self.place.base, self.end), list[DeviceTensor]()
        begin = self.end
        for box in boxes:
            parts.append(DeviceTensor(Where(self.place.base, begin), box.sizes))
            begin += box.elements * self.width
        self.end += -(-size_of(boxes) * self.width // self.alignment) * self.alignment
        return where, parts


def collective_step(
    plan: plan_pb2.Plan,
    step: plan_pb2.Collective,
    rank: int,
    operand: Where,
    result: Where,
    dead: Dead,
) -> Collect:
    """What process number `rank` does in a collective; UserError for a malformed step."""
    return Collect(Collective(plan, step, rank), operand, result, dead)


def _at(tensor: DeviceTensor, start: Sequence[int], width: int) -> Where:
    offset = sum(s * n for s, n in zip(start, tensor.strides, strict=False)) * width
    return Where(tensor.where.base, tensor.where.offset + offset)


def _array(memory: tuple[Where, int], whose: str) -> Array:
    where, room = memory
    return Array(where, room, f"{whose} of the exchange", f"{room} bytes", (), 0)


class _Copies:
    """Starts of the entries that copy boxes of elements of `width` bytes."""

    def __init__(self, prefix: str, width: int) -> None:
        self.prefix, self.width = prefix, width

    def started(
        self,
        target: DeviceTensor,
        to: Sequence[int],
        source: DeviceTensor | None,
        begin: Sequence[int],
        sizes: Sequence[int],
    ) -> list[Started]:
        """The box of `sizes` at `begin` of the source, or zeros, to `to` of the target."""
        if 0 in sizes:
            return []
        there = target.strides
        here = there if source is None else source.strides
        dims = [
            (n, t * self.width, s * self.width)
            for n, t, s in zip(sizes, there, here, strict=False)
            if n != 1
        ]
        if not dims or dims[-1][1:] != (self.width, self.width):
            dims.append((1, self.width, self.width))
        merged: list[Dim] = [dims[0]]
        for n, t, s in dims[1:]:
            size, outer_t, outer_s = merged[-1]
            if (outer_t, outer_s) == (n * t, n * s):
                merged[-1] = size * n, t, s
            else:
                merged.append((n, t, s))
        where = _at(target, to, self.width)
        origin = None if source is None else _at(source, begin, self.width)
        return list(self.split(where, origin, merged))

    def split(self, target: Where, source: Where | None, dims: list[Dim]) -> Iterator[Started]:
        """Launches of four dims, of as many words as threads can count."""
        if len(dims) <= 4 and math.prod(n for n, *_ in dims) <= _MOST_WORDS:
            yield self.one(target, source, dims)
            return
        place = next(place for place, (n, *_) in enumerate(dims) if n > 1)
        n, t, s = dims[place]
        for low, high in ((0, n // 2), (n // 2, n)):
            rest = [(high - low, t, s)] if high - low > 1 or place == len(dims) - 1 else []
            yield from self.split(
                _behind(target, low * t),
                None if source is None else _behind(source, low * s),
                [*dims[:place], *rest, *dims[place + 1 :]],
            )

    def one(self, target: Where, source: Where | None, dims: list[Dim]) -> Started:
        *outer, (last, _, _) = dims
        row = last * self.width
        marks = [row, target.offset, *(t for _, t, _ in outer)]
        if source is not None:
            marks += [source.offset, *(s for _, _, s in outer)]
        word = next(size for size in _WORDS if not any(mark % size for mark in marks))
        outer = [(1, 0, 0)] * (3 - len(outer)) + outer
        sizes = [*(n for n, *_ in outer), row // word]
        strides = [t // word for _, t, _ in outer] + [s // word for _, _, s in outer]
        blocks = min(_MOST_BLOCKS, -(-math.prod(sizes) // _THREADS))
        start = LaunchConfiguration(
            f"{self.prefix}{word}", (blocks, 1, 1), (_THREADS, 1, 1), (1, 1, 1), 0
        )
        parameters: list[Parameter] = [target, bytes(8) if source is None else source]
        parameters += [struct.pack("<I", n) for n in sizes]
        parameters += [struct.pack("<q", stride) for stride in strides]
        return Started(start, tuple(parameters))


def _behind(where: Where, size: int) -> Where:
    return Where(where.base, where.offset + size)
