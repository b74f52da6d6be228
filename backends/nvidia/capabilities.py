"""What kernels of an architecture are made of, from the tables of its instructions."""

from __future__ import annotations

import functools

from ..capabilities import BoxCopies, Capabilities, MatrixUnit, RowParts
from ..llvm import arithmetic
from . import layouts
from .atoms import ACCESS_BYTES, BITS, MATRIX_ATOMS, MatrixAtom
from .target import Architecture

_ROW, _WORD = 16, 4  # bytes of rows that the copy engine takes, and those that threads copy
# Of tensor maps: PTX ISA, sections on tensors and on cp.async.bulk.tensor.
_TENSOR_COPIES = BoxCopies(5, 256, 8, (128, 64, 32), 1024, _ROW)
ROW_PARTS = RowParts(256, 4)


@functools.cache
def capabilities(architecture: Architecture) -> Capabilities:
    """Of what is emitted: mma.sync, and wgmma where there is the pipeline for it."""
    atoms: dict[tuple[object, ...], list[MatrixAtom]] = {}
    for atom in MATRIX_ATOMS:
        there = architecture.warpgroups if atom.asynchronous else True
        if there and architecture.version in atom.versions:
            key = atom.asynchronous, atom.a, atom.b, atom.accumulator, atom.m, atom.k
            atoms.setdefault(key, []).append(atom)
    return Capabilities(
        f"nvidia:{architecture.name}", tuple(map(_unit, atoms.values())), ACCESS_BYTES,
        architecture.shared_bytes, architecture.multiprocessors, arithmetic.FORMULAS, ROW_PARTS,
        architecture.clusters, _TENSOR_COPIES if architecture.tensor_copies else None,
    )  # fmt: skip


def _unit(atoms: list[MatrixAtom]) -> MatrixUnit:
    """wgmma reads 16 bits across the sum, as mma.sync does, which reads words so as well."""
    one, bits = atoms[0], BITS[atoms[0].a]
    wide, row_bytes = ((16,), _ROW) if one.asynchronous else ((16, 32, 64), _WORD)
    return MatrixUnit(
        one.a, one.b, one.accumulator, bits, (one.m, min(atom.n for atom in atoms), one.k),
        tuple(atom.n for atom in atoms), one.threads, bits not in wide, row_bytes,
        one.asynchronous, one.asynchronous and _chains(bits),
    )  # fmt: skip


def _chains(bits: int) -> bool:
    """Whether accumulators of wgmma, cut to so many bits, lie as its left operand does."""
    depth = 256 // bits
    made, wanted = layouts.wgmma_accumulator(depth), layouts.wgmma_a(depth, bits)
    return layouts.convert(made, wanted, bits).kind == "none"
