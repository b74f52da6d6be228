"""wgmma: asynchronous products by a warp group, B (and A) in shared memory by descriptors.

A chain of products on the same accumulator registers captures them at its first product; they are
in flight until the `wait_group` that retires the chain's last product, which writes them. Eager
runs multiply at the issue, lazy runs at the retirement.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .fragments import (
    ELEMENTS,
    accumulator_places,
    decode,
    from_matrix,
    operand_places,
    product,
    to_matrix,
)
from .matrix import expect_registers, items, unsupported
from .register_fences import unfenced
from .syntax import Immediate, Instruction, Operand, Register, Vector
from .table import Bound, operation
from .traffic import Traffic

if TYPE_CHECKING:
    from .engine import At, Batch

M = 64
_MASKS = {0: 0, 1: 7, 2: 3, 3: 1}  # code of the swizzle -> address bits 7-9 that are added
_WIDTH = {0: 16, 1: 128, 2: 64, 3: 32}  # bytes of a row of the swizzled pattern
_K = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}


@dataclass(frozen=True)
class Descriptor:
    """A matrix in shared memory: bits 0-13 address, 16-29 leading and 32-45 stride byte offset
    (all in units of 16 bytes), 49-51 base offset, 62-63 swizzle."""

    address: int
    leading: int
    stride: int
    base: int
    swizzle: int

    @staticmethod
    def of(bits: int) -> Descriptor:
        return Descriptor(
            (bits & 0x3FFF) << 4,
            (bits >> 16 & 0x3FFF) << 4,
            (bits >> 32 & 0x3FFF) << 4,
            bits >> 49 & 7,
            bits >> 62 & 3,
        )


@lru_cache(maxsize=1024)
def _relative(
    rows: int, row_bytes: int, leading: int, stride: int, swizzle: int, transposed: bool
) -> np.ndarray:
    """Addresses of 16-byte chunks from the start, before the swizzle.

    K-major: [row of M or N, chunk along k]. MN-major (`transposed`): [k, chunk along M or N], where
    `rows` counts k and `row_bytes` goes along M or N."""
    row, chunk = np.meshgrid(np.arange(rows), np.arange(row_bytes // 16), indexing="ij")
    width = _WIDTH[swizzle]
    if not transposed:
        if swizzle == 0:
            return row % 8 * 16 + row // 8 * stride + chunk * leading
        return row // 8 * stride + row % 8 * width + chunk * 16
    if swizzle == 0:
        return row % 8 * 16 + row // 8 * leading + chunk * stride
    inside = width // 16
    return chunk // inside * leading + row // 8 * stride + row % 8 * width + chunk % inside * 16


def chunk_addresses(
    descriptor: Descriptor, rows: int, row_bytes: int, transposed: bool
) -> np.ndarray:
    """Shared addresses of the 16-byte chunks of an operand (see `_relative`)."""
    found = descriptor.address + _relative(
        rows, row_bytes, descriptor.leading, descriptor.stride, descriptor.swizzle, transposed
    )
    return found ^ (found >> 7 & _MASKS[descriptor.swizzle]) << 4


@dataclass(eq=False)
class Chain:
    """Products on one set of accumulator registers; `value` as (64, n)."""

    registers: tuple[Operand, ...]
    value: np.ndarray
    open: int = 0  # products that are not retired


@dataclass(eq=False)
class Product:
    chain: Chain
    run: Any  # () -> None: updates chain.value
    words: tuple[np.ndarray, ...]  # of shared memory that it reads, for each operand
    a_registers: tuple[Operand, ...]
    number: int


@dataclass
class Group:
    """What a warp group has issued: products of the open group, committed groups."""

    threads: np.ndarray
    fenced: bool = False
    open: list[Product] = field(default_factory=list)
    committed: list[list[Product]] = field(default_factory=list)
    chains: dict[tuple[str, ...], Chain] = field(default_factory=dict)


def _groups(state: Batch) -> dict[int, Group]:
    found = state.data.get("warp groups")
    if found is None:
        found = state.data["warp groups"] = {}
        state.at_exit.append(_drain)
    return found


def _drain(state: Batch) -> None:
    for group in _groups(state).values():
        for one in [*sum(group.committed, []), *group.open]:
            if state.checks:
                text = "the warp group exits without waiting for this product"
                state.fault("exit", text, one.number, group.threads)


def rendezvous(at: At) -> list[np.ndarray]:
    """Threads of the warp groups that are here completely; others park until they are."""
    state = at.state
    here = []
    for number in np.unique(at.threads // 128):
        threads = np.arange(128 * number, 128 * number + 128)
        mine = at.threads // 128 == number
        if int(mine.sum()) == 128:
            here.append(threads)
            continue
        place = state.block_of[at.threads[mine][0]]

        def ready(threads: np.ndarray = threads, place: Any = place) -> bool:
            if threads[-1] >= state.T or not state.live[threads].all():
                text = "the 128 threads of a warp group execute it together; some are missing"
                at.fault("divergence", text)
            return bool((state.block_of[threads] == place).all())

        at.park(mine, ready, "the other warps of its warp group", again=True)
    return here


def _uniform(at: At, values: np.ndarray, mine: np.ndarray, what: str) -> int:
    chosen = values[mine]
    if (chosen != chosen[0]).any():
        at.fault("uniform", f"the {what} differs between threads of the warp group")
    return int(chosen[0])


@dataclass(frozen=True)
class _Form:
    n: int
    k: int
    d: str
    a: str
    b: str

    @property
    def d_registers(self) -> int:
        return self.n // 2 * ELEMENTS[self.d][0] // 32


def _form(instruction: Instruction) -> _Form:
    match = re.match(
        r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(?:satfinite\.)?"
        r"(f16|f32|s32)\.(\w+)\.(\w+?)(?:\.satfinite)?$",
        instruction.opcode,
    )
    if not match:
        raise unsupported(instruction, "only dense wgmma.mma_async.sync.aligned.m64nNkK is")
    n, k, d, a, b = int(match[1]), int(match[2]), match[3], match[4], match[5]
    narrow = {"e4m3", "e5m2"}
    integers = {"s8", "u8"}
    known = a in _K and (a == b or {a, b} <= narrow or {a, b} <= integers)
    fits = d == "s32" if a in integers else d == "f32" or a in ("f16", "e4m3", "e5m2")
    if not known or not fits or (d == "s32") != (a in integers):
        raise unsupported(instruction, f"no product of {a} and {b} into {d}")
    widths = (8, 16, 24, *range(32, 257, 16)) if d == "s32" else range(8, 257, 8)
    if k != _K[a] or n not in widths:
        raise unsupported(instruction, f"no shape m64n{n}k{k} for {a}")
    return _Form(n, k, d, a, b)


def _constant(instruction: Instruction, operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise unsupported(instruction, "scales and transposes are constants")
    return operand.value


@operation("wgmma.mma_async.sp")
def wgmma_sparse(instruction: Instruction) -> Bound:
    raise unsupported(instruction, "sparse products are not")


@operation("wgmma.mma_async")
def wgmma(instruction: Instruction) -> Bound:
    form = _form(instruction)
    d, a, b, scale_d, *rest = instruction.operands
    expect_registers(instruction, d, form.d_registers, "D")
    in_registers = isinstance(a, Vector)
    if in_registers:
        expect_registers(instruction, a, 4, "A")
    constants = [_constant(instruction, operand) for operand in rest]
    half = form.a in ("f16", "bf16")
    wanted = 0 if form.d == "s32" else (2 if not half else 3 if in_registers else 4)
    if len(constants) != wanted:
        raise unsupported(instruction, f"it takes {wanted} constants behind scale-d")
    signs = (constants[0], constants[1]) if constants else (1, 1)
    transposes = (False, False)
    if half:
        transposes = (False, bool(constants[2])) if in_registers else (
            bool(constants[2]), bool(constants[3]))  # fmt: skip
    a_items = a.items if isinstance(a, Vector) else (a,)
    made = _Wgmma(
        form, a_items, items(d), in_registers, signs, transposes, "satfinite" in instruction.parts
    )
    sources: list[tuple[Operand, str]] = [(r, "u4" if in_registers else "u8") for r in a_items]
    sources.append((b, "u8"))
    is_predicate = isinstance(scale_d, Register) and scale_d.type == "pred"
    sources.append((scale_d, "b1" if is_predicate else "u4"))
    sources += [(register, "u4") for register in made.d_items]
    return Bound(made.run, tuple(sources), blocking=True)


@dataclass(frozen=True)
class _Wgmma:
    """One instruction: A is in registers, or A and B are where descriptors say."""

    form: _Form
    a_items: tuple[Operand, ...]
    d_items: tuple[Operand, ...]
    in_registers: bool
    signs: tuple[int, int]
    transposes: tuple[bool, bool]
    saturate: bool

    def run(self, at: At, *values: np.ndarray) -> None:
        """values: of the registers of A or its descriptor, of B's, of the scale, of D."""
        for threads in rendezvous(at):
            self._issue(at, threads, values)

    def _issue(self, at: At, threads: np.ndarray, values: Sequence[np.ndarray]) -> None:
        """The product of one warp group."""
        state, form, count = at.state, self.form, len(self.a_items)
        mine = np.isin(at.threads, threads)
        group = _groups(state).setdefault(int(threads[0]) // 128, Group(threads))
        if state.checks and not group.fenced:
            at.fault("fence", "wgmma.fence has to come before the first product")
        register = unfenced(state.program).get(at.node.number) if state.checks else None
        if register is not None:
            text = f"register {register} was used after the last wgmma.fence before it"
            at.fault("fence", text)
        bits = ELEMENTS[form.a][0]
        b_at = _uniform(at, values[count], mine, "descriptor of B")
        scale = bool(_uniform(at, values[count + 1], mine, "scale of D"))
        b_chunks = _operand(at, threads, b_at, form.n, bits, form.k, self.transposes[1], "B")
        index: list[np.ndarray] = [b_chunks]
        left, a_chunks = None, None
        if self.in_registers:
            words = np.stack([values[i][mine] for i in range(4)], -1)[None]
            left = to_matrix(decode(words, form.a), operand_places(M, form.k, bits, 128),
                             M, form.k)[0]  # fmt: skip
        else:
            a_at = _uniform(at, values[0], mine, "descriptor of A")
            a_chunks = _operand(at, threads, a_at, M, bits, form.k, self.transposes[0], "A")
            index.append(a_chunks)
        key = tuple(register.name for register in self.d_items if isinstance(register, Register))
        chain = _chain(at, group, key, self.d_items, form, values[count + 2 :], mine)
        for words in index:
            Traffic.of(state).begin_read(at, words, "wgmma")
        multiply = partial(self._multiply, state, chain, left, a_chunks, b_chunks, scale)
        chain.open += 1
        read = self.a_items if self.in_registers else ()
        one = Product(chain, multiply, tuple(index), read, at.node.number)
        if state.mode == "eager":
            multiply()
            one.run = None
        group.open.append(one)
        if chain.open == 1:
            state.fly(self.d_items, threads, "accumulator")
        if self.in_registers:
            state.fly(self.a_items, threads, "operand")

    def _multiply(
        self, state: Batch, chain: Chain, left: Any, a_chunks: Any, b_chunks: np.ndarray,
        scale: bool,
    ) -> None:  # fmt: skip
        form = self.form
        first = left if left is not None else _gather(state, a_chunks, form.a, self.transposes[0])
        second = _gather(state, b_chunks, form.b, self.transposes[1])
        if self.signs[0] == -1:
            first = -first
        if self.signs[1] == -1:
            second = -second
        old = chain.value.astype(np.float32) if form.d == "f16" else chain.value
        chain.value = product(first, second.T, old if scale else None, form.d, self.saturate)


def _operand(
    at: At, threads: np.ndarray, bits_of: int, extent: int, bits: int, k: int, transposed: bool,
    name: str,
) -> np.ndarray:  # fmt: skip
    """Words in `state.shared` of an operand: [row, word]."""
    descriptor = Descriptor.of(bits_of)
    state = at.state
    width = _WIDTH[descriptor.swizzle]
    if descriptor.base:
        at.fault("descriptor", f"descriptor of {name} has a base offset, which is not simulated")
    if descriptor.swizzle and descriptor.address >> 7 & _MASKS[descriptor.swizzle]:
        at.fault(
            "alignment",
            f"descriptor of {name} starts at {descriptor.address}, inside of a pattern of "
            f"{width * 8} bytes (swizzle of {width} bytes)",
        )
    if transposed:
        chunks = chunk_addresses(descriptor, k, extent * bits // 8, True)
    else:
        chunks = chunk_addresses(descriptor, extent, k * bits // 8, False)
    end = int(chunks.max()) + 16
    if end > state.shared_bytes:
        at.fault(
            "bounds",
            f"{name} ends at shared address {end}, the block has {state.shared_bytes} bytes",
        )
    base = int(threads[0]) // state.threads_per_cta * state.shared_stride
    words = ((chunks + base) // 4)[:, :, None] + np.arange(4)
    return words.reshape(chunks.shape[0], -1)


def _gather(state: Batch, index: np.ndarray, element: str, transposed: bool) -> np.ndarray:
    """(M or N, k) of values."""
    values = decode(state.shared_view("u4")[index], element)
    return values.T if transposed else values


def _chain(
    at: At, group: Group, key: tuple[str, ...], registers: Sequence[Operand], form: _Form,
    values: Sequence[np.ndarray], mine: np.ndarray,
) -> Chain:  # fmt: skip
    found = group.chains.get(key)
    if found is not None:
        return found
    names = set(key)
    for other in group.chains:
        if names & set(other):
            at.fault(
                "in-flight",
                "accumulators overlap with those of a product in flight of another shape",
            )
    words = np.stack([value[mine] for value in values], -1)[None]
    matrix = to_matrix(decode(words, form.d), accumulator_places(M, form.n, 128), M, form.n)[0]
    chain = group.chains[key] = Chain(tuple(registers), matrix)
    return chain


@operation("wgmma.fence")
def wgmma_fence(instruction: Instruction) -> Bound:
    def run(at: At) -> None:
        for threads in rendezvous(at):
            _groups(at.state).setdefault(int(threads[0]) // 128, Group(threads)).fenced = True

    return Bound(run, blocking=True)


@operation("wgmma.commit_group")
def wgmma_commit(instruction: Instruction) -> Bound:
    def run(at: At) -> None:
        for threads in rendezvous(at):
            group = _groups(at.state).setdefault(int(threads[0]) // 128, Group(threads))
            group.committed.append(group.open)
            group.open = []

    return Bound(run, blocking=True)


@operation("wgmma.wait_group")
def wgmma_wait(instruction: Instruction) -> Bound:
    keep = _constant(instruction, instruction.operands[0])

    def run(at: At) -> None:
        for threads in rendezvous(at):
            group = _groups(at.state).setdefault(int(threads[0]) // 128, Group(threads))
            while len(group.committed) > keep:
                _retire(at.state, group, group.committed.pop(0))

    return Bound(run, blocking=True)


def _retire(state: Batch, group: Group, products: list[Product]) -> None:
    for one in products:
        if one.run is not None:
            one.run()
        for words in one.words:
            Traffic.of(state).end_read(words)
        one.chain.open -= 1
    later = {
        register.name
        for other in [*sum(group.committed, []), *group.open]
        for register in other.a_registers
        if isinstance(register, Register)
    }
    for one in products:
        done = [r for r in one.a_registers if isinstance(r, Register) and r.name not in later]
        state.land(done, group.threads)
    for key, chain in list(group.chains.items()):
        if chain.open == 0:
            del group.chains[key]
            _write(state, group.threads, chain)


def _write(state: Batch, threads: np.ndarray, chain: Chain) -> None:
    """Accumulators become readable."""
    values = from_matrix(chain.value[None], accumulator_places(M, chain.value.shape[1], 128))[0]
    words = np.ascontiguousarray(values).view(np.uint32)
    state.land(chain.registers, threads)
    for position, register in enumerate(chain.registers):
        state.set_register(register, threads, words[:, position], "u4")
