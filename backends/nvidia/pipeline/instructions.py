"""Hopper's asynchronous instructions as LLVM IR, one typed function each.

Facts: PTX ISA 8.3, sections on wgmma, mbarrier, cp.async.bulk and setmaxnreg. What LLVM has an
intrinsic for is one; `wgmma.mma_async` is inline assembly, whose accumulators are tied in and out,
so that LLVM never moves them while they are in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ....hlo.precision import TF32
from ...capabilities import MatrixUnit
from ...llvm import Function, Operand, Value, constant
from ..atoms import BITS, MATRIX_ATOMS, MatrixAtom

SHARED = "ptr addrspace(3)"
CLUSTER = "ptr addrspace(7)"  # shared memory of any block of the cluster
WARPGROUP = 128  # threads
SWIZZLE_CODES = {0: 0, 128: 1, 64: 2, 32: 3}  # of a matrix descriptor, by bytes


def _call(f: Function, name: str, returns: str, *operands: Value) -> Value:
    return f.call(f"llvm.nvvm.{name}", returns, *operands, declare=True)


def _i32(f: Function, value: Operand) -> Value:
    return f.lift(value, "i32")


# Shared memory.


def shared(f: Function, offset: Operand) -> Value:
    """The address of a byte of the block's shared memory."""
    at = _i32(f, offset)
    if at.number == 0:
        return Value(SHARED, "@shared")
    return f.emit(SHARED, f"getelementptr i8, {SHARED} @shared, {at}")


def address(f: Function, pointer: Value) -> Value:
    """A shared address as an i32."""
    return f.emit("i32", f"ptrtoint {pointer} to i32")


def _of_cluster(f: Function, pointer: Value) -> Value:
    return f.emit(CLUSTER, f"addrspacecast {pointer} to {CLUSTER}")


# Threads.


def uniform(f: Function, value: Value) -> Value:
    """Lane 0's i32 in all lanes: the assembler then knows that the warp agrees on it."""
    whole, lane, control = constant("i32", -1), constant("i32", 0), constant("i32", 31)
    return _call(f, "shfl.sync.idx.i32", "i32", whole, value, lane, control)


def elect(f: Function) -> Value:
    """True in one lane of the warp."""
    pair = _call(f, "elect.sync", "{i32, i1}", constant("i32", -1))
    return f.emit("i1", f"extractvalue {pair}, 1")


def take_registers(f: Function, count: int) -> None:
    """The warp group's threads get `count` registers each, once others have given theirs."""
    _call(f, "setmaxnreg.inc.sync.aligned.u32", "void", constant("i32", count))


def give_registers(f: Function, count: int) -> None:
    """The warp group's threads keep `count` registers each."""
    _call(f, "setmaxnreg.dec.sync.aligned.u32", "void", constant("i32", count))


def meet(f: Function, barrier: Operand, threads: int) -> None:
    """`threads` threads meet at a named barrier; it stays one barrier where its number is known."""
    name = "barrier.cta.sync.aligned.count"
    _call(f, name, "void", _i32(f, barrier), constant("i32", threads))


def announce(f: Function, barrier: Operand, threads: int) -> None:
    """Counts at a named barrier without waiting there."""
    name = "barrier.cta.arrive.aligned.count"
    _call(f, name, "void", _i32(f, barrier), constant("i32", threads))


def cluster_arrive(f: Function, *, relaxed: bool = False) -> None:
    _call(f, f"barrier.cluster.arrive{'.relaxed' if relaxed else ''}.aligned", "void")


def cluster_wait(f: Function) -> None:
    _call(f, "barrier.cluster.wait.aligned", "void")


# Barriers in shared memory that count arrivals and bytes (mbarrier).


def barrier_start(f: Function, barrier: Value, arrivals: int) -> None:
    _call(f, "mbarrier.init.shared", "void", barrier, constant("i32", arrivals))


def barriers_started(f: Function) -> None:
    """Makes started barriers known to the cluster and to the copy engine."""
    _call(f, "fence.mbarrier_init.release.cluster", "void")


def barrier_expect(f: Function, barrier: Value, count: int) -> None:
    """Arrives, and lets the phase last until `count` bytes have come."""
    name = "mbarrier.arrive.expect.tx.scope.cta.space.cta"
    _call(f, name, "i64", barrier, constant("i32", count))


def barrier_arrive(f: Function, barrier: Value, rank: Value | None = None) -> None:
    """Arrives at the own barrier, or at that of the block `rank` of the cluster.

    It says that products have read a stage, no more, so it releases at the scope of the block: the
    scope of the cluster would make every turn of a loop wait for the whole GPU's memory.
    """
    one = constant("i32", 1)
    if rank is None:
        _call(f, "mbarrier.arrive.scope.cta.space.cta", "i64", barrier, one)
    else:
        there = _call(f, "mapa.shared.cluster", CLUSTER, barrier, rank)
        _call(f, "mbarrier.arrive.scope.cta.space.cluster", "void", there, one)


