"""Symbolic sizes: reading sympy's text, naming symbols, guards, and fixing sizes by examples."""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ...hlo.errors import UserError
from ...hlo.sizes import Relation, SizeConstraint, Symbol, parse_constraint
from ...hlo.symbols import Dim, SizeTooLong, SymbolicDim, ceildiv, maximum, minimum
from ...hlo.trees import StructureError, Tree
from .trees import with_constants

if TYPE_CHECKING:
    from .program import Input, TorchProgram

Values = Mapping[str, Dim]
"""What symbols are called here, or the numbers that they are."""


class Unreadable(ValueError):
    """A symbolic size that `SymbolicDim` cannot express, such as a rounded root."""


def _power(base: Dim, exponent: Dim) -> Dim:
    if not isinstance(exponent, int) or exponent < 0:
        raise Unreadable(f"the size {base}**{exponent} is no power with a fixed exponent")
    return base**exponent


_FUNCTIONS: dict[str, Callable[..., Dim]] = {
    "Add": lambda *parts: functools.reduce(lambda x, y: x + y, parts),
    "CeilDiv": ceildiv,
    "CleanDiv": lambda x, y: x // y,
    "FloorDiv": lambda x, y: x // y,
    "Integer": lambda x: x,
    "Max": maximum,
    "Min": minimum,
    "Mod": lambda x, y: x % y,
    "ModularIndexing": lambda x, y, z: x // y % z,
    "Mul": lambda *parts: functools.reduce(lambda x, y: x * y, parts),
    "Pow": _power,
    "PowByNatural": _power,
    "PythonMod": lambda x, y: x % y,
}
_ROUNDED: dict[str, Callable[[Dim, int], Dim]] = {
    "CeilToInt": ceildiv,
    "FloorToInt": lambda x, y: x // y,
    "TruncToInt": lambda x, y: x // y,  # of sizes, which are not negative
}
"""How a quotient of sizes becomes a size again."""

_EXACT = 2**16  # floats with such denominators times sizes are exact in float64


def parse_size(text: str, values: Values | None = None) -> Dim:
    """The size that sympy's `srepr` text describes, each symbol replaced by what `values` has for
    it; Unreadable where there is no such size.

    parse_size("Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(1))") is 2*s0+1.
    """
    try:
        return _size(ast.parse(text, mode="eval").body, text, values or {})
    except (SyntaxError, ZeroDivisionError, RecursionError, TypeError):
        raise Unreadable(f"the size '{text}' is no expression") from None
    except SizeTooLong as error:
        raise Unreadable(str(error)) from None


def _size(node: ast.expr, text: str, values: Values) -> Dim:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _size(node.operand, text, values) * -1
    name, arguments = _call(node)
    if arguments:
        first = arguments[0]
        if name == "Symbol" and isinstance(first, ast.Constant):
            symbol = str(first.value)
            return values[symbol] if symbol in values else SymbolicDim(symbol)
        if name in _ROUNDED:
            return _ROUNDED[name](*_quotient(first, text, values))
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_size(part, text, values) for part in arguments))
    raise Unreadable(f"the size '{text}' is no formula of whole numbers")


def _call(node: ast.expr) -> tuple[str, Sequence[ast.expr]]:
    """The function's name and arguments; "" of what is no call."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id, node.args
    return "", ()


def _quotient(node: ast.expr, text: str, values: Values) -> tuple[Dim, int]:
    """A number that is no whole one, as one divided by another: of floats those whose products
    with sizes are exact."""
    name, arguments = _call(node)
    if name == "Float" and isinstance(arguments[0], ast.Constant):
        number = Fraction(str(arguments[0].value))
        if number.denominator <= _EXACT and number == Fraction(float(number)):
            return number.numerator, number.denominator
    elif name == "ToFloat":
        return _quotient(arguments[0], text, values)
    elif name == "Mul":
        parts = [_quotient(part, text, values) for part in arguments]
        return math.prod(top for top, _ in parts), math.prod(bottom for _, bottom in parts)
    elif name in ("IntTrueDiv", "FloatTrueDiv"):
        (top, bottom), (other_top, other_bottom) = (
            _quotient(part, text, values) for part in arguments
        )
        if isinstance(other_top, int) and other_top > 0:
            return top * other_bottom, bottom * other_top
    elif name != "Float":
        return _size(node, text, values), 1
    raise Unreadable(f"the size '{text}' is no formula of whole numbers")


# Names.


def symbol_names(
    dims: Iterable[tuple[str, Sequence[Any]]], spoken: Mapping[str, str]
) -> dict[str, str]:
    """What each symbol is called: by the user (`spoken`), else after the first dimension that it is
    ("ids_0"). dims: the path of each argument and its sizes, symbols as names of the tracer."""
    found: dict[str, str] = {}
    for path, sizes in dims:
        for axis, symbol in enumerate(sizes):
            if isinstance(symbol, str) and symbol not in found:
                place = re.sub(r"\W+", "_", f"{path}.{axis}", flags=re.ASCII).strip("_")
                name = spoken.get(symbol) or (f"_{place}" if place[:1].isdigit() else place)
                taken = {*found.values()}
                found[symbol] = next(
                    n for n in (name, *(f"{name}_{i}" for i in range(len(taken) + 1)))
                    if n not in taken
                )  # fmt: skip
    return found


def renamed(names: Mapping[str, str], values: Mapping[str, int]) -> dict[str, Dim]:
    """The tracer's symbols -> sizes: the numbers that values have by name, else the name."""
    return {symbol: values.get(name, SymbolicDim(name)) for symbol, name in names.items()}


