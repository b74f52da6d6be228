"""Walks a kernel's source and builds its operations: expressions, statements, calls.

Values known when the kernel is compiled (sizes, types, numbers, functions) are ordinary Python
objects, and what is done with them alone is done at once; the rest becomes operations.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any, NamedTuple, NoReturn

from ...hlo.errors import CompilerBug, UserError
from ...hlo.graph import Origin
from ...hlo.types import I1
from . import arithmetic, flow, names, windows
from .flow import Break, Continue, Missing
from .syntax import FunctionSource, KernelError, source_of
from .values import LanguageError, Tile, Trace, TracedMemory, is_number


class Method(NamedTuple):
    """A method of a tile, bound to it."""

    function: Callable[..., Any]


class Return(Exception):
    """Leaves the function that is walked."""

    def __init__(self, value: Any) -> None:
        self.value = value


# What a kernel's values may depend on besides its arguments: (where, name, value).
Reads = dict[tuple[int, str], tuple[Any, str, Any]]

_FAULTS = (
    UserError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError,
    NameError,
)  # fmt: skip
_LANGUAGE = frozenset(names.FUNCTIONS)
_MAXIMUM_DEPTH = 32


class SyntaxWalker:
    """One call of one function: `run(arguments)` walks its body."""

    def __init__(self, function: FunctionType, trace: Trace, reads: Reads, depth: int = 0) -> None:
        self.function, self.trace, self.reads, self.depth = function, trace, reads, depth
        self.source: FunctionSource = source_of(function)
        self.locals: dict[str, Any] = {}
        self.loops: list[ast.stmt] = []  # around the current statement
        self.barriers: list[str] = []  # "unrolled", or what forbids to leave

    def run(self, arguments: Mapping[str, Any]) -> Any:
        """What the function returns."""
        self.locals.update(arguments)
        try:
            self.block(self.source.tree.body)
        except Return as leaving:
            return leaving.value
        return None

    # Errors.

    def fail(self, node: ast.AST, reason: str) -> NoReturn:
        raise self.source.error(node, reason)

    @contextmanager
    def blaming(self, node: ast.AST) -> Iterator[None]:
        """Faults inside are the user's, at this node."""
        try:
            yield
        except (KernelError, CompilerBug):
            raise
        except _FAULTS as error:
            reason = str(error) if isinstance(error, UserError) else _named(error)
            raise self.source.error(node, reason) from error

    # Statements.

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            rule = getattr(self, f"do_{type(statement).__name__}", None)
            if rule is None:
                self.fail(statement, f"{_spelled(statement)} is not part of the kernel language")
            self.mark(statement)
            rule(statement)

    def mark(self, node: ast.AST) -> None:
        """What is built from now on comes from this line."""
        line = getattr(node, "lineno", self.source.first)
        self.trace.builder.origin = (Origin(self.source.file, line, self.source.name),)

    def do_Pass(self, node: ast.Pass) -> None:
        pass

    def do_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.expression(node.value)

    def do_Assign(self, node: ast.Assign) -> None:
        value = self.expression(node.value)
        for target in node.targets:
            self.assign(target, value)

    def do_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.expression(node.value))

    def do_AugAssign(self, node: ast.AugAssign) -> None:
        target, value = node.target, self.expression(node.value)
        kind = type(node.op).__name__
        if isinstance(target, ast.Subscript):
            memory, window = self.place(target)
            if kind != "Add":
                self.fail(node, "memory is changed by += alone; use tl.store(..., combine=...)")
            with self.blaming(node):
                windows.store(memory, window, value, combine="add")
        elif isinstance(target, ast.Name):
            old = self.name(target, target.id)
            self.locals[target.id] = self.binary(node, kind, old, value)
        else:
            self.fail(target, "an attribute cannot be assigned")

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            if isinstance(value, TracedMemory):
                self.fail(target, f"{value} is memory, not a value; read a window of it")
            self.locals[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            if not isinstance(value, (tuple, list)) or len(value) != len(target.elts):
                self.fail(target, f"{len(target.elts)} names for {_described(value)}")
            for inner, part in zip(target.elts, value, strict=True):
                self.assign(inner, part)
        elif isinstance(target, ast.Subscript):
            memory, window = self.place(target)
            self.mark(target)
            with self.blaming(target):
                windows.store(memory, window, value)
        else:
            self.fail(target, f"{_spelled(target)} cannot be assigned")

    def place(self, target: ast.Subscript) -> tuple[TracedMemory, windows.KernelWindow]:
        """The memory and window that a subscript stores to."""
        memory = self.expression(target.value)
        if not isinstance(memory, TracedMemory):
            self.fail(target, "only memory is changed in place; make a new tile with tl.where")
        index = self.expression(target.slice)
        with self.blaming(target):
            return memory, windows.window_of(memory, index)

    def do_For(self, node: ast.For) -> None:
        flow.loop(self, node)

    def do_If(self, node: ast.If) -> None:
        flow.branch(self, node)

    def do_Return(self, node: ast.Return) -> None:
        stuck = [barrier for barrier in self.barriers if barrier != "unrolled"]
        if stuck:
            self.fail(
                node, f"return cannot leave {stuck[-1]}; set a value and return it at the end"
            )
        value = None if node.value is None else self.expression(node.value)
        if self.depth == 0 and value is not None:
            self.fail(node, "a kernel returns nothing: it stores to its outputs")
        raise Return(value)

    def do_Break(self, node: ast.Break) -> None:
        self.leave(node, Break())

    def do_Continue(self, node: ast.Continue) -> None:
        self.leave(node, Continue())

    def leave(self, node: ast.stmt, how: Exception) -> NoReturn:
        if self.barriers[-1:] == ["unrolled"]:
            raise how
        where = self.barriers[-1] if self.barriers else "the kernel"
        self.fail(node, f"{_spelled(node)} cannot leave {where}; use tl.where, or tl.static_range")

    def do_Assert(self, node: ast.Assert) -> None:
        held = self.expression(node.test)
        if isinstance(held, (Tile, TracedMemory)):
            self.fail(node.test, "assert checks constants; this is computed by the kernel")
        if not held:
            said = "" if node.msg is None else f": {self.expression(node.msg)}"
            self.fail(node, f"the assertion does not hold{said}")

    # Expressions.

    def expression(self, node: ast.expr) -> Any:
        """What an expression is: a tile, memory, or a constant."""
        rule = getattr(self, f"see_{type(node).__name__}", None)
        if rule is None:
            self.fail(node, f"{_spelled(node)} is not part of the kernel language")
        return rule(node)

    def see_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def see_Name(self, node: ast.Name) -> Any:
        return self.name(node, node.id)

    def name(self, node: ast.AST, name: str) -> Any:
        if name in self.locals:
            value = self.locals[name]
            if isinstance(value, Missing):
                self.fail(node, f"'{name}' {value.reason}")
            return value
        code = self.function.__code__
        if name in code.co_freevars:
            cell = (self.function.__closure__ or ())[code.co_freevars.index(name)]
            value = self.note(cell, name)
        elif name in self.function.__globals__:
            value = self.note(self.function.__globals__, name)
        elif hasattr(builtins, name):
            return getattr(builtins, name)
        else:
            self.fail(node, f"'{name}' has no value here")
        return value

    def note(self, where: Any, name: str) -> Any:
        """A value from around the function, remembered: a later call compares it."""
        value = outer_value(where, name)
        self.reads[(id(where), name)] = (where, name, value)
        return value

    def see_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.items(node.elts))

    def see_List(self, node: ast.List) -> Any:
        return list(self.items(node.elts))

    def items(self, nodes: Sequence[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.expression(node.value)
                if not isinstance(value, (tuple, list)):
                    self.fail(node, f"{_described(value)} cannot be unpacked")
                yield from value
            else:
                yield self.expression(node)

    def see_Slice(self, node: ast.Slice) -> slice:
        parts = (node.lower, node.upper, node.step)
        return slice(*(None if part is None else self.expression(part) for part in parts))

    def see_Subscript(self, node: ast.Subscript) -> Any:
        base, index = self.expression(node.value), self.expression(node.slice)
        self.mark(node)
        with self.blaming(node):
            if isinstance(base, TracedMemory):
                return windows.load(base, windows.window_of(base, index))
            if isinstance(base, Tile):
                return windows.tile_part(base, index)
            return base[index]

    def see_Attribute(self, node: ast.Attribute) -> Any:
        base = self.expression(node.value)
        self.mark(node)
        with self.blaming(node):
            if isinstance(base, (Tile, TracedMemory)):
                found = names.attribute_of(base, node.attr)
                return Method(found) if callable(found) else found
            return getattr(base, node.attr)

    def see_BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.expression(node.left), self.expression(node.right)
        return self.binary(node, type(node.op).__name__, left, right)

    def binary(self, node: ast.AST, kind: str, left: Any, right: Any) -> Any:
        on_constants, on_tiles = arithmetic.BINARY[kind]
        self.mark(node)
        with self.blaming(node):
            if arithmetic.is_traced(left, right):
                return on_tiles(left, right)
            return on_constants(left, right)

    def see_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.expression(node.operand)
        self.mark(node)
        with self.blaming(node):
            if isinstance(node.op, ast.Not):
                return self.negated(value)
            on_constants, on_tiles = arithmetic.UNARY[type(node.op).__name__]
            return on_tiles(value) if arithmetic.is_traced(value) else on_constants(value)

    def negated(self, value: Any) -> Any:
        if not arithmetic.is_traced(value):
            return not value
        return arithmetic.invert(self.truth(value))

    def truth(self, value: Any) -> Tile:
        """A scalar truth value; LanguageError for tiles."""
        tile = arithmetic.tile_of(value)
        if tile.ndim:
            raise LanguageError(f"{tile} is no scalar: combine tiles by &, | and ~, or tl.any")
        return arithmetic.cast(tile, I1)

    def see_BoolOp(self, node: ast.BoolOp) -> Any:
        combine = "and" if isinstance(node.op, ast.And) else "or"
        result: Any = None
        for number, part in enumerate(node.values):
            value = self.expression(part)
            with self.blaming(part):
                if number == 0:
                    result = value
                elif arithmetic.is_traced(result, value):
                    result = arithmetic.apply(combine, self.truth(result), self.truth(value))
                else:
                    result = (result and value) if combine == "and" else (result or value)
            if not arithmetic.is_traced(result) and bool(result) != (combine == "and"):
                return result
        return result

    def see_Compare(self, node: ast.Compare) -> Any:
        left = self.expression(node.left)
        result: Any = True
        for kind, part in zip(node.ops, node.comparators, strict=True):
            right = self.expression(part)
            self.mark(node)
            with self.blaming(node):
                found = self.compared(type(kind).__name__, left, right)
                traced = arithmetic.is_traced(result, found)
                result = arithmetic.apply("and", result, found) if traced else result and found
            left = right
        return result

    def compared(self, kind: str, left: Any, right: Any) -> Any:
        if kind in ("Is", "IsNot"):
            return (left is right) == (kind == "Is")
        if kind in ("In", "NotIn") and not arithmetic.is_traced(left, right):
            return (left in right) == (kind == "In")
        if kind not in arithmetic.COMPARE:
            raise LanguageError("'in' works on constants only")
        on_constants, direction = arithmetic.COMPARE[kind]
        if not arithmetic.is_traced(left, right):
            return on_constants(left, right)
        return arithmetic.compare(direction, left, right)

    def see_IfExp(self, node: ast.IfExp) -> Any:
        condition = self.expression(node.test)
        if not arithmetic.is_traced(condition):
            return self.expression(node.body if condition else node.orelse)
        left, right = self.expression(node.body), self.expression(node.orelse)
        self.mark(node)
        with self.blaming(node):
            return names.where(self.truth(condition), left, right)

    def see_JoinedStr(self, node: ast.JoinedStr) -> str:
        parts = []
        for part in node.values:
            value = part.value if isinstance(part, ast.FormattedValue) else part
            parts.append(str(self.expression(value)))
        return "".join(parts)

    # Calls.

    def see_Call(self, node: ast.Call) -> Any:
        callee = self.expression(node.func)
        inputs = list(self.items(node.args))
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                self.fail(keyword.value, "** is not part of the kernel language")
            keywords[keyword.arg] = self.expression(keyword.value)
        self.mark(node)
        with self.blaming(node):
            return self.call(node, callee, inputs, keywords)

    def call(self, node: ast.Call, callee: Any, inputs: list[Any], keywords: dict[str, Any]) -> Any:
        if isinstance(callee, Method):
            return callee.function(*inputs, **keywords)
        if isinstance(callee, FunctionType) and callee in _LANGUAGE:
            return callee(*inputs, **keywords)
        if hasattr(callee, "is_girih_kernel"):
            raise LanguageError("a kernel cannot call a kernel; share a plain Python function")
        traced = any(map(_holds_tiles, (*inputs, *keywords.values())))
        if callee in (min, max) and traced and len(inputs) > 1 and not keywords:
            best = names.minimum if callee is min else names.maximum
            result = inputs[0]
            for value in inputs[1:]:
                result = best(result, value)
            return result
        if callee is abs and traced:
            return names.abs_(*inputs)
        if callee is len and traced and isinstance(inputs[0], (tuple, list)):
            return len(inputs[0])
        if callee is print:
            raise LanguageError("a kernel cannot print; run kernel.interpret(...) on small arrays")
        if not traced:
            return callee(*inputs, **keywords)
        if isinstance(callee, FunctionType):
            return self.inlined(callee, inputs, keywords)
        name = getattr(callee, "__name__", repr(callee))
        raise LanguageError(
            f"'{name}' does not take tiles; the functions of girih.language do, and Python "
            "functions written in the kernel language"
        )

    def inlined(self, callee: FunctionType, inputs: list[Any], keywords: dict[str, Any]) -> Any:
        """The result of a Python function that takes tiles, walked like the kernel."""
        import inspect

        if self.depth >= _MAXIMUM_DEPTH:
            raise LanguageError(f"'{callee.__name__}' is called too deep; kernels do not recurse")
        bound = inspect.signature(callee).bind(*inputs, **keywords)
        bound.apply_defaults()
        walker = SyntaxWalker(callee, self.trace, self.reads, self.depth + 1)
        return walker.run(bound.arguments)


def outer_value(where: Any, name: str) -> Any:
    """The present value of a closure's cell or of a global name."""
    if isinstance(where, CellType):
        return where.cell_contents
    return operator.getitem(where, name)


def _holds_tiles(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_tiles, value))
    return isinstance(value, (Tile, TracedMemory))


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _described(value: Any) -> str:
    if isinstance(value, (Tile, TracedMemory)) or is_number(value):
        return repr(value)
    return f"{type(value).__name__}" if len(repr(value)) > 60 else repr(value)


_WORDS = {
    "While": "while", "With": "with", "Try": "try", "FunctionDef": "a nested function",
    "ClassDef": "a class", "Lambda": "lambda", "ListComp": "a list comprehension",
    "GeneratorExp": "a generator", "DictComp": "a dict comprehension", "Dict": "a dict",
    "Set": "a set", "Import": "import", "ImportFrom": "import", "Raise": "raise",
    "Delete": "del", "Global": "global", "Nonlocal": "nonlocal", "Yield": "yield",
    "Await": "await", "NamedExpr": ":=", "Starred": "*", "Match": "match", "Break": "break",
    "Continue": "continue", "SetComp": "a set comprehension", "YieldFrom": "yield",
}  # fmt: skip


def _spelled(node: ast.AST) -> str:
    kind = type(node).__name__
    return _WORDS.get(kind, kind.lower())
