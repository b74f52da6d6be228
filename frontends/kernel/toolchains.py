"""Compilers of other languages, where the machine has them: NVRTC or nvcc, and the C compiler.

Each result is kept by source, options and compiler for the life of the process.
"""

from __future__ import annotations

import functools
import importlib
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ...hlo.errors import UserError

SECONDS = 300  # that a compiler may take
_C_FLAGS = (
    "-std=c11", "-O3", "-fPIC", "-ffreestanding", "-fvisibility=hidden", "-fno-math-errno",
    "-fno-trapping-math", "-ffp-contract=off", "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables", "-w",
)  # fmt: skip
_SHOWN = 40  # lines of a compiler's messages


@functools.lru_cache(maxsize=64)
def cuda_to_ptx(source: str, architecture: str, options: tuple[str, ...]) -> str:
    """The PTX of CUDA C++, by NVRTC where the package cuda-bindings is there, else by nvcc.

    UserError with the compiler's messages for what it refuses, and where there is no compiler.
    """
    if not architecture.startswith("sm_"):
        raise UserError(f"'{architecture}' is no architecture; say sm_80 or sm_90a")
    nvrtc = _nvrtc()
    if nvrtc is not None:
        return _by_nvrtc(nvrtc, source, architecture, options)
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise UserError(
            "CUDA C++ needs a compiler: install NVRTC with pip install cuda-bindings "
            "nvidia-cuda-nvrtc, or put nvcc on the PATH"
        )
    with tempfile.TemporaryDirectory() as folder:
        place, made = Path(folder, "kernel.cu"), Path(folder, "kernel.ptx")
        place.write_text(source)
        command = [nvcc, "-ptx", f"-arch={architecture}", *options, str(place), "-o", str(made)]
        _run(command, folder, "CUDA C++")
        return made.read_text()


def _nvrtc() -> Any:
    """NVRTC's bindings with its library, or None."""
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    except ImportError:
        return None
    try:
        status, *_ = nvrtc.nvrtcVersion()
    except RuntimeError:  # the bindings find no library
        return None
    return nvrtc if int(status) == 0 else None


def _by_nvrtc(nvrtc: Any, source: str, architecture: str, options: tuple[str, ...]) -> str:
    def call(function: Any, *arguments: Any) -> Any:
        status, *values = function(*arguments)
        if int(status):
            raise UserError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
        return values[0] if values else None

    program = call(nvrtc.nvrtcCreateProgram, source.encode(), b"kernel.cu", 0, [], [])
    try:
        flags = [f"--gpu-architecture={architecture}", *options]
        if not {"-lineinfo", "--generate-line-info"} & set(options):
            flags.append("-lineinfo")
        status, *_ = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        if int(status):
            log = b" " * call(nvrtc.nvrtcGetProgramLogSize, program)
            call(nvrtc.nvrtcGetProgramLog, program, log)
            raise UserError(f"the CUDA C++ does not compile:\n{_shown(log.decode())}")
        text = b" " * call(nvrtc.nvrtcGetPTXSize, program)
        call(nvrtc.nvrtcGetPTX, program, text)
        return text.rstrip(b"\0").decode()
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@functools.lru_cache(maxsize=64)
def c_to_object(
    source: str, options: tuple[str, ...], features: tuple[str, ...]
) -> tuple[bytes, str]:
    """The ELF object of C source, and the architecture that it is for.

    UserError with the compiler's messages for what it refuses, and where there is no compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise UserError(
            "C needs a compiler: install gcc or clang, or give the kernel LLVM IR (Llvm)"
        )
    architecture = {"arm64": "aarch64", "amd64": "x86_64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    wanted = tuple(f"-m{name}" for name in features) if architecture == "x86_64" else ()
    with tempfile.TemporaryDirectory() as folder:
        place, made = Path(folder, "kernel.c"), Path(folder, "kernel.o")
        place.write_text(source)
        command = [compiler, *_C_FLAGS, *wanted, *options, "-c", place.name, "-o", made.name]
        _run(command, folder, "C source")
        return made.read_bytes(), architecture


def _run(command: list[str], folder: str, what: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, timeout=SECONDS, check=False, text=True,
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"the {what} cannot be compiled: {error}") from error
    if done.returncode:
        message = (done.stderr or done.stdout).replace(f"{folder}/", "")
        raise UserError(f"the {what} does not compile:\n{_shown(message)}")


def _shown(message: str) -> str:
    lines = message.strip("\0\n ").splitlines()
    return "\n".join(lines[:_SHOWN])
