"""One small kernel with its arrays, and how it runs on a driver: CUDA's or the simulator's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.frame import Parameter, Unit
from girih.backends.nvidia.launch import Argument, Immediate, KernelCode, Memory, TensorMap
from girih.backends.nvidia.target import Target
from girih.hlo.types import tensor_of
from girih.runtime.devices.architectures import parse_architecture
from girih.runtime.devices.driver import Box, Code, Start

GUARD = 256  # bytes behind every array, which nobody may write
PATTERN = 0xA5
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Trial:
    """A kernel of `inputs` that has to give `wanted`, within `tolerance` of the largest number."""

    code: KernelCode
    inputs: Sequence[Array]
    wanted: Sequence[Array]
    tolerance: float = 0.0


def run(driver: Any, target: Target, trial: Trial) -> list[Array]:
    """What the kernel gives on a device."""
    architecture = target.architecture
    text = trial.code.text
    if trial.code.language != "ptx":
        text = compile_ptx(text, architecture)
    code = Code(text.encode(), parse_architecture(architecture.name), is_ptx=True)
    with driver:
        stream = driver.create_stream()
        module = driver.load(code)
        addresses = []
        for array in (*trial.inputs, *trial.wanted):
            data = np.full(array.nbytes + GUARD, PATTERN, np.uint8)
            if len(addresses) < len(trial.inputs):
                data[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            addresses.append(driver.allocate(data.nbytes, stream))
            driver.upload(addresses[-1], data, stream)
        scratch = driver.allocate(max(1, trial.code.scratch_bytes), stream)

        def packed(argument: Argument) -> bytes:
            if isinstance(argument, Immediate):
                return argument.data
            place = argument.memory if isinstance(argument, TensorMap) else argument
            address = (scratch if place.slot < 0 else addresses[place.slot]) + place.offset
            if not isinstance(argument, TensorMap):
                return address.to_bytes(8, "little")
            box = Box(
                argument.element, argument.dims, argument.strides, argument.box, argument.swizzle,
                argument.steps,
            )  # fmt: skip
            return driver.tensor_map(box, address)

        for launch in trial.code.launches:
            start = Start(
                launch.symbol, launch.grid, launch.block, launch.cluster, launch.shared_bytes
            )
            prepared = driver.prepare(
                driver.entry(module, start), start, [*map(packed, launch.arguments)]
            )
            driver.launch(prepared, stream)
        driver.synchronize(stream)
        found = []
        for number, array in enumerate((*trial.inputs, *trial.wanted)):
            data = np.empty(array.nbytes + GUARD, np.uint8)
            driver.download(data, addresses[number], stream)
            driver.synchronize(stream)
            if (data[array.nbytes :] != PATTERN).any():
                raise ValueError(f"array {number} was written behind its end")
            if number >= len(trial.inputs):
                found.append(data[: array.nbytes].view(array.dtype).reshape(array.shape))
        for address in (*addresses, scratch):
            driver.free(address, stream)
        driver.synchronize(stream)
        driver.unload(module)
        driver.destroy_stream(stream)
    return found


def error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The largest difference, relative to the largest number; infinite where one is not finite and
    the other is."""
    worst = 0.0
    for got, right in zip(found, wanted, strict=True):
        if got.dtype.kind in "?biu" and right.dtype.kind in "?biu":
            if (got != right).any():
                return float("inf")
            continue
        a, b = np.asarray(got, np.complex128), np.asarray(right, np.complex128)
        odd = ~np.isfinite(a) | ~np.isfinite(b)
        same = (a == b) | np.isnan(a) & np.isnan(b)
        if (odd & ~same).any():
            return float("inf")
        if a.size and not odd.all():
            apart = np.where(odd, 0, abs(np.where(odd, 0, a) - np.where(odd, 0, b))).max()
            worst = max(worst, float(apart / max(abs(b[~odd]).max(), 1e-30)))
    return worst


class Pen:
    """What the body of a small kernel writes with: `f`, pointers of the arrays, tensor maps."""

    def __init__(self, entry: Any, arrays: int) -> None:
        self.entry, self.f = entry, entry.function
        self.arrays, self.maps = entry.pointers[:arrays], entry.pointers[arrays:]
        self.thread = entry.thread()

    def word(self, array: int, index: Any, kind: str = "i32") -> Any:
        """An element of an array, a 32-bit one as a rule."""
        return self.f.load(kind, self.f.pointer(self.arrays[array], index, kind), align=4)

    def put(self, array: int, index: Any, value: Any) -> None:
        self.f.store(value, self.f.pointer(self.arrays[array], index, value.type), align=4)

    def call(self, name: str, returns: str, *operands: Any) -> Any:
        return self.f.call(f"llvm.nvvm.{name}", returns, *operands, declare=True)


def small(
    target: Target,
    body: Callable[[Pen], None],
    inputs: Sequence[Array],
    wanted: Sequence[Array],
    *,
    maps: Sequence[TensorMap] = (),
    threads: int = 32,
    shared: int = 0,
    grid: int = 1,
    cluster: int = 1,
    minimum_blocks: int = 0,
) -> Trial:
    """A kernel that `body` writes; its arrays are the inputs, then the results."""
    unit, count = Unit(target), len(inputs) + len(wanted)
    parameters = [Parameter(f"a{n}", Memory(n)) for n in range(count)]
    parameters += [Parameter(f"m{n}", one) for n, one in enumerate(maps)]
    entry = unit.kernel(
        "small", parameters, threads, minimum_blocks=minimum_blocks, cluster=(cluster, 1, 1)
    )
    body(Pen(entry, count))
    launch = entry.finish(grid, shared)
    return Trial(unit.code([launch], 0.0, 0.0), inputs, wanted)


def map_of(
    slot: int, array: Array, box: Sequence[int], swizzle: int, steps: Sequence[int] = ()
) -> TensorMap:
    """The tensor map of a row-major array; `box` and `steps` have the fastest dim first."""
    name, strides = str(tensor_of(array).element), tuple(array.strides[::-1][1:])
    return TensorMap(
        Memory(slot), name, array.shape[::-1], strides, tuple(box), swizzle, tuple(steps)
    )


def swizzled(data: Array, swizzle: int) -> Array:
    """Bytes as the copy engine lays them, from an address that is a multiple of 1024."""
    place = np.arange(data.size)
    place ^= (place >> 7 & max(0, swizzle // 16 - 1)) << 4
    stored = np.zeros(data.size, np.uint8)
    stored[place] = data
    return stored


def held(layout: Any, matrix: Array, threads: int) -> Array:
    """[thread, register] of a matrix in the layout of a fragment."""
    thread, register = np.arange(threads)[:, None], np.arange(layout.size("register"))
    places = {"register": register, "lane": thread % 32}
    if threads > 32:
        places["warp"] = thread // 32
    return np.ascontiguousarray(matrix.reshape(-1)[layout.apply(**places)])


__all__ = [
    "Pen", "Trial", "error", "held", "map_of", "run", "small", "swizzled",
]  # fmt: skip
