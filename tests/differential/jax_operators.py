"""JAX's public functions through girih: a developer's run over all of jax.numpy, jax.lax, jax.nn,
jax.scipy, jax.random, ...

    python -m girih.tests.differential.jax_operators [--modules jax.lax ...] [--only NAME ...]
        [--dtypes float32 int64 ...] [--engine interpreter|cpu|both] [--part 0/4] [--record FILE]
    python -m girih.tests.differential.jax_operators --write FILE    into docs/support.md

Each function's samples are compiled by JAX, imported, run, and compared with JAX. The summary
counts samples and functions by module, and names those without a sample. "as eager": with JAX
outside of `jax.jit` the results agree.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import girih
from girih.hlo.errors import ImportBlockers, UserError
from girih.hlo.graph import Value
from girih.hlo.types import F32, TensorType
from girih.tests.differential.jax_samples import TABLES, WIDE, Array, Sample, Table
from girih.tests.differential.outcomes import (
    Outcome,
    compare,
    failures,
    failures_of,
    markdown_rows,
    print_blockers,
    rows_of,
    section,
    write_section,
)

FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def call_of(sample: Sample, function: Callable[..., Any], dtype: str) -> tuple[Any, list[Any]]:
    """The sample as a function of arrays, and the arrays."""
    leaves, tree = jax.tree.flatten((sample.arguments, sample.keywords), is_leaf=_is_static)
    arrays = [
        leaf.make(dtype, number) for number, leaf in enumerate(leaves) if isinstance(leaf, Array)
    ]

    def call(*given: Any) -> Any:
        values = iter(given)
        filled = [next(values) if isinstance(leaf, Array) else leaf for leaf in leaves]
        arguments, keywords = jax.tree.unflatten(tree, filled)
        return (sample.function or function)(*arguments, **keywords)

    return call, arrays


def _is_static(leaf: Any) -> bool:
    """What is no tree of arrays: types, methods, tuples of numbers, numbers of dimensions."""
    return not isinstance(leaf, (tuple, list, dict)) or not any(
        isinstance(part, Array) for part in jax.tree.leaves(leaf)
    )


def outcome(sample: Sample, function: Callable[..., Any], dtype: str, engine: str) -> Outcome:
    """What becomes of one sample."""
    call, arrays = call_of(sample, function, dtype)
    with jax.enable_x64(True) if dtype in WIDE else nullcontext():
        try:
            lowered = jax.jit(call).lower(*arrays)
            wanted = [
                np.asarray(x) for x in jax.tree.leaves(lowered.compile(FAST_COMPILE)(*arrays))
            ]
        except Exception as error:
            words = str(error).strip().split("\n")[0]
            return Outcome("not in JAX", f"{type(error).__name__} {words[:120]}")
        said = Outcome("agrees")
        try:
            imported = girih.import_model(call, *arrays)
            single = any(_is_f32(v) for op in imported.walk() for v in op.results)
            for each in ENGINES[engine]:
                found = each(imported, arrays)
                said = compare(found, wanted, single=single)
                if said.verdict == "differs" and compare(found, eager(call, arrays))[0] == "agrees":
                    return Outcome("as eager", f"{each.__name__}: {said.words}")
                if said.verdict != "agrees":
                    return said._replace(words=f"{each.__name__}: {said.words}")
        except ImportBlockers as error:
            words = "; ".join(f"{b.operation}: {b.reason}" for b in error.blockers)
            return Outcome("blocked", words)
        except UserError as error:
            return Outcome("refused", str(error)[:300])
        except Exception as error:
            return Outcome("bug", f"{type(error).__name__} {str(error)[:300]}")
    return said


def _is_f32(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.element is F32


def eager(call: Callable[..., Any], arrays: list[Any]) -> list[Any]:
    """JAX's results operation by operation: where XLA computes in other types, they are nearer."""
    with jax.disable_jit():
        return [np.asarray(x) for x in jax.tree.leaves(call(*map(jax.numpy.asarray, arrays)))]


def interpreted(imported: Any, arrays: list[Any]) -> list[Any]:
    return girih.interpret(imported, arrays)


def compiled(imported: Any, arrays: list[Any]) -> list[Any]:
    program = girih.compile(imported, options=girih.Options(cache="off"))
    return jax.tree.leaves(program(*arrays))


ENGINES = {"interpreter": (interpreted,), "cpu": (compiled,), "both": (interpreted, compiled)}


