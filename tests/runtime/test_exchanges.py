"""What a GPU copies, sends and receives in exchanges: launches and messages, done in numpy."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from girih import UserError
from girih.hlo.messages import most_staged
from girih.runtime.devices import exchanges
from girih.runtime.devices.exchanges import Communicate, exchange_steps
from girih.runtime.devices.gpu_steps import KernelStep, Started, Where
from girih.specs.generated import plan_pb2

from .distributed.test_transfers import COUNT, boxes_of, planned, wanted

ALIGNMENT = 64
OPERAND, RESULT, SCRATCH = range(3)  # bases

Memories = list[np.ndarray]


def copied(memories: Memories, started: Started) -> None:
    """As specs/plan.proto says it of the entries."""
    prefix, _, word = started.start.entry.rpartition("$")
    assert prefix == "exchange_copy"
    width = int(word)
    target, source, *numbers = started.parameters
    sizes = [struct.unpack("<I", one)[0] for one in numbers[:4]]  # pyright: ignore
    strides = [struct.unpack("<q", one)[0] for one in numbers[4:]]  # pyright: ignore
    assert started.start.grid[0] >= 1 and started.start.block == (256, 1, 1)
    assert isinstance(target, Where)
    for i, j, k in np.ndindex(*sizes[:3]):
        to, begin = (
            sum(n * s for n, s in zip((i, j, k), some, strict=True)) * width
            for some in (strides[:3], strides[3:])
        )
        row = sizes[3] * width
        to += target.offset
        assert to % width == 0
        if isinstance(source, Where):
            begin += source.offset
            assert begin % width == 0
            assert begin >= 0 and begin + row <= len(memories[source.base])
            data = memories[source.base][begin : begin + row].copy()
        else:
            assert source == bytes(8)
            data = np.zeros(row, np.uint8)
        assert to >= 0 and to + row <= len(memories[target.base])
        memories[target.base][to : to + row] = data


def run(plan: Any, step: Any, operands: list[np.ndarray]) -> list[bytes]:
    step.copy = "exchange_copy$"
    plan.arena_alignment = ALIGNMENT
    width, dims, made = step.element_bytes, tuple(step.operand_dims), tuple(step.result_dims)
    staged = most_staged(step.transfers, COUNT, dims, made, width, ALIGNMENT)
    memories: list[Memories] = []
    steps = []
    for rank in range(COUNT):
        given = operands[rank].reshape(-1).view(np.uint8).copy()
        result = np.full(int(np.prod(made)) * width, 77, np.uint8)
        memories.append([given, result, np.full(staged, 55, np.uint8)])
        places = (Where(OPERAND, 0), given.size), (Where(RESULT, 0), result.size)
        scratch = (Where(SCRATCH, 0), staged) if staged else None
        dead = ((0, 1),)
        steps.append(exchange_steps(plan, step, rank, *places, scratch, dead))
        assert [one.dead for one in steps[-1]] == [()] * (len(steps[-1]) - 1) + [dead]

    def works(rank: int, behind: bool) -> None:
        talked = False
        for one in steps[rank]:
            talked = talked or isinstance(one, Communicate)
            if isinstance(one, KernelStep) and talked is behind:
                assert one.copies
                for started in one.launches:
                    copied(memories[rank], started)

    for rank in range(COUNT):
        works(rank, False)
    sent: dict[tuple[int, int], np.ndarray] = {}
    talks = [
        (rank, one)
        for rank in range(COUNT)
        for one in steps[rank]
        if not isinstance(one, KernelStep)
    ]
    for rank, one in talks:
        for peer, where, size in one.outgoing:
            sent[rank, peer] = memories[rank][where.base][where.offset :][:size].copy()
    for rank, one in talks:
        for peer, where, size in one.incoming:
            data = sent.pop((peer, rank))
            assert len(data) == size
            memories[rank][where.base][where.offset :][:size] = data
    assert not sent
    for rank in range(COUNT):
        works(rank, True)
    return [memory[RESULT].tobytes() for memory in memories]


@given(boxes_of(), st.sampled_from([np.uint8, np.uint16, np.float32, np.complex128]))
def test_every_box_comes_to_its_place(drawn, kind):
    dims, made, moved = drawn
    plan, step = planned(dims, made, np.dtype(kind).itemsize, moved)
    count = int(np.prod(dims))
    operands = [np.arange(count).astype(kind).reshape(dims) + 10 * rank for rank in range(COUNT)]
    expected = [result.tobytes() for result in wanted(step, operands)]
    assert run(plan, step, operands) == expected


def six_dims() -> tuple[Any, Any, list[np.ndarray]]:
    """A box of which no two dims follow each other in memory, in either tensor."""
    dims, made, sizes = (3, 4, 3, 4, 3, 4), (4, 3, 4, 3, 4, 3), (2, 2, 2, 2, 2, 2)
    moved = [
        (0, 1, (1, 2, 1, 2, 1, 2), (2, 1, 2, 1, 2, 1), sizes),
        (2, 2, (0,) * 6, (0,) * 6, sizes),
    ]
    plan, step = planned(dims, made, 4, moved)
    count = int(np.prod(dims))
    return plan, step, [np.arange(count, dtype=np.int32).reshape(dims) - n for n in range(COUNT)]


def test_more_dims_than_a_launch_has():
    plan, step, operands = six_dims()
    assert run(plan, step, operands) == [result.tobytes() for result in wanted(step, operands)]


def test_more_words_than_threads_can_count(monkeypatch):
    monkeypatch.setattr(exchanges, "_MOST_WORDS", 5)
    plan, step, operands = six_dims()
    assert run(plan, step, operands) == [result.tobytes() for result in wanted(step, operands)]


def test_rows_are_copied_in_the_widest_words():
    moved = [(0, 1, (0, 0), (0, 8), (4, 8)), (1, 0, (0, 3), (0, 0), (4, 5))]
    plan, step = planned((4, 8), (4, 16), 4, moved)
    step.copy = "exchange_copy$"
    places = (Where(OPERAND, 0), 128), (Where(RESULT, 0), 256), (Where(SCRATCH, 0), 512)
    words = {
        one.start.entry.rpartition("$")[2]
        for step_ in exchange_steps(plan, step, 1, *places, ())
        for one in (step_.launches if isinstance(step_, KernelStep) else ())
    }
    assert words == {"16", "4"}  # zeros and the 8 elements that come; the 5 that go


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda step: setattr(step, "copy", ""), "no entry that copies boxes"),
        (lambda step: setattr(step, "element_bytes", 3), "elements of 3 bytes"),
        (lambda step: step.transfers.add(source=9), "names a process that there is not"),
        (lambda step: step.transfers[0].sizes.append(1), "another rank than its tensor"),
        (lambda step: step.operand_dims.__setitem__(0, 99), "lies outside its buffer"),
        (lambda step: None, "larger than their scratch"),
    ],
)
def test_malformed_steps_are_refused(change, message):
    plan, step = planned((4, 8), (4, 16), 4, [(0, 1, (0, 0), (0, 8), (4, 8))])
    step.copy = "exchange_copy$"
    change(step)
    places = (Where(OPERAND, 0), 128), (Where(RESULT, 0), 256)
    with pytest.raises(UserError, match=message):
        exchange_steps(plan, step, 1, *places, (Where(SCRATCH, 0), 64), ())


def test_one_process_has_nobody_to_exchange_with():
    from girih.runtime.devices.launches import decode

    plan, _ = planned((4, 8), (4, 16), 4, [])
    plan.processes = 0
    for buffer in plan.buffers:
        buffer.place = plan_pb2.ARENA
    plan.memory.arena_bytes = 4096
    with pytest.raises(UserError, match="one process has nobody to exchange with"):
        decode(plan, {})
