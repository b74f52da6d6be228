"""The tables of copy and matrix instructions."""

from __future__ import annotations

import pytest

from girih.backends.nvidia import atoms
from girih.backends.nvidia.target import ARCHITECTURES

SM = ARCHITECTURES


@pytest.mark.parametrize(
    ("name", "a", "accumulator", "size", "opcode"),
    [
        ("sm_80", "bf16", "f32", (128, 128, 32),
         "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
        ("sm_80", "tf32", "f32", (128, 128, 32),
         "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"),
        ("sm_80", "f64", "f64", (64, 64, 16), "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"),
        ("sm_89", "f8E4M3FN", "f32", (128, 128, 64),
         "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"),
        ("sm_90a", "bf16", "f32", (128, 256, 64),
         "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"),
        ("sm_90a", "i8", "i32", (64, 96, 64), "wgmma.mma_async.sync.aligned.m64n96k32.s32.s8.s8"),
        ("sm_90a", "bf16", "f32", (16, 8, 16),
         "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
        ("sm_100a", "f16", "f32", (128, 256, 64), "tcgen05.mma.cta_group::1.kind::f16"),
        ("sm_120a", "f16", "f16", (64, 64, 64),
         "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"),
    ],
)  # fmt: skip
def test_the_best_atom(name, a, accumulator, size, opcode):
    atom = atoms.best_matrix_atom(SM[name], a, a, accumulator, *size)
    assert atom is not None and atom.opcode == opcode
    assert atom.least_architecture <= SM[name].version


def test_what_an_architecture_lacks_is_not_offered():
    assert atoms.best_matrix_atom(SM["sm_80"], "f8E5M2", "f8E5M2", "f32", 64, 64, 64) is None
    assert atoms.best_matrix_atom(SM["sm_90a"], "f32", "f32", "f32", 64, 64, 64) is None
    synchronous = atoms.best_matrix_atom(
        SM["sm_90a"], "f16", "f16", "f32", 128, 256, 64, asynchronous=False
    )
    assert synchronous is not None and synchronous.threads == 32
    for name in ("sm_80", "sm_89", "sm_120a"):
        assert not any(a.asynchronous for a in atoms.matrix_atoms(SM[name], "f16", "f16", "f32"))


def test_operands_of_every_synchronous_atom_fill_whole_registers():
    for atom in atoms.MATRIX_ATOMS:
        if atom.instruction != "mma.sync.aligned":
            with pytest.raises(ValueError, match="from memory"):
                atom.operands()
            continue
        a, b, c = atom.operands()
        assert a.shape == (atom.m, atom.k) and b.shape == (atom.k, atom.n)
        for value in (a, b, c):
            assert value.is_injective and value.is_surjective
        assert c == atom.accumulator_layout().tile


def test_accumulators_of_warp_groups():
    atom = atoms.best_matrix_atom(SM["sm_90a"], "bf16", "bf16", "f32", 64, 176, 64)
    assert atom is not None and atom.n == 176 and atom.accumulator_layout().registers == 88
    blackwell = atoms.best_matrix_atom(SM["sm_100a"], "bf16", "bf16", "f32", 128, 128, 64)
    assert blackwell is not None
    with pytest.raises(ValueError, match="tensor memory"):
        blackwell.accumulator_layout()


def test_copies_by_alignment_and_architecture():
    wide = atoms.copy_atoms(SM["sm_80"], "global", "shared")
    assert [a.bytes for a in wide] == [16, 8, 4] and not any(a.tensor for a in wide)
    narrow = atoms.copy_atoms(SM["sm_80"], "global", "shared", alignment=4)
    assert [a.bytes for a in narrow] == [4]
    hopper = atoms.copy_atoms(SM["sm_90a"], "global", "shared", alignment=2)
    assert [a.tensor for a in hopper] == [True]
    assert atoms.copy_atoms(SM["sm_100a"], "global", "register", 32)[-1].bytes == 32
