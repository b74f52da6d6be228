"""PTX of users: through the build and the simulator, beside girih's own kernels."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
import girih.language as tl
from girih import foreign
from girih.backends.nvidia import foreign as backend
from girih.backends.nvidia import kernels
from girih.backends.nvidia.simulator import GlobalMemory, launch, parse
from girih.backends.nvidia.target import target
from girih.hlo.build import make_op
from girih.hlo.errors import UnsupportedError
from girih.hlo.foreign import BufferAddress, DeviceCode, DeviceLaunch, Number
from girih.hlo.graph import Op, arguments
from girih.hlo.types import F32, TensorType

from ...frontends.kernel.foreign_sources import CUDA_TWICE, LLVM_TWICE, PTX_TWICE

DATA = Path(__file__).parent / "data"
X = np.random.default_rng(3).standard_normal((30, 7)).astype(np.float32)
LAUNCH = foreign.Launch(
    "twice",
    grid=lambda x: girih.cdiv(x.size, 64),
    block=64,
    arguments=lambda x: ("x", "out", np.int32(x.size)),
)
# out = sum over blocks of 32, in two launches with partial sums in scratch.
PTX_SUM = """
.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 shared[];
.global .align 4 .f32 start[2] = {0f00000000, 0f3F800000};
.func (.param .f32 sum) total(.param .u64 from, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %d<4>;
    .reg .f32 %f<4>;
    ld.param.u64 %d1, [from];
    ld.param.u32 %r1, [count];
    mov.u64 %d2, start;
    ld.global.f32 %f1, [%d2];
    mov.u32 %r2, 0;
$next:
    setp.ge.u32 %p, %r2, %r1;
    @%p bra $end;
    ld.f32 %f2, [%d1];
    add.f32 %f1, %f1, %f2;
    add.s64 %d1, %d1, 4;
    add.s32 %r2, %r2, 1;
    bra $next;
$end:
    st.param.f32 [sum], %f1;
    ret;
}
.visible .entry partial(.param .u64 x, .param .u64 partials)
.reqntid 32
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    .reg .f32 %f<4>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r1, 32, %r2;
    ld.param.u64 %d1, [x];
    mul.wide.u32 %d2, %r3, 4;
    add.s64 %d2, %d1, %d2;
    ld.global.f32 %f1, [%d2];
    mov.u32 %r4, shared;
    shl.b32 %r5, %r2, 2;
    add.u32 %r6, %r4, %r5;
    st.shared.f32 [%r6], %f1;
    bar.sync 0;
    setp.ne.u32 %p, %r2, 0;
    @%p bra $done;
    cvt.u64.u32 %d3, %r4;
    cvta.shared.u64 %d3, %d3;
    {
        .param .u64 a;
        .param .u32 b;
        .param .f32 c;
        st.param.u64 [a], %d3;
        st.param.u32 [b], 32;
        call.uni (c), total, (a, b);
        ld.param.f32 %f2, [c];
    }
    ld.param.u64 %d4, [partials];
    mul.wide.u32 %d5, %r1, 4;
    add.s64 %d5, %d4, %d5;
    st.global.f32 [%d5], %f2;
