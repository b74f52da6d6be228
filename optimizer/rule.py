"""What a rule is: named data with a licence, and examples on which it must fire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..hlo.build import Builder
from ..hlo.graph import Op, Region, Value
from ..hlo.types import Type
from .licence import BITWISE, Licence

if TYPE_CHECKING:
    from .rewrite import Rewriter

Replacement = Value | Sequence[Value] | None
Rewrite = Callable[[Op, "Rewriter"], Replacement]


class Example(NamedTuple):
    """A small program for a rule. `fires` says whether the rule must rewrite it, must not, or may
    (None).

    `inputs` are numpy arrays for the arguments; None lets the check draw hostile ones. `makes` are
    the operations that the rule leaves, in order; None where that is not said.
    """

    name: str
    region: Region
    inputs: tuple[Any, ...] | None = None
    fires: bool | None = True
    makes: tuple[str, ...] | None = None


def example(
    name: str,
    types: Sequence[Type],
    body: Callable[..., Value | Sequence[Value]],
    inputs: Sequence[Any] | None = None,
    fires: bool = True,
    makes: tuple[str, ...] | None = None,
) -> Example:
    """An example from a function of (builder, *arguments), like `build_region`."""
    builder = Builder()
    values = builder.arguments(types)
    results = body(builder, *values)
    results = [results] if isinstance(results, Value) else results
    given = None if inputs is None else tuple(inputs)
    return Example(name, builder.region(results), given, fires, makes)


@dataclass(frozen=True, eq=False)
class Rule:
    """Rewrites an operation whose name is in `roots` ("*": any) into other values of equal types.

    `rewrite` returns None where the rule does not apply, and must then have built nothing.
    `lowers` names the measure that every application lowers, so that rules terminate together.
    `ulps` is how far results may be apart on small dyadic values where the licence says
    REASSOCIATES: 0 where the formulas are exact on such values. `sums` says that both sides sum in
    an order that is the implementation's own, so that any licence is checked on such values.
    `local` rules look at which results are used: what they make stands for no equal operation.
    `makers`: unless one of these operations makes an operand, the rule does not apply; empty where
    nothing is known of that. `single`: the rule does not apply where what makes the root's operands
    has other users. `made_from`: what `rule(...)` was called with, for rules of formulas.
    """

    name: str
    roots: tuple[str, ...]
    rewrite: Rewrite
    licence: Licence = BITWISE
    examples: Callable[[], Iterable[Example]] = tuple
    lowers: str = "operations"
    ulps: int = 0
    text: str = ""
    sums: bool = False
    local: bool = False
    makers: frozenset[str] = frozenset()
    single: bool = False
    made_from: Mapping[str, Any] = field(default_factory=dict)

    def needs(self, op: Op) -> Licence:
        """The licence that rewriting `op` needs: none where no float or complex is involved."""
        if self.licence is BITWISE:
            return BITWISE
        for value in (*op.operands, *op.results):
            kind = getattr(getattr(value.type, "element", None), "kind", "")
            if kind in ("float", "complex"):
                return self.licence
        return BITWISE


def structural(
    name: str,
    *roots: str,
    licence: Licence = BITWISE,
    examples: Callable[[], Iterable[Example]],
    lowers: str = "operations",
    ulps: int = 0,
    sums: bool = False,
    local: bool = False,
    makers: Iterable[str] = (),
    single: bool = False,
) -> Callable[[Rewrite], Rule]:
    """Decorator: the function below it is a rule; its docstring's first line is the formula."""

    def make(function: Rewrite) -> Rule:
        text = (function.__doc__ or "").strip().splitlines()
        shown = text[0] if text else ""
        return Rule(
            name, roots, function, licence, examples, lowers, ulps, shown, sums, local,
            frozenset(makers), single,
        )  # fmt: skip

    return make
