"""The head of a GPU kernel in LLVM IR, and what every emitter says to the machine.

    unit = Unit(target)
    kernel = unit.kernel("copy", [Parameter("x", KernelMemory(0), readonly=True), ...])
    with kernel.each(size) as at:                    # this thread's element, an index.Affine
        value = emitter.load(kernel.pointers[0], F32, at)
        emitter.store(kernel.pointers[1], value, F32, at)
    launch = kernel.finish(blocks(size, kernel.threads))
    code = unit.code([launch], flops, bytes)

Pointers are generic in the text ("ptr"), so that emitters of all targets take them; LLVM finds the
address space back, since every one of them comes from a parameter or from `shared`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from ...hlo.deciding import largest, surely_at_most
from ...hlo.errors import CompilerBug
from ...hlo.graph import Region
from ...hlo.symbols import ceildiv, maximum
from ...hlo.types import TensorType
from .. import llvm
from ..llvm.index import CONSECUTIVE, SAME, Affine, LoopAxis, Scopes, of_axis
from ..llvm.places import KERNEL_MARK
from ..plain.composite import merged
from .launch import (
    Argument,
    Extent,
    Immediate,
    KernelCode,
    KernelMemory,
    KernelTensorMap,
    Launch,
    Size,
)
from .target import WARP, NvidiaTarget

THREADS = 256  # of a block, where nothing asks for another number
SHARED = "shared"  # the one dynamic array of shared memory
GRID = 2**31 - 1  # most blocks along x


def is_fixed(region: Region) -> bool:
    """Whether no call decides sizes in it."""
    return all(kind.is_static for kind in region.types if isinstance(kind, TensorType))


@dataclass(frozen=True)
class Parameter:
    """One parameter of an entry. `readonly`: nobody writes that memory while the kernel runs;
    `unique`: no other parameter shows the same bytes; `type`: LLVM's, of an immediate."""

    label: str
    argument: Argument
    readonly: bool = False
    unique: bool = True
    type: str = "i32"

    @property
    def text(self) -> str:
        """The LLVM type with attributes."""
        if isinstance(self.argument, KernelTensorMap):
            return 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
        if isinstance(self.argument, Immediate):
            return self.type
        words = ["ptr addrspace(1)", "noalias"] if self.unique else ["ptr addrspace(1)"]
        if self.readonly:
            words.append("readonly")
        return " ".join([*words, "align 16"])


class Unit:
    """The LLVM module of one kernel; it may have several entries, launched one after another."""

    def __init__(self, target: NvidiaTarget) -> None:
        self.target = target
        self.module = target.module()
        self.entries: list[Entry] = []
        self.pieces: list[str] = []  # texts of further modules, whose functions entries call

    def kernel(
        self,
        symbol: str,
        parameters: Sequence[Parameter],
        threads: int = THREADS,
        *,
        minimum_blocks: int = 0,
        cluster: Extent = (1, 1, 1),
    ) -> Entry:
        """An entry under construction. `minimum_blocks`: how many blocks of it a multiprocessor
        should hold at once, which bounds its registers (0: as the assembler likes)."""
        entry = Entry(self, symbol, parameters, threads, minimum_blocks, cluster)
        self.entries.append(entry)
        return entry

    def text(self) -> str:
        """The module's IR."""
        text = self.module.text()
        if self.pieces:
            text = merged([text, *self.pieces])
        if f"@{SHARED}" in text:
            head = f"@{SHARED} = external addrspace(3) global [0 x i8], align 1024\n"
            text = head + text
        return text

    def code(
        self,
        launches: Sequence[Launch],
        flops: float,
        moved: float,
        *,
        scratch: int = 0,
    ) -> KernelCode:
        """The finished kernel; `moved` in bytes."""
        return KernelCode(self.text(), tuple(launches), flops, float(moved), scratch)


