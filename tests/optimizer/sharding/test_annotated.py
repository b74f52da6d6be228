"""The annotated programs of the benchmark: they can be read, propagated and put on other meshes."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("jax")

from girih.hlo.types import TensorType
from girih.optimizer.passes.dce import Dce
from girih.optimizer.passes.inline import Inline
from girih.optimizer.sharding.propagated import propagate
from models.annotated import DEVICES
from models.annotated_networks import NETWORKS
from models.annotated_operations import OPERATIONS

EXAMPLES = {**NETWORKS, **OPERATIONS}
ARGUMENTS = {
    "a1": 6.0, "a2": 4.25, "b1": 5.004, "b2": 5.004, "b4": 3.504, "c1": 8.004, "c2": 11.004,
    "c3": 5.004, "c4": 5.004, "c5": 8.004, "d1": 10.0, "d4": 2.125, "e1": 2.516, "h3": 18.004,
    "h15": 3.0, "h16": 8.0, "i1": 3.0,
}  # fmt: skip
"""MiB of arguments per device, as XLA says for the same program."""


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_device_holds_as_much_of_the_arguments_as_with_xla(name):
    found = propagate(Dce()(Inline()(EXAMPLES[name].module())))
    (mesh,) = found.module.meshes.values()
    blocks = (found.shardings[v].local_dims(mesh, v.dims) for v in found.module.body.arguments)
    assert sum(map(math.prod, blocks)) * 4 / 2**20 == pytest.approx(ARGUMENTS[name], abs=5e-4)


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("name", ("a1", "c4", "i1", "g10", "h16"))
def test_programs_come_on_every_mesh(name, devices):
    example = EXAMPLES[name]
    module = example.module(devices)
    (mesh,) = module.meshes.values()
    sizes = {axis: size for axis, size in example.sizes(devices).items() if size > 1}
    assert {axis: size for axis, size in mesh.axes if size != 1} == sizes
    assert mesh.devices == devices


@pytest.mark.parametrize("name", ("g1", "h4", "h11", "h14"))
def test_inputs_fit_and_are_the_same_every_time(name):
    one, other = (EXAMPLES[name].inputs() for _ in range(2))
    types = EXAMPLES[name].module().body.argument_types
    assert [(x.shape, x.dtype) for x in one] == [
        (t.dims, t.dtype) for t in types if isinstance(t, TensorType)
    ]
    assert all((a == b).all() for a, b in zip(one, other, strict=True))
