"""split-complex: products of complex numbers become products of their real and imaginary parts.

Both parts of a side are one more free dim of it: a single real product forms all four, reads each
side once, and has columns enough where the complex one is matrix times vector. Weights are stored
in parts, and the stored program reads them together again, so that a bundle does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...hlo.build import Builder, build_region
from ...hlo.derivation import derived
from ...hlo.graph import Module, Op, Value, Weight
from ...hlo.ops.contraction import free_dims
from ...hlo.regions import rewritten
from ...hlo.types import real_type
from ...hlo.verify import INLINED, Level
from .encode import used_weights


@dataclass(frozen=True)
class SplitComplex:
    """INLINED -> INLINED: no dot_general has complex results, but for a vector times a matrix that
    no weight is: copying its parts would cost more than the product."""

    name: ClassVar[str] = "split-complex"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        chosen = {op for op in module.walk() if _pays(op)}
        if not chosen:
            return module
        splitter = _Splitter(module)

        def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
            if op not in chosen:
                return False
            with b.at(op.origin):
                operands = [mapping.get(v, v) for v in op.operands]
                mapping[op.result] = splitter.product(b, op, operands)
            return True

        body = rewritten(module.body, {}, change, module.body.arguments)
        changed = module.with_main(body)
        every = {**module.weights, **splitter.made}
        used = used_weights(changed.functions.values())
        return changed.with_weights({name: w for name, w in every.items() if name in used})


def _pays(op: Op) -> bool:
    if op.name != "dot_general" or not op.type.element.is_complex:
        return False
    for side, other in ((op.lhs, "rhs"), (op.rhs, "lhs")):
        vectors = math.prod(getattr(op, other).dims[d] for d in free_dims(op, other)) == 1
        if vectors and not _is_weight(side):
            return False
    return True


def _is_weight(value: Value) -> bool:
    return value.op is not None and value.op.name == "weight"


@dataclass
class _Splitter:
    module: Module
    made: dict[str, Weight] = field(default_factory=dict)

    def product(self, b: Builder, o: Op, operands: Sequence[Value]) -> Value:
        """The complex product, from one of all parts with all parts."""
        attributes: dict[str, Any] = dict(o.attributes)
        sides = []
        for side, value in zip(("lhs", "rhs"), operands, strict=True):
            place = min(free_dims(o, side), default=value.rank)
            for kind in ("batching", "contracting"):
                name = f"{side}_{kind}_dimensions"
                attributes[name] = tuple(d + (d >= place) for d in getattr(o, name))
            sides.append(self.parts(b, o, value, place))
        batch, left = len(o.lhs_batching_dimensions), len(free_dims(o, "lhs"))
        dims, middle = o.type.dims, batch + left
        wide = (*dims[:batch], 2, *dims[batch:middle], 2, *dims[middle:])
        kind = o.type.with_element(real_type(o.type.element)).with_dims(wide)
        every = b.op("dot_general", sides, attributes, types=[kind]).result

        def part(of_left: int, of_right: int) -> Value:
            return _at(b, every, {batch: of_left, middle + 1: of_right})

        real = b("subtract", part(0, 0), part(1, 1))
        return b("complex", real, b("add", part(0, 1), part(1, 0)))

    def parts(self, b: Builder, o: Op, value: Value, place: int) -> Value:
        """Real and imaginary parts along a new dim, in the precision of the result."""
        if not _is_weight(value) or value.element is not o.type.element:
            return _stacked(b, b.convert(value, o.type.element), place)
        assert value.op is not None
        name = value.op.weight
        key = f"{name}|parts({place})"
        if key not in self.made:
            original = self.module.weights[name]
            forward = build_region([original.type], lambda b, x: [_stacked(b, x, place)])
            inverse = build_region(
                [forward.results[0].type],
                lambda b, x: [b("complex", _at(b, x, {place: 0}), _at(b, x, {place: 1}))],
            )
            self.made[key] = derived(key, [original], forward, original.aliases, (name, inverse))
        made = self.made[key]
        return b("weight", type=made.type, weight=made.name)


def _stacked(b: Any, value: Value, place: int) -> Value:
    """[real parts, imaginary parts] along a new dim."""
    dims = (*value.dims[:place], 1, *value.dims[place:])
    parts = [b.reshape(b(name, value), dims) for name in ("real", "imag")]
    return b("concatenate", *parts, dimension=place)


def _at(b: Any, value: Value, places: Mapping[int, int]) -> Value:
    """The slice at one index of each of those dims, without them."""
    first = tuple(places.get(d, 0) for d in range(value.rank))
    limits = tuple(places[d] + 1 if d in places else size for d, size in enumerate(value.dims))
    ones = (1,) * value.rank
    cut = b("slice", value, start_indices=first, limit_indices=limits, strides=ones)
    return b.reshape(cut, [size for d, size in enumerate(value.dims) if d not in places])
