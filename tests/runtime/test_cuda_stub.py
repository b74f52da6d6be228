"""CUDA's driver through cuda-python's own bindings, on a library that stands in for libcuda."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PTX = """.version 8.3
.target sm_90a
.visible .entry add_one(.param .u64 x, .param .u64 y) .reqntid 32, 1, 1 .reqnctapercluster 2, 1, 1
{ }
.visible .entry add(.param .u64 x, .param .u64 y, .param .u64 z) .reqntid 32, 1, 1
{ }
"""
SCRIPT = """
import gc
import os
import numpy as np
from girih.hlo.errors import CompilerBug, UserError
from girih.runtime.devices.architectures import parse_architecture
from girih.runtime.devices.cuda import find_gpus
from girih.runtime.devices.driver import TensorMapBox, Code, OutOfMemory, LaunchConfiguration
from tests.runtime.gpu_fakes import flat
from tests.runtime.test_cuda_stub import PTX
from tests.runtime.test_nvidia import two_steps

(gpu,) = find_gpus()
assert (gpu.name, gpu.capability) == ("Stub GPU", (9, 0)), gpu.name
assert (gpu.limits.shared_bytes, gpu.limits.multiprocessors) == (232448, 132)
plan = two_steps()
launch = plan.plan.kernels[0].launches[0]
launch.cluster.extend((2, 1, 1))
launch.grid[0], launch.shared_bytes = 4, 100000
program = plan.program(flat(1, 1), None, image=PTX.encode())
x = np.arange(4, dtype=np.float32)
for turn in range(4):
    assert program(x + turn)[0].tolist() == (2 * (x + turn) + 1).tolist()
(once,) = program.on_device(x)
(twice,) = program.on_device(once)
assert twice.numpy().tolist() == (4 * x + 3).tolist()
assert [event.duration for event in program.profile(x).events] == [500.0, 500.0]
box = TensorMapBox("bf16", (64, 100), (128,), (64, 32), 128)
with gpu:
    for address in range(1 << 20, (1 << 20) + 4096, 16):
        assert gpu.tensor_map(box, address) == b"\\7" * 128
    for wrong, words in (
        (lambda: gpu.load(Code(b"broken", parse_architecture("sm_90a"), True)), "line 3 is bad"),
        (lambda: gpu.allocate(1 << 40, 0), "no 1099511627776 bytes"),
        (lambda: gpu.tensor_map(box, 8), "cuTensorMapEncodeTiled failed"),
    ):
        try:
            wrong()
        except (CompilerBug, UserError, OutOfMemory) as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
    del program, once, twice
    gc.collect()
    # Another module's entry may have the handle of one that had more shared memory.
    module = gpu.load(Code(PTX.encode(), parse_architecture("sm_90a"), True))
    for size in (60000, 100000, 60000):
        made = LaunchConfiguration("add_one", (2, 1, 1), (32, 1, 1), (2, 1, 1), size)
        entry = gpu.entry(module, made)
    start = LaunchConfiguration("add_one", (2, 1, 1), (32, 1, 1), (2, 1, 1), 100000)
    try:
        gpu.prepare(entry, start, [bytes(8), bytes(4)])
    except CompilerBug as error:
        assert "takes parameters of [8, 8] bytes, its plan gives [8, 4]" in str(error), error
    else:
        raise AssertionError("a parameter of another size was taken")
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
    *["replay 2, edges 1"] * 3,
    # Results on the device lie elsewhere, then the argument as well.
    "rebind 1",
    "replay 2, edges 1",
    "rebind 0",
    "rebind 1",
    "replay 2, edges 1",
    *LAUNCHES,
    *["map 9: 2 dims, 64,100 by 128, box 64,32, steps 1,1, swizzle 3"] * 256,
    "synchronize all",
    "trim to 0",
    "VIOLATION cuTensorMapEncodeTiled: the array lies at 0x8, not at a multiple of 16",
    "unload",
    "module .version 8.3",
    "attribute 8 = 60000",
    "attribute 8 = 100000",
]


@pytest.fixture(scope="module")
def stub(tmp_path_factory) -> Path:
    """The folder with the library that stands in for libcuda."""
    pytest.importorskip("cuda.bindings.driver")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler on Linux")
    folder = tmp_path_factory.mktemp("stub")
    source = ROOT / "tests" / "runtime" / "stub_cuda.c"
    flags = ["-O1", "-shared", "-fPIC", "-w", "-o", str(folder / "libcuda.so.1"), str(source)]
    subprocess.run([compiler, *flags, "-ldl"], check=True)
    return folder


