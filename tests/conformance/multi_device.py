"""StableHLO's test programs of several devices (`interpreter.run_parallel`) on girih's.

`run(case)` gives what a case's `main` returns: what the parallel operations compute comes from
`girih.hlo.distributed`, the rest from the interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import girih
from girih.frontends import tree
from girih.frontends.stablehlo.convert import convert
from girih.hlo.distributed import interpret_parallel
from girih.hlo.graph import Module

from .runner import Case


def run(case: Case) -> list[np.ndarray]:
    """The results of the case's `main`, in order; UserError where girih cannot run it."""
    main = _function(case.document, "main")
    known: dict[tree.TreeValue, Any] = {}
    body = main.regions[0].operations
    plain = [op for op in body[:-1] if op not in case.parallel]
    wanted = [v for op in case.parallel for v in op.operands if v.type != "token"]
    given = {value for op in case.parallel for value in op.results}
    wanted += [value for value in body[-1].operands if value not in given]
    wanted = list(dict.fromkeys(wanted))
    end = tree.Operation(body[-1].name, wanted)
    module = _module(case.document, main, [*plain, end], [v.type for v in wanted])
    known.update(zip(wanted, girih.interpret(module, []), strict=True))
    for op in case.parallel:
        _run_parallel(case.document, op, known)
    return [known[value] for value in body[-1].operands]


def _run_parallel(document: tree.Document, op: tree.Operation, known: dict[Any, Any]) -> None:
    rows: Sequence[Sequence[str]] = op.attributes["programs"]
    modules: Mapping[str, Module] = {name: entry(document, name) for row in rows for name in row}
    programs = [[modules[name] for name in row] for row in rows]
    values = iter(op.operands)
    inputs = [
        [known.get(next(values)) for _ in module.body.arguments]
        for row in programs
        for module in row
    ]
    queue = [
        tuple(girih.interpret(entry(document, name), []))
        for name in op.attributes.get("infeed", ())
    ]
    found = interpret_parallel(programs, inputs, infeed=[queue])
    flat = iter(array for results in found.results for array in results)
    for value in op.results:
        if value.type != "token":
            known[value] = next(flat)


def _function(document: tree.Document, name: str) -> tree.Operation:
    (region,) = document.module.regions
    return next(op for op in region.operations if op.attributes.get("sym_name") == name)


def entry(document: tree.Document, name: str) -> Module:
    """The module whose `main` is that function."""
    function = _function(document, name)
    types = function.attributes["function_type"].results
    return _module(document, function, function.regions[0].operations, types)


def _module(
    document: tree.Document, like: tree.Operation, operations: list[tree.Operation], types: Any
) -> Module:
    region = tree.Region(like.regions[0].arguments, operations)
    inputs = tuple(value.type for value in region.arguments)
    attributes = {"sym_name": "main", "function_type": tree.FunctionType(inputs, tuple(types))}
    others = [
        op
        for op in document.module.regions[0].operations
        if op.attributes.get("sym_name") != "main" and op is not like
    ]
    main = tree.Operation("func.func", [], [], attributes, [region], like.location)
    top = tree.Operation("builtin.module", regions=[tree.Region([], [*others, main])])
    return convert(tree.Document(top, document.source, document.producer, document.locate))
