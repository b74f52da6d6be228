"""PyTorch's own operator samples through girih: a developer's run over all of `op_db`.

    python tests/differential/torch_operators.py [--only NAME ...] [--dtypes float32 int64 ...]
        [--samples 4] [--engine interpreter|cpu|file] [--core]

Each operator's samples are exported, imported (with `--core` after run_decompositions()), run, and
compared with eager PyTorch; where they draw random numbers, their distributions are; 16-bit floats
may agree with eager's float32, rounded, as well. The summary counts which core ATen operators took
part in results that agree, and lists what blocks the others.
"""

from __future__ import annotations

import argparse
import collections
import copy
import io
import random
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

import girih
from girih.frontends.torch.exported import array_of, read_exported
from girih.hlo.errors import ImportBlockers, UserError
from girih.tests.differential.draws import difference
from girih.tests.differential.outcomes import Outcome, compare, print_blockers
from girih.tests.differential.reconstructions import RECONSTRUCTIONS

sys.modules.setdefault("expecttest", types.ModuleType("expecttest"))  # op_db does not need it
sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]

OPEN = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "pca_lowrank", "svd_lowrank", "resize_", "resize_as_",
}  # fmt: skip
"""What has no value to compare with."""
ANY_OF_EQUALS = {"kthvalue", "median", "nanmedian", "sort", "topk"}
"""Whose positions are those of any of several equal elements."""
ENGINES = ("interpreter", "cpu", "file")
"""What runs a sample; `file` is the interpreter, of an export that was saved and read back."""

LONGEST = 64  # what sizes that data decide are at most, where the export says nothing of them
LOW = (torch.bfloat16, torch.float16)


class Call(torch.nn.Module):
    """One operator on one sample; what is no tensor is part of the program. `plain`: a named tuple,
    which PyTorch does not save, is an ordinary one."""

    def __init__(self, body: Any, spec: Any, fixed: list[Any], plain: bool) -> None:
        super().__init__()
        self.body, self.spec, self.fixed, self.plain = body, spec, fixed, plain

    def forward(self, *tensors: Any) -> Any:
        given = iter(tensors)
        leaves = [next(given) if leaf is Call else leaf for leaf in self.fixed]
        args, kwargs = _pytree.tree_unflatten(leaves, self.spec)
        found = self.body(*args, **kwargs)
        return tuple(found) if self.plain and isinstance(found, tuple) else found


def outcome(body: Any, args: Any, kwargs: Any, engine: str, core: bool, name: str = "") -> Outcome:
    """What becomes of one call of the operator of that name."""
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    tensors = tuple(x.detach().clone() for x in leaves if isinstance(x, torch.Tensor))
    fixed = [Call if isinstance(x, torch.Tensor) else x for x in leaves]
    module = Call(body, spec, fixed, engine == "file").eval()
    try:
        with torch.no_grad():
            expected = _pytree.tree_leaves(module(*copy.deepcopy(tensors)))
            if not all(isinstance(x, (torch.Tensor, bool, int, float)) for x in expected):
                return Outcome("no export", "results are no tensors")
            exported: Any = torch.export.export(module, copy.deepcopy(tensors), strict=False)
            if core:
                exported = exported.run_decompositions()
        file = io.BytesIO()
        if engine == "file":
            torch.export.save(exported, file)
    except Exception as error:
        return Outcome("no export", f"{type(error).__name__} {str(error)[:120]}")
    try:
        wanted = [array_of(torch.as_tensor(x)) for x in expected]
        numbers = [not isinstance(x, torch.Tensor) for x in expected]
        targets = frozenset(node.target for node in read_exported(exported, "").graph.walk())
        imported = girih.import_model(file.getvalue() if engine == "file" else exported)
        flat = [array_of(x) for x in tensors]
        if imported.signature is not None and imported.signature.generator:
            return drawn(imported, flat, lambda: module(*copy.deepcopy(tensors)), engine, targets)
        if engine == "cpu":
            limits = {name: (0, LONGEST) for name, x in imported.symbols.items() if x.last is None}
            options = girih.Options(cache="off")
            found = girih.compile(imported, options=options, sizes=limits)(*flat)
            found = _pytree.tree_leaves(found)
        else:
            found = girih.interpret(imported, flat)
    except ImportBlockers as error:
        return Outcome("blocked", "; ".join(f"{b.operation}: {b.reason}" for b in error.blockers))
    except UserError as error:
        return Outcome("refused", str(error)[:200])
    except Exception as error:
        return Outcome("bug", f"{type(error).__name__} {str(error)[:300]}")
    if len(found) < len(wanted):
        return Outcome("differs", f"{len(found)} results, not {len(wanted)}")
    pairs = zip(map(np.asarray, found), wanted, numbers, strict=False)  # state comes behind them
    found = [ours.astype(theirs.dtype) if plain else ours for ours, theirs, plain in pairs]
    if name in ANY_OF_EQUALS:
        return compare(found[:1], wanted[:1], targets)
    reconstruct = RECONSTRUCTIONS.get(name)
    if reconstruct is None:
        said = compare(found, wanted, targets)
        if said.verdict == "differs" and any(x.dtype in LOW for x in tensors):
            exact = rounded(module, tensors, expected)
            return compare(found, exact, targets) if exact else said
        return said
    return compare(reconstruct(tensors, found), reconstruct(tensors, wanted), targets)


