"""What every loop kernel shares: function, addresses, size, and how it is cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...hlo.deciding import at_hint, estimating
from ...hlo.graph import Op, Region, Value
from ...hlo.symbols import SymbolicDim
from ...workers import kernel_pays
from .. import llvm
from ..llvm import elements
from ..llvm.elementwise import ElementEmitter, Mask, supports
from ..llvm.index import CONSECUTIVE, SAME, Affine, Scopes, linear
from ..llvm.target import KernelCode, Target

SYMBOL = "kernel"

_WEIGHTS = {"transcendental": 20.0, "division": 6.0}


def weight(op: Op) -> float:
    """How much an element of the operation costs, about in vector instructions."""
    definition = op.definition
    if definition.cost_class in _WEIGHTS:
        return _WEIGHTS[definition.cost_class]
    return 0.0 if definition.pattern in ("index", "source") else 1.0


@dataclass
class Frame:
    """A kernel under construction: its function and the addresses of operands and results."""

    target: Target
    operands: Sequence[Any]  # types
    results: Sequence[Any]
    module: llvm.Module = field(init=False)
    function: llvm.Function = field(init=False)
    pointers: list[llvm.Value] = field(init=False)
    outputs: list[llvm.Value] = field(init=False)

    @estimating()
    def _bytes(self, kinds: Sequence[Any]) -> float:
        return float(sum(kind.bytes for kind in kinds))

    def __post_init__(self) -> None:
        self.module = self.target.module()
        self.function = f = self.module.kernel(SYMBOL)
        addresses = []
        for number in range(len(self.operands) + len(self.results)):
            place = f.pointer(f.arguments[0], number, "ptr")
            addresses.append(f.load("ptr", place))
        self.pointers = addresses[: len(self.operands)]
        self.outputs = addresses[len(self.operands) :]
        self.scopes = Scopes(f)
        self.moved = self._bytes([*self.operands, *self.results])

    @property
    def begin(self) -> llvm.Value:
        return self.function.arguments[1]

    @property
    def end(self) -> llvm.Value:
        return self.function.arguments[2]

    @property
    def scratch(self) -> llvm.Value:
        return self.function.arguments[3]

    def emitter(self, region: Region) -> ElementEmitter:
        """An emitter for the region whose arguments are the kernel's operands."""
        self.moved = float(sum(map(read_bytes, region.arguments, [region] * len(self.operands))))
        self.moved += self._bytes(self.results)
        return ElementEmitter(self.function, region, self.pointers, scopes=self.scopes)

    def store_roots(
        self,
        emitter: ElementEmitter,
        region: Region,
        index: Sequence[Affine],
        width: int,
        mask: Mask | None,
    ) -> None:
        """Computes the roots at an index and stores them; all loads come before the first store."""
        registers = [emitter.value(root, index, width, mask) for root in region.results]
        for root, register, pointer in zip(region.results, registers, self.outputs, strict=True):
            emitter.store(pointer, register, root.element, linear(index, root.dims), width, mask)

    def finish(
        self,
        tiles: int,
        flops: float,
        *,
        scratch: int = 0,
        work: float | None = None,
        parallel: bool = True,
        notes: tuple[str, ...] = (),
    ) -> KernelCode:
        """The finished kernel. `work` decides whether more than one worker takes part."""
        self.function.ret()
        # Where a call decides the tiles, the runtime judges whether they are worth several workers.
        work = flops if work is None else work
        enough = isinstance(tiles, SymbolicDim) or kernel_pays(work, self.moved)
        parallel = parallel and tiles != 1 and enough
        return KernelCode(
            self.module.text(),
            SYMBOL,
            tiles,
            scratch,
            flops,
            self.moved,
            parallel,
            notes,
            sizes=tuple(self.module.sizes),
        )


@estimating()
def read_bytes(argument: Value, region: Region) -> int:
    """Bytes of an operand that are read: of a table, the rows that are looked up."""
    total = 0
    for user, number in region.uses.get(argument, ()):
        if user is not None and number == 0 and user.definition.moves in ("part", "indexed"):
            total += user.result.tensor.bytes
        else:
            total += argument.tensor.bytes
    return int(min(total, argument.tensor.bytes))


