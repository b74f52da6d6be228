"""Which operations have rules of their own in a tile function."""

from __future__ import annotations

from collections.abc import Callable

from ....hlo.graph import Op
from .control import branches, tile_for, while_loop
from .convolution import convolution
from .dot import dot
from .emitter import Emitter
from .reduce import reduce
from .windows import load, store

RULES: dict[str, Callable[[Emitter, Op], None]] = {
    "tile_load": load,
    "tile_gather": load,
    "tile_store": store,
    "tile_scatter": store,
    "tile_for": tile_for,
    "while": while_loop,
    "if": branches,
    "case": branches,
    "reduce": reduce,
    "dot_general": dot,
    "convolution": convolution,
}
