"""StableHLO's own test programs on girih's engines, read with girih's own readers.

    python -m girih.tests.conformance.runner ARCHIVE... [--on interpreter|TARGET] [--match R]

A program of an archive (`.tar.xz` of `.mlir` files) is one or several modules with `// -----`
between them. Each function without parameters that ends in checks becomes a `Case`: the checks are
taken out of the tree, and what they compare becomes the function's results.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import girih
from girih.frontends import tree
from girih.frontends.stablehlo import read_tree
from girih.frontends.stablehlo.convert import convert
from girih.hlo.errors import UserError
from girih.hlo.graph import Module

from .compare import Check, agrees
from .programs import read_programs

DIVIDER = re.compile(r"^// -----.*$", re.MULTILINE)
# Nothing is folded: the compiled code computes what the program says.
AS_WRITTEN = girih.Options(fold_bytes=0, disable=("fold-constants", "fold-weights"))
CONST = "_const"  # checks against a constant of their own end so
# The short forms of the `check` and `interpreter` dialects, which are no StableHLO.
_COMPARISON = re.compile(
    r"^(\s*)check\.(\w+) (%[\w#]+), (%[\w#]+)((?:, \w+ = [-\w.+]+)*) : (tensor<[^\n{]+?)\s*(?://.*)?$",
    re.MULTILINE,
)
_CONSTANT = re.compile(
    r"^(\s*)check\.(\w+_const) (%[\w#]+), (dense<[^:]*?>)((?:, \w+ = [-\w.+]+)*)"
    r" : (tensor<[^\n{]+?)\s*(?:\{(\w+ = [^}]+)\})?\s*(?://.*)?$",
    re.MULTILINE,
)
_PROBE = re.compile(
    r"^(\s*)(%[\w#]+) = interpreter\.probe (%[\w#]+), (probe_id = \"[^\"]*\") : (tensor<[^\n]+)$",
    re.MULTILINE,
)
_RECORDED = re.compile(
    r"^(\s*)check\.(expect_serialized_eq) (%[\w#]+), (probe_id = \"[^\"]*\")(, iter = \d+)?"
    r" : (tensor<[^\n]+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Case:
    """One function with checks.

    `document` is a tree whose `main` returns (actual, expected) of each check, in order. `parallel`
    are the `interpreter.run_parallel` operations in it: what they give is not known to a program
    of one device, so whoever runs several devices answers for such a case.
    """

    name: str
    document: tree.Document
    checks: tuple[Check, ...]
    parallel: tuple[tree.Operation, ...] = ()

    def module(self) -> Module:
        return convert(self.document, self.name)


def read_cases(name: str, text: str) -> Iterator[Case]:
    """The checkable functions of one program, in its order.

    UserError where a module cannot be read.
    """
    seen: collections.Counter[str] = collections.Counter()
    for part in DIVIDER.split(text):
        if "check." not in part:
            continue
        document = read_tree(spelled_out(part), name)
        for case in _cases(name, document):
            seen[case.name] += 1
            count = seen[case.name]
            yield (
                case
                if count == 1
                else Case(f"{case.name}+{count}", case.document, case.checks, case.parallel)
            )


def spelled_out(text: str) -> str:
    """The text with checks and probes in MLIR's generic form."""
    text = _PROBE.sub(r'\1\2 = "interpreter.probe"(\3) {\4} : (\5) -> (\5)', text)
    text = _RECORDED.sub(r'\1"check.\2"(\3) {\4\5} : (\6) -> ()', text)
    text = _COMPARISON.sub(_generic_comparison, text)
    return _CONSTANT.sub(_generic_constant, text)


def _generic_comparison(found: re.Match[str]) -> str:
    indent, name, left, right, options, kind = found.groups()
    kinds = kind.split(", tensor<")
    kinds = [kinds[0], kinds[0] if len(kinds) == 1 else "tensor<" + kinds[1]]
    attributes = ", ".join(options.split(", ")[1:])
    return f'{indent}"check.{name}"({left}, {right}) {{{attributes}}} : ({", ".join(kinds)}) -> ()'


def _generic_constant(found: re.Match[str]) -> str:
    indent, name, value, number, options, kind, attributes = found.groups()
    extra = options + (f", {attributes}" if attributes else "")
    return f'{indent}"check.{name}"({value}) {{value = {number} : {kind}{extra}}} : ({kind}) -> ()'


def _cases(name: str, document: tree.Document) -> Iterator[Case]:
    (region,) = document.module.regions
    functions = [op for op in region.operations if op.name == "func.func" and op.regions]
    checked = [op for op in functions if any(map(_is_check, op.regions[0].operations))]
    for function in checked:
        if function.regions[0].arguments:
            continue
        main, checks = _returning_checks(function)
        title = str(function.attributes["sym_name"])
        others = [op for op in region.operations if op not in checked]
        module = tree.Operation(
            document.module.name,
            attributes=document.module.attributes,
            regions=[tree.Region([], [*others, main])],
            location=document.module.location,
        )
        parallel = [op for op in main.regions[0].operations if op.name.endswith(".run_parallel")]
        yield Case(
            name if title == "main" else f"{name}:{title}",
            tree.Document(module, name, document.producer, document.locate),
            tuple(checks),
            tuple(parallel),
        )


