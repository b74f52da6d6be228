"""Programs of several GPUs through nccl4py's and cuda-python's own bindings, on libraries that
stand in for NCCL and CUDA's driver (stub_nccl.c, stub_cuda.c): real processes, one for each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import girih
from girih.backends.nvidia.machines import typical
from girih.cli.network import collective
from girih.hlo.build import build_module
from girih.hlo.graph import Module
from girih.runtime.parts import copied_parts

from . import rooms
from .launch import PYTHON, command, needs_mpi
from .test_library import machine_file

RUNTIME = Path(__file__).parents[1]
TARGET = "nvidia:sm_90a"

RANK = """
import os, sys
import numpy as np
import girih
from girih.runtime.distributed.started import own_rank

program = girih.load(sys.argv[1], allow_native=True)
assert program.target.startswith("nvidia"), program.reason
rank = own_rank()
with np.load(sys.argv[2]) as data:
    given = data[f"i{rank}"]
    for turn in range(3):
        results = program(given)
        for number, result in enumerate(results):
            assert result.tobytes() == data[f"o{rank}_{number}"].tobytes(), (turn, rank, number)
    kept = program.on_device(given)
    for number, result in enumerate(kept):
        assert result.numpy().tobytes() == data[f"o{rank}_{number}"].tobytes(), (rank, number)
assert {name for name in ("nccl.bindings.nccl",) if name in sys.modules}
sys.stdout.write(f"equal {sum(program.received.values())};\\n")
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the libraries that stand in."""
    pytest.importorskip("cuda.bindings.driver")
    pytest.importorskip("nccl.bindings.nccl")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler on Linux")
    folder = tmp_path_factory.mktemp("stubs")
    for source, library in (("stub_cuda.c", "libcuda.so.1"), ("stub_nccl.c", "libnccl.so.2")):
        flags = ["-O1", "-shared", "-fPIC", "-w", "-o", folder / library, RUNTIME / source, "-ldl"]
        subprocess.run([compiler, *map(str, flags)], check=True)
    return folder


def environment(stubs: Path, messages: Path, **extra: str) -> dict[str, str]:
    messages.mkdir(exist_ok=True)
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "LD_LIBRARY_PATH": str(stubs),
        "STUB_NCCL_FOLDER": str(messages),
        "GIRIH_COMM_TIMEOUT": "60",
        **extra,
    }


def job(
    stubs: Path, folder: Path, count: int, script: str, *arguments: object, **extra: str
) -> subprocess.CompletedProcess[str]:
    """The processes that MPI's launcher starts, after their end."""
    file = folder / "rank.py"
    file.write_text(script)
    return subprocess.run(
        command(count, file, *arguments),
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(stubs, folder / "messages", **extra),
        stdin=subprocess.DEVNULL,
    )


def moving(count: int) -> Module:
    """What only moves elements: to other places, in boxes of columns, and to no place."""

    def body(b, x):
        everyone = rooms.flat(rooms.everyone(count))
        columns = b.op("all_gather", [x], {"all_gather_dim": 1, **everyone}).result
        rows = b.op("all_gather", [x], {"all_gather_dim": 0, **everyone}).result
        whole = {"split_dimension": 1, "concat_dimension": 0, "split_count": count}
        turned = b.op("all_to_all", [x], {**whole, **rooms.everyone(count)}).result
        lone = b(
            "collective_permute", x, source_target_pairs=((0, count - 1), (1, 0)), channel_id=1
        )
        return [columns, rows, turned, lone, *rooms.exchanges(b, x, count)]

    module = build_module([rooms.KIND], body)
    return replace(module, attributes={"mhlo.num_partitions": count})


def readable(program: girih.Program) -> girih.Program:
    """The same with PTX alone, which the stand-in for the driver can read."""
    variant = replace(program.parts.variants[TARGET], cubins={})
    return program.with_parts(copied_parts(program.parts, variants={TARGET: variant}))


