"""What random programs are written with: choices of types, shapes and values, and the operations
without regions."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from girih.hlo.build import Builder, build_region
from girih.hlo.graph import Value
from girih.hlo.types import (
    BF16,
    C64,
    C128,
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    UI8,
    UI16,
    UI32,
    UI64,
    TensorType,
)  # fmt: skip

SIGNED, UNSIGNED = (I8, I16, I32, I64), (UI8, UI16, UI32, UI64)
INTEGERS = (*SIGNED, *UNSIGNED)
FLOATS = (F16, BF16, F32, F64)
COMPLEX = (C64, C128)
COMMON = (*FLOATS, F32, F32, *INTEGERS, I32, I32, I1, I1, *COMPLEX)
SIZES = (1, 2, 3, 4, 5, 7, 1, 2, 3, 4, 0)
LARGEST = 600  # elements of a value

FLOAT_UNARY = (
    "negate", "abs", "sign", "ceil", "floor", "round_nearest_even", "round_nearest_afz",
    "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic", "tanh", "sine",
    "cosine", "tan", "sqrt", "rsqrt", "cbrt",
)  # fmt: skip
COMPLEX_UNARY = ("negate", "exponential", "log", "sine", "cosine", "tanh", "sqrt")
INTEGER_UNARY = ("negate", "abs", "sign", "not", "popcnt")  # XLA folds clz of -1 to -32
FLOAT_BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "remainder", "power", "atan2",
)  # fmt: skip
INTEGER_BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "remainder", "and", "or", "xor",
    "shift_left", "shift_right_arithmetic", "shift_right_logical",
)  # fmt: skip
COMPLEX_BINARY = ("add", "subtract", "multiply")  # what a division by zero gives is open
CHLO = ("chlo.erf", "chlo.erfc", "chlo.asin", "chlo.acosh", "chlo.atanh", "chlo.lgamma",
        "chlo.digamma", "chlo.square", "chlo.sinh", "chlo.is_inf")  # fmt: skip

Arrays = list[np.ndarray[Any, Any]]


def _is(value: Value, name: str) -> bool:
    return value.op is not None and value.op.name == name


class Writer:
    """Writes operations into `b`; `values` are what they may use."""

    def __init__(self, chance: random.Random, elements: Sequence[Any] = COMMON) -> None:
        self.chance = chance
        self.elements = elements
        self.b = Builder()
        self.values: list[Value] = []
        self.depth = 0

    # Choices.

    def size(self) -> int:
        return self.chance.choice(SIZES)

    def dims(self, rank: int) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(rank))

    def one_of(self, kinds: str | None = None, rank: int = 0, full: bool = False) -> Value:
        """A value whose element is of one of those kinds ("float int uint bool complex"), of at
        least that rank, `full`: with elements; a new constant where there is none."""
        wanted = kinds.split() if kinds else ["float", "int", "uint", "bool", "complex"]
        fits = [
            value for value in self.values
            if value.element.kind in wanted
            and value.rank >= rank
            and (value.tensor.size or not full)
        ]  # fmt: skip
        if fits and self.chance.random() < 0.9:
            return self.chance.choice(fits[-10:])
        elements = [e for e in self.elements if e.kind in wanted]
        dims = self.dims(max(rank, self.chance.randint(0, 3)))
        if full:
            dims = tuple(max(1, d) for d in dims)
        return self.constant(TensorType(dims, self.chance.choice(elements or [F32])))

    def mate(self, value: Value) -> Value:
        """A value of the same type."""
        same = [other for other in self.values if other.type is value.type]
        if same and self.chance.random() < 0.6:
            return self.chance.choice(same)
        return self.constant(value.tensor)

    def constant(self, kind: TensorType) -> Value:
        return self.b.constant(numbers(self.chance, kind, hostile=False), kind)

    def index(self, high: int = 6) -> Value:
        element = self.chance.choice((I32, I64, UI32, I32))
        low = 0 if element is UI32 else -2
        return self.b.constant(self.chance.randint(low, high), TensorType((), element))

    def subset(self, rank: int, share: float = 0.5) -> tuple[int, ...]:
        return tuple(d for d in range(rank) if self.chance.random() < share)

    # Elementwise.

    def unary(self) -> Value:
        x = self.one_of()
        names = {"float": FLOAT_UNARY, "complex": COMPLEX_UNARY, "bool": ("not",)}.get(
            x.element.kind, INTEGER_UNARY
        )
        if x.element.kind == "uint":
            names = ("not", "popcnt", "count_leading_zeros")
        name = self.chance.choice(names)
        if name == "sqrt" and x.element.is_complex:
            # XLA:CPU takes -1 - 0i for -1 + 0i, on the other side of the branch cut.
            x = self.b("add", x, self.b.constant(np.full(x.dims, 0.5j, x.tensor.dtype), x.tensor))
        if name == "log" and _is(x, "power"):
            name = "exponential"  # XLA:CPU takes y * log(abs(x)) for log(x ** y)
        return self.b(name, x)

    def binary(self) -> Value:
        x = self.one_of()
        names = {
            "float": FLOAT_BINARY, "complex": COMPLEX_BINARY, "bool": ("and", "or", "xor"),
        }.get(x.element.kind, INTEGER_BINARY)  # fmt: skip
        name, y = self.chance.choice(names), self.mate(x)
        if name in ("divide", "remainder") and x.element.is_integer:
            # XLA's constant folder dies of a division by zero, and of the least number by -1.
            highest = self.b.constant(np.iinfo(x.element.dtype).max, x.tensor)
            y = self.b("or", self.b("and", y, highest), self.b.constant(1, x.tensor))
        if name == "atan2" and x is y:
            y = self.constant(x.tensor)  # folding atan2(0, 0), XLA:CPU gives NaN at times
        return self.b(name, x, y)

    def special(self) -> Value:
        return self.b(self.chance.choice(CHLO), self.one_of("float"))

    def compare(self) -> Value:
        x = self.one_of()
        directions = ("EQ", "NE") if x.element.is_complex else ("EQ", "NE", "LT", "GE", "GT", "LE")
        return self.b.compare(self.chance.choice(directions), x, self.mate(x))

    def select(self) -> Value:
        x = self.one_of()
        dims = x.dims if self.chance.random() < 0.7 else ()
        fits = [v for v in self.values if v.element is I1 and v.dims == dims]
        pred = self.chance.choice(fits) if fits else self.constant(TensorType(dims, I1))
        return self.b("select", pred, x, self.mate(x))

    def clamp(self) -> Value:
        x = self.one_of("float int uint")
        kind = x.tensor if self.chance.random() < 0.5 else TensorType((), x.element)
        low, high = self._bound(kind), self._bound(kind)
        return self.b("clamp", low, x, high)

    def _bound(self, kind: TensorType) -> Value:
        """Of a clamp; no zero of a float: XLA:CPU keeps a -0 there, maximum and minimum do not."""
        array = numbers(self.chance, kind, hostile=False)
        if kind.element.is_float:
            array = np.where(array == 0, np.ones_like(array), array)
        return self.b.constant(array, kind)

    def convert(self) -> Value:
        x = self.one_of()
        targets = [e for e in self.elements if not x.element.is_complex or e.is_complex]
        return self.b.convert(x, self.chance.choice(targets or [x.element]))

    def bitcast(self) -> Value | None:
        x = self.one_of("float int uint")
        if _is(x, "convolution"):
            return None  # XLA:CPU forgets the order of its dimensions
        same = [e for e in (*INTEGERS, *FLOATS) if e.bits == x.element.bits]
        element = self.chance.choice(same)
        if element.is_float and not x.element.is_float:
            return None  # most bits of small integers are subnormal numbers
        return self.b("bitcast_convert", x, type=x.tensor.with_element(element))

    def reduce_precision(self) -> Value:
        x = self.one_of("float")
        exponent, mantissa = self.chance.choice(((5, 10), (8, 7), (4, 3), (5, 2), (8, 23)))
        return self.b("reduce_precision", x, exponent_bits=exponent, mantissa_bits=mantissa)

    def parts(self) -> Sequence[Value]:
        x = self.one_of("complex")
        return [self.b("real", x), self.b("imag", x)]

    def join(self) -> Value | None:
        x = self.one_of("float")
        if x.element not in (F32, F64):
            return None
        return self.b("complex", x, self.mate(x))

    def is_finite(self) -> Value:
        return self.b("is_finite", self.one_of("float"))

    # Shapes.

    def reshape(self) -> Value:
        x = self.one_of()
        dims = list(x.dims)
        if self.chance.random() < 0.5 or not x.tensor.size:
            dims.insert(self.chance.randint(0, len(dims)), 1)
        else:
            dims = [x.tensor.size] if self.chance.random() < 0.5 else [d for d in dims if d != 1]
        return self.b.reshape(x, dims if len(dims) <= 4 else [x.tensor.size])

    def transpose(self) -> Value:
        x = self.one_of(rank=1)
        order = list(range(x.rank))
        self.chance.shuffle(order)
        return self.b.transpose(x, order)

    def broadcast(self) -> Value | None:
        x = self.one_of()
        if x.rank > 3:
            return None
        dims = [self.size() if d == 1 else d for d in x.dims]
        at = self.chance.randint(0, x.rank)
        dims.insert(at, self.size())
        return self.b.broadcast(x, dims, [d + (d >= at) for d in range(x.rank)])

    def iota(self) -> Value:
        dims = self.dims(self.chance.randint(1, 3))
        element = self.chance.choice([e for e in self.elements if not e.is_bool])
        kind = TensorType(dims, element)
        return self.b("iota", type=kind, iota_dimension=self.chance.randrange(len(dims)))

    def slice(self) -> Value:
        x = self.one_of()
        start = [self.chance.randint(0, d) for d in x.dims]
        limit = [self.chance.randint(s, d) for s, d in zip(start, x.dims, strict=True)]
        steps = tuple(self.chance.choice((1, 1, 2, 3)) for _ in x.dims)
        return self.b(
            "slice", x, start_indices=tuple(start), limit_indices=tuple(limit), strides=steps
        )

    def concatenate(self) -> Value:
        x = self.one_of(rank=1)
        count = self.chance.randint(1, 3)
        operands = [x, *(self.mate(x) for _ in range(count - 1))]
        return self.b("concatenate", *operands, dimension=self.chance.randrange(x.rank))

    def pad(self) -> Value | None:
        x = self.one_of()
        low, high = (tuple(self.chance.choice((0, 0, 1, 2, -1)) for _ in x.dims) for _ in range(2))
        inner = tuple(self.chance.choice((0, 0, 0, 1)) for _ in x.dims)
        sizes = [
            a + b + d + max(d - 1, 0) * i
            for a, b, d, i in zip(low, high, x.dims, inner, strict=True)
        ]
        if any(size < 0 for size in sizes):
            return None
        value = self.constant(TensorType((), x.element))
        return self.b(
            "pad", x, value, edge_padding_low=low, edge_padding_high=high, interior_padding=inner
        )

    def reverse(self) -> Value:
        x = self.one_of()
        return self.b("reverse", x, dimensions=self.subset(x.rank))

    # Indexing.

    def dynamic_slice(self) -> Value:
        x = self.one_of(rank=1)
        sizes = tuple(self.chance.randint(0, d) for d in x.dims)
        first = self.index()
        starts = [first, *(self.mate(first) for _ in x.dims[1:])]
        return self.b("dynamic_slice", x, *starts, slice_sizes=sizes)

    def dynamic_update_slice(self) -> Value:
        x = self.one_of(rank=1)
        update = TensorType(tuple(self.chance.randint(0, d) for d in x.dims), x.element)
        first = self.index()
        starts = [first, *(self.mate(first) for _ in x.dims[1:])]
        return self.b("dynamic_update_slice", x, self.constant(update), *starts)

    def indices(self, dims: Sequence[int]) -> Value:
        """Starts of a gather's windows, some of them outside."""
        kind = TensorType(dims, self.chance.choice((I32, I32, I64, UI8)))
        low = -2 if kind.element.kind == "int" else 0
        drawn = [self.chance.randint(low, 6) for _ in range(kind.size)]
        return self.b.constant(np.array(drawn).reshape(kind.dims), kind)

    def gather(self) -> Value:
        x = self.one_of(rank=1, full=True)
        mapped = list(range(x.rank))
        self.chance.shuffle(mapped)
        mapped = mapped[: self.chance.randint(1, x.rank)]
        sizes = [self.chance.randint(1, d) for d in x.dims]
        collapsed = tuple(d for d in range(x.rank) if sizes[d] == 1 and self.chance.random() < 0.6)
        batch = self.dims(self.chance.randint(0, 2))
        kept = x.rank - len(collapsed)
        places = sorted(self.chance.sample(range(kept + len(batch)), kept))
        start = self.indices((*batch, len(mapped)))
        return self.b(
            "gather", x, start, offset_dims=tuple(places), collapsed_slice_dims=collapsed,
            start_index_map=tuple(mapped), index_vector_dim=len(batch), slice_sizes=tuple(sizes),
        )  # fmt: skip

    def scatter(self) -> Value:
        x = self.one_of(rank=1, full=True)
        mapped = list(range(x.rank))
        self.chance.shuffle(mapped)
        mapped = mapped[: self.chance.randint(1, x.rank)]
        sizes = [self.chance.randint(1, d) for d in x.dims]
        inserted = tuple(d for d in range(x.rank) if sizes[d] == 1 and self.chance.random() < 0.6)
        batch = self.dims(self.chance.randint(0, 2))
        window = [sizes[d] for d in range(x.rank) if d not in inserted]
        places = sorted(self.chance.sample(range(len(window) + len(batch)), len(window)))
        rest, inner = list(batch), list(window)
        dims = [(inner if d in places else rest).pop(0) for d in range(len(window) + len(batch))]
        scalar = TensorType((), x.element)
        names = {"bool": ("or",), "complex": ("add",)}.get(x.element.kind, ("add", "maximum"))
        name = self.chance.choice((*names, "replace"))
        if any(sizes[d] > 1 for d in mapped) and name == "replace":
            name = names[0]  # which of two windows that overlap comes last is left open
        update = build_region(
            [scalar, scalar], lambda b, old, new: [new if name == "replace" else b(name, old, new)]
        )
        starts = self.places(batch, [x.dims[d] - sizes[d] + 1 for d in mapped])
        operands = [x, starts,
                    self.constant(TensorType(dims, x.element))]  # fmt: skip
        return self.b(
            "scatter", *operands, regions=(update,), update_window_dims=tuple(places),
            inserted_window_dims=inserted, scatter_dims_to_operand_dims=tuple(mapped),
            index_vector_dim=len(batch),
        )  # fmt: skip

    def places(self, batch: Sequence[int], room: Sequence[int]) -> Value:
        """Starts of a scatter's windows, of which there are `room` along each mapped dim. Windows
        lie inside or outside as a whole: of others, XLA drops all, and the specification what is
        outside."""
        element = self.chance.choice((I32, I32, I64, UI8))
        outside = (60, 90) if element is UI8 else (-50, 60)
        rows = [
            [self.chance.choice((*range(n), *range(n), self.chance.choice(outside))) for n in room]
            for _ in range(math.prod(batch))
        ]
        kind = TensorType((*batch, len(room)), element)
        return self.b.constant(np.array(rows).reshape(kind.dims), kind)


def numbers(chance: random.Random, kind: TensorType, hostile: bool) -> Any:
    """Values of a type; `hostile` ones have infinities, NaNs and the ends of integers."""
    element = kind.element
    if element.is_bool:
        pool: list[Any] = [True, False]
    elif element.is_complex:
        pool = [0, 1, -1, 1j, 0.5 - 2j, -1.5 + 0.25j, 2 + 1j]
    elif element.is_float:
        pool = [0.0, -0.0, 1.0, -1.0, 0.5, -0.25, 1.5, 2.0, -3.0, 0.1, 7.0]
        pool += [np.inf, -np.inf, np.nan, 1e4, 1e-3] if hostile else []
    else:
        limits = np.iinfo(element.dtype)
        pool = [0, 1, 2, 3, 5, 7, 100] + ([-1, -2, -5] if limits.min else [])
        pool += [limits.min, limits.max] if hostile else []
    drawn = [chance.choice(pool) for _ in range(kind.size)]
    return (
        np.array(drawn, element.dtype if not drawn else None)
        .astype(element.dtype)
        .reshape(kind.dims)
    )
