"""Code for a schedule: each distinct kernel emitted and compiled once, linked into one image."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

from ...hlo.graph import Op
from ...optimizer.plan import KernelFacts, Planner
from ...optimizer.schedule import Schedule
from . import executor
from .codegen import KernelCode, Target, compile_object
from .image import link
from .kernels import emit


class KernelCache:
    """Kernels by canonical text and objects by IR text, shared by all compilations of a process."""

    def __init__(self, capacity: int = 4096) -> None:
        self.capacity = capacity
        self.codes: dict[tuple[str, Target], KernelCode] = {}
        self.objects: dict[tuple[str, Target], bytes] = {}
        self.lock = threading.Lock()

    def code(self, key: str, op: Op, target: Target) -> KernelCode:
        """The kernel of that operation, emitted once."""
        with self.lock:
            known = self.codes.get((key, target))
        if known is None:
            known = emit(op, target)
            self._store(self.codes, (key, target), known)
        return known

    def object(self, ir_text: str, target: Target) -> bytes:
        """The compiled object of that text."""
        with self.lock:
            known = self.objects.get((ir_text, target))
        if known is None:
            known = compile_object(ir_text, target)
            self._store(self.objects, (ir_text, target), known)
        return known

    def _store(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        with self.lock:
            if len(table) >= self.capacity:
                table.pop(next(iter(table)))
            table[key] = value


CACHE = KernelCache()


def build(schedule: Schedule, target: Target, notes: Sequence[str] = ()) -> tuple[Any, bytes]:
    """The plan (plan_pb2.Plan) and the image; UnsupportedError lists every missing kernel."""
    codes: dict[str, KernelCode] = {}

    def facts(key: str, op: Op) -> KernelFacts:
        code = codes[key] = CACHE.code(key, op, target)
        return KernelFacts(
            code.tiles, code.scratch_bytes, code.flops, code.bytes, code.parallel, code.notes
        )

    planner = Planner(schedule, "cpu", facts, notes)
    plan = planner.run()
    plan.triple = target.triple
    plan.features.extend(target.features)
    symbols: dict[str, str] = {}
    objects: dict[str, bytes] = {}
    for key, code in codes.items():
        # The name is the content's, so that kernels of equal text are linked once.
        digest = hashlib.blake2b(code.ir_text.encode(), digest_size=12).hexdigest()
        symbol = symbols[key] = f"kernel_{digest}"
        text = code.ir_text.replace(f"@{code.symbol}(", f"@{symbol}(")
        objects[symbol] = CACHE.object(text, target)
    image = link([CACHE.object(executor.emit(target), target), *objects.values()])
    plan.executor_entry = image.symbols[executor.RUN_SYMBOL]
    plan.worker_entry = image.symbols[executor.WORKER_SYMBOL]
    for entry in planner.kernels.values():
        plan.kernels[entry.index].entry = image.symbols[symbols[entry.key]]
    return plan, image.data
