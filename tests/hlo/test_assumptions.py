"""Answers about sizes: never wrong, and known where the formulas of real exports need them."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from girih.hlo import size_values
from girih.hlo.assumptions import Assumptions, Bounds
from girih.hlo.errors import UserError
from girih.hlo.size_text import parse_dim
from girih.hlo.sizes import SizeConstraint, Symbol, parse_constraint
from girih.hlo.symbols import Dim, SizeTooLong, bound

from .size_formulas import facts, points_of, random_text, size_of


def known(symbols: dict[str, Symbol], *constraints: str) -> Assumptions:
    return Assumptions(symbols, [parse_constraint(text) for text in constraints])


@pytest.fixture(params=["values", "proofs"])
def way(request, monkeypatch):
    """Small ranges are looked at value by value; proofs alone decide larger ones."""
    if request.param == "proofs":
        monkeypatch.setattr(size_values, "MAXIMUM_VALUES", 0)


@pytest.mark.usefixtures("way")
def test_what_is_true_of_real_formulas_is_proven():
    """At least 99 of 100; nothing false is."""
    found = list(facts((1, 8)))
    assert not [fact for fact in found if fact.is_wrong]
    true = [fact for fact in found if fact.always]
    proven = [fact for fact in true if fact.answer]
    assert len(true) > 900
    assert len(proven) >= 0.99 * len(true), [f.text for f in true if not f.answer]


@pytest.mark.usefixtures("way")
def test_the_queries_that_other_decision_procedures_leave_open():
    a = known({"a": Symbol(8, None, 8), "b": Symbol(1, 512)})
    p = parse_dim
    assert a.is_equal(p("a//8*8"), p("a"))
    assert a.at_most(8, p("a*b"))
    assert a.at_most(p("(a+7)//8"), p("a"))
    assert a.is_equal(p("max(a,4)"), p("a"))
    assert a.divides(4, p("a")) and a.divides(8, p("a*b"))
    assert a.at_most(p("b*a"), p("512*a"))


def _random_size(chance: Random, depth: int) -> Dim | None:
    try:
        return size_of(random_text(chance, depth))
    except (ZeroDivisionError, SizeTooLong):
        return None


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("seed", range(4))
def test_no_answer_is_wrong(seed):
    """By enumeration, with ranges that hold negative sizes and with random constraints."""
    chance = Random(seed)
    proven = 0
    for _ in range(40):
        symbols = {}
        for name, width in zip("abc", (30, 12, 12), strict=True):
            low, step = chance.randint(-4, 6), chance.choice([1, 1, 1, 2, 3, 8])
            symbols[name] = Symbol(low, low + chance.randint(step, width), step, low % step)
        constraints = []
        for _ in range(chance.choice([0, 0, 1, 2])):
            left, right = _random_size(chance, 2), _random_size(chance, 1)
            if left is not None and right is not None:
                relation: Any = chance.choice(["==", "<=", "<=", "!="])
                constraints.append(SizeConstraint(left, relation, right))
        points = [p for p in points_of(symbols) if all(c.holds(p) for c in constraints)]
        try:
            facts_known = Assumptions(symbols, constraints)
        except UserError:
            assert not points
            continue
        points = chance.sample(points, min(len(points), 200))
        for _ in range(4):
            x, y = _random_size(chance, 3), _random_size(chance, 2)
            if x is not None and y is not None and points:
                proven += _check(facts_known, x, y, points)
    assert proven > 60


def _check(known: Assumptions, x: Dim, y: Dim, points: list[dict[str, int]]) -> int:
    """How many answers there are; all are compared with what is the case."""
    try:
        pairs = [(bound(x, p), bound(y, p)) for p in points]
    except ZeroDivisionError:
        return 0
    proven = 0
    for answer, holds in (
        (known.at_most(x, y), [a <= b for a, b in pairs]),
        (known.is_equal(x, y), [a == b for a, b in pairs]),
        (known.divides(y, x), [a % b == 0 if b else not a for a, b in pairs]),
    ):
        said = f"{x} and {y} for {known.symbols}, {known.constraints}"
        assert answer is not True or all(holds), said
        assert answer is not False or not any(holds), said
        proven += answer is not None
    xs = [a for a, _ in pairs]
    low, high = known.bounds(x)
    assert low is None or low <= min(xs)
    assert high is None or high >= max(xs)
    most = known.maximum(x)
    assert most.value is None or most.value >= max(xs)
    assert [bound(known.simplify(x), p) for p in points] == xs
    modulus, residue = known.congruence(x)
    assert all((a - residue) % modulus == 0 if modulus else a == residue for a in xs)
    return proven


def test_bounds_of_few_values_are_exact():
    """Also of what no proof bounds tightly; not where they are too many, or too large."""
    symbols = {"a": Symbol(1, 40), "b": Symbol(0, 9)}
    a, points = known(symbols), points_of(symbols)
    for text in ("a*a-4*a*(a//4)+b", "a*b-max(a,3*b)*((a+b)//7)", "-a%5*(b-a)", "min(a,b)-b*b"):
        size = parse_dim(text)
        values = [bound(size, point) for point in points]
        assert a.bounds(size) == Bounds(min(values), max(values))
        assert a.maximum(size).value == max(values)
    many = known({"a": Symbol(1, 1 << 10), "b": Symbol(0, 1 << 10)})
    assert many.bounds(parse_dim("a-b")) == Bounds(1 - (1 << 10), 1 << 10)
    large = parse_dim(" * ".join(["a*40000"] * 5)) - parse_dim("b")
    assert a.bounds(large) == Bounds(40000**5 - 9, 1600000**5)
    assert a.bounds(parse_dim("7//b-a")) == Bounds(None, None)  # b may be 0


def test_answers_have_three_values():
    n = parse_dim("n")
    open_size = known({"n": Symbol(1, 8)})
    assert open_size.is_equal(n, 4) is None and open_size.is_equal(n, 9) is False
    assert open_size.is_one(n) is None and open_size.is_positive(n) is True
    assert open_size.divides(2, n) is None and open_size.divides(9, n) is False
    assert known({"n": Symbol(2)}).is_one(n) is False
    assert known({}).at_most(0, n) is True, "symbols are not negative unless said"
    assert known({"n": Symbol(-3, 3)}).at_most(0, n) is None


def test_equalities_and_inequalities():
    p = parse_dim
    a = known(
        {"s": Symbol(1, 64), "t": Symbol(1, 64), "u": Symbol(), "p": Symbol(), "L": Symbol(64, 64)},
        "s == t", "u == 2*s", "p+t <= L", "(b*s) % 4 == 0",
    )  # fmt: skip
    assert a.is_equal(p("s*b"), p("b*t"))
    assert a.divides(2, p("u")) and a.is_equal(p("u//2"), p("t"))
    assert a.at_most(p("b*(p+t)"), p("64*b")) and a.at_most(p("p"), 63)
    assert a.divides(4, p("b*s")) and a.divides(4, p("3*b*t")) and a.divides(8, p("b*s")) is None
    assert a.simplify(p("max(p+s, 64)")) == 64
    assert known({"n": Symbol()}, "n != 196").is_equal(p("n"), 196) is False


def test_maxima():
    a = known({"b": Symbol(1, 64), "s": Symbol(16, 512, 16), "h": Symbol(32, 288)})
    p = parse_dim
    assert a.maximum(p("4*b*s*s")) == (4 * 64 * 512 * 512, {"b": 64, "s": 512}, True)
    assert a.maximum(p("b*((h-1)//32+1)"))[:2] == (64 * 9, {"b": 64, "h": 288})
    assert a.maximum(p("100-b")).value == 99 and a.maximum(p("100-b")).sizes == {"b": 1}
    assert a.maximum(p("n")) == (None, {}, False)
    odd = a.maximum(p("h % 7"))
    assert odd.value == 6 and not odd.exact, "it is not monotone"
    limited = known({"b": Symbol(1, 64), "s": Symbol(1, 512)}, "b*s <= 4096")
    assert limited.maximum(p("b*s")) == (4096, {}, False)
    assert limited.bounds(p("2*b*s+1")) == Bounds(3, 8193)


def test_directions():
    a = known({"b": Symbol(1, 8), "s": Symbol(1, 512)})
    p = parse_dim
    assert a.direction(p("b*((s-1)//32+1)"), "s") == 1
    assert a.direction(p("max(64-s,8)"), "s") == -1
    assert a.direction(p("s//b"), "b") == -1
    assert a.direction(p("s % 7"), "s") is None and a.direction(p("b"), "s") == 0


@pytest.mark.parametrize(
    "constraints",
    [("n == 9",), ("n % 4 == 0", "n % 4 == 1"), ("n+1 <= 1",), ("2*n == 3",)],
    ids=str,
)
def test_sizes_that_cannot_be(constraints):
    with pytest.raises(UserError, match="no size"):
        known({"n": Symbol(1, 8)}, *constraints)


def test_long_sizes_are_unknown_and_quick():
    total: Dim = 1
    names = [f"x{i}" for i in range(8)]
    for name in names:
        total = total * (parse_dim(name) + 1)
    a = known({name: Symbol(3, 9) for name in names})
    assert a.at_most(total, 10**8) in (True, None)
    for left, right in itertools.pairwise(["(a*b)//c%(a+1)", "b*((b*b)//(c+a))", "max(a*b,c//a)"]):
        assert a.is_equal(parse_dim(left), parse_dim(right)) is None
