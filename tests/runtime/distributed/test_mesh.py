"""Programs that are compiled for a mesh, run by real processes: whole and local arrays, weights of
each process, state, and bundles with code for several meshes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.graph import Module, Weight
from girih.hlo.interpret import interpret
from girih.hlo.placement import cut
from girih.hlo.signature import Argument, Result, Signature
from girih.hlo.trees import Tree
from girih.hlo.types import F32, I32, TensorType
from girih.runtime.bundle import Bundle

from .launch import launched, needs_mpi

pytestmark = [pytest.mark.mpi, needs_mpi]
SAID = {"x": ("data",), "up": (None, "model"), "down": ("model",)}
GENERATOR = np.random.default_rng(0)


def normal(*dims: int) -> np.ndarray:
    return GENERATOR.standard_normal(dims, np.float32)


def product(b, x, y):
    dims = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    return b("dot_general", x, y, **dims)


def network(rows: int = 50, width: int = 256, hidden: int = 1026) -> Module:
    """tanh(x @ up) @ down + bias, and a buffer that counts the rows seen."""
    kinds = [TensorType((rows, width), F32), TensorType((), F32)]
    arrays = {"up": normal(width, hidden), "down": normal(hidden, width), "bias": normal(width)}
    weights = {name: Weight(name, array) for name, array in arrays.items()}
    weights["seen"] = Weight("seen", np.zeros((), np.float32))

    def body(b, x, seen):
        up, down, bias = (b("weight", type=weights[n].type, weight=n) for n in arrays)
        hidden = b("tanh", product(b, x, up))
        found = b("add", product(b, hidden, down), b.broadcast(bias, (rows, width), (1,)))
        return [found, b("add", seen, b.constant(np.float32(rows)))]

    signature = Signature(
        Tree.flat(1),
        (
            Argument("x", (rows, width), "f32"),
            Argument("seen", (), "f32", True, 1, "seen", state="seen"),
        ),
        Tree.leaf(),
        (Result("output", (rows, width), "f32"), Result("seen", (), "f32", "seen")),
        names=("x",),
    )
    module = build_module(kinds, body)
    return Module(module.functions, weights=weights, signature=signature)


def printed(count: int, folder: Path, script: str, *arguments: object) -> str:
    """What the processes that run a script print together; its error where one fails."""
    file = folder / "script.py"
    file.write_text(script)
    done = launched(count, file, *arguments, GIRIH_COMM_TIMEOUT="60")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CALLS = """
import sys
import numpy as np
import girih
program = girih.load(sys.argv[1], simulate="--simulate" in sys.argv)
from girih.runtime.distributed.started import own_rank
given = np.load(sys.argv[2])
first = program(given["x"])
assert first.shape != first.whole == given["y"].shape, first.shape
np.testing.assert_allclose(first.gather(), given["y"], rtol=0, atol=1e-3)
layout = program.layout
from girih.hlo.placement import cut_for
own = cut_for(given["x"], layout.arguments[0], program.mesh, own_rank())
session = program.session()
for turn in range(3):
    assert np.array_equal(session(own), first)  # a block instead of the whole array
assert session.state["seen"] == 3 * len(given["x"]), session.state
try:
    program(given["x"][:3])
except girih.UserError as error:
    width = given["x"].shape[1]
    assert f"this process's block of float32[50,{width}], or all of it" in str(error), error
else:
    raise AssertionError("an array of neither shape was taken")
try:
    (first + 1).gather()
except girih.UserError as error:
    assert "gather the result before computing with it" in str(error)
else:
    raise AssertionError("what was made of a block was gathered")
