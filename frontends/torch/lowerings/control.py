"""Control flow and what is no computation: cond, while_loop, gradient modes, assertions, sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import Dim, SymbolicDim
from ....hlo.types import F64, I1, I64, ElementType, unsharded
from ..context import Blocked, Context
from ..program import Graph


def ignored(c: Context, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Nothing: a check that the export already made, or a hint."""
    return ()


def with_gradients(c: Context, enabled: bool, graph: Graph, *operands: Any) -> tuple[Any, ...]:
    """The nested graph; gradients are no part of a program."""
    return _inlined(c, graph, operands, c.node.args[2:])


def with_autocast(
    c: Context, device: Any, dtype: Any, enabled: bool, cache: Any, graph: Graph, *operands: Any
) -> tuple[Any, ...]:
    """The nested graph where autocast is off; the export has resolved the types where it is on."""
    if enabled:
        raise Blocked("runs under autocast", "run_decompositions() before saving, or .to(dtype)")
    return _inlined(c, graph, operands, c.node.args[5:])


def _inlined(
    c: Context, graph: Graph, operands: Sequence[Any], places: Sequence[Any]
) -> tuple[Any, ...]:
    """The nested graph, which may change its operands; `places`: those of the node."""
    results, written = c.inline_writing(graph, operands)
    for number, value in written.items():
        c.write(places[number], value)
    return tuple(results)


def cond(
    c: Context, predicate: Any, yes: Graph, no: Graph, operands: Sequence[Any] = ()
) -> tuple[Any, ...]:
    """One of two nested graphs, which may change their operands."""
    places = c.node.args[3] if len(c.node.args) > 3 else ()
    if isinstance(predicate, bool):
        return _inlined(c, yes if predicate else no, operands, places)
    if not isinstance(predicate, Value):
        raise Blocked("branches on a symbolic size", "export this dimension with a fixed size")
    chosen = c.builder.reshape(c.convert(predicate, I1), ())
    parts = []
    for graph in (yes, no):
        with c.building() as builder:
            parts.append((builder, *c.inline_writing(graph, operands)))
    changed = sorted({number for *_, written in parts for number in written})
    regions = [
        builder.region([*results, *(written.get(n, operands[n]) for n in changed)])
        for builder, results, written in parts
    ]
    types = list(map(unsharded, regions[0].result_types))
    plain = len(types) - len(changed)
    types[:plain] = c.sized(plain) or types[:plain]
    found = c.builder.op("if", [chosen], {}, regions, types).results
    for number, value in enumerate(found[:plain]):
        sizes = zip(*(region.result_types[number].dims for region in regions), strict=True)
        c.data.tell(c.builder, value, [c.data.most(*pair) for pair in sizes])
    for number, value in zip(changed, found[plain:], strict=True):
        c.write(places[number], value)
    return found[:plain]


def while_loop(
    c: Context, condition: Graph, body: Graph, carried: Sequence[Any], extra: Sequence[Any] = ()
) -> tuple[Any, ...]:
    """`carried` replaced by the body's results while the condition holds."""
    if not all(isinstance(value, Value) for value in carried):
        raise Blocked("carries something that is no tensor", "make the counter a tensor")

    def test(*values: Value) -> Value:
        (holds,) = c.inline(condition, [*values, *extra])
        return c.builder.reshape(c.convert(holds, I1), ())

    def step(*values: Value) -> list[Value]:
        return c.inline(body, [*values, *extra])

    return tuple(c.iterate(carried, test, step))


def size_arithmetic(name: str) -> Callable[..., Any]:
    """Arithmetic on numbers: exact for sizes, in f64 where it leaves them."""

    def lower(c: Context, *numbers: Any) -> Any:
        if any(isinstance(number, Value) for number in numbers):
            return _of_values(c, name, numbers)
        if not any(isinstance(number, SymbolicDim) for number in numbers):
            return _FIXED[name](*numbers)
        left, right = (*numbers, 0)[:2]
        whole = all(isinstance(number, (int, SymbolicDim)) for number in numbers)
        if whole and name in ("add", "sub", "mul", "neg", "floordiv", "mod"):
            return _FIXED[name](*numbers)
        if name == "pow" and isinstance(right, int) and right >= 0:
            return left**right
        if name in _DIRECTIONS and (known := _compared(c, name, left, right)) is not None:
            return known
        return _of_values(c, name, numbers)

    return lower


