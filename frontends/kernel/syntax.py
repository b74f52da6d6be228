"""Facts about a kernel's source that need no values: where it stands, what it reads and assigns."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import NamedTuple

from ...hlo.errors import UserError


class KernelError(UserError):
    """A fault in a kernel's source, with its line and a caret under the expression."""


@dataclass(frozen=True)
class FunctionSource:
    """A function's syntax tree, and the lines of the file that it stands in."""

    name: str
    file: str
    first: int
    lines: tuple[str, ...]
    tree: ast.FunctionDef

    def error(self, node: ast.AST, reason: str) -> KernelError:
        """`file:line: reason`, the line, and a caret under the node."""
        line = getattr(node, "lineno", self.first)
        # The tree counts bytes of UTF-8, the reader of the message characters.
        raw = self.lines[line - 1].rstrip().encode() if line <= len(self.lines) else b""
        column, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", len(raw))
        if getattr(node, "end_lineno", line) != line:
            end = len(raw)
        text = raw.decode()
        start, stop = len(raw[:column].decode()), len(raw[:end].decode())
        indent = len(text) - len(text.lstrip())
        caret = " " * (start - indent) + "^" * max(1, stop - start)
        return KernelError(
            f"{self.file}:{line}: kernel '{self.name}': {reason}\n    {text[indent:]}\n    {caret}"
        )


@functools.cache
def source_of(function: FunctionType) -> FunctionSource:
    """The source of a Python function or lambda; UserError where Python does not have it."""
    code = function.__code__
    lines = tuple(linecache.getlines(code.co_filename, function.__globals__))
    try:
        tree = _parsed(lines)
        found = _found(tree, function)
    except (SyntaxError, LookupError):
        raise UserError(
            f"kernel '{function.__name__}': its source is not at hand; define it in a file (or in a"
            " notebook)"
        ) from None
    return FunctionSource(function.__name__, code.co_filename, code.co_firstlineno, lines, found)


@functools.lru_cache(maxsize=16)
def _parsed(lines: tuple[str, ...]) -> ast.Module:
    return ast.parse("".join(lines))


def _found(tree: ast.Module, function: FunctionType) -> ast.FunctionDef:
    """The function's own part of its file; LookupError if it is not there."""
    code = function.__code__
    if code.co_name != "<lambda>":
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
                first = min(n.lineno for n in (node, *node.decorator_list))
                if first == code.co_firstlineno:
                    return node
        raise LookupError(code.co_name)
    places = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line is not None and end_line is not None and column is not None
        and end_column not in (None, 0)
    ]  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            body = node.body
            start, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
            if places and (min(p[0] for p in places), max(p[1] for p in places)) == (start, end):
                statement = ast.copy_location(ast.Return(body), body)
                made = ast.FunctionDef("<lambda>", node.args, [statement], [])
                return ast.copy_location(made, node)
    raise LookupError("<lambda>")


def assigned(statements: Iterable[ast.stmt]) -> list[str]:
    """Names that the statements may assign, in order of first sight."""
    found: dict[str, None] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = None
    return list(found)


def _reads(node: ast.AST | None) -> Iterator[str]:
    for inner in ast.walk(node) if node is not None else ():
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            yield inner.id


class LoopFacts(NamedTuple):
    """assigned: names that the body may set. needed: those of them whose value before the loop, or
    from the round before, may be read, or whose value is read behind the loop."""

    assigned: tuple[str, ...]
    needed: frozenset[str]


@functools.lru_cache(maxsize=1024)
def loop_facts(tree: ast.FunctionDef, loop: ast.For, around: tuple[ast.stmt, ...]) -> LoopFacts:
    """What a loop does with names; `around` are the loops that it stands in."""
    targets = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    first = _exposed(loop.body, set(targets))[0]
    names = tuple(assigned(loop.body))
    return LoopFacts(names, frozenset(first | _read_later(tree, loop, around)) & {*names})


def _exposed(statements: Sequence[ast.stmt], defined: set[str]) -> tuple[set[str], set[str]]:
    found: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.If):
            found |= set(_reads(statement.test)) - defined
            sides = [_exposed(body, set(defined)) for body in (statement.body, statement.orelse)]
            found |= sides[0][0] | sides[1][0]
            defined |= sides[0][1] & sides[1][1]
        elif isinstance(statement, ast.For):
            found |= set(_reads(statement.iter)) - defined
            targets = {n.id for n in ast.walk(statement.target) if isinstance(n, ast.Name)}
            found |= _exposed(statement.body, defined | targets)[0]
        else:
            found |= set(_reads(statement)) - defined
            if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                found |= {statement.target.id} - defined
            defined |= set(assigned([statement]))
    return found, defined


def _read_later(tree: ast.FunctionDef, loop: ast.stmt, around: Sequence[ast.stmt]) -> set[str]:
    """Names read behind a statement, or anywhere else in the loops around it."""
    inside = set(ast.walk(loop))
    end = loop.end_lineno or loop.lineno
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno > end:
            found.add(node.id)
        elif isinstance(node, ast.AugAssign) and node.lineno > end:
            found |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    for outer in around:
        for node in ast.walk(outer):
            if isinstance(node, ast.Name) and node not in inside:
                found.add(node.id)
    return found
