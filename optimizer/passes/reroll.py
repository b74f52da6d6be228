"""reroll, unroll: equal layers are looked at once.

`Reroll` makes one function of operations that repeat, called with the values and weights of each
copy; the passes behind it go over the function once, whatever the number of copies. `Unroll` puts
the copies back, each with its own weights and its own lines. Weights that passes in between derive
from those of the function are derived again for each copy.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

from ...hlo.build import make_op
from ...hlo.derivation import derived
from ...hlo.errors import CompilerBug
from ...hlo.graph import Function, Module, Op, Origin, Region, Value, Weight, arguments
from ...hlo.text import canonical_op
from ...hlo.verify import FUSED, INLINED, Level
from ..keys import Keys
from ..licence import Ledger
from ..repeats import VIEWS, Copy, repeats
from ..rewrite import copied
from . import Pass

CALL = "call_with_weights"
COMMON = frozenset(
    {"broadcast_in_dim", "constant", "iota"}
)  # of what all calls are given, each function does these
PARTS = frozenset({"slice", "dynamic_slice", "gather"})
COPIES = "copies"  # attribute of a function that stands for that many equal parts of a program


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
        starts: dict[Op, tuple[str, Copy, Copy]] = {}  # by the first operation of each copy
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
                        put(_on(one, values), one.results)
                    values.update(
                        (b, values.get(a, a))
                        for a, b in zip(one.results, other.results, strict=True)
                    )
                put(_call(name, model, copy, values), copy.results)
            elif op not in inside and op.definition.pattern != "source":
                put(_on(op, values), op.results)
        results = [values.get(value, value) for value in module.body.results]
        main = Region(module.body.arguments, _without_idle_sources(ops, results), results)
        return module.with_functions({module.entry: module.main.with_body(main), **functions})

    def fits(self, module: Module, one: Copy, two: Copy) -> bool:
        """Whether the passes make of two copies together twice what they make of one."""
        once, twice = self.texts(module, one), self.texts(module, two)
        return twice == Counter({text: 2 * count for text, count in once.items()})

    def texts(self, module: Module, copy: Copy) -> Counter[str]:
        """What the passes make of a copy: its operations, as texts that tell what they compute."""
        names = set(copy.weights)
        alone = Module(
            {"main": Function("main", _function_body(copy))},
            weights={name: weight for name, weight in module.weights.items() if name in names},
        )
        for step in self.passes:
            alone = _unheard(step)(alone)
        return Counter(
            canonical_op(op)
            for op in alone.body.ops
            if op.definition.pattern != "source" and op.name not in VIEWS
        )


def _unheard(step: Pass) -> Pass:
    """The pass, telling nobody what it does."""
    names = [field.name for field in fields(step)] if is_dataclass(step) else ()
    return replace(step, ledger=Ledger()) if "ledger" in names else step


def _function_body(copy: Copy) -> Region:
    """The operations of a copy on arguments, with the sources that they read."""
    own = arguments([value.type for value in copy.operands])
    values: dict[Value, Value] = dict(zip(copy.operands, own, strict=True))
    ops: list[Op] = []
    for op in (*copy.views, *copy.ops):
        for value in op.operands:
            if value not in values and value.op is not None:
                ops.append(_copied(value.op, {}, {}))
                values[value] = ops[-1].results[value.index]
        new = _copied(op, values, {})
        values.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Region(own, ops, [values[value] for value in copy.results])


def _call(name: str, model: Copy, copy: Copy, values: Mapping[Value, Value]) -> Op:
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


@dataclass(frozen=True)
class Unroll:
    """FUSED -> FUSED, also before kernels are made: calls of `Reroll` are their functions again.

    passes: those that went over the functions. They go over the whole program as well where they
    could carry on what they know of the operations around the copies.
    """

    passes: tuple[Pass, ...] = ()
    name: ClassVar[str] = "unroll"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        if not is_rolled(module):
            return module
        copier = _Copier(module)
        values: dict[Value, Value] = {}
        for op in module.body.ops:
            if op.name == CALL:
                results = copier.call(op, [values.get(value, value) for value in op.operands])
            else:
                results = copier.put(_on(op, values)).results
            values.update((a, b) for a, b in zip(op.results, results, strict=True) if a is not b)
        results = [values.get(value, value) for value in module.body.results]
        main = Region(module.body.arguments, copier.ops, results)
        functions = {module.entry: module.main.with_body(main)}
        used = {op.weight for op in main.walk() if op.name == "weight"}
        if module.signature is not None:  # initial values of state
            used |= {a.default for a in module.signature.arguments if a.default is not None}
        weights = {name: weight for name, weight in copier.weights.items() if name in used}
        whole = replace(module, functions=functions, weights=weights)
        if _is_open(module):
            for step in self.passes:
                whole = step(whole)
        return whole


def _is_open(module: Module) -> bool:
    """Whether something may be known of a copy's operands, or too little be needed of its results,
    for the function to say the most that can be said: where a call is given a constant, or only
    parts of a result are read."""
    uses = module.body.uses
    for op in module.body.ops:
        if op.name == CALL:
            if any(v.op is not None and v.op.definition.pattern == "source" for v in op.operands):
                return True
            for value in op.results:
                users = [user for user, _ in uses.get(value, ())]
                if all(user is not None and user.name in PARTS for user in users):
                    return True
    return False


class _Copier:
    """Collects a program's operations and weights; a call becomes a copy of its function."""

    def __init__(self, module: Module) -> None:
        self.functions = module.functions
        self.ops: list[Op] = []
        self.weights = dict(module.weights)
        self.keys = Keys()
        self.views: dict[Any, Op] = {}  # those, and sources, that are there, by what they are
        self.models: dict[str, Op] = {}  # by function, the call that stands where it was taken
        for op in module.body.ops:
            if op.name == CALL and all(inside == here for inside, here in op.weights):
                self.models.setdefault(op.callee, op)

    def put(self, op: Op) -> Op:
        """The operation, or an equal one that is there, where that is a source or a view."""
        if op.definition.pattern == "source" or op.name in VIEWS:
            key = self.keys.op(op)
            if key is not None and key in self.views:
                return self.views[key]
            self.views[key] = op
        self.ops.append(op)
        return op

    def call(self, op: Op, operands: Sequence[Value]) -> list[Value]:
        body = self.functions[op.callee].body
        names: dict[str, str] = dict(op.weights)
        model = self.models.get(op.callee)
        origins: dict[Origin, Origin] = {}
        if model is not None and len(model.origin) == len(op.origin):
            origins = dict(zip(model.origin, op.origin, strict=True))
        values = dict(zip(body.arguments, operands, strict=True))
        for inner in body.ops:
            if inner.name == "weight":
                values[inner.result] = self.weight(inner, names)
                continue
            new = self.put(_copied(inner, values, origins))
            values.update(zip(inner.results, new.results, strict=True))
        return [values[value] for value in body.results]

    def weight(self, op: Op, names: dict[str, str]) -> Value:
        """The `weight` operation of this copy, once for each name."""
        name = self.renamed(op.weight, names)
        made = Op(op.definition, (), {"weight": name}, (), op.result_types, op.origin)
        return self.put(made).result

    def renamed(self, name: str, names: dict[str, str]) -> str:
        """The weight that a copy has where the function has `name`: its own, one that is derived
        of its own in the same way, or one that all copies share."""
        if name not in names:
            names[name] = name
            derivation = self.weights[name].derivation
            if derivation is not None:
                found = [self.renamed(source.name, names) for source in derivation.sources]
                if found != [source.name for source in derivation.sources]:
                    names[name] = self.again(self.weights[name], found)
        return names[name]

    def again(self, model: Weight, sources: Sequence[str]) -> str:
        """The name of the weight that follows from other sources as this one does from its own."""
        assert model.derivation is not None
        renamed = {
            old.name: new for old, new in zip(model.derivation.sources, sources, strict=True)
        }
        base = max((old for old in renamed if model.name.startswith(old)), key=len, default="")
        name = renamed.get(base, "") + model.name[len(base) :]
        known = self.weights.get(name)
        if known is not None and (
            known.derivation is None
            or [source.name for source in known.derivation.sources] != list(sources)
        ):
            name += f"[{hashlib.blake2b(repr(sources).encode(), digest_size=6).hexdigest()}]"
        if name not in self.weights:
            inverse = model.inverse
            if inverse is not None:
                inverse = renamed.get(inverse[0], inverse[0]), inverse[1]
            given = [self.weights[source] for source in sources]
            aliases = given[0].aliases if model.aliases else ()
            self.weights[name] = derived(name, given, model.derivation.region, aliases, inverse)
        return name


