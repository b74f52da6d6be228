"""Fills a machine description from measurements on this CPU, in about ten seconds.

Everything is measured with small kernels of our own (probes.py), compiled like any other. Each
figure is the best of several short runs, so that work of others on the machine disturbs little.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ...hlo.build import make_op
from ...hlo.graph import arguments
from ...hlo.types import F32, TensorType
from ...optimizer.machine import Bandwidth, Efficiency, Level, Machine, MathRates, Sync, Unit
from . import image, kernels, probes
from .codegen import Target, compile_object

Load = Callable[[bytes], int]
Say = Callable[[str], None]

_DEPTH = 256  # steps of a register block's probe: sources stay in the first level
_DRAM_BYTES = 256 << 20
_LARGEST_SHARED = 32 << 20  # bytes with which a shared cache is measured
_LINE = 64
_BEHIND = 4  # times the level before: a block that the level itself serves
_MANY = 1 << 20  # ways of a memory whose lines never contend
_MATH_ELEMENTS = 2048
_TOGETHER = 4e-3  # seconds beside which starting a thread is little
_MATH = {"simple": "add", "exp": "exponential", "div": "divide", "sqrt": "sqrt"}
_OVERLAP = 0.47  # fitted: what moves is counted at full bandwidth, which computing disturbs


@dataclass
class _Laboratory:
    """Compiled probes of one target, and memory for them."""

    target: Target
    load: Load
    seconds: float  # for one figure

    def compile(self, emitters: dict[str, Callable[[Any, str], None]]) -> dict[str, Any]:
        """Callables by name: (a, b, c, size, turns)."""
        module = self.target.module()
        for name, emit in emitters.items():
            emit(module, name)
        linked = image.link([compile_object(module.text(), self.target)])
        base = self.load(linked.data)
        kinds = [*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64]
        kind = ctypes.CFUNCTYPE(None, *kinds)
        return {name: kind(base + linked.symbols[name]) for name in emitters}

    def fastest(self, run: Callable[[int], Any], share: float = 1.0, least: float = 2e-4) -> float:
        """Seconds of one turn of run(turns): the best of many runs of at least `least` seconds."""
        turns = 1
        while True:
            taken = min(_timed(run, turns), _timed(run, turns))
            if taken > least or turns >= 1 << 24:
                break
            turns *= 4 if taken < least / 4 else 2
        best, end = taken, perf_counter() + self.seconds * share
        while perf_counter() < end:
            best = min(best, _timed(run, turns))
        return best / turns


def _timed(run: Callable[[int], Any], turns: int) -> float:
    begin = perf_counter()
    run(turns)
    return perf_counter() - begin


def calibrate(
    target: Target,
    name: str,
    executors: int,
    load: Load,
    *,
    seconds: float = 15.0,
    say: Say | None = None,
) -> Machine:
    """The machine that this process runs on.

    name: what it is called. load: maps an image executable and gives its address. seconds: about
    how long it may take, at least 1; more gives steadier figures.
    """
    say = say or (lambda stage: None)
    # About 120 figures; memory figures take longer than their share.
    laboratory = _Laboratory(target, load, max(0.002, (seconds - 3) / 160))
    say("arithmetic")
    units = _units(laboratory)
    say("memory")
    levels = _levels(laboratory, executors)
    say("functions")
    rates = _math(laboratory)
    say("executors")
    sync = _sync(laboratory, executors)
    return Machine(name, executors, levels, units, sync, rates, _OVERLAP)


# Arithmetic.


def _units(laboratory: _Laboratory) -> tuple[Unit, ...]:
    units = [_unit(laboratory, "fma.f32", ("f32", "f16", "bf16"), "float", 2)]
    units.append(_unit(laboratory, "fma.f64", ("f64",), "double", 2))
    # bf16 and f16 without a unit of their own are widened to f32.
    for feature, name, kinds, element, flops in (
        ("avx512bf16", "dot.bf16", ("bf16",), "bfloat", 4),
        ("avx512vnni", "dot.i8", ("i8", "ui8"), "i8", 8),
    ):
        if feature in laboratory.target.features:
            units.append(_unit(laboratory, name, kinds, element, flops))
    return tuple(units)


def _unit(
    laboratory: _Laboratory, name: str, kinds: tuple[str, ...], element: str, flops: int
) -> Unit:
    """flops: operations of one lane of an accumulator in one step."""
    target = laboratory.target
    own = element in ("float", "double")
    lanes = target.lanes(element if own else "float")
    blocks = probes.register_blocks(target)
    if not own:
        blocks = [(rows, vectors) for rows, vectors in blocks if rows * vectors >= 4]
    emitter = probes.block if own else probes.dot
    functions = laboratory.compile({
        f"block_{rows}_{vectors}": partial(
            emitter, target=target, element=element, rows=rows, vectors=vectors
        )
        for rows, vectors in blocks
    })  # fmt: skip
    a, b, c = (_memory(64 * 1024) for _ in range(3))
    found = {}
    for rows, vectors in blocks:
        unroll = probes.block_unroll(rows, vectors)
        depth = _DEPTH // unroll * unroll
        while depth * vectors * target.vector_bits // 8 > 32 * 1024:
            depth -= unroll
        function = functions[f"block_{rows}_{vectors}"]
        run = partial(_run, function, a, b, c, depth)
        seconds = laboratory.fastest(run, 0.6)
        found[rows, vectors] = flops * lanes * rows * vectors * depth / seconds
    peak = max(found.values())
    saturated = [r * v for (r, v), rate in found.items() if rate >= 0.9 * peak]
    table = tuple(Efficiency(r, v, _rounded(rate / peak)) for (r, v), rate in found.items())
    return Unit(name, kinds, _rounded(peak), lanes, min(saturated), target.vector_registers, table)


def _run(function: Any, a: Any, b: Any, c: Any, size: int, turns: int) -> None:
    function(a.ctypes.data, b.ctypes.data, c.ctypes.data, size, turns)


def _memory(size: int) -> np.ndarray:
    """Bytes that exist (each page is written) and begin at a page."""
    block = np.zeros(size + 4096, np.uint8)
    block[::4096] = 1
    return block[-block.ctypes.data % 4096 :][:size]


# Memory.


def _levels(laboratory: _Laboratory, executors: int) -> tuple[Level, ...]:
    target = laboratory.target
    functions = laboratory.compile({
        "read": partial(probes.read, target=target),
        "write": partial(probes.write, target=target),
        "copy": partial(probes.copy, target=target),
        "chase": probes.chase,
    })  # fmt: skip
    main = [_memory(_DRAM_BYTES // executors) for _ in range(executors)]
    levels = []
    caches = cache_sizes()
    for number, (capacity, line, ways, shared) in enumerate(caches):
        size = capacity // 2
        if shared:
            size = min(size // 2, _LARGEST_SHARED) // executors
            # A part of a machine sees a part of its cache: what stays as fast as it is counts.
            capacity = max(2 * size * executors, _LARGEST_SHARED)
        table = _table(laboratory, functions, executors, main, size)
        # Far behind the level before, and no further: others may have most of a shared cache.
        nearest = min(size, _BEHIND * levels[-1].capacity) if levels else size
        latency = _latency(laboratory, functions["chase"], main[0][:nearest])
        capacity = max(capacity, levels[-1].capacity if levels else 0)
        levels.append(Level(f"l{number + 1}", capacity, line, ways, latency, shared, table))
    size = len(main[0])
    table = _table(laboratory, functions, executors, main, size)
    latency = _latency(laboratory, functions["chase"], main[0][: 64 << 20])
    levels.append(Level("memory", main_memory(), _LINE, _MANY, latency, True, table))
    return tuple(levels)


def cache_sizes() -> list[tuple[int, int, int, bool]]:
    """(bytes, line, ways, shared) of the first core's data caches, smallest first; what most cores
    have where the system does not say."""
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            text = (folder / "size").read_text().strip()
            size = int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)
            line = int((folder / "coherency_line_size").read_text())
            ways = int((folder / "ways_of_associativity").read_text())
            level = int((folder / "level").read_text())
        except (OSError, ValueError):
            continue
        if size > 0:
            found.append((size, max(line, 1), max(ways, 1), level >= 3))
    return sorted(found) or [(32 << 10, _LINE, 8, False), (1 << 20, _LINE, 8, False)]


def main_memory() -> int:
    """Bytes of the machine's memory; 8 GiB where the system does not say."""
    try:
        first = Path("/proc/meminfo").read_text().splitlines()[0]
        return int(first.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return 8 << 30


def _table(
    laboratory: _Laboratory,
    functions: dict[str, Any],
    executors: int,
    blocks: Sequence[np.ndarray],
    size: int,
) -> tuple[Bandwidth, ...]:
    counts = sorted({1, executors})
    rows: list[Bandwidth] = []
    for count in counts:
        rates = {}
        for kind in ("read", "write", "copy"):
            # A copy has both its sides in the same room.
            half = size // 2 if kind == "copy" else size
            step = probes.STREAMS * laboratory.target.vector_bits // 8
            half = max(step, half // step * step)
            runs = []
            for block in blocks[:count]:
                other = block[half : 2 * half] if kind == "copy" else block
                runs.append(partial(_run, functions[kind], block, other, _memory(4096), half))
            moved = half * count * (2 if kind == "copy" else 1)
            share = 1.0 if size < 1 << 22 else 2.0
            least = 2e-4 if count == 1 else _TOGETHER
            seconds = laboratory.fastest(partial(_together, runs), share, least)
            # More executors never move less; that others took a core for a moment is not a fact.
            least = getattr(rows[-1], kind) if rows else 0.0
            rates[kind] = max(_rounded(moved / seconds), least)
        rows.append(Bandwidth(count, **rates))
    return tuple(rows)


def _together(runs: Sequence[Callable[[int], None]], turns: int) -> None:
    """All at the same time, each on a thread; returns when the last is done."""
    others = [threading.Thread(target=run, args=(turns,)) for run in runs[1:]]
    for thread in others:
        thread.start()
    runs[0](turns)
    for thread in others:
        thread.join()


def _latency(laboratory: _Laboratory, chase: Any, block: np.ndarray) -> float:
    """Seconds of a load whose address the load before gave, in random order of lines."""
    lines = len(block) // _LINE
    order = np.random.default_rng(0).permutation(lines)
    addresses = block.ctypes.data + _LINE * order
    words = block[: lines * _LINE].view(np.uint64).reshape(lines, _LINE // 8)
    words[order, 0] = np.roll(addresses, -1)
    target = _memory(4096).view(np.uint64)
    target[0] = addresses[0]

    def run(turns: int) -> None:
        # Each run goes on where the one before stopped.
        chase(int(target[0]), 0, target.ctypes.data, 0, 64 * turns)

    seconds = laboratory.fastest(run, least=2e-3) / 64
    return _rounded(seconds)


# Functions and executors.


def _math(laboratory: _Laboratory) -> MathRates:
    kind = TensorType((_MATH_ELEMENTS,), F32)
    values = np.linspace(0.5, 4.0, _MATH_ELEMENTS, dtype=np.float32)
    result = _memory(4 * _MATH_ELEMENTS)
    rates = {}
    for name, operation in _MATH.items():
        count = 2 if operation in ("add", "divide") else 1
        op = make_op(operation, arguments([kind] * count), {}, check=False)
        code = kernels.emit(op, laboratory.target)
        linked = image.link([compile_object(code.ir_text, laboratory.target)])
        address = laboratory.load(linked.data) + linked.symbols[code.symbol]
        signature = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
        )
        function = signature(address)
        places = [*[values.ctypes.data] * count, result.ctypes.data]
        table = (ctypes.c_void_p * len(places))(*places)

        def run(turns: int, function: Any = function, table: Any = table, code: Any = code) -> None:
            for _ in range(turns):
                function(table, 0, code.tiles, None)

        empty = laboratory.fastest(
            lambda turns, function=function, table=table: [
                function(table, 0, 0, None) for _ in range(turns)
            ]
        )
        seconds = laboratory.fastest(run) - empty
        rates[name] = _rounded(_MATH_ELEMENTS / max(seconds, 1e-9))
    return MathRates(**rates)


def _sync(laboratory: _Laboratory, executors: int) -> Sync:
    module_target = laboratory.target
    functions = laboratory.compile({
        "spin": partial(probes.meet, sleeping=False),
        "sleep": partial(probes.meet, sleeping=True),
        "gather": probes.gather,
        "delay": probes.delay,
        "nothing": probes.nothing,
    })  # fmt: skip
    nothing = functions["nothing"]

    def call(turns: int) -> None:
        for _ in range(turns):
            nothing(0, 0, 0, 0, 0)

    dispatch = laboratory.fastest(call)
    if executors == 1:
        return Sync(0.0, 0.0, _rounded(dispatch), 0.0, 0.0)
    spin = _handover(laboratory, functions["spin"], 0, 0, 2000)
    counted = {"counter": _rounded(spin), "barrier": _rounded(_gathered(laboratory, functions))}
    libc = ctypes.CDLL(None)
    number = probes.FUTEX.get(module_target.architecture)
    if number is None or not hasattr(libc, "syscall"):
        return Sync(_rounded(spin), _rounded(100 * spin), _rounded(dispatch), **counted)
    system = ctypes.cast(libc.syscall, ctypes.c_void_p).value or 0
    delay = laboratory.fastest(lambda turns: functions["delay"](0, 0, 0, 0, turns))
    sleep = _handover(laboratory, functions["sleep"], system, number, 50)
    sleep = max(sleep - delay, spin)
    return Sync(_rounded(spin), _rounded(sleep), _rounded(dispatch), **counted)


def _handover(laboratory: _Laboratory, meet: Any, system: int, number: int, turns: int) -> float:
    """Seconds from one executor's word to the other's: the median of some runs, since a core that
    is awake by chance is no wake."""
    runs = [lambda word, me=me: meet(word, system, number, me, turns) for me in (0, 1)]
    return _paired(laboratory, runs) / (2 * turns)


def _gathered(laboratory: _Laboratory, functions: dict[str, Any]) -> float:
    """Seconds of a barrier of two executors."""
    turns, gather = 2000, functions["gather"]
    return _paired(laboratory, [lambda word: gather(word, 0, 0, 2, turns)] * 2) / turns


def _paired(laboratory: _Laboratory, runs: Sequence[Callable[[int], Any]]) -> float:
    """The median of seconds in which two executors run together, given the address of a word."""
    word = _memory(4096)
    taken = []
    end = perf_counter() + max(0.02, 4 * laboratory.seconds)
    while perf_counter() < end:
        word[:8] = 0
        begin = perf_counter()
        other = threading.Thread(target=runs[1], args=(word.ctypes.data,))
        other.start()
        runs[0](word.ctypes.data)
        other.join()
        taken.append(perf_counter() - begin)
    return float(np.median(taken))


def _rounded(value: float) -> float:
    """Four digits: more were never measured."""
    return float(f"{value:.4g}")
