"""Programs of several GPUs over NCCL: results, bytes and bandwidths. It has run on no GPU yet.

    python benchmarks/gpu/several.py --prepare FOLDER          anywhere, with jax: code and data
    mpiexec -n 2 python benchmarks/gpu/several.py FOLDER       on a machine with 2 GPUs; also 4, 8
    torchrun --nproc-per-node 2 benchmarks/gpu/several.py FOLDER
    python benchmarks/gpu/several.py FOLDER                    one GPU: NCCL's calls among one rank

Five annotated programs (a transformer layer, FSDP, experts, a convolution, a resharding) give what
the interpreter of several devices gives, to 1e-6 of the largest element, and receive the bytes that
it counts. Each collective of 1 MiB to 256 MiB, in a compiled program on arrays of the GPU, has at
least 0.9 of the bandwidth of the bare NCCL call of that size on the same communicator; beside it
stands the same as exchanges with sums of our own. Process 0 prints a line for each, ends with a
verdict, and writes benchmarks/results/several.json with rows for a machine's file (`network`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "gpu"))
from first_run import find_girih  # noqa: E402

find_girih()
import girih  # noqa: E402

PROGRAMS = ("b1", "d1", "e2", "f1", "i1")
DEVICES = (2, 4, 8)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
ENGINES = ("library", "girih")
SIZES = [1 << shift for shift in (20, 22, 24, 26, 28)]  # bytes
GATE, TOLERANCE = 0.9, 1e-6
ROUNDS, CALLS = 5, 20
TARGET = "nvidia:sm_90a"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prepare", action="store_true", help="write code and data to the folder")
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)), help="to prepare for")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, of collectives")
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--into", type=Path, default=ROOT / "benchmarks/results/several.json")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    names = [name for name in options.programs.split(",") if name]
    if options.prepare:
        options.folder.mkdir(parents=True, exist_ok=True)
        for count in map(int, options.devices.split(",")):
            prepare(options.folder, count, options.target, names, sizes)
        return 0
    return measured(options.folder, names, sizes, options.into)


def prepare(
    folder: Path, count: int, target: str, names: Sequence[str], sizes: Sequence[int]
) -> None:
    """Bundles for so many GPUs, with inputs and results of each process."""
    from girih.cli.network import collective

    for name in names:
        prepare_program(folder, count, target, name)
    for kind in KINDS:
        for size in sizes:
            for engine in ENGINES:
                options = girih.Options(machine=machine_file(folder, count, engine, target))
                program = girih.compile(
                    collective(kind, size, count), target=target, options=options
                )
                program.save(folder / f"{kind}.{size}.{engine}.{count}.girih")


def prepare_program(folder: Path, count: int, target: str, name: str) -> None:
    from girih.benchmarks.models.annotated_networks import NETWORKS
    from girih.benchmarks.models.annotated_operations import OPERATIONS
    from girih.hlo.distributed import interpret_parallel
    from girih.hlo.placement import cut
    from girih.hlo.types import TensorType
    from girih.optimizer.sharding.partition.program import WHOLE

    example = {**NETWORKS, **OPERATIONS}[name]
    parts = girih.partition(example.module(count))
    random = np.random.default_rng(0)
    values = [argument.value(random) for _, argument in sorted(example.arguments.items())]
    blocks: list[list[Any]] = []
    for value, facts in zip(values, parts.local.main.argument_attributes, strict=True):
        whole = facts[WHOLE]
        assert isinstance(whole, TensorType) and whole.sharding is not None
        blocks.append(cut(value, whole.sharding, parts.mesh))
    given = [[block[rank] for block in blocks] for rank in range(count)]
    run = interpret_parallel(parts.local, given)
    for rank in range(count):
        arrays = {f"i{number}": array for number, array in enumerate(given[rank])}
        arrays |= {f"o{number}": array for number, array in enumerate(run.results[rank])}
        arrays["bytes"] = np.array(sum(run.received[rank].values()))
        np.savez(folder / f"{name}.{count}.{rank}.npz", **arrays)  # pyright: ignore
    local = replace(parts.local, signature=None)  # of blocks
    girih.compile(local, target=target).save(folder / f"{name}.{count}.girih")


def machine_file(folder: Path, count: int, engine: str, target: str) -> str:
    """The target's machine, on which this engine is always the faster one."""
    from girih.backends.nvidia import target_of
    from girih.optimizer.machine import CommunicationCost, to_json

    rows = tuple(
        CommunicationCost(kind, count, one, float(one != engine), 0.0)
        for kind in KINDS
        for one in ENGINES
    )
    machine = target_of(target).machine
    path = folder / f"machine.{engine}.{count}.json"
    path.write_text(to_json(replace(machine, network=rows)))
    return str(path)


