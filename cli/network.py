"""Measuring what processes of a launcher pay for communication: ours, and their library's.

Every operation is a program of one collective on f32, compiled in each process, once with exchanges
and our own sums, once with the library's collective. Each figure is the best of many calls, of the
slowest process, so that work of others on the machine disturbs little; a line through the sizes
gives what begins a call and what a received byte takes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compiler import compile as compile_program
from ..optimizer.library import COLLECTIVES
from ..optimizer.machine import ENGINES, KINDS, CommunicationCost, Machine, to_json
from ..options import Options

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..runtime.program import Program

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 23)  # bytes of the whole value
SECONDS = 0.4  # for one figure
_LEAST = 7  # calls


def collective(kind: str, size: int, count: int) -> str:
    """StableHLO of one collective of `count` processes; `size`: bytes of its f32 operand, or of an
    all-gather's result."""
    whole, part = size // 4, size // 4 // count
    given = part if kind == "all_gather" else whole
    made = part if kind == "reduce_scatter" else whole
    channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
    group = f"replica_groups = dense<[{list(range(count))}]> : tensor<1x{count}xi64>, {channel}"
    body = """({
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %s = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %s : tensor<f32>
      })"""
    ring = [[n, (n + 1) % count] for n in range(count)]
    name, facts, region = {
        "exchange": (
            "collective_permute",
            f"source_target_pairs = dense<{ring}> : tensor<{count}x2xi64>, {channel}",
            "",
        ),
        "all_reduce": ("all_reduce", f"{group}, use_global_device_ids", body),
        "reduce_scatter": (
            "reduce_scatter",
            f"{group}, use_global_device_ids, scatter_dimension = 0 : i64",
            body,
        ),
        "all_gather": (
            "all_gather",
            f"{group}, use_global_device_ids, all_gather_dim = 0 : i64",
            "",
        ),
        "all_to_all": (
            "all_to_all",
            f"{group}, split_dimension = 0 : i64, concat_dimension = 0 : i64, "
            f"split_count = {count} : i64",
            "",
        ),
    }[kind]
    types = f"(tensor<{given}xf32>) -> tensor<{made}xf32>"
    return f"""module @m attributes {{mhlo.num_partitions = {count} : i32}} {{
      func.func public @main(%a: tensor<{given}xf32>) -> tensor<{made}xf32> {{
        %0 = "stablehlo.{name}"(%a) <{{{facts}}}> {region} : {types}
        return %0 : tensor<{made}xf32>
      }}
    }}"""


def received(kind: str, size: int, count: int) -> float:
    """Bytes that a process receives, where each sends what it has to once."""
    if kind == "exchange":
        return size
    return size * (count - 1) / count * (2 if kind == "all_reduce" else 1)


def measured(
    world: MPI.Intracomm, machine: Machine, say: Callable[[str], None]
) -> tuple[CommunicationCost, ...]:
    """A row of each kind and engine, the same in all processes, which call it together."""
    rows: list[CommunicationCost] = []
    for kind in KINDS:
        say(f"{kind} of {world.size} processes")
        for engine in ENGINES if kind in COLLECTIVES else ENGINES[:1]:
            points: list[tuple[float, float]] = []
            for size in SIZES:
                size -= size % (4 * world.size)
                program = _compiled(kind, size, world.size, engine, machine)
                given = size // (world.size if kind == "all_gather" else 1)
                call = partial(program, np.ones(given // 4, np.float32))
                points.append((received(kind, size, world.size), _best(world, call)))
            rows.append(CommunicationCost(kind, world.size, engine, *line(points)))
    return tuple(rows)


def _compiled(kind: str, size: int, count: int, engine: str, machine: Machine) -> Program:
    """A program of one collective, on a machine where this engine is the faster one."""
    network = tuple(
        CommunicationCost(kind, count, one, float(one != engine), 0.0) for one in ENGINES
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "machine.json"
        file.write_text(to_json(replace(machine, network=network)), encoding="utf-8")
        options = Options(machine=str(file), cache="off")
        return compile_program(collective(kind, size, count), options=options)


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds of a call and of a byte, neither negative: least squares of the relative errors of
    (bytes, seconds)."""
    size, taken = np.array(points).T
    system = np.stack([1 / taken, size / taken], 1)
    call, byte = np.linalg.lstsq(system, np.ones(len(points)), rcond=None)[0]
    if call < 0:
        return 0.0, float((size / taken).sum() / ((size / taken) ** 2).sum())
    if byte < 0:
        return float((1 / taken).sum() / (1 / taken**2).sum()), 0.0
    return float(call), float(byte)


def _best(world: MPI.Intracomm, call: Callable[[], Any]) -> float:
    """Seconds of the fastest of several calls, each as long as its slowest process takes."""
    fastest, count, begun = float("inf"), 0, time.monotonic()
    while True:
        world.Barrier()
        started = time.perf_counter()
        call()
        own = np.array([time.perf_counter() - started])
        slowest = np.empty(1)
        world.Allreduce(own, slowest, _maximum())
        fastest, count = min(fastest, float(slowest[0])), count + 1
        if count >= _LEAST and world.bcast(time.monotonic() - begun > SECONDS):
            return fastest


def _maximum() -> MPI.Op:
    from mpi4py import MPI

    return MPI.MAX
