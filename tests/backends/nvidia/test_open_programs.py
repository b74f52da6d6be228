"""Programs for GPUs whose sizes a call decides: compiled once, simulated at many sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.nvidia.simulator.driver import SimulatedGpu
from girih.backends.nvidia.target import ARCHITECTURES
from girih.hlo.build import Builder, build_region
from girih.hlo.graph import Function, Module
from girih.hlo.interpret import interpret
from girih.hlo.ops import find
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import BF16, F16, F32, I32, TensorType
from girih.options import Options
from girih.runtime.devices.driver import GraphNode, OutOfMemory
from girih.runtime.devices.edges import latest_first
from girih.runtime.program import Program

from ...optimizer.tiles.open_programs import attention
from ..cpu.test_open_cases import representative
from ..support import softmax

OPTIONS = Options(cache="off")
N = SymbolicDim("n")
SCALAR = TensorType((), F32)
SIZES = (1, 37, 64, 65, 3)


def module(most: int = 200) -> Module:
    """Sums of the columns of x w."""
    b = Builder()
    x, w = b.arguments([TensorType((N, 32), F32), TensorType((32, 48), F32)])
    sums: dict[str, Any] = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    made = b("dot_general", x, w, type=TensorType((N, 48), F32), **sums)
    total = b.reduce("add", made, b.constant(0, SCALAR), (0,))
    return Module({"main": Function("main", b.region([total]))}, symbols={"n": Symbol(1, most)})


def inputs(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [rng.standard_normal(dims).astype(np.float32) for dims in ((n, 32), (32, 48))]


def same(got: Sequence[Any], wanted: Sequence[Any]) -> None:
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-4)


def test_attention() -> None:
    program = girih.compile(attention(mask=True), target="ptx-sim", options=OPTIONS)
    assert len(program.plan.kernels) == 1 and not program.plan.guards and not program.plan.others
    rng = np.random.default_rng(0)
    for batch, rows, keys in ((1, 1, 1), (2, 65, 20)):
        shapes = [(batch, 4, rows, 16), *[(batch, 4, keys, 16)] * 2, (batch, keys)]
        given = [rng.standard_normal(dims).astype(np.float32) for dims in shapes]
        same(program(*given), interpret(program.module, given))


def test_attention_in_the_pipeline() -> None:
    """Causal, in f16: windows of open arrays come by the copy engine, tiles are counted by the
    call. Shorter ones get smaller tiles than a warp group's, so that they fill the machine."""
    b, length = Builder(), SymbolicDim("length")
    kind = TensorType((N, 2, length, 64), F16)
    scores = TensorType((N, 2, length, length), F32)
    q, k, v = b.arguments([kind] * 3)
    batch: dict[str, Any] = {
        "lhs_batching_dimensions": (0, 1), "rhs_batching_dimensions": (0, 1),
        "lhs_contracting_dimensions": (3,),
    }  # fmt: skip
    made = b("dot_general", q, k, type=scores, rhs_contracting_dimensions=(3,), **batch)
    row, column = (b("iota", type=scores.with_element(I32), iota_dimension=d) for d in (2, 3))
    hidden = b.broadcast(b.constant(-np.inf, SCALAR), scores.dims, ())
    made = b("select", b.compare("GE", row, column), made, hidden)
    weights = b.convert(softmax(b, made, 3), F16)
    result = b("dot_general", weights, v, type=kind, rhs_contracting_dimensions=(2,), **batch)
    symbols = {"n": Symbol(1, 8), "length": Symbol(1, 1024)}
    attend = Module({"main": Function("main", b.region([result]))}, symbols=symbols)
    program = girih.compile(attend, target="ptx-sim", options=OPTIONS)
    (kernel,) = program.plan.kernels
    (launch,) = kernel.launches
    assert launch.persistent and launch.arguments[0].tensor_map.dim_formulas, kernel.notes
    assert not program.plan.guards
    rng = np.random.default_rng(0)
    for n, size in ((1, 1), (2, 37), (1, 129)):
        given = [rng.standard_normal((n, 2, size, 64)).astype(np.float16) for _ in range(3)]
        (got,), (wanted,) = program(*given), interpret(attend, given)
        np.testing.assert_allclose(got, wanted, rtol=1e-2, atol=1e-2)


