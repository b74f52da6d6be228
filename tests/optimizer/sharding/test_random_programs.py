"""The gold's random programs through every stage, on their own meshes and on six devices."""

from __future__ import annotations

import numpy as np
import pytest

from girih.hlo.errors import UnsupportedError
from girih.hlo.graph import Module
from girih.hlo.parse import parse_module
from girih.hlo.types import TensorType
from girih.hlo.verify import DECIDED, verify
from girih.optimizer.passes.dce import Dce
from girih.optimizer.sharding.choice import choose
from girih.optimizer.sharding.communications import communications
from girih.optimizer.sharding.propagated import propagate
from girih.optimizer.sharding.remesh import remeshed

from .fuzz import require_equal, require_no_replication
from .gold import programs

RANDOM = [name for name in programs() if name.startswith("random")]
SIX = {"x": 3, "y": 2, "z": 1, "one": 1}  # devices of whatever of these axes a mesh has


def require(module: Module) -> None:
    decided = choose(propagate(module)).module
    verify(decided, DECIDED)
    generator = np.random.default_rng(0)
    kinds = [kind for kind in module.body.argument_types if isinstance(kind, TensorType)]
    inputs = [
        generator.standard_normal(kind.dims).astype(kind.dtype)
        if kind.element.is_float
        else generator.integers(0, 2, kind.dims).astype(kind.dtype)
        for kind in kinds
    ]
    require_equal(module, decided, inputs)


def on_six(name: str) -> Module | None:
    """The program on a mesh of six devices; None where it says things of its own mesh."""
    module = Dce()(parse_module(programs()[name].text))
    (mesh,) = module.meshes.values()
    sizes = {"x": 6} if mesh.names == ("x",) else {axis: SIX[axis] for axis in mesh.names}
    try:
        return remeshed(module, sizes)
    except UnsupportedError:
        return None


@pytest.mark.parametrize("name", [n for n in programs() if not n.startswith("random")])
def test_no_reshard_of_a_model_holds_more_than_its_ends(name: str) -> None:
    module = Dce()(parse_module(programs()[name].text))
    rows = communications(choose(propagate(module)).module)
    for row in rows:
        require_no_replication(row.plan)


@pytest.mark.parametrize("part", range(8))
def test_random_programs_on_their_own_meshes(part: int) -> None:
    for name in RANDOM[part::16]:
        require(Dce()(parse_module(programs()[name].text)))


@pytest.mark.parametrize("part", range(8))
def test_random_programs_on_six_devices(part: int) -> None:
    """They are written for 4, 8 or 12: dims are uneven everywhere."""
    count = 0
    for name in RANDOM[part::8]:
        module = on_six(name)
        if module is not None:
            (mesh,) = module.meshes.values()
            assert mesh.devices == 6
            require(module)
            count += 1
    assert count >= 9
