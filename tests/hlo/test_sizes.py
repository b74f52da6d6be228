"""What a call's shapes give for symbols, and what is refused."""

from __future__ import annotations

import pytest

from girih.hlo.errors import UserError
from girih.hlo.size_text import parse_dim
from girih.hlo.sizes import SizeSolver, Symbol, parse_constraint, symbol_of_range


def solver(arguments: dict[str, str], *constraints: str, **symbols: Symbol) -> SizeSolver:
    listed = [(name, [parse_dim(d) for d in dims.split(",")]) for name, dims in arguments.items()]
    return SizeSolver(listed, symbols, [parse_constraint(c, "model.py:9") for c in constraints])


def test_symbols_are_solved_from_dims():
    found = solver({"x": "b*s,3", "y": "2*s+1,b", "z": "t-b"})
    assert found.solve([(12, 3), (9, 3), (4,)]) == {"b": 3, "s": 4, "t": 7}


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ([(65, 16)], r"x: dimension 0 is 65, but the size b must be from 1 to 64 \(x.0\)$"),
        ([(0, 16)], "the size b must be from 1 to 64"),
        ([(4, 24)], r"the size s must be from 16 to 512 in steps of 16 \(model.py:7\)$"),
        ([(64, 512)], r"b\*s <= 4096 does not hold for b = 64, s = 512 \(model.py:9\)$"),
        ([(7, 16)], r"b != 7 does not hold for b = 7"),
    ],
)
def test_what_does_not_fit(shapes, reason):
    found = solver(
        {"x": "b,s"}, "b*s <= 4096", "b != 7",
        b=Symbol(1, 64, origin="x.0"), s=Symbol(16, 512, 16, 0, "model.py:7"),
    )  # fmt: skip
    assert found.solve([(4, 32)]) == {"b": 4, "s": 32}
    with pytest.raises(UserError, match=reason):
        found.solve(shapes)


def test_dims_that_contradict_each_other():
    found = solver({"x": "n", "mask": "n", "y": "2*n+1"})
    with pytest.raises(UserError, match=r"mask: dimension 0 = n is 5, but must be 4: n is 4 by "):
        found.solve([(4,), (5,), (9,)])
    with pytest.raises(UserError, match=r"y: dimension 0 = 2\*n\+1 is 8, but must be 9"):
        found.solve([(4,), (4,), (8,)])
    with pytest.raises(UserError, match=r"x: dimension 0 = 4\*m is 6, but the size m must be a "):
        solver({"x": "4*m"}).solve([(6,)])


def test_symbols_that_no_argument_gives():
    with pytest.raises(UserError, match=r"x: dimension 0 is b\*s, from which b, s cannot be told"):
        solver({"x": "b*s"}, b=Symbol())
    with pytest.raises(UserError, match=r"cannot be told \(model.py:3\)"):
        solver({"x": "(n+1)//2"}, n=Symbol(origin="model.py:3"))


def test_ranges_of_symbols():
    s = symbol_of_range(range(16, 513, 16))
    assert s == Symbol(16, 512, 16, 0) and s.admits(32) and not s.admits(24)
    assert str(s) == "from 16 to 512 in steps of 16" and str(Symbol(2)) == "at least 2"
    assert symbol_of_range(range(9, 0, -3)) == Symbol(3, 9, 3, 0)
    assert Symbol(3, 40, 8, 1).first == 9 and Symbol(3, 40, 8, 1).last == 33
    assert s.meet(Symbol(1, 100, 24, 8)) == Symbol(16, 100, 48, 32)
    with pytest.raises(UserError, match="no size is"):
        s.meet(Symbol(1, 15))
    with pytest.raises(UserError, match="no size is"):
        s.meet(Symbol(0, None, 4, 1))
    with pytest.raises(UserError, match="has no sizes"):
        symbol_of_range(range(3, 3))


@pytest.mark.parametrize("text", ["n", "n == 2 == 3", "n = 3", "n <", "n == m/2"])
def test_what_is_no_constraint(text):
    with pytest.raises(ValueError, match="relation|dimension"):
        parse_constraint(text)


def test_constraints_print():
    for text in ("b*s <= 4096", "n != 7", "s == 2*t"):
        assert str(parse_constraint(text)) == text
    assert str(parse_constraint("4096 > b")) == "b+1 <= 4096"
    assert parse_constraint("s % 8 == 0").congruence == (parse_dim("s"), 8, 0)
    assert str(parse_constraint("(s+3) % 8 == 1")) == "(s+2) % 8 == 0"
    assert str(parse_constraint("-n % 7 == 0")) == "(n) % 7 == 0"