def test_a_bundle_and_programs_at_a_size(tmp_path: Path) -> None:
    program = girih.compile(module(), target="ptx-sim", options=OPTIONS)
    program.save(tmp_path / "model.girih")
    loaded = girih.load(tmp_path / "model.girih", simulate=True)
    for n in SIZES:
        wanted = interpret(program.module, inputs(n))
        same(program(*inputs(n)), wanted)
        same(loaded.at(n=n)(*inputs(n)), wanted)
        same(loaded.profile(*inputs(n)).outputs, wanted)
    assert loaded.at(n=1).memory.arena_bytes < loaded.at(n=200).memory.arena_bytes
    call = loaded.prepare(*inputs(5))
    loaded(*inputs(199))
    same(call(), interpret(program.module, inputs(5)))
    with pytest.raises(girih.UserError, match="must be from 1 to 200"):
        loaded(*inputs(201))


class _WithGraphs(SimulatedGpu):
    """Starts graphs, too, and remembers what it was asked for."""

    graphs, simulated = True, False  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(ARCHITECTURES["sm_90a"], OutOfMemory)
        self.log: list[str] = []

    def allocate(self, size: int, stream: Any) -> int:
        self.log.append(f"allocate {size}")
        return super().allocate(size, stream)

    def graph(self, launches: Sequence[Any], nodes: Sequence[GraphNode]) -> Any:
        self.log.append("graph")
        return list(launches), [*latest_first([node.after for node in nodes])]

    def rebind(self, graph: Any, number: int, prepared: Any) -> None:
        self.log.append(f"rebind {number}")
        graph[0][number] = prepared

    def replay(self, graph: Any, stream: Any) -> None:
        self.log.append("replay")
        launches, order = graph
        for number in order:
            self.launch(launches[number], stream)

    def destroy_graph(self, graph: Any) -> None:
        """Nothing was made."""


def test_graphs_take_other_sizes() -> None:
    """The first call of a size changes a graph in place; a size that comes again has its own."""
    compiled = girih.compile(module(), target="ptx-sim", options=OPTIONS)
    device = _WithGraphs()
    program = Program(compiled.parts, driver=device)
    wanted = {n: interpret(compiled.module, inputs(n)) for n in SIZES}
    said = []
    for n in (200, 1, 37, 1, 37, 64, 1):
        before = len(device.log)
        same(program(*inputs(n)), wanted.get(n) or interpret(compiled.module, inputs(n)))
        said.append([one for one in device.log[before:] if not one.startswith("allocate")])
    assert said[0] == []  # launches, one by one
    assert said[1] == ["graph", "replay"]
    assert said[2][-1] == "replay" and said[2][0] == "rebind 0"
    assert said[3] == ["graph", "replay"] and said[4] == ["replay"]
    assert said[5][0] == "rebind 0"
    # Memory is that of the largest call, once, whatever sizes come.
    before = len(device.log)
    for n in SIZES:
        same(program(*inputs(n)), wanted[n])
    assert not [one for one in device.log[before:] if one.startswith("allocate")]


def test_sorts_go_the_plain_way() -> None:
    b = Builder()
    (x,) = b.arguments([TensorType((N, 4), F32)])
    body = build_region([SCALAR, SCALAR], lambda b, x, y: [b.compare("LT", x, y)])
    made = b("sort", x, regions=(body,), dimension=0, is_stable=True)
    sorts = Module({"main": Function("main", b.region([made]))}, symbols={"n": Symbol(1, 90)})
    program = girih.compile(sorts, target="ptx-sim", options=OPTIONS)
    for n in (1, 7, 64, 90):
        given = np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)
        same(program.call_flat([given]), [np.sort(given, 0)])


