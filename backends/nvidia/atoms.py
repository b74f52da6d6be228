"""Copy and matrix instructions of each architecture, as tables.

How fast units are that run them is said by the machine's file (`machines/`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ...hlo.graph import Op
from ...hlo.precision import TF32, may_use_tf32
from . import layouts
from .layouts import LinearLayout
from .target import Architecture

Space = Literal["register", "shared", "tensor memory"]


@dataclass(frozen=True)
class MatrixAtom:
    """D[m, n] = A[m, k] B[k, n] + D by the `threads` of a warp (32), a warp group (128), or one
    issuing thread (1). Element types by their names in girih; `instruction`: the PTX opcode, types
    excepted."""

    instruction: str
    m: int
    n: int
    k: int
    a: str
    b: str
    accumulator: str
    a_spaces: tuple[Space, ...]
    b_space: Space
    accumulator_space: Space
    threads: int
    versions: tuple[int, ...]  # of the architectures that have it
    asynchronous: bool = False

    @property
    def opcode(self) -> str:
        """The whole PTX opcode of mma.sync and wgmma."""
        d, a, b = PTX_NAMES[self.accumulator], PTX_NAMES[self.a], PTX_NAMES[self.b]
        if self.instruction == "tcgen05.mma":
            return f"tcgen05.mma.cta_group::1.kind::{_KINDS[self.a]}"
        shape = f"m{self.m}n{self.n}k{self.k}"
        if self.instruction == "mma.sync.aligned":
            return f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d}"
        return f"{self.instruction}.{shape}.{d}.{a}.{b}"

    def operands(self) -> tuple[LinearLayout, LinearLayout, LinearLayout]:
        """Layouts of A (m, k), B (k, n) and the accumulator (m, n) of mma.sync in registers."""
        if self.instruction != "mma.sync.aligned":
            raise ValueError(f"{self.opcode} takes operands from memory")
        a_bits, b_bits = BITS[self.a], BITS[self.b]
        return (
            layouts.mma_a(self.m, self.k, a_bits),
            layouts.mma_b(self.k, self.n, b_bits),
            layouts.mma_accumulator(self.m, self.n),
        )


BITS = {
    "f16": 16, "bf16": 16, "f32": 32, "tf32": 32, "f64": 64, "i8": 8, "ui8": 8, "i32": 32,
    "f8E4M3FN": 8, "f8E5M2": 8,
}  # fmt: skip
PTX_NAMES = {
    "f16": "f16", "bf16": "bf16", "f32": "f32", "tf32": "tf32", "f64": "f64", "i8": "s8",
    "ui8": "u8", "i32": "s32", "f8E4M3FN": "e4m3", "f8E5M2": "e5m2",
}  # fmt: skip
_KINDS = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "i8": "i8", "ui8": "i8",
          "f8E4M3FN": "f8f6f4", "f8E5M2": "f8f6f4"}  # fmt: skip
_FP8 = ("f8E4M3FN", "f8E5M2")
_INT8 = ("i8", "ui8")

_ALL, _NARROW = (80, 86, 89, 90, 100, 120), (89, 90, 100, 120)  # versions


def _synchronous() -> tuple[MatrixAtom, ...]:
    rows: list[tuple[tuple[int, int, int], str, str, str, tuple[int, ...]]] = []
    for k in (16, 8):
        rows += [((16, 8, k), t, t, "f32", _ALL) for t in ("bf16", "f16")]
        rows.append(((16, 8, k), "f16", "f16", "f16", _ALL))
        rows.append(((16, 8, k // 2), "tf32", "tf32", "f32", _ALL))
    rows += [((16, 8, k), a, b, "i32", _ALL) for k in (32, 16) for a in _INT8 for b in _INT8]
    rows += [((16, 8, 32), a, b, "f32", _NARROW) for a in _FP8 for b in _FP8]
    rows.append(((8, 8, 4), "f64", "f64", "f64", _ALL))
    return tuple(
        MatrixAtom(
            "mma.sync.aligned", m, n, k, a, b, c,
            ("register",), "register", "register", 32, versions,
        )
        for (m, n, k), a, b, c, versions in rows
    )  # fmt: skip


WGMMA_WIDTHS = tuple(range(8, 257, 8))
# Integer accumulators come in fewer widths.
WGMMA_INTEGER_WIDTHS = (8, 16, 24, *range(32, 257, 16))


def _warpgroup() -> tuple[MatrixAtom, ...]:
    rows = [(16, t, t, "f32") for t in ("bf16", "f16")]
    rows += [(16, "f16", "f16", "f16"), (8, "tf32", "tf32", "f32")]
    rows += [(32, a, b, "f32") for a in _FP8 for b in _FP8]
    rows += [(32, a, b, "i32") for a in _INT8 for b in _INT8]
    return tuple(
        MatrixAtom(
            "wgmma.mma_async.sync.aligned", 64, n, k, a, b, c,
            ("shared", "register"), "shared", "register", 128, (90,), asynchronous=True,
        )
        for k, a, b, c in rows
        for n in (WGMMA_INTEGER_WIDTHS if c == "i32" else WGMMA_WIDTHS)
    )  # fmt: skip


def _tensor_memory() -> tuple[MatrixAtom, ...]:
    rows = [(16, t, t, "f32") for t in ("bf16", "f16")]
    rows += [(8, "tf32", "tf32", "f32")]
    rows += [(32, a, b, "f32") for a in _FP8 for b in _FP8]
    rows += [(32, a, b, "i32") for a in _INT8 for b in _INT8]
    return tuple(
        MatrixAtom(
            "tcgen05.mma", 128, n, k, a, b, c, ("shared", "tensor memory"), "shared",
            "tensor memory", 1, (100,), asynchronous=True,
        )
        for k, a, b, c in rows
        for n in range(16, 257, 16)
    )  # fmt: skip


MATRIX_ATOMS = (*_synchronous(), *_warpgroup(), *_tensor_memory())


def matrix_atoms(
    architecture: Architecture, a: str, b: str, accumulator: str
) -> tuple[MatrixAtom, ...]:
    """Atoms that the architecture has for these element types; tf32 stands for rounded f32.
    wgmma and tcgen05 need the architecture's own ("a") instructions."""
    return tuple(
        atom
        for atom in MATRIX_ATOMS
        if (atom.a, atom.b, atom.accumulator) == (a, b, accumulator)
        and architecture.version in atom.versions
        and (not atom.asynchronous or architecture.accelerated)
    )


