"""What passes assume of any machine, where they decide before or without a description of one."""

from __future__ import annotations

SECONDS_PER_FLOP = {"contract": 1e-11, "other": 1e-10}
SECONDS_PER_BYTE = 5e-11
SECONDS_PER_CALL = 2e-5  # that a call takes beside its kernels
WORK_PER_BYTE = 2.0  # additions in the time of moving one byte of main memory
CONVOLVED_PER_BYTE = 200  # flops of convolutions that pay for one byte moved by a transpose
CONVOLVED_PER_LAUNCH = 1e6  # and for another launch on a GPU

# Between devices, in the time in which one receives a byte: what it computes, and what it reads and
# writes. 400 TFLOP/s and 3 TB/s beside 50 GB/s, round figures of an accelerator on a network of
# servers.
FLOPS_PER_BYTE, MEMORY_PER_BYTE = 8_000.0, 600.0
# What each communication costs beside its bytes, in bytes: of two ways equal in these, the shorter.
BYTES_PER_COMMUNICATION = 4096.0
