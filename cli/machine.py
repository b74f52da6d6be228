"""`girih machine`: what the cost model assumes of a machine, and measuring this one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..backends.cpu import machines
from ..backends.cpu.calibrate import calibrate
from ..backends.cpu.codegen import host_target
from ..hlo.errors import UserError
from ..optimizer.machine import KINDS, CommunicationCost, Machine, read_machine, to_json
from ..runtime.devices.cpu import default_threads, map_image
from ..runtime.distributed.launch import launched
from ..runtime.distributed.started import own_rank, the_world
from ..runtime.distributed.world import mpi_world
from . import show
from .network import measured


def show_machine(file: Path | None, calibrate: bool, as_json: bool) -> None:
    """Print a machine file, this machine's description, or the typical one of its level."""
    if file is not None:
        machine, source = read_machine(file), str(file)
    elif calibrate and launched() > 1:
        machine = _with_network(_kept())
        if own_rank():
            return
        source = f"network measured now, kept in {machines.keep(machine)}"
    elif calibrate:
        machine = replace(_calibrated(), network=_known_network())
        source = f"measured now, kept in {machines.keep(machine)}"
    elif machines.host_file().is_file():
        machine, source = read_machine(machines.host_file()), "calibrated (machine=host)"
    else:
        machine = machines.machine_of(host_target())
        source = "typical of its feature level; --calibrate measures this machine"
    if as_json:
        print(to_json(machine), end="")
        return
    show.console.print(f"{machine.name}: {machine.executors} executors, {source}")
    _print(machine)


def _with_network(machine: Machine) -> Machine:
    """The machine with what this launcher's processes pay for communication; sizes of groups that
    were measured earlier stay."""
    world = mpi_world(the_world(), "calibrating")
    with show.progress_console.status("calibrating") as status:
        rows = measured(
            world.communicator, machine, lambda stage: status.update(f"calibrating: {stage}")
        )
    others = [row for row in machine.network if row.processes != world.size]
    network = sorted((*others, *rows), key=lambda row: (row.processes, KINDS.index(row.kind)))
    return replace(machine, network=tuple(network))


def _known_network() -> tuple[CommunicationCost, ...]:
    """What was measured under a launcher; measuring the cores does not change it."""
    file = machines.host_file()
    try:
        return read_machine(file).network if file.is_file() else ()
    except UserError:
        return ()  # of an earlier version, which is replaced


def _kept() -> Machine:
    """This machine's description; UserError where it was not measured yet. Processes that measure
    cores together would disturb each other."""
    if not machines.host_file().is_file():
        raise UserError(
            "this machine's cores were not measured yet, which one process does alone: run first "
            "girih machine --calibrate without a launcher"
        )
    return read_machine(machines.host_file())


def _calibrated() -> Machine:
    kept = []  # code must outlive its calls

    def load(image: bytes) -> int:
        kept.append(map_image(image))
        return kept[-1].address

    with show.progress_console.status("calibrating") as status:
        return calibrate(
            host_target(), machines.host_name(), default_threads(), load,
            say=lambda stage: status.update(f"calibrating: {stage}"),
        )  # fmt: skip


def _print(machine: Machine) -> None:
    rows = []
    for level in machine.levels:
        for entry in level.bandwidth:
            rates = (f"{rate / 1e9:.4g}" for rate in (entry.read, entry.write, entry.copy))
            first = entry is level.bandwidth[0]
            names = (level.name, show.size(level.capacity), f"{level.latency * 1e9:.3g}")
            rows.append((*(names if first else ("", "", "")), entry.executors, *rates))
    headings = ("level", ">capacity", ">latency ns", ">executors", ">read GB/s", ">write", ">copy")
    show.table(headings, rows)
    show.table(
        ("unit", "elements", ">GFLOP/s", ">best block", ">accumulators to fill it"),
        [
            (
                unit.name, " ".join(unit.elements), f"{unit.flops / 1e9:.4g}",
                "x".join(map(str, max(unit.efficiency, key=lambda e: e.fraction)[:2])),
                unit.parallelism,
            )
            for unit in machine.units
        ],
    )  # fmt: skip
    if machine.network:
        show.table(
            ("between processes", ">processes", "by", ">call", ">GB/s received"),
            [
                (
                    row.kind, row.processes, row.engine, show.time(row.call * 1e6),
                    f"{1e-9 / row.byte:.3g}" if row.byte else "-",
                )
                for row in machine.network
            ],
        )  # fmt: skip
    math, sync = machine.math, machine.sync
    show.facts(
        [
            ("elements per ns: add, exp, divide, sqrt", ", ".join(
                f"{rate / 1e9:.3g}" for rate in (math.simple, math.exp, math.div, math.sqrt))),
            ("step between awake executors", show.time(sync.step * 1e6)),
            ("seeing another's counter", show.time(sync.counter * 1e6)),
            ("barrier of awake executors", show.time(sync.barrier * 1e6)),
            ("waking one that sleeps", show.time(sync.wake * 1e6)),
            ("call from the host", show.time(sync.dispatch * 1e6)),
        ]
    )  # fmt: skip
