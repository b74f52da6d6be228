"""What single-operation kernels share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ....hlo.graph import Op, Region
from ... import llvm
from ...llvm.arithmetic import select
from ...llvm.elements import Register
from ...llvm.elementwise import ElementEmitter, Mask, Override
from ...llvm.index import Affine, Scopes
from ...llvm.target import Target
from ..frame import Frame


def frame_of(op: Op, target: Target) -> tuple[Frame, ElementEmitter]:
    """A kernel for the operation, and an emitter that reads its operands as `op.operands`."""
    frame = Frame(
        target, [value.type for value in op.operands], [value.type for value in op.results]
    )
    emitter = ElementEmitter(frame.function, Region((), (), ()), scopes=frame.scopes)
    for value, pointer in zip(op.operands, frame.pointers, strict=True):
        emitter.bind(value, pointer)
    return frame, emitter


@contextmanager
def nest(scopes: Scopes, extents: Sequence[int]) -> Iterator[list[Affine]]:
    """Loops over a box, the last dimension innermost; yields the index."""
    with ExitStack() as stack:
        index: list[Affine] = []
        for extent in extents:
            if extent == 1:
                index.append(Affine((), 0))
            else:
                at, _ = stack.enter_context(scopes.loop(0, extent, extent=extent))
                index.append(at)
        yield index


_BLOCK = 64  # bytes of a vector of a copy
_UNROLL = 8


def copy_range(
    f: llvm.Function,
    target: llvm.Value,
    source: llvm.Value,
    begin: llvm.Operand,
    end: llvm.Operand,
) -> None:
    """Copies the bytes [begin, end), which do not overlap: vectors, then single bytes."""
    kind = f"<{_BLOCK} x i8>"
    first = f.lift(begin, "i64")
    for step, width, lane in (
        (_BLOCK * _UNROLL, _BLOCK, kind), (_BLOCK, _BLOCK, kind), (1, 1, "i8"),
    ):  # fmt: skip
        count = f.sub(f.lift(end, "i64"), first)
        last = f.add(first, f.land(count, -step)) if step > 1 else f.lift(end, "i64")
        with f.for_range(first, last, step) as loop:
            places = [f.add(loop.index, n) for n in range(0, step, width)]
            read = [f.load(lane, f.pointer(source, place, "i8"), align=1) for place in places]
            for place, block in zip(places, read, strict=True):
                f.store(block, f.pointer(target, place, "i8"), align=1)
        first = last


def copy_unless_same(
    f: llvm.Function,
    scopes: Scopes,
    target: llvm.Value,
    source: llvm.Value,
    end: llvm.Operand,
    begin: llvm.Operand = 0,
) -> None:
    """Copies the bytes [begin, end), unless operand and result are one buffer."""
    with scopes.branch(f.compare("ne", target, source)):
        copy_range(f, target, source, begin, end)


def lazy_region(
    f: llvm.Function, region: Region, loads: Sequence[Override], width: int
) -> list[Register]:
    """The region's results, its arguments read only where they are used."""
    overrides = dict(zip(region.arguments, loads, strict=True))
    emitter = ElementEmitter(f, region, (), overrides, lanewise=True)
    return [emitter.value(result, (), width) for result in region.results]


def blended(
    f: llvm.Function, mask: Mask | None, new: Sequence[Register], old: Sequence[Register]
) -> list[Register]:
    """New registers where the mask is on."""
    if mask is None:
        return list(new)
    return [select(f, mask.value, a, b) for a, b in zip(new, old, strict=True)]
