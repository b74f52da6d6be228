"""Kernels that LLVM compiled from small IR texts, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.simulator import GlobalMemory, launch, parse
from girih.backends.nvidia.target import ARCHITECTURES

from .elementwise import pointer

DECLARATIONS = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)
declare float @llvm.fma.f32(float, float, float)
@shared = external addrspace(3) global [0 x i8], align 1024
"""


def execute(ir: str, arrays: list[np.ndarray], grid: int, block: int, **options):
    """Runs kernel `k` with pointers to `arrays`; gives them as it leaves them."""
    text = compile_ptx(DECLARATIONS + ir, ARCHITECTURES["sm_90a"])
    memory = GlobalMemory()
    places = [memory.allocate(a.nbytes) for a in arrays]
    for place, array in zip(places, arrays, strict=True):
        memory.write(place, array)
    arguments = [pointer(p) for p in places]
    report = launch(parse(text), "k", (grid, 1, 1), (block, 1, 1), arguments, memory, **options)
    return [memory.read(p, a.dtype, a.shape) for p, a in zip(places, arrays, strict=True)], report


INDEX = """
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %c = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %o = mul i32 %c, 128
  %i = add i32 %o, %t
"""


def test_elementwise_with_tail() -> None:
    ir = f"""
define ptx_kernel void @k(ptr addrspace(1) noalias readonly align 16 %a,
                          ptr addrspace(1) align 16 %b) {{
{INDEX}
  %ok = icmp slt i32 %i, 1000
  br i1 %ok, label %body, label %end
body:
  %p = getelementptr float, ptr addrspace(1) %a, i32 %i
  %v = load float, ptr addrspace(1) %p
  %w = call float @llvm.fma.f32(float %v, float %v, float 2.0)
  %h = fptrunc float %w to half
  %g = fpext half %h to float
  %r = fdiv float %g, %v
  %q = getelementptr float, ptr addrspace(1) %b, i32 %i
  store float %r, ptr addrspace(1) %q
  br label %end
end:
  ret void
}}
"""
    a = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    (_, found), report = execute(ir, [a, np.zeros_like(a)], 8, 128)
    wide = (a.astype(np.float64) ** 2 + 2).astype(np.float32)
    assert (found == wide.astype(np.float16).astype(np.float32) / a).all()
    assert report.vector_instructions < 60


def test_euclid_in_a_loop() -> None:
    ir = f"""
define ptx_kernel void @k(ptr addrspace(1) align 16 %a, ptr addrspace(1) align 16 %b) {{
{INDEX}
  %p = getelementptr i32, ptr addrspace(1) %a, i32 %i
  %q = getelementptr i32, ptr addrspace(1) %b, i32 %i
  %x0 = load i32, ptr addrspace(1) %p
  %y0 = load i32, ptr addrspace(1) %q
  br label %loop
loop:
  %x = phi i32 [%x0, %0], [%y, %more]
  %y = phi i32 [%y0, %0], [%r, %more]
  %z = icmp eq i32 %y, 0
  br i1 %z, label %done, label %more
more:
  %r = urem i32 %x, %y
  br label %loop
done:
  store i32 %x, ptr addrspace(1) %p
  ret void
}}
"""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 100000, 512).astype(np.uint32) for _ in range(2))
    (found, _), report = execute(ir, [a, b], 4, 128)
    assert (found == [math.gcd(int(x), int(y)) for x, y in zip(a, b, strict=True)]).all()
    assert report.vector_instructions < 1000


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_block_reduction(seed: int) -> None:
    """Shuffles inside a warp, then shared memory."""
    shuffles = ""
    value = "%v"
    for step in (16, 8, 4, 2, 1):
        shuffles += f"""
  %b{step} = bitcast float {value} to i32
  %s{step} = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %b{step}, i32 {step}, i32 31)
  %f{step} = bitcast i32 %s{step} to float
  %v{step} = fadd float {value}, %f{step}
"""
        value = f"%v{step}"
    ir = f"""
define ptx_kernel void @k(ptr addrspace(1) align 16 %a,
                          ptr addrspace(1) align 16 %b) "nvvm.maxntid"="128" {{
{INDEX}
  %p = getelementptr float, ptr addrspace(1) %a, i32 %i
  %v = load float, ptr addrspace(1) %p
{shuffles}
  %warp = lshr i32 %t, 5
  %lane = and i32 %t, 31
  %first = icmp eq i32 %lane, 0
  br i1 %first, label %put, label %join
put:
  %sp = getelementptr float, ptr addrspace(3) @shared, i32 %warp
  store float {value}, ptr addrspace(3) %sp
  br label %join
join:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %leader = icmp eq i32 %t, 0
  br i1 %leader, label %sum, label %end
sum:
  %w = load <4 x float>, ptr addrspace(3) @shared
  %w0 = extractelement <4 x float> %w, i32 0
  %w1 = extractelement <4 x float> %w, i32 1
  %w2 = extractelement <4 x float> %w, i32 2
  %w3 = extractelement <4 x float> %w, i32 3
  %x0 = fadd float %w0, %w1
  %x1 = fadd float %w2, %w3
  %x = fadd float %x0, %x1
  %q = getelementptr float, ptr addrspace(1) %b, i32 %c
  store float %x, ptr addrspace(1) %q
  br label %end
end:
  ret void
}}
"""
    a = np.random.default_rng(2).integers(-50, 50, 128 * 20).astype(np.float32)
    (_, found), report = execute(
        ir, [a, np.zeros(20, np.float32)], 20, 128, shared_bytes=16, seed=seed, counters=True
    )
    assert (found == a.reshape(20, 128).sum(1)).all()
    assert report.counters["bank_conflicts"] == 0
    assert report.counters["global_sectors"] == report.counters["global_sectors_ideal"]


def test_local_table_and_wide_integers() -> None:
    ir = f"""
define ptx_kernel void @k(ptr addrspace(1) align 16 %a, ptr addrspace(1) align 16 %b) {{
{INDEX}
  %table = alloca [16 x i64]
  %p = getelementptr i64, ptr addrspace(1) %a, i32 %i
  %v = load i64, ptr addrspace(1) %p
  br label %fill
fill:
  %j = phi i32 [0, %0], [%j2, %fill]
  %w = zext i32 %j to i64
  %x = mul i64 %w, %v
  %slot = getelementptr i64, ptr %table, i32 %j
  store volatile i64 %x, ptr %slot
  %j2 = add i32 %j, 1
  %again = icmp ult i32 %j2, 16
  br i1 %again, label %fill, label %read
read:
  %k = and i32 %i, 15
  %from = getelementptr i64, ptr %table, i32 %k
  %y = load volatile i64, ptr %from
  %z = zext i64 %y to i128
  %m = mul i128 %z, %z
  %h = lshr i128 %m, 64
  %r = trunc i128 %h to i64
  %q = getelementptr i64, ptr addrspace(1) %b, i32 %i
  store i64 %r, ptr addrspace(1) %q
  ret void
}}
"""
    a = np.random.default_rng(3).integers(0, 1 << 63, 256).astype(np.uint64)
    (_, found), _ = execute(ir, [a, np.zeros_like(a)], 2, 128)
    products = [(int(v) * (i & 15)) % (1 << 64) for i, v in enumerate(a)]
    assert (found == np.asarray([(x * x) >> 64 for x in products], np.uint64)).all()
