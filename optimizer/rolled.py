"""Programs whose equal layers are functions: what stands between `reroll` and `unroll`.

The program's own region calls such a function with the values and the weights of each copy. Passes
go over one function at a time and see it as a program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..hlo.errors import CompilerBug
from ..hlo.graph import Function, Module, Op, Origin, Region, Value, arguments
from .rewrite import copied

CALL = "call_with_weights"
COPIES = "copies"  # attribute of a function that stands for that many equal parts of a program
WEIGHT_BYTES = "weight_bytes"  # attribute of the module: of all weights that the program has


def is_rolled(module: Module) -> bool:
    """Whether functions of the module stand for what `Reroll` has found."""
    return any(COPIES in function.attributes for function in module.functions.values())


def each_function(pass_name: str, step: Callable[[Module], Module], module: Module) -> Module:
    """A pass over a module whose layers are functions: over each, as if it were the program."""
    module = _with_common_values(module)
    functions: dict[str, Function] = {}
    weights = dict(module.weights)
    notes = dict.fromkeys(module.notes)
    changed = False
    for name, function in module.functions.items():
        is_entry = name == module.entry
        signature = module.signature if is_entry else None
        used = {op.weight for op in function.body.walk() if op.name == "weight"}
        if signature is not None:  # initial values of state
            used |= {a.default for a in signature.arguments if a.default is not None}
        alone = replace(
            module,
            functions={name: function},
            entry=name,
            weights={n: w for n, w in module.weights.items() if n in used},
            signature=signature,
            notes=(),
        )
        after = step(alone)
        changed |= after is not alone
        if set(after.functions) != {name}:
            raise CompilerBug(f"pass '{pass_name}' adds or removes functions of a rolled program")
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
            same = op.definition.pattern == "source" or op.name == "broadcast_in_dim"
            if same and not (op.name == "weight" and op.weight in taken):
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
        new = on_values(changed.get(op, op), values)
        ops.append(new)
        values.update((a, b) for a, b in zip(op.results, new.results, strict=True) if a is not b)
    results = [values.get(value, value) for value in body.results]
    main = Region(body.arguments, without_idle_sources(ops, results), results)
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
        new = fresh_copy(op, dict(zip(op.operands, given, strict=True)), {})
        ops.append(new)
        values[body.arguments[number]] = new.result
    for op in body.ops:
        new = on_values(op, values)
        ops.append(new)
        values.update((a, b) for a, b in zip(op.results, new.results, strict=True) if a is not b)
    return function.with_body(Region(own, ops, [values.get(v, v) for v in body.results]))


def on_values(op: Op, values: Mapping[Value, Value]) -> Op:
    """The operation on what its operands, and what its regions capture, became."""
    if any(value in values for region in op.regions for value in region.captures()):
        return copied(op, values)
    return op.with_operands([values.get(value, value) for value in op.operands])


def fresh_copy(op: Op, values: Mapping[Value, Value], origins: Mapping[Origin, Origin]) -> Op:
    """A fresh copy of an operation and of its regions, with other origins. What a kernel computes
    stays one region, which all copies have: what is known of it then holds for each of them."""
    regions: list[Region] = []
    for region in op.regions:
        if op.definition.sealed and not region.captures():
            regions.append(region)
            continue
        own = arguments(region.argument_types)
        inner = {**values, **dict(zip(region.arguments, own, strict=True))}
        ops: list[Op] = []
        for old in region.ops:
            new = fresh_copy(old, inner, origins)
            inner.update(zip(old.results, new.results, strict=True))
            ops.append(new)
        regions.append(Region(own, ops, [inner.get(value, value) for value in region.results]))
    operands = [values.get(value, value) for value in op.operands]
    origin = tuple(origins.get(known, known) for known in op.origin)
    return Op(op.definition, operands, op.attributes, regions, op.result_types, origin)


def without_idle_sources(ops: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    used = {value for op in ops for value in op.operands} | set(results)
    used.update(value for op in ops for region in op.regions for value in region.captures())
    return [
        op
        for op in ops
        if op.definition.pattern != "source" or any(value in used for value in op.results)
    ]