def test_memory_of_launches_is_apart_from_what_does_not_wait() -> None:
    """A kernel of several launches beside one that it does not wait for."""
    b = Builder()
    (x,) = b.arguments([TensorType((N, 4), F32)])
    body = build_region([SCALAR, SCALAR], lambda b, x, y: [b.compare("LT", x, y)])
    down = b("sort", x, regions=(body,), dimension=0, is_stable=True)
    places = b("iota", type=TensorType((N, 4), I32), iota_dimension=0)
    across = b("sort", b("negate", x), regions=(body,), dimension=1, is_stable=True)
    results = b.region([down, places, across])
    sorts = Module({"main": Function("main", results)}, symbols={"n": Symbol(1, 90)})
    program = girih.compile(sorts, target="ptx-sim", options=OPTIONS)
    given = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    wanted = [np.sort(given, 0), np.arange(7)[:, None].repeat(4, 1), np.sort(-given, 1)]
    same(program.call_flat([given]), wanted)


def test_what_has_no_code_is_named() -> None:
    made = representative(find("linalg.eig"))
    assert made is not None
    with pytest.raises(girih.UnsupportedError, match="eig: there is no code"):
        girih.compile(made.module, target="ptx-sim", options=OPTIONS)


def test_products_outside_of_the_pipeline_say_so() -> None:
    """The copy engine takes rows that are 16 bytes apart, or multiples, in every call."""
    b = Builder()
    x, y = b.arguments([TensorType(dims, BF16) for dims in ((N, N), (N, 64))])
    sums: dict[str, Any] = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    made = b("dot_general", x, y, type=TensorType((N, 64), BF16), **sums)
    product = Module({"main": Function("main", b.region([made]))}, symbols={"n": Symbol(1, 300)})
    program = girih.compile(product, target="ptx-sim", options=OPTIONS)
    (kernel,) = program.plan.kernels
    assert any(note.startswith("not in Hopper's pipeline") for note in kernel.notes)
    even = girih.compile(product, target="ptx-sim", options=OPTIONS, sizes={"n": range(8, 301, 8)})
    (kernel,) = even.plan.kernels
    assert not kernel.notes and any(a.tensor_map.dim_formulas for a in kernel.launches[0].arguments)
    for n in (8, 56, 136):
        rng = np.random.default_rng(n)
        given = [rng.standard_normal(dims).astype(BF16.dtype) for dims in ((n, n), (n, 64))]
        (got,), (wanted,) = even(*given), interpret(product, given)
        np.testing.assert_allclose(
            np.asarray(got, np.float32), np.asarray(wanted, np.float32), rtol=2e-2, atol=2e-2
        )


def test_sizes_that_may_be_0() -> None:
    """Neither are arrays without elements touched, nor do bounds of the others change."""
    b = Builder()
    kinds = [TensorType(dims, F32) for dims in ((N, 32), (32, 48), (5, 32), (N, 4, 16))]
    x, w, y, z = b.arguments(kinds)
    sums: dict[str, Any] = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    results = [
        b("dot_general", x, w, type=TensorType((N, 48), F32), **sums),
        b.reduce("add", x, b.constant(0, SCALAR), (0,)),
        b.reduce("maximum", x, b.constant(0, SCALAR), (1,)),
        b("concatenate", b("exponential", x), y, dimension=0),
        b("pad", x, b.constant(1, SCALAR), edge_padding_low=(1, 0), edge_padding_high=(2, 3),
          interior_padding=(0, 0)),
        b("transpose", z, permutation=(1, 0, 2)),
    ]  # fmt: skip
    made = Module({"main": Function("main", b.region(results))}, symbols={"n": Symbol(0, 300)})
    program = girih.compile(made, target="ptx-sim", options=OPTIONS)
    rng = np.random.default_rng(0)
    for n in (3, 0, 70):
        shapes = [(n, 32), (32, 48), (5, 32), (n, 4, 16)]
        given = [rng.standard_normal(dims).astype(np.float32) for dims in shapes]
        same(program(*given), interpret(made, given))
