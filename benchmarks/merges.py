"""Independent kernels as one launch: what is predicted of it, beside graphs of the same kernels.

    python benchmarks/merges.py [--target nvidia:sm_90a] [--assembled]

All times are PREDICTED by the cost model on the target's machine file; nothing is measured here.
"in turn": a graph whose nodes follow each other; "branches": one whose nodes nothing orders;
"merged": the one launch. "busy": the part of all places for blocks, on all multiprocessors, that
its blocks take. "by price": whether "auto" merges. With --assembled, what ptxas says of the merged
entry and of the entries that are its bodies (registers of a thread, bytes of spills).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import girih
from girih.backends.nvidia import target_of
from girih.backends.nvidia.assemble import assemble
from girih.hlo.build import build_module
from girih.hlo.graph import Module, Value
from girih.hlo.types import F16, TensorType


class Case(NamedTuple):
    """So many products of size x size in float16 that need nothing of each other."""

    count: int
    size: int


CASES = (Case(2, 256), Case(8, 256), Case(64, 256), Case(64, 128), Case(16, 1024), Case(2, 2048),
         Case(4, 4096), Case(64, 2048))  # fmt: skip


def products(case: Case) -> Module:
    def body(b: Any, *values: Value) -> Sequence[Value]:
        return [
            b("dot_general", values[2 * n], values[2 * n + 1], lhs_contracting_dimensions=(1,),
              rhs_contracting_dimensions=(0,))
            for n in range(case.count)
        ]  # fmt: skip

    return build_module([TensorType((case.size, case.size), F16)] * (2 * case.count), body)


def compiled(case: Case, schedule: str, target: str) -> Any:
    options = girih.Options(schedule=schedule)
    return girih.compile(products(case), target=target, options=options)


def assembled(program: Any, target: str) -> str:
    """Registers and spilled bytes of the merged entry and of its bodies."""
    (variant,) = program.parts.variants.values()
    found = assemble(bytes(variant.image).decode(), target_of(target).architecture)
    said = [
        f"{name}: {one.registers} registers, {one.spill_store_bytes} B spilled"
        for name, one in sorted(found.usages.items())
    ]
    return "; ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="nvidia:sm_90a")
    parser.add_argument("--assembled", action="store_true")
    asked = parser.parse_args()
    columns = ("in turn", "branches", "merged", "merged / branches")
    table = Table("products", "launches", *(f"{one} (predicted)" for one in columns), "blocks",
                  "a multiprocessor holds", "busy", "by price")  # fmt: skip
    lines = []
    for case in CASES:
        program = compiled(case, "merged", asked.target)
        merges = program.plan.merges
        alone = len(program.plan.steps) - sum(len(one.steps) for one in merges)
        merged = sum(one.seconds for one in merges)
        branches = sum(one.seconds_of_branches for one in merges)
        times = sum(one.seconds_in_turn for one in merges), branches, merged
        by_price = compiled(case, "auto", asked.target).plan.merges
        last = merges[0].steps[-1]
        table.add_row(
            f"{case.count} of {case.size}^3", str(alone + len(merges)),
            *(f"{1e6 * one:.1f} us" for one in times), f"{merged / branches:.3f}",
            str(last.first_block + last.blocks), str(merges[0].resident),
            f"{100 * merges[0].busy:.0f} %", "merged" if by_price else "declined",
        )  # fmt: skip
        if asked.assembled:
            lines.append(f"{case.count} of {case.size}^3: {assembled(program, asked.target)}")
    console = Console(width=160)
    console.print(table)
    for line in lines:
        console.print(line)


main()
