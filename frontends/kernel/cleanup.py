"""Copies of regions: without repetitions, unused operations, and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...hlo.graph import Function, Op, Region, Value, arguments
from ...hlo.tiling import MEMORY_OPS


def cleaned(region: Region, inputs: int) -> Region:
    """The body without operations that nothing uses, each computation and each load of one of the
    first `inputs` arguments, which nothing changes, once."""
    live: set[Op] = set()
    _mark(region, set(), live)
    return _unique(region, _KnownOperations({}, live, frozenset(region.arguments[:inputs])), {})


class _KnownOperations(NamedTuple):
    """What a copy knows: operations by their keys, which are needed, memory that is only read."""

    ops: dict[Any, Op]
    live: set[Op]
    constant: frozenset[Value]


def _mark(region: Region, needed: set[Value], live: set[Op]) -> None:
    """Find the operations whose results are needed, or that store something."""
    needed.update(region.results)
    for op in reversed(region.ops):
        if _acts(op) or any(result in needed for result in op.results):
            live.add(op)
            needed.update(op.operands)
            for body in op.regions:
                _mark(body, needed, live)


def _acts(op: Op) -> bool:
    return op.definition.effects or any(i.definition.effects for r in op.regions for i in r.walk())


def _unique(region: Region, around: _KnownOperations, mapping: dict[Value, Value]) -> Region:
    """A copy in which an operation equal to one before it (or around it) is that one."""
    own = arguments(region.argument_types)
    mapping = {**mapping, **dict(zip(region.arguments, own, strict=True))}
    known = around._replace(ops=dict(around.ops))
    ops: list[Op] = []
    for op in region.ops:
        if op not in known.live:
            continue
        operands = [mapping.get(value, value) for value in op.operands]
        key = _key(op, operands, known.constant)
        found = known.ops.get(key) if key is not None else None
        if found is None:
            nested = [_unique(body, known, mapping) for body in op.regions]
            found = Op(op.definition, operands, op.attributes, nested, op.result_types, op.origin)
            ops.append(found)
            if key is not None:
                known.ops[key] = found
        mapping.update(zip(op.results, found.results, strict=True))
    return Region(own, ops, [mapping.get(value, value) for value in region.results])


def _key(op: Op, operands: Sequence[Value], constant: frozenset[Value]) -> Any:
    """Equal for operations that compute the same; None where that cannot be said."""
    changes = op.name in MEMORY_OPS and op.operands[0] not in constant
    if op.regions or op.definition.effects or changes:
        return None
    facts = tuple(sorted(op.attributes.items(), key=lambda item: item[0]))
    key = (op.name, tuple(operands), facts, op.result_types)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def without_calls(region: Region, functions: Mapping[str, Function | None]) -> Region:
    """A copy of the region in which each call is the called function's operations."""
    own = arguments(region.argument_types)
    mapping = dict(zip(region.arguments, own, strict=True))
    ops: list[Op] = []
    results = _inlined(region, mapping, functions, ops)
    return Region(own, ops, results)


def _inlined(
    region: Region,
    mapping: dict[Value, Value],
    functions: Mapping[str, Function | None],
    ops: list[Op],
) -> list[Value]:
    for op in region.ops:
        operands = [mapping.get(value, value) for value in op.operands]
        callee = functions.get(op.callee) if op.name == "call" else None
        if callee is not None:
            inner = dict(zip(callee.body.arguments, operands, strict=True))
            results = _inlined(callee.body, inner, functions, ops)
            mapping.update(zip(op.results, results, strict=True))
            continue
        nested = []
        for body in op.regions:
            own = arguments(body.argument_types)
            inner = {**mapping, **dict(zip(body.arguments, own, strict=True))}
            inside: list[Op] = []
            results = _inlined(body, inner, functions, inside)
            nested.append(Region(own, inside, results))
        new = Op(op.definition, operands, op.attributes, nested, op.result_types, op.origin)
        ops.append(new)
        mapping.update(zip(op.results, new.results, strict=True))
    return [mapping.get(value, value) for value in region.results]
