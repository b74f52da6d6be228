"""mask-bounded: a dimension whose size data decide becomes a whole one, with the size beside it.

Elements behind the size hold anything; what folds elements sees its neutral element there instead,
what moves them counts from the true size. So programs with `set_dimension_size` run where sizes are
fixed. Results are whole as well, and the program computes their sizes behind them, and whether its
data have what its operations need (`Signature.measured`): whoever runs it cuts, and says what is
wrong. The rules of each family of operations stand in `optimizer/masks/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ...hlo.build import Builder
from ...hlo.errors import GirihError, UnsupportedError
from ...hlo.graph import Module, Op, Region, Value, signature_of
from ...hlo.ops import dynamic
from ...hlo.verify import HLO, INLINED, Level
from ..licence import BITWISE, Ledger
from ..masks import control, folds, moves
from ..masks.ranges import is_proven
from ..masks.scope import MaskScope, Rule, Unmasked, Whole
from .inline import Inline

NOTE = (
    "sizes that data decide are masks over whole dimensions: elements behind a size are computed, "
    "too"
)
RULES: dict[str, Rule] = {**moves.RULES, **folds.RULES, **control.RULES}
_STARTS = ("set_dimension_size", *(room.name for room in dynamic.ROOMS))


@dataclass(frozen=True)
class MaskBounded:
    """HLO -> INLINED where data decide sizes in the program; else the same module. UnsupportedError
    for the first operation that has no mask, or size that has no bound.
    """

    name: ClassVar[str] = "mask-bounded"
    takes: ClassVar[Level] = HLO
    gives: ClassVar[Level] = INLINED
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    def __call__(self, module: Module) -> Module:
        if not module.has(*_STARTS):
            return module
        inlined = Inline(self.ledger)(module)
        scope = MaskScope(inlined, self.ops)
        if not any(scope.is_free(value) for op in inlined.walk() for value in op.results):
            return module
        b = Builder(check=False)
        body, signature = inlined.body, signature_of(inlined)
        found = scope.body(b, body, [scope.find(value) for value in body.arguments])
        results, holding = found[: len(signature.results)], found[len(signature.results) :]
        stated = [
            replace(result, dims=tuple(d if isinstance(d, int) else str(d) for d in whole.dims))
            for result, whole in zip(signature.results, results, strict=True)
        ]
        sources = body.results[len(results) :]
        measured = [
            (one, whole.value)
            for one, whole, source in zip(signature.measured, holding, sources, strict=True)
            if not is_proven(source, scope)
        ]
        measured += scope.measured([dim for whole in results for dim in whole.dims])
        signature = replace(
            signature,
            results=tuple(stated),
            measured=tuple(one for one, _ in measured),
            symbols=(),
            constraints=(),
        )
        values = [*(whole.value for whole in results), *(value for _, value in measured)]
        made = inlined.with_main(Region(body.arguments, b.ops, values))
        if scope.bounds:
            made = made.with_notes(NOTE)
        given = {n: said for n, said in module.symbols.items() if n in scope.given}
        kept = tuple(c for c in module.constraints if scope.given.issuperset(c.symbols))
        return replace(made, signature=signature, symbols=given, constraints=kept)

    def ops(self, scope: MaskScope, b: Builder, region: Region) -> None:
        """Append what the operations of a region become."""
        for op in region.ops:
            plain = not any(map(scope.is_free, (*op.operands, *op.results)))
            if op.name not in control.RULES and any(map(scope.has_changed, _captured(op))):
                raise UnsupportedError(
                    f"{op.place}{op.name}: its body reads a value around it, in a program whose "
                    "data decide sizes; make it an operand, fix the sizes, or interpret it"
                )
            if plain and op.name not in control.RULES:
                new = op.with_operands([scope.mapping.get(v, v) for v in op.operands])
                scope.mapping.update(zip(op.results, new.results, strict=True))
                b.append(new)
                continue
            with b.at(op.origin):
                try:
                    scope.bind(op, self.made(scope, b, op))
                except Unmasked as reason:
                    raise UnsupportedError(
                        f"{op.place}{op.name}: it has a size that is known only while the program "
                        f"runs, and {reason}; compute with a mask instead, fix the size, or "
                        "interpret it"
                    ) from None
            if not plain:
                self.ledger.record("mask-bounded", BITWISE, op)

    def made(self, scope: MaskScope, b: Builder, op: Op) -> list[Whole]:
        """What one operation with such a size becomes."""
        rule = RULES.get(op.name)
        if rule is None and op.definition.pattern == "elementwise" and not op.regions:
            rule = moves.elementwise
        if rule is not None:
            found = rule(scope, b, op, [scope.find(v) for v in op.operands])
            return found if isinstance(found, list) else [found]
        parts = Builder(check=False)
        try:
            results = op.definition.decompose(parts, op, *op.operands)
        except (GirihError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            results = None  # it needs fixed sizes
        if results is None:
            raise Unmasked("the operation has no mask")
        self.ops(scope, b, Region((), parts.ops, results))
        return [scope.find(value) for value in results]


def _captured(op: Op) -> Iterator[Value]:
    """What the regions of an operation read from around it."""
    for region in op.regions:
        yield from region.captures()
