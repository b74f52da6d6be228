"""Elements as one thread reads and writes them: masks, directions, widths of accesses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from girih.backends import llvm
from girih.backends.llvm.elementwise import Mask
from girih.backends.llvm.index import CONSECUTIVE, Affine, LoopAxis, of_axis
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.frame import Parameter, Unit
from girih.backends.nvidia.launch import KernelCode, KernelMemory
from girih.backends.nvidia.loops.threads import ThreadEmitter
from girih.hlo.build import build_region
from girih.hlo.graph import Region
from girih.hlo.types import BF16, C64, F32, I8, ElementType

from .. import harness
from .support import kind, operation

LANES = 4
THREADS = 32
SIZE = LANES * THREADS

Body = Callable[[ThreadEmitter, Affine, llvm.Value], Mask | None]


def moved(element: ElementType, body: Body, reads: bool, backward: bool = False) -> KernelCode:
    """Each thread copies LANES neighbours; the mask that `body` makes is of the load (`reads`) or
    of the store."""
    unit = Unit(harness.TARGET)
    entry = unit.kernel(
        "copy", [Parameter("x", KernelMemory(0)), Parameter("y", KernelMemory(1))], THREADS
    )
    f, scopes = entry.function, entry.scopes
    emitter = ThreadEmitter(entry, Region((), (), ()), [])
    first = f.mul(entry.thread(), LANES)
    at = of_axis(LoopAxis(first, SIZE, CONSECUTIVE, scopes.depth, LANES))
    there = at * -1 + (SIZE - 1) if backward else at
    mask = body(emitter, at, entry.thread())
    source, target = entry.pointers
    value = emitter.load(source, element, at, LANES, mask if reads else None)
    emitter.store(target, value, element, there, LANES, None if reads else mask)
    return unit.code([entry.finish(1)], 0.0, 0.0)


def lanes(emitter: ThreadEmitter, at: Affine, thread: llvm.Value) -> Mask:
    """Elements from 5 to 100: some lanes of some threads."""
    found = emitter.in_range(at, 5, 101, LANES)
    assert isinstance(found, Mask)
    return found


def threads(emitter: ThreadEmitter, at: Affine, thread: llvm.Value) -> Mask:
    """All lanes of threads 3 to 20."""
    place = of_axis(LoopAxis(thread, THREADS, depth=emitter.scopes.depth))
    found = emitter.in_range(place, 3, 21, LANES)
    assert isinstance(found, Mask)
    return found


WANTED: dict[Body, np.ndarray] = {
    lanes: np.arange(5, 101),
    threads: np.arange(3 * LANES, 21 * LANES),
}
ELEMENTS = [F32, BF16, I8, C64]


def inputs(element: ElementType) -> np.ndarray:
    values = np.arange(1, SIZE + 1).astype(np.float32)
    return (values + 1j * -values if element is C64 else values).astype(element.dtype)


def run(code: KernelCode, element: ElementType) -> tuple[np.ndarray, np.ndarray]:
    op = operation([kind(SIZE, element=element)], lambda b, x: [b("negate", x)], "loop")
    x = inputs(element)
    (found,) = harness.run(op, [x], code=code)
    return x, found


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("body", WANTED, ids=["lanes", "threads"])
def test_masked_stores_write_what_is_wanted(
    element: ElementType, backward: bool, body: Body
) -> None:
    x, found = run(moved(element, body, False, backward), element)
    wanted = np.full(x.nbytes, harness.PATTERN, np.uint8).view(element.dtype)
    place = WANTED[body]
    wanted[SIZE - 1 - place if backward else place] = x[place]
    np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("body", WANTED, ids=["lanes", "threads"])
def test_masked_loads_read_what_is_wanted(element: ElementType, body: Body) -> None:
    x, found = run(moved(element, body, True), element)
    np.testing.assert_array_equal(found[WANTED[body]], x[WANTED[body]])


def accesses(code: KernelCode) -> list[str]:
    ptx = compile_ptx(code.text, harness.TARGET.architecture)
    return [one for one in ptx.splitlines() if "ld.global" in one or "st.global" in one]


@pytest.mark.parametrize("reads", [False, True])
def test_lanes_that_go_together_move_in_one_access(reads: bool) -> None:
    assert all(".v4.b32" in one for one in accesses(moved(F32, threads, reads)))


def test_complex_elements_move_in_one_access() -> None:
    region = build_region([kind(7, element=C64)], lambda b, x: [b("negate", x)])
    found = accesses(harness.emit(harness.fusion("loop", region), harness.TARGET))
    assert found and all(".v2.b32" in one for one in found)


def nothing(emitter: ThreadEmitter, at: Affine, thread: llvm.Value) -> None:
    """No mask."""


def test_lanes_that_run_backwards_move_in_one_access() -> None:
    assert all(".v4.b32" in one for one in accesses(moved(F32, nothing, True, True)))
