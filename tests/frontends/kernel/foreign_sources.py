"""Sources of small kernels in other languages, for tests and for nothing else."""

from girih.hlo.ops.foreign import TWICE

C_TWICE = r"""
#include <stdint.h>
static float twice_of(float x) { return x + x; }
void twice(const void *const *arguments, int64_t begin, int64_t end, void *scratch) {
  const float *x = arguments[0];
  float *y = (float *)arguments[1];
  for (int64_t i = begin * TILE; i < end * TILE && i < SIZE; ++i) y[i] = twice_of(x[i]);
}
"""

# The room's example, with a function of its own.
LLVM_TWICE = (
    TWICE.replace("fadd float %x, %x", "call float @twice_of(float %x)")
    + """
define float @twice_of(float %x) {
  %y = fadd float %x, %x
  ret float %y
}
"""
)

PTX_TWICE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %d<6>;
    .reg .f32 %f<3>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    ld.param.u32 %r5, [n];
    setp.ge.u32 %p1, %r4, %r5;
    @%p1 bra $done;
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [y];
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    mul.wide.u32 %d3, %r4, 4;
    add.s64 %d4, %d1, %d3;
    add.s64 %d5, %d2, %d3;
    ld.global.f32 %f1, [%d4];
    add.f32 %f2, %f1, %f1;
    st.global.f32 [%d5], %f2;
$done:
    ret;
}
"""

CUDA_TWICE = """
extern "C" __global__ void twice(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + x[i];
}
"""
