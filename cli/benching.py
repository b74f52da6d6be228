"""`girih bench`: a program beside the frameworks that can run the same source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ..compiler import compile as compile_program
from ..frontends.stablehlo.write import write_text
from ..hlo.errors import UnsupportedError
from ..hlo.extras import is_installed
from ..hlo.graph import Module
from ..runtime.loading import load
from ..runtime.program import Program
from . import arrays, show
from .compiling import import_source, read_options

Call = Callable[[], Any]
_TURNS = 8


def bench_source(
    source: str,
    inputs: Sequence[str],
    seed: int,
    seconds: float,
    target: str,
    settings: Sequence[str],
    threads: int | None,
    allow_native: bool,
    as_json: bool,
    entry: str | None = None,
) -> None:
    """Measure and show medians; contenders that cannot run the source are named with the reason."""
    program, made = _program(source, target, settings, threads, allow_native, entry)
    values = arrays.collect_inputs(program.signature, inputs, seed)
    calls: dict[str, Call] = {"girih": _girih_call(program, values)}
    setup: dict[str, float] = {"girih": made}
    left_out: dict[str, str] = {}
    for name, module_name, prepare in (
        ("xla", "jax", lambda: _xla_call(program.module, values)),
        ("torch", "torch", lambda: _torch_call(source, program, values)),
    ):
        if not is_installed(module_name):
            left_out[name] = f"{module_name} is not installed"
            continue
        begin = perf_counter()
        try:
            call = prepare()
            call()
        except Exception as error:  # a foreign compiler may raise anything; the others go on
            left_out[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
            continue
        calls[name], setup[name] = call, perf_counter() - begin
    times = measure(calls, seconds)
    rows = [
        {
            "name": name,
            "median_us": median(found),
            "minimum_us": min(found),
            "runs": len(found),
            "setup_seconds": setup[name],
            "ratio": median(found) / median(times["girih"]),
        }
        for name, found in times.items()
    ]
    if as_json:
        return show.print_json({"source": source, "contenders": rows, "left_out": left_out})
    show.table(
        ("", ">median", ">minimum", ">runs", ">set up", ">time / girih's"),
        [
            (r["name"], show.time(r["median_us"]), show.time(r["minimum_us"]), r["runs"],
             f"{r['setup_seconds']:.2f} s", f"{r['ratio']:.2f}")
            for r in rows
        ],
        title=source,
    )  # fmt: skip
    for name, reason in left_out.items():
        show.console.print(f"{name} is left out: {reason}")


def measure(calls: dict[str, Call], seconds: float) -> dict[str, list[float]]:
    """Microseconds of every run; contenders take turns until each had `seconds` in all.

    A turn is a block of runs whose first one is left out: it wakes the contender's threads and
    waits until those of the one before have gone to sleep.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    block = seconds / _TURNS
    for _ in range(_TURNS):
        for name, call in calls.items():
            call()
            end = perf_counter() + block
            while True:
                begin = perf_counter()
                call()
                now = perf_counter()
                times[name].append((now - begin) * 1e6)
                if now > end:
                    break
    return times


def _program(
    source: str,
    target: str,
    settings: Sequence[str],
    threads: int | None,
    allow_native: bool,
    entry: str | None,
) -> tuple[Program, float]:
    """The program, and the seconds that loading or compiling it took."""
    begin = perf_counter()
    if Path(source).suffix == ".girih":
        program = load(source, target=target, threads=threads, allow_native=allow_native)
        program = program.entry(show.chosen_entry(source, program.entries, entry))
    else:
        program = compiled = compile_program(
            import_source(source, entry), target=target, options=read_options(settings)
        )
        if threads is not None:
            parts, module = compiled.parts, lambda: compiled.module
            program = Program(parts, target, threads=threads, module=module)
    return program, perf_counter() - begin


def _girih_call(program: Program, values: Sequence[Any]) -> Call:
    positional, keywords = arrays.as_call(program.signature, values)
    return lambda: program(*positional, **keywords)


def _xla_call(module: Module, values: Sequence[Any]) -> Call:
    """The same program, written as StableHLO, in XLA for the CPU."""
    import jax
    import jax.extend.backend
    from jaxlib import xla_client

    written = write_text(module)
    backend = jax.extend.backend.get_backend("cpu")
    local = tuple(backend.local_devices()[:1])
    options = xla_client.CompileOptions()
    loaded = backend.compile_and_load(written.text, xla_client.DeviceList(local), options)
    weights = [module.weights[name].array for name in written.weights]
    buffers = [jax.device_put(np.asarray(v), local[0]) for v in (*values, *weights)]

    def call() -> Any:
        found = loaded.execute_sharded(buffers).disassemble_into_single_device_arrays()
        for shards in found:
            shards[0].block_until_ready()

    return call


def _torch_call(source: str, program: Program, values: Sequence[Any]) -> Call:
    """The exported program in PyTorch's eager mode."""
    if Path(source).suffix != ".pt2":
        raise UnsupportedError("PyTorch runs .pt2 files only")
    import torch

    model = torch.export.load(source).module()
    tensors = [torch.from_numpy(np.array(value)) for value in values]
    positional, keywords = arrays.as_call(program.signature, tensors)  # pyright: ignore

    def call() -> Any:
        with torch.no_grad():
            return model(*positional, **keywords)

    return call