class Entry:
    """One `.entry`: `function` takes code, `pointers` are its parameters as values (generic
    pointers, also of tensor maps; immediates as they are), `scopes` the places for elements."""

    def __init__(
        self,
        unit: Unit,
        symbol: str,
        parameters: Sequence[Parameter],
        threads: int,
        minimum_blocks: int,
        cluster: Extent,
    ) -> None:
        if threads % WARP or not 0 < threads <= 1024:
            raise CompilerBug(f"a block of {threads} threads")
        self.unit, self.target, self.symbol = unit, unit.target, symbol
        self.parameters, self.threads, self.cluster = tuple(parameters), threads, cluster
        attributes = [f'"nvvm.maxntid"="{threads}"']
        if minimum_blocks:
            attributes.append(f'"nvvm.minctasm"="{minimum_blocks}"')
        if cluster != (1, 1, 1):
            attributes.append(f'"nvvm.cluster_dim"="{",".join(map(str, cluster))}"')
        self.function = unit.module.function(
            symbol,
            [(parameter.text, parameter.label) for parameter in parameters],
            linkage="ptx_kernel",
            attributes=" ".join(attributes),
        )
        self.function.mark, self.function.given_sizes = KERNEL_MARK, []
        self.pointers = [self._value(parameter) for parameter in parameters]
        self.scopes = Scopes(self.function)

    def _value(self, parameter: Parameter) -> llvm.Value:
        name = f"%{parameter.label}"
        if isinstance(parameter.argument, KernelMemory):
            text = f"addrspacecast ptr addrspace(1) {name} to ptr"
            return self.function.emit("ptr", text)
        kind = parameter.type if isinstance(parameter.argument, Immediate) else "ptr"
        return llvm.Value(kind, name)

    # Numbers of blocks and threads.

    def thread(self) -> llvm.Value:
        """The thread's number in its block, i32."""
        return special(self.function, "tid.x")

    def block(self, dimension: str = "x") -> llvm.Value:
        """The block's number in the grid, i32."""
        return special(self.function, f"ctaid.{dimension}")

    def lane(self) -> llvm.Value:
        """The thread's number in its warp, i32."""
        return special(self.function, "laneid")

    def warp(self) -> llvm.Value:
        """The warp's number in its block, i32, known to be equal in all its lanes."""
        f = self.function
        return shuffle(f, "idx", f.lshr(self.thread(), 5), llvm.constant("i32", 0))

    def axis(self, value: llvm.Value, extent: int, multiple: int = 1, lanes: int = SAME) -> Affine:
        """A number of the code, below `extent`, as an index; it belongs to the current scope."""
        wide = self.function.cast("zext", value, "i64")
        return of_axis(LoopAxis(wide, extent, lanes, self.scopes.depth, multiple))

    def position(self) -> llvm.Value:
        """The thread's number in the grid, i64."""
        f = self.function
        block = f.cast("zext", self.block(), "i64")
        return f.add(f.mul(block, self.threads), f.cast("zext", self.thread(), "i64"))

    @contextmanager
    def each(self, size: int, lanes: int = 1) -> Iterator[Affine]:
        """This thread's element of `size` elements, in a grid of a thread per element; with
        `lanes`, the first of so many neighbours (`size` is a multiple). Other threads do nothing.
        """
        f = self.function
        place = self.position()
        count = size // lanes
        if count * lanes != size:
            raise CompilerBug(f"{size} elements in vectors of {lanes}")
        kind = CONSECUTIVE if lanes > 1 else SAME
        with self.guarded(place, count):
            at = place if lanes == 1 else f.mul(place, lanes)
            yield of_axis(LoopAxis(at, size, kind, self.scopes.depth, lanes))

    @contextmanager
    def guarded(self, place: llvm.Value, count: int) -> Iterator[None]:
        """Code for threads whose number is below count; no test where all of a grid of
        `blocks(count, threads)` are."""
        if count % self.threads == 0 and surely_at_most(1, count):
            yield
        else:
            with self.scopes.branch(self.function.compare("ult", place, count)):
                yield

    # Shared memory.

    def shared(self, offset: int = 0) -> llvm.Value:
        """The address of a byte of the block's shared memory, as a generic pointer."""
        base = llvm.Value("ptr", f"addrspacecast (ptr addrspace(3) @{SHARED} to ptr)")
        return self.function.pointer(base, offset, "i8")

    def finish(
        self, grid: int | Extent, shared_bytes: int = 0, *, persistent: bool = False
    ) -> Launch:
        """Ends the function; how it is launched."""
        self.function.ret()
        extent = grid if isinstance(grid, tuple) else (grid, 1, 1)
        x, y, z = map(largest, extent)
        if not 0 < x <= GRID or not 0 < y < 65536 or not 0 < z < 65536:
            raise CompilerBug(f"a grid of {extent} blocks")
        if shared_bytes > self.target.architecture.shared_bytes:
            raise CompilerBug(f"{shared_bytes} bytes of shared memory")
        arguments = (
            *(parameter.argument for parameter in self.parameters),
            *map(Size, self.function.given_sizes or ()),
        )
        threads = (self.threads, 1, 1)
        return Launch(
            self.symbol, extent, threads, arguments, shared_bytes, self.cluster, persistent
        )