def measured(folder: Path, names: Sequence[str], sizes: Sequence[int], into: Path) -> int:
    """What this launcher's processes find; the exit code."""
    from girih.runtime.distributed.launch import launched
    from girih.runtime.distributed.started import own_rank

    count, rank = launched(), own_rank()
    rows: list[dict[str, Any]] = []

    def say(row: dict[str, Any]) -> None:
        rows.append(row)
        if not rank:
            print(json.dumps(row), flush=True)

    if count == 1:
        alone(say)
    else:
        for name in names:
            say(compared(folder, name, count, rank))
        for kind in KINDS:
            for size in sizes:
                say(bandwidth(folder, kind, size, count))
    failed = [row["name"] for row in rows if not row["good"]]
    if not rank:
        print(f"{len(rows)} checks, {len(failed)} failed{': ' if failed else ''}", *failed)
        report = {"devices": count, "network": network(rows, count), "rows": rows}
        into.write_text(json.dumps(report, indent=1) + "\n")
    return bool(failed)


def network(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """What collectives were found to cost, as rows of a machine's file."""
    from girih.cli.network import line, received
    from girih.optimizer.machine import CommunicationCost

    found = []
    for kind in KINDS:
        own = [row for row in rows if row.get("kind") == kind]
        for engine in ENGINES if len(own) > 1 else ():
            points = [(received(kind, row["bytes"], count), row["seconds"][engine]) for row in own]
            found.append(CommunicationCost(kind, count, engine, *line(points))._asdict())
    return found


def compared(folder: Path, name: str, count: int, rank: int) -> dict[str, Any]:
    """This process's results and bytes beside the interpreter's."""
    program = girih.load(folder / f"{name}.{count}.girih", target="nvidia", allow_native=True)
    with np.load(folder / f"{name}.{count}.{rank}.npz") as data:
        given = [data[f"i{number}"] for number in range(len(program.signature.arguments))]
        results, _ = program.stateless(*given)
        flat = program.signature.outputs.flatten(results, "output")
        errors = []
        for number, result in enumerate(flat):
            wanted = data[f"o{number}"]
            scale = np.abs(wanted).max(initial=1e-30)
            errors.append(float(np.abs(result.astype(np.float64) - wanted).max(initial=0) / scale))
        same = sum(program.received.values()) == int(data["bytes"])
    found = {"name": name, "error": max(errors, default=0.0), "bytes equal": same}
    return {**found, "good": agreed(found["error"] <= TOLERANCE and same)}


def agreed(good: bool) -> bool:
    """Whether it holds in all processes."""
    from girih.runtime.distributed.started import the_world

    return all(map(any, the_world().collect(bytes([good]), "the verdict", 60.0)))


def bandwidth(folder: Path, kind: str, size: int, count: int) -> dict[str, Any]:
    """Seconds of a collective in a program, by both engines, and of the bare call."""
    from girih.runtime.distributed.started import the_world

    seconds: dict[str, float] = {}
    for engine in ENGINES:
        path = folder / f"{kind}.{size}.{engine}.{count}.girih"
        program = girih.load(path, target="nvidia", allow_native=True)
        (dims,) = [argument.dims for argument in program.signature.arguments]
        given = np.ones(tuple(map(int, map(str, dims))), np.float32)
        program(given)
        x = on_gpu(next(iter(the_world().communicators)), given)
        kept: list[Any] = []

        def call(program: Any = program, x: Any = x, kept: list[Any] = kept) -> None:
            kept[:] = program.on_device(x)

        seconds[engine] = best(call, lambda kept=kept: kept[0].numpy())
    world = the_world()
    (driver, communicator) = next(iter(world.communicators.items()))
    seconds["bare"] = bare(driver, communicator, kind, size // 4, count)
    ratio = seconds["bare"] / seconds["library"]
    return {
        "name": f"{kind} {size}",
        "kind": kind,
        "bytes": size,
        "seconds": seconds,
        "of the bare bandwidth": ratio,
        "good": agreed(ratio >= GATE),
    }


def on_gpu(driver: Any, array: np.ndarray[Any, Any]) -> Any:
    from girih.runtime.devices.arrays import DeviceArray
    from girih.runtime.devices.resources import DeviceMemory, Stream

    with driver:
        stream = Stream(driver)
        memory = DeviceMemory(stream, array.nbytes)
        driver.upload(memory.address, array, stream.handle)
        driver.synchronize(stream.handle)
        return DeviceArray(memory, array.shape, array.dtype).filled(driver, stream.handle)


def best(call: Callable[[], None], end: Callable[[], Any]) -> float:
    """Seconds of a call among many that follow each other on the stream, in the best round."""
    call()
    end()
    found = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        end()
        found = min(found, (time.perf_counter() - begin) / CALLS)
    return found


def bare(driver: Any, communicator: Any, kind: str, elements: int, count: int) -> float:
    """Seconds of NCCL's own call on memory of that size."""
    nccl, comm = communicator.nccl, communicator.everyone
    number, add = int(nccl.DataType.Float32), int(nccl.RedOp.Sum)
    part = elements // count
    with driver:
        stream = driver.create_stream()
        x, y = (driver.allocate(4 * elements, stream) for _ in range(2))

        def call() -> None:
            if kind == "all_reduce":
                nccl.all_reduce(x, y, elements, number, add, comm, stream)
            elif kind == "all_gather":
                nccl.all_gather(x, y, part, number, comm, stream)
            elif kind == "reduce_scatter":
                nccl.reduce_scatter(x, y, part, number, add, comm, stream)
            else:
                own = communicator.world.rank
                nccl.group_start()
                for peer in range(count):
                    if peer != own:
                        nccl.recv(y + 4 * part * peer, part, number, peer, comm, stream)
                        nccl.send(x + 4 * part * peer, part, number, peer, comm, stream)
                nccl.group_end()
            while nccl.comm_get_async_error(comm) == nccl.Result.InProgress:
                pass

        try:
            return best(call, lambda: driver.synchronize(stream))
        finally:
            for address in (x, y):
                driver.free(address, stream)
            driver.synchronize(stream)
            driver.destroy_stream(stream)


def alone(say: Callable[[dict[str, Any]], None]) -> None:
    """NCCL among one rank: that its library loads, and takes our calls."""
    from girih.runtime.devices.cuda import find_gpus
    from girih.runtime.devices.waiting import Waiting
    from girih.runtime.distributed.library import Collective
    from girih.runtime.distributed.nccl import Nccl
    from girih.runtime.distributed.world import Processes
    from girih.specs.generated import plan_pb2

    class Alone(Processes):
        def exchange(self, *_: Any, **__: Any) -> None:
            raise AssertionError("there is nobody")

        def meet(self) -> None:
            """There is nobody."""

        def leave(self) -> None:
            """There is nobody."""

        def next_tag(self) -> int:
            return 0

        def collect(self, own: bytes, what: str, seconds: float) -> list[bytes]:
            return [own]

        def abort(self) -> None:
            raise SystemExit(1)

    driver = find_gpus()[0]
    communicator = Nccl.started(Alone(0, 1, 60.0), driver, 60.0)
    waiting = Waiting(driver, communicator, 60.0)
    for kind in KINDS:
        plan = plan_pb2.Plan(processes=1, buffers=[plan_pb2.Buffer(bytes=64) for _ in range(2)])
        step = plan_pb2.Collective(kind=kind, element_type="f32", elements=16)
        step.result.buffer = 1
        step.groups.add().processes.append(0)
        one = Collective(plan, step, 0)
        communicator.prepare(one.groups, 60.0)
        with driver:
            stream = driver.create_stream()
            x, y = (driver.allocate(64, stream) for _ in range(2))
            given, found = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
            driver.upload(x, given, stream)
            with waiting.posted(kind, stream):
                communicator.collect(one, x, y, stream, 60.0)
            waiting.synchronize(stream)
            driver.download(found, y, stream)
            driver.synchronize(stream)
        say({"name": f"{kind} among one", "good": bool((found == given).all())})


if __name__ == "__main__":
    raise SystemExit(main())