def _is_check(op: tree.Operation) -> bool:
    return _check_name(op).startswith("check.")


def _check_name(op: tree.Operation) -> str:
    if op.name == "stablehlo.custom_call":
        return str(op.attributes.get("call_target_name", ""))
    return op.name


def _returning_checks(function: tree.Operation) -> tuple[tree.Operation, list[Check]]:
    """The function as public `main` that returns what its checks compare, and the checks."""
    operations: list[tree.Operation] = []
    results: list[tree.TreeValue] = []
    checks: list[Check] = []
    probes: dict[str, tree.TreeValue] = {}
    *body, end = function.regions[0].operations
    for op in body:
        if op.name == "interpreter.probe":
            probes[op.attributes["probe_id"]] = op.operands[0]
        _forget_probes(op)
        if not _is_check(op):
            operations.append(op)
            continue
        name = _check_name(op).removeprefix("check.")
        pair = list(op.operands[:2])
        if name == "expect_serialized_eq":
            if op.attributes["probe_id"] not in probes:
                continue  # one of a loop's many values; the loop's results have checks too
            pair.append(probes[op.attributes["probe_id"]])
        elif len(pair) == 1:
            value = op.attributes["value"]
            pair.append(tree.TreeValue(value.type))
            constant = tree.Operation("stablehlo.constant", [], pair[1:], {"value": value})
            operations.append(constant)
        numbers = {
            key: getattr(value, "value", value)
            for key, value in op.attributes.items()
            if key in ("tolerance", "max_ulp_difference", "min_ulp_difference")
        }
        checks.append(Check(name.removesuffix(CONST), **numbers))
        results += pair
    operations.append(tree.Operation(end.name, results, [], {}, [], end.location))
    types = tree.FunctionType((), tuple(value.type for value in results))
    attributes = {"sym_name": "main", "function_type": types}
    main = tree.Operation(
        function.name, [], [], attributes, [tree.Region([], operations)], function.location
    )
    return main, checks


def _forget_probes(op: tree.Operation) -> None:
    """A probe gives what it takes."""
    for inner in tree.walk(op):
        if inner.name == "interpreter.probe":
            inner.name, inner.attributes = "stablehlo.optimization_barrier", {}


def run(case: Case, engine: str) -> list[np.ndarray[Any, Any]]:
    """What `main` returns. Cases with several devices run on the interpreter only."""
    if case.parallel:
        if engine != "interpreter":
            raise girih.UnsupportedError("several devices")
        from . import multi_device  # it knows cases

        return multi_device.run(case)
    module = case.module()
    if engine == "interpreter":
        return girih.interpret(module, [])
    return girih.compile(module, target=engine, options=AS_WRITTEN)()


def verdict(case: Case, engine: str) -> str:
    """ "pass", "wrong", or the class and text of the error."""
    try:
        results = run(case, engine)
    except Exception as error:  # noqa: BLE001 - any error is a verdict
        reason = str(error).strip().replace("\n", " ")
        return f"{type(error).__name__}: {reason[:160]}"
    pairs = zip(results[::2], results[1::2], strict=True)
    agreed = [agrees(check, *pair) for check, pair in zip(case.checks, pairs, strict=True)]
    return "pass" if all(agreed) else "wrong"


def verdicts(programs: Sequence[tuple[str, str]], engine: str) -> dict[str, str]:
    """The verdict on every case of (name, text) programs."""
    found = {}
    for name, text in programs:
        try:
            cases = list(read_cases(name, text))
        except UserError as error:
            found[f"{name}:?"] = f"unreadable: {error}"
            continue
        found.update((case.name, verdict(case, engine)) for case in cases)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("archives", nargs="+", type=Path)
    parser.add_argument("--on", default="interpreter", help="interpreter, or a target")
    parser.add_argument("--match", default="")
    parser.add_argument("--json", type=Path, help="where every case's verdict goes")
    options = parser.parse_args()
    started = time.perf_counter()
    programs = [
        program
        for path in options.archives
        for program in read_programs(path)
        if re.search(options.match, program[0])
    ]
    found = verdicts(programs, options.on)
    for name, said in found.items():
        if said != "pass":
            print(f"{name}: {said}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    passed = sum(said == "pass" for said in found.values())
    took = time.perf_counter() - started
    print(f"{passed} of {len(found)} passed on {options.on} in {took:.0f} s")
    return passed != len(found)


if __name__ == "__main__":
    sys.exit(main())