def blocks(count: int, threads: int) -> int:
    """Blocks that hold `count` threads; at least one."""
    return maximum(1, ceildiv(count, threads))


# The machine's own instructions.


def special(f: llvm.Function, register: str) -> llvm.Value:
    """A special register, i32: "tid.x", "ctaid.y", "laneid", "cluster.ctarank"."""
    return f.call(f"llvm.nvvm.read.ptx.sreg.{register}", "i32", declare=True)


def barrier(f: llvm.Function, number: int = 0, threads: int = 0) -> None:
    """All threads of the block meet (or `threads` of them, at a barrier of their own), and see
    what each has written to memory before."""
    name = "llvm.nvvm.barrier.cta.sync.aligned"
    which = llvm.constant("i32", number)
    if threads:
        f.call(f"{name}.count", "void", which, llvm.constant("i32", threads), declare=True)
    else:
        f.call(f"{name}.all", "void", which, declare=True)


@contextmanager
def where(f: llvm.Function, condition: llvm.Value | None) -> Iterator[None]:
    """Code that runs where the condition holds; None always holds."""
    with f.if_then(condition) if condition is not None else nullcontext():
        yield


def rolled(f: llvm.Function) -> str:
    """Metadata of loops that LLVM must not unroll or peel, because their code is scheduled already,
    or because what it would load ahead fills the registers."""
    f.module.declare(
        "loop metadata",
        '!0 = distinct !{!0, !1, !2}\n!1 = !{!"llvm.loop.unroll.disable"}\n'
        '!2 = !{!"llvm.loop.peeled.count", i32 0}',
    )
    return "!llvm.loop !0"


def shuffle(
    f: llvm.Function, mode: str, value: llvm.Value, lane: llvm.Operand, width: int = WARP
) -> llvm.Value:
    """A scalar of another lane: of lane ^ `lane` ("bfly"), lane + `lane` ("down"), lane - `lane`
    ("up"; the own value where there is none) or `lane` itself ("idx"), within groups of `width`
    lanes. All lanes of the warp take part. Scalars of 1 to 64 bits."""
    bits = llvm.bits_of(value.type)
    kind = value.type
    if llvm.is_float(kind):
        value = f.bitcast(value, f"i{bits}")
    if bits == 64:
        low = _shuffled(f, mode, f.cast("trunc", value, "i32"), lane, width)
        high = _shuffled(f, mode, f.cast("trunc", f.lshr(value, 32), "i32"), lane, width)
        both = f.lor(f.shl(f.cast("zext", high, "i64"), 32), f.cast("zext", low, "i64"))
        return f.bitcast(both, kind)
    word = value if bits == 32 else f.cast("zext", value, "i32")
    found = _shuffled(f, mode, word, lane, width)
    if bits < 32:
        found = f.cast("trunc", found, f"i{bits}")
    return f.bitcast(found, kind)


def _shuffled(
    f: llvm.Function, mode: str, word: llvm.Value, lane: llvm.Operand, width: int
) -> llvm.Value:
    last = 0 if mode == "up" else WARP - 1
    control = (WARP - width) << 8 | last
    return f.call(
        f"llvm.nvvm.shfl.sync.{mode}.i32", "i32", llvm.constant("i32", -1), word,
        f.lift(lane, "i32"), llvm.constant("i32", control), declare=True,
    )  # fmt: skip


def load_vector(f: llvm.Function, pointer: llvm.Value, kind: str, lanes: int) -> llvm.Value:
    """`lanes` neighbours in one access; the address is aligned to their bytes, of which there are
    at most 16."""
    size = lanes * max(1, llvm.bits_of(kind) // 8)
    if size & (size - 1):
        raise CompilerBug(f"an access of {size} bytes")
    return f.load(llvm.vector(lanes, kind), pointer, align=size)


def load_matrices(
    f: llvm.Function, pointer: llvm.Value, count: int, transposed: bool = False
) -> list[llvm.Value]:
    """8 by 16-byte matrices whose rows the lanes point to: a register of each."""
    middle = ".trans" if transposed else ""
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{middle}.b16.p3"
    if count == 1:
        return [f.call(name, "i32", pointer, declare=True)]
    both = f.call(name, "{ " + ", ".join(["i32"] * count) + " }", pointer, declare=True)
    return [f.emit("i32", f"extractvalue {both}, {n}") for n in range(count)]
