"""Nests as functions of one module: small kernels, called with a table of addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ....hlo.build import Builder, make_op
from ....hlo.deciding import largest
from ....hlo.graph import Op, Value, arguments
from ....hlo.regions import inline
from ....hlo.symbols import Dim, SymbolicDim
from ....optimizer.cuts import products
from ....optimizer.cuts.products import Blocking, ProductShape
from ....optimizer.tiles.steps import NestEmitters
from ... import llvm
from ...llvm import arithmetic
from ...llvm.target import KernelCode
from ...plain.composite import merged, renamed
from .. import contract
from ..codegen import Target
from . import columns
from .moves import TileMove, emit_move

EmitNest = Callable[[Op, Target], KernelCode]
EMITTERS = NestEmitters(arithmetic.supports, columns.fits)


class NestView(NamedTuple):
    """How a value lies in memory: the first `sizes` elements of an array of dims `storage`, whose
    leading dim is as long as the window. Values have the same elements under other dims."""

    storage: tuple[Dim, ...]
    sizes: tuple[int, ...]


def view_of(sizes: Sequence[int], dims: Sequence[Dim]) -> NestView:
    """How a window of a row-major memory lies. What a call decides is left out where nothing
    depends on it: a dim's size is in the steps of those before it alone."""
    storage: list[Dim] = [*sizes[:1], *dims[1:]]
    for d, size in enumerate(sizes):
        if isinstance(storage[d], SymbolicDim):
            storage[d] = size
        if size != 1:
            break
    return NestView(tuple(storage), tuple(sizes))


@dataclass(frozen=True)
class Nest:
    """A function (addresses, begin, end, scratch) of the module, and its number of tiles. sizes:
    what the call decides, in its table."""

    name: str
    tiles: int
    sizes: tuple[Dim, ...] = ()


class Nests:
    """The nests of one kernel. Equal ones are emitted once."""

    def __init__(self, module: llvm.Module, target: Target, emit_nest: EmitNest) -> None:
        self.module, self.target, self.emit_nest = module, target, emit_nest
        self.scratch = 0  # the most that a nest needs
        self.notes: dict[str, None] = {}
        self._pieces: dict[str, tuple[str, str]] = {}  # by text: symbol and name
        self._known: dict[tuple[Op, tuple[NestView | None, ...]], Nest] = {}
        self._moves: dict[TileMove, str] = {}

    def nest(self, op: Op, views: Sequence[NestView | None]) -> Nest:
        """The function of a fusion (or of one operation) whose operands lie so."""
        key = op, tuple(views)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._emit(viewed(op, views))
        return found

    def copy(self, value: Value, view: NestView) -> Nest:
        """The function that copies a window into a tile of its own."""
        own = arguments([value.type])
        body = Builder()
        (inner,) = body.arguments([value.type])
        region = body.region([inner])
        op = make_op("fusion", own, {"kind": "loop"}, (region,), [value.type], check=False)
        return self._emit(viewed(op, [view]))

    def move(self, move: TileMove) -> str:
        """The name of the function of a move."""
        name = self._moves.get(move)
        if name is None:
            name = self._moves[move] = f"move{len(self._moves)}"
            emit_move(self.module, name, move, self.target)
        return name

    def text(self) -> str:
        """The whole module."""
        pieces = [renamed(text, *names) for text, names in self._pieces.items()]
        return merged([self.module.text(), *pieces])

    def _product(self, op: Op) -> KernelCode | None:
        """The kernel of a contraction, cut for one worker; None for other operations."""
        if op.name != "dot_general" and op.attributes.get("kind") != "contract":
            return None
        if not all(value.tensor.is_static for value in (*op.operands, *op.results)):
            return None  # cut as usual; its worker computes all of its tiles
        shape = contract.shape_of(op, self.target)
        return None if shape is None else contract.emit(op, self.target, one_tile(shape))

    def _emit(self, op: Op) -> Nest:
        if op.attributes.get("kind") == "columns":
            code = columns.emit(op.regions[0], self.target, op.definition.flops(op))
        else:
            code = self._product(op) or self.emit_nest(op, self.target)
        names = code.symbol, f"nest{len(self._pieces)}"
        _, name = self._pieces.setdefault(code.ir_text, names)
        self.scratch = max(self.scratch, largest(code.scratch_bytes))
        self.notes.update(dict.fromkeys(code.notes))
        return Nest(name, code.tiles, code.sizes)


def viewed(op: Op, views: Sequence[NestView | None]) -> Op:
    """The fusion with operands of the types that lie in memory, cut out inside."""
    if not any(views):
        return op
    body = Builder(op.origin)
    types = [
        value.tensor.with_dims(view.storage) if view else value.type
        for value, view in zip(op.operands, views, strict=True)
    ]
    given = body.arguments(types)
    values = []
    for argument, value, view in zip(given, op.operands, views, strict=True):
        inner = argument
        if view is not None and view.storage != view.sizes:
            zeros, ones = (0,) * len(view.sizes), (1,) * len(view.sizes)
            inner = body(
                "slice", inner, start_indices=zeros, limit_indices=view.sizes, strides=ones
            )
        values.append(body.reshape(inner, value.dims) if view is not None else inner)
    results = inline(body, op.regions[0], values)
    region = body.region(results)
    return make_op(
        "fusion", arguments(types), op.attributes, (region,), op.result_types, op.origin,
        check=False,
    )  # fmt: skip


def one_tile(shape: ProductShape) -> Blocking:
    """The default blocking of a product, as one tile: one worker computes all of a nest."""
    cut = products.default(shape)
    panels = products.row_panels(shape.rows, cut.rows)[0]
    groups = -(-shape.columns // (cut.vectors * shape.lanes))
    return replace(cut, panels=panels, blocks=1, groups=groups)
