"""Target `cpu:c`: girih's kernels through the C compiler of the machine, as a plugged-in backend.

girih's shared rooms choose, tile and write each kernel; this package says the same in C and has the
C compiler make the object. Programs run like those of target cpu, and bundles need neither this
package nor a compiler.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from girih.backends import Backend, Plugin, Stage
from girih.backends.cpu import backend_of
from girih.backends.cpu.codegen import Target, host_target, level_target
from girih.backends.cpu.machines import find as find_machine
from girih.hlo.errors import CompilerBug, UserError
from girih.optimizer.tuning import Tuner
from girih.options import Options

from .c_text import c_of

FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-ffreestanding", "-fno-math-errno", "-ffp-contract=off",
    "-fno-strict-aliasing", "-fwrapv", "-fno-tree-loop-distribute-patterns",
    "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-mcmodel=small", "-w",
    "-fno-tree-slp-vectorize",  # GCC 12 makes -1 of comparisons that loops over lanes store
)  # fmt: skip
LEVELS = {"x86_64": "baseline", "aarch64": "neon"}


@dataclass(frozen=True)
class CTarget(Target):
    """A CPU of the oldest level of this machine's architecture, whose kernels a C compiler makes.

    compiler: its path, its version and a digest of this package, all that code depends on.
    """

    compiler: tuple[str, str, str] = ("", "", "")

    def stages(self) -> dict[str, Stage]:
        """The texts of a kernel behind the one that girih writes."""
        return {"c": Stage("llvm", c_of)}

    def compiled(self, ir_text: str) -> bytes:
        """The ELF object of a kernel; UnsupportedError where there is no C for it."""
        text = self.stages()["c"].run(ir_text)
        with tempfile.TemporaryDirectory() as folder:
            source, made = Path(folder, "kernel.c"), Path(folder, "kernel.o")
            source.write_text(text)
            command = [self.compiler[0], *FLAGS, "-c", str(source), "-o", str(made)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode:
                raise CompilerBug(f"{self.compiler[0]} refuses the C of a kernel: {ran.stderr}")
            return made.read_bytes()


@functools.cache
def _compiler() -> tuple[str, str, str]:
    path = shutil.which(os.environ.get("CC", "cc"))
    if path is None:
        raise UserError("target cpu:c: there is no C compiler; install one, or set CC to its name")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    sources = [file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.[ph]*"))]
    return path, said.partition("\n")[0], hashlib.blake2b(b"".join(sources)).hexdigest()[:16]


def backend(name: str, options: Options, tuner: Tuner | None = None) -> Backend:
    """What girih asks of a target."""
    like = level_target(LEVELS[host_target().architecture])
    target = CTarget(
        like.triple, like.features, like.vector_bits, find_machine(options.machine), _compiler()
    )
    return backend_of(target, name, options, tuner)


BACKEND = Plugin("cpu:c", backend, api=2)