def run(stub: Path, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(stub), **settings}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_a_program_through_the_real_bindings(stub):
    done = run(stub, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == TOLD


LOOP = """
import warnings
import numpy as np
from girih.hlo.signature import Signature
from girih.specs.generated import plan_pb2
from tests.runtime.gpu_fakes import PlanOf
from tests.runtime.test_cuda_stub import CLUSTER, COUNT_DOWN, PTX

# while n-- > 0: y = (y + x) + 1, or (y + x) + 2 where odd says so
plan = PlanOf().inputs(x=16, n=4, odd=1).outputs(y=16).buffer("t", plan_pb2.ARENA, 16)
plan.buffer("c", plan_pb2.ARENA, 1, offset=256)
plan.run("add", "x", "x", "y").run("count_down", "n", "c").branch("c", 9)
plan.run("add", "y", "x", "t").branch("odd", 7).run("add_one", "t", "t").jump(7)
plan.run("add_one", "t", "y").jump(1).results("y").plan.schedule = "graph"
types = [((4,), "f32"), ((), "i32"), ((), "i1")], [((4,), "f32")]
image = PTX.replace(CLUSTER, "") + COUNT_DOWN
program = plan.program(Signature.plain(*types), None, image=image.encode())
x = np.arange(4, dtype=np.float32)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for turns in (3, 0, 5):
        for odd in (False, True):
            given = x + turns, np.int32(turns), np.bool_(odd)
            expected = given[0] * (2 + turns) + turns * (1 + odd)
            assert program(*given)[0].tolist() == expected.tolist(), (turns, odd)
            kept = program.on_device(*given)
            assert kept[0].numpy().tolist() == expected.tolist(), (turns, odd)
print([str(one.message) for one in caught], program.events)
"""
CLUSTER = " .reqnctapercluster 2, 1, 1"
COUNT_DOWN = """.visible .entry count_down(.param .u64 n, .param .u64 c) .reqntid 32, 1, 1
{ }
"""


@pytest.mark.parametrize("version", ["12020", "12030", "13000"])
def test_loops_and_branches_are_conditional_nodes(stub, version):
    done = run(stub, "-c", LOOP, STUB_VERSION=version)
    assert done.returncode == 0 and "VIOLATION" not in done.stderr, done.stderr
    told = {line for line in done.stderr.splitlines() if line.startswith("conditional")}
    if version == "12020":
        assert not told and "no graphs that decide in loops and branches" in done.stdout
    else:
        assert told == {"conditional while", "conditional if"} and done.stdout.startswith("[]")
        assert "'launches': 0, 'graph_launches': 12" in done.stdout


WHOLE = """
import warnings
import numpy as np
from girih.specs.generated import plan_pb2
from tests.runtime.gpu_fakes import flat
from tests.runtime.test_cuda_stub import CLUSTER, PTX
from tests.runtime.test_persistent_launch import two_steps

entry = '''.visible .entry whole(.param .align 64 .b8 table[256]) .reqntid 32, 1, 1
{ }
'''
image = PTX.replace(CLUSTER, "") + entry
program = two_steps().program(flat(1, 1), None, image=image.encode())
x = np.arange(4, dtype=np.float32)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for turn in range(3):
        assert program(x + turn)[0].tolist() == (x + turn + 2).tolist()
    assert program.on_device(x)[0].numpy().tolist() == (x + 2).tolist()
print([str(one.message) for one in caught], program.events["launches"])
"""


@pytest.mark.parametrize("able", [True, False])
def test_all_steps_as_one_cooperative_launch(stub, able):
    """Of as many blocks as are resident, or, without such launches, the host starts the steps."""
    done = run(stub, "-c", WHOLE, STUB_COOPERATIVE=str(int(able)), STUB_MULTIPROCESSORS="5")
    assert done.returncode == 0 and "VIOLATION" not in done.stderr, done.stderr
    told = done.stderr.splitlines()
    assert told.count("cooperative 1") == (4 if able else 0)
    assert ("launch 5,1,1 of 32, shared 0, cluster 0" in told) == able
    assert done.stdout.strip() == "[] 4" if able else "no cooperative launches" in done.stdout


EQUAL_STARTS = """
import numpy as np
from girih.specs.generated import plan_pb2
from tests.runtime.gpu_fakes import PlanOf, flat
from tests.runtime.test_cuda_stub import PTX

plan = PlanOf().inputs(x=16).outputs(y=16).buffer("t", plan_pb2.ARENA, 16, offset=64)
plan.run("add", "x", "x", "t").run("add", "t", "x", "y").results("y")
program = plan.program(flat(1, 1), None, image=PTX.encode())
kept = []
for turn in range(6):
    x = np.arange(4, dtype=np.float32) + turn
    kept += program.on_device(x), program.on_device(program.on_device(x)[0])
    assert kept[-2][0].numpy().tolist() == (3 * x).tolist(), turn
    assert kept[-1][0].numpy().tolist() == (9 * x).tolist(), turn
"""


@pytest.mark.parametrize("version", ["12020", "13000"])  # the older one tells no parameters
def test_launches_that_start_alike_take_their_own_addresses(stub, version):
    done = run(stub, "-c", EQUAL_STARTS, STUB_VERSION=version)
    assert done.returncode == 0, done.stderr
    assert {"rebind 0", "rebind 1"} <= {*done.stderr.splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "first"), [("sm_90a", "0"), ("sm_80", "1")])
