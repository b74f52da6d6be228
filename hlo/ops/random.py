"""Random numbers: rng_bit_generator with Threefry and Philox, bit for bit as XLA; rng."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..factors import Factor, FactorBuilder, FactorKind, Factors
from ..graph import Op
from ..room import Case, attribute, constraint, operand
from ..room import operand as second
from ..types import F32, F64, I32, I64, UI8, UI16, UI32, UI64, TensorType
from .clauses import any_result
from .decomposed import Decomposed, Term, where
from .examples import f32, i32

ALGORITHMS = ("DEFAULT", "THREE_FRY", "PHILOX")
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA
PHILOX_ROUNDS = 10
PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)


class RngBitGenerator(Decomposed, name="rng_bit_generator"):
    """output_state, output: uniformly random bits, a function of initial_state alone.

    The state is a key and a counter: ui64[2] for Threefry, ui64[2] or ui64[3] for Philox, which
    DEFAULT means too.
    """

    pattern = "opaque"
    opaque = "all numbers come from one state"
    initial_state = operand()
    rng_algorithm = attribute(str)
    C1 = constraint("rng_algorithm is DEFAULT, THREE_FRY or PHILOX",
                    lambda o: o.rng_algorithm in ALGORITHMS)  # fmt: skip
    C2 = constraint(
        "initial_state is ui64[2], or ui64[3] for Philox",
        lambda o: (
            o.initial_state.element is UI64
            and o.initial_state.rank == 1
            and o.initial_state.dims[0] in ((2,) if o.rng_algorithm == "THREE_FRY" else (2, 3))
        ),
    )
    C3 = constraint(
        "the results are the state and a tensor of integers or floats of 8 to 64 bits",
        lambda o: (
            not o.results
            or len(o.results) == 2
            and o.results[0].type == o.initial_state.type
            and (o.results[1].element.is_integer or o.results[1].element.is_float)
            and o.results[1].element.bits in (8, 16, 32, 64)
        ),
    )

    def shard(self, o: Op) -> Factors | None:
        rule = FactorBuilder(o)  # numbers count from each part's place
        state = Factor(o.initial_state.dims[0], FactorKind.REPLICATE, blocked=True)
        rule.add(state, {0: 0}, {0: 0})
        for d, size in enumerate(o.results[1].dims):
            rule.add(Factor(size, placed=True), {}, {1: d})
        return rule.build()

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        wanted = o.results[1].tensor
        bits = {8: UI8, 16: UI16, 32: UI32, 64: UI64}[wanted.element.bits]
        generate = _threefry_bits if o.rng_algorithm == "THREE_FRY" else _philox_bits
        state, output = generate(b, values[0], TensorType(wanted.dims, bits))
        if output.element is not wanted.element:
            integer = wanted.element.is_integer
            if integer:
                output = b.convert(output, wanted.element)
            else:
                output = b("bitcast_convert", output, type=wanted)
        return [state, output]

    def cases(self) -> Iterator[Case]:
        state = np.array([0x0123456789ABCDEF, 0xFFFFFFFFFFFFFFF0], np.uint64)
        for algorithm in ("THREE_FRY", "PHILOX"):
            for element in (UI32, UI64, UI8):
                for dims in ((), (5,), (3, 4), (7, 3)):
                    shape = "x".join(map(str, dims)) or "scalar"
                    result = (TensorType((2,), UI64), TensorType(dims, element))
                    yield Case(
                        f"rng_{algorithm}_{element.name}_{shape}", (state,),
                        {"rng_algorithm": algorithm}, result,
                    )  # fmt: skip
        longer = np.append(state, np.uint64(3))
        result = (TensorType((3,), UI64), TensorType((6,), UI32))
        yield Case("rng_PHILOX_long_state", (longer,), {"rng_algorithm": "PHILOX"}, result)


def _member(b: Any, state: Any, index: int, dims: Sequence[int] = ()) -> Term:
    """One number of the state, spread over `dims`."""
    cut = {"start_indices": (index,), "limit_indices": (index + 1,), "strides": (1,)}
    scalar = b.reshape(b("slice", state, **cut), ())
    return Term(b, b.broadcast(scalar, dims, ()))


def _halves(x: Term) -> tuple[Term, Term]:
    """The lower and upper 32 bits."""
    return x.convert(UI32), (x >> 32).convert(UI32)


def _joined(low: Term, high: Term) -> Term:
    return low.convert(UI64) | (high.convert(UI64) << 32)


def _stack(b: Any, members: Sequence[Term]) -> Any:
    return b("concatenate", *(b.reshape(m.value, (1,)) for m in members), dimension=0)


def _narrowed(b: Any, words: Any, element: Any) -> Any:
    """The lower bits of 32-bit words."""
    return b.convert(words, element) if element.bits < 32 else words


# Threefry 2x32, 20 rounds.


def _threefry_bits(b: Any, state: Any, wanted: TensorType) -> tuple[Any, Any]:
    dims = wanted.dims
    if wanted.element is UI64:
        line = dims if wanted.is_static else (math.prod(dims),)
        words = _threefry_words(b, state, line)
        output = b.reshape(_joined(*words).value, dims)
    else:
        half, split = _half_dims(dims)
        words = _threefry_words(b, state, half)
        output = _narrowed(b, _combined(b, words, dims, half, split), wanted.element)
    numbers = words[0].value
    count = Term(b, b.count(numbers, range(numbers.rank), state.tensor.with_dims(())))
    new_state = _stack(b, [_member(b, state, 0), _member(b, state, 1) + count])
    return new_state, output


def _half_dims(dims: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The dims of each half, with a new trailing 1, and which dimension was split: the first even
    one, else the largest."""
    if not dims:
        return (1,), 0
    even = [d for d, size in enumerate(dims) if size % 2 == 0]
    split = even[0] if even else max(range(len(dims)), key=lambda d: dims[d])
    return (*dims[:split], -(-dims[split] // 2), 1, *dims[split + 1 :]), split


def _combined(
    b: Any, words: Sequence[Term], dims: Sequence[int], half: Sequence[int], split: int
) -> Any:
    """Both halves interleaved along the split dimension."""
    if not dims:
        first = b("slice", words[0].value, start_indices=(0,), limit_indices=(1,), strides=(1,))
        return b.reshape(first, ())
    both = b("concatenate", *(w.value for w in words), dimension=split + 1)
    padded = [*dims]
    padded[split] = half[split] * 2
    whole = b.reshape(both, padded)
    if padded == list(dims):
        return whole
    zeros, ones = (0,) * len(dims), (1,) * len(dims)
    return b("slice", whole, start_indices=zeros, limit_indices=tuple(dims), strides=ones)


def _threefry_words(b: Any, state: Any, dims: Sequence[Any]) -> tuple[Term, Term]:
    counter = _member(b, state, 1, dims)
    stride = 1
    kind = TensorType(dims, UI64)
    for d in range(len(dims) - 1, -1, -1):
        if dims[d] != 1:
            numbers = Term(b, b("iota", type=kind, iota_dimension=d))
            counter = counter + numbers * stride
            stride *= dims[d]
    key = _halves(_member(b, state, 0, dims))
    return threefry(_halves(counter), key)


def threefry(x: tuple[Term, Term], key: tuple[Term, Term]) -> tuple[Term, Term]:
    """Threefry 2x32 with 20 rounds of a counter, with a key: 32-bit words, elementwise."""
    keys = (*key, key[0] ^ key[1] ^ PARITY)
    first, other = x[0] + keys[0], x[1] + keys[1]
    for block in range(5):
        for rotation in ROTATIONS[:4] if block % 2 == 0 else ROTATIONS[4:]:
            first = first + other
            other = (other << rotation) | (other >> (32 - rotation))
            other = first ^ other
        first = first + keys[(block + 1) % 3]
        other = other + keys[(block + 2) % 3] + (block + 1)
    return first, other


# Philox 4x32, 10 rounds.


def _philox_bits(b: Any, state: Any, wanted: TensorType) -> tuple[Any, Any]:
    dims = wanted.dims
    count = math.prod(dims)
    per_word = 2 if wanted.element is UI64 else 1
    blocks = -(-count * per_word // 4)
    length = state.dims[0]
    key = _member(b, state, 0)
    low = _member(b, state, 1)
    high = _member(b, state, 2) if length == 3 else key  # a short state repeats its key
    line = (blocks,)
    spread = [Term(b, b.broadcast(t.value, line, ())) for t in (low, high, *_halves(key))]
    numbers = Term(b, b("iota", type=TensorType(line, UI64), iota_dimension=0))
    counter_low = spread[0] + numbers
    carry = (counter_low < spread[0]).convert(UI64)
    counter = (*_halves(counter_low), *_halves(spread[1] + carry))
    words = _philox(counter, (spread[2], spread[3]))
    if wanted.element is UI64:
        words = (_joined(words[0], words[1]), _joined(words[2], words[3]))
    columns = [b.reshape(w.value, (blocks, 1)) for w in words]
    flat = b.reshape(b("concatenate", *columns, dimension=1), (blocks * len(words),))
    flat = b("slice", flat, start_indices=(0,), limit_indices=(count,), strides=(1,))
    output = _narrowed(b, b.reshape(flat, dims), wanted.element)
    new_low = low + blocks
    new_high = high + (new_low < low).convert(UI64)
    return _stack(b, [key, new_low, new_high][:length]), output


def _philox(x: Sequence[Term], key: Sequence[Term]) -> tuple[Term, Term, Term, Term]:
    a, b, c, d = x
    first, second_key = key
    for _ in range(PHILOX_ROUNDS):
        left = a.convert(UI64) * PHILOX_FACTORS[0]
        right = c.convert(UI64) * PHILOX_FACTORS[1]
        (left_low, left_high), (right_low, right_high) = _halves(left), _halves(right)
        a, b, c, d = (
            right_high ^ b ^ first, right_low, left_high ^ d ^ second_key, left_low,
        )  # fmt: skip
        first, second_key = first + PHILOX_STEPS[0], second_key + PHILOX_STEPS[1]
    return a, b, c, d


def _random_bits(b: Any, kind: TensorType) -> Term:
    """The bits that Philox gives for the state of zeros."""
    state = b.constant(0, TensorType((2,), UI64))
    facts = {"rng_algorithm": "PHILOX"}
    return Term(b, b.op("rng_bit_generator", [state], facts, (), (state.type, kind)).results[1])


def _uniform_integers(b: Any, kind: TensorType, low: Term, high: Term) -> Term:
    """low + bits mod (high - low), in 64 bits; low where high is not above it."""
    if kind.element.kind == "int":
        start, end = (x.convert(I64).bits(UI64) for x in (low, high))
    else:
        start, end = low.convert(UI64), high.convert(UI64)
    span = where(low < high, end - start, 1)
    drawn = start + _random_bits(b, kind.with_element(UI64)).op("remainder", span)
    if kind.element.kind == "int":
        drawn = drawn.bits(I64)
    return drawn.convert(kind.element)


class Rng(Decomposed, name="rng"):
    """result = random numbers: uniform in [a, b), or normal with mean a and deviation b.

    The specification leaves the numbers open; here every execution gives the same ones.
    """

    pattern = "opaque"
    distinct = True
    opaque = "all numbers come from one state"
    a = operand()
    b = second()
    shape = second()
    rng_distribution = attribute(str)
    C1 = constraint(
        "a and b are scalars of one element type, which is not complex",
        lambda o: (
            o.a.rank == o.b.rank == 0
            and o.a.element is o.b.element
            and o.a.element.kind in ("bool", "int", "uint", "float")
        ),
    )
    C2 = constraint(
        "NORMAL needs floats", lambda o: o.rng_distribution != "NORMAL" or o.a.element.is_float
    )
    C3 = constraint(
        "rng_distribution is UNIFORM or NORMAL",
        lambda o: o.rng_distribution in ("UNIFORM", "NORMAL"),
    )
    C4 = constraint(
        "shape holds the result's dimensions",
        any_result(lambda o: o.shape.rank == 1 and o.shape.dims[0] == o.result.rank),
    )

    def shard(self, o: Op) -> Factors | None:
        rule = FactorBuilder(o)
        for d, size in enumerate(o.type.dims):
            rule.add(Factor(size, placed=True), {}, {0: d})
        return rule.build()

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        if not o.type.is_static:
            kind = o.type.with_dims(map(int, arrays[2]))
            o = Op(o.definition, o.operands, o.attributes, (), (kind,))
        return super().evaluate(o, *arrays, **context)

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        kind = o.type
        if not kind.is_static:
            return None
        low, high = (Term(b, b.broadcast(value, kind.dims, ())) for value in values[:2])
        if not kind.element.is_float:
            return [_uniform_integers(b, kind, low, high).value]
        real = F64 if kind.element is F64 else F32
        first, second = low.convert(real), high.convert(real)
        whole = _random_bits(b, kind.with_element(UI64 if real is F64 else UI32))
        digits = 52 if real is F64 else 23
        places = whole.op("shift_right_logical", whole.element.bits - digits).convert(real)
        if o.rng_distribution == "NORMAL":
            uniform = (places + 0.5) * 2.0 ** (1 - digits) - 1.0  # inside (-1, 1)
            normal = uniform.op("chlo.erf_inv") * math.sqrt(2)
            return [(first + second * normal).convert(kind.element).value]
        drawn = (first + (second - first) * (places * 2.0**-digits)).convert(kind.element)
        return [where(drawn < high, drawn, low).value]  # rounding may reach b

    def cases(self) -> Iterator[Case]:
        shape = np.array([2, 3], np.int64)
        result = (TensorType((2, 3), F32),)
        for distribution in ("UNIFORM", "NORMAL"):
            inputs = (f32(-1), f32(2), shape)
            facts = {"rng_distribution": distribution}
            yield Case(f"rng_{distribution}", inputs, facts, result)
        integers = (i32(-3), i32(9), shape)
        yield Case("rng_i32", integers, {"rng_distribution": "UNIFORM"}, (TensorType((2, 3), I32),))


ROOMS = (RngBitGenerator(), Rng())
