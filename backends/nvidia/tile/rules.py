"""Which operations have rules of their own in a tile function, and what else asks for values."""

from __future__ import annotations

from collections.abc import Callable

from ....hlo.graph import Op
from .control import CONTROL
from .copies import copy
from .dot import dot
from .emitter import Emitter, Rules
from .exchange import converted
from .reduce import reduce
from .ring import ahead
from .windows import load, loaded, store

_OPERATIONS: dict[str, Callable[[Emitter, Op], None]] = {
    **CONTROL,
    "tile_load": load,
    "tile_gather": load,
    "tile_store": store,
    "tile_scatter": store,
    "reduce": reduce,
    "dot_general": dot,
    "convolution": dot,
}
RULES = Rules(_OPERATIONS, loaded, converted, copy, ahead)
