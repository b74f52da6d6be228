"""Discrete Fourier transforms whose length the call may decide.

Nothing is known of the factors of such a length: Bluestein's way, by passes that halve a power of
two, and roots that are computed where they are needed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ....hlo.symbols import SymbolicDim
from ... import llvm
from ...llvm import circular
from ...llvm.elements import Pair
from . import transform as fixed
from .transform import Convolution, Planes, Reserve, bluestein, butterfly, product


def work_length(length: int) -> int:
    """Entries of a line in the planes that `transform` works in."""
    # What is not below 2 * length - 1, and a power of two, is not above 4 * length.
    return 4 * length if isinstance(length, SymbolicDim) else fixed.work_length(length)


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
    if not isinstance(length, SymbolicDim):
        return fixed.transform(f, length, lines, lanes, data, spare, sign, reserve)
    power = _Open(f, length, lanes, sign, reserve)
    return bluestein(f, power, length, lines, lanes, data, spare, reserve)


class _Open(Convolution):
    longer: llvm.Value

    def __init__(
        self, f: llvm.Function, length: int, lanes: int, sign: int, reserve: Reserve
    ) -> None:
        self.f, self.length, self.lanes, self.sign = f, length, lanes, sign
        self.places = work_length(length)
        self.passes = f.lift(f.bit_length(f.max(2 * length - 2, 0)), "i64")
        self.longer = f.shl(llvm.constant("i64", 1), self.passes)
        self.roots = reserve(self.places)
        with f.for_range(0, self.longer) as each:
            self.roots.store(f, each.index, self._rotated(each.index, 2 * math.pi, self.longer))

    def _rotated(self, k: llvm.Value, whole: float, parts: llvm.Operand) -> Pair:
        """exp(whole i k / parts)"""
        f = self.f
        share = f.div(*(f.cast("sitofp", f.lift(n, "i64"), "double") for n in (k, parts)))
        angle = f.mul(share, whole)
        return Pair(circular.cos(f, angle), circular.sin(f, angle))

    def chirp(self, k: llvm.Value) -> Pair:
        turns = self.f.urem(self.f.mul(k, k), 2 * self.length)
        return self._rotated(turns, self.sign * math.pi, self.length)

    def share(self) -> llvm.Operand:
        one = llvm.constant("double", 1.0)
        return self.f.div(one, self.f.cast("sitofp", self.longer, "double"))

    def run(self, lines: int, data: Planes, spare: Planes, sign: int) -> tuple[Planes, Planes]:
        f = self.f
        start = (data.pointer, spare.pointer, llvm.constant("i64", 1), self.longer)
        with f.for_range(0, self.passes, 1, start) as each:
            source, target, stride, have = each.carried
            rest = f.lshr(have, 1)
            planes = replace(data, pointer=source), replace(spare, pointer=target)
            self._halve(lines, *planes, stride, rest, sign)
            each.carry(target, source, f.shl(stride, 1), rest)
        found, other, *_ = each.results
        return replace(data, pointer=found), replace(spare, pointer=other)

    def _halve(
        self,
        lines: int,
        data: Planes,
        spare: Planes,
        stride: llvm.Value,
        rest: llvm.Value,
        sign: int,
    ) -> None:
        """One pass of radix 2 over transforms of 2 * rest entries, `stride` of them in a line."""
        f = self.f
        wide = f.mul(stride, lines)
        whole = f.land(wide, -self.lanes)
        with f.for_range(0, rest) as outer:
            root = self.roots.load(f, f.mul(outer.index, stride))
            if sign < 0:
                root = Pair(root.real, f.neg(root.imaginary))
            for begin, end, width in ((0, whole, self.lanes), (whole, wide, 1)):
                factor = Pair(*(f.splat(part, width) for part in root))
                with f.for_range(begin, end, width) as inner:
                    base = f.add(inner.index, f.mul(outer.index, wide))
                    places = base, f.add(base, f.mul(rest, wide))
                    first, second = butterfly(f, [data.load(f, p, width) for p in places], sign)
                    target = f.add(inner.index, f.mul(outer.index, f.mul(wide, 2)))
                    spare.store(f, target, first)
                    spare.store(f, f.add(target, wide), product(f, second, factor))
