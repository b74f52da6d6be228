"""The kernel that sets the condition of a graph's conditional node.

`cudaGraphSetConditional` is a call of the system, which ptxas and drivers since CUDA 12.3 resolve
by themselves, as they do `vprintf`: nothing is linked.
"""

from __future__ import annotations

import struct

from .driver import Condition, LaunchConfiguration

SINCE = 12030  # CUDA 12.3 has conditional nodes
ENTRY = "girih_set_condition"
START = LaunchConfiguration(ENTRY, (1, 1, 1), (1, 1, 1), (1, 1, 1), 0)
PTX = b""".version 8.3
.target sm_80
.address_size 64

.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);

.visible .entry girih_set_condition(
    .param .u64 handle, .param .u64 address, .param .u32 size, .param .u32 arm, .param .u32 arms
)
{
    .reg .pred %p<4>;
    .reg .b32 %r<7>;
    .reg .b64 %rd<3>;
    .param .b64 set_handle;
    .param .b32 set_value;
    ld.param.u64 %rd1, [handle];
    ld.param.u64 %rd2, [address];
    ld.param.u32 %r1, [size];
    ld.param.u32 %r2, [arm];
    ld.param.u32 %r3, [arms];
    mov.u32 %r6, 0;
    setp.eq.u64 %p1, %rd2, 0;
    @%p1 bra SET;
    sub.u32 %r5, %r3, 1;
    setp.eq.u32 %p2, %r1, 1;
    @%p2 bra BYTE;
    ld.global.u32 %r4, [%rd2];
    bra COMPARE;
BYTE:
    ld.global.u8 %r4, [%rd2];
COMPARE:
    min.u32 %r4, %r4, %r5;
    setp.eq.u32 %p3, %r4, %r2;
    selp.u32 %r6, 1, 0, %p3;
SET:
    st.param.b64 [set_handle], %rd1;
    st.param.b32 [set_value], %r6;
    call.uni cudaGraphSetConditional, (set_handle, set_value);
    ret;
}
"""


def condition_arguments(condition: Condition, handle: int) -> list[bytes]:
    """The parameters of the kernel's entry."""
    words = struct.pack("<III", condition.size, condition.arm, condition.arms)
    return [
        struct.pack("<Q", handle), struct.pack("<Q", condition.address),
        *(words[at : at + 4] for at in (0, 4, 8)),
    ]  # fmt: skip