def barrier_wait(f: Function, barrier: Value, parity: Operand) -> None:
    """Waits until the phase of that parity is over."""
    spin, done = f.label(), f.label()
    f.jump(spin)
    f.start_block(spin)
    name = "mbarrier.try.wait.parity.scope.cta.space.cta"
    over = _call(f, name, "i1", barrier, _i32(f, parity))
    f.branch(over, done, spin)
    f.start_block(done)


# The copy engine.


def prefetch_map(f: Function, tensor_map: Value) -> None:
    _call(f, "prefetch.tensormap.p0", "void", tensor_map)


def copy_in(
    f: Function,
    target: Value,
    barrier: Value,
    tensor_map: Value,
    coordinates: Sequence[Value],
    blocks: int = 0,
) -> None:
    """A box to shared memory; its bytes count at the barrier. `blocks`: a mask of the cluster's
    blocks that all get it, at the same offsets; 0 is the own one."""
    bits = [constant("i16", blocks), constant("i64", 0), constant("i1", bool(blocks))]
    name = f"cp.async.bulk.tensor.g2s.tile.{len(coordinates)}d"
    _call(
        f, name, "void", _of_cluster(f, target), barrier, tensor_map, *coordinates, *bits,
        constant("i1", False), constant("i32", 0),
    )  # fmt: skip


def copy_out(f: Function, source: Value, tensor_map: Value, coordinates: Sequence[Value]) -> None:
    """A box from shared memory; elements outside of the tensor are dropped."""
    name = f"cp.async.bulk.tensor.s2g.tile.{len(coordinates)}d"
    ending = constant("i64", 0), constant("i1", False)
    _call(f, name, "void", source, tensor_map, *coordinates, *ending)


def copies_commit(f: Function) -> None:
    _call(f, "cp.async.bulk.commit.group", "void")


def copies_read(f: Function, pending: int = 0) -> None:
    """Waits until at most `pending` groups of this thread's copies still read shared memory."""
    _call(f, "cp.async.bulk.wait.group.read", "void", constant("i32", pending))


def publish(f: Function) -> None:
    """What this thread has stored to shared memory becomes visible to asynchronous readers."""
    _call(f, "fence.proxy.async.shared_cta", "void")


def store_matrices(f: Function, pointer: Value, words: Sequence[Value]) -> None:
    """Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix
    l / 8, and of each matrix two elements."""
    name = "stmatrix.sync.aligned.m8n8.x4.b16.p3"
    _call(f, name, "void", pointer, *words)


# Matrix products of a warp group.


@dataclass(frozen=True)
class MatrixKind:
    """wgmma of two types of elements: its atoms by the columns that they multiply."""

    atoms: dict[int, MatrixAtom]

    @cached_property
    def any(self) -> MatrixAtom:
        return next(iter(self.atoms.values()))

    @property
    def bits(self) -> int:
        """Of an element."""
        return BITS[self.any.a]

    @property
    def depth(self) -> int:
        """Of one step."""
        return self.any.k

    @property
    def sums(self) -> str:
        return "i32" if self.any.accumulator == "i32" else "float"

    @property
    def transposes(self) -> bool:
        """Whether operands may lie in memory with the depth first."""
        return self.bits == 16


def _kinds() -> dict[tuple[str, str], MatrixKind]:
    """By the element types of the left and the right operand, in sums of 32 bits."""
    found: dict[tuple[str, str], dict[int, MatrixAtom]] = {}
    for atom in MATRIX_ATOMS:
        if atom.threads == WARPGROUP and BITS[atom.accumulator] == 32:
            types = tuple("f32" if name == TF32 else name for name in (atom.a, atom.b))
            found.setdefault((types[0], types[1]), {})[atom.n] = atom
    return {types: MatrixKind(atoms) for types, atoms in found.items()}


KINDS = _kinds()
ROWS = 64  # of one wgmma


def matrix_kind(unit: MatrixUnit) -> MatrixKind:
    """What the optimizer has chosen, with its instructions."""
    left, right = ("f32" if name == TF32 else name for name in (unit.left, unit.right))
    return KINDS[left, right]


@dataclass(frozen=True)
class WgmmaStep:
    """One wgmma: operands as descriptors (i64), the left one also as four words of this thread;
    `keep`: whether it adds to the accumulators; an i32 decides while running."""

    left: Value | Sequence[Value]
    right: Value
    keep: Value | bool = True


def matrix_fence(f: Function, values: Sequence[Value] = ()) -> list[Value]:
    """Orders what this thread did to registers before the products that follow; `values` that
    those use are computed, and copied, before it."""
    if not values:
        _call(f, "wgmma.fence.sync.aligned", "void")
        return []
    tied = map(str, range(len(values)))
    listed = ",".join([*_outputs(values), *tied, "~{memory}"])
    return _struct(f, "wgmma.fence.sync.aligned;", listed, values, values)


