"""Results leave the registers: through swizzled shared memory and the copy engine, or directly."""

from __future__ import annotations

from collections.abc import Callable

from ....hlo.graph import Op
from ....optimizer.asynchronous.configuration import StagedStore
from ... import llvm
from ...llvm import Value, elements
from ..layout_code import sum_of
from ..windows import WindowAccess, write
from . import fragment
from . import instructions as hopper
from .consumer import Consumer
from .epilogue_loads import Arrivals
from .registers import LazyTile


class Epilogue:
    """Stores of one warp group. `maps` are the tensor maps of staged stores."""

    def __init__(self, consumer: Consumer, maps: dict[Op, Value]) -> None:
        self.consumer, self.maps = consumer, maps
        self.f, self.plan, self.evaluator = consumer.f, consumer.plan, consumer.evaluator
        f = self.f
        own = f.mul(consumer.group, self.plan.staging_bytes)
        self.start = f.add(own, self.plan.staging)
        self.barrier = f.add(consumer.group, 1)

    def run(self) -> None:
        arrivals = Arrivals(self.consumer)
        arrivals.wait()
        for store in self.plan.work.stores:
            staged = self.plan.stores.get(store)
            with self.f.within(store):
                tile = self.evaluator.tile(store.operands[1])
                if staged is None:
                    value = store.operands[1]
                    write(WindowAccess(self.evaluator, store, value, tile.layout), tile)
                else:
                    self.staged(staged, tile)
        arrivals.release()

    def drain(self) -> None:
        """Shared memory has to outlive the copies that read it."""
        if self.plan.stores:
            with self.f.if_then(self.consumer.leader):
                hopper.copies_read(self.f)

    # Through shared memory.

    def staged(self, staged: StagedStore, tile: LazyTile) -> None:
        f, store = self.f, staged.store
        width = store.operands[0].element.bits // 8
        columns = store.operands[1].dims[staged.order[0]]
        chunk = staged.swizzle // width
        offsets = [self.evaluator.number(store.operands[2 + dim]) for dim in staged.order]
        first_row = f.mul(self.consumer.group, self.plan.rows)
        for place, stride in enumerate(staged.strides):
            if stride:
                total = store.operands[1].dims[staged.order[place]]
                offsets[place] = f.add(offsets[place], f.urem(f.udiv(first_row, stride), total))
        size = self.plan.rows * staged.swizzle
        leader = self.consumer.leader
        write = self._writer(staged, tile)
        for first in range(0, columns, staged.chunks * chunk):
            with f.if_then(leader):
                hopper.copies_read(f)
            hopper.meet(f, self.barrier, hopper.WARPGROUP)
            for number in range(staged.chunks):
                write(first + number * chunk, number * size)
            hopper.publish(f)
            hopper.meet(f, self.barrier, hopper.WARPGROUP)
            with f.if_then(leader):
                for number in range(staged.chunks):
                    column = first + number * chunk
                    at = hopper.shared(f, f.add(self.start, number * size))
                    inner = f.add(offsets[0], llvm.constant("i32", column))
                    hopper.copy_out(f, at, self.maps[store], [inner, *offsets[1:]])
                hopper.copies_commit(f)

    def _writer(self, staged: StagedStore, tile: LazyTile) -> Callable[[int, int], None]:
        """Writes a chunk of columns: by `stmatrix` where its layout allows that."""
        f, element = self.f, staged.store.operands[0].element
        size = element.bits // 8
        made, matrices, plan = fragment.chunk(staged.swizzle // size, size)
        common = sum_of(f, plan.terms, self.consumer.thread, hopper.WARPGROUP)

        def write(column: int, offset: int) -> None:
            for access in plan.accesses:
                base = f.add(f.xor(common, access.xor), self.start)
                held = [made.registers[n] for n in access.registers]
                for block in range(self.consumer.blocks):
                    moved = offset + access.add + block * hopper.ROWS * staged.swizzle
                    target = hopper.shared(f, f.add(base, moved))
                    places = [(block * hopper.ROWS + i, column + j) for i, j in held]
                    if matrices:
                        words = [tile.word(i, j, element) for i, j in places[::2]]
                        hopper.store_matrices(f, target, words)
                    else:
                        raw = [elements.narrow(f, tile.at(i, j), element) for i, j in places]
                        f.store(f.joined(raw), target, align=plan.bytes)

        return write
