"""reroll: equal layers are looked at once.

Operations that repeat become one function, called with the values and weights of each copy; the
passes behind it go over the function once, whatever the number of copies. `unroll` puts the copies
back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, cast

from ...hlo.build import make_op
from ...hlo.graph import Function, Module, Op, Origin, Region, Value, arguments
from ...hlo.text import canonical_op
from ...hlo.verify import INLINED, Level
from ..licence import Ledger
from ..repeats import VIEWS, RepeatedCopy, repeats
from ..rolled import CALL, COPIES, WEIGHT_BYTES, fresh_copy, on_values, without_idle_sources
from . import Pass


@dataclass(frozen=True)
class Reroll:
    """INLINED -> INLINED: what repeats in the program's own region is a function that is called.

    passes: those that will go over the functions. Copies are cut apart only where two that stand
    together become, by these passes, twice what one becomes: nothing is lost at the cut.
    """

    passes: tuple[Pass, ...] = ()
    name: ClassVar[str] = "reroll"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        if len(module.functions) > 1:
            return module
        functions: dict[str, Function] = {}
        starts: dict[
            Op, tuple[str, RepeatedCopy, RepeatedCopy]
        ] = {}  # by the first operation of each copy
        inside: set[Op] = set()
        values: dict[Value, Value] = {}
        for copies in repeats(module.body, lambda one, two: self.fits(module, one, two)):
            name = f"repeated_{len(functions)}"
            facts = {COPIES: len(copies)}
            functions[name] = Function(name, _function_body(copies[0]), attributes=facts)
            for copy in copies:
                starts[copy.ops[0]] = name, copies[0], copy
                inside.update((*copy.ops, *copy.shared))
        if not functions:
            return module
        ops = [op for op in module.body.ops if op.definition.pattern == "source"]

        def put(new: Op, old: Sequence[Value]) -> None:
            ops.append(new)
            values.update((a, b) for a, b in zip(old, new.results, strict=True) if a is not b)

        for op in module.body.ops:
            if op in starts:
                name, model, copy = starts[op]
                for one, other in zip(model.shared, copy.shared, strict=True):
                    if copy is model:
                        put(on_values(one, values), one.results)
                    values.update(
                        (b, values.get(a, a))
                        for a, b in zip(one.results, other.results, strict=True)
                    )
                put(_call(name, model, copy, values), copy.results)
            elif op not in inside and op.definition.pattern != "source":
                put(on_values(op, values), op.results)
        results = [values.get(value, value) for value in module.body.results]
        main = Region(module.body.arguments, without_idle_sources(ops, results), results)
        return replace(
            module,
            functions={module.entry: module.main.with_body(main), **functions},
            attributes={**module.attributes, WEIGHT_BYTES: _weight_bytes(module)},
        )

    def fits(self, module: Module, one: RepeatedCopy, two: RepeatedCopy) -> bool:
        """Whether the passes make of two copies together twice what they make of one."""
        once, twice = self.texts(module, one), self.texts(module, two)
        return twice == Counter({text: 2 * count for text, count in once.items()})

    def texts(self, module: Module, copy: RepeatedCopy) -> Counter[str]:
        """What the passes make of a copy: its operations, as texts that tell what they compute."""
        names = set(copy.weights)
        alone = Module(
            {"main": Function("main", _function_body(copy))},
            weights={name: weight for name, weight in module.weights.items() if name in names},
            attributes={WEIGHT_BYTES: _weight_bytes(module)},
        )
        for step in self.passes:
            alone = _unheard(step)(alone)
        return Counter(
            canonical_op(op)
            for op in alone.body.ops
            if op.definition.pattern != "source" and op.name not in VIEWS
        )


def _weight_bytes(module: Module) -> int:
    return sum(weight.type.bytes for weight in module.weights.values())


def _unheard(step: Pass) -> Pass:
    """The pass, telling nobody what it does."""
    if not is_dataclass(step) or all(field.name != "ledger" for field in fields(step)):
        return step
    quiet: Any = replace(cast(Any, step), ledger=Ledger())
    return quiet


def _function_body(copy: RepeatedCopy) -> Region:
    """The operations of a copy on arguments, with the sources that they read."""
    own = arguments([value.type for value in copy.operands])
    values: dict[Value, Value] = dict(zip(copy.operands, own, strict=True))
    ops: list[Op] = []
    for op in (*copy.views, *copy.ops):
        for value in op.operands:
            if value not in values and value.op is not None:
                ops.append(fresh_copy(value.op, {}, {}))
                values[value] = ops[-1].results[value.index]
        new = fresh_copy(op, values, {})
        values.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Region(own, ops, [values[value] for value in copy.results])


def _call(name: str, model: RepeatedCopy, copy: RepeatedCopy, values: Mapping[Value, Value]) -> Op:
    """A call in place of a copy. Its origins are those of the copy's operations, one by one, so
    that `Unroll` can tell which stands for which of the model's."""
    pairs = tuple(zip(model.weights, copy.weights, strict=True))
    origins: list[Origin] = []
    for wanted, op in zip(model.ops, copy.ops, strict=True):
        known = (
            op.origin if len(op.origin) == len(wanted.origin) else op.origin[:1] or wanted.origin
        )
        origins += known * (len(wanted.origin) // max(len(known), 1))
    return make_op(
        CALL,
        [values.get(value, value) for value in copy.operands],
        {"callee": name, "weights": pairs},
        (),
        [value.type for value in copy.results],
        tuple(origins),
    )