def is_rolled(module: Module) -> bool:
    """Whether functions of the module stand for what `Reroll` has found."""
    return any(COPIES in function.attributes for function in module.functions.values())


def each_function(step: Pass, module: Module) -> Module:
    """A pass over a module whose layers are functions: over each, as if it were the program."""
    module = _with_common_values(module)
    functions: dict[str, Function] = {}
    weights = dict(module.weights)
    notes = dict.fromkeys(module.notes)
    changed = False
    for name, function in module.functions.items():
        is_entry = name == module.entry
        used = {op.weight for op in function.body.walk() if op.name == "weight"}
        alone = replace(
            module,
            functions={name: function},
            entry=name,
            weights={n: w for n, w in module.weights.items() if is_entry or n in used},
            signature=module.signature if is_entry else None,
            notes=(),
        )
        after = step(alone)
        changed |= after is not alone
        if set(after.functions) != {name}:
            raise CompilerBug(f"pass '{step.name}' adds or removes functions of a rolled program")
        functions[name] = after.functions[name]
        weights.update(after.weights)
        place = "" if is_entry else f"in {function.attributes[COPIES]} equal parts each: "
        notes.update(dict.fromkeys(place + note for note in after.notes))
    if not changed:
        return module
    return replace(module, functions=functions, weights=weights, notes=tuple(notes))


