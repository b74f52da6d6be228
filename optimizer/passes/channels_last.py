"""channels-last: convolutions and what stands between them, with features as the innermost dim.

Kernels of convolutions run along output features: every vector is full whatever the size of the
picture, windows are contiguous runs, and strides cost nothing. Layout is no part of a type, so this
is a change of dimension numbers: a value [N, C, spatial...] has a *form*, its transpose
[N, spatial..., C], that elementwise operations, windows, pads and reductions compute on in its
stead. Transposes remain where a program's arguments, results and other operations need the value as
it was; where they would cost more than the convolutions gain, nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...hlo.build import Builder
from ...hlo.deciding import at_hint
from ...hlo.graph import Module, Op, Region, Value, constant_of
from ...hlo.regions import map_bodies, prune, rename
from ...hlo.verify import INLINED, Level
from ..cost.assumed import CONVOLVED_PER_BYTE

_LEAST_FEATURES = 8  # of an output whose vectors are worth the change
_READ_IN_PLACE = 4  # input features of a convolution that reads its input as it lies


@dataclass(frozen=True)
class ChannelsLast:
    """INLINED -> INLINED: transpose(convolution(x)) without the transpose, through the graph."""

    name: ClassVar[str] = "channels-last"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        return module.with_bodies(self.region)

    def region(self, region: Region) -> Region:
        region = map_bodies(region, lambda op, body: self.region(body))
        chosen = {op for op in region.ops if wanted(op)}
        while chosen:
            rewriter = _Rewriter(region, chosen)
            changed = rewriter.run()
            if _pays(chosen, rewriter.moved):
                return changed
            parts = rewriter.parts()
            paying = {op for part, moved in parts if _pays(part, moved) for op in part}
            chosen = paying if paying != chosen else set()
        return region


def _pays(convolutions: Iterable[Op], moved: int) -> bool:
    """Whether convolutions gain more than so many bytes of transposes cost."""
    flops = sum(op.definition.flops(op) for op in convolutions)
    return at_hint(moved) * CONVOLVED_PER_BYTE <= at_hint(flops)


def wanted(op: Op) -> bool:
    """Whether a convolution gives [N, C, spatial...] that would better be [N, spatial..., C]."""
    if op.name != "convolution" or op.type.rank < 3 or op.batch_group_count != 1:
        return False
    if (op.output_batch_dimension, op.output_feature_dimension) != (0, 1):
        return False
    if tuple(op.output_spatial_dimensions) != tuple(range(2, op.type.rank)):
        return False
    features = op.type.dims[1]
    if op.feature_group_count > 1:
        # Groups of one feature run along the groups; others need vectors of their own.
        single = op.rhs.dims[op.kernel_input_feature_dimension] == 1
        features = features if single else features // op.feature_group_count
        if single and features != op.feature_group_count:
            return False
    return op.type.element.is_float and at_hint(features) >= _LEAST_FEATURES


def channels_last(rank: int) -> tuple[int, ...]:
    """The permutation from [N, C, spatial...] to [N, spatial..., C]."""
    return (0, *range(2, rank), 1)


Permutation = tuple[int, ...]


class _Rewriter:
    """Rebuilds a region around the convolutions of `chosen`; `forms` gives for an old value (p,
    transpose(value, p)), `plain` the value itself, whichever exist."""

    def __init__(self, region: Region, chosen: Collection[Op]) -> None:
        self.region, self.chosen = region, chosen
        self.builder = Builder(check=False)
        self.forms: dict[Value, tuple[Permutation, Value]] = {}
        self.plain: dict[Value, Value] = {}
        self.weak: set[Value] = set()  # forms of the user's own transposes
        self.moved = 0  # bytes read and written by transposes that were added
        # Operations that forms connect, as a forest, and the moved bytes of each.
        self.parents: dict[Op, Op] = {}
        self.moved_of: dict[Op, int] = {}

    def run(self) -> Region:
        for op in self.region.ops:
            before = self.moved
            with self.builder.at(op.origin):
                rule = _RULES.get(op.name)
                if rule is None and op.definition.pattern == "elementwise":
                    rule = _elementwise
                if rule is None or not rule(self, op):
                    self.copy(op)
            self.connect(op, self.moved - before)
        results = []
        for value in self.region.results:
            before = self.moved
            results.append(self.value(value))
            if value.op is not None and self.moved > before:
                self.moved_of[value.op] = self.moved_of.get(value.op, 0) + self.moved - before
        return prune(Region(self.region.arguments, self.builder.ops, results))

    def connect(self, op: Op, moved: int) -> None:
        """Notes what an operation moved, and that it stands in one part with those whose forms it
        reads, where it has a form as well or moved what they gave."""
        self.moved_of[op] = self.moved_of.get(op, 0) + moved
        if moved or any(self.formed(value) is not None for value in op.results):
            for value in op.operands:
                if value.op is not None and self.formed(value) is not None:
                    self.parents[self.root(value.op)] = self.root(op)

    def root(self, op: Op) -> Op:
        while (parent := self.parents.get(op, op)) is not op:
            op = parent
        return op

    def parts(self) -> list[tuple[list[Op], int]]:
        """The chosen convolutions that forms connect, and the bytes that each part moved."""
        parts: dict[Op, list[Op]] = {}
        for op in self.region.ops:
            if op in self.chosen:
                parts.setdefault(self.root(op), []).append(op)
        moved = dict.fromkeys(parts, 0)
        for op, bytes in self.moved_of.items():
            root = self.root(op)
            if root in moved:
                moved[root] += bytes
        return [(part, moved[root]) for root, part in parts.items()]

    def copy(self, op: Op) -> None:
        captured = [value for body in op.regions for value in body.captures()]
        mapping = {value: self.value(value) for value in captured}
        nested = [rename(body, mapping) for body in op.regions]
        new = op.with_operands([self.value(value) for value in op.operands], nested)
        self.builder.append(new)
        self.plain.update(zip(op.results, new.results, strict=True))

    def formed(self, value: Value) -> Permutation | None:
        """The order of the form that a value has from a convolution, not from a transpose."""
        return self.forms[value][0] if value in self.forms and value not in self.weak else None

    def value(self, value: Value) -> Value:
        """The value as it was."""
        if value not in self.forms or value in self.plain:
            return self.plain.get(value, value)
        order, form = self.forms[value]
        op = value.op
        if op is not None and op.name == "broadcast_in_dim":  # what is repeated is less to move
            source = self.value(op.operands[0])
            made = self.builder.broadcast(source, value.dims, op.broadcast_dimensions)
        else:
            back = tuple(order.index(d) for d in range(len(order)))
            made = self.move(form, back, value not in self.weak)
        self.plain[value] = made
        return made

    def form(self, value: Value, order: Permutation) -> Value:
        """transpose(value, order)."""
        if value in self.forms and self.forms[value][0] == order:
            return self.forms[value][1]
        dense = constant_of(value)
        type = value.tensor.with_dims([value.dims[d] for d in order])
        if dense is not None and dense.is_splat:
            return self.builder.constant(dense.splat_value, type)
        op = value.op
        if op is not None and op.name == "broadcast_in_dim":
            mapped = [order.index(d) for d in op.broadcast_dimensions]
            source = op.operands[0]
            inner = self.forms[source][0] if source in self.forms else None
            if inner is not None:
                return self.builder.broadcast(
                    self.forms[source][1], type.dims, [mapped[d] for d in inner]
                )
            return self.builder.broadcast(self.value(source), type.dims, mapped)
        made = self.move(self.value(value), order, True)
        if value not in self.forms:
            self.forms[value] = order, made
        return made

    def move(self, value: Value, order: Permutation, added: bool) -> Value:
        """transpose(value, order), a reshape where only dims of one element change places."""
        kept = [d for d in order if value.dims[d] != 1]
        if kept == sorted(kept):
            return self.builder.reshape(value, [value.dims[d] for d in order])
        if added:
            self.moved += 2 * value.tensor.bytes
        return self.builder.transpose(value, order)

    def give(self, op: Op, order: Permutation, form: Value) -> bool:
        """Notes the form of an operation's only result; where it is no change, the value."""
        if order == tuple(range(len(order))):
            self.plain[op.result] = form
        else:
            self.forms[op.result] = order, form
        return True

    def emit(self, op: Op, operands: Sequence[Value], order: Permutation, **changed: Any) -> bool:
        """The operation on forms; its result's type is the old one in that order."""
        types = [
            r.tensor.with_dims([r.dims[d] for d in order]) if r.rank == len(order) else r.type
            for r in op.results
        ]
        attributes = {**op.attributes, **changed}
        new = self.builder.op(op.name, operands, attributes, op.regions, types)
        for old, result in zip(op.results, new.results, strict=True):
            self.forms[old] = order, result
        return True


