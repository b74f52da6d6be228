"""One instruction each, through the very functions that the backend's emitters use.

A check that fails here names the instruction, the form or the descriptor that is wrong; kernels and
programs (kernels.py, programs.py) come after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from girih.backends.llvm import constant, poison
from girih.backends.nvidia import layouts
from girih.backends.nvidia.atoms import BITS, MatrixAtom, matrix_atoms
from girih.backends.nvidia.frame import barrier, shuffle, special
from girih.backends.nvidia.launch import KernelMemory
from girih.backends.nvidia.pipeline import instructions as hopper
from girih.backends.nvidia.target import NvidiaTarget
from girih.backends.nvidia.tile.matrix import multiply

from .trial import Array, Pen, Trial, held, map_of, small, swizzled

BF16, F16 = ml_dtypes.bfloat16, np.float16
NUMPY: dict[str, Any] = {
    "f16": F16, "bf16": BF16, "f32": np.float32, "tf32": np.float32, "f64": np.float64,
    "i8": np.int8, "ui8": np.uint8, "i32": np.int32, "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
Make = Callable[[NvidiaTarget], Trial]


def whole(dims: Sequence[int], dtype: Any, seed: int = 0) -> Array:
    """Small whole numbers, whose sums of products are exact in every type."""
    low = 0 if np.dtype(dtype).kind == "u" else -4
    return np.random.default_rng(seed).integers(low, 5, dims).astype(dtype)


def words(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint32)


# Threads.


def plain(target: NvidiaTarget) -> Trial:
    x = np.arange(1000, dtype=np.int32)

    def body(pen: Pen) -> None:
        with pen.entry.guarded(pen.entry.position(), 1000):
            at = pen.entry.position()
            pen.put(1, at, pen.f.add(pen.word(0, at), 1))

    return small(target, body, [x], [x + 1], threads=128, grid=8)


def shuffles(target: NvidiaTarget) -> Trial:
    x, lane = np.arange(100, 132, dtype=np.int32), np.arange(32)
    modes = (
        ("bfly", 5, lane ^ 5),
        ("up", 3, np.where(lane < 3, lane, lane - 3)),
        ("down", 4, np.where(lane > 27, lane, lane + 4)),
        ("idx", 7, lane * 0 + 7),
    )

    def body(pen: Pen) -> None:
        own = pen.word(0, pen.thread)
        for number, (mode, by, _) in enumerate(modes):
            found = shuffle(pen.f, mode, own, constant("i32", by))
            pen.put(1, pen.f.add(pen.thread, 32 * number), found)

    return small(target, body, [x], [np.stack([x[place] for _, _, place in modes])])


def atomics(target: NvidiaTarget) -> Trial:
    """Sums and maxima of 4096 threads at one place; sums of whole numbers have one result."""

    def body(pen: Pen) -> None:
        f, own = pen.f, pen.word(0, pen.entry.position())
        f.line(f"%u0 = atomicrmw add {pen.arrays[2]}, {own} monotonic")
        f.line(f"%u1 = atomicrmw umax {pen.arrays[3]}, {own} monotonic")
        f.line(f"%u2 = atomicrmw fadd {pen.arrays[4]}, {f.cast('sitofp', own, 'float')} monotonic")
        f.line(f"%u3 = atomicrmw sub {pen.arrays[1]}, {own} monotonic")

    x = np.arange(4096, dtype=np.int32)
    fresh = np.frombuffer(bytes([0xA5] * 4), np.int32)
    # Results begin as the pattern of `trial.run`; sums wrap, the float is tiny beside them.
    total = np.int64(x.sum())
    wrapped = np.array([(int(fresh[0]) + int(total)) & 0xFFFFFFFF], np.uint32).view(np.int32)
    fewer = np.array([(int(fresh[0]) - int(total)) & 0xFFFFFFFF], np.uint32).view(np.int32)
    tops = np.array([max(int(fresh.view(np.uint32)[0]), 4095)], np.uint32).view(np.int32)
    return small(
        target, body, [x], [fewer, wrapped, tops, np.array([total], np.float32)], threads=128,
        grid=32,
    )  # fmt: skip


def named_barriers(target: NvidiaTarget) -> Trial:
    """The second warp reads what the first has written, in turns."""

    def body(pen: Pen) -> None:
        f, place = pen.f, pen.f.land(pen.thread, 31)
        at = f.pointer(pen.entry.shared(), place, "i32")
        group = hopper.uniform(f, f.lshr(pen.thread, 5))
        branch = f.if_else(f.compare("eq", group, 0))
        with branch.then():
            f.store(pen.word(0, place), at, align=4)
            hopper.announce(f, f.add(group, 3), 64)
            hopper.meet(f, 4, 64)
            f.store(f.add(place, 7), at, align=4)
            hopper.announce(f, 3, 64)
        with branch.otherwise():
            hopper.meet(f, f.add(group, 2), 64)
            opposite = f.pointer(pen.entry.shared(), f.xor(place, 31), "i32")
            pen.put(1, place, f.load("i32", opposite, align=4))
            hopper.announce(f, f.add(group, 3), 64)
            hopper.meet(f, 3, 64)
            pen.put(2, place, f.load("i32", opposite, align=4))

    x = np.arange(50, 82, dtype=np.int32)
    wanted = [x[::-1].copy(), np.arange(38, 6, -1, dtype=np.int32)]
    return small(target, body, [x], wanted, threads=64, shared=128)


def register_budgets(target: NvidiaTarget) -> Trial:
    """One warp group gives registers away, two take them."""

    def body(pen: Pen) -> None:
        f = pen.f
        group = hopper.uniform(f, f.lshr(pen.thread, 7))
        branch = f.if_else(f.compare("eq", group, 0))
        with branch.then():
            hopper.give_registers(f, 40)
            pen.put(1, pen.thread, pen.word(0, pen.thread))
        with branch.otherwise():
            hopper.take_registers(f, 232)
            pen.put(1, pen.thread, f.add(pen.word(0, pen.thread), 1))

    x = np.arange(384, dtype=np.int32)
    wanted = np.where(x < 128, x, x + 1).astype(np.int32)
    return small(target, body, [x], [wanted], threads=384, minimum_blocks=1)


def small_copies(target: NvidiaTarget) -> Trial:
    """cp.async of 16, 8 and 4 bytes a lane, of which the second half of the warp reads fewer."""
    x = np.arange(32 * 4, dtype=np.int32)
    sizes, at = (16, 8, 4), (0, 512, 768)
    wanted = []
    for size in sizes:
        rows = x.reshape(32, 4)[:, : size // 4].copy()
        rows.view(np.uint8).reshape(32, size)[16:, size // 2 :] = 0
        wanted.append(rows.reshape(-1))

    def body(pen: Pen) -> None:
        f = pen.f
        half = f.compare("ult", pen.thread, 16)
        source = f.pointer(pen.arrays[0], f.mul(pen.thread, 4), "i32")
        there = f.emit("ptr addrspace(1)", f"addrspacecast {source} to ptr addrspace(1)")
        for size, place in zip(sizes, at, strict=True):
            to = hopper.shared(f, f.add(f.mul(pen.thread, size), place))
            name = f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}.s"
            count = f.select(half, constant("i32", size), constant("i32", size // 2))
            pen.call(name, "void", to, there, count)
        pen.call("cp.async.commit.group", "void")
        pen.call("cp.async.wait.group", "void", constant("i32", 0))
        dump(pen, 1, 896)

    return small(target, body, [x], [np.concatenate(wanted)], shared=896)


# Matrices of a warp.


def matrix_store(target: NvidiaTarget) -> Trial:
    """stmatrix of four matrices, each lane's row address 16 bytes apart."""
    x = whole((4, 8, 8), BF16)
    registers = words(x).reshape(4, 32).T.copy()  # lane l has columns 2 * (l % 4) of row l / 4

    def body(pen: Pen) -> None:
        f = pen.f
        mine = [pen.word(0, f.add(f.mul(pen.thread, 4), n)) for n in range(4)]
        hopper.store_matrices(f, hopper.shared(f, f.mul(pen.thread, 16)), mine)
        dump(pen, 1, 512)

    return small(target, body, [registers], [words(x)], shared=512)