print("equal")
"""


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
@pytest.mark.parametrize("mesh", [{"data": 2, "model": 2}, {"data": 3}])
def test_whole_and_local_arrays(mesh, target, tmp_path):
    """3 processes cut 50 rows unevenly; hidden weights are cut, and packed for each process."""
    simulated = target == "ptx-sim"
    width, hidden = (64, 66) if simulated else (256, 1026)
    module, x = network(width=width, hidden=hidden), normal(50, width)
    wanted = interpret(module, [x, np.zeros((), np.float32)])
    said = {name: spec for name, spec in SAID.items() if name == "x" or "model" in mesh}
    program = girih.compile(module, target=target, mesh=mesh, shardings=said)
    assert program.mesh is not None and dict(program.mesh.axes) == mesh
    assert [str(a) for a in program.signature.arguments] == [f"x: f32[50,{width}]", "seen: f32[]"]
    program.save(tmp_path / "p.girih")
    np.savez(tmp_path / "data.npz", x=x, y=wanted[0])
    count = program.mesh.devices
    names = [tmp_path / "p.girih", tmp_path / "data.npz", *["--simulate"] * simulated]
    said = printed(count, tmp_path, CALLS, *names)
    assert said.count("equal") == count


MEMORY = """
import sys
from pathlib import Path
import numpy as np
import girih
program = girih.load(sys.argv[1], threads=1)
program(np.ones((4, 512), np.float32))
for line in Path("/proc/self/smaps").read_text().splitlines():
    words = line.split()
    if words[0].count("-") == 1:  # a range of addresses
        is_bundle = words[-1] == sys.argv[1]
    elif is_bundle and words[0] == "Rss:":
        print(f"resident {words[1]}\\n", end="")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_keeps_its_blocks_alone_in_memory(tmp_path):
    """Although it has compared the digest of all weights."""
    module = network(4, 512, 8192)
    total = sum(weight.array.nbytes for weight in module.weights.values())
    said = {"up": (None, "model"), "down": ("model",)}
    girih.compile(module, mesh={"model": 4}, shardings=said).save(tmp_path / "p.girih")
    words = printed(4, tmp_path, MEMORY, tmp_path / "p.girih").split()
    found = [int(size) << 10 for size in words[1::2]]
    assert len(found) == 4 and max(found) < total / 4 + (4 << 20), (found, total)


def test_packed_weights_are_those_of_each_process(tmp_path):
    """Compiled for a level of CPUs, so that it is packed alike on every machine."""
    module = network()
    program = girih.compile(module, target="cpu:avx2", mesh={"data": 2, "model": 2}, shardings=SAID)
    program.save(tmp_path / "p.girih")
    bundle = Bundle(tmp_path / "p.girih")
    assert list(bundle.variants) == ["cpu:avx2@data=2,model=2"]
    variant = bundle.variants["cpu:avx2@data=2,model=2"]
    packed = sorted(name for name in variant.weights if name.startswith("up"))
    assert [name[-2:] for name in packed] == ["@0", "@1", "@2", "@3"]
    rows = [variant.weights[name] for name in packed]
    assert np.array_equal(rows[0], rows[2]) and np.array_equal(rows[1], rows[3])
    both = np.sort(np.concatenate([rows[0].ravel(), rows[1].ravel()]))
    both = both[both != 0]  # the padding of uneven blocks
    assert np.array_equal(both, np.sort(module.weights["up"].array.ravel()))
    (member,) = [n for n in bundle.members if n.startswith("variants/") and "weights" in n]
    assert bundle.members[member] < 1.3 * 2 * module.weights["up"].array.nbytes  # each once


STATE = """
import sys
import numpy as np
import girih
program, given = girih.load(sys.argv[1]), np.load(sys.argv[2])
session, x, cache = program.session(), given["x"], given["cache"]
for _ in range(2):
    before, cache = cache, cache.T * 2 + x
    assert np.array_equal(session(x).gather(), x + before)
    found = session.state["cache"]
    assert found.shape == given[f"shape{program.rank}"].shape, found.shape
    assert np.array_equal(found.gather(), cache)
    session.state = {"cache": found}
session.state = {"cache": x}
assert np.array_equal(session(x).gather(), x + x)
assert np.array_equal(session.fork().state["cache"].gather(), x.T * 2 + x)
session.reset()
assert np.array_equal(session.state["cache"].gather(), given["cache"])
assert float(program.stateless(x)[1]["turns"].gather()) == 1
assert program.stateless(x)[1]["turns"].gather().shape == ()
print("equal")
"""


