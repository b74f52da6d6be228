"""mask-bounded: a dimension of a run-time size becomes a whole one, with the size beside it.

Elements behind the size hold anything; reductions and products over the dimension see their
neutral element there instead. So programs with `set_dimension_size` run where sizes are fixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from ...hlo.build import Builder
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.ops import bodies
from ...hlo.symbols import SymbolicDim
from ...hlo.types import I32, TensorType
from ...hlo.verify import HLO, INLINED, Level
from ..licence import BITWISE, Ledger
from ..rules.reductions import neutral
from .inline import Inline

NOTE = (
    "sizes that change at run time are masks over whole dimensions: elements behind a size are "
    "computed too, and a size out of bounds is the nearest one within"
)


class _Whole(NamedTuple):
    """A tensor of fixed dimensions, and the sizes of those that are not all in use."""

    value: Value
    sizes: Mapping[int, Value]


@dataclass(frozen=True)
class MaskBounded:
    """HLO -> INLINED where `set_dimension_size` stands in the program; else the same module.

    Operations that it has no mask for stay as they are, with their symbolic dimensions.
    """

    name: ClassVar[str] = "mask-bounded"
    takes: ClassVar[Level] = HLO
    gives: ClassVar[Level] = INLINED
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    def __call__(self, module: Module) -> Module:
        if not any(op.name == "set_dimension_size" for op in module.walk()):
            return module
        inlined = Inline(self.ledger)(module)
        body = _Masker(self.ledger).region(inlined.body)
        return module if body is None else inlined.with_main(body).with_notes(NOTE)


def _is_free(value: Value) -> bool:
    return isinstance(value.type, TensorType) and not value.type.is_static


class _Masker:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.whole: dict[Value, _Whole] = {}
        self.mapping: dict[Value, Value] = {}

    def region(self, region: Region) -> Region | None:
        """The region with masks; None where an operation has none."""
        b = Builder(check=False)
        for op in region.ops:
            if not any(map(_is_free, (*op.operands, *op.results))):
                if any(value in self.whole for body in op.regions for value in body.captures()):
                    return None
                new = op.with_operands([self.mapping.get(v, v) for v in op.operands])
                if new is not op and any(body.captures() for body in op.regions):
                    return None
                self.mapping.update(zip(op.results, new.results, strict=True))
                b.append(new)
                continue
            rule = _RULES.get(op.name)
            if rule is None and op.definition.pattern == "elementwise" and not op.regions:
                rule = _elementwise
            with b.at(op.origin):
                made = rule(b, op, [self.find(v) for v in op.operands]) if rule else None
            if made is None:
                return None
            self.ledger.record("mask-bounded", BITWISE, op)
            if made.sizes:
                self.whole[op.result] = made
            else:
                self.mapping[op.result] = made.value
        if any(value in self.whole for value in region.results):
            return None
        results = [self.mapping.get(value, value) for value in region.results]
        return Region(region.arguments, b.ops, results)

    def find(self, value: Value) -> _Whole:
        return self.whole.get(value) or _Whole(self.mapping.get(value, value), {})


def _inside(b: Builder, x: _Whole, dims: Sequence[int]) -> Value | None:
    """Where all of the dims are within their sizes; None if they are all in use."""
    mask: Value | None = None
    shape = x.value.dims
    for d in dims:
        if d in x.sizes:
            kind = TensorType((shape[d],), I32)
            places = b("iota", type=kind, iota_dimension=0)
            line = b.compare("LT", places, b.broadcast(x.sizes[d], kind.dims, ()))
            spread = b.broadcast(line, shape, (d,))
            mask = spread if mask is None else b("and", mask, spread)
    return mask


def _masked(b: Builder, x: _Whole, dims: Sequence[int], other: Value) -> Value:
    """x with the scalar `other` behind the sizes of the dims."""
    mask = _inside(b, x, dims)
    if mask is None:
        return x.value
    return b("select", mask, x.value, b.broadcast(other, x.value.dims, ()))


def _set_size(b: Builder, op: Op, operands: list[_Whole]) -> _Whole | None:
    """A size out of bounds is the nearest one that is not."""
    x, size = operands
    if not x.value.tensor.is_static:
        return None
    last = b.constant(x.value.dims[op.dimension], size.value.tensor)
    within = b("clamp", b.constant(0, last.tensor), size.value, last)
    return _Whole(x.value, {**x.sizes, op.dimension: within})


def _get_size(b: Builder, op: Op, operands: list[_Whole]) -> _Whole | None:
    (x,) = operands
    if op.dimension in x.sizes:
        return _Whole(x.sizes[op.dimension], {})
    return _Whole(b.constant(x.value.dims[op.dimension], op.type), {})


def _elementwise(b: Builder, op: Op, operands: list[_Whole]) -> _Whole | None:
    tensors = [x for x in operands if x.value.rank]
    first = tensors[0]
    same = all(x.value.dims == first.value.dims and x.sizes == first.sizes for x in tensors)
    if not same or not first.value.tensor.is_static:
        return None  # sizes that may differ are for the interpreter to compare
    kind = op.type.with_dims(first.value.dims)
    made = b.op(op.name, [x.value for x in operands], op.attributes, (), [kind])
    return _Whole(made.result, first.sizes)


def _transpose(b: Builder, op: Op, operands: list[_Whole]) -> _Whole | None:
    (x,) = operands
    order = op.permutation
    sizes = {place: x.sizes[d] for place, d in enumerate(order) if d in x.sizes}
    return _Whole(b.transpose(x.value, order), sizes)


def _broadcast(b: Builder, op: Op, operands: list[_Whole]) -> _Whole | None:
    """Dimensions of a run-time size are the operand's; the others are fixed."""
    (x,) = operands
    mapped = op.broadcast_dimensions
    dims: list[Any] = list(op.type.dims)
    sizes = {}
    for d, place in enumerate(mapped):
        if d in x.sizes:
            dims[place], sizes[place] = x.value.dims[d], x.sizes[d]
    if any(isinstance(dim, SymbolicDim) for dim in dims):
        return None
    return _Whole(b.broadcast(x.value, dims, mapped), sizes)


