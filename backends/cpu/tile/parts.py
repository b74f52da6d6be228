"""Tiles that reach over the end of a dim whose size a call decides, as far as they lie inside.

A tile function pads such tiles: what lies outside is a window's fill, masked where it would count.
Here the same function is written for the parts that lie inside: the dims of tiles that are windows
of an open dim are sizes, `part = min(size, bound - offset)`, whose values the driver computes where
the offset is known. Nests are then kernels of open sizes, nothing is masked or copied, and little
is done where dims are short. A dim of tiles that is no such window, or of which the outside counts,
stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ....hlo.access import IterationKind, access_of
from ....hlo.assumptions import Assumptions
from ....hlo.deciding import Decisions, current, decided_by, surely_at_most, surely_below
from ....hlo.graph import Dense, Op, Region, Value, arguments, constant_of
from ....hlo.offsets import Offset
from ....hlo.ops import find
from ....hlo.ops.bodies import monoid
from ....hlo.positions import difference, least
from ....hlo.sizes import Symbol
from ....hlo.symbols import Dim, SymbolicDim
from ....hlo.types import TensorType, Type
from .windows import WindowFacts, offsets_of

_WINDOWS = frozenset({"tile_load", "tile_store"})


class PartialDim(NamedTuple):
    """`symbol` is how many of the `size` indices from `offset` on are below `bound`, at least one;
    known where `home` begins."""

    symbol: SymbolicDim
    offset: Offset
    bound: Dim
    size: int
    home: Region


class Parts(NamedTuple):
    """The kernel_call on parts. values, regions: of the kernel's body, what stands for them there;
    parts: with the offsets of either; idle: masks that always hold there; inside: accesses whose
    windows are known to lie inside; decisions: about its sizes."""

    kernel: Op
    parts: tuple[PartialDim, ...]
    values: dict[Value, Value]
    regions: dict[Region, Region]
    idle: frozenset[Op]
    inside: frozenset[Op]
    decisions: Decisions


def parts_of(kernel: Op, windows: WindowFacts) -> Parts | None:
    """The same kernel_call on the parts of its tiles; None where no dim of them has any."""
    decisions = current()
    if decisions is None or len(kernel.regions) != 1:
        return None
    classes = _Classes(windows)
    if not classes.visit(windows.region, (windows.region,)):
        return None
    found = classes.parts(set(decisions.assumptions.symbols))
    return _PartialCopy(kernel, classes, found, decisions).run() if found else None


class _OpenWindowDim(NamedTuple):
    """A dim of a window of an open memory."""

    offset: Offset
    bound: Dim
    size: int


_Node = tuple[Any, int]  # a value and a dim, or an operation and one of its iterations


class _Classes:
    """Dims of tiles that are one: what is computed along one of them is along all."""

    def __init__(self, windows: WindowFacts) -> None:
        self.windows = windows
        self.chains: dict[Region, tuple[Region, ...]] = {}
        self.parents: dict[_Node, _Node] = {}
        self.labels: list[tuple[_Node, _OpenWindowDim, tuple[Region, ...]]] = []
        self.fixed: list[_Node] = []
        self.folds: list[Op] = []  # reductions and products
        self.compares: list[Op] = []

    def root(self, node: _Node) -> _Node:
        parent = self.parents.setdefault(node, node)
        while parent is not self.parents[parent]:
            parent = self.parents[parent]
        self.parents[node] = parent
        return parent

    def join(self, a: _Node, b: _Node) -> None:
        self.parents[self.root(a)] = self.root(b)

    def fix(self, values: Sequence[Value]) -> None:
        self.fixed += [(value, d) for value in values for d in range(value.rank)]

    # What the operations say.

    def visit(self, region: Region, chain: tuple[Region, ...]) -> bool:
        """Look at all operations; False where one is not known well enough."""
        self.chains[region] = chain
        for op in region.ops:
            if op.name in _WINDOWS:
                self.window(op, chain)
            elif op.name == "tile_for":
                (body,) = op.regions
                if not self.visit(body, (*chain, body)):
                    return False
                for number, value in enumerate(op.inputs):
                    others = (body.arguments[number + 1], body.results[number], op.results[number])
                    for d in range(value.rank):
                        for other in others:
                            self.join((value, d), (other, d))
            elif op.name == "constant":
                if not op.attributes["value"].is_splat:
                    self.fix(op.results)
            elif op.regions and op.name != "reduce":
                return False
            elif not op.definition.uniform:  # scalars
                self.operation(op)
        return True

    def window(self, op: Op, chain: tuple[Region, ...]) -> None:
        memory, store = op.operands[0], op.name == "tile_store"
        value = op.operands[1] if store else op.result
        if store and (op.combine or op.masked):
            self.fix([one for one in op.operands[1:] if one.rank])
            return
        for d, (size, bound) in enumerate(zip(value.dims, memory.dims, strict=True)):
            if isinstance(bound, SymbolicDim) and size != 1:
                offset = self.windows.offsets.of(offsets_of(op)[d])
                self.labels.append(((value, d), _OpenWindowDim(offset, bound, size), chain))
            else:
                self.fixed.append((value, d))

    def operation(self, op: Op) -> None:
        access = access_of(op)
        if access is None:
            self.fix([value for value in (*op.operands, *op.results) if value.rank])
            return
        for result in op.results:
            for d in range(result.rank):
                self.join((result, d), (op, d))
        for value, indices in zip(op.operands, access.operands, strict=True):
            for d, index in enumerate(indices):
                same = index.same
                if value.dims[d] == 1:
                    continue
                if same is None:
                    self.fixed += [(value, d), *((op, term.dim) for term in index.terms)]
                    continue
                self.join((value, d), (op, same))
                place = access.iterations[same]
                if place.extent != value.dims[d] or place.kind not in (
                    IterationKind.PARALLEL,
                    IterationKind.REDUCE,
                ):
                    self.fixed.append((value, d))
        if len(access.iterations) > access.rank:
            self.folds.append(op)
        elif op.name == "compare":
            self.compares.append(op)

    # What follows.

    def parts(self, taken: set[str]) -> dict[_Node, PartialDim]:
        """The classes that are parts of tiles, by their roots."""
        closed = {self.root(node) for node in self.fixed}
        seen: dict[_Node, set[_OpenWindowDim]] = {}
        homes: dict[_Node, tuple[Region, ...]] = {}
        for node, label, chain in self.labels:
            root = self.root(node)
            seen.setdefault(root, set()).add(label)
            homes.setdefault(root, chain)
        found: dict[_Node, PartialDim] = {}
        for root, labels in seen.items():
            if root in closed or len(labels) != 1:
                continue
            (label,) = labels
            home = self.windows.decided([label.offset], homes[root])
            low, high = self.windows.offsets.range(label.offset)
            some = surely_at_most(0, low) and surely_at_most(high, label.bound - 1)
            whole = surely_at_most(high + label.size, label.bound)
            never = surely_below(label.bound, label.size)
            if home is None or not some or whole or never:
                continue
            name = next(n for n in _names() if n not in taken)
            taken.add(name)
            found[root] = PartialDim(SymbolicDim(name), *label, home)
        self.masks = {op: self.mask(op, found) for op in self.compares}
        for op in self.folds:
            for root in self.counted(op, found):
                found.pop(root, None)
        return found

    def mask(self, op: Op, found: dict[_Node, PartialDim]) -> _Node | None:
        """The class of which a comparison says what lies inside."""
        position = difference(self.windows.offsets, op)
        if position is None:
            return None
        steps = [(d, step) for d, step in enumerate(position[1]) if step]
        if len(steps) != 1 or steps[0][1] != -1:
            return None
        root = self.root((op.result, steps[0][0]))
        part = found.get(root)
        if part is None or Offset(part.bound - 1).plus(part.offset, -1) != position[0]:
            return None
        return root

    def counted(self, op: Op, found: dict[_Node, PartialDim]) -> Iterator[_Node]:
        """The classes whose outside counts in a fold, as far as it is known."""
        access = access_of(op)
        assert access is not None
        for place in range(access.rank, len(access.iterations)):
            root = self.root((op, place))
            if root in found and not self.neutral(op, root):
                yield root

    def neutral(self, op: Op, root: _Node) -> bool:
        """Whether a fold is the same without what lies outside along a class."""
        if op.name == "dot_general":
            return all(self.holds(value, root, 0) for value in op.operands)
        if op.name != "reduce" or len(op.operands) != 2:
            return False
        name, start = monoid(op.regions[0]), constant_of(op.operands[1])
        if name is None or start is None or op.operands[0].element.is_complex:
            return False
        number = start.splat_value
        twice = find(name).idempotent or name == "add" and number == 0
        return (twice or name == "multiply" and number == 1) and self.holds(
            op.operands[0], root, number
        )

    def holds(self, value: Value, root: _Node, number: Any) -> bool:
        """Whether a tile is that number wherever it lies outside along a class."""
        dense, op = constant_of(value), value.op
        if dense is not None:
            return dense.is_splat and bool(dense.splat_value == number)
        if op is None or not any(self.root((value, d)) == root for d in range(value.rank)):
            return False
        if op.name == "tile_load":
            return float(op.fill) == float(number)
        if op.name == "select":
            if self.implies(op.operands[0], root) and self.holds_all(op.operands[2], number):
                return True
            return all(self.holds(one, root, number) for one in op.operands[1:])
        wider = op.name == "convert" and value.element.is_float and op.operands[0].element.is_float
        moves = op.definition.moves == "whole" and op.name != "reverse"
        return (moves or wider) and self.holds(op.operands[0], root, number)

    def holds_all(self, value: Value, number: Any) -> bool:
        dense = constant_of(value)
        return dense is not None and dense.is_splat and bool(dense.splat_value == number)

    def implies(self, mask: Value, root: _Node) -> bool:
        """Whether a mask holds nowhere outside along a class."""
        if mask.op is None:
            return False
        if mask.op.name == "and":
            return any(self.implies(operand, root) for operand in mask.op.operands)
        if mask.op.name in ("broadcast_in_dim", "reshape"):
            return self.implies(mask.op.operands[0], root)
        return self.masks.get(mask.op) == root


def _names() -> Iterator[str]:
    number = 0
    while True:
        yield f"part{number}"
        number += 1


class _PartialCopy:
    """The kernel's body once more, with sizes for dims that have parts."""

    def __init__(
        self, kernel: Op, classes: _Classes, found: dict[_Node, PartialDim], decisions: Decisions
    ) -> None:
        self.kernel, self.classes, self.found = kernel, classes, found
        symbols = {part.symbol: part for part in found.values()}
        known, own = decisions.assumptions, {repr(s): p.size for s, p in symbols.items()}
        ranges = {name: Symbol(1, size) for name, size in own.items()}
        assumptions = Assumptions({**known.symbols, **ranges}, known.constraints)
        self.decisions = Decisions(assumptions, {**decisions.hints, **own})
        self.values: dict[Value, Value] = {}
        self.regions: dict[Region, Region] = {}
        self.idle: set[Op] = set()
        self.inside: set[Op] = set()

    def run(self) -> Parts:
        kernel = self.kernel
        with decided_by(self.decisions):
            body = self.region(kernel.regions[0])
            new = kernel.with_operands(kernel.operands, [body])
        return Parts(
            new, tuple(self.found.values()), self.values, self.regions, frozenset(self.idle),
            frozenset(self.inside), self.decisions,
        )  # fmt: skip

    def kind(self, value: Value) -> Type:
        if not isinstance(value.type, TensorType) or not value.rank:
            return value.type
        dims = [
            part.symbol if (part := self.found.get(self.classes.root((value, d)))) else size
            for d, size in enumerate(value.dims)
        ]
        return value.tensor.with_dims(dims)

    def region(self, old: Region) -> Region:
        own = arguments([self.kind(argument) for argument in old.arguments])
        self.values.update(zip(old.arguments, own, strict=True))
        ops: list[Op] = []
        for op in old.ops:
            ops += self.op(op)
        new = Region(own, ops, [self.values[value] for value in old.results])
        self.regions[old] = new
        return new

    def op(self, op: Op) -> list[Op]:
        kinds = [self.kind(result) for result in op.results]
        if op.name == "constant" and kinds[0] is not op.result.type:
            return self.constant(op, kinds)
        bodies = [self.region(body) if op.name == "tile_for" else body for body in op.regions]
        attributes = op.attributes
        if op.name == "tile_load":
            attributes = {**attributes, "sizes": kinds[0].dims}  # type: ignore[union-attr]
        operands = [self.values[value] for value in op.operands]
        new = Op(op.definition, operands, attributes, bodies, kinds, op.origin)
        self.values.update(zip(op.results, new.results, strict=True))
        if op.name in _WINDOWS and self.is_inside(op):
            self.inside.add(new)
        if self.is_idle(op):
            self.idle.add(new)
        return [new]

    def constant(self, op: Op, kinds: Sequence[Type]) -> list[Op]:
        """One number in all of a part."""
        scalar = TensorType((), op.result.element)
        dense = Dense.splat(op.attributes["value"].splat_value, scalar)
        number = Op(op.definition, (), {"value": dense}, (), [scalar], op.origin)
        attributes = {"broadcast_dimensions": ()}
        spread = Op(
            find("broadcast_in_dim"), [number.result], attributes, (), kinds, op.origin
        )  # fmt: skip
        self.values[op.result] = spread.result
        return [number, spread]

    def is_inside(self, op: Op) -> bool:
        value = op.operands[1] if op.name == "tile_store" else op.result
        return all(
            self.classes.root((value, d)) in self.found
            or self.classes.windows.sides(op, d) == (False, False)
            for d in range(value.rank)
        )

    def is_idle(self, op: Op) -> bool:
        """Whether a comparison of positions holds in all of the parts."""
        if op not in self.classes.masks:
            return False
        if self.classes.masks[op] in self.found:
            return True
        offsets = self.classes.windows.offsets
        position = difference(offsets, op)
        if position is None:
            return False
        return surely_at_most(0, offsets.range(least(position, op.result.dims))[0])