def public(module: Any) -> Iterator[str]:
    """Names of a module's functions and classes."""
    for name in dir(module):
        value = getattr(module, name)
        if not name.startswith("_") and callable(value) and not isinstance(value, types.ModuleType):
            yield name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", nargs="*")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--dtypes", nargs="*")
    parser.add_argument("--engine", default="both", choices=tuple(ENGINES))
    parser.add_argument("--part", default="0/1", help="this of so many parts of all functions")
    parser.add_argument("--record", type=Path, help="adds what it finds to this file of JSON lines")
    parser.add_argument("--write", type=Path, help="writes this record into docs/support.md")
    arguments = parser.parse_args()
    if arguments.write:
        write([Found(*json.loads(line)) for line in arguments.write.read_text().splitlines()])
        return 0
    warnings.simplefilter("ignore")
    number, parts = map(int, arguments.part.split("/"))
    blockers: collections.Counter[str] = collections.Counter()
    summary: dict[str, collections.Counter[str]] = {}
    without: list[str] = []
    for table in TABLES:
        if arguments.modules and table.module not in arguments.modules:
            continue
        count = summary[table.module] = collections.Counter()
        module = importlib.import_module(table.module)
        names = sorted({*public(module), *table.samples})
        for name in names[number::parts]:
            if arguments.only and name not in arguments.only or name in table.without:
                continue
            if not hasattr(module, name):
                without.append(f"{table.module}.{name} (not in this JAX)")
                continue
            verdicts = run(table, name, getattr(module, name), arguments, blockers)
            count.update(verdicts)
            ran = {verdict for verdict in verdicts if verdict != "not in JAX"}
            if not ran:
                without.append(f"{table.module}.{name}")
            count["functions"] += 1
            count["functions whose samples all agree"] += ran == {"agrees"}
    print_blockers(blockers)
    for title, count in summary.items():
        print(f"{title:32} {dict(count)}")
    print("in all:", dict(sum(summary.values(), collections.Counter())))
    print("without a sample that JAX takes:", *without)
    return 0


def run(
    table: Table, name: str, function: Any, arguments: Any, blockers: collections.Counter[str]
) -> list[str]:
    """The verdicts of all samples of one function; what does not agree is printed."""
    verdicts = []
    for place, sample in enumerate(table.samples.get(name, ())):
        for dtype in sample.types:
            if arguments.dtypes and dtype not in arguments.dtypes:
                continue
            said = outcome(sample, function, dtype, arguments.engine)
            verdicts.append(said.verdict)
            if arguments.record:
                found = Found(table.module, name, dtype, said.verdict, said.words)
                with arguments.record.open("a") as file:
                    file.write(json.dumps(found) + "\n")
            if said.verdict == "agrees":
                continue
            if said.verdict == "blocked":
                blockers[said.words.split(";")[0]] += 1
            label = f"{table.module.removeprefix('jax.')}.{name} {place}"
            print(f"{label:40} {dtype:9} {said.verdict:10} {said.words}", flush=True)
    return verdicts


class Found(NamedTuple):
    """What became of one sample."""

    module: str
    name: str
    dtype: str
    verdict: str
    words: str


HEAD = "\n## JAX's public functions\n"
TITLES = "module", "functions", "whole", "samples", "agree", "blocked", "wrong", "errors"


def write(found: list[Found]) -> None:
    """The summary of runs as a part of docs/support.md; rows of other modules stay."""
    ours, page = [x for x in found if x.verdict != "not in JAX"], section(HEAD)
    ran = {x.module for x in ours}
    known = {row[0]: row for row in rows_of(page)}
    known |= {module: _row(module, [x for x in ours if x.module == module]) for module in ran}
    rows = [known[table.module] for table in TABLES if table.module in known]
    sums = [str(sum(map(int, column))) for column in list(zip(*rows, strict=True))[1:]]
    reasons = {
        words: places
        for words, places in failures_of(page).items()
        if words.partition("`: ")[0].lstrip("`").rpartition(".")[0] not in ran
    }
    for x in ours:
        if x.verdict not in AGREE:
            words = f"`{x.module}.{x.name}`: {' '.join(x.words.split())[:160]}"
            places = reasons.setdefault(words, [])
            places += [x.dtype] if x.dtype not in places else []
    text = """
Written by `python -m girih.tests.differential.jax_operators --write RECORD` from the record of its
runs, on the interpreter and the cpu both: public functions of JAX's modules, each with a few
samples of floats, integers, booleans or complex numbers that `jax.jit` takes. *functions* are those
with such a sample, *whole* those of which all samples agree with JAX (with `jax.jit`, or operation
by operation where XLA computes in other types); *blocked* samples are refused with a reason,
*wrong* ones give other results, *errors* are exceptions of girih.

"""
    text += markdown_rows(TITLES, *rows, ("all", *sums))
    write_section(HEAD, text + failures(reasons))


AGREE = ("agrees", "as eager")


def _row(title: str, found: list[Found]) -> tuple[str, ...]:
    names = {(x.module, x.name) for x in found}
    whole = names - {(x.module, x.name) for x in found if x.verdict not in AGREE}
    count = collections.Counter(x.verdict for x in found)
    agree, refused = sum(count[v] for v in AGREE), count["blocked"] + count["refused"]
    numbers = len(names), len(whole), len(found), agree, refused, count["differs"], count["bug"]
    return title, *map(str, numbers)


if __name__ == "__main__":
    sys.exit(main())
