"""Random StableHLO programs of many operations and types, with inputs.

`program(chance)` writes one operation after another; every value stays usable. Shapes are small, so
that edges are common: empty and single dims, windows that hang over, indices outside.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from girih.hlo.build import Builder, build_region
from girih.hlo.graph import Function, Module, Value
from girih.hlo.types import BF16, C64, F16, F32, F64, I1, I32, UI8, UI32, UI64, TensorType

from .generator_parts import COMMON, LARGEST, Arrays, Writer, numbers


class Programmer(Writer):
    """Writes one program."""

    def step(self) -> None:
        """One more operation, if the values at hand allow the family that was drawn."""
        made = getattr(self, self.chance.choice(STEPS))()
        for value in made if isinstance(made, (list, tuple)) else [made]:
            if value is not None and value.tensor.size <= LARGEST:
                self.values.append(value)

    # Reductions.

    def monoid(self, element: Any) -> tuple[str, Any]:
        """An operation and its neutral element."""
        if element.is_bool:
            return self.chance.choice((("and", True), ("or", False)))
        if element.is_complex:
            return "add", 0
        name = self.chance.choice(("add", "maximum", "minimum", "multiply"))
        if name in ("add", "multiply"):
            return name, int(name == "multiply")
        if element.is_float:
            return name, -np.inf if name == "maximum" else np.inf
        limits = np.iinfo(element.dtype)
        return name, limits.min if name == "maximum" else limits.max

    def reduce(self) -> Value:
        x = self.one_of()
        name, neutral = self.monoid(x.element)
        initial = self.b.constant(neutral, TensorType((), x.element))
        return self.b.reduce(name, x, initial, self.subset(x.rank))

    def arg_reduce(self) -> Sequence[Value] | None:
        x = self.one_of("float int uint", rank=1, full=True)
        d = self.chance.randrange(x.rank)
        places = self.b("iota", type=x.tensor.with_element(I32), iota_dimension=d)
        scalars = [TensorType((), e) for e in (x.element, I32, x.element, I32)]

        def body(b: Builder, x: Value, i: Value, y: Value, j: Value) -> Sequence[Value]:
            ahead = b("or", b.compare("GT", x, y), b.compare("NE", x, x))
            tie = b("and", b.compare("EQ", x, y), b.compare("LT", i, j))
            first = b("or", ahead, tie)
            return [b("select", first, x, y), b("select", first, i, j)]

        lowest = -np.inf if x.element.is_float else np.iinfo(x.element.dtype).min
        starts = [self.b.constant(lowest, scalars[0]), self.b.constant(0, scalars[1])]
        region = build_region(scalars, body)
        return self.b.op("reduce", [x, places, *starts], {"dimensions": (d,)}, [region]).results

    def windows(self, x: Value) -> dict[str, Any]:
        """Random windows over all dims of x."""
        sizes = tuple(self.chance.randint(1, 3) for _ in x.dims)
        return {
            "window_dimensions": sizes,
            "window_strides": tuple(self.chance.choice((1, 1, 2)) for _ in x.dims),
            "padding": tuple((self.chance.choice((0, 0, 1)), self.chance.choice((0, 1, 2)))
                             for _ in x.dims),
        }  # fmt: skip

    def reduce_window(self) -> Value | None:
        x = self.one_of(rank=1)
        name, neutral = self.monoid(x.element)
        facts = self.windows(x)
        facts["window_dilations"] = tuple(self.chance.choice((1, 1, 2)) for _ in x.dims)
        facts["base_dilations"] = tuple(self.chance.choice((1, 1, 1, 2)) for _ in x.dims)
        scalar = TensorType((), x.element)
        region = build_region([scalar, scalar], lambda b, x, y: [b(name, x, y)])
        return self.b("reduce_window", x, self.b.constant(neutral, scalar), regions=(region,),
                      **facts)  # fmt: skip

    def select_and_scatter(self) -> Value | None:
        x = self.one_of("float int", rank=1, full=True)
        facts = self.windows(x)
        facts["padding"] = ((0, 0),) * x.rank
        if any(w > d for w, d in zip(facts["window_dimensions"], x.dims, strict=True)):
            return None
        dims = tuple(
            (d - w) // s + 1
            for d, w, s in zip(
                x.dims, facts["window_dimensions"], facts["window_strides"], strict=True
            )
        )
        scalar = TensorType((), x.element)
        pick = build_region([scalar, scalar], lambda b, x, y: [b.compare("GE", x, y)])
        add = build_region([scalar, scalar], lambda b, x, y: [b("add", x, y)])
        source = self.constant(TensorType(dims, x.element))
        zero = self.b.constant(0, scalar)
        return self.b("select_and_scatter", x, source, zero, regions=(pick, add), **facts)

    def sort(self) -> Sequence[Value]:
        x = self.one_of("float int uint", rank=1)
        other = self.constant(x.tensor.with_element(self.chance.choice(self.elements)))
        scalars = [TensorType((), e) for e in (x.element,) * 2 + (other.element,) * 2]
        kind = "TOTALORDER" if x.element.is_float else "NOTYPE"
        direction = self.chance.choice(("LT", "GT"))

        def before(b: Builder, x: Value, y: Value, *rest: Value) -> Sequence[Value]:
            return [b("compare", x, y, comparison_direction=direction, compare_type=kind)]

        facts = {"dimension": self.chance.randrange(x.rank), "is_stable": True}
        return self.b.op("sort", [x, other], facts, [build_region(scalars, before)]).results

    def top_k(self) -> Sequence[Value]:
        x = self.one_of("float int uint", rank=1)
        return self.b.op("chlo.top_k", [x], {"k": self.chance.randint(0, x.dims[-1])}).results

    # Products.

    def dot(self) -> Value | None:
        x = self.one_of("float int uint complex", rank=1)
        order = list(range(x.rank))
        self.chance.shuffle(order)
        cut = self.chance.randint(0, min(2, x.rank))
        batch, contracted = order[: self.chance.randint(0, cut)], order[cut:][:2]
        dims = [x.dims[d] for d in (*batch, *contracted)] + list(
            self.dims(self.chance.randint(0, 1))
        )
        if math.prod(d for i, d in enumerate(x.dims) if i not in contracted) * 7 > LARGEST:
            return None
        y = self.constant(TensorType(dims, x.element))
        return self.b(
            "dot_general", x, y, lhs_batching_dimensions=tuple(batch),
            rhs_batching_dimensions=tuple(range(len(batch))),
            lhs_contracting_dimensions=tuple(contracted),
            rhs_contracting_dimensions=tuple(range(len(batch), len(batch) + len(contracted))),
        )  # fmt: skip

    def convolution(self) -> Value | None:
        element = self.chance.choice((F32, F32, F64, F16, BF16, I32, C64))
        spatial = self.chance.randint(1, 2)
        groups = self.chance.choice((1, 1, 1, 2))
        per_batch = self.chance.choice((1, 1, 2)) if groups == 1 else 1
        n, c, k = (self.chance.randint(1, 3) for _ in range(3))
        left = [n * per_batch, c * groups, *(self.chance.randint(1, 6) for _ in range(spatial))]
        right = [k * groups * per_batch, c, *(self.chance.randint(1, 3) for _ in range(spatial))]
        orders = []
        for _ in range(3):
            order = list(range(spatial + 2))
            self.chance.shuffle(order)
            orders.append(order)  # order[i]: where (batch, feature, *spatial)[i] stands

        def placed(dims: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
            result = [0] * len(dims)
            for size, place in zip(dims, order, strict=True):
                result[place] = size
            return tuple(result)

        operands = [self.constant(TensorType(placed(d, o), element))
                    for d, o in zip((left, right), orders, strict=False)]  # fmt: skip
        data, kernel, result = orders
        facts = {
            "input_batch_dimension": data[0], "input_feature_dimension": data[1],
            "input_spatial_dimensions": tuple(data[2:]),
            "kernel_output_feature_dimension": kernel[0],
            "kernel_input_feature_dimension": kernel[1],
            "kernel_spatial_dimensions": tuple(kernel[2:]),
            "output_batch_dimension": result[0], "output_feature_dimension": result[1],
            "output_spatial_dimensions": tuple(result[2:]),
            "window_strides": tuple(self.chance.choice((1, 1, 2)) for _ in range(spatial)),
            "padding": tuple((self.chance.choice((0, 1)), self.chance.choice((0, 1, 2)))
                             for _ in range(spatial)),
            "lhs_dilation": tuple(self.chance.choice((1, 1, 2)) for _ in range(spatial)),
            "rhs_dilation": tuple(self.chance.choice((1, 1, 2)) for _ in range(spatial)),
            "window_reversal": tuple(self.chance.random() < 0.2 for _ in range(spatial)),
            "feature_group_count": groups, "batch_group_count": per_batch,
        }  # fmt: skip
        return self.b.op("convolution", operands, facts).result

    def fft(self) -> Value | None:
        x = self.one_of("complex", rank=1, full=True)
        count = self.chance.randint(1, min(2, x.rank))
        kind = self.chance.choice(("FFT", "IFFT"))
        return self.b("fft", x, fft_type=kind, fft_length=tuple(x.dims[x.rank - count :]))

    def batch_norm(self) -> Value | None:
        x = self.one_of("float", rank=1)
        if x.element not in (F32, F64):
            return None
        d = self.chance.randrange(x.rank)
        line = TensorType((x.dims[d],), x.element)
        facts = [self.constant(line) for _ in range(3)]
        variance = self.b("abs", self.constant(line))
        return self.b(
            "batch_norm_inference", x, *facts, variance, epsilon=0.5, feature_index=d
        )  # fmt: skip

    def random_bits(self) -> Value:
        state = self.b.constant(np.array([self.chance.getrandbits(64), 3], np.uint64))
        types = [state.tensor, TensorType(self.dims(2), self.chance.choice((UI8, UI32, UI64)))]
        facts = {"rng_algorithm": self.chance.choice(("THREE_FRY", "PHILOX"))}
        return self.b.op("rng_bit_generator", [state], facts, (), types).results[1]

    # Control flow.

    def inner(self, arguments: Sequence[TensorType], wanted: TensorType | None = None) -> Any:
        """A region's body: some steps on its arguments and on outer values."""

        def body(b: Builder, *values: Value) -> Sequence[Value]:
            outer = self.b, self.values
            self.b, self.depth = b, self.depth + 1
            self.values = [*self.values[-3:], *values]
            for _ in range(self.chance.randint(0, 3)):
                self.step()
            kind = wanted or values[-1].tensor
            fits = [v for v in self.values if v.type is kind]
            result = self.chance.choice(fits[-3:]) if fits else self.constant(kind)
            (self.b, self.values), self.depth = outer, self.depth - 1
            return [result]

        return body

    def branch(self) -> Value | None:
        if self.depth >= 2:
            return None
        kind = self.one_of().tensor
        if self.chance.random() < 0.6:
            pred = self.constant(TensorType((), I1))
            fits = [v for v in self.values if v.type is pred.type]
            regions = [build_region([], self.inner([], kind)) for _ in range(2)]
            return self.b("if", self.chance.choice(fits) if fits else pred, regions=tuple(regions))
        regions = [build_region([], self.inner([], kind)) for _ in range(self.chance.randint(1, 3))]
        which = self.b.constant(self.chance.randint(-1, 4), TensorType((), I32))
        return self.b("case", which, regions=tuple(regions))

    def loop(self) -> Value | None:
        if self.depth >= 1:
            return None
        start = self.one_of()
        number = TensorType((), I32)
        types = [number, start.tensor]
        trips = self.chance.randint(0, 3)

        def body(b: Builder, i: Value, x: Value) -> Sequence[Value]:
            (result,) = self.inner(types)(b, i, x)
            return [b("add", i, b.constant(1, number)), result]

        condition = build_region(
            types, lambda b, i, x: [b.compare("LT", i, b.constant(trips, number))]
        )
        regions = [condition, build_region(types, body)]
        first = self.b.constant(0, number)
        return self.b.op("while", [first, start], {}, regions).results[1]

    def mapped(self) -> Value:
        x = self.one_of("float int uint")
        scalar = TensorType((), x.element)
        name = self.chance.choice(("add", "multiply", "maximum"))
        region = build_region([scalar, scalar], lambda b, x, y: [b(name, b("add", x, y), y)])
        return self.b("map", x, self.mate(x), regions=(region,), dimensions=tuple(range(x.rank)))


_NOT_STEPS = frozenset((
    "size", "dims", "one_of", "mate", "constant", "index", "subset", "step", "indices", "monoid",
    "windows", "inner", "places",
))  # fmt: skip
STEPS = (
    tuple(
        name
        for name, value in (*vars(Writer).items(), *vars(Programmer).items())
        if callable(value) and not name.startswith("_") and name not in _NOT_STEPS
    )
    + ("unary", "binary") * 4
)


def program(chance: random.Random) -> tuple[Module, Arrays]:
    """A random program and inputs for it."""
    writer = Programmer(chance)
    types = [
        TensorType(writer.dims(chance.randint(0, 3)), chance.choice(COMMON))
        for _ in range(chance.randint(1, 3))
    ]
    writer.values = list(writer.b.arguments(types))
    for _ in range(chance.randint(1, 14)):
        writer.step()
    results = writer.values[-3:]
    region = writer.b.region(results)
    hostile = chance.random() < 0.4
    inputs = [numbers(chance, argument.tensor, hostile) for argument in region.arguments]
    return Module({"main": Function("main", region)}), inputs
