"""Which emitter computes a kernel: asked before anything is emitted.

    found = fits(op, target)          # a Choice, or the Limitation that leaves the kernel to none
    code = found.emit()

Emitters say of what they refuse why (`refusal`, "" of what they take); the reasons are kept, as
notes of the kernel that another one computes, or as the error of one that none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ...hlo.graph import PARTS, Op, Region
from ...optimizer.asynchronous.configuration import PipelineConfiguration
from ...optimizer.asynchronous.fits import fits as runs
from ...optimizer.asynchronous.fits import multiplied
from ...optimizer.machine import Limitation
from ...optimizer.overwriting import may_overwrite
from ...optimizer.tiles.tilings import BLOCK_TILINGS, LARGEST_TILINGS, tile_functions
from ...optimizer.windows import NONE, Windows, opened
from ..llvm import elementwise
from ..plain.single import as_region
from . import foreign, plain, tile
from .capabilities import capabilities
from .frame import is_fixed
from .launch import KernelCode
from .loops import windows
from .loops.emitters import FUSIONS, OPERATIONS
from .pipeline import emit as pipeline
from .target import NvidiaTarget
from .tile import memory_tiles

Found = TypeVar("Found")
Pairs = frozenset[tuple[int, int]]  # operands and results that may be one piece of memory


@dataclass(frozen=True)
class Choice:
    """What computes a kernel: `emit` gives its code, which bears `notes`."""

    emit: Callable[[], KernelCode]
    notes: tuple[str, ...] = ()


def fits(op: Op, target: NvidiaTarget) -> Choice | Limitation:
    """What computes a fusion or a single operation, or why nothing does."""
    if op.name == "foreign_call":
        reason = foreign.refusal(op, target)
        return _limited(op, target, reason) if reason else Choice(partial(foreign.emit, op, target))
    if op.name == "kernel_call":
        return _tiled(op, target)
    pairs = shared(op)
    op, within = opened(op)
    region = op.regions[0] if op.name == "fusion" else as_region(op)
    found = _whole(op, region, target, pairs, within)
    if isinstance(found, Choice):
        return found
    notes = (f"a thread for each element: {found}",) if found else ()
    simpler = plain.fits(region)
    if isinstance(simpler, str):
        return _limited(op, target, "; ".join((simpler, *notes)))
    flops = op.definition.flops(op)
    return Choice(partial(plain.emit, region, target, flops, pairs, within, simpler), notes)


def _limited(op: Op, target: NvidiaTarget, reason: str) -> Limitation:
    dtype = multiplied(op) or op.results[0].element.name
    return Limitation(f"nvidia:{target.architecture.name}", dtype, reason)


def _whole(
    op: Op, region: Region, target: NvidiaTarget, pairs: Pairs, within: Windows = NONE
) -> Choice | str:
    """What computes a region by more than a thread for each element, or why nothing does; "" where
    nothing is meant to."""
    flops, kind = op.definition.flops(op), kind_of(op)
    if op.name in OPERATIONS:
        single = OPERATIONS[op.name]
        reason = single.refusal(op, target) if is_fixed(region) else "calls decide its sizes"
        return reason or Choice(partial(single.emit, op, target))
    if kind in FUSIONS:
        reason = FUSIONS[kind].refusal(region, within)
        parts = {"parts": op.attributes[PARTS]} if PARTS in op.attributes else {}
        return reason or Choice(partial(FUSIONS[kind].emit, region, target, flops, within, **parts))
    if kind != "contract":
        return ""
    if within:
        return "a contraction on windows of arrays"
    if BLOCK_TILINGS not in op.attributes:
        return "nobody has chosen its tiles"
    if not op.attributes[BLOCK_TILINGS]:
        return Choice(partial(windows.depthwise, region, target, flops))
    return _contraction(op, target, bool(pairs))


def _contraction(op: Op, target: NvidiaTarget, shares: bool) -> Choice | str:
    """Hopper's pipeline takes what it has a unit for where it can, else a block of threads each
    tile."""
    notes: tuple[str, ...] = ()
    if LARGEST_TILINGS in op.attributes:
        found = pipelined(op, target)
        if not isinstance(found, str):
            return Choice(partial(pipeline.code_of, found, target))
        notes = (f"not in Hopper's pipeline: {found}",)
    made = in_blocks(op, target)
    if isinstance(made, str):
        return "; ".join((made, *notes))
    return Choice(partial(tile.emitted, made, shares), notes)


def pipelined(op: Op, target: NvidiaTarget) -> PipelineConfiguration | str:
    """How a fusion around one contraction runs in Hopper's pipeline, or why it does not."""
    able = capabilities(target.architecture)

    def asked(call: Op) -> PipelineConfiguration | str:
        found = runs(call, able)
        return found.reason if isinstance(found, Limitation) else found

    return first_that_fits(tile_functions(op, LARGEST_TILINGS), asked)


def in_blocks(op: Op, target: NvidiaTarget) -> tile.Assignment | str:
    """How a fusion around one contraction runs in blocks of threads, or why it does not."""
    return first_that_fits(tile_functions(op, BLOCK_TILINGS), lambda one: tile.fits(one, target))


def first_that_fits(
    functions: Iterator[Op | str], asked: Callable[[Op], Found | str]
) -> Found | str:
    """What is answered of the first tile function that fits; or why the last one does not."""
    reason = unwritten = ""
    for one in functions:
        if isinstance(one, str):
            unwritten = one
            continue
        found = asked(one)
        if not isinstance(found, str):
            return found
        reason = found
    return reason or unwritten


def _tiled(op: Op, target: NvidiaTarget) -> Choice | Limitation:
    """A tile function: in the pipeline, with tiles in registers, or with tiles in memory."""
    able, shares = capabilities(target.architecture), bool(shared(op))
    notes: tuple[str, ...] = ()
    if able.asynchronous and not shares:
        found = runs(op, able)
        if not isinstance(found, Limitation):
            return Choice(partial(pipeline.code_of, found, target))
        if _narrow(op.regions[0]):
            notes = (f"not in Hopper's pipeline: {found.reason}",)
    made = tile.fits(op, target)
    if not isinstance(made, str):
        return Choice(partial(tile.emitted, made, shares), notes)
    notes = (f"tiles in memory: {made}", *notes)
    return Choice(partial(memory_tiles.emit, op, target, shares), notes)


def _narrow(region: Region) -> bool:
    """Whether it has products that Hopper's matrix units would do at once."""
    return any(
        op.name == "dot_general" and op.operands[0].element.is_float
        and op.operands[0].element.bits <= 16
        for op in region.walk()
    )  # fmt: skip


def kind_of(op: Op) -> str:
    """The kind of a fusion, or the one that a single operation would be."""
    if op.name == "fusion":
        return op.kind
    if op.definition.pattern == "contract" and not op.definition.alias:
        return "contract"
    if op.name == "reduce":
        return "reduce"
    return "loop" if elementwise.supports(op) else "opaque"


def shared(op: Op) -> Pairs:
    """The operands and results that the schedule may give one piece of memory."""
    return frozenset(
        (operand, result)
        for operand in range(len(op.operands))
        for result in range(len(op.results))
        if may_overwrite(op, operand, result)
    )
