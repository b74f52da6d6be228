"""Loops and branches of a kernel: which values they carry, and what they become."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...hlo.build import Builder
from ...hlo.graph import Region, Value
from ...hlo.types import TensorType
from . import arithmetic, syntax
from .values import INDEX, LanguageError, Tile, Trace, is_number
from .windows import scalar_index

if TYPE_CHECKING:
    from .trace import SyntaxWalker

_UNROLLED = "unrolled"
_LOOP = "a loop over range"
_BRANCH = "an if on a value that the kernel computes"


class Missing(NamedTuple):
    """The value of a name that has none here, and why."""

    reason: str


class Break(Exception):
    """Leaves an unrolled loop."""


class Continue(Exception):
    """Goes on with the next round of an unrolled loop."""


def loop(walker: SyntaxWalker, node: ast.For) -> None:
    """`for i in range(...)`, or a loop over constants, which is unrolled."""
    if node.orelse:
        walker.fail(node.orelse[0], "else behind a loop is not part of the kernel language")
    bounds = _bounds(walker, node.iter)
    if bounds is None:
        _unrolled(walker, node, walker.expression(node.iter))
        return
    if not isinstance(node.target, ast.Name):
        walker.fail(node.target, "a loop over range has one variable")
    lower, upper, step = bounds
    if isinstance(lower, int) and isinstance(upper, int) and len(range(lower, upper, step)) <= 1:
        known = set(walker.locals)
        with _inside(walker, node, _LOOP):
            for index in range(lower, upper, step):
                walker.locals[node.target.id] = arithmetic.index_of(index)
                walker.block(node.body)
        only = [name for name in syntax.assigned(node.body) if name not in known]
        _forget(walker, node, [node.target.id, *only])
        return
    _counted(walker, node, node.target.id, lower, upper, step)


def _bounds(walker: SyntaxWalker, node: ast.expr) -> tuple[Any, Any, int] | None:
    """Lower, upper and step of a call of `range`; None for anything else."""
    if not isinstance(node, ast.Call) or walker.expression(node.func) is not range:
        return None
    parts = list(walker.items(node.args))
    with walker.blaming(node):
        if not 1 <= len(parts) <= 3 or node.keywords:
            raise LanguageError(f"range takes 1 to 3 bounds, not {len(parts)}")
        lower, upper = (0, parts[0]) if len(parts) == 1 else parts[:2]
        step = parts[2] if len(parts) == 3 else 1
        if not isinstance(step, (int, np.integer)) or step < 1:
            raise LanguageError(
                f"the step of range is a constant of at least 1, not {step!r}; "
                "tl.static_range counts down as well"
            )
        return scalar_index(lower), scalar_index(upper), int(step)


@contextmanager
def _inside(walker: SyntaxWalker, node: ast.stmt, barrier: str) -> Iterator[None]:
    walker.barriers.append(barrier)
    if isinstance(node, ast.For):
        walker.loops.append(node)
    try:
        yield
    finally:
        walker.barriers.pop()
        if isinstance(node, ast.For):
            walker.loops.pop()


def _unrolled(walker: SyntaxWalker, node: ast.For, values: Any) -> None:
    if isinstance(values, Tile) or not hasattr(values, "__iter__"):
        walker.fail(
            node.iter, f"a loop goes over range, tl.static_range or a tuple, not {values!r}"
        )
    with _inside(walker, node, _UNROLLED):
        for value in values:
            walker.assign(node.target, value)
            try:
                walker.block(node.body)
            except Continue:
                continue
            except Break:
                break


def _counted(
    walker: SyntaxWalker, node: ast.For, variable: str, lower: Any, upper: Any, step: int
) -> None:
    trace, missing = walker.trace, Missing("")
    facts = syntax.loop_facts(walker.source.tree, node, tuple(walker.loops))
    carried = [
        name
        for name in facts.assigned
        if name != variable
        and name in facts.needed
        and not isinstance(walker.locals.get(name, missing), Missing)
    ]
    starts = [_start(walker, node, name) for name in carried]
    bounds = [_scalar(trace, bound) for bound in (lower, upper)]
    with trace.nested() as builder, _inside(walker, node, _LOOP):
        types = [tile.value.type for tile in starts]
        index, *values = builder.arguments([INDEX, *types])
        if trace.is_natural(lower):
            trace.natural.add(index)
        before = dict(walker.locals)
        walker.locals[variable] = Tile(index)
        walker.locals.update((n, Tile(v)) for n, v in zip(carried, values, strict=True))
        walker.block(node.body)
        walker.mark(node)
        results = [
            _carried(walker, node, name, start, before[name])
            for name, start in zip(carried, starts, strict=True)
        ]
        region = builder.region(results)
    walker.mark(node)
    operands = [*bounds, *(tile.value for tile in starts)]
    attributes = {"step": step} if step != 1 else {}
    op = trace.builder.op("tile_for", operands, attributes, (region,))
    _forget(walker, node, [variable, *facts.assigned])
    for name, result in zip(carried, op.results, strict=True):
        walker.locals[name] = Tile(result)


def _scalar(trace: Trace, bound: Any) -> Value:
    return bound.value if isinstance(bound, Tile) else trace.constant(bound, INDEX)


def _start(walker: SyntaxWalker, node: ast.For, name: str) -> Tile:
    value = walker.locals[name]
    if not isinstance(value, Tile) and not is_number(value):
        walker.fail(node, f"'{name}' changes in the loop, so it must be a tile, not {value!r}")
    return arithmetic.tile_of(value)


def _carried(walker: SyntaxWalker, node: ast.For, name: str, start: Tile, before: Any) -> Value:
    """The value that goes into the next round; it must have the type of the first."""
    value = walker.locals[name]
    if isinstance(value, Missing):
        walker.fail(node, f"'{name}' {value.reason}")
    if is_number(value):
        with walker.blaming(node):
            value = arithmetic.tile_of(value, start.dtype, start.shape)
    if not isinstance(value, Tile) or value.value.type is not start.value.type:
        first = f"{before!r}, so {start}" if is_number(before) else repr(start)
        walker.fail(
            node,
            f"'{name}' is {first} before the loop and {value!r} after its body; start it with the "
            "type and shape that it has then, for example by tl.zeros",
        )
    return value.value


def _forget(walker: SyntaxWalker, node: ast.stmt, assigned: list[str]) -> None:
    """Names that the loop sets have no value behind it, but for those that it carries."""
    reason = f"is set only inside the loop of line {node.lineno}; give it a value before the loop"
    for name in assigned:
        walker.locals[name] = Missing(reason)


def branch(walker: SyntaxWalker, node: ast.If) -> None:
    """A constant condition chooses a side; a computed scalar becomes an `if`."""
    condition = walker.expression(node.test)
    if not arithmetic.is_traced(condition):
        walker.block(node.body if condition else node.orelse)
        return
    walker.mark(node)
    with walker.blaming(node.test):
        predicate = walker.truth(condition)
    before = dict(walker.locals)
    sides: list[tuple[Builder, dict[str, Any]]] = []
    for body in (node.body, node.orelse):
        walker.locals = dict(before)
        with walker.trace.nested() as builder, _inside(walker, node, _BRANCH):
            walker.block(body)
        sides.append((builder, walker.locals))
    walker.locals = before
    merged, regions = _merge(walker, node, sides)
    walker.mark(node)
    op = walker.trace.builder.op("if", [predicate.value], {}, regions)
    for name, result in zip(merged, op.results, strict=True):
        walker.locals[name] = Tile(result)


def _merge(
    walker: SyntaxWalker, node: ast.If, sides: list[tuple[Builder, dict[str, Any]]]
) -> tuple[list[str], tuple[Region, ...]]:
    """Names that the sides set to tiles of one type, and the regions that give them."""
    (_, left), (_, right) = sides
    merged: list[str] = []
    types: list[TensorType] = []
    for name in syntax.assigned([node]):
        values = [side.get(name, Missing("")) for side in (left, right)]
        if values[0] is values[1] or _same_number(*values):
            walker.locals[name] = values[0]
            continue
        kind = _merged_type(*values)
        if kind is None:
            walker.locals[name] = Missing(
                f"has not the same type on both sides of the if of line {node.lineno}"
            )
        else:
            merged.append(name)
            types.append(kind)
    regions = []
    for builder, values in sides:
        found = [
            values[name].value
            if isinstance(values[name], Tile)
            else builder.constant(values[name], kind)
            for name, kind in zip(merged, types, strict=True)
        ]
        regions.append(builder.region(found))
    return merged, tuple(regions)


def _same_number(left: Any, right: Any) -> bool:
    return is_number(left) and type(left) is type(right) and left == right


def _merged_type(left: Any, right: Any) -> TensorType | None:
    """The one type of both values, a number taking the tile's; None where there is none."""
    for value in (left, right):
        if not isinstance(value, Tile) and not is_number(value):
            return None
    tiles = [value for value in (left, right) if isinstance(value, Tile)]
    if not tiles:
        return TensorType((), arithmetic.promoted(left, right))
    kind = tiles[0].value.tensor
    if len(tiles) == 2:
        return kind if tiles[1].value.type is kind else None
    number = right if isinstance(left, Tile) else left
    return kind if arithmetic.promoted(tiles[0], number) is kind.element else None