Rule = Callable[[_Rewriter, Op], bool]


def _convolution(rewriter: _Rewriter, op: Op) -> bool:
    if op not in rewriter.chosen:
        return False
    rank = op.type.rank
    order = channels_last(rank)
    features = op.input_feature_dimension
    dims: Permutation = tuple(range(rank))
    lies = (op.input_batch_dimension, features, *op.input_spatial_dimensions)
    if op.lhs in rewriter.forms:
        dims, image = rewriter.forms[op.lhs]
    elif lies == dims and (op.lhs.dims[features] > _READ_IN_PLACE or op.lhs.element.bits < 32):
        dims, image = order, rewriter.form(op.lhs, order)
    else:
        image = rewriter.value(op.lhs)
    return rewriter.emit(
        op, [image, rewriter.value(op.rhs)], order,
        input_batch_dimension=dims.index(op.input_batch_dimension),
        input_feature_dimension=dims.index(features),
        input_spatial_dimensions=tuple(dims.index(d) for d in op.input_spatial_dimensions),
        output_batch_dimension=0,
        output_feature_dimension=rank - 1,
        output_spatial_dimensions=tuple(range(1, rank - 1)),
    )  # fmt: skip


def _elementwise(rewriter: _Rewriter, op: Op) -> bool:
    if op.regions or op.definition.effects or len(op.results) != 1:
        return False
    dims = op.result.dims
    orders = [rewriter.formed(value) for value in op.operands if value.dims == dims]
    order = next((found for found in orders if found is not None), None)
    if order is None:
        return False
    operands = [
        rewriter.form(value, order) if value.dims == dims else rewriter.value(value)
        for value in op.operands
    ]
    return rewriter.emit(op, operands, order)


