"""Which pass, rule and operation change results: modules after each pass, interpreted and compared
with the source in float64.

The reference is the source with every float32 made a float64. What a pass gives is interpreted in
the types that it has, so the tolerance has to be above the rounding of the program itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..hlo.errors import GirihError
from ..hlo.graph import Dense, Function, Module, Op, Region, Value, Weight, arguments
from ..hlo.interpret import interpret
from ..hlo.regions import extract
from ..hlo.types import F32, F64, TensorType
from ..hlo.verify import verify
from .licence import Ledger
from .passes import Pass
from .pipeline import Pipeline

Array = np.ndarray[Any, Any]
_DEPTH = 6  # of the operations before the guilty one that a minimal program may have
_UNWIDENED = frozenset({"bitcast_convert", "custom_call", "foreign_call", "kernel_call"})


@dataclass(frozen=True)
class Fault:
    """The first change that breaks results. `error` is relative to the largest result; `rule` and
    `operation` are "" where a pass has no rules. `program` shows it: the smallest program found on
    which the pass, with that rule, still goes wrong, on these `inputs`."""

    name: str  # of the pass, "simplify:2" for its second run
    error: float
    rule: str = ""
    operation: str = ""
    place: str = ""
    hit: int = 0  # which firing of a rule in this pass, from 1
    program: Module | None = None
    inputs: Sequence[Array] = ()


@dataclass(frozen=True)
class _PassRun:
    name: str
    step: Pass
    before: Module
    after: Module


def reference(module: Module, inputs: Sequence[Array]) -> list[Array]:
    """The program's results in float64, where it can be computed so; else in its own types."""
    wide = widened(module)
    if wide is module:
        return interpret(module, inputs)
    return interpret(wide, [_wide_array(array) for array in inputs])


def widened(module: Module) -> Module:
    """The module with float64 for float32; itself where an operation depends on the bytes."""
    if any(op.name in _UNWIDENED for op in module.walk()):
        return module
    weights = {
        name: Weight(name, _wide_array(weight.array), None, weight.aliases)
        for name, weight in module.weights.items()
    }
    functions = {
        name: Function(name, _wide_region(function.body, {}))
        for name, function in module.functions.items()
    }
    wide = replace(module, functions=functions, weights=weights, signature=None)
    try:
        verify(wide)
    except GirihError:
        return module
    return wide