@pytest.mark.parametrize("spec", [("x",), (None, "x"), ()])
def test_state_comes_back_as_it_is_taken(spec, tmp_path):
    """However its new value would lie: it is made of the transposed old one."""
    dims = (6, 6)
    kinds = [TensorType(dims, F32), TensorType(dims, F32), TensorType((), F32)]

    def body(b, x, cache, turns):
        turned = b("transpose", cache, permutation=(1, 0))
        new = b("add", b("add", turned, turned), x)
        return [b("add", x, cache), new, b("add", turns, b.constant(np.float32(1)))]

    arrays = {"cache": normal(*dims), "turns": np.zeros((), np.float32)}
    signature = Signature(
        Tree.flat(1),
        (
            Argument("x", dims, "f32"),
            Argument("cache", dims, "f32", True, 1, "cache", state="cache"),
            Argument("turns", (), "f32", True, 2, "turns", state="turns"),
        ),
        Tree.leaf(),
        (
            Result("output", dims, "f32"),
            Result("cache", dims, "f32", "cache"),
            Result("turns", (), "f32", "turns"),
        ),
        names=("x",),
    )
    weights = {name: Weight(name, array) for name, array in arrays.items()}
    module = replace(build_module(kinds, body), weights=weights, signature=signature)
    said = {"x": ("x",), "cache": spec}
    program = girih.compile(module, mesh={"x": 4}, shardings=said)
    layout = program.layout
    assert layout is not None and layout.results[1] == layout.arguments[1]
    program.save(tmp_path / "p.girih")
    blocks = cut(arrays["cache"], layout.arguments[1], layout.mesh)
    shapes = {f"shape{rank}": block for rank, block in enumerate(blocks)}
    np.savez(tmp_path / "data.npz", x=normal(*dims), cache=arrays["cache"], **shapes)  # pyright: ignore[reportArgumentType]
    said = printed(4, tmp_path, STATE, tmp_path / "p.girih", tmp_path / "data.npz")
    assert said.count("equal") == 4


LOOP = """
import sys
import numpy as np
import girih
program = girih.load(sys.argv[1], simulate="--simulate" in sys.argv)
given = np.load(sys.argv[2])
for turns in (3, 0):
    (found,) = program(given["x"], np.int32(turns))
    found = found.gather()
    np.testing.assert_allclose(found, given[f"y{turns}"], rtol=0, atol=1e-4)
print("equal")
"""


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
def test_a_loop_that_an_argument_decides(target, tmp_path):
    """Its turns, in which sums are sent, are the same in all processes: the argument is whole."""
    kind, scalar = TensorType((8, 8), F32), TensorType((), I32)

    def body(b, x, count):
        start = b.constant(np.int32(0))
        kinds = [scalar, scalar, kind]
        more = build_region(kinds, lambda b, i, n, x: [b.compare("LT", i, n)])

        def turn(b, i, n, x):
            return [b("add", i, b.constant(np.int32(1))), n, b("tanh", product(b, x, x))]

        regions = [more, build_region(kinds, turn)]
        return [b.op("while", [start, count, x], {}, regions, kinds).results[2]]

    module = build_module([kind, scalar], body)
    said = {"input[0]": (None, "x"), "input[1]": ()}
    program = girih.compile(module, target=target, mesh={"x": 4}, shardings=said)
    assert any(step.WhichOneof("action") == "exchange" for step in program.plan.steps)
    program.save(tmp_path / "p.girih")
    x = normal(8, 8) / 4
    y3, y0 = (interpret(module, [x, np.int32(n)])[0] for n in (3, 0))
    np.savez(tmp_path / "data.npz", x=x, y3=y3, y0=y0)
    names = [tmp_path / "p.girih", tmp_path / "data.npz", *["--simulate"] * (target != "cpu")]
    said = printed(4, tmp_path, LOOP, *names)
    assert said.count("equal") == 4
