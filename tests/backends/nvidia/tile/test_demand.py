"""How much shared memory a tile function needs is known before it is emitted: no less is taken."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from girih.backends.nvidia import tile
from girih.backends.nvidia.tile.demand import Demand
from girih.hlo.graph import Op

from ..test_fits import attentions, products
from ..test_gate import examples
from .support import SM_80


def kernels() -> list[Op]:
    chance = random.Random(7)
    found = [op for op in examples() if op.name == "kernel_call"]
    found += [products(chance) for _ in range(24)]
    return found + [attentions(chance) for _ in range(3)]


@pytest.mark.parametrize("kib", [8, 32, 163])
def test_what_fits_takes_no_more(kib: int) -> None:
    """Also where there is little, so that the most that may be needed is near what there is."""
    on = replace(SM_80, architecture=replace(SM_80.architecture, shared_bytes=kib << 10))
    needed, taken, refused = 0, 0, 0
    for op in kernels():
        found = tile.fits(op, on)
        if isinstance(found, str):
            refused += 1
            continue
        code = tile.emitted(found)
        most = Demand(found, kib << 10).bytes
        assert code.launches[-1].shared_bytes <= most <= kib << 10
        needed, taken = needed + most, taken + code.launches[-1].shared_bytes
    assert taken <= needed <= 1.2 * taken  # little is refused that would fit
    assert refused > 5 or kib > 100
