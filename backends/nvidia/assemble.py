"""ptxas, where it is installed: machine code, and what it says about registers and spills.

ptxas is optional. A GPU's driver translates PTX when a program is loaded; machine code made here
saves that time, and ptxas's report is the gate of our tests.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ...hlo.errors import CompilerBug, UserError
from .target import Architecture

TIMEOUT = 600.0  # seconds
_COMPILING = re.compile(r"Compiling entry function '([\w$.]+)' for '(\w+)'")
_PROPERTIES = re.compile(r"Function properties for ([\w$.]+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
_NOTED = re.compile(r"^(?:ptxas )?(?:info|warning|error)\s*:\s*(.*)$")
# What ptxas says where it serialises matrix instructions or leaves setmaxnreg out.
_BAD = re.compile(
    r"C75\d\d|serializ|setmaxnreg.*ignored|wgmma.*(?:injected|inserted)", re.IGNORECASE
)


@dataclass
class Usage:
    """What one entry needs of the machine; bytes are per thread, shared ones (static) per block."""

    entry: str
    registers: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    shared_bytes: int = 0
    barriers: int = 0


@dataclass(frozen=True)
class Assembly:
    """Machine code of one architecture, each entry's usage, and ptxas's remarks."""

    architecture: str
    cubin: bytes
    usages: dict[str, Usage]
    remarks: tuple[str, ...] = ()

    def faults(self, stack_bytes: dict[str, int] | None = None) -> list[str]:
        """What no kernel of ours may have: spills, arrays in local memory beyond the declared
        bytes (`stack_bytes`, by entry), serialised matrix instructions, ignored budgets."""
        declared = stack_bytes or {}
        found = [remark for remark in self.remarks if _BAD.search(remark)]
        for usage in self.usages.values():
            if usage.spill_store_bytes or usage.spill_load_bytes:
                found.append(
                    f"{usage.entry}: {usage.spill_store_bytes} bytes of spills stored, "
                    f"{usage.spill_load_bytes} loaded ({usage.registers} registers)"
                )
            elif usage.stack_bytes > declared.get(usage.entry, 0):
                found.append(f"{usage.entry}: {usage.stack_bytes} bytes of local memory")
        return found


@dataclass
class _Report:
    usages: dict[str, Usage] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


@functools.cache
def find_tool(name: str) -> str | None:
    """The path of one of CUDA's commands: in CUDA's folder by CUDA_HOME or CUDA_PATH, where
    commands are found, or in NVIDIA's Python packages (the newest of them)."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            candidate = Path(os.environ[variable]) / "bin" / name
            if candidate.is_file():
                return str(candidate)
    return shutil.which(name) or _packaged(name)


def _packaged(name: str) -> str | None:
    """nvidia/cu13/bin of CUDA 13's packages, nvidia/cuda_nvcc/bin of those before."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    commands = [
        path
        for folder in folders
        for path in Path(folder).glob(f"*/bin/{name}")
        if os.access(path, os.X_OK)
    ]
    generation = re.compile(r"cu(\d+)$")

    def age(path: Path) -> tuple[int, str]:
        match = generation.match(path.parts[-3])
        return int(match[1]) if match else 0, str(path)

    return str(max(commands, key=age)) if commands else None


def find_ptxas() -> str | None:
    """The path of ptxas; None where it is not installed."""
    return find_tool("ptxas")


def identity_of_ptxas() -> str:
    """The ptxas that is found, by path, size and time; "" where none is installed."""
    path = find_ptxas()
    if path is None:
        return ""
    status = os.stat(path)
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def assemble(ptx: str, architecture: Architecture, ptxas: str | None = None) -> Assembly:
    """The machine code of a PTX module; `ptxas` is its path where it is not the one found.
    UserError if there is none; CompilerBug with its message if it refuses our text."""
    command = ptxas or find_ptxas()
    if command is None:
        raise UserError(
            "target nvidia: ptxas was not found; install it with: pip install nvidia-cuda-nvcc, "
            "or leave the cubin out (the driver translates PTX when a program is loaded)"
        )
    with tempfile.TemporaryDirectory(prefix="girih-ptxas-") as folder:
        source, target = Path(folder) / "module.ptx", Path(folder) / "module.cubin"
        source.write_text(ptx)
        arguments = [command, f"-arch={architecture.name}", "-v", "-O3", "-lineinfo", str(source)]
        try:
            done = subprocess.run(
                [*arguments, "-o", str(target)], capture_output=True, text=True, timeout=TIMEOUT,
                check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"target nvidia: {command} did not run: {error}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).replace(f"{folder}/", "").strip()
            raise CompilerBug(f"ptxas refuses the PTX of the nvidia backend:\n{said[:4000]}")
        report = _parse(done.stderr + done.stdout)
        return Assembly(
            architecture.name, target.read_bytes(), report.usages, tuple(report.remarks)
        )


def _parse(text: str) -> _Report:
    report = _Report()
    current: Usage | None = None
    for line in text.splitlines():
        if found := _COMPILING.search(line):
            current = report.usages.setdefault(found[1], Usage(found[1]))
        elif found := _PROPERTIES.search(line):
            # A function that was not inlined has properties of its own; its entry bears them.
            current = report.usages.get(found[1], current)
        elif current is not None and (found := _STACK.search(line)):
            current.stack_bytes += int(found[1])
            current.spill_store_bytes += int(found[2])
            current.spill_load_bytes += int(found[3])
        elif current is not None and (found := _USED.search(line)):
            current.registers = int(found[1])
            if barriers := _BARRIERS.search(line):
                current.barriers = int(barriers[1])
            if shared := _SHARED.search(line):
                current.shared_bytes = int(shared[1])
        elif (found := _NOTED.match(line.strip())) and not _routine(found[1]):
            report.remarks.append(found[1])
    return report


def _routine(remark: str) -> bool:
    """What ptxas says of every module."""
    return "bytes gmem" in remark or remark.startswith("Compile time")


def disassemble(cubin: bytes, nvdisasm: str | None = None) -> str | None:
    """The instructions of machine code as text; None where nvdisasm is not installed."""
    command = nvdisasm or find_tool("nvdisasm")
    if command is None:
        return None
    with tempfile.TemporaryDirectory(prefix="girih-sass-") as folder:
        source = Path(folder) / "module.cubin"
        source.write_bytes(cubin)
        done = subprocess.run(
            [command, "-c", str(source)], capture_output=True, text=True, timeout=TIMEOUT,
            check=False,
        )  # fmt: skip
    if done.returncode:
        raise CompilerBug(f"nvdisasm refuses a cubin of ours: {done.stderr[:2000]}")
    return done.stdout