def input_paths(
    inputs: Sequence[Input], tree: Tree, names: Sequence[str]
) -> list[tuple[Input, str]]:
    """Each input that a caller gives, with its path: "ids", "cache['k']", "input[1]"."""
    bound = [b for b in inputs if b.kind in ("user", "fixed")]
    leaves = [Tree.leaf() if b.kind == "user" else b.value for b in bound]
    positional, keywords = with_constants(tree, leaves).children
    roots = list(names[: len(positional.children)]) or [
        f"input[{i}]" for i in range(len(positional.children))
    ]
    paths = positional.paths("input", roots)
    paths += keywords.paths("", tuple(map(str, keywords.keys)))
    return list(zip([b for b in bound if b.kind == "user"], paths, strict=True))


# Ranges and guards.


def symbol_of_limits(
    low: int | None, high: int | None, is_residue: bool, origin: str = ""
) -> Symbol:
    """A symbol of a tracer's range. is_residue: its beginning is no limit of the user or the model,
    but the tracer takes sizes 0 and 1 to be special; its formulas hold from 1 on."""
    low = min(low or 0, 1) if is_residue else low
    return Symbol(max(low or 0, 0), high, origin=origin)


_RELATIONS: dict[str, tuple[bool, Relation, int]] = {
    "Eq": (False, "==", 0), "Equality": (False, "==", 0),
    "Ne": (False, "!=", 0), "Unequality": (False, "!=", 0),
    "Le": (False, "<=", 0), "LessThan": (False, "<=", 0),
    "Lt": (False, "<=", 1), "StrictLessThan": (False, "<=", 1),
    "Ge": (True, "<=", 0), "GreaterThan": (True, "<=", 0),
    "Gt": (True, "<=", 1), "StrictGreaterThan": (True, "<=", 1),
}  # fmt: skip
"""Whether the sides are exchanged, the relation then, and what is added to the left side."""


def parse_guards(text: str, values: Values, origin: str) -> list[SizeConstraint]:
    """The relations that sympy's `srepr` text of a guard says; Unreadable for other conditions."""
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError):
        raise Unreadable(f"the guard '{text}' is no condition") from None
    found, left = list[SizeConstraint](), [node]
    while left:
        part = left.pop()
        name, arguments = _call(part)
        if name == "And":
            left.extend(arguments)
        elif name in _RELATIONS and len(arguments) == 2:
            turned, relation, more = _RELATIONS[name]
            sides = [parse_size(ast.unparse(side), values) for side in arguments]
            first, second = reversed(sides) if turned else sides
            found.append(SizeConstraint(first + more, relation, second, origin))
        else:
            raise Unreadable(f"the guard '{text}' is no relation of sizes")
    return found


_PLACE = r"L(?:\['[^']+'\])(?:\[(?:'[^']*'|\d+)\]|\.\w+)*\.size\(\)\[\d+\]"


def parse_guard_text(text: str, places: Mapping[str, Dim], origin: str) -> list[SizeConstraint]:
    """The relations that a guard of a file says, such as `L['x'].size()[1] <= 64`. places: the size
    of each `L['x'].size()[1]`. Unreadable for other conditions."""
    symbols: dict[str, str] = {}

    def named(match: re.Match[str]) -> str:
        if match[0] not in places:
            raise Unreadable(f"the guard '{text}' is about something that is no size")
        return symbols.setdefault(match[0], f"size{len(symbols)}")

    by_name = re.sub(_PLACE, named, text)
    values = {name: places[place] for place, name in symbols.items()}
    try:
        parts = [parse_constraint(part, origin) for part in by_name.split(" and ")]
        return [part.renamed(values) for part in parts]
    except (ValueError, ZeroDivisionError):  # SizeTooLong is a ValueError
        raise Unreadable(f"the guard '{text}' is no relation of sizes") from None


# Examples.


def sizes_from_examples(
    program: TorchProgram, inputs: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, int]:
    """The value of each symbol in the inputs' dims, so that the examples fit.

    UserError names the input and dimension that does not fit the export.
    """
    if not program.symbols:
        raise UserError("the export has fixed sizes already; give no example inputs")
    bound = [b for b in program.inputs if b.kind in ("user", "fixed")]
    leaves = [Tree.leaf() if b.kind == "user" else b.value for b in bound]
    tree = with_constants(program.input_tree, leaves)
    users = input_paths(program.inputs, program.input_tree, program.names)
    try:
        leaves = tree.flatten((tuple(inputs), dict(keywords)))
    except StructureError as error:
        raise UserError(f"the example inputs do not have the export's structure: {error}") from None
    values: dict[str, int] = {}
    wanted: list[tuple[str, int, Dim, int]] = []
    for (user, path), leaf in zip(users, leaves, strict=True):
        type, shape = program.graph.types.get(user.name), tuple(getattr(leaf, "shape", ()))
        if type is None or len(shape) != type.rank:
            raise UserError(f"{path}: the example has {len(shape)} dimensions, expected {type}")
        for axis, (size, given) in enumerate(zip(type.dims, shape, strict=True)):
            wanted.append((path, axis, size, int(given)))
            if isinstance(size, SymbolicDim) and len(size.affine or {}) == 1:
                ((name, factor),) = (size.affine or {}).items()
                values.setdefault(name, (int(given) - size.constant) // factor)
    for path, axis, size, given in wanted:
        known = size
        if isinstance(size, SymbolicDim):
            known = size.bind(values) if values.keys() >= {*size.symbols} else None
        if known != given:
            raise UserError(f"{path}: dimension {axis} is {given}, the export needs {size}")
    for name, value in values.items():
        said = program.symbols.get(name, Symbol())
        if not said.admits(value):
            raise UserError(f"the size {name} = {value} is not what the export admits: {said}")
    return values
