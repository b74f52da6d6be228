"""Control flow and what is no computation: cond, while_loop, gradient modes, assertions, sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import SymbolicDim
from ....hlo.types import F64, I1, I64, unsharded
from ..context import Blocked, Context, static
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
    found = c.builder.op("if", [chosen], {}, regions, types).results
    plain = len(found) - len(changed)
    for number, value in zip(changed, found[plain:], strict=True):
        c.write(places[number], value)
    return found[:plain]


def while_loop(
    c: Context, condition: Graph, body: Graph, carried: Sequence[Any], extra: Sequence[Any] = ()
) -> tuple[Any, ...]:
    """`carried` replaced by the body's results while the condition holds."""
    if not all(isinstance(value, Value) for value in carried):
        raise Blocked("carries something that is no tensor", "make the counter a tensor")
    types = [value.tensor.with_sharding(None) for value in carried]

    def test(*values: Value) -> list[Value]:
        (holds,) = c.inline(condition, [*values, *extra])
        return [c.builder.reshape(c.convert(holds, I1), ())]

    def step(*values: Value) -> list[Value]:
        return c.inline(body, [*values, *extra])

    regions = [c.nested(types, test), c.nested(types, step)]
    return c.builder.op("while", list(carried), {}, regions, types).results


def size_arithmetic(name: str) -> Callable[..., Any]:
    """Arithmetic on sizes, as far as the result stays a sum of multiples of symbols."""

    def lower(c: Context, left: Any, right: Any) -> Any:
        if isinstance(left, Value) or isinstance(right, Value):
            return _of_values(c, name, left, right)
        if not isinstance(left, SymbolicDim) and not isinstance(right, SymbolicDim):
            return _FIXED[name](left, right)
        if name == "add":
            return left + right
        if name == "sub":
            return left - right
        if name == "mul" and (isinstance(left, int) or isinstance(right, int)):
            return left * right
        raise Blocked(
            f"computes '{name}' of the sizes {left} and {right}",
            "export this dimension with a fixed size",
        )

    return lower


def item(c: Context, self: Value) -> Value:
    """The only element: an operand where a number may stand, not a size."""
    return c.builder.reshape(self, ())


def _of_values(c: Context, name: str, left: Any, right: Any) -> Value:
    """Arithmetic on numbers of which one was read from a tensor."""
    if name in _DIRECTIONS:
        return c.compare(_DIRECTIONS[name], left, right)
    meaning = {"add": "add", "sub": "subtract", "mul": "multiply"}.get(name)
    if meaning is None:
        raise Blocked(f"computes '{name}' of a number read from a tensor", "keep it a tensor")
    return c(meaning, *c.together(left, right))


_DIRECTIONS = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}

_FIXED: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y,
    "truediv": lambda x, y: x / y,
    "mod": lambda x, y: x % y,
    "pow": lambda x, y: x**y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}


def size_extreme(choose: Callable[..., int]) -> Callable[..., int]:
    def lower(c: Context, *sizes: Any) -> int:
        return choose(*map(static, sizes))

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
    "sym.max": size_extreme(max),
    "sym.min": size_extreme(min),
    "aten._local_scalar_dense.default": item,
    "aten.item.default": item,
    "cond": cond,
    "while_loop": while_loop,
    "wrap_with_autocast": with_autocast,
    "wrap_with_set_grad_enabled": with_gradients,
}
