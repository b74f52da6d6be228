"""Symbolic sizes: reading sympy's text, and fixing symbols by example inputs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...hlo.errors import UserError
from ...hlo.signature import StructureError, Tree
from ...hlo.sizes import Symbol
from ...hlo.symbols import Dim, SymbolicDim
from .trees import with_constants

if TYPE_CHECKING:
    from .program import Program

Values = Mapping[str, int]


class NotAffine(ValueError):
    """A symbolic size that `SymbolicDim` cannot express, such as a product of two symbols."""


_FIXED: dict[str, Callable[..., int]] = {
    "CleanDiv": lambda x, y: x // y,
    "FloorDiv": lambda x, y: x // y,
    "Max": max,
    "Min": min,
    "Mod": lambda x, y: x % y,
    "Pow": lambda x, y: x**y,
    "PythonMod": lambda x, y: x % y,
}
"""What can be computed of sizes only where all symbols are fixed."""


def parse_size(text: str, values: Values | None = None) -> Dim:
    """The size that sympy's `srepr` text describes, with the symbols that have values replaced;
    NotAffine if it is no affine expression of the others.

    parse_size("Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(1))") is 2*s0+1.
    """
    try:
        return _size(ast.parse(text, mode="eval").body, text, values or {})
    except (SyntaxError, ZeroDivisionError):
        raise NotAffine(f"the size '{text}' is no expression") from None


def _size(node: ast.expr, text: str, values: Values) -> Dim:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _size(node.operand, text, values) * -1
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        name, first = node.func.id, node.args[0]
        if name == "Symbol" and isinstance(first, ast.Constant):
            symbol = str(first.value)
            return values[symbol] if symbol in values else SymbolicDim(symbol)
        parts = [_size(argument, text, values) for argument in node.args]
        if name == "Integer":
            return parts[0]
        if name == "Add":
            return _folded(parts, lambda x, y: x + y)
        if name == "Mul" and sum(not isinstance(part, int) for part in parts) <= 1:
            return _folded(parts, lambda x, y: x * y)
        if name in _FIXED and all(isinstance(part, int) for part in parts):
            return _FIXED[name](*parts)
    raise NotAffine(f"the size '{text}' is not a sum of multiples of symbols")


def _folded(parts: Sequence[Dim], combine: Callable[[Any, Any], Dim]) -> Dim:
    total = parts[0]
    for part in parts[1:]:
        total = combine(total, part)
    return total


def sizes_from_examples(
    program: Program, inputs: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, int]:
    """The value of each symbol in the inputs' dims, so that the examples fit.

    UserError names the input and dimension that does not fit the export.
    """
    if not program.symbols:
        raise UserError("the export has fixed sizes already; give no example inputs")
    bound = [b for b in program.inputs if b.kind in ("user", "fixed")]
    leaves = [Tree.leaf() if b.kind == "user" else b.value for b in bound]
    tree = with_constants(program.input_tree, leaves)
    users = [b for b in bound if b.kind == "user"]
    positional, named = tree.children
    paths = positional.paths("input", program.names) + named.paths("", [str(k) for k in named.keys])
    try:
        leaves = tree.flatten((tuple(inputs), dict(keywords)))
    except StructureError as error:
        raise UserError(f"the example inputs do not have the export's structure: {error}") from None
    values: dict[str, int] = {}
    wanted: list[tuple[str, int, Dim, int]] = []
    for user, path, leaf in zip(users, paths, leaves, strict=True):
        type, shape = program.graph.types.get(user.name), tuple(getattr(leaf, "shape", ()))
        if type is None or len(shape) != type.rank:
            raise UserError(f"{path}: the example has {len(shape)} dimensions, expected {type}")
        for axis, (size, given) in enumerate(zip(type.dims, shape, strict=True)):
            wanted.append((path, axis, size, int(given)))
            if isinstance(size, SymbolicDim) and len(size.symbols) == 1:
                ((name, factor),) = (size.affine or {}).items()
                values.setdefault(name, (int(given) - size.constant) // factor)
    for path, axis, size, given in wanted:
        known = size.bind(values) if isinstance(size, SymbolicDim) else size
        if known != given:
            raise UserError(f"{path}: dimension {axis} is {given}, the export needs {size}")
    for name, value in values.items():
        said = program.symbols.get(name, Symbol())
        if not said.admits(value):
            raise UserError(f"the size {name} = {value} is not what the export admits: {said}")
    return values
