"""The entries that copy boxes of tensors in memory, for exchanges between processes.

Which boxes a process packs, keeps and unpacks depends on its number, and all processes have one
module: so sizes and strides are parameters (specs/plan.proto, `Exchange`), and the runtime starts
an entry for each box, in the widest words that fit its rows.
"""

from __future__ import annotations

import functools

from .compile import compile_ptx
from .target import Architecture

THREADS = 256
WORDS = {1: "i8", 2: "i16", 4: "i32", 8: "i64", 16: "<4 x i32>"}  # LLVM's type by bytes

_ENTRY = """
define ptx_kernel void @{name}(ptr addrspace(1) align {width} %target,
    ptr addrspace(1) align {width} %source, i32 %n0, i32 %n1, i32 %n2, i32 %n3,
    i64 %t0, i64 %t1, i64 %t2, i64 %s0, i64 %s1, i64 %s2) "nvvm.maxntid"="{threads}" {{
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %blocks = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %before = mul i32 %block, {threads}
  %first = add i32 %before, %thread
  %step = mul i32 %blocks, {threads}
  %rows = mul i32 %n0, %n1
  %plane = mul i32 %n2, %n3
  %total = mul i32 %rows, %plane
  %zeros = icmp eq ptr addrspace(1) %source, null
  %some = icmp ult i32 %first, %total
  br i1 %some, label %word, label %done
word:
  %i = phi i32 [ %first, %entry ], [ %next, %store ]
  %i3 = urem i32 %i, %n3
  %q3 = udiv i32 %i, %n3
  %i2 = urem i32 %q3, %n2
  %q2 = udiv i32 %q3, %n2
  %i1 = urem i32 %q2, %n1
  %i0 = udiv i32 %q2, %n1
  %w0 = zext i32 %i0 to i64
  %w1 = zext i32 %i1 to i64
  %w2 = zext i32 %i2 to i64
  %w3 = zext i32 %i3 to i64
  %a0 = mul i64 %w0, %t0
  %a1 = mul i64 %w1, %t1
  %a2 = mul i64 %w2, %t2
  %a01 = add i64 %a0, %a1
  %a23 = add i64 %a2, %w3
  %a = add i64 %a01, %a23
  br i1 %zeros, label %store, label %load
load:
  %b0 = mul i64 %w0, %s0
  %b1 = mul i64 %w1, %s1
  %b2 = mul i64 %w2, %s2
  %b01 = add i64 %b0, %b1
  %b23 = add i64 %b2, %w3
  %b = add i64 %b01, %b23
  %from = getelementptr {type}, ptr addrspace(1) %source, i64 %b
  %found = load {type}, ptr addrspace(1) %from, align {width}
  br label %store
store:
  %value = phi {type} [ zeroinitializer, %word ], [ %found, %load ]
  %to = getelementptr {type}, ptr addrspace(1) %target, i64 %a
  store {type} %value, ptr addrspace(1) %to, align {width}
  %next = add i32 %i, %step
  %more = icmp ult i32 %next, %total
  br i1 %more, label %word, label %done
done:
  ret void
}}
"""
_REGISTERS = "".join(
    f"declare i32 @llvm.nvvm.read.ptx.sreg.{name}()\n" for name in ("tid.x", "ctaid.x", "nctaid.x")
)


@functools.cache
def copies(prefix: str, architecture: Architecture) -> str:
    """PTX of the entries `prefix` + bytes of a word, of all words."""
    entries = [
        _ENTRY.format(name=f'"{prefix}{width}"', width=width, type=kind, threads=THREADS)
        for width, kind in WORDS.items()
    ]
    return compile_ptx("".join([*entries, _REGISTERS]), architecture)
