"""CUDA's driver through cuda-python's own bindings, on a library that stands in for libcuda."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import gc
import os
import numpy as np
from girih.hlo.errors import UserError
from girih.runtime.devices.architectures import parse_architecture
from girih.runtime.devices.cuda import find_gpus
from girih.runtime.devices.driver import Box, Code, OutOfMemory, Start
from tests.runtime.gpu_fakes import flat
from tests.runtime.test_nvidia import two_steps

(gpu,) = find_gpus()
assert (gpu.name, gpu.capability) == ("Stub GPU", (9, 0)), gpu.name
assert gpu.limits.shared_bytes == 232448
plan = two_steps()
launch = plan.plan.kernels[0].launches[0]
launch.cluster.extend((2, 1, 1))
launch.grid[0], launch.shared_bytes = 4, 100000
program = plan.program(flat(1, 1), None)
x = np.arange(4, dtype=np.float32)
for turn in range(4):
    assert program(x + turn)[0].tolist() == (2 * (x + turn) + 1).tolist()
(once,) = program.on_device(x)
(twice,) = program.on_device(once)
assert twice.numpy().tolist() == (4 * x + 3).tolist()
assert [event.duration for event in program.profile(x).events] == [500.0, 500.0]
box = Box("bf16", (64, 100), (128,), (64, 32), 128)
assert gpu.tensor_map(box, 1 << 20) == b"\\7" * 128
for wrong, words in (
    (lambda: gpu.load(Code(b"broken", parse_architecture("sm_90a"), True)), "line 3 is bad"),
    (lambda: gpu.allocate(1 << 40, 0), "no 1099511627776 bytes"),
):
    try:
        wrong()
    except (UserError, OutOfMemory) as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
del program, once, twice
gc.collect()
# Another module's entry has the handle of one that had more shared memory.
module = gpu.load(Code(b"second", parse_architecture("sm_90a"), True))
for size in (60000, 100000, 60000):
    gpu.entry(module, Start("add_one", (1, 1, 1), (32, 1, 1), (1, 1, 1), size))
child = os.fork()
if not child:
    try:
        with gpu:
            os._exit(1)
    except UserError as error:
        os._exit(0 if "forked" in str(error) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
LAUNCHES = [
    "launch 4,1,1 of 32, shared 100000, cluster 2",
    "launch 1,1,1 of 32, shared 0, cluster 0",
]
TOLD = [
    "pool attribute 4 = ffffffffffffffff",
    "module .version 8.3",
    "attribute 8 = 100000",
    *LAUNCHES,
    "node 4,1,1 of 32, shared 100000",
    "node attribute 4 = 2",
    "node 1,1,1 of 32, shared 0",
    *["replay 2"] * 3,
    # Results on the device lie elsewhere, then the argument as well.
    "rebind 1",
    "replay 2",
    "rebind 0",
    "rebind 1",
    "replay 2",
    *LAUNCHES,
    "map 9: 2 dims, 64,100 by 128, box 64,32, steps 1,1, swizzle 3",
    "unload",
    "module second",
    "attribute 8 = 60000",
    "attribute 8 = 100000",
]


def test_a_program_through_the_real_bindings(tmp_path):
    pytest.importorskip("cuda.bindings.driver")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler on Linux")
    source = ROOT / "tests" / "runtime" / "stub_cuda.c"
    library = tmp_path / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-w", "-o", str(library), str(source), "-ldl"]
    subprocess.run([compiler, *flags], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == TOLD