def matrix_load(transposed: bool, target: NvidiaTarget) -> Trial:
    """ldmatrix of four matrices, as they are or transposed."""
    x = whole((4, 8, 8), BF16)
    turned = x.transpose(0, 2, 1) if transposed else x
    registers = words(turned).reshape(4, 32).T.copy()
    kind = "{i32, i32, i32, i32}"
    name = f"ldmatrix.sync.aligned.m8n8.x4{'.trans' if transposed else ''}.b16.p3"

    def body(pen: Pen) -> None:
        f = pen.f
        fill(pen, 0, 512)
        barrier(f)
        found = pen.call(name, kind, hopper.shared(f, f.mul(pen.thread, 16)))
        for n in range(4):
            one = f.emit("i32", f"extractvalue {found}, {n}")
            pen.put(1, f.add(f.mul(pen.thread, 4), n), one)

    return small(target, body, [words(x)], [registers], shared=512)


def fill(pen: Pen, array: int, nbytes: int, offset: int = 0) -> None:
    """Words of an array to shared memory, by all threads of the block."""
    f = pen.f

    def each(at: Any) -> None:
        f.store(pen.word(array, at), f.pointer(pen.entry.shared(offset), at, "i32"), align=4)

    _words(pen, nbytes, each)


def dump(pen: Pen, array: int, nbytes: int) -> None:
    """Shared memory to the words of an array, behind those of the blocks before."""
    f = pen.f
    barrier(f)
    base = f.mul(pen.entry.block(), nbytes // 4)

    def each(at: Any) -> None:
        word = f.load("i32", f.pointer(pen.entry.shared(), at, "i32"), align=4)
        pen.put(array, f.add(base, at), word)

    _words(pen, nbytes, each)


def _words(pen: Pen, nbytes: int, each: Callable[[Any], object]) -> None:
    f = pen.f
    with f.for_range(pen.thread, constant("i32", nbytes // 4), pen.entry.threads) as loop:
        each(loop.index)


def product(atom: MatrixAtom, target: NvidiaTarget) -> Trial:
    """mma.sync of one form: registers in, registers out."""
    a_layout, b_layout, d_layout = atom.operands()
    a = whole((atom.m, atom.k), NUMPY[atom.a], 1)
    b = whole((atom.k, atom.n), NUMPY[atom.b], 2)
    wide = np.int64 if atom.accumulator == "i32" else np.float64
    old = whole((atom.m, atom.n), NUMPY[atom.accumulator], 3)
    wanted = (old.astype(wide) + a.astype(wide) @ b.astype(wide)).astype(old.dtype)
    inputs = [held(a_layout, a, 32), held(b_layout, b, 32), held(d_layout, old, 32)]
    double = atom.accumulator == "f64"
    kind = "double" if double else "float" if atom.accumulator == "f32" else "i32"
    size = 8 if double else 4
    counts = [array.itemsize * array.shape[1] // size for array in inputs]

    def body(pen: Pen) -> None:
        f = pen.f

        def registers(number: int, kind: str) -> list[Any]:
            first = f.mul(pen.thread, counts[number])
            return [pen.word(number, f.add(first, n), kind) for n in range(counts[number])]

        operand = "double" if double else "i32"
        left, right, sums = registers(0, operand), registers(1, operand), registers(2, kind)
        for n, one in enumerate(multiply(f, atom, left, right, sums)):
            pen.put(3, f.add(f.mul(pen.thread, counts[2]), n), one)

    return small(target, body, inputs, [held(d_layout, wanted, 32)])


# Barriers that count, the copy engine, clusters.


def counting_barrier(target: NvidiaTarget) -> Trial:
    """Two phases of an mbarrier with 64 arrivals each."""

    def body(pen: Pen) -> None:
        f, bar = pen.f, hopper.shared(pen.f, 256)
        begin(pen, [(bar, 64)])
        own = f.pointer(pen.entry.shared(), pen.thread, "i32")
        for turn in range(2):
            f.store(f.add(pen.word(0, pen.thread), turn), own, align=4)
            hopper.barrier_arrive(f, bar)
            hopper.barrier_wait(f, bar, turn)
            other = f.pointer(pen.entry.shared(), f.xor(pen.thread, 63), "i32")
            pen.put(1, f.add(pen.thread, 64 * turn), f.load("i32", other, align=4))
            barrier(f)

    x = np.arange(64, dtype=np.int32)
    wanted = np.concatenate([x[::-1], x[::-1] + 1]).astype(np.int32)
    return small(target, body, [x], [wanted], threads=64, shared=264)


def begin(pen: Pen, barriers: Sequence[tuple[Any, int]], cluster: bool = False) -> None:
    """Starts barriers with so many arrivals each."""
    f = pen.f
    with f.if_then(f.compare("eq", pen.thread, 0)):
        for where, count in barriers:
            hopper.barrier_start(f, where, count)
        hopper.barriers_started(f)
    if cluster:
        hopper.cluster_arrive(f, relaxed=True)
        hopper.cluster_wait(f)
    else:
        barrier(f)


def boxed(array: Array, start: Sequence[int], box: Sequence[int]) -> Array:
    """The box of an array at `start` (both slowest first); zeros outside."""
    found = np.zeros(box, array.dtype)
    low = [max(0, s) for s in start]
    high = [max(0, min(s + b, n)) for s, b, n in zip(start, box, array.shape, strict=True)]
    if all(a < b for a, b in zip(low, high, strict=True)):
        there = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True))
        found[there] = array[tuple(map(slice, low, high))]
    return found


def places(rank: int) -> Array:
    """Where boxes start: inside, over each edge, outside of everything; fastest dim first."""
    base = [[8, 2, 1, 1, 0], [-8, 0, 0, 0, 0], [24, 5, 0, 0, 0], [0, -3, 1, 0, 1], [64, 9, 9, 9, 9]]
    return np.array([row[:rank] for row in base], np.int32)


def box_load(
    swizzle: int, rank: int, dtype: Any, target: NvidiaTarget, step: int = 1, shift: int = 0
) -> Trial:
    """A box from global to shared memory, with what is outside as zeros; every `step`-th row, from
    an array `shift` bytes behind an aligned address."""
    size = np.dtype(dtype).itemsize
    inner = (swizzle or 64) // size
    array = whole((2, 3, 3, 7, 48 if size == 1 else 40)[5 - rank :], dtype, 3)
    box = [inner, 8, 1, 2, 1][:rank]
    nbytes = int(np.prod(box)) * size // step
    starts, steps = places(rank), [1, step, 1, 1, 1][:rank]

    def body(pen: Pen) -> None:
        f, bar = pen.f, hopper.shared(pen.f, 8192)
        begin(pen, [(bar, 1)])
        with f.if_then(f.compare("eq", pen.thread, 0)):
            first = f.mul(pen.entry.block(), rank)
            where = [pen.word(1, f.add(first, d)) for d in range(rank)]
            hopper.barrier_expect(f, bar, nbytes)
            hopper.copy_in(f, hopper.shared(f, 0), bar, pen.maps[0], where)
        hopper.barrier_wait(f, bar, 0)
        dump(pen, 2, nbytes)

    wanted = [
        swizzled(
            np.ascontiguousarray(boxed(array, start[::-1], box[::-1])[..., ::step, :])
            .reshape(-1).view(np.uint8),
            swizzle,
        )
        for start in starts
    ]  # fmt: skip
    moved = np.concatenate([np.zeros(shift // size, dtype), array.reshape(-1)])
    where = replace(map_of(0, array, box, swizzle, steps), memory=KernelMemory(0, shift))
    return small(
        target, body, [moved, starts], [np.stack(wanted)], maps=[where], shared=8200,
        grid=len(starts),
    )  # fmt: skip


def box_store(swizzle: int, dtype: Any, target: NvidiaTarget) -> Trial:
    """A box from shared to global memory; what is outside is dropped."""
    size = np.dtype(dtype).itemsize
    box = [swizzle // size, 8]
    start = (24, 5)  # over both edges
    data, old = whole((8, box[0]), dtype, 4), np.full((9, 40), 0xA5, f"V{size}").view(dtype)
    wanted = np.frombuffer(bytes([0xA5]) * old.nbytes, np.uint8).view(dtype).reshape(9, 40).copy()
    wanted[5:9, 24:40] = data[:4, : min(box[0], 16)] if box[0] >= 16 else wanted[5:9, 24:40]
    if box[0] < 16:
        wanted[5:9, 24 : 24 + box[0]] = data[:4]
    image = swizzled(data.reshape(-1).view(np.uint8), swizzle)

    def body(pen: Pen) -> None:
        f = pen.f
        fill(pen, 0, image.size)
        hopper.publish(f)
        barrier(f)
        with f.if_then(f.compare("eq", pen.thread, 0)):
            where = [constant("i32", at) for at in start]
            hopper.copy_out(f, hopper.shared(f, 0), pen.maps[0], where)
            hopper.copies_commit(f)
            hopper.copies_read(f)

    return small(
        target, body, [image], [wanted], maps=[map_of(1, wanted, box, swizzle)], shared=image.size
    )


def remote_arrival(target: NvidiaTarget) -> Trial:
    """Each block of a cluster waits for an arrival from the other one."""

    def body(pen: Pen) -> None:
        f, bar = pen.f, hopper.shared(pen.f, 0)
        begin(pen, [(bar, 1)], cluster=True)
        rank = special(f, "cluster.ctarank")
        with f.if_then(f.compare("eq", pen.thread, 0)):
            hopper.barrier_arrive(f, bar, f.xor(rank, 1))
        hopper.barrier_wait(f, bar, 0)
        with f.if_then(f.compare("eq", pen.thread, 0)):
            pen.put(1, pen.entry.block(), f.add(rank, pen.word(0, 0)))
        hopper.cluster_arrive(f)
        hopper.cluster_wait(f)

    return small(
        target, body, [np.array([40], np.int32)], [np.array([40, 41, 40, 41], np.int32)],
        shared=8, grid=4, cluster=2,
    )  # fmt: skip


def multicast(target: NvidiaTarget) -> Trial:
    """Each of two blocks brings a half of a box for both."""
    array = whole((16, 64), BF16, 5)

    def body(pen: Pen) -> None:
        f, bar = pen.f, hopper.shared(pen.f, 2048)
        begin(pen, [(bar, 1)], cluster=True)
        rank = special(f, "cluster.ctarank")
        with f.if_then(f.compare("eq", pen.thread, 0)):
            hopper.barrier_expect(f, bar, 2048)
            to = hopper.shared(f, f.mul(rank, 1024))
            where = [constant("i32", 0), f.mul(rank, 8)]
            hopper.copy_in(f, to, bar, pen.maps[0], where, blocks=3)
        hopper.barrier_wait(f, bar, 0)
        dump(pen, 1, 2048)
        hopper.cluster_arrive(f)
        hopper.cluster_wait(f)

    image = swizzled(array.reshape(-1).view(np.uint8), 128)
    return small(
        target, body, [array], [np.stack([image, image])],
        maps=[map_of(0, array, [64, 8], 128)], shared=2056, grid=2, cluster=2,
    )  # fmt: skip


# Products of a warp group.


def group_product(
    elements: tuple[str, str], columns: int, swizzles: tuple[int, int],
    turned: tuple[bool, bool], registers: bool, target: NvidiaTarget,
) -> Trial:  # fmt: skip
    """wgmma of 64 rows, `columns`, and 64 16-bit (or as many bytes) along the sum, in steps.

    Operands come by the copy engine in the swizzle; `turned`: the sum lies across their memory."""
    kind = hopper.KINDS[elements]
    size, depth = kind.bits // 8, 128 * 8 // kind.bits
    a = whole((64, depth), NUMPY[elements[0]], 1)
    b = whole((columns, depth), NUMPY[elements[1]], 2)
    sides, maps, at = [], [], 0
    for slot, (matrix, swizzle, across) in enumerate(zip((a, b), swizzles, turned, strict=True)):
        array = np.ascontiguousarray(matrix.T) if across else matrix
        outer, inner = array.shape
        chunk = swizzle // size
        sides.append((array, swizzle, across, at, outer * swizzle, inner // chunk, chunk))
        maps.append(map_of(slot, array, [chunk, outer], swizzle))
        at += -(-array.nbytes // 1024) * 1024
    steps = depth // kind.depth
    layout = layouts.wgmma_accumulator_tiles(columns)
    words_of_a = [
        words(held(layouts.wgmma_a(kind.depth, kind.bits),
                   a[:, step * kind.depth : (step + 1) * kind.depth], 128)).reshape(128, 4)
        for step in range(steps)
    ]  # fmt: skip
    fragments = np.stack(words_of_a, 1)  # [thread, step, word]

    def body(pen: Pen) -> None:
        f, bar = pen.f, hopper.shared(pen.f, at)
        begin(pen, [(bar, 1)])
        with f.if_then(f.compare("eq", pen.thread, 0)):
            hopper.barrier_expect(f, bar, sum(side[0].nbytes for side in sides))
            for number, (_, _, _, place, each, chunks, chunk) in enumerate(sides):
                for n in range(chunks):
                    to = hopper.shared(f, place + n * each)
                    where = [constant("i32", n * chunk), constant("i32", 0)]
                    hopper.copy_in(f, to, bar, pen.maps[number], where)
        hopper.barrier_wait(f, bar, 0)
        base = hopper.address(f, hopper.shared(f, 0))
        made = []
        for _, swizzle, across, place, each, _, _ in sides:
            leading = each if across else 16
            start = hopper.descriptor(f, f.add(base, place), leading, 8 * swizzle, swizzle)
            offsets = [
                step * kind.depth * swizzle if across
                else step * 32 // swizzle * each + step * 32 % swizzle
                for step in range(steps)
            ]  # fmt: skip
            made.append([f.add(start, offset >> 4) for offset in offsets])
        first = f.mul(pen.thread, 4 * steps)
        left: list[Any] = made[0]
        if registers:
            left = [
                [pen.word(2, f.add(first, 4 * step + n)) for n in range(4)] for step in range(steps)
            ]
        hopper.matrix_fence(f)
        found = hopper.matrix_multiply(
            f, kind, columns, [poison(kind.sums)] * (columns // 2),
            [
                hopper.WgmmaStep(x, y, n > 0)
                for n, (x, y) in enumerate(zip(left, made[1], strict=True))
            ],
            left_depth_first=turned[0], right_depth_first=turned[1],
        )  # fmt: skip
        hopper.matrix_commit(f)
        found = hopper.matrix_wait(f, 0, found)
        own = f.mul(pen.thread, columns // 2)
        for n, value in enumerate(found):
            pen.put(3, f.add(own, n), value)

    sums = np.int32 if kind.sums == "i32" else np.float32
    wanted = np.zeros((128, columns // 2), sums)
    exact = (a.astype(np.float64) @ b.astype(np.float64).T).astype(sums)
    thread = np.arange(128)
    for register in range(layout.registers):
        row, column = layout.coordinates(register, lane=thread % 32, warp=thread // 32)
        wanted[:, register] = exact[row, column]
    arrays = [sides[0][0], sides[1][0], fragments]
    return small(target, body, arrays, [wanted], maps=maps, threads=128, shared=at + 8)


def _group_products() -> Iterator[tuple[str, Make]]:
    straight = (False, False)

    def one(
        elements: tuple[str, str],
        columns: int,
        swizzles: tuple[int, int] = (128, 128),
        turned: tuple[bool, bool] = straight,
        registers: bool = False,
    ) -> tuple[str, Make]:
        form = "".join("T" if side else "N" for side in turned)
        left = "registers" if registers else str(swizzles[0])
        name = f"wgmma {' '.join(dict.fromkeys(elements))} n{columns} {form} {left} {swizzles[1]}"
        return name, partial(group_product, elements, columns, swizzles, turned, registers)

    bf16, f16 = ("bf16", "bf16"), ("f16", "f16")
    for elements in hopper.KINDS:
        yield one(elements, 64)
    for columns in (8, 24, 128, 256):
        yield one(bf16, columns)
    for swizzle in (64, 32):
        yield one(bf16, 64, (swizzle, swizzle))
    for swizzle in (128, 64, 32):
        yield one(bf16, 64, (128, swizzle), (False, True))
        yield one(f16, 128, (128, swizzle), (True, True))
    yield one(bf16, 256, (128, 64), (True, False))
    yield one(bf16, 128, registers=True)
    yield one(f16, 64, (128, 64), (False, True), registers=True)


def atoms(target: NvidiaTarget) -> Iterator[tuple[str, Make]]:
    """(name, maker of the trial) of everything that the architecture has, simple things first."""
    architecture = target.architecture
    yield "threads", plain
    yield "shuffles", shuffles
    yield "atomics", atomics
    yield "named barriers", named_barriers
    yield "cp.async", small_copies
    yield "ldmatrix", partial(matrix_load, False)
    yield "ldmatrix transposed", partial(matrix_load, True)
    seen = set()
    for left in BITS:
        for right in BITS:
            for sums in ("f32", "f16", "i32", "f64"):
                for atom in matrix_atoms(architecture, left, right, sums):
                    warp = atom.instruction == "mma.sync.aligned"
                    if warp and atom.opcode not in seen:
                        seen.add(atom.opcode)
                        yield atom.opcode, partial(product, atom)
    if not architecture.tensor_copies:
        return
    yield "stmatrix", matrix_store
    yield "mbarrier", counting_barrier
    for swizzle in (0, 32, 64, 128):
        yield f"box load, swizzle {swizzle}", partial(box_load, swizzle, 2, BF16)
    for rank in (3, 4, 5):
        yield f"box load, rank {rank}", partial(box_load, 64, rank, BF16)
    yield "box load, every second row", partial(box_load, 128, 2, BF16, step=2)
    for shift in (16, 64):
        name = f"box load, {shift} bytes aligned"
        yield name, partial(box_load, 128, 2, BF16, shift=shift)
    for dtype in (np.uint8, np.float32):
        name = np.dtype(dtype).name
        yield f"box load of {name}", partial(box_load, 32, 2, dtype)
    for swizzle in (32, 64, 128):
        yield f"box store, swizzle {swizzle}", partial(box_store, swizzle, BF16)
    yield "box store of float32", partial(box_store, 32, np.float32)
    if architecture.clusters:
        yield "remote arrival", remote_arrival
        yield "multicast", multicast
    if architecture.warpgroups:
        yield "setmaxnreg", register_budgets
        yield from _group_products()
