"""What one process copies, sends and receives in an exchange, and which messages lie in pieces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .errors import UserError


class Box(NamedTuple):
    """A part of an operand, and one of the same `sizes` of a result; not both of them are one
    process's where another one sends or receives."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


class Messages:
    """The boxes of process number `rank`: `own` stay with it, `outgoing` and `incoming` go to and
    come from others, by their number, each in the order of the transfers.

    transfers: whatever has the fields of specs/plan.proto's `Transfer`. dims, made: of the operand
    and the result. UserError for a box that lies outside its tensor.
    """

    def __init__(
        self, transfers: Iterable[Any], rank: int, dims: Sequence[int], made: Sequence[int]
    ) -> None:
        self.dims, self.made = tuple(dims), tuple(made)
        self.own: list[Box] = []
        self.outgoing: dict[int, list[Box]] = {}
        self.incoming: dict[int, list[Box]] = {}
        covered = 0
        for transfer in transfers:
            source, target = transfer.source, transfer.target
            if rank not in (source, target):
                continue
            sizes = tuple(transfer.sizes)
            box = Box(tuple(transfer.source_start), tuple(transfer.target_start), sizes)
            _check(box.source, sizes, self.dims)
            _check(box.target, sizes, self.made)
            if target == rank:
                covered += box.elements
            if source == target:
                self.own.append(box)
            elif source == rank:
                self.outgoing.setdefault(target, []).append(box)
            else:
                self.incoming.setdefault(source, []).append(box)
        self.covers = covered == math.prod(self.made)  # boxes of a result are disjoint

    def packed(self, peer: int) -> bool:
        """Whether what goes to another process is no run of the operand's memory."""
        boxes = self.outgoing[peer]
        return len(boxes) > 1 or not in_one_piece(boxes[0].sizes, self.dims)

    def unpacked(self, peer: int) -> bool:
        """Whether what comes from another process is no run of the result's memory."""
        boxes = self.incoming[peer]
        return len(boxes) > 1 or not in_one_piece(boxes[0].sizes, self.made)

    def staged(self, width: int, alignment: int = 1) -> int:
        """Bytes of the messages that are no runs of memory, each from a multiple of `alignment`
        on; elements have `width` bytes."""
        sizes = [size_of(boxes) for peer, boxes in self.outgoing.items() if self.packed(peer)]
        sizes += [size_of(boxes) for peer, boxes in self.incoming.items() if self.unpacked(peer)]
        return sum(-(-size * width // alignment) * alignment for size in sizes)


def size_of(boxes: Iterable[Box]) -> int:
    """Elements of all of them."""
    return sum(box.elements for box in boxes)


def in_one_piece(sizes: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether the elements of a box follow each other in the memory of a tensor."""
    first = next((place for place, size in enumerate(sizes) if size != 1), len(sizes))
    return all(n == d for n, d in zip(sizes[first + 1 :], dims[first + 1 :], strict=True))


def most_staged(
    transfers: Sequence[Any], processes: int, dims: Sequence[int], made: Sequence[int],
    width: int, alignment: int,
) -> int:  # fmt: skip
    """`Messages.staged` of the process that stages most."""
    own: Mapping[int, list[Any]] = {rank: [] for rank in range(processes)}
    for transfer in transfers:
        for rank in {transfer.source, transfer.target}:
            own[rank].append(transfer)
    found = (Messages(some, rank, dims, made) for rank, some in own.items())
    return max((one.staged(width, alignment) for one in found), default=0)


def _check(starts: Sequence[int], sizes: Sequence[int], dims: Sequence[int]) -> None:
    if not len(starts) == len(sizes) == len(dims):
        raise UserError("a box of an exchange has another rank than its tensor")
    if any(s + n > d for s, n, d in zip(starts, sizes, dims, strict=True)):
        raise UserError("a box of an exchange lies outside its tensor")