def rounded(module: Any, tensors: Any, expected: Any) -> list[Any]:
    """What eager gives of 16-bit floats in float32, rounded: as right as what it gives in 16 bits,
    where that loses more than the result's rounding. Nothing, where it takes no float32."""
    wide = [x.float() if x.dtype in LOW else x for x in tensors]
    try:
        with torch.no_grad():
            found = _pytree.tree_leaves(module(*copy.deepcopy(wide)))
    except Exception:
        return []
    pairs = zip(map(torch.as_tensor, found), map(torch.as_tensor, expected), strict=True)
    return [array_of(x.to(y.dtype)) for x, y in pairs]


def drawn(
    imported: Any, flat: list[Any], eager: Any, engine: str, targets: frozenset[str]
) -> Outcome:
    """What becomes of a call that draws random numbers."""
    if engine == "cpu":
        session = girih.compile(imported, options=girih.Options(cache="off")).session()

        def ours(number: int) -> list[Any]:
            return _pytree.tree_leaves(session(*flat))
    else:
        count = len(imported.signature.results) - len(imported.signature.state)

        def ours(number: int) -> list[Any]:
            state = np.array([1, number], np.uint64)
            return girih.interpret(imported, [*flat, state])[:count]

    def theirs() -> list[Any]:
        with torch.no_grad():
            return [array_of(torch.as_tensor(x)) for x in _pytree.tree_leaves(eager())]

    words = difference(ours, theirs)
    return Outcome("differs" if words else "agrees", words, targets)


def samples(info: Any, dtype: Any, count: int) -> Iterator[tuple[Any, Any]]:
    """The first arguments that op_db has for an operator, spread over all of its samples."""
    random.seed(0)
    torch.manual_seed(0)
    found = list(info.sample_inputs("cpu", dtype, requires_grad=False))
    for sample in found[:: max(1, len(found) // count)][:count]:
        yield (sample.input, *sample.args), dict(sample.kwargs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--engine", default="interpreter", choices=ENGINES)
    parser.add_argument("--core", action="store_true", help="after run_decompositions()")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import logging

    logging.disable(logging.ERROR)
    from torch.testing._internal import common_methods_invocations as invocations

    sampled: Any = invocations
    op_db: Any = sampled.op_db
    # Draws are compared by many calls of both, which are not to begin at one seed.
    sampled.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    count: collections.Counter[str] = collections.Counter()
    blockers: collections.Counter[str] = collections.Counter()
    agreeing: set[str] = set()
    for info in op_db:
        name = f"{info.name} {info.variant_test_name}".strip()
        if arguments.only and info.name not in arguments.only:
            continue
        if info.name.rpartition(".")[2] in OPEN or info.name.startswith("jiterator"):
            continue
        for spelled in arguments.dtypes:
            dtype = getattr(torch, spelled)
            if dtype not in info.dtypes:
                continue
            try:
                given = list(samples(info, dtype, arguments.samples))
            except Exception:
                continue
            for args, kwargs in given:
                said = outcome(info.op, args, kwargs, arguments.engine, arguments.core, info.name)
                count[said.verdict] += 1
                if said.verdict == "agrees":
                    agreeing |= said.targets
                    continue
                if said.verdict == "blocked":
                    blockers[said.words.split(";")[0]] += 1
                print(f"{name:40} {spelled:9} {said.verdict:9} {said.words}", flush=True)
    core = core_operators()
    print_blockers(blockers)
    print(dict(count))
    print(f"core ATen operators in agreeing results: {len(core & agreeing)} of {len(core)}")
    print("others:", *sorted(core - agreeing))
    return 0


def core_operators() -> set[str]:
    """Every overload that PyTorch counts as core ATen."""
    found = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            operator = getattr(packet, overload)
            if torch.Tag.core in operator.tags:
                found.add(str(operator))
    return found


if __name__ == "__main__":
    sys.exit(main())
