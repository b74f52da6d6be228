"""What one process copies and sends in an exchange, beside a world of threads."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from girih import UserError
from girih.runtime.distributed.transfers import Exchange
from girih.specs.generated import plan_pb2

COUNT = 3


class Threads:
    """As World does: messages of the processes that threads are."""

    def __init__(self, rank: int, boxes: dict[tuple[int, int], queue.Queue[Any]]) -> None:
        self.rank, self.boxes, self.lock = rank, boxes, threading.Lock()

    def exchange(self, outgoing: Any, incoming: Any, what: str, seconds: float, tag: int) -> None:
        for peer, array in outgoing:
            assert array.flags.c_contiguous
            self.boxes[self.rank, peer].put(array.copy().reshape(-1))
        for peer, array in incoming:
            assert array.flags.c_contiguous
            array.reshape(-1)[...] = self.boxes[peer, self.rank].get(timeout=seconds)


Three = tuple[np.ndarray, np.ndarray, np.ndarray]


def addresses(memory: Three) -> tuple[int, int, int]:
    first, second, third = (array.ctypes.data for array in memory)
    return first, second, third


Moved = tuple[int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def planned(dims: tuple[int, ...], made: tuple[int, ...], width: int, moved: list[Moved]) -> Any:
    plan = plan_pb2.Plan(processes=COUNT)
    for shape in (dims, made):
        plan.buffers.add(bytes=int(np.prod(shape)) * width)
    step = plan.steps.add().exchange
    step.operand.buffer, step.result.buffer, step.element_bytes = 0, 1, width
    step.operand_dims.extend(dims)
    step.result_dims.extend(made)
    for source, target, begin, to, sizes in moved:
        step.transfers.add(
            source=source, target=target, source_start=begin, target_start=to, sizes=sizes
        )
    return plan, step


def between() -> dict[tuple[int, int], queue.Queue[Any]]:
    """What each process has sent each other one."""
    ranks = range(COUNT)
    return {(one, other): queue.Queue() for one in ranks for other in ranks}


def run(plan: Any, step: Any, operands: list[np.ndarray], turns: int = 1) -> list[np.ndarray]:
    """Each process's result, in memory that was full of other numbers; the same `turns` times."""
    boxes = between()
    results = [np.full(tuple(step.result_dims), 77, operands[0].dtype) for _ in operands]
    exchanges = [Exchange(plan, step, rank) for rank in range(COUNT)]

    def one(rank: int) -> None:
        world: Any = Threads(rank, boxes)
        scratch = np.empty(exchanges[rank].scratch, np.uint8)
        received: Counter[str] = Counter()
        for _ in range(turns):
            results[rank][...] = 77
            memory = operands[rank], results[rank], scratch
            exchanges[rank].run(world, *addresses(memory), received, 10.0, 2)
        counts[rank] = received["exchange"]

    counts = [0] * COUNT
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = [
        sum(
            int(np.prod(t.sizes)) * step.element_bytes
            for t in step.transfers
            if t.target == rank != t.source
        )
        for rank in range(COUNT)
    ]
    assert counts == [turns * bytes_ for bytes_ in sent]
    return results


def window(begin: Any, sizes: Any) -> tuple[slice, ...]:
    return tuple(slice(b, b + n) for b, n in zip(begin, sizes, strict=True))


def wanted(step: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
    results = [np.zeros(tuple(step.result_dims), operands[0].dtype) for _ in operands]
    for t in step.transfers:
        box = operands[t.source][window(t.source_start, t.sizes)]
        results[t.target][window(t.target_start, t.sizes)] = box
    return results


@st.composite
def boxes_of(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], list[Moved]]:
    """Results cut into cells along a grid, each from some process's operand, or from none."""
    rank = draw(st.integers(1, 3))
    dims = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    made = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    moved: list[Moved] = []
    for target in range(COUNT):
        cuts = [sorted({0, d, draw(st.integers(0, d))}) for d in made]
        cells = [list(zip(c, c[1:], strict=False)) for c in cuts]
        for place in np.ndindex(*map(len, cells)):
            bounds = [cells[d][n] for d, n in enumerate(place)]
            sizes = tuple(min(high - low, n) for (low, high), n in zip(bounds, dims, strict=True))
            begin = tuple(draw(st.integers(0, d - n)) for d, n in zip(dims, sizes, strict=True))
            source = draw(st.integers(-1, COUNT - 1))
            if source >= 0:
                moved.append((source, target, begin, tuple(low for low, _ in bounds), sizes))
    return dims, made, draw(st.permutations(moved))


@given(boxes_of(), st.sampled_from([np.uint8, np.float32, np.complex128]))
def test_every_box_comes_to_its_place(drawn, kind):
    dims, made, moved = drawn
    plan, step = planned(dims, made, np.dtype(kind).itemsize, moved)
    count = int(np.prod(dims))
    operands = [np.arange(count).astype(kind).reshape(dims) + 10 * rank for rank in range(COUNT)]
    for result, expected in zip(run(plan, step, operands, 2), wanted(step, operands), strict=True):
        assert result.tobytes() == expected.tobytes()


def gathered(dim: int) -> tuple[Any, Any]:
    made = (12, 4) if dim == 0 else (4, 12)
    to = [(4 * rank, 0) if dim == 0 else (0, 4 * rank) for rank in range(COUNT)]
    moved = [(s, t, (0, 0), to[s], (4, 4)) for s in range(COUNT) for t in range(COUNT)]
    return planned((4, 4), made, 4, moved)


def test_what_lies_in_one_piece_is_received_where_it_belongs():
    plan, step = gathered(0)
    assert [Exchange(plan, step, rank).scratch for rank in range(COUNT)] == [0] * COUNT


def test_what_does_not_is_unpacked_from_scratch():
    plan, step = gathered(1)
    assert [Exchange(plan, step, rank).scratch for rank in range(COUNT)] == [2 * 64] * COUNT


def test_other_addresses_are_other_messages():
    plan, step = gathered(1)
    boxes = between()
    exchanges = [Exchange(plan, step, rank) for rank in range(COUNT)]
    scratch = [np.empty(exchange.scratch, np.uint8) for exchange in exchanges]
    kept = []

    def one(rank: int) -> None:
        exchanges[rank].run(
            Threads(rank, boxes),  # pyright: ignore[reportArgumentType]
            *addresses((operands[rank], results[rank], scratch[rank])),
            Counter(),
            10.0,
            2,
        )

    for turn in range(20):  # more than are kept, and all alive: no address comes twice
        operands = [np.full((4, 4), 10 * turn + rank, np.float32) for rank in range(COUNT)]
        results = [np.zeros((4, 12), np.float32) for _ in range(COUNT)]
        kept.append((operands, results))
        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(COUNT)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            assert result.tobytes() == np.concatenate(operands, 1).tobytes(), turn


def test_a_tensor_outside_of_its_buffer_is_refused():
    plan, step = gathered(0)
    plan.buffers[1].bytes -= 1
    with pytest.raises(UserError, match="lies outside its buffer"):
        Exchange(plan, step, 0)
