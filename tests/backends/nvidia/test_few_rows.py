"""Products of few rows are bound by the bytes of the other operand: each is read once, whole."""

from __future__ import annotations

from typing import Any

import pytest

from girih.backends.nvidia.target import NvidiaTarget, target
from girih.hlo.precision import OPERANDS, TF32
from girih.hlo.types import BF16, F32, I8, I32
from girih.optimizer.kernels import split_sum

from . import harness
from .test_operand_layout import product, values

SM_80, SM_90A = target("sm_80"), target("sm_90a")
KINDS: dict[str, tuple[Any, Any, dict[str, Any], float]] = {
    "bf16": (BF16, F32, {"out": BF16}, 1e-2),
    "f32": (F32, F32, {}, 1e-5),
    "tf32": (F32, F32, {OPERANDS: TF32}, 2e-3),
    "i8": (I8, I32, {}, 0.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("on", "rows", "side"),
    [(SM_80, 5, 1), (SM_90A, 1, 0)],
    ids=["sm_80-5", "sm_90a-1"],
)
def test_bytes_are_read_once(
    monkeypatch: pytest.MonkeyPatch, kind: str, on: NvidiaTarget, rows: int, side: int
) -> None:
    monkeypatch.setattr(split_sum, "MOST", 1)
    element, result, facts, tolerance = KINDS[kind]
    side = side if element.itemsize > 1 else 1  # weights of bytes are stored so
    op = product((rows, 128, 256), (element, element), result, (1, side), **facts)
    inputs = values(op)
    code = harness.emitted(op, on)
    reports: list[Any] = []
    options = {"counters": True, "reports": reports, "mode": "lazy"}
    (got,) = harness.run(op, inputs, code=code, on=on, **options)
    harness.compare(got, harness.expected(op, inputs)[0], tolerance)
    moved = 32 * sum(report.counters["global_sectors"] for report in reports)
    least = sum(array.nbytes for array in inputs) + got.nbytes
    again = code.launches[0].grid[0] * inputs[0].nbytes  # the few rows, for each tile of columns
    assert moved <= 1.05 * (least + again)


@pytest.mark.parametrize("on", [SM_80, SM_90A], ids=["sm_80", "sm_90a"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1024), (4, 4096), (1, 11008)])
def test_enough_bytes_are_on_their_way(on: NvidiaTarget, rows: int, columns: int) -> None:
    """Stages of windows in shared memory: what memory gives in 0.6 us."""
    op = product((rows, columns, 4096), (BF16, BF16), F32, (1, 1), out=BF16)
    first = harness.emitted(op, on).launches[0]
    multiprocessors, memory = on.machine.executors, on.machine.levels[-1]
    together = on.architecture.shared_bytes // first.shared_bytes
    resident = min(first.grid[0], multiprocessors * together)
    on_the_way = resident * first.shared_bytes * 3 / 4  # one stage of four is being read
    assert on_the_way >= memory.rate(multiprocessors) * multiprocessors * 0.6e-6