def lanes_for(target: Target, region: Region) -> int:
    """Lanes of one step: a register of the widest type that is computed with, at least 8 bytes
    apart for moves of small ones."""
    widest = 8
    for op in region.ops:
        for value in (*op.operands, *op.results):
            if value.rank == 0 or _is_splat(value):
                continue
            widest = max(widest, _register_bits(value.element))
    if not region.ops:
        widest = 32
    return target.step_lanes(min(max(widest, 16), 64))


def _register_bits(element: Any) -> int:
    return 8 if element.is_bool else llvm.bits_of(elements.register_type(element))


def lanes_for_types(target: Target, kinds: Sequence[Any]) -> int:
    """Lanes of a register of the widest of these element types."""
    widest = max(max(16, min(64, _register_bits(kind))) for kind in kinds)
    return target.step_lanes(widest)


def fitting(width: int, extent: int) -> int:
    """The lanes of a step, halved until they are not more than an extent, the likely one."""
    while width > max(1, at_hint(extent)):
        width //= 2
    return width


def _is_splat(value: Any) -> bool:
    return value.op is not None and value.op.name == "constant"


def computable(region: Region) -> bool:
    """Whether every operation is a reduction or computed element by element."""
    return all(op.name == "reduce" or supports(op) for op in region.ops)


def cost(region: Region) -> float:
    """Vector instructions per element, roughly."""
    return sum(weight(op) for op in region.ops)


def steps(
    scopes: Scopes,
    target: Target,
    begin: llvm.Operand,
    end: llvm.Operand,
    extent: int,
    width: int,
    unroll: int,
    *,
    aligned: int | None = None,
) -> Iterator[tuple[Affine, int, int, Mask | None]]:
    """Loops over [begin, end) that yield (index, width, copies, mask) for the caller to fill.

    `extent` is the largest end; `begin` is a multiple of width * unroll. Either end is `extent`,
    or it is a multiple of width * unroll too. The main loop takes `copies` vectors per turn; the
    rest is taken masked where the target has masks, else element by element. Where a call decides
    the extent, and likely no more than one vector is whole, all are masked.
    """
    f = scopes.function
    stride = width * unroll
    whole = extent - extent % stride
    masks = target.vector_bits == 512 and width > 1
    if masks and isinstance(whole, SymbolicDim) and unroll == 1 and at_hint(whole) <= width:
        whole = 0
    if whole:
        last = f.min(end, whole) if isinstance(end, llvm.Value) else whole
        lanes = CONSECUTIVE if width > 1 else SAME
        within = whole - stride + width  # the first vector of a turn; the others are added to it
        with scopes.loop(begin, last, stride, extent=within, lanes=lanes, multiple=stride) as (
            at,
            _,
        ):
            yield at, width, unroll, None
    if extent == whole:
        return
    first: llvm.Operand = whole or begin
    if whole and isinstance(begin, llvm.Value):
        first = f.max(begin, whole)
    if masks:
        with scopes.loop(first, end, width, extent=extent, lanes=CONSECUTIVE, multiple=width) as (
            at, loop,
        ):  # fmt: skip
            left = f.sub(f.lift(extent, "i64"), loop.index)
            mask = f.tail_mask(left, width, shifted=True)
            yield at, width, 1, Mask(mask, scopes.depth, some=True)
    else:
        with scopes.loop(first, end, 1, extent=extent) as (at, _):
            yield at, 1, 1, None


@contextmanager
def tile_range(frame: Frame, start: int, count: int) -> Iterator[tuple[llvm.Value, llvm.Value]]:
    """The part of [begin, end) that falls into tiles [start, start + count), counted from start."""
    f = frame.function
    low = f.sub(f.max(frame.begin, start), start)
    high = f.sub(f.min(frame.end, start + count), start)
    yield low, high