def matrix_commit(f: Function) -> None:
    _call(f, "wgmma.commit_group.sync.aligned", "void")


def matrix_multiply(
    f: Function,
    kind: MatrixKind,
    columns: int,
    accumulators: Sequence[Value],
    steps: Sequence[WgmmaStep],
    *,
    left_depth_first: bool = False,
    right_depth_first: bool = False,
) -> list[Value]:
    """Starts products that all add to the same accumulators, 64 rows x `columns`; the results are
    there after `matrix_wait`. Accumulators that the first step does not keep may be poison."""
    count = len(accumulators)
    constraints: list[str] = []
    arguments: list[Value] = []
    opcode, integers = kind.atoms[columns].opcode, kind.sums == "i32"

    def given(constraint: str, value: Value) -> str:
        constraints.append(constraint)
        arguments.append(value)
        return f"${count + len(constraints) - 1}"

    registers = ", ".join(f"${number}" for number in range(count))
    lines: list[str] = []
    for step in steps:
        flags = "" if integers else ", 1, 1"
        if isinstance(step.left, Value):
            left = given("l", step.left)
            if kind.transposes:
                flags += f", {int(left_depth_first)}"
        else:
            left = "{" + ", ".join(given("r", word) for word in step.left) + "}"
        right = given("l", step.right)
        if kind.transposes:
            flags += f", {int(right_depth_first)}"
        keep = step.keep if isinstance(step.keep, bool) else given("r", step.keep)
        scale = str(int(keep)) if isinstance(keep, bool) else "p"
        line = f"{opcode} {{{registers}}}, {left}, {right}, {scale}{flags};"
        if not isinstance(keep, bool):
            line = f"{{ .reg .pred p; setp.ne.b32 p, {keep}, 0; {line} }}"
        lines.append(line + "\\0A\\09")
    tied = [str(number) for number in range(count)]
    listed = ",".join([*_outputs(accumulators), *constraints, *tied, "~{memory}"])
    return _struct(f, "".join(lines), listed, [*arguments, *accumulators], accumulators)


def matrix_wait(f: Function, pending: int, accumulators: Sequence[Value]) -> list[Value]:
    """Waits until at most `pending` committed groups run; the accumulators as they are then."""
    tied = map(str, range(len(accumulators)))
    listed = ",".join([*_outputs(accumulators), *tied, "~{memory}"])
    text = f"wgmma.wait_group.sync.aligned {pending};"
    return _struct(f, text, listed, accumulators, accumulators)


def _outputs(accumulators: Sequence[Value]) -> list[str]:
    return ["=f" if one.type == "float" else "=r" for one in accumulators]


def _struct(
    f: Function, text: str, constraints: str, arguments: Sequence[Value], results: Sequence[Value]
) -> list[Value]:
    kind = "{" + ", ".join(one.type for one in results) + "}"
    given = ", ".join(map(str, arguments))
    whole = f.emit(
        kind, f'call {kind} asm sideeffect "{text}", "{constraints}"({given}) convergent'
    )
    return [f.emit(one.type, f"extractvalue {whole}, {n}") for n, one in enumerate(results)]


def descriptor(f: Function, start: Value, leading: int, stride: int, swizzle: int) -> Value:
    """How a matrix lies in shared memory: `start` its address (i32), `leading` and `stride` the
    bytes between neighbouring blocks across and along, `swizzle` in bytes."""
    fixed = (leading >> 4 & 0x3FFF) << 16 | (stride >> 4 & 0x3FFF) << 32
    fixed |= SWIZZLE_CODES[swizzle] << 62
    if fixed >> 63:
        fixed -= 1 << 64
    low = f.land(f.lshr(start, 4), 0x3FFF)
    return f.lor(f.cast("zext", low, "i64"), constant("i64", fixed))


def pin(f: Function, values: Sequence[Value]) -> None:
    """What computes these floats stays before what follows: the assembler moves waits for products
    over plain arithmetic, but not over a branch that depends on it. The branch is hardly taken,
    and does nothing."""
    if not values:
        return
    odd = constant("float", -1.9375 * 2.0**126)
    taken = f.compare("oeq", values[0], odd)
    for value in values[1:]:
        taken = f.lor(taken, f.compare("oeq", value, odd))
    with f.if_then(taken):
        f.line('call void asm sideeffect "nanosleep.u32 0;", "~{memory}"()')


def exponential2(f: Function, x: Value) -> Value:
    """2**x of the special function unit; small results are 0."""
    return _call(f, "ex2.approx.ftz.f", "float", x)


def reciprocal(f: Function, x: Value) -> Value:
    """1 / x of the special function unit, of a normal x."""
    return _call(f, "rcp.approx.ftz.f", "float", x)


def pack(f: Function, low: Value, high: Value, element: str) -> Value:
    """Two floats rounded to 16-bit floats ("bfloat" or "half") in one word."""
    narrow = f.cast("fptrunc", f.joined([low, high]), element)
    return f.bitcast(narrow, "i32")
