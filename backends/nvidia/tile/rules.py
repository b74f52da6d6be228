"""Which operations have rules of their own in a tile function, and what else asks for values."""

from __future__ import annotations

from .control import branches, tile_for, while_loop
from .convolution import convolution
from .copies import copy
from .dot import dot
from .emitter import Rules
from .exchange import converted
from .reduce import reduce
from .windows import load, loaded, store

_OPERATIONS = {
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
RULES = Rules(_OPERATIONS, loaded, converted, copy)