def saved(
    module: Module, count: int, folder: Path, machine: str | None = None
) -> tuple[Path, Path, list[int]]:
    """The bundle, the data of a call, and the bytes that each process receives in one."""
    program = girih.compile(module, target=TARGET, options=girih.Options(machine=machine))
    program = readable(program)
    program.save(folder / "p.girih")
    actions = {step.WhichOneof("action") for step in program.plan.steps}
    assert actions <= {"exchange", "collective"}, actions  # the stand-in computes nothing
    (kind,) = [value.tensor for value in module.body.arguments]
    random = np.random.default_rng(0)
    given = [random.integers(-99, 99, kind.dims).astype(np.float32) for _ in range(count)]
    run = girih.interpret_parallel(module, [[x] for x in given])
    arrays = {f"i{rank}": x for rank, x in enumerate(given)}
    for rank, row in enumerate(run.results):
        arrays |= {f"o{rank}_{number}": x for number, x in enumerate(row)}
    np.savez(folder / "data.npz", **arrays)  # pyright: ignore[reportArgumentType]
    received = [int(sum(row.values())) for row in run.received]
    return folder / "p.girih", folder / "data.npz", received


def told(output: str) -> list[int]:
    """Bytes that processes say they have received, whose lines may be mixed."""
    return sorted(map(int, re.findall(r"equal (\d+);", output)))