def error_of(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The largest difference of a result, as part of its largest element; inf where one alone is
    not finite, or integers differ."""
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        if one.shape != other.shape:
            return float("inf")
        if one.dtype.kind in "biu":
            worst = max(worst, 0.0 if np.array_equal(one, other) else float("inf"))
            continue
        kind = np.complex128 if other.dtype.kind == "c" else np.float64
        a, b = one.astype(kind), other.astype(kind)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.where(same, 0, np.abs(a - b))
        scale = float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b))) or 1.0
        largest = float(np.max(difference, initial=0.0))
        worst = max(worst, float("inf") if np.isnan(largest) else largest / scale)
    return worst


def find_fault(
    module: Module,
    pipeline: Pipeline,
    inputs: Sequence[Array],
    tolerance: float,
    disable: Sequence[str] = (),
) -> Fault | None:
    """The first pass after which results differ from the reference by more than `tolerance`, and
    the rule and the operation in it; None where all agree. A fault named "source": the program's
    own rounding is above the tolerance."""
    wanted = reference(module, inputs)

    def error(other: Module) -> float:
        try:
            return error_of(interpret(other, inputs), wanted)
        except GirihError:
            return float("inf")  # what cannot be run is wrong as well

    own = error(module)
    if not own <= tolerance:
        return Fault("source", own)
    stages: list[_PassRun] = []
    pipeline.run(module, disable=disable, on_module=lambda *stage: stages.append(_PassRun(*stage)))
    for stage in stages:
        if stage.after is not stage.before and not (found := error(stage.after)) <= tolerance:
            return _in_pass(stage, found, error, inputs, tolerance)
    return None


def _in_pass(
    stage: _PassRun,
    found: float,
    error: Callable[[Module], float],
    inputs: Sequence[Array],
    tolerance: float,
) -> Fault:
    """The firing of a rule with which the pass begins to be wrong, where it has rules."""
    fault = Fault(stage.name, found, program=stage.before, inputs=inputs)
    if not any(field.name == "ledger" for field in fields(stage.step)):  # pyright: ignore
        return fault

    def run(limit: int) -> tuple[float, Ledger]:
        ledger = Ledger(limit=limit)
        return error(_with_ledger(stage.step, ledger)(stage.before)), ledger

    whole = Ledger()
    _with_ledger(stage.step, whole)(stage.before)
    low, high = 0, whole.hits.total()
    if not high or not run(0)[0] <= tolerance:
        return fault  # it is wrong without any rule
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if run(middle)[0] <= tolerance else (low, middle)
    worst, ledger = run(high)
    if ledger.last is None or worst <= tolerance:
        return fault
    rule, op = ledger.last
    fault = replace(fault, rule=rule, operation=op.name, place=op.place, hit=high)
    return _smallest(op, fault, stage, tolerance)


def _with_ledger(step: Any, ledger: Ledger, rule: str = "") -> Any:
    """The pass with another ledger, and with one of its rules alone."""
    chosen: dict[str, Any] = {"ledger": ledger}
    if rule and any(field.name == "only" for field in fields(step)):
        chosen["only"] = frozenset({rule})
    return replace(step, **chosen)


def _smallest(op: Op, fault: Fault, stage: _PassRun, tolerance: float) -> Fault:
    """The fault with the operation and as few of those before it as show it on made-up inputs;
    itself, with the whole program, where none do."""
    members, frontier = [op], [op]
    for _ in range(_DEPTH):
        module = _cut(members, op, stage.before)
        inputs = None if module is None else _showing(module, fault.rule, stage.step, tolerance)
        if inputs is not None:
            return replace(fault, program=module, inputs=inputs)
        frontier = list(
            dict.fromkeys(v.owner for o in frontier for v in o.operands if isinstance(v.owner, Op))
        )
        frontier = [one for one in frontier if one not in members]
        if not frontier:
            break
        members += frontier
    return fault


def _cut(members: Sequence[Op], root: Op, module: Module) -> Module | None:
    """A program of some operations; None where they need what lies outside of a region."""
    chosen = set(members)
    ordered: dict[Op, None] = {}

    def visit(op: Op) -> None:
        for value in op.operands:
            owner = value.owner
            if isinstance(owner, Op) and (owner in chosen or not owner.operands):
                visit(owner)
        ordered[op] = None

    visit(root)
    if any(body.captures() for op in ordered for body in op.regions):
        return None
    inside = {value for op in ordered for value in op.results}
    inputs = dict.fromkeys(v for op in ordered for v in op.operands if v not in inside)
    body = extract(list(ordered), list(inputs), list(root.results))
    cut = replace(module.with_main(body), signature=None)
    used = {str(op.attributes["weight"]) for op in ordered if op.name == "weight"}
    return cut.with_weights({n: w for n, w in module.weights.items() if n in used})


def _showing(module: Module, rule: str, step: Pass, tolerance: float) -> list[Array] | None:
    """Made-up inputs on which the pass, with this rule alone, goes wrong; None if it does not."""
    generator = np.random.default_rng(0)
    try:
        inputs = [_made_up(value.type, generator) for value in module.body.arguments]
        after = _with_ledger(step, Ledger(), rule)(module)
        wrong = not error_of(interpret(after, inputs), reference(module, inputs)) <= tolerance
    except (GirihError, AttributeError):
        return None
    return inputs if wrong else None


def _made_up(type: Any, generator: np.random.Generator) -> Array:
    """Values of a tensor's type: normal floats, small integers, fair booleans."""
    element, dims = type.element, type.dims
    if element.kind in ("float", "complex"):
        return np.asarray(generator.standard_normal(dims)).astype(element.dtype)
    return np.asarray(generator.integers(0, 2, dims)).astype(element.dtype)


def _wide_array(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _wide_value(value: Any) -> Any:
    if isinstance(value, TensorType):
        return value.with_element(F64) if value.element is F32 else value
    if isinstance(value, Dense):
        return Dense(_wide_value(value.type), _wide_array(value.array))
    return F64 if value is F32 else value


def _wide_region(region: Region, outer: dict[Value, Value]) -> Region:
    own = arguments([_wide_value(kind) for kind in region.argument_types])
    mapping = outer | dict(zip(region.arguments, own, strict=True))
    ops: list[Op] = []
    for op in region.ops:
        new = Op(
            op.definition,
            [mapping[value] for value in op.operands],
            {name: _wide_value(value) for name, value in op.attributes.items()},
            [_wide_region(body, mapping) for body in op.regions],
            [_wide_value(kind) for kind in op.result_types],
            op.origin,
        )
        mapping.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Region(own, ops, [mapping[value] for value in region.results])
