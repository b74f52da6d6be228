"""Small kernels around asynchronous instructions: PTX bodies, numpy arrays in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from girih.backends.nvidia.simulator import GlobalMemory, Report, SimulationError, launch, parse
from girih.backends.nvidia.simulator.tensor_maps import encode_tensor_map

NAMES = {
    np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(np.int32): "i32",
    np.dtype(ml_dtypes.bfloat16): "bf16", np.dtype(np.uint8): "ui8", np.dtype(np.uint16): "ui16",
    np.dtype(np.uint32): "ui32", np.dtype(np.float64): "f64", np.dtype(np.uint64): "ui64",
    np.dtype(np.int8): "i8", np.dtype(ml_dtypes.float8_e4m3fn): "f8E4M3FN",
    np.dtype(ml_dtypes.float8_e5m2): "f8E5M2",
}  # fmt: skip
MODES = [("eager", 0), ("lazy", 0), ("lazy", 3)]


@dataclass
class Map:
    """A tensor map over `array` (an argument too); `box` fastest dimension first."""

    array: np.ndarray
    box: Sequence[int]
    swizzle: int = 0
    fill: str = "zero"

    def encode(self, address: int) -> bytes:
        array = self.array
        return encode_tensor_map(
            NAMES[array.dtype], address, array.shape[::-1], array.strides[::-1][1:], self.box,
            None, 0, self.swizzle, self.fill,
        )  # fmt: skip


DECLARATIONS = """
.reg .pred %p<40>; .reg .b16 %rs<40>; .reg .b32 %r<700>; .reg .b64 %rd<80>; .reg .f64 %fd<60>;
.reg .b32 %t; .reg .b32 %lane; .reg .b32 %rank; .reg .b64 %s; .reg .b32 %s32;
.reg .b64 %a<10>;
"""


def text(body: str, kinds: Sequence[str], threads: int, cluster: int = 1) -> str:
    """A module whose entry `k` has pointers %a0, %a1, ... (for maps: generic addresses), its thread
    number %t, %lane, the cluster rank %rank, and shared memory from %s (%s32) on."""
    params, loads = [], []
    for number, kind in enumerate(kinds):
        if kind == "map":
            params.append(f".param .align 64 .b8 k_{number}[128]")
            loads.append(f"mov.b64 %a{number}, k_{number}; cvta.param.u64 %a{number}, %a{number};")
        elif kind == "pointer":
            params.append(f".param .u64 k_{number}")
            loads.append(f"ld.param.u64 %a{number}, [k_{number}];")
        else:
            params.append(f".param .u32 k_{number}")
    head = f".explicitcluster\n.reqnctapercluster {cluster}" if cluster > 1 else ""
    joined = ",\n".join(params)
    return f"""
.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(
{joined}
)
.maxntid {threads}
{head}
{{
{DECLARATIONS}
mov.u32 %t, %tid.x; mov.u32 %lane, %laneid; mov.u32 %rank, %cluster_ctarank;
mov.b64 %s, smem; cvt.u32.u64 %s32, %s;
{chr(10).join(loads)}
{body}
ret;
}}
"""


def execute(
    ptx: str,
    entry: str,
    arguments: Sequence[Any],
    *,
    grid: tuple[int, ...] = (1,),
    threads: int = 32,
    cluster: int = 1,
    shared: int = 0,
    mode: str = "lazy",
    seed: int = 0,
    checks: bool = True,
    counters: bool = False,
) -> Report:
    """Runs an entry; arrays (and arrays of maps) are read back in place."""
    memory, packed, back = GlobalMemory(), [], []
    placed: dict[int, int] = {}
    for argument in arguments:
        if isinstance(argument, np.generic):
            packed.append(argument.tobytes())
            continue
        array = argument.array if isinstance(argument, Map) else argument
        if id(array) not in placed:
            placed[id(array)] = memory.allocate(array.nbytes)
            memory.write(placed[id(array)], array)
            back.append(array)
        address = placed[id(array)]
        if isinstance(argument, Map):
            packed.append(argument.encode(address))
        else:
            packed.append(address.to_bytes(8, "little"))
    blocks = (*grid, 1, 1)
    report = launch(
        parse(ptx), entry, (blocks[0], blocks[1], blocks[2]), (threads, 1, 1), packed, memory,
        cluster=(cluster, 1, 1), shared_bytes=shared, mode=mode, seed=seed, checks=checks,
        counters=counters,
    )  # fmt: skip
    for array in back:
        array[...] = memory.read(placed[id(array)], array.dtype, array.shape)
    return report


def run(body: str, arguments: Sequence[Any], *, threads: int = 32, cluster: int = 1,
        **options: Any) -> Report:  # fmt: skip
    kinds = [
        "map" if isinstance(a, Map) else "number" if isinstance(a, np.generic) else "pointer"
        for a in arguments
    ]
    ptx = text(body, kinds, threads, cluster)
    return execute(ptx, "k", arguments, threads=threads, cluster=cluster, **options)


def fault(kind: str, body: str, arguments: Sequence[Any], **options: Any) -> SimulationError:
    """The fault of this kind that a run has to end with."""
    with pytest.raises(SimulationError) as found:
        run(body, arguments, **options)
    assert found.value.fault.kind == kind, found.value
    return found.value


def bits(array: np.ndarray) -> np.ndarray:
    """A copy of the array's bytes."""
    return np.array(array, order="C").view(np.uint8)


def random(shape: Sequence[int], dtype: Any, seed: int = 0) -> np.ndarray:
    """Values that any of the types holds exactly, so that products are exact too."""
    generator = np.random.default_rng(seed)
    low = 0 if np.dtype(dtype).kind == "u" else -4
    return generator.integers(low, 5, shape).astype(dtype)