def _compared(c: Context, name: str, left: Any, right: Any) -> bool | None:
    """What a comparison of sizes gives at all of them; None where it depends on them."""
    if not all(isinstance(number, (int, SymbolicDim)) for number in (left, right)):
        return None
    match name:
        case "eq" | "ne":
            known = c.facts.is_equal(left, right)
            return known if known is None or name == "eq" else not known
        case "le":
            return c.facts.at_most(left, right)
        case "lt":
            return c.facts.at_most(left + 1, right)
        case "ge":
            return c.facts.at_most(right, left)
        case _:
            return c.facts.at_most(right + 1, left)


def item(c: Context, self: Value) -> Value:
    """The only element: an operand where a number may stand, not a size."""
    return c.builder.reshape(self, ())


def _of_values(c: Context, name: str, numbers: Sequence[Any]) -> Value:
    """Arithmetic on numbers of which the program computes one: as Python's, in i64 and f64."""
    values = [
        number if isinstance(number, Value) else c.convert(number, _of_python(number))
        for number in numbers
    ]
    if name in _DIRECTIONS:
        return c.compare(_DIRECTIONS[name], *values)
    whole = all(not value.element.is_float for value in values)
    if name in ("floordiv", "mod") and whole:
        quotient = c.floor_divide(*values)
        if name == "floordiv":
            return quotient
        return c("subtract", values[0], c("multiply", quotient, values[1]))
    if name in ("int", "trunc", "floor", "ceil") and not whole:
        rounded = {"floor": "floor", "ceil": "ceil"}.get(name)
        return c.convert(values[0] if rounded is None else c(rounded, values[0]), I64)
    if name in ("truediv", "pow", "sqrt", "float") or not whole:
        values = [c.convert(value, F64) for value in values]
    meaning = _MEANINGS.get(name)
    if meaning is None:
        raise Blocked(
            f"computes '{name}' of a number that the program computes", "keep it a tensor"
        )
    return values[0] if not meaning else c(meaning, *c.together(*values))


def _of_python(number: Any) -> ElementType:
    """The element type in which Python computes with a number."""
    if isinstance(number, bool):
        return I1
    return I64 if isinstance(number, (int, SymbolicDim)) else F64


_DIRECTIONS = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_MEANINGS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "power",
    "neg": "negate", "sqrt": "sqrt", "float": "", "int": "", "trunc": "", "floor": "", "ceil": "",
}  # fmt: skip

_FIXED: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "neg": lambda x: -x,
    "floordiv": lambda x, y: x // y,
    "truediv": lambda x, y: x / y,
    "mod": lambda x, y: x % y,
    "pow": lambda x, y: x**y,
    "sqrt": math.sqrt,
    "float": float,
    "int": int,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}


def size_extreme(choose: Callable[[Context], Callable[[Dim, Dim], Dim]]) -> Callable[..., Any]:
    def lower(c: Context, *sizes: Any) -> Any:
        if any(isinstance(size, Value) for size in sizes):
            raise Blocked("compares a number that the program computes", "keep it a tensor")
        return functools.reduce(choose(c), sizes)

    return lower


def size_choice(c: Context, condition: Any, yes: Any, no: Any) -> Any:
    """One of two numbers; a number read from a tensor may decide."""
    if not isinstance(condition, Value):
        return yes if condition else no
    whole = all(isinstance(value, int) for value in (yes, no))
    first, second = (
        value if isinstance(value, Value) else c.scalar(value, I64 if whole else F64)
        for value in (yes, no)
    )
    return c("select", c.convert(condition, I1), first, c.convert(second, first.element))


def size_negation(c: Context, condition: Any) -> Any:
    return c("not", condition) if isinstance(condition, Value) else not condition


_IGNORED = (
    "aten._assert_async.default", "aten._assert_async.msg", "aten._assert_scalar.default",
    "aten._assert_tensor_metadata.default", "aten._functional_assert_async.msg",
    "aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default",
    "torch._check", "torch._constrain_as_size", "aten._print.default", "torch._set_grad_enabled",
)  # fmt: skip

TABLE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_IGNORED, ignored),
    **{f"sym.{name}": size_arithmetic(name) for name in _FIXED},
    "sym.ite": size_choice,
    "sym.not": size_negation,
    "sym.max": size_extreme(lambda c: c.larger),
    "sym.min": size_extreme(lambda c: c.smaller),
    "aten._local_scalar_dense.default": item,
    "aten.item.default": item,
    "cond": cond,
    "while_loop": while_loop,
    "wrap_with_autocast": with_autocast,
    "wrap_with_set_grad_enabled": with_gradients,
}
