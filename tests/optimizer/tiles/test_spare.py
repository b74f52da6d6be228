"""Moves between kernels that are made or taken back for the sake of memory."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import girih
from girih.backends.cpu.machines import typical
from girih.hlo.graph import Module, Region
from girih.hlo.interpret import interpret
from girih.hlo.verify import FUSED, verify
from girih.optimizer.machine import Machine
from girih.optimizer.measure import measure
from girih.optimizer.overwriting import hinders_of
from girih.optimizer.passes.connect import Connect
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.peak import Peak, peak_of
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline
from girih.optimizer.tiles.nodes import Nodes
from girih.optimizer.tiles.spare import spared

from .programs import f32


def eager(step: float) -> Machine:
    """A machine on which a launch costs so many seconds."""
    machine = typical("avx512")
    return replace(machine, sync=replace(machine.sync, step=step))


def fused(function, inputs) -> Module:
    module = girih.import_model(function, *inputs)
    return run_pipeline(module, [*simplify_pipeline(girih.Options()), Fuse()])


def window(x, w):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)


def gradient(x, w, v):
    """A value that two products read, one behind the other. Apart, it lies where `made` does; the
    kernel of it and the first stores it while its neighbours' tiles still read `made`."""
    made = window(x, w)
    spread = jnp.tanh(made - jnp.sum(made, (0, 1, 2)))
    return jnp.einsum("nhwc,nhwd->cd", window(spread, v), spread)


GRADIENT = [f32(2, 64, 64, 32), f32(3, 3, 32, 32), f32(3, 3, 32, 32)]


def joined(module: Module, machine: Machine) -> Nodes:
    """All kernels of a module, where a product and the loop that it reads are one."""
    nodes = Nodes(Connect(machine), module.body)
    for op in module.body.ops:
        if op.name == "fusion":
            nodes.add(op)
    loop = next(node for node in nodes.all if node.members[0].kind == "loop")
    product = next(node for node in nodes.all if loop in nodes.producers(node))
    merged = nodes.merged(loop, product)
    assert merged is not None
    nodes.join(merged)
    return nodes


def peak(region: Region) -> Peak:
    return peak_of(region, (), hinders_of(True))


def test_a_move_that_costs_memory_at_the_peak_is_taken_back() -> None:
    before = fused(gradient, GRADIENT)
    nodes = joined(before, typical("avx512"))
    merged = nodes.rebuild().region
    after = spared(nodes, peak)
    unit = 2 * 64 * 64 * 32 * 4
    assert peak(merged).bytes >= 3 * unit > peak(after).bytes == peak(before.body).bytes
    assert "kernel_call" not in [op.name for op in after.ops]


def test_a_move_stays_where_memory_is_not_known_or_worth_too_little() -> None:
    before = fused(gradient, GRADIENT)
    nodes = joined(before, typical("avx512"))
    assert "kernel_call" in [op.name for op in spared(nodes, lambda region: None).ops]
    # One launch more is much more of the time than two thirds are of the memory.
    nodes = joined(before, eager(1.0))
    assert "kernel_call" in [op.name for op in spared(nodes, peak).ops]


def hidden(x, w, u):
    """Two products, whose middle is four times as large as all else."""
    return jax.nn.relu(x @ w) @ u


HIDDEN = [f32(512, 64), f32(64, 256), f32(256, 64)]


@pytest.mark.parametrize("step, connected", [(0.0, False), (5e-6, True)])
def test_what_passes_between_two_kernels_is_worth_its_memory(step, connected) -> None:
    before = fused(hidden, HIDDEN)
    assert measure(before, in_tiles=True).arena_bytes == 512 * 256 * 4
    after = Connect(eager(step), in_tiles=True)(before)
    verify(after, FUSED)
    assert ([op.name for op in after.body.ops] == ["kernel_call"]) == connected
    for a, b in zip(interpret(after, HIDDEN), interpret(before, HIDDEN), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_node_and_its_parts() -> None:
    nodes = Nodes(Connect(eager(1.0)), fused(hidden, HIDDEN).body)
    for op in nodes.region.ops:
        nodes.add(op)
    first, second = nodes.all
    (between,) = nodes.between(first, second)
    assert nodes.leaves(between, first.members) and not nodes.leaves(between, second.members)
    merged = nodes.merged(first, second)
    assert merged is not None and merged.parts == (first, second)
    kept = nodes.state()
    nodes.join(merged)
    assert nodes.all == [merged] and nodes.alive(merged) and not nodes.alive(first)
    nodes.separate(merged)
    assert nodes.all == [first, second] and nodes.alive(first) and not nodes.alive(merged)
    nodes.join(merged)
    nodes.restore(kept)
    assert nodes.all == [first, second] and nodes.rebuild().region is nodes.region
