"""What single-operation kernels share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ....hlo.graph import Op, Region
from .. import llvm
from ..codegen import Target
from ..elements import Register
from ..elementwise import ElementEmitter, Mask, Override
from ..index import Affine, Scopes
from ..loops.frame import Frame


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


def copy_bytes(
    f: llvm.Function, scopes: Scopes, target: llvm.Value, source: llvm.Value, count: int
) -> None:
    """Copies bytes that do not overlap, 64 at a time."""
    whole = count - count % 64
    if whole:
        with scopes.loop(0, whole, 64, extent=count) as (_, loop):
            block = f.load("<64 x i8>", f.pointer(source, loop.index, "i8"))
            f.store(block, f.pointer(target, loop.index, "i8"))
    if count % 64:
        with scopes.loop(whole, count, extent=count) as (_, loop):
            f.store(
                f.load("i8", f.pointer(source, loop.index, "i8")),
                f.pointer(target, loop.index, "i8"),
            )


def copy_unless_same(
    f: llvm.Function, scopes: Scopes, target: llvm.Value, source: llvm.Value, count: int
) -> None:
    """Copies where the planner did not make operand and result one buffer."""
    with scopes.branch(f.compare("ne", target, source)):
        copy_bytes(f, scopes, target, source, count)


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
    from ..arithmetic import select

    if mask is None:
        return list(new)
    return [select(f, mask.value, a, b) for a, b in zip(new, old, strict=True)]
