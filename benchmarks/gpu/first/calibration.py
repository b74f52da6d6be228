"""What this very GPU takes: launches, round trips, its caches and its memory.

Kernels are PTX of sm_80, which every later GPU translates. Results are those of a machine's file
(backends/nvidia/machines/): seconds, bytes per second by number of multiprocessors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from girih.backends.nvidia.launch import Immediate, KernelCode, KernelMemory, Launch
from girih.backends.nvidia.target import NvidiaTarget, target
from girih.runtime.devices.driver import chain

from .clock import seconds, several
from .trial import Ready, Session, Trial, made

_THREADS = 1024
_AT_ONCE = 4  # accesses of 16 bytes that a thread has under way
_HEAD = ".version 7.0\n.target sm_80\n.address_size 64\n"
_SMALL, _L2, _MEMORY = 1 << 16, 16 << 20, 1 << 30  # bytes that are read, or written
_COUNT = 20

NULL = f"""{_HEAD}
.visible .entry null()
{{
  ret;
}}
"""

# Adds 1 to a word: each launch needs what the one before it wrote.
NEXT = f"""{_HEAD}
.visible .entry next(.param .u64 word)
{{
  .reg .b32 %r<3>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [word];
  cvta.to.global.u64 %rd2, %rd1;
  ld.global.u32 %r1, [%rd2];
  add.u32 %r2, %r1, 1;
  st.global.u32 [%rd2], %r2;
  ret;
}}
"""


def _walk(name: str, read: bool, write: bool) -> str:
    """A kernel whose threads go through `turns` times _AT_ONCE chunks of 16 bytes each, all blocks
    side by side. What is only read is summed up, and stored where the sum says so."""
    loads, stores = [], []
    for number in range(_AT_ONCE):
        words = ", ".join(f"%r{20 + 4 * number + word}" for word in range(4))
        if read:
            loads.append(f"  ld.global.v4.u32 {{{words}}}, [%rd{10 + number}];")
        if write:
            what = words if read else "%r1, %r1, %r1, %r1"
            stores.append(f"  st.global.v4.u32 [%rd{20 + number}], {{{what}}};")
        else:
            for word in range(4):
                stores.append(f"  xor.b32 %r9, %r9, %r{20 + 4 * number + word};")
    places = []
    for number in range(_AT_ONCE):
        if number:
            places.append("  add.u32 %r5, %r5, %r6;")
        places.append("  mul.wide.u32 %rd5, %r5, 16;")
        places.append(f"  add.s64 %rd{10 + number}, %rd2, %rd5;")
        places.append(f"  add.s64 %rd{20 + number}, %rd4, %rd5;")
    body = "\n".join((*places, *loads, *stores))
    return f"""{_HEAD}
