"""Discrete Fourier transforms of lines in scratch, in f64: Stockham for lengths of small factors,
Bluestein for others.

Numbers stand in planes, real and imaginary parts apart. Several lines are transformed side by side:
entry k of line t is at k * lines + t, so that vectors run across lines, or along a line's blocks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ... import llvm
from ...llvm.elements import Pair

FACTORS = (4, 2, 3, 5, 7, 11, 13)
_DIRECT = 2048  # roots of unity in one table; of more, two tables are multiplied


@dataclass(frozen=True)
class Planes:
    """`size` complex numbers: real parts, then imaginary ones."""

    pointer: llvm.Value
    size: int

    def load(self, f: llvm.Function, at: llvm.Value, lanes: int = 1) -> Pair:
        kind = llvm.vector(lanes, "double")
        parts = (f.load(kind, self._place(f, at, plane), align=8) for plane in (0, self.size))
        return Pair(*parts)

    def store(self, f: llvm.Function, at: llvm.Value, value: Pair) -> None:
        for part, plane in zip(value, (0, self.size), strict=True):
            f.store(part, self._place(f, at, plane), align=8)

    def _place(self, f: llvm.Function, at: llvm.Value, plane: int) -> llvm.Value:
        return f.pointer(self.pointer, f.add(at, plane) if plane else at, "double")


Reserve = Callable[[int], Planes]


def radices(length: int) -> list[int] | None:
    """Factors whose product is the length; None if it has a large prime factor."""
    found = []
    for factor in FACTORS:
        while length % factor == 0:
            found.append(factor)
            length //= factor
    return found if length == 1 else None


class Roots:
    """exp(sign 2 pi i k / length), in tables of the image."""

    def __init__(self, f: llvm.Function, length: int, sign: int) -> None:
        self.f, self.length = f, length
        step = length if length <= _DIRECT else 1 << -(-(length - 1).bit_length() // 2)
        self.step = step
        self.low = self._table(np.arange(step), sign)
        self.high = None if step >= length else self._table(
            np.arange(-(-length // step)) * step, sign
        )  # fmt: skip

    def _table(self, numbers: np.ndarray, sign: int) -> llvm.Value:
        angles = 2 * np.pi * numbers / self.length
        both = np.stack([np.cos(angles), sign * np.sin(angles)], -1)
        return self.f.module.data(both.tobytes())

    def at(self, index: llvm.Value) -> Pair:
        """The root with that number, below the length."""
        if self.high is None:
            return self._entry(self.low, index)
        high = self._entry(self.high, self.f.udiv(index, self.step))
        return product(self.f, high, self._entry(self.low, self.f.urem(index, self.step)))

    def _entry(self, table: llvm.Value, index: llvm.Value) -> Pair:
        f = self.f
        place = f.mul(index, 2)
        real = f.load("double", f.pointer(table, place, "double"))
        return Pair(real, f.load("double", f.pointer(table, f.add(place, 1), "double")))


def product(f: llvm.Function, a: Pair, b: Pair) -> Pair:
    """a * b."""
    real = f.sub(f.mul(a.real, b.real), f.mul(a.imaginary, b.imaginary))
    return Pair(real, f.add(f.mul(a.real, b.imaginary), f.mul(a.imaginary, b.real)))


def _sum(f: llvm.Function, a: Pair, b: Pair) -> Pair:
    return Pair(f.add(a.real, b.real), f.add(a.imaginary, b.imaginary))


def _difference(f: llvm.Function, a: Pair, b: Pair) -> Pair:
    return Pair(f.sub(a.real, b.real), f.sub(a.imaginary, b.imaginary))


def _rotated(f: llvm.Function, a: Pair, sign: int) -> Pair:
    """a times i (sign 1) or -i."""
    if sign > 0:
        return Pair(f.neg(a.imaginary), a.real)
    return Pair(a.imaginary, f.neg(a.real))


def butterfly(f: llvm.Function, x: Sequence[Pair], sign: int) -> list[Pair]:
    """The transform of a few numbers, of 2, 4 or an odd count."""
    count = len(x)
    if count == 2:
        return [_sum(f, x[0], x[1]), _difference(f, x[0], x[1])]
    if count == 4:
        even, odd = _sum(f, x[0], x[2]), _sum(f, x[1], x[3])
        left, right = _difference(f, x[0], x[2]), _rotated(f, _difference(f, x[1], x[3]), sign)
        return [_sum(f, even, odd), _sum(f, left, right), _difference(f, even, odd),
                _difference(f, left, right)]  # fmt: skip
    half = count // 2
    sums = [_sum(f, x[k], x[count - k]) for k in range(1, half + 1)]
    differences = [_difference(f, x[k], x[count - k]) for k in range(1, half + 1)]
    total = x[0]
    for pair in sums:
        total = _sum(f, total, pair)
    result = [total] * count
    for j in range(1, half + 1):
        even, odd = x[0], None
        for k, (s, d) in enumerate(zip(sums, differences, strict=True), 1):
            angle = 2 * math.pi * (j * k % count) / count
            even = _sum(f, even, _scaled(f, s, math.cos(angle)))
            part = _scaled(f, d, math.sin(angle))
            odd = part if odd is None else _sum(f, odd, part)
        assert odd is not None
        odd = _rotated(f, odd, sign)
        result[j], result[count - j] = _sum(f, even, odd), _difference(f, even, odd)
    return result


def _scaled(f: llvm.Function, a: Pair, factor: llvm.Operand) -> Pair:
    return Pair(f.mul(a.real, factor), f.mul(a.imaginary, factor))


def transform(
    f: llvm.Function,
    length: int,
    lines: int,
    lanes: int,
    data: Planes,
    spare: Planes,
    sign: int,
    reserve: Reserve,
) -> Planes:
    """The transform of `lines` lines in `data`; where it is, `data` or `spare`.

    Both hold `work_length(length) * lines` numbers. No scaling.
    """
    factors = radices(length)
    if factors is None:
        power = _Fixed(f, length, lanes, sign)
        return bluestein(f, power, length, lines, lanes, data, spare, reserve)
    return _stockham(f, length, factors, lines, lanes, data, spare, sign)


def work_length(length: int) -> int:
    """Entries of a line in the planes that `transform` works in."""
    return length if radices(length) is not None else 1 << (2 * length - 2).bit_length()


def _stockham(
    f: llvm.Function,
    length: int,
    factors: Sequence[int],
    lines: int,
    lanes: int,
    data: Planes,
    spare: Planes,
    sign: int,
) -> Planes:
    roots = Roots(f, length, sign) if length > 1 else None
    stride, rest = lines, length
    for radix in factors:
        rest //= radix
        whole = stride - stride % lanes
        with f.for_range(0, rest) as outer:
            twiddles = []
            if rest > 1 and roots is not None:
                for j in range(1, radix):
                    turn = f.mul(outer.index, j * (stride // lines))
                    twiddles.append(roots.at(turn))
            for begin, end, width in ((0, whole, lanes), (whole, stride, 1)):
                if begin == end:
                    continue
                turns = [Pair(*(f.splat(part, width) for part in w)) for w in twiddles]
                with f.for_range(begin, end, width) as inner:
                    base = f.add(inner.index, f.mul(outer.index, stride))
                    x = [data.load(f, f.add(base, k * rest * stride), width) for k in range(radix)]
                    target = f.add(inner.index, f.mul(outer.index, radix * stride))
                    for j, value in enumerate(butterfly(f, x, sign)):
                        if j and turns:
                            value = product(f, value, turns[j - 1])
                        spare.store(f, f.add(target, j * stride), value)
        data, spare = spare, data
        stride *= radix
    return data


class Convolution(ABC):
    """What Bluestein's way needs of transforms whose length is a power of two, not below
    2 * `length` - 1: `longer`, and `places` as many in the planes at least."""

    longer: llvm.Operand
    places: int

    @abstractmethod
    def chirp(self, k: llvm.Value) -> Pair:
        """exp(sign pi i k k / length)"""

    @abstractmethod
    def share(self) -> llvm.Operand:
        """1 / longer"""

    @abstractmethod
    def run(self, lines: int, data: Planes, spare: Planes, sign: int) -> tuple[Planes, Planes]:
        """Transforms the lines in `data`: where they are then, and the other planes."""


class _Fixed(Convolution):
    def __init__(self, f: llvm.Function, length: int, lanes: int, sign: int) -> None:
        self.f, self.length, self.lanes = f, length, lanes
        self.longer = self.places = work_length(length)
        self.roots = Roots(f, 2 * length, sign)

    def chirp(self, k: llvm.Value) -> Pair:
        return self.roots.at(self.f.urem(self.f.mul(k, k), 2 * self.length))

    def share(self) -> llvm.Operand:
        return 1.0 / self.places

    def run(self, lines: int, data: Planes, spare: Planes, sign: int) -> tuple[Planes, Planes]:
        factors = radices(self.places)
        assert factors is not None
        found = _stockham(self.f, self.places, factors, lines, self.lanes, data, spare, sign)
        return found, spare if found is data else data


def bluestein(
    f: llvm.Function,
    power: Convolution,
    length: int,
    lines: int,
    lanes: int,
    data: Planes,
    spare: Planes,
    reserve: Reserve,
) -> Planes:
    """A transform as a convolution with a chirp, by transforms whose length is a power of two."""
    longer, chirp = power.longer, power.chirp
    kernel, other = reserve(power.places), reserve(power.places)
    zero = llvm.constant("double", 0.0)
    with f.for_range(0, longer) as each:
        kernel.store(f, each.index, Pair(zero, zero))
    with f.for_range(0, length) as each:
        value = chirp(each.index)
        value = Pair(value.real, f.neg(value.imaginary))
        kernel.store(f, each.index, value)
        kernel.store(f, f.urem(f.sub(longer, each.index), longer), value)
    kernel, _ = power.run(1, kernel, other, -1)

    width = lanes if lines % lanes == 0 else 1

    def scale(target: Planes, count: llvm.Operand, factor: Callable[[llvm.Value], Pair]) -> None:
        """target[k] *= factor(k), in each line."""
        with f.for_range(0, count) as each:
            number = Pair(*(f.splat(part, width) for part in factor(each.index)))
            with f.for_range(0, lines, width) as line:
                place = f.add(f.mul(each.index, lines), line.index)
                target.store(f, place, product(f, target.load(f, place, width), number))

    scale(data, length, chirp)
    with f.for_range(length * lines, f.mul(longer, lines)) as each:
        data.store(f, each.index, Pair(zero, zero))
    found, spare = power.run(lines, data, spare, -1)
    scale(found, longer, lambda k: kernel.load(f, k))
    found, _ = power.run(lines, found, spare, 1)
    scale(found, length, lambda k: _scaled(f, chirp(k), power.share()))
    return found
