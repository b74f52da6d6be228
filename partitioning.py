"""`girih.partition`: the program that each device of a mesh runs, and what the devices send.

    parts = girih.partition(module, mesh={"data": 2, "model": 4}, shardings={"x": ("data",)})
    for row in parts.communications:
        print(row)
    results = parts.run(x, w)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .hlo.distributed import interpret_parallel
from .hlo.errors import UserError
from .hlo.graph import Module
from .hlo.placement import cut, joined
from .hlo.sharding import Mesh
from .hlo.signature import flat_results
from .optimizer.sharding.communications import Communication, communications
from .optimizer.sharding.interconnect import USUAL, Interconnect

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Partitioned:
    """`decided`: the whole program, in which each tensor has its sharding and `sharding_constraint`
    says where values are sent. `local`: the program of one device, on its blocks."""

    decided: Module
    local: Module
    interconnect: Interconnect
