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
    atom = best(name, a, accumulator, *size)
    assert atom is not None and atom.opcode == opcode
    assert SM[name].version in atom.versions


def best(name, element, accumulator, *size):
    found = atoms.matrix_atoms(SM[name], element, element, accumulator)
    return atoms.best_atom(found, *size)


def test_what_an_architecture_lacks_is_not_offered():
    assert best("sm_80", "f8E5M2", "f32", 64, 64, 64) is None
    assert best("sm_90a", "f32", "f32", 64, 64, 64) is None
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
            assert value.span.rank == len(value.images) == value.output_bits


def test_copies_of_threads_by_size_and_architecture():
    names = {16: "cg", 8: "ca", 4: "ca"}
    for size in (1, 2, 4, 8, 16, 32):
        atom = atoms.thread_copy(SM["sm_80"], "global", "shared", size)
        wanted = f"cp.async.{names[size]}.shared.global" if size in names else None
        assert (atom and atom.instruction) == wanted
    stores = [atoms.thread_copy(SM[n], "register", "global", 16) for n in ("sm_80", "sm_90a")]
    assert [atom and atom.instruction for atom in stores] == ["st.global.v4.b32"] * 2
    assert atoms.ACCESS_BYTES == 16
