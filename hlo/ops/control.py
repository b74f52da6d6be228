"""Operations about order, choice and packaging: while, if, case, tuples, tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..factors import Factor, FactorBuilder, Factors
from ..graph import Op, Region
from ..room import BuildRegion, Case, OpDefinition, attribute, constraint, operand, variadic
from ..types import F32, I1, I32, TOKEN, TensorType, TupleType, Type
from .clauses import is_tensor, same_dims, same_element
from .examples import counting, f32, i1, i32


def same_types(left: Sequence[Type], right: Sequence[Type]) -> bool:
    """Equal types, but for symbolic dimensions and shardings."""
    return len(left) == len(right) and all(map(_same_type, left, right))


def _same_type(left: Type, right: Type) -> bool:
    if isinstance(left, TensorType) and isinstance(right, TensorType):
        return same_dims(left.dims, right.dims) and same_element(left.element, right.element)
    return left is right


def _is_predicate(types: Sequence[Type]) -> bool:
    return (
        len(types) == 1
        and isinstance(types[0], TensorType)
        and (types[0].rank == 0 and types[0].element is I1)
    )


class While(OpDefinition, name="while"):
    """results = operands, replaced by body(them) as long as cond(them) holds."""

    pattern = "control"
    flow = "loop"
    loops = True
    opaque = "how often its body runs is data"
    uncut = "its values pass along edges between it and its regions"
    regions = ("cond", "body")
    inputs = variadic()
    C1 = constraint(
        "cond takes the operands' types and returns an i1 scalar",
        lambda o: (
            same_types([v.type for v in o.operands], o.regions[0].argument_types)
            and _is_predicate(o.regions[0].result_types)
        ),
    )
    C2 = constraint(
        "body takes and returns the operands' types",
        lambda o: (
            same_types([v.type for v in o.operands], o.regions[1].argument_types)
            and same_types([v.type for v in o.operands], o.regions[1].result_types)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [v.type for v in o.operands]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        run, current = context["run"], list(arrays)
        cond, body = o.regions
        while bool(run(cond, current)[0]):
            current = run(body, current)
        return tuple(current)

    def cases(self) -> Iterator[Case]:
        def regions(build: BuildRegion) -> tuple[Region, ...]:
            types = [TensorType((), I32), TensorType((2,), F32)]

            def cond(b: Any, i: Any, x: Any) -> Any:
                return [b.compare("LT", i, b.constant(5, types[0]))]

            def body(b: Any, i: Any, x: Any) -> Any:
                return [b("add", i, b.constant(1, types[0])), b("multiply", x, x)]

            return build(types, cond), build(types, body)

        start = f32([0.5, 1.25])
        yield Case("while_squares", (i32(2), start), regions=regions)
        yield Case("while_never", (i32(7), start), regions=regions)


class If(OpDefinition, name="if"):
    """results = true_branch() where pred holds, else false_branch()."""

    pattern = "control"
    flow = "branch"
    opaque = "which branch runs is data"
    uncut = "its values pass along edges between it and its regions"
    regions = ("true_branch", "false_branch")
    pred = operand()
    C0 = constraint("pred is an i1 scalar", lambda o: _is_predicate([o.pred.type]))
    C1 = constraint("the branches take nothing", lambda o: not any(r.arguments for r in o.regions))
    C2 = constraint(
        "the branches return the same types",
        lambda o: same_types(o.regions[0].result_types, o.regions[1].result_types),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return o.regions[0].result_types

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return tuple(context["run"](o.regions[0 if bool(arrays[0]) else 1], ()))

    def cases(self) -> Iterator[Case]:
        for pred in (True, False):
            yield Case(f"if_{pred}", (i1(pred),), regions=_constants(1, 2))


def _constants(*values: float) -> Callable[[BuildRegion], tuple[Region, ...]]:
    kind = TensorType((2,), F32)
    return lambda build: tuple(
        build([], lambda b, value=value: [b.constant(value, kind)]) for value in values
    )


class CaseOp(OpDefinition, name="case"):
    """results = branches[index](); the last branch where index is out of bounds."""

    pattern = "control"
    flow = "branch"
    opaque = "which branch runs is data"
    uncut = "its values pass along edges between it and its regions"
    regions = ("*",)
    index = operand()
    C0 = constraint(
        "index is an i32 scalar", lambda o: o.index.rank == 0 and o.index.element is I32
    )
    C1 = constraint("0 < size(branches)", lambda o: len(o.regions) > 0)
    C2 = constraint("the branches take nothing", lambda o: not any(r.arguments for r in o.regions))
    C3 = constraint(
        "the branches return the same types",
        lambda o: all(same_types(o.regions[0].result_types, r.result_types) for r in o.regions[1:]),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return o.regions[0].result_types

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        index, count = int(arrays[0]), len(o.regions)
        return tuple(context["run"](o.regions[index if 0 <= index < count else count - 1], ()))

    def cases(self) -> Iterator[Case]:
        for index in (0, 2, 3, -1):
            yield Case(f"case_{index}", (i32(index),), regions=_constants(1, 2, 3))


class Composite(OpDefinition, name="composite"):
    """results = the function `decomposition` of the inputs; `name` says what it stands for."""

    pattern = "control"
    opaque = "its function says what it reads"
    uncut = "its values pass along edges between it and its function"
    inputs = variadic()
    name = attribute(str)
    decomposition = attribute(str)
    composite_attributes = attribute(dict, {})
    version = attribute(int, 0)
    C1 = constraint("name is not empty", lambda o: bool(o.attributes["name"]))
    C2 = constraint("decomposition is not empty", lambda o: bool(o.decomposition))

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        function = context["module"].functions[o.decomposition]
        return tuple(context["run"](function.body, arrays))


class OptimizationBarrier(OpDefinition, name="optimization_barrier"):
    """results = operands; nothing moves across it."""

    pattern = "opaque"
    distinct = True
    opaque = "nothing moves across it"
    inputs = variadic()

    def infer(self, o: Op) -> Sequence[Type]:
        return [v.type for v in o.operands]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return tuple(arrays)

    def shard(self, o: Op) -> Factors | None:
        rule = FactorBuilder(o)
        for n, value in enumerate(o.operands):
            for d, size in enumerate(value.dims if is_tensor(value) else ()):
                rule.add(Factor(size), {n: d}, {n: d})
        return rule.build()

    def cases(self) -> Iterator[Case]:
        yield Case("optimization_barrier", (counting(3), counting(2, dtype=np.int32)))


class Tuple(OpDefinition, name="tuple"):
    """result = the values as one."""

    pattern = "control"
    opaque = "a tuple has no elements of its own"
    uncut = "a tuple is cut by what is taken out of it"
    inputs = variadic()

    def infer(self, o: Op) -> Sequence[Type]:
        return [TupleType([v.type for v in o.operands])]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return (tuple(arrays),)


class GetTupleElement(OpDefinition, name="get_tuple_element"):
    """result = member `index` of operand."""

    pattern = "control"
    opaque = "a tuple has no elements of its own"
    uncut = "a tuple is cut by what is taken out of it"
    operand = operand()
    index = attribute(int)
    C1 = constraint(
        "operand is a tuple and 0 <= index < its size",
        lambda o: (
            isinstance(o.operand.type, TupleType) and 0 <= o.index < len(o.operand.type.members)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        assert isinstance(o.operand.type, TupleType)
        return [o.operand.type.members[o.index]]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return (arrays[0][o.index],)


class Token(OpDefinition):
    """result = a token that comes after the operands."""

    pattern = "control"
    opaque = "a token has no elements"
    uncut = "a token has no elements"
    inputs = variadic()
    C1 = constraint("operands are tokens", lambda o: all(v.type is TOKEN for v in o.operands))

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]

    def infer(self, o: Op) -> Sequence[Type]:
        return [TOKEN]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return (None,)


ROOMS = (
    While(), If(), CaseOp(), Composite(), OptimizationBarrier(), Tuple(), GetTupleElement(),
    Token("after_all"), Token("create_token"),
)  # fmt: skip
