"""`girih machine`: what the cost model assumes of a machine, and measuring this one."""

from __future__ import annotations

from pathlib import Path

from ..backends.cpu import machines
from ..backends.cpu.codegen import host_target
from ..optimizer.machine import Machine, read_machine, to_json
from . import show


def show_machine(file: Path | None, calibrate: bool, as_json: bool) -> None:
    """Print a machine file, this machine's description, or the typical one of its level."""
    if file is not None:
        machine, source = read_machine(file), str(file)
    elif calibrate:
        machine = _calibrated()
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


def _calibrated() -> Machine:
    from ..backends.cpu.calibrate import calibrate
    from ..runtime.devices.cpu import default_threads, map_image

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
    math, sync = machine.math, machine.sync
    show.facts(
        [
            ("elements per ns: add, exp, divide, sqrt", ", ".join(
                f"{rate / 1e9:.3g}" for rate in (math.simple, math.exp, math.div, math.sqrt))),
            ("step between awake executors", show.time(sync.step * 1e6)),
            ("waking one that sleeps", show.time(sync.wake * 1e6)),
            ("call from the host", show.time(sync.dispatch * 1e6)),
        ]
    )  # fmt: skip