def _reduce(b: Builder, op: Op, operands: list[_Whole]) -> _Whole | None:
    """Behind the sizes stands the monoid's neutral element; other bodies have none."""
    name = bodies.monoid(op.regions[0])
    if len(operands) != 2 or name is None:
        return None
    x, initial = operands
    scalar = TensorType((), x.value.element)
    if not (scalar.element.is_float or scalar.element.is_integer):
        return None
    value = _masked(b, x, op.dimensions, b.constant(neutral(name, scalar.element), scalar))
    kept = [d for d in range(x.value.rank) if d not in op.dimensions]
    sizes = {place: x.sizes[d] for place, d in enumerate(kept) if d in x.sizes}
    kind = op.type.with_dims(x.value.dims[d] for d in kept)
    made = b.op("reduce", [value, initial.value], op.attributes, op.regions, [kind])
    return _Whole(made.result, sizes)


def _dot(b: Builder, op: Op, operands: list[_Whole]) -> _Whole | None:
    """Both sides are zero behind the sizes of what is summed over."""
    left, right = operands
    facts = op.attributes
    summed, batched = (
        list(zip(facts.get(f"lhs_{kind}", ()), facts.get(f"rhs_{kind}", ()), strict=True))
        for kind in ("contracting_dimensions", "batching_dimensions")
    )
    pairs = [*summed, *batched]
    if any(left.sizes.get(d) is not right.sizes.get(e) for d, e in pairs):
        return None  # sizes that may differ are for the interpreter to compare
    zero = b.constant(0, TensorType((), left.value.element))
    other = b.constant(0, TensorType((), right.value.element))
    values = [
        _masked(b, left, [d for d, _ in summed], zero),
        _masked(b, right, [d for _, d in summed], other),
    ]
    used = {d for d, _ in pairs}, {d for _, d in pairs}
    places = [(left, d) for d, _ in batched]
    for x, gone in zip(operands, used, strict=True):
        places += [(x, d) for d in range(x.value.rank) if d not in gone]
    sizes = {n: x.sizes[d] for n, (x, d) in enumerate(places) if d in x.sizes}
    kind = op.type.with_dims(x.value.dims[d] for x, d in places)
    made = b.op("dot_general", values, op.attributes, (), [kind])
    return _Whole(made.result, sizes)


_RULES = {
    "set_dimension_size": _set_size,
    "get_dimension_size": _get_size,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "reduce": _reduce,
    "dot_general": _dot,
}