$done:
    ret;
}
.visible .entry finish(.param .u64 partials, .param .u64 out, .param .u32 count)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<4>;
    .reg .f32 %f<4>;
    ld.param.u64 %d1, [partials];
    ld.param.u64 %d2, [out];
    ld.param.u32 %r1, [count];
    {
        .param .u64 a;
        .param .u32 b;
        .param .f32 c;
        st.param.u64 [a], %d1;
        st.param.u32 [b], %r1;
        call.uni (c), total, (a, b);
        ld.param.f32 %f2, [c];
    }
    st.global.f32 [%d2], %f2;
    ret;
}
"""


def kernel(*codes: Any, reference: Any = None) -> foreign.ForeignKernel:
    return girih.foreign_kernel(
        "twice", out=lambda x: x, codes=codes, reference=reference, inputs=["x"]
    )


def sum_kernel() -> foreign.ForeignKernel:
    def blocks(x):
        return x.size // 32

    codes = foreign.Ptx(
        PTX_SUM,
        foreign.Launch("partial", blocks, 32, ("x", foreign.Scratch(256)), shared=128),
        foreign.Launch(
            "finish", 1, 1, lambda x: (foreign.Scratch(256), "out", np.uint32(blocks(x)))
        ),
        scratch=lambda x: 256 + 4 * blocks(x),
    )
    return girih.foreign_kernel("total", out=tl.Array((), "f32"), codes=[codes], inputs=["x"])


@pytest.mark.parametrize("name", ["ptx-sim:sm_80", "ptx-sim:sm_90a"])
def test_ptx_runs_as_it_is(name):
    program = kernel(foreign.Ptx(PTX_TWICE, LAUNCH)).program(X, target=name)
    np.testing.assert_array_equal(program(X)[0], 2 * X)
    (entry,) = program.plan.kernels
    assert entry.kind == "foreign" and not entry.notes and len(entry.launches) == 1


def test_several_launches_share_scratch_and_functions():
    x = np.arange(160, dtype=np.float32)
    program = sum_kernel().program(x, target="ptx-sim")
    assert program(x)[0] == x.sum()
    assert len(program.plan.kernels[0].launches) == 2


def test_names_of_two_modules_never_meet():
    pytest.importorskip("jax")
    other = PTX_TWICE.replace("add.f32 %f2, %f1, %f1", "mul.f32 %f2, %f1, 0f40400000")
    twice, thrice = (kernel(foreign.Ptx(text, LAUNCH)) for text in (PTX_TWICE, other))
    program = girih.compile(lambda x: thrice(twice(x) + 1), X, target="ptx-sim")
    np.testing.assert_allclose(np.asarray(program(X)), 3 * (2 * X + 1), rtol=1e-6)


def test_a_program_with_code_for_both_runs_on_both(tmp_path):
    both = kernel(foreign.Ptx(PTX_TWICE, LAUNCH), foreign.Llvm(LLVM_TWICE, "twice", tiles=210))
    np.testing.assert_array_equal(both(X), 2 * X)
    np.testing.assert_array_equal(both.program(X, target="ptx-sim")(X)[0], 2 * X)


def test_without_code_the_reference_becomes_kernels():
    pytest.importorskip("jax")
    other = kernel(foreign.Llvm(LLVM_TWICE, "twice"), reference=lambda x: x + x)
    program = other.program(X, target="ptx-sim")
    np.testing.assert_array_equal(program(X)[0], 2 * X)
    assert list(program.plan.notes) == [
        "kernel 'twice' runs as its reference: it has no code for NVIDIA GPUs"
    ]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_cuda():
    made = kernel(foreign.Cuda(CUDA_TWICE, LAUNCH))
    np.testing.assert_array_equal(made.program(X, target="ptx-sim")(X)[0], 2 * X)


def test_triton():
    """What Triton 3.9 made of an addition for sm_80: PTX and metadata as its cache has them."""
    metadata = json.loads((DATA / "triton_add.json").read_text())
    code = foreign.Triton(
        (DATA / "triton_add.ptx").read_text(),
        grid=lambda x: girih.cdiv(x.size, 256),
        arguments=lambda x: ("x", "y", "out", np.int32(x.size)),
        metadata=metadata,
    )
    add = girih.foreign_kernel("add", out=lambda x: x, codes=[code], inputs=["x", "y"])
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    program = add.program(x, x, target="ptx-sim:sm_80")
    np.testing.assert_array_equal(program(x, x * 3)[0], x + x * 3)


def test_mistakes_at_run_time_are_faults_of_the_simulator():
    """A kernel that writes past its result: no crash, and the line of PTX."""
    text = PTX_TWICE.replace("setp.ge.u32 %p1, %r4, %r5;", "setp.ge.u32 %p1, %r4, 100000;")
    program = kernel(foreign.Ptx(text, LAUNCH)).program(X, target="ptx-sim")
    with pytest.raises(girih.UserError, match=r"ld\.global|st\.global|bounds"):
        program(X)


def call(text: str, *, shared: int = 0) -> Op:
    kind = TensorType((4,), F32)
    launch = DeviceLaunch(
        "twice",
        (1, 1, 1),
        (64, 1, 1),
        (BufferAddress(0), BufferAddress(1), Number("ui32", bytes(4))),
        shared,
    )
    code = DeviceCode(text, (launch,)).as_attribute()
    return make_op(
        "foreign_call", arguments([kind]), {"kernel": "twice", "codes": (code,)}, (), (kind,)
    )


@pytest.mark.parametrize(
    ("op", "architecture", "reason"),
    [
        (call(PTX_TWICE.replace("sm_80", "sm_90a")), "sm_80", "its PTX is for sm_90a, not sm_80"),
        (call(PTX_TWICE, shared=200 << 10), "sm_80", "needs 204800 bytes of shared memory, sm_80"),
    ],
)
def test_code_that_does_not_fit(op, architecture, reason):
    assert reason in backend.lacks(op, target(architecture))
    with pytest.raises(UnsupportedError, match=reason):
        kernels.emit(op, target(architecture))


def test_wrong_ptx_of_a_record_is_a_user_error():
    for text in ("nonsense", PTX_TWICE.replace("twice", "thrice")):
        with pytest.raises(girih.UserError, match="kernel 'twice'"):
            kernels.emit(call(text), target("sm_80"))


OPCODES = (
    "mov.u32", "bar.sync", "ret", "ld.global.v4.f32", "atom.global.add.f32", "shfl.sync.bfly.b32",
    "setp.ne.u32", "ld.param.u64", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "cp.async.ca.shared.global", "mbarrier.init.shared.b64", "wgmma.fence.sync.aligned", "bra",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16", "popc.b32", "bfe.u32", "call.uni",
)  # fmt: skip


def damaged(text: str, chance: random.Random) -> str:
    """Another opcode, register or number in a few places, or two lines exchanged."""
    tokens = re.findall(r"\s+|[\w.$%]+|.", text, re.DOTALL)
    for _ in range(chance.randint(1, 3)):
        opcodes = [at for at, token in enumerate(tokens) if re.match(r"[a-z]+\.[a-z]", token)]
        values = [at for at, token in enumerate(tokens) if re.match(r"%[a-z]|\d", token)]
        kind = chance.choice(("opcode", "value", "value", "number", "drop"))
        if kind == "opcode":
            tokens[chance.choice(opcodes)] = chance.choice(OPCODES)
        elif kind == "value":
            tokens[chance.choice(values)] = tokens[chance.choice(values)]
        elif kind == "number":
            tokens[chance.choice(values)] = chance.choice(("-1", "4294967295", "64", "9" * 22))
        else:
            del tokens[chance.randrange(len(tokens))]
    return "".join(tokens)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_damaged_ptx_never_crashes(monkeypatch):
    """It gives numbers, or a UserError that names the line; whatever it says."""
    monkeypatch.setattr(sys.modules[launch.__module__], "LIMIT", 20_000)
    chance, refused = random.Random(11), 0
    for _ in range(120):
        text = damaged(chance.choice((PTX_TWICE, PTX_SUM)), chance)
        try:
            module = parse(text)
            for entry in module.entries:
                memory = GlobalMemory()
                places = [memory.allocate(4096).to_bytes(8, "little") for _ in range(3)]
                parameters = module.functions[entry].parameters
                arguments = [
                    (places[n % 3] + bytes(8))[: p.nbytes] for n, p in enumerate(parameters)
                ]
                launch(module, entry, (2, 1, 1), (32, 1, 1), arguments, memory, shared_bytes=128)
        except girih.UserError:
            refused += 1
    assert refused > 60
