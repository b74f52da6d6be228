"""Pipelines: visible tuples of passes, run with the levels checked on both sides of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..hlo.errors import CompilerBug, GirihError, UserError
from ..hlo.graph import Module, Op, Region
from ..hlo.verify import Level, verify
from ..options import Options
from .licence import ASSUMES_FINITE, BITWISE, IGNORES_ZERO_SIGN, REASSOCIATES, Ledger, Licence
from .passes import Pass
from .passes.dce import Dce
from .passes.decompose import Decompose
from .passes.externalize import Externalize
from .passes.fold_constants import FoldConstants
from .passes.fold_weights import FoldWeights
from .passes.inline import Inline
from .passes.legalize_quantized import LegalizeQuantized
from .passes.matmul_precision import MatmulPrecision
from .passes.narrow import Narrow
from .passes.one_device import OneDevice
from .passes.simplify import Simplify

NUMERICS: dict[str, Licence] = {
    "bitwise": BITWISE,
    "ignores-zero-sign": IGNORES_ZERO_SIGN,
    "reassociates": IGNORES_ZERO_SIGN | REASSOCIATES,
    "assumes-finite": IGNORES_ZERO_SIGN | REASSOCIATES | ASSUMES_FINITE,
}


def simplify_pipeline(
    options: Options | None = None,
    ledger: Ledger | None = None,
    only_rules: Sequence[str] = (),
    without_rules: Sequence[str] = (),
) -> tuple[Pass, ...]:
    """The passes from an imported module to the smallest equal one that fusion starts from.

    ledger: is told which rules fire where; only_rules, without_rules: names of rules.
    """
    options = options or Options()
    ledger = Ledger() if ledger is None else ledger
    simplify = Simplify(
        NUMERICS[options.numerics],
        frozenset(only_rules),
        frozenset(without_rules),
        options.fold_bytes,
        ledger,
    )
    return (
        LegalizeQuantized(),
        Inline(ledger),
        OneDevice(ledger),
        Decompose(ledger=ledger),
        simplify,
        Narrow(ledger=ledger),
        FoldConstants(options.fold_bytes, ledger=ledger),
        simplify,  # constants that came from iotas make rules fire that could not before
        Externalize(),
        FoldWeights(ledger=ledger),
        MatmulPrecision(options.matmul_precision),  # weights are in their final form
        Dce(),
    )


def run_pipeline(
    module: Module,
    passes: Sequence[Pass],
    *,
    on_pass: Callable[[str], None] | None = None,
    disable: Sequence[str] = (),
    stop_after: str | None = None,
    dump: Path | None = None,
    check: bool = False,
) -> Module:
    """The module after all passes.

    disable: names of passes to leave out; "simplify:2" leaves out the second run only.
    stop_after: the pass after which to stop, "simplify" or "simplify:2".
    dump: a folder that gets the program's text after every pass that changed something.
    check: verify the whole module after every pass, not its level alone.
    """
    numbered = _numbered(passes, (*disable, *([stop_after] if stop_after else [])))
    for number, (step, names) in enumerate(numbered):
        if names.isdisjoint(disable):
            if on_pass:
                on_pass(step.name)
            module = _run(module, step, check)
            if dump is not None:
                dump.mkdir(parents=True, exist_ok=True)
                (dump / f"{number:02d}-{step.name}.txt").write_text(f"{module}\n")
        if stop_after in names:
            break
    return module


def _numbered(passes: Sequence[Pass], wanted: Sequence[str]) -> list[tuple[Pass, set[str]]]:
    """Each pass with the names that mean it; UserError if a wanted name means none."""
    seen: dict[str, int] = {}
    found = []
    for step in passes:
        seen[step.name] = seen.get(step.name, 0) + 1
        found.append((step, {step.name, f"{step.name}:{seen[step.name]}"}))
    for name in wanted:
        if not any(name in names for _, names in found):
            known = ", ".join(dict.fromkeys(step.name for step in passes))
            raise UserError(f"there is no pass '{name}'; there are {known}")
    return found


def _run(module: Module, step: Pass, check: bool) -> Module:
    _at_level(module, step.takes, f"before pass '{step.name}'")
    try:
        after = step(module)
    except GirihError as error:
        raise type(error)(f"{error}\nin pass '{step.name}'") if _plain(error) else error from None
    if after is module:
        return module
    _at_level(after, step.gives, f"after pass '{step.name}'")
    if check:
        try:
            verify(after, step.gives)
        except UserError as error:
            raise CompilerBug(f"{error}\nafter pass '{step.name}'") from error
    return after


def _plain(error: GirihError) -> bool:
    return type(error).__init__ is Exception.__init__ or type(error) in (UserError, CompilerBug)


def _at_level(module: Module, level: Level, place: str) -> None:
    for function in module.functions.values():
        for op in _programs(function.body):
            if not level.holds(op):
                raise CompilerBug(f"{op.name} is not legal at level {level.name}, {place}")


def _programs(region: Region) -> Iterator[Op]:
    """Every operation that is not part of a kernel."""
    for op in region.ops:
        yield op
        for body in () if op.definition.sealed else op.regions:
            yield from _programs(body)