def _broadcast_in_dim(rewriter: _Rewriter, op: Op) -> bool:
    """New dims stay behind the dim that they follow: each pixel repeated, as in a nearest resize,
    still has its features side by side."""
    (value,) = op.operands
    order = rewriter.formed(value)
    if order is None:
        return False
    mapped = op.broadcast_dimensions
    groups: list[list[int]] = [[]]
    group_of: dict[int, list[int]] = {}
    for d in range(op.result.rank):
        if d in mapped:
            groups.append([])
            group_of[d] = groups[-1]
        groups[-1].append(d)
    found = (*groups[0], *(d for own in order for d in group_of[mapped[own]]))
    dims = [op.result.dims[d] for d in found]
    kept = [found.index(mapped[d]) for d in order]
    return rewriter.give(
        op, found, rewriter.builder.broadcast(rewriter.forms[value][1], dims, kept)
    )


def _reduce_window(rewriter: _Rewriter, op: Op) -> bool:
    count = len(op.operands) // 2
    order = rewriter.formed(op.operands[0])
    if order is None or op.regions[0].captures():
        return False
    operands = [rewriter.form(value, order) for value in op.operands[:count]]
    operands += [rewriter.value(value) for value in op.operands[count:]]
    names = (
        "window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding",
    )  # fmt: skip
    changed = {
        name: tuple(op.attributes[name][d] for d in order) for name in names if getattr(op, name)
    }
    return rewriter.emit(op, operands, order, **changed)


def _pad(rewriter: _Rewriter, op: Op) -> bool:
    return _by_dim(rewriter, op, "edge_padding_low", "edge_padding_high", "interior_padding")


def _slice(rewriter: _Rewriter, op: Op) -> bool:
    return _by_dim(rewriter, op, "start_indices", "limit_indices", "strides")


def _by_dim(rewriter: _Rewriter, op: Op, *names: str) -> bool:
    """Operations with one attribute per dim."""
    order = rewriter.formed(op.operands[0])
    if order is None:
        return False
    operands = [rewriter.form(op.operands[0], order)]
    operands += [rewriter.value(value) for value in op.operands[1:]]
    changed = {name: tuple(op.attributes[name][d] for d in order) for name in names}
    return rewriter.emit(op, operands, order, **changed)


def _concatenate(rewriter: _Rewriter, op: Op) -> bool:
    orders = [rewriter.formed(value) for value in op.operands]
    order = next((found for found in orders if found is not None), None)
    if order is None:
        return False
    operands = [rewriter.form(value, order) for value in op.operands]
    return rewriter.emit(op, operands, order, dimension=order.index(op.dimension))


