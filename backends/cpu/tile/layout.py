"""Products whose right side lies transposed, computed the other way round.

    s = a b^T, f(s), reduce(s, rows), s c   ->   s' = b a^T, f(s'), reduce(s', columns), s'^T c

A micro-kernel reads its left side element by element, so that side may lie either way; the right
side must be brought into panels. Where `a` has no more rows than `b`, that is less to bring for s';
and what is reduced along rows of s runs in whole vectors along columns of s'. It is done where all
uses of s have such a form, so that nothing is ever transposed back.
"""

from __future__ import annotations

from ....hlo.graph import Dense, Op, Region, Value, arguments, constant_of
from ....hlo.ops import find
from ....hlo.regions import rename
from ..codegen import Target


def swap_operands(region: Region, target: Target) -> Region:
    """A copy of the region, and of those inside, with products' operands swapped where it pays."""
    return _swapped(copied(region, {}), target)


def copied(region: Region, outer: dict[Value, Value]) -> Region:
    """The same region on arguments of its own; `outer` renames what it captures."""
    mapping = dict(outer)
    own = arguments(region.argument_types)
    mapping.update(zip(region.arguments, own, strict=True))
    ops: list[Op] = []
    for op in region.ops:
        bodies = [copied(body, mapping) for body in op.regions]
        operands = [mapping.get(value, value) for value in op.operands]
        new = Op(op.definition, operands, op.attributes, bodies, op.result_types, op.origin)
        mapping.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Region(own, ops, [mapping.get(value, value) for value in region.results])


def _swapped(region: Region, target: Target) -> Region:
    mapping: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in region.ops:
        bodies = [_swapped(rename(body, mapping), target) for body in op.regions]
        new = op.with_operands([mapping.get(v, v) for v in op.operands], bodies)
        if new is not op:
            mapping.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    if ops != list(region.ops):
        results = [mapping.get(value, value) for value in region.results]
        region = Region(region.arguments, ops, results)
    while True:
        fitting = (_Swap(region, op) for op in region.ops if _pays(op, target))
        swap = next((swap for swap in fitting if swap.possible()), None)
        if swap is None:
            return hoisted(region)
        region = swap.apply()


def hoisted(region: Region) -> Region:
    """The region with transposes of what a loop does not change in front of the loop."""
    ops: list[Op] = []
    mapping: dict[Value, Value] = {}
    for op in region.ops:
        bodies = []
        for body in op.regions:
            fixed: list[Op] = []
            if op.definition.loops:
                inner = set(body.arguments).union(*(set(one.results) for one in body.ops))
                fixed = [
                    one
                    for one in body.ops
                    if one.name == "transpose" and one.operands[0] not in inner
                ]
            ops += [one.with_operands([mapping.get(v, v) for v in one.operands]) for one in fixed]
            for one, new in zip(fixed, ops[len(ops) - len(fixed) :], strict=True):
                mapping[one.result] = new.result
            rest = [one for one in body.ops if one not in fixed]
            bodies.append(rename(Region(body.arguments, rest, body.results), mapping))
        new = op.with_operands([mapping.get(v, v) for v in op.operands], bodies)
        if new is not op:
            mapping.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Region(region.arguments, ops, [mapping.get(v, v) for v in region.results])


def _pays(op: Op, target: Target) -> bool:
    if op.name != "dot_general":
        return False
    left, right = op.operands
    if left.rank != 2 or right.rank != 2 or op.lhs_batching_dimensions:
        return False
    if (*op.lhs_contracting_dimensions, *op.rhs_contracting_dimensions) != (1, 1):
        return False
    rows, columns = op.type.dims
    lanes = target.vector_bits // 32
    whole = rows % lanes == 0 or rows >= 4 * lanes
    return op.type.element.is_float and whole and rows <= columns


