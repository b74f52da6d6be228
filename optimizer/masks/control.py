"""Loops and branches that carry tensors whose sizes data decide: a size that changes is carried
beside its tensor."""

from __future__ import annotations

from collections.abc import Sequence

from ...hlo.build import Builder
from ...hlo.graph import Op, Region, Value
from ...hlo.symbols import Dim, SymbolicDim, maximum, symbols_of
from ...hlo.types import TensorType
from .scope import SCALAR, MaskScope, Rule, Unmasked, Whole

Place = tuple[int, int]  # of a size: value and axis


def loop(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> list[Whole]:
    """Sizes that the body leaves alone are those before the loop; others are carried."""
    changing: list[Place] = []
    while True:
        made = _Loop(s, op, xs, changing)
        new = made.changed()
        if not new:
            return made.build(b)
        changing = [*changing, *new]


class _Loop:
    """One attempt: `changing` are the sizes that are carried."""

    def __init__(self, s: MaskScope, op: Op, xs: list[Whole], changing: Sequence[Place]) -> None:
        self.s, self.op, self.changing = s, op, changing
        self.xs = [x if isinstance(x.value.type, TensorType) else Whole(x.value, ()) for x in xs]
        self.names = {place: s.named(self.declared(place)) for place in changing}
        self.bounds = {place: self.bound(place) for place in changing}
        self.dims = [
            tuple(
                SymbolicDim(self.names[k, axis]) if (k, axis) in self.names else dim
                for axis, dim in enumerate(x.dims)
            )
            for k, x in enumerate(self.xs)
        ]
        with s.nested():
            s.bounds.update(zip(self.names.values(), self.bounds.values(), strict=True))
            self.types = [
                s.kind(dims, x.value.element) if isinstance(x.value.type, TensorType)
                else x.value.type
                for dims, x in zip(self.dims, self.xs, strict=True)
            ]  # fmt: skip
        self.parts = [self.region(region) for region in op.regions]

    def declared(self, place: Place) -> Dim:
        k, axis = place
        return self.op.results[k].dims[axis]

    def bound(self, place: Place) -> Dim:
        """What a size that changes never exceeds: what its type says, else what it is at most
        before the loop."""
        k, axis = place
        said = self.s.module.symbols.get(repr(self.declared(place)))
        if said is not None and said.last is not None:
            return said.last
        return self.s.largest(self.xs[k].dims[axis])

    def region(self, region: Region) -> tuple[Builder, list[Whole], list[Value]]:
        """Its builder, results, and the scalars of the sizes that change."""
        s, inner = self.s, Builder(check=False)
        values = inner.arguments([*self.types, *[SCALAR] * len(self.changing)])
        with s.nested():
            for place, scalar in zip(self.changing, values[len(self.types) :], strict=True):
                s.values[self.names[place]] = scalar
                s.bounds[self.names[place]] = self.bounds[place]
            given = [Whole(v, dims) for v, dims in zip(values, self.dims, strict=False)]
            results = s.body(inner, region, given)
            sizes = []
            if len(results) == len(self.xs):  # the body
                for k, axis in self.changing:
                    sizes.append(s.size(inner, results[k].dims[axis]))
                    self.room(results[k].dims[axis], self.bounds[k, axis])
                if not self.differing(results):
                    results = [
                        Whole(s.fit(inner, r.value, kind.dims), r.dims)
                        if isinstance(kind, TensorType)
                        else r
                        for r, kind in zip(results, self.types, strict=True)
                    ]
        return inner, results, sizes

    def room(self, size: Dim, bound: Dim) -> None:
        found = self.s.largest(size)
        rest = bound - found
        if rest != 0 and not (isinstance(rest, int) and rest > 0):
            raise Unmasked(f"a size that its body makes may be {found}, beyond {bound}")

    def differing(self, results: Sequence[Whole]) -> list[Place]:
        """Sizes that the body gives other values."""
        return [
            (k, axis)
            for k, (result, dims) in enumerate(zip(results, self.dims, strict=True))
            for axis, (size, dim) in enumerate(zip(result.dims, dims, strict=True))
            if size != dim and (k, axis) not in self.names
        ]

    def changed(self) -> list[Place]:
        return self.differing(self.parts[1][1])

    def build(self, b: Builder) -> list[Whole]:
        s = self.s
        (test, holds, _), (body, results, sizes) = self.parts
        regions = [
            test.region([r.value for r in holds]),
            body.region([*(r.value for r in results), *sizes]),
        ]
        starts = [
            s.fit(b, x.value, kind.dims) if isinstance(kind, TensorType) else x.value
            for x, kind in zip(self.xs, self.types, strict=True)
        ]
        scalars = [s.size(b, self.xs[k].dims[axis]) for k, axis in self.changing]
        kinds = [*self.types, *[SCALAR] * len(scalars)]
        made = b.op("while", [*starts, *scalars], self.op.attributes, regions, kinds).results
        for place, scalar in zip(self.changing, made[len(starts) :], strict=True):
            s.values[self.names[place]] = scalar
            s.bounds[self.names[place]] = self.bounds[place]
        return [Whole(v, dims) for v, dims in zip(made, self.dims, strict=False)]


def branch(s: MaskScope, b: Builder, op: Op, xs: list[Whole]) -> list[Whole]:
    """Sizes that differ among branches are results beside the tensors."""
    known = set(s.values) | s.given
    parts: list[tuple[Builder, list[Whole]]] = []
    sizes: list[list[list[Value]]] = []  # of each branch, value and axis
    bounds: list[list[list[Dim]]] = []
    for region in op.regions:
        inner = Builder(check=False)
        with s.nested():
            results = s.body(inner, region, [])
            parts.append((inner, results))
            sizes.append([[s.size(inner, dim) for dim in r.dims] for r in results])
            bounds.append([[s.largest(dim) for dim in r.dims] for r in results])
    dims: list[tuple[Dim, ...]] = []
    chosen: list[tuple[int, int, str]] = []
    for k, result in enumerate(op.results):
        own: list[Dim] = []
        for axis, declared in enumerate(result.dims if isinstance(result.type, TensorType) else ()):
            found = {results[k].dims[axis] for _, results in parts}
            one = next(iter(found))
            if len(found) == 1 and known.issuperset(symbols_of(one)):
                own.append(one)
                continue
            name = s.named(declared)
            s.bounds[name] = maximum(*(limits[k][axis] for limits in bounds))
            s.aliases.setdefault(name, SymbolicDim(name))
            chosen.append((k, axis, name))
            own.append(SymbolicDim(name))
        dims.append(tuple(own))
    regions = []
    for (inner, results), scalars in zip(parts, sizes, strict=True):
        values = [
            s.fit(inner, r.value, s.whole(own)) if isinstance(r.value.type, TensorType) else r.value
            for r, own in zip(results, dims, strict=True)
        ]
        regions.append(inner.region([*values, *(scalars[k][axis] for k, axis, _ in chosen)]))
    kinds = list(regions[0].result_types)
    made = b.op(op.name, [x.value for x in xs], op.attributes, regions, kinds).results
    for (_, _, name), scalar in zip(chosen, made[len(op.results) :], strict=True):
        s.values[name] = scalar
    return [Whole(v, own) for v, own in zip(made, dims, strict=False)]


RULES: dict[str, Rule] = {"case": branch, "if": branch, "while": loop}