def _reduce(rewriter: _Rewriter, op: Op) -> bool:
    count = len(op.operands) // 2
    order = rewriter.formed(op.operands[0])
    if order is None or op.regions[0].captures():
        return False
    operands = [rewriter.form(value, order) for value in op.operands[:count]]
    operands += [rewriter.value(value) for value in op.operands[count:]]
    dimensions = tuple(order.index(d) for d in op.dimensions)
    left = [d for d in order if d not in op.dimensions]
    ranks = sorted(left)
    kept = tuple(ranks.index(d) for d in left)
    rewriter.emit(op, operands, kept, dimensions=dimensions)
    if kept == tuple(range(len(kept))):
        for result in op.results:
            rewriter.plain[result] = rewriter.forms.pop(result)[1]
    return True


def _transpose(rewriter: _Rewriter, op: Op) -> bool:
    (value,) = op.operands
    if value in rewriter.forms:
        order, form = rewriter.forms[value]
        moved = tuple(order.index(d) for d in op.permutation)
        rewriter.plain[op.result] = rewriter.move(form, moved, False)
        return True
    back = tuple(op.permutation.index(d) for d in range(op.result.rank))
    if op.result.rank < 3 or back != channels_last(op.result.rank):
        return False
    rewriter.forms[op.result] = back, rewriter.value(value)
    rewriter.weak.add(op.result)
    return True


def _reshape(rewriter: _Rewriter, op: Op) -> bool:
    (value,) = op.operands
    if value not in rewriter.forms:
        return False
    order, form = rewriter.forms[value]
    kept = [d for d in order if value.dims[d] != 1]
    if kept == sorted(kept):
        rewriter.plain[op.result] = rewriter.builder.reshape(form, op.result.dims)
        return True
    found = reordered(value.dims, op.result.dims, order)
    if found is None:
        return False
    dims = [op.result.dims[d] for d in found]
    if value in rewriter.weak:
        rewriter.weak.add(op.result)
    return rewriter.give(op, found, rewriter.builder.reshape(form, dims))


def _dot_general(rewriter: _Rewriter, op: Op) -> bool:
    """A product of the forms of its operands, where their other dims keep their order."""
    if rewriter.formed(op.lhs) is None and rewriter.formed(op.rhs) is None:
        return False
    operands: list[Value] = []
    changed: dict[str, tuple[int, ...]] = {}
    for side, value in (("lhs", op.lhs), ("rhs", op.rhs)):
        order = rewriter.formed(value)
        if order is None:
            operands.append(rewriter.value(value))
            continue
        named = f"{side}_batching_dimensions", f"{side}_contracting_dimensions"
        inner = {d for name in named for d in op.attributes[name]}
        free = [d for d in order if d not in inner]
        if free != sorted(free):
            return False
        for name in named:
            changed[name] = tuple(order.index(d) for d in op.attributes[name])
        operands.append(rewriter.forms[value][1])
    made = rewriter.builder.op(op.name, operands, {**op.attributes, **changed}, (), [op.type])
    rewriter.plain[op.result] = made.result
    return True


def reordered(
    before: Sequence[int], after: Sequence[int], order: Permutation
) -> Permutation | None:
    """p with transpose(reshape(x, after), p) = reshape(transpose(x, order), ...), if there is one:
    dims that are merged or split together must stand together, in their order."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        left, right = [i] if i < len(before) else [], [j] if j < len(after) else []
        i, j = i + len(left), j + len(right)
        while math.prod(before[d] for d in left) != math.prod(after[d] for d in right):
            if math.prod(before[d] for d in left) < math.prod(after[d] for d in right):
                left.append(i)
                i += 1
            else:
                right.append(j)
                j += 1
        groups.append((left, right))
    places = [d for d in order if before[d] != 1]
    found: list[tuple[int, list[int]]] = []
    for left, right in groups:
        meaningful = [d for d in left if before[d] != 1]
        start = places.index(meaningful[0]) if meaningful else -1
        if meaningful and places[start : start + len(meaningful)] != meaningful:
            return None
        found.append((start, right))
    return tuple(d for _, right in sorted(found, key=lambda one: one[0]) for d in right)


_RULES: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "convolution": _convolution,
    "dot_general": _dot_general,
    "pad": _pad,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "reshape": _reshape,
    "slice": _slice,
    "transpose": _transpose,
}
