"""Random sizes, and the formulas that real exports contain, with what is true of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

from girih.hlo.assumptions import Assumptions
from girih.hlo.size_text import parse_dim
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import Dim, SymbolicDim, bound, maximum, minimum

NAMES = ("a", "b", "c")


def random_text(chance: Random, depth: int) -> str:
    """A size in Python's syntax, with the functions max and min."""
    if not depth or chance.random() < 0.15:
        return chance.choice([*NAMES, str(chance.randint(-9, 20))])
    operation = chance.choice(("+", "-", "*", "//", "%", "max", "min", "negative"))
    left = random_text(chance, depth - 1)
    if operation == "negative":
        return f"(-{left})"
    right = random_text(chance, depth - 1)
    if operation in ("max", "min"):
        return f"{operation}({left}, {right})"
    return f"({left} {operation} {right})"


def size_of(text: str) -> Dim:
    """The size that Python's own operators make of a text; ZeroDivisionError, ValueError."""
    values: dict[str, Any] = {name: SymbolicDim(name) for name in NAMES}
    return eval(text, {"max": maximum, "min": minimum, **values})


# Ranges of symbols, and formulas of them: transformers, vision transformers with interpolated
# positions, convolution chains, speech features, halves of a size, window padding, caches.
FORMULAS: tuple[tuple[Mapping[str, tuple[int, int]], tuple[str, ...]], ...] = (
    (
        {"b": (1, 6), "s": (1, 40)},
        ("b", "s", "b*s", "4*b", "s+1", "197*b", "1500*b", "b*s*s", "b*(s+1)", "2*b*s"),
    ),
    (
        {"b": (1, 3), "h": (16, 40), "w": (16, 40)},
        (
            "h//16", "w//16", "(h//16)*(w//16)", "(h//16)*(w//16)+1", "b*((h//16)*(w//16)+1)",
            "2*(h//16)", "b*(h//16)*(w//16)", "h", "w", "h*w",
        ),
    ),
    (
        {"b": (1, 2), "h": (1, 40)},
        (
            "h", "(h-1)//2+1", "(h-1)//4+1", "(h-1)//8+1", "(h-1)//16+1", "(h-1)//32+1",
            "((h-1)//2)//2+1", "(((h-1)//2+1)-1)//2+1", "((((h-1)//2)//2)//2)//2+1",
            "b*((h-1)//32+1)", "b*((h-1)//2+1)*((h-1)//2+1)",
        ),
    ),
    (
        {"b": (1, 2), "s": (400, 440)},
        (
            "s", "s//80", "(s//80-3)//2", "((s//80-3)//2-1)//2", "((((s//80)-3)//2)-1)//2+1",
            "b*(((((s//80)-3)//2)-1)//2+1)", "(s-10)//5+1", "((s-10)//5+1-3)//2+1",
            "(((s-10)//5+1-3)//2+1-3)//2+1",
        ),
    ),
    (
        {"b": (1, 3), "n": (2, 40)},
        ("n", "b*n", "n//2", "16*(n//(n//2))", "n-n//2", "b*(n//2)", "(n+1)//2"),
    ),
    (
        {"b": (1, 3), "n": (1, 40)},
        (
            "n", "-n % 7", "n+(-n % 7)", "(n+(-n % 7))//7", "b*((n+(-n % 7))//7)", "7*((n+6)//7)",
            "b*(n+(-n % 7))",
        ),
    ),
    (
        {"p": (0, 20), "t": (1, 20)},
        ("p", "t", "p+t", "p+t-1", "8*t", "max(p,t)", "min(p,t)", "max(p+t,4)"),
    ),
    (
        {"h": (7, 40)},
        ("h", "(h+1)//2", "-((-h)//2)", "(h-3)//2+1", "-((3-h)//2)+1", "(h+6)//7", "h//7"),
    ),
)  # fmt: skip


class Fact(NamedTuple):
    """A query, its answer, and what is the case: that it holds at all sizes, at none."""

    text: str
    answer: bool | None
    always: bool
    never: bool

    @property
    def is_wrong(self) -> bool:
        return (self.answer is True and not self.always) or (
            self.answer is False and not self.never
        )


def facts(steps: tuple[int, ...] = (1, 2, 8)) -> Iterator[Fact]:
    """Bounds, comparisons, equalities and divisibility of all formulas, checked by enumeration;
    the last symbol of each group is a multiple of each step."""
    for (ranges, texts), step in itertools.product(FORMULAS, steps):
        *_, last = ranges
        symbols = {name: Symbol(*ends) for name, ends in ranges.items()}
        symbols[last] = Symbol(*ranges[last], step)
        yield from _facts_of(symbols, texts)


def points_of(symbols: Mapping[str, Symbol]) -> list[dict[str, int]]:
    """All sizes that the symbols admit."""
    values = [
        [v for v in range(s.minimum, (s.maximum or 0) + 1) if s.admits(v)] for s in symbols.values()
    ]
    return [dict(zip(symbols, point, strict=True)) for point in itertools.product(*values)]


def _facts_of(symbols: Mapping[str, Symbol], texts: tuple[str, ...]) -> Iterator[Fact]:
    known, points = Assumptions(symbols), points_of(symbols)
    sizes = [parse_dim(text) for text in texts]
    values = [[bound(size, point) for point in points] for size in sizes]

    def fact(text: str, answer: bool | None, holds: list[bool]) -> Fact:
        return Fact(f"{text} for {symbols}", answer, all(holds), not any(holds))

    for size, found, text in zip(sizes, values, texts, strict=True):
        least, most = min(found), max(found)
        yield fact(f"{text} >= {least}", known.at_most(least, size), [True])
        yield fact(f"{text} <= {most}", known.at_most(size, most), [True])
        for k in (2, 4, 7, 8, 16, 32):
            yield fact(f"{k} | {text}", known.divides(k, size), [v % k == 0 for v in found])
    rows = list(zip(sizes, values, texts, strict=True))
    for (x, xs, left), (y, ys, right) in itertools.permutations(rows, 2):
        pairs = list(zip(xs, ys, strict=True))
        yield fact(f"{left} <= {right}", known.at_most(x, y), [a <= b for a, b in pairs])
        yield fact(f"{left} == {right}", known.is_equal(x, y), [a == b for a, b in pairs])