class _Swap:
    """One product of a region and all that is computed from it."""

    def __init__(self, region: Region, product: Op) -> None:
        self.region, self.product = region, product
        self.dims = product.type.dims
        self.tiles: set[Value] = {product.result}  # what will be transposed
        self.users: set[Op] = set()
        self.ops: list[Op] = []
        self.new: dict[Value, Value] = {}  # the transposed tiles
        self.kept: dict[Value, Value] = {}  # what stands for other values

    def possible(self) -> bool:
        """Whether all uses can take the transposed tile; finds what is transposed with it."""
        if self.dims[0] == self.dims[1] == 1:
            return False
        consumed = False
        for op in self.region.ops:
            touched = [value for value in op.operands if value in self.tiles]
            if not touched:
                if any(v in self.tiles for body in op.regions for v in body.captures()):
                    return False
                continue
            if _elementwise(op) and op.result.dims == self.dims:
                if not all(self._turnable(value) for value in op.operands):
                    return False
                self.tiles.add(op.result)
            elif _reduction(op) or _left_of(op, self.tiles):
                consumed = True
            else:
                return False
            self.users.add(op)
        return consumed and not any(value in self.tiles for value in self.region.results)

    def _turnable(self, value: Value) -> bool:
        """Whether the transposed form of an operand costs nothing."""
        if value in self.tiles or value.rank == 0:
            return True
        dense = constant_of(value)
        if dense is not None:
            return dense.is_splat
        op = value.op
        if op is None or op not in self.region.ops or value.dims != self.dims:
            return False
        if op.name == "broadcast_in_dim":
            return sum(size != 1 for size in op.operands[0].dims) <= 1
        if op.name == "iota":
            return True
        return _elementwise(op) and all(self._turnable(operand) for operand in op.operands)

    def apply(self) -> Region:
        kept = self.kept
        for op in self.region.ops:
            if op is self.product:
                self._swapped_product(op)
            elif op in self.users:
                if op.results[0] in self.tiles:
                    self._turn(op.results[0])
                    continue
                operands = [kept.get(value, value) for value in op.operands]
                operands[0] = self.new[op.operands[0]]
                new = Op(
                    op.definition, operands, _flipped(op), op.regions, op.result_types, op.origin
                )
                self.ops.append(new)
                kept.update(zip(op.results, new.results, strict=True))
            else:
                bodies = [rename(body, kept) for body in op.regions]
                new = op.with_operands([kept.get(v, v) for v in op.operands], bodies)
                if new is not op:
                    kept.update(zip(op.results, new.results, strict=True))
                self.ops.append(new)
        results = [kept.get(value, value) for value in self.region.results]
        return Region(self.region.arguments, self.ops, results)

    def _swapped_product(self, op: Op) -> None:
        left, right = (self.kept.get(value, value) for value in op.operands)
        flip = left.tensor.with_dims(left.dims[::-1])
        columns = Op(
            find("transpose"), [left], {"permutation": (1, 0)}, (), [flip], op.origin
        )  # fmt: skip
        attributes = {**op.attributes, "rhs_contracting_dimensions": (0,)}
        kind = op.type.with_dims(self.dims[::-1])
        new = Op(op.definition, [right, columns.result], attributes, (), [kind], op.origin)
        self.ops += [columns, new]
        self.new[op.result] = new.result

    def _turn(self, value: Value) -> Value:
        """The transposed form of a tile or of an operand of one."""
        found = self.new.get(value)
        if found is not None or value.rank == 0:
            return found or self.kept.get(value, value)
        op = value.op
        assert op is not None
        kind = value.tensor.with_dims(value.dims[::-1])
        attributes, operands = dict(op.attributes), []
        if op.name == "constant":
            attributes["value"] = Dense.splat(op.attributes["value"].splat_value, kind)
        elif op.name == "iota":
            attributes["iota_dimension"] = 1 - op.iota_dimension
        elif op.name == "broadcast_in_dim":
            operands, attributes["broadcast_dimensions"] = self._spread(op)
        else:
            operands = [self._turn(operand) for operand in op.operands]
        new = Op(op.definition, operands, attributes, op.regions, [kind], op.origin)
        self.ops.append(new)
        self.new[value] = new.result
        return new.result

    def _spread(self, op: Op) -> tuple[list[Value], tuple[int, ...]]:
        """The operand of a broadcast without dims of size 1, and where its dims come to lie."""
        source = self.kept.get(op.operands[0], op.operands[0])
        places = zip(op.broadcast_dimensions, source.dims, strict=True)
        mapped = tuple(1 - place for place, size in places if size != 1)
        dims = tuple(size for size in source.dims if size != 1)
        if dims != source.dims:
            kind = source.tensor.with_dims(dims)
            reshape = Op(find("reshape"), [source], {}, (), [kind], op.origin)
            self.ops.append(reshape)
            source = reshape.result
        return [source], mapped


def _elementwise(op: Op) -> bool:
    return op.definition.pattern == "elementwise" and len(op.results) == 1 and not op.regions


def _reduction(op: Op) -> bool:
    """A reduction of one tile over rows or over columns."""
    return op.name == "reduce" and len(op.results) == 1 and len(op.dimensions) == 1


def _left_of(op: Op, tiles: set[Value]) -> bool:
    """A product that has a tile as its left side only."""
    return (
        op.name == "dot_general"
        and op.operands[0] in tiles
        and op.operands[1] not in tiles
        and not op.lhs_batching_dimensions
        and len(op.lhs_contracting_dimensions) == 1
    )


def _flipped(op: Op) -> dict[str, object]:
    """The attributes of a reduction or product of a transposed tile."""
    key = "dimensions" if op.name == "reduce" else "lhs_contracting_dimensions"
    return {**op.attributes, key: tuple(1 - d for d in op.attributes[key])}