def test_kernels_break_no_rule_of_the_driver(stub, architecture, first):
    """Those of the first run on a GPU, and of the zoo's models, on the real bindings; each model on
    one of the architectures, with GIRIH_THOROUGH=1 on both."""
    script = ROOT / "tests" / "runtime" / "on_stub.py"
    share = () if os.environ.get("GIRIH_THOROUGH") else (first, "2")
    settings = {"STUB_QUIET": "1", "STUB_MAJOR": architecture[3]}
    done = run(stub, str(script), architecture, *share, **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "VIOLATION" not in done.stderr, done.stderr[-2000:]
    launches = int(done.stdout.split()[0])
    assert launches > (600 if architecture == "sm_90a" else 500), done.stdout


# What must not happen, and what the library says of it.
PLANTED = {
    "the map lies at": "encode(made + 16)",
    "the array lies at 0x8": "encode(made, address=8)",
    "element type 13": "encode(made, type=13)",
    "stride 24": "encode(made, strides=(24,))",
    "the box has 257 elements": "encode(made, box=(257, 1))",
    "step 9 along": "encode(made, steps=(9, 1))",
    "rows of the box have 8 bytes": "encode(made, box=(4, 1))",
    "rows of 256 bytes are swizzled in spans of 128": "encode(made, box=(128, 1))",
    "has 4294967297 elements": "encode(made, dims=(2**32 + 1, 2))",
    "rank 6": "encode(made, rank=6)",
    "a block of 2048,1,1 threads": "launch(block=(2048, 1, 1))",
    "compiled for 32 threads, 64": "launch(block=(64, 1, 1))",
    "asks for 60000 bytes of shared memory, its attribute allows 49152": "launch(shared=60000)",
    "a grid of 3 blocks in clusters of 2": "launch(grid=(3, 1, 1))",
    "compiled for clusters of 2, not 1": "launch(cluster=None)",
    "clusters of 16, which its attribute does not allow": "launch(grid=(16,1,1), cluster=(16,1,1))",
    "a grid of 0,1,1": "launch(grid=(0, 1, 1))",
    "has 2 parameters, 1 are given": "launch(count=1)",
    "not at a multiple of 8": "launch(skew=4)",
    "no stream": "launch(stream=0x77777)",
    "are in no allocation": "cuda.cuMemsetD8Async and cuda.cuMemcpyDtoDAsync(4096, 8192, 64, 0)",
    "is no allocation": "cuda.cuMemFreeAsync(4096, 0)",
    "0 bytes": "cuda.cuMemAllocAsync(0, 0)",
    "no event": "cuda.cuStreamWaitEvent(0, 0x88888, 0)",
    "events without times": "cuda.cuEventElapsedTime(*[cuda.cuEventCreate(2)[1]] * 2)",
    "lacks its attribute, clusters of 2": "graph(attribute=False)",
    "it follows no node of the graph": "graph(after=False)",
    "it follows a node twice": "graph(twice=True)",
    "another function than the node's": "graph(other=True)",
    "no node of the graph": "graph(foreign=True)",
    "232449 bytes of shared memory": "cuda.cuFuncSetAttribute(entry, shared_attribute, 232449)",
}
PLANT = """
import ctypes, os, sys
import cuda.bindings.driver as cuda
from girih.runtime.devices import cuda as ours
from girih.runtime.devices.architectures import parse_architecture
from girih.runtime.devices.cuda import find_gpus
from girih.runtime.devices.driver import Code, GraphNode, LaunchConfiguration, chain
from tests.runtime.test_cuda_stub import PTX

(gpu,) = find_gpus()
gpu.__enter__()
module = gpu.load(Code(PTX.encode(), parse_architecture("sm_90a"), True))
start = LaunchConfiguration("add_one", (2, 1, 1), (32, 1, 1), (2, 1, 1), 0)
entry = gpu.entry(module, start)
plain = gpu.entry(module, LaunchConfiguration("add", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0))
memory = [gpu.allocate(64, 0) for _ in range(3)]
words = [address.to_bytes(8, "little") for address in memory]
block = ctypes.create_string_buffer(256)
made = -(-ctypes.addressof(block) // 64) * 64
shared_attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

def encode(at, type=9, rank=2, address=1 << 20, dims=(64, 100), strides=(128,), box=(64, 32),
           steps=(1, 1)):
    u64, u32 = ctypes.c_uint64 * 6, ctypes.c_uint32 * 6
    ours._encode_map()(at, type, rank, address, u64(*dims), u64(*strides), u32(*box), u32(*steps),
                       0, 3, 3, 0)

def launch(grid=(2, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1), shared=0, count=2, skew=0,
           stream=0):
    gpu._parameters.clear()
    asked = LaunchConfiguration("add_one", grid, block, cluster or (1, 1, 1), shared)
    prepared = gpu.prepare(entry, asked, words[:count])
    if skew:
        places = (ctypes.c_void_p * 2).from_address(prepared.pointers)
        places[1] += skew
    gpu.launch(prepared, stream)

def graph(attribute=True, after=True, twice=False, other=False, foreign=False):
    if not attribute:
        gpu._set_cluster = lambda *_: None
    made = cuda.cuGraphCreate(0)[1]
    clustered = gpu.prepare(entry, start, words[:2])
    nodes = chain(2)
    if not after:
        stranger = cuda.cuGraphAddKernelNode(made, [], 0, gpu._parameters_of(clustered))[1]
        second = cuda.cuGraphCreate(0)[1]
        cuda.cuGraphAddKernelNode(second, [stranger], 1, gpu._parameters_of(clustered))
    if twice:
        nodes[1] = GraphNode((0, 0), 1)
    finished = gpu.graph([clustered, clustered], nodes)
    if foreign:
        others = gpu.graph([clustered, clustered], nodes).nodes
        gpu.rebind(finished._replace(nodes=others), 0, clustered)
    if other:
        single = LaunchConfiguration("add", (2, 1, 1), (32, 1, 1), (1, 1, 1), 0)
        gpu.rebind(finished, 0, gpu.prepare(plain, single, words))

encode(made)
launch()
gpu.destroy_graph(gpu.graph([gpu.prepare(entry, start, words[:2])] * 2, chain(2)))
for number, planted in enumerate(sys.argv[1:]):
    child = os.fork()  # each on a library that nothing was planted in
    if not child:
        print("begun", number, file=sys.stderr, flush=True)
        try:
            exec(planted)
        except Exception:
            pass
        sys.stderr.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def told(stub) -> dict[str, str]:
    """What the library says before anything is planted (""), and of each thing that is."""
    done = run(stub, "-c", PLANT, *PLANTED.values(), STUB_QUIET="1")
    before, *parts = re.split(r"^begun \d+\n", done.stderr, flags=re.MULTILINE)
    assert done.returncode == 0 and len(parts) == len(PLANTED), done.stderr
    return {"": before, **dict(zip(PLANTED, parts, strict=True))}


@pytest.mark.parametrize("said", PLANTED)
def test_what_breaks_a_rule_is_told(told, said):
    assert not told[""]
    assert "VIOLATION" in told[said] and said in told[said], told[said]
