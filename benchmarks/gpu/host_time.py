"""What a call of a program for a GPU takes on the host: microseconds of GPT-2, without a GPU.

    python benchmarks/gpu/host_time.py              12 layers, 128 tokens, sm_90a
    python benchmarks/gpu/host_time.py --layers 2

The driver is the tests' stand-in for libcuda (tests/runtime/stub_cuda.c), which takes launches and
does nothing, under cuda-python's own bindings; so a time is girih's and the bindings' alone. Calls
take their argument, and leave their results, at one set of addresses, or at several in turn: as a
framework does that keeps batches, or a server with many requests. Beside the medians of whole calls
stand the launches that were encoded anew and those that a graph was told of, for each call. Writes
benchmarks/results/host_time.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SETS = (1, 2, 9, 16, 17, 32)
CALLS = 400


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--architecture", default="sm_90a")
    parser.add_argument("--into", type=Path, default=ROOT / "benchmarks/results/host_time.json")
    options = parser.parse_args()
    if "STUB_FAST" not in os.environ:
        return on_stub()
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from first_run import find_girih

    find_girih()
    program, tokens = gpt2(options.layers, options.architecture)
    rows = [measured(program, tokens, count) for count in SETS]
    for row in rows:
        print(
            f"{row['sets']:3} sets: {row['microseconds']:7.1f} us a call, at least "
            f"{row['least']:7.1f}; {row['encoded']:6.2f} launches encoded, {row['rebound']:6.2f} "
            "told to a graph"
        )
    launches = sum(len(kernel.launches) for kernel in program.plan.kernels)
    report = {"layers": options.layers, "kernels": launches, "calls": CALLS, "rows": rows}
    options.into.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def on_stub() -> int:
    """The same in a process whose libcuda is the stand-in."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("it needs a C compiler", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        source = ROOT / "tests" / "runtime" / "stub_cuda.c"
        library = Path(folder) / "libcuda.so.1"
        flags = ["-O2", "-shared", "-fPIC", "-w", "-o", str(library), str(source), "-ldl"]
        subprocess.run([compiler, *flags], check=True)
        environment = {**os.environ, "LD_LIBRARY_PATH": folder, "STUB_FAST": "1"}
        environment["STUB_BYTES"] = str(64 << 30)
        return subprocess.run([sys.executable, *sys.argv], env=environment).returncode


def gpt2(layers: int, architecture: str) -> tuple[Any, Any]:
    import girih
    from girih.runtime.parts import copied_parts
    from models import model

    built = model("gpt2").build(layers)
    name = f"nvidia:{architecture}"
    program = girih.compile(built.source, *built.inputs, target=name)
    variant = replace(program.parts.variants[name], cubins={})  # the stand-in reads PTX
    parts = copied_parts(program.parts, variants={name: variant})
    return program.with_parts(parts), built.flat_inputs()[0]


class OnDevice:
    """An array in the stand-in's memory."""

    def __init__(self, array: Any) -> None:
        from girih.runtime.devices.cuda import find_gpus

        with find_gpus()[0] as gpu:
            stream = gpu.create_stream()
            address = gpu.allocate(array.nbytes, stream)
            gpu.upload(address, array, stream)
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "data": (address, False),
            "version": 3, "stream": None,
        }  # fmt: skip


def measured(program: Any, tokens: Any, count: int) -> dict[str, Any]:
    """`count` sets of addresses in turn, in a context of their own."""
    from girih.runtime.devices import cuda

    program = program.with_parts(program.parts)
    arguments = [OnDevice(tokens) for _ in range(count)]
    kept: list[Any] = [None] * count
    counts = {"encoded": 0, "rebound": 0}

    def counting(name: str, what: str) -> Any:
        function = getattr(cuda.CudaDriver, name)

        def counted(*arguments: Any) -> Any:
            counts[what] += 1
            return function(*arguments)

        setattr(cuda.CudaDriver, name, counted)
        return lambda: setattr(cuda.CudaDriver, name, function)

    def call(number: int) -> None:
        kept[number] = None  # its memory is the next result's
        kept[number] = program.on_device(arguments[number])

    for number in range(4 * count + 4):
        call(number % count)
    undo = [counting("prepare", "encoded"), counting("rebind", "rebound")]
    for number in range(2 * count):
        call(number % count)
    for one in undo:
        one()
    taken = []
    for number in range(CALLS):
        begin = time.perf_counter()
        call(number % count)
        taken.append(1e6 * (time.perf_counter() - begin))
    return {
        "sets": count, "microseconds": statistics.median(taken), "least": min(taken),
        **{what: number / (2 * count) for what, number in counts.items()},
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
