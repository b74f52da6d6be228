"""Descriptions of CPUs: typical ones, one file per feature level, and this machine's own.

The typical ones decide the code of ordinary compilations, so equal input gives equal bytes
wherever it is compiled. A calibrated one is asked for by name: `Options(machine="host")`.
In: a level, or the name of a machine. Out: its `Machine` (`optimizer/machine.py`). Imported by
`backends/cpu`, `cli`, `girih`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from importlib import resources
from pathlib import Path

from ....hlo.errors import UserError
from ....optimizer.cuts.choose import Cuts
from ....optimizer.machine import Machine, digest, from_json, read_machine, to_json
from ...cache import cache_folder
from ..codegen import Target

HOST = "host"
TYPICAL = ("avx512", "avx2", "baseline", "neon")


@functools.cache
def typical(level: str) -> Machine:
    """The typical machine of a feature level: "avx512", "avx2", "baseline" or "neon"."""
    name = f"{level}.json"
    return from_json(resources.files(__name__).joinpath(name).read_text("utf-8"), name)


def machine_of(target: Target) -> Machine:
    """The machine that code for a target is made for."""
    if target.machine is not None:
        return target.machine
    if target.architecture == "aarch64":
        return typical("neon")
    return typical({512: "avx512", 256: "avx2"}.get(target.vector_bits, "baseline"))


def cuts_of(target: Target) -> Cuts:
    """How kernels for a target are cut."""
    return Cuts(machine_of(target))


def find(choice: str | None) -> Machine | None:
    """The machine that `Options.machine` names: None, "host" or the path of a file.

    UserError if this machine was never calibrated, or the file is none.
    """
    if choice is None:
        return None
    if choice != HOST:
        return read_machine(choice)
    path = host_file()
    if not path.is_file():
        raise UserError(
            "machine 'host': this machine was not calibrated yet; "
            "run: girih machine --calibrate (it takes about 15 seconds)"
        )
    return read_machine(path)


def label(machine: Machine) -> str:
    """What provenance calls a machine: its name, with a digest unless it is a typical one."""
    if machine.name in TYPICAL and machine == typical(machine.name):
        return machine.name
    return f"{machine.name} {digest(machine)}"


def host_file() -> Path:
    """Where the description of this machine is kept: by processor, features and cores."""
    name = hashlib.blake2b("\n".join(_identity()).encode(), digest_size=8).hexdigest()
    return cache_folder() / "machines" / f"{name}.json"


def keep(machine: Machine) -> Path:
    """Stores the description of this machine; UserError if the cache cannot be written."""
    path = host_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Readers see the whole file or the one before.
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(to_json(machine), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UserError(f"machine: cannot write '{path}': {error}") from error
    return path


def host_name() -> str:
    """The processor's name, for people."""
    return _identity()[0]


def _identity() -> list[str]:
    """What tells one machine from another: model, features, cores that may be used."""
    model, features = platform.machine(), ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if key == "model name":
                model = value
            elif key in ("flags", "Features"):
                features = " ".join(sorted(value.split()))
                break
    except OSError:
        pass
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return [model, features, str(cores)]
