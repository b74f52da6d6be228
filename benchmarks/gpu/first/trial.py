"""One small kernel with its arrays, and how it runs on a driver: CUDA's or the simulator's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from girih.backends.nvidia.assemble import assemble, find_ptxas
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.frame import Parameter, Unit
from girih.backends.nvidia.launch import (
    Argument,
    Immediate,
    KernelCode,
    KernelMemory,
    KernelTensorMap,
    Launch,
    Size,
)
from girih.backends.nvidia.target import NvidiaTarget
from girih.hlo.types import tensor_of
from girih.runtime.devices.architectures import parse_architecture
from girih.runtime.devices.driver import Code, LaunchConfiguration, TensorMapBox

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


@dataclass(frozen=True)
class Ready:
    """A trial whose code is made: PTX for every driver, machine code for a GPU of `architecture`.
    `modelled`: what the simulator gives; None where the trial was not run there."""

    label: str
    architecture: str
    ptx: bytes
    cubin: bytes | None
    launches: tuple[Launch, ...]
    scratch_bytes: int
    inputs: Sequence[Array]
    wanted: Sequence[Array]
    tolerance: float
    modelled: Sequence[Array] | None = None


def made(label: str, trial: Trial, target: NvidiaTarget, with_cubin: bool = False) -> Ready:
    """The trial with its code; machine code where it is wanted and ptxas is at hand."""
    architecture, code = target.architecture, trial.code
    text = code.text if code.language == "ptx" else compile_ptx(code.text, architecture)
    cubin = None
    if with_cubin and find_ptxas() is not None:
        cubin = assemble(text, architecture).cubin
    return Ready(
        label, architecture.name, text.encode(), cubin, code.launches, code.scratch_bytes,
        trial.inputs, trial.wanted, trial.tolerance,
    )  # fmt: skip


class Session:
    """A trial's code and arrays on a device, until the `with` ends: `inputs`, then results, then
    scratch, each with a guard behind it."""

    def __init__(self, driver: Any, ready: Ready) -> None:
        self.driver, self.ready = driver, ready

    def __enter__(self) -> Session:
        driver, ready = self.driver, self.ready
        driver.__enter__()
        machine_code = None if driver.simulated else ready.cubin
        architecture = parse_architecture(ready.architecture)
        code = Code(machine_code or ready.ptx, architecture, is_ptx=machine_code is None)
        self.stream = driver.create_stream()
        self.module = driver.load(code)
        self.addresses: list[int] = []
        for number, array in enumerate((*ready.inputs, *ready.wanted)):
            data = np.full(array.nbytes + GUARD, PATTERN, np.uint8)
            if number < len(ready.inputs):
                data[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self.addresses.append(driver.allocate(data.nbytes, self.stream))
            driver.upload(self.addresses[-1], data, self.stream)
        self.scratch = driver.allocate(max(1, ready.scratch_bytes), self.stream)
        self.prepared = []
        for launch in ready.launches:
            start = LaunchConfiguration(
                launch.symbol, launch.grid, launch.block, launch.cluster, launch.shared_bytes
            )
            entry = driver.entry(self.module, start)
            self.prepared.append(
                driver.prepare(entry, start, [*map(self._bytes, launch.arguments)])
            )
        return self

    def __exit__(self, *_: object) -> None:
        driver = self.driver
        for address in (*self.addresses, self.scratch):
            driver.free(address, self.stream)
        driver.synchronize(self.stream)
        driver.unload(self.module)
        driver.destroy_stream(self.stream)
        driver.__exit__(None, None, None)

    def _bytes(self, argument: Argument) -> bytes:
        if isinstance(argument, Immediate):
            return argument.data
        if isinstance(argument, Size):
            raise ValueError("kernels that are tried alone have fixed sizes")
        place = argument.memory if isinstance(argument, KernelTensorMap) else argument
        address = self.scratch if place.slot < 0 else self.addresses[place.slot]
        address += place.offset
        if not isinstance(argument, KernelTensorMap):
            return address.to_bytes(8, "little")
        box = TensorMapBox(
            argument.element, argument.dims, argument.strides, argument.box, argument.swizzle,
            argument.steps,
        )  # fmt: skip
        return self.driver.tensor_map(box, address)

    def launch(self) -> None:
        """Start the trial's launches; they are under way."""
        for prepared in self.prepared:
            self.driver.launch(prepared, self.stream)

    def results(self) -> list[Array]:
        """The results on the host; ValueError where something was written behind an array."""
        driver, ready = self.driver, self.ready
        driver.synchronize(self.stream)
        found = []
        for number, array in enumerate((*ready.inputs, *ready.wanted)):
            data = np.empty(array.nbytes + GUARD, np.uint8)
            driver.download(data, self.addresses[number], self.stream)
            driver.synchronize(self.stream)
            if (data[array.nbytes :] != PATTERN).any():
                raise ValueError(f"array {number} was written behind its end")
            if number >= len(ready.inputs):
                found.append(data[: array.nbytes].view(array.dtype).reshape(array.shape))
        return found


def run(driver: Any, ready: Ready) -> list[Array]:
    """What the kernel gives on a device."""
    with Session(driver, ready) as session:
        session.launch()
        return session.results()


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
    target: NvidiaTarget,
    body: Callable[[Pen], None],
    inputs: Sequence[Array],
    wanted: Sequence[Array],
    *,
    maps: Sequence[KernelTensorMap] = (),
    threads: int = 32,
    shared: int = 0,
    grid: int = 1,
    cluster: int = 1,
    minimum_blocks: int = 0,
) -> Trial:
    """A kernel that `body` writes; its arrays are the inputs, then the results."""
    unit, count = Unit(target), len(inputs) + len(wanted)
    parameters = [Parameter(f"a{n}", KernelMemory(n)) for n in range(count)]
    parameters += [Parameter(f"m{n}", one) for n, one in enumerate(maps)]
    entry = unit.kernel(
        "small", parameters, threads, minimum_blocks=minimum_blocks, cluster=(cluster, 1, 1)
    )
    body(Pen(entry, count))
    launch = entry.finish(grid, shared)
    return Trial(unit.code([launch], 0.0, 0.0), inputs, wanted)


def map_of(
    slot: int, array: Array, box: Sequence[int], swizzle: int, steps: Sequence[int] = ()
) -> KernelTensorMap:
    """The tensor map of a row-major array; `box` and `steps` have the fastest dim first."""
    name, strides = str(tensor_of(array).element), tuple(array.strides[::-1][1:])
    return KernelTensorMap(
        KernelMemory(slot), name, array.shape[::-1], strides, tuple(box), swizzle, tuple(steps)
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
    "Pen", "Ready", "Session", "Trial", "error", "held", "made", "map_of", "run", "small",
    "swizzled",
]  # fmt: skip