.visible .entry {name}(.param .u64 source, .param .u64 target, .param .u32 turns)
{{
  .reg .pred %p<3>;
  .reg .b32 %r<40>;
  .reg .b64 %rd<30>;
  ld.param.u64 %rd1, [source];
  cvta.to.global.u64 %rd2, %rd1;
  ld.param.u64 %rd3, [target];
  cvta.to.global.u64 %rd4, %rd3;
  ld.param.u32 %r8, [turns];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %nctaid.x;
  mad.lo.u32 %r5, %r2, %r3, %r1;
  mul.lo.u32 %r6, %r3, %r4;
  mov.u32 %r7, 0;
  mov.u32 %r9, 1;
AGAIN:
{body}
  add.u32 %r5, %r5, %r6;
  add.u32 %r7, %r7, 1;
  setp.lt.u32 %p1, %r7, %r8;
  @%p1 bra AGAIN;
  setp.ne.u32 %p2, %r9, 0;
  @%p2 bra END;
  st.global.u32 [%rd4], %r9;
END:
  ret;
}}
"""


WALKS = {
    "read": _walk("read", read=True, write=False),
    "write": _walk("write", read=False, write=True),
    "copy": _walk("copy", read=True, write=True),
}


def _ready(text: str, name: str, arguments: tuple[Any, ...], grid: int, threads: int) -> Ready:
    launch = Launch(name, (grid, 1, 1), (threads, 1, 1), arguments)
    code = KernelCode(text, (launch,), 0.0, 0.0, language="ptx")
    on: NvidiaTarget = target("sm_80")
    return made(name, Trial(code, (), ()), on)


def walk(kind: str, blocks: int, size: int) -> tuple[Ready, int]:
    """The kernel over arrays of `size` bytes, and the bytes of one that it really goes through."""
    turn = 16 * _AT_ONCE * _THREADS * blocks
    turns = max(1, size // turn)
    arguments = (KernelMemory(0), KernelMemory(1), Immediate(turns.to_bytes(4, "little")))
    return _ready(WALKS[kind], kind, arguments, blocks, _THREADS), turns * turn


def launches(driver: Any) -> dict[str, Any]:
    """Seconds of a launch that follows others, alone and in a graph; of a round trip; of reading
    one word back."""
    found: dict[str, Any] = {}
    word = np.zeros(1, np.uint32)
    plain = _ready(NULL, "null", (), 1, 32)
    chained = replace(_ready(NEXT, "next", (KernelMemory(0),), 1, 32), inputs=(word,))
    count = 20 if driver.simulated else 2000
    for name, ready in (("independent", plain), ("dependent", chained)):
        with Session(driver, ready) as session:
            found[f"{name}_launch"] = several(driver, session.stream, session.launch, count)
            if driver.graphs:
                graph = driver.graph(session.prepared * 100, chain(len(session.prepared) * 100))
                try:

                    def replay(graph: Any = graph, stream: Any = session.stream) -> None:
                        driver.replay(graph, stream)

                    each = several(driver, session.stream, replay, 20)
                    found[f"{name}_graph_node"] = {k: v / 100 for k, v in each.items()}
                finally:
                    driver.synchronize(session.stream)
                    driver.destroy_graph(graph)
            if ready is chained:
                before = _word(session)
                for _ in range(10):
                    session.launch()
                after = _word(session)
                if after - before != 10:
                    raise ValueError(f"10 launches added {after - before}")
                found["round_trip"] = _median(lambda s=session: _trip(s))
                found["read_back"] = _median(lambda s=session: _word(s))
    return found


def _word(session: Session) -> int:
    word = np.zeros(4, np.uint8)
    session.driver.download(word, session.addresses[0], session.stream)
    session.driver.synchronize(session.stream)
    return int(word.view(np.uint32)[0])


def _trip(session: Session) -> None:
    session.launch()
    session.driver.synchronize(session.stream)


def _median(call: Callable[[], Any]) -> float:
    taken = []
    for _ in range(_COUNT):
        before = time.perf_counter()
        call()
        taken.append(time.perf_counter() - before)
    return sorted(taken)[_COUNT // 2]


def bandwidth(driver: Any, size: int, executors: int) -> dict[str, Any]:
    """Bytes per second that are read, written, or read and written by a copy, by number of blocks,
    one on each multiprocessor. Arrays of `size` bytes; what stays in the cache is walked again."""
    again = size <= _L2  # in the cache: timed without emptying it
    found: dict[str, Any] = {"bytes": size, "bandwidth": []}
    counts = _counts(1 if driver.simulated else executors)
    sides = _Sides(driver, size)
    try:
        for blocks in counts:
            row: dict[str, Any] = {"executors": blocks}
            for kind in WALKS:
                ready, moved = walk(kind, blocks, size)
                taken = sides.seconds(ready, again)
                row[kind] = (2 if kind == "copy" else 1) * moved / taken
                if kind == "copy":
                    sides.compare(moved)
            found["bandwidth"].append(row)
    finally:
        sides.close()
    return found


def _counts(executors: int) -> list[int]:
    counts = [1 << bit for bit in range(executors.bit_length()) if 1 << bit < executors]
    return [*counts, executors]


class _Sides:
    """Two arrays on a device, the source with numbers that differ."""

    def __init__(self, driver: Any, size: int) -> None:
        self.driver, self.size = driver, size
        with driver:
            self.stream = driver.create_stream()
            self.addresses = [driver.allocate(size, self.stream) for _ in range(2)]
            self.pattern = np.random.default_rng(5).integers(0, 256, min(size, _L2), np.uint8)
            for start in range(0, size, self.pattern.size):
                driver.upload(self.addresses[0] + start, self.pattern, self.stream)
            driver.synchronize(self.stream)

    def seconds(self, ready: Ready, again: bool) -> float:
        with Session(self.driver, ready_of(ready, self.addresses)) as session:
            start, stream = session.launch, session.stream
            if self.driver.simulated or again:
                return several(self.driver, stream, start, 1 if self.driver.simulated else 50)[
                    "device"
                ]
            return seconds(self.driver, stream, start, 5)

    def compare(self, moved: int) -> None:
        """ValueError where the copy's first and last bytes are not the source's."""
        part = min(moved, 1 << 16)
        with self.driver:
            for start in (0, moved - part):
                data = np.empty(part, np.uint8)
                self.driver.download(data, self.addresses[1] + start, self.stream)
                self.driver.synchronize(self.stream)
                place = (start + np.arange(part)) % self.pattern.size
                if (data != self.pattern[place]).any():
                    raise ValueError(f"the copy differs behind byte {start}")

    def close(self) -> None:
        with self.driver:
            for address in self.addresses:
                self.driver.free(address, self.stream)
            self.driver.synchronize(self.stream)
            self.driver.destroy_stream(self.stream)


def ready_of(ready: Ready, addresses: list[int]) -> Ready:
    """The same with addresses in place of arrays that the trial would bring."""
    (launch,) = ready.launches
    arguments = tuple(
        Immediate((addresses[one.slot] + one.offset).to_bytes(8, "little"))
        if isinstance(one, KernelMemory)
        else one
        for one in launch.arguments
    )
    return replace(ready, launches=(replace(launch, arguments=arguments),))


def everything(driver: Any, executors: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """(name, function that gives the facts)."""
    sizes = {"L2": _SMALL, "memory": _SMALL} if driver.simulated else {"L2": _L2, "memory": _MEMORY}
    yield "calibration: launches", lambda: launches(driver)
    for name, size in sizes.items():
        yield f"calibration: {name}", lambda size=size: bandwidth(driver, size, executors)