def check(done: subprocess.CompletedProcess[str], received: list[int], calls: int = 4) -> None:
    assert done.returncode == 0, done.stderr[-3000:]
    assert "VIOLATION" not in done.stderr, done.stderr[-3000:]
    assert told(done.stdout) == sorted(calls * size for size in received)


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("count", [2, 4])
def test_boxes_come_to_their_places(stubs, tmp_path, count):
    bundle, data, received = saved(moving(count), count, tmp_path)
    done = job(stubs, tmp_path, count, RANK, bundle, data)
    check(done, received)
    assert done.stderr.count("destroy") == 2 * count  # that of all programs, and of this one
    assert "abort" not in done.stderr


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("groups", ["", "[[2, 0], [1, 3]]"], ids=["all", "two"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_collectives_are_nccls(stubs, tmp_path, kind, groups):
    source = collective(kind, 480, 2 if groups else 4)
    if groups:
        whole = "dense<[[0, 1]]> : tensor<1x2xi64>"
        source = source.replace(whole, f"dense<{groups}> : tensor<2x2xi64>")
        source = source.replace("num_partitions = 2", "num_partitions = 4")
    machine = machine_file(tmp_path, (1e-3, 1e-8), (1e-6, 1e-12), typical("sm_90a"))
    bundle, data, received = saved(girih.import_model(source), 4, tmp_path, machine=machine)
    done = job(stubs, tmp_path, 4, RANK, bundle, data)
    check(done, received)
    assert done.stderr.count("split") == (8 if groups else 4)  # one for the program
    name = {"all_reduce": "ncclAllReduce", "all_gather": "ncclAllGather"}.get(kind)
    assert name is None or done.stderr.count(f"{name} of ") == 4 * 4


@pytest.mark.mpi
@needs_mpi
def test_two_processes_on_one_gpu_are_refused(stubs, tmp_path):
    bundle, data, _ = saved(moving(2), 2, tmp_path)
    done = job(stubs, tmp_path, 2, RANK, bundle, data, STUB_ONE_GPU="1")
    assert done.returncode != 0
    assert "processes 0, 1 have one GPU, Stub GPU: each needs one of its own" in done.stderr
    assert "communicator 0" not in done.stderr  # NCCL was not asked


SLEEPS = RANK.replace("given = data", "import time; rank and time.sleep(300); given = data")


@pytest.mark.mpi
@needs_mpi
def test_who_does_not_answer_ends_all(stubs, tmp_path):
    """The second process never calls: the first one's wait has a deadline."""
    bundle, data, _ = saved(moving(2), 2, tmp_path)
    done = job(stubs, tmp_path, 2, SLEEPS, bundle, data, GIRIH_COMM_TIMEOUT="2")
    assert done.returncode != 0
    assert "waited 2 s for process 1" in done.stderr


LATE = """
import sys, time
import numpy as np
import girih
from girih.runtime.distributed.started import own_rank
program, rank = girih.load(sys.argv[1], allow_native=True, comm_timeout=2), own_rank()
given = np.load(sys.argv[2])[f"i{rank}"]
program(given)
if rank:
    time.sleep(300)
program(given)
"""


@pytest.mark.mpi
@needs_mpi
def test_a_wait_of_nccl_has_a_deadline(stubs, tmp_path):
    """The second process stops after a call: what the first one posts stays in progress."""
    bundle, data, _ = saved(moving(2), 2, tmp_path)
    done = job(stubs, tmp_path, 2, LATE, bundle, data)
    assert done.returncode != 0
    assert "all_gather: process 0 waited 2 s for the others" in done.stderr
    assert "abort" in done.stderr


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_processes_without_mpi_meet_in_torchs_store(stubs, tmp_path, launcher):
    pytest.importorskip("torch")
    bundle, data, received = saved(moving(2), 2, tmp_path)
    script, port = tmp_path / "rank.py", str(free_port())
    script.write_text(RANK + "assert 'mpi4py.MPI' not in sys.modules\n" + GATHER)
    names = [str(script), str(bundle), str(data)]
    basis = environment(stubs, tmp_path / "messages")
    basis = {k: v for k, v in basis.items() if not k.startswith(("PMI", "OMPI", "SLURM"))}
    if launcher == "torchrun":
        run = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
        done = subprocess.run(
            [PYTHON, *run, *names], env=basis, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr[-3000:]
        output, errors = done.stdout, done.stderr
    else:
        started = []
        for rank in range(2):
            own = {
                "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_STEP_NUM_TASKS": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            }  # fmt: skip
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.append(subprocess.Popen([PYTHON, *names], env={**basis, **own}, **pipes))
        said = [one.communicate(timeout=120) for one in started]
        assert [one.returncode for one in started] == [0, 0], said
        output, errors = ("".join(parts) for parts in zip(*said, strict=True))
    assert "VIOLATION" not in errors, errors[-3000:]
    assert told(output) == sorted(4 * size for size in received)


GATHER = """
from girih.runtime.distributed.layout import gathered
found = gathered(np.full(5, rank, np.int32), "gather of a result")
assert [row.tolist() for row in found] == [[0] * 5, [1] * 5]
"""


def test_the_list_for_gpus_begins_with_one(stubs, tmp_path):
    """NCCL among one rank, as `benchmarks/gpu/several.py` asks a machine with one GPU."""
    basis = environment(stubs, tmp_path / "messages", STUB_QUIET="1")
    script = RUNTIME.parents[1] / "benchmarks" / "gpu" / "several.py"
    names = [str(script), str(tmp_path), "--into", str(tmp_path / "found.json")]
    done = subprocess.run([PYTHON, *names], env=basis, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "VIOLATION" not in done.stderr and "4 checks, 0 failed" in done.stdout


# What must not happen, and what the library says of it.
PLANTED = {
    "outside of a group": "nccl.send(x, 4, BYTE, 0, comm, stream)",
    "in a group in a group": "group(lambda: group(lambda: nccl.send(x, 4, BYTE, 0, comm, stream)))",
    "no group": "nccl.group_end()",
    "type 12": "group(lambda: nccl.send(x, 4, 12, 0, comm, stream))",
    "0 bytes": "group(lambda: nccl.send(x, 0, BYTE, 0, comm, stream))",
    "65 bytes at": "group(lambda: nccl.send(x, 65, BYTE, 0, comm, stream))",
    "17 elements": "nccl.all_reduce(x, y, 17, FLOAT, SUM, comm, stream)",
    "peer 1 of 1": "group(lambda: nccl.send(x, 4, BYTE, 1, comm, stream))",
    "peer 0 twice": "group(lambda: [nccl.send(x, 4, BYTE, 0, comm, stream) for _ in range(2)])",
    "two streams": "group(lambda: [nccl.send(x, 4, BYTE, 0, comm, stream), "
    "nccl.recv(y, 4, BYTE, 0, comm, other)])",
    "memory that another call": "group(lambda: [nccl.recv(x, 4, BYTE, 0, comm, stream), "
    "nccl.send(x + 2, 4, BYTE, 0, comm, stream)])",
    "no stream": "nccl.all_reduce(x, y, 16, FLOAT, SUM, comm, 0x77777)",
    "no stream (nil)": "nccl.all_reduce(x, y, 16, FLOAT, SUM, comm, 0)",
    "operation 2": "nccl.all_reduce(x, y, 16, FLOAT, 2, comm, stream)",
    "memory overlaps": "nccl.all_reduce(x, x + 4, 15, FLOAT, SUM, comm, stream)",
    "4 bytes from 0, which sends 8": "group(lambda: [nccl.recv(x, 4, BYTE, 0, comm, stream), "
    "nccl.send(y, 8, BYTE, 0, comm, stream)]); nccl.comm_get_async_error(comm)",
    "in progress or failed": "group(lambda: nccl.recv(x, 4, BYTE, 0, comm, stream)); "
    "nccl.all_reduce(x, y, 16, FLOAT, SUM, comm, stream)",
    "rank 1 of 1": "nccl.comm_init_rank_config(1, unique, 1, config.ptr)",
    "rank 0 twice": "nccl.comm_init_rank_config(1, unique, 0, config.ptr)",
    "the communicator blocks": "nccl.comm_init_rank_config(1, nccl.get_unique_id(), 0, "
    "nccl.Config().ptr)",
    "no communicator": "nccl.comm_abort(comm); nccl.all_gather(x, y, 4, BYTE, comm, stream)",
    "before ncclCommFinalize": "nccl.comm_destroy(comm)",
}
PLANT = """
import sys
from nccl.bindings import nccl
from girih.runtime.devices.cuda import find_gpus

(gpu,) = find_gpus()
gpu.__enter__()
config, unique = nccl.Config(), nccl.get_unique_id()
config.blocking = 0
comm = nccl.comm_init_rank_config(1, unique, 0, config.ptr)
assert nccl.comm_get_async_error(comm) == nccl.Result.Success
BYTE, FLOAT = int(nccl.DataType.Uint8), int(nccl.DataType.Float32)
SUM, stream, other = int(nccl.RedOp.Sum), gpu.create_stream(), gpu.create_stream()
x, y = (gpu.allocate(64, stream) for _ in range(2))

def group(calls):
    nccl.group_start()
    try:
        calls()
    finally:
        nccl.group_end()

group(lambda: [nccl.recv(y, 4, BYTE, 0, comm, stream), nccl.send(x, 4, BYTE, 0, comm, stream)])
assert nccl.comm_get_async_error(comm) == nccl.Result.Success
nccl.all_reduce(x, y, 16, FLOAT, SUM, comm, stream)
print("begun", file=sys.stderr)
try:
    exec(sys.argv[1])
except nccl.NCCLError:
    pass
"""


@pytest.mark.parametrize("said", PLANTED)
def test_what_breaks_a_rule_is_told(stubs, tmp_path, said):
    basis = environment(stubs, tmp_path / "messages", STUB_QUIET="1")
    done = subprocess.run(
        [PYTHON, "-c", PLANT, PLANTED[said]], env=basis, capture_output=True, text=True, timeout=60
    )
    before, begun, after = done.stderr.partition("begun\n")
    assert begun and not before, done.stderr
    wanted = "68 bytes at" if said == "17 elements" else said
    assert "VIOLATION" in after and wanted in after, done.stderr


def test_nccl_is_loaded_by_programs_of_several_gpus_alone(stubs, tmp_path):
    """Neither a program of one GPU nor one of several on a CPU asks for it, or for torch."""
    add = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
    add += "  %0 = stablehlo.add %a, %a : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}\n"
    readable(girih.compile(add, target=TARGET)).save(tmp_path / "one.girih")
    girih.compile(moving(2)).save(tmp_path / "two.girih")
    script = """
import sys, numpy as np, girih
one = girih.load(sys.argv[1], allow_native=True)
one(np.ones(4, np.float32))
assert one.target.startswith("nvidia") and one.received == {}
try:
    girih.load(sys.argv[2], allow_native=True)(np.ones((3, 24), np.float32))
except girih.UserError as error:
    assert "is for 2 processes, and 1 runs it" in str(error), error
print(*sorted({"nccl", "nccl.bindings", "nccl.bindings.nccl", "torch"} & {*sys.modules}))
"""
    basis = environment(stubs, tmp_path / "messages", STUB_QUIET="1")
    names = [str(tmp_path / name) for name in ("one.girih", "two.girih")]
    done = subprocess.run(
        [PYTHON, "-c", script, *names], env=basis, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "\n"