def contraction_atoms(op: Op, architecture: Architecture) -> tuple[MatrixAtom, ...]:
    """Atoms that multiply a contraction's elements."""
    left, right = (value.element.name for value in op.operands[:2])
    if may_use_tf32(op):
        left = right = TF32
    element = op.result.element
    wide = element.name if not element.is_float or element.bits > 32 else "f32"
    return matrix_atoms(architecture, left, right, wide)


def best_atom(atoms: Iterable[MatrixAtom], m: int, n: int, k: int) -> MatrixAtom | None:
    """That with the most useful multiply-adds of an issue for a tile of (m, n, k), the smallest one
    among equals; None of none. Short instructions are issued no more often than long ones."""

    def useful(size: int, step: int) -> float:
        return size / -(-size // step)

    def speed(atom: MatrixAtom) -> tuple[float, int]:
        each = useful(m, atom.m) * useful(n, atom.n) * useful(k, atom.k)
        return each, -atom.m * atom.n * atom.k

    return max(atoms, key=speed, default=None)


Memory = Literal["global", "shared", "register"]


@dataclass(frozen=True)
class CopyAtom:
    """One way to move bytes. `bytes`: of one instruction (per thread where `threads` is 32;
    bulk copies: the least unit, any multiple is allowed); addresses are multiples of `alignment`.
    `completion`: what says that the data are there."""

    instruction: str
    source: Memory
    destination: Memory
    bytes: int
    threads: int = 32  # that issue it together: 1 or 32
    completion: Literal["program order", "group", "mbarrier", "bulk group"] = "program order"
    alignment: int = 0  # 0: of its bytes
    least_architecture: int = 80
    tensor: bool = False  # addresses by a tensor map: box, swizzle, bounds


def _copies() -> tuple[CopyAtom, ...]:
    found: list[CopyAtom] = []
    for bytes_, suffix in ((16, "v4.b32"), (8, "v2.b32"), (4, "b32"), (2, "b16"), (1, "b8")):
        spaces: tuple[Memory, ...] = ("global", "shared")
        for space in spaces:
            found.append(CopyAtom(f"ld.{space}.{suffix}", space, "register", bytes_))
            found.append(CopyAtom(f"st.{space}.{suffix}", "register", space, bytes_))
    for bytes_, cache in ((16, "cg"), (8, "ca"), (4, "ca")):
        name = f"cp.async.{cache}.shared.global"
        found.append(CopyAtom(name, "global", "shared", bytes_, completion="group"))
    matrices, bulk = "matrix.sync.aligned.m8n8.x4.shared.b16", "cp.async.bulk"
    return (
        *found,
        CopyAtom(f"ld{matrices}", "shared", "register", 16),
        CopyAtom(f"st{matrices}", "register", "shared", 16, least_architecture=90),
        CopyAtom(f"{bulk}.shared::cluster.global.mbarrier::complete_tx::bytes", "global", "shared",
                 16, 1, "mbarrier", least_architecture=90),
        CopyAtom(f"{bulk}.global.shared::cta.bulk_group", "shared", "global", 16, 1, "bulk group",
                 least_architecture=90),
        CopyAtom(f"{bulk}.tensor", "global", "shared", 16, 1, "mbarrier", 128, 90, True),
        CopyAtom(f"{bulk}.tensor", "shared", "global", 16, 1, "bulk group", 128, 90, True),
    )  # fmt: skip


COPY_ATOMS = _copies()
# Bytes that one access of a thread moves at most.
ACCESS_BYTES = max(atom.bytes for atom in COPY_ATOMS if atom.threads == 32)


def thread_copy(
    architecture: Architecture, source: Memory, destination: Memory, bytes_: int
) -> CopyAtom | None:
    """The copy of `bytes_` neighbouring bytes that each thread of a warp starts; None where there
    is none."""
    return next(
        (
            atom
            for atom in COPY_ATOMS
            if (atom.source, atom.destination, atom.bytes) == (source, destination, bytes_)
            and atom.threads == 32
            and atom.least_architecture <= architecture.version
        ),
        None,
    )
