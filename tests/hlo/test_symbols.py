"""Sizes: canonical, equal to Python's arithmetic, printed and read back."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from girih.hlo.size_text import MAXIMUM_TEXT, parse_dim, split_dims
from girih.hlo.symbols import (
    SizeTooLong,
    SymbolicDim,
    bound,
    ceildiv,
    maximum,
    minimum,
    substituted,
    symbols_of,
)

from .size_formulas import NAMES, random_text, size_of

B, N, S, T = map(SymbolicDim, "bnst")


def test_random_sizes_are_pythons():
    chance = Random(7)
    compared = 0
    for _ in range(1500):
        text = random_text(chance, chance.randint(1, 6))
        try:
            size = size_of(text)
        except (ZeroDivisionError, SizeTooLong):
            continue
        for _ in range(10):
            values = {name: chance.randint(-30, 60) for name in NAMES}
            try:
                wanted = eval(text, {"max": max, "min": min, **values})
            except ZeroDivisionError:
                continue
            assert bound(size, values) == wanted, (text, size, values)
            compared += 1
        if len(repr(size)) <= MAXIMUM_TEXT:
            again = parse_dim(repr(size))
            assert again is size or (isinstance(size, int) and again == size), text
        assert isinstance(size, int) or pickle.loads(pickle.dumps(size)) is size
    assert compared > 8000


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("2*b*s", "s*b+b*s"),
        ("((h-1)//2)//2+1", "(h-1)//4+1"),
        ("(((h-1)//2+1)-1)//2+1", "(h-1)//4+1"),
        ("8*(n//8)+n%8", "n"),
        ("(8*n+4)//4", "2*n+1"),
        ("(6*n)//4", "(3*n)//2"),
        ("n+(-n%7)", "7*((n+6)//7)"),
        ("-((-n)//16)", "(n+15)//16"),
        ("(b*s*12)//(4*s)", "3*b"),
        ("16*((2*s)//s)", "32"),
        ("b*(s+1)//(s+1)", "b"),
        ("(b*n)%n", "0"),
        ("-max(-s,-4)", "min(s,4)"),
        ("max(max(s,t)+1,t,7)", "max(s,t,6)+1"),
        ("max(s,s+2,s-1)", "s+2"),
        ("max(2*s,2*t)", "2*max(t,s)"),
        ("min(b*s+t,b*s+4)", "b*s+min(t,4)"),
        ("(s-t)*(s+t)", "s*s-t*t"),
        ("n//1", "n"),
        ("n%1", "0"),
        ("(-n)//(-7)", "n//7"),
    ],
)
def test_equal_sizes_are_one_object(left, right):
    assert repr(parse_dim(left)) == repr(parse_dim(right))
    assert parse_dim(left) is parse_dim(right) or isinstance(parse_dim(left), int)


def test_texts():
    assert repr(2 * B * S) == "2*b*s"
    assert repr(maximum(T, 4)) == "max(t,4)"
    assert repr(-(S // 2)) == "-(s//2)" != repr((-S) // 2)
    assert repr(B * (S // 2) - S // 2 + 1) == "b*(s//2)-s//2+1"
    assert repr(S // (S // 2)) == "s//(s//2)"
    assert str(5 - N) == "-n+5"
    assert parse_dim("-n % 7") is (-N) % 7
    assert parse_dim(" 7 - 3*(2+1) ") == -2
    assert split_dims("b,max(t,4),2") == ["b", "max(t,4)", "2"] and split_dims("") == []


def test_arithmetic_of_both_sides():
    assert 7 - N is -N + 7 and 3 * N is N * 3 and N - N == 0 and N * 0 == 0
    assert bound(7 // N, {"n": 2}) == 3 and bound(7 % N, {"n": -4}) == -1
    assert bound(N**3, {"n": 3}) == 27 and N**0 == 1
    assert bound(ceildiv(N, 16), {"n": 17}) == 2 and minimum(N, N) is N
    assert symbols_of(B * (N // S)) == ("b", "n", "s")
    assert substituted(B * (N // 2), {"n": 2 * T}) is B * T
    assert substituted(maximum(N, 3), {"n": 9, "b": 4}) == 9
    line, product, half = 2 * N + 1, N * B, N // 2
    assert isinstance(line, SymbolicDim) and line.affine == {"n": 2} and line.constant == 1
    assert isinstance(product, SymbolicDim) and product.affine is None
    assert isinstance(half, SymbolicDim) and half.affine is None


@pytest.mark.parametrize(
    "text",
    ["", "2*", "n+", "max()", "n//0", "n%(b-b)", "n n", "(n", "n)", "n/2", "n**2", "max(n,", "é",
     "1.5", "(" * 100 + "n" + ")" * 100, "n+" * 5000 + "n", "(a+b+c+d)*" * 200 + "n"],
)  # fmt: skip
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match=r"dimension|divides|terms|long"):
        parse_dim(text)


def test_names_are_identifiers():
    for name in ("", "2n", "n-1", "n\n", "max(n)"):
        with pytest.raises(ValueError, match="is no name of a size"):
            SymbolicDim(name)


def test_missing_values_and_divisors_that_are_0():
    with pytest.raises(KeyError):
        bound(B * N, {"b": 1})
    with pytest.raises(ZeroDivisionError):
        bound(B // N, {"b": 1, "n": 0})
    with pytest.raises(ZeroDivisionError):
        ceildiv(B, 0)