def _with_common_values(module: Module) -> Module:
    """Functions have the constants, the weights and the views that every call gives them."""
    body = module.body
    calls: dict[str, list[Op]] = {}
    for op in body.ops:
        if op.name == CALL:
            calls.setdefault(op.callee, []).append(op)
    changed: dict[Op, Op] = {}
    functions = dict(module.functions)
    for name, found in calls.items():
        taken = {inside for call in found for inside, _ in call.weights}
        columns = list(zip(*(call.operands for call in found), strict=True))
        moved: dict[int, Op] = {}
        for number, given in enumerate(columns):
            op = given[0].op
            if op is None or any(value is not given[0] for value in given):
                continue
            same = op.weight not in taken if op.name == "weight" else op.name in COMMON
            if same:
                moved[number] = op
        if not moved:
            continue
        kept = [number for number in range(len(columns)) if number not in moved]
        views = [op for op in moved.values() if op.operands]
        functions[name] = _given(functions[name], moved, kept)
        for call in found:
            operands = [call.operands[n] for n in kept] + [v for op in views for v in op.operands]
            changed[call] = Op(
                call.definition, operands, call.attributes, (), call.result_types, call.origin
            )
    if not changed:
        return module
    values: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in body.ops:
        new = _on(changed.get(op, op), values)
        ops.append(new)
        values.update((a, b) for a, b in zip(op.results, new.results, strict=True) if a is not b)
    results = [values.get(value, value) for value in body.results]
    main = Region(body.arguments, _without_idle_sources(ops, results), results)
    functions[module.entry] = module.main.with_body(main)
    return _with_common_values(module.with_functions(functions))


def _given(function: Function, moved: Mapping[int, Op], kept: Sequence[int]) -> Function:
    """The function that computes some of its arguments itself, of arguments behind the others."""
    body = function.body
    types = [body.arguments[number].type for number in kept]
    types += [value.type for op in moved.values() for value in op.operands]
    own = arguments(types)
    values = {body.arguments[n]: new for n, new in zip(kept, own, strict=False)}
    ops: list[Op] = []
    position = len(kept)
    for number, op in moved.items():
        given = own[position : position + len(op.operands)]
        position += len(given)
        new = _copied(op, dict(zip(op.operands, given, strict=True)), {})
        ops.append(new)
        values[body.arguments[number]] = new.result
    for op in body.ops:
        new = _on(op, values)
        ops.append(new)
        values.update((a, b) for a, b in zip(op.results, new.results, strict=True) if a is not b)
    return function.with_body(Region(own, ops, [values.get(v, v) for v in body.results]))


def _on(op: Op, values: Mapping[Value, Value]) -> Op:
    """The operation on what its operands, and what its regions capture, became."""
    if any(value in values for region in op.regions for value in region.captures()):
        return copied(op, values)
    return op.with_operands([values.get(value, value) for value in op.operands])


def _copied(op: Op, values: Mapping[Value, Value], origins: Mapping[Origin, Origin]) -> Op:
    """A fresh copy of an operation and of its regions, with other origins."""
    regions: list[Region] = []
    for region in op.regions:
        own = arguments(region.argument_types)
        inner = {**values, **dict(zip(region.arguments, own, strict=True))}
        ops: list[Op] = []
        for old in region.ops:
            new = _copied(old, inner, origins)
            inner.update(zip(old.results, new.results, strict=True))
            ops.append(new)
        regions.append(Region(own, ops, [inner.get(value, value) for value in region.results]))
    operands = [values.get(value, value) for value in op.operands]
    origin = tuple(origins.get(known, known) for known in op.origin)
    return Op(op.definition, operands, op.attributes, regions, op.result_types, origin)


def _without_idle_sources(ops: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    used = {value for op in ops for value in op.operands} | set(results)
    used.update(value for op in ops for region in op.regions for value in region.captures())
    return [
        op
        for op in ops
        if op.definition.pattern != "source" or any(value in used for value in op.results)
    ]
