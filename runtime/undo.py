"""Going back to the state that a session had before a call which did not end.

A plan keeps what it overwrites of state in outputs behind its results (specs/plan.proto, `Undo`).
A session gives it memory for these, which is its own from call to call: only a call that did not
end is ever undone, when its session is used next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..hlo.types import element_type
from ..specs.generated import plan_pb2
from .devices.limits import malformed
from .parts import ALIGNMENT, aligned

Array = np.ndarray[Any, Any]
Given = tuple[tuple[int, ...], Any, int]  # shape, type and room of what a plan writes


class Log(Protocol):
    """Memory for what one call at a time keeps."""

    def read(self) -> Sequence[Array]:
        """What the last call has kept, on the host."""
        ...


class HostLog:
    """In the memory of the host."""

    def __init__(self, gives: Sequence[Given]) -> None:
        self.arrays = [aligned(*one) for one in gives]

    def read(self) -> Sequence[Array]:
        return self.arrays


class _Rows(NamedTuple):
    """As `Undo` in specs/plan.proto, but that outputs are counted behind the results."""

    argument: int
    rows: int
    saved: int
    starts: tuple[int, ...]
    dims: tuple[int, ...]
    base: tuple[int, ...]


class Undo:
    """What one plan says of going back.

    apart: arguments whose memory no result may have. saved: the outputs, counted behind the
    results, that say what was kept; before a call no byte of them is 1.
    """

    def __init__(self, plan: plan_pb2.Plan, results: int) -> None:
        """results: outputs that are not kept; UserError where the plan contradicts itself."""
        self._plan, self._kept = plan, plan.outputs[results:]
        self.apart = frozenset(one.argument for one in plan.undo if not one.rows)
        self.arguments = frozenset(one.argument for one in plan.undo)
        self._rows = [
            _Rows(
                one.argument, one.rows - 1 - results, one.saved - results,
                tuple(n - results for n in one.starts), tuple(one.dims), tuple(one.base),
            )
            for one in plan.undo
            if one.rows
        ]  # fmt: skip
        self.saved = tuple(dict.fromkeys(one.saved for one in self._rows))
        for one in self._rows:
            numbers = one.rows, one.saved, *one.starts
            if one.argument >= len(plan.inputs):
                raise malformed("it keeps what is none of its arguments")
            rank = len(plan.buffers[plan.inputs[one.argument]].dims)
            if not all(0 <= number < len(self._kept) for number in numbers):
                raise malformed("what it keeps of state is none of its outputs")
            if len(one.base) != rank or any(d >= rank for d in one.dims):
                raise malformed("what it keeps of state lies outside of it")

    def gives(self, formulas: Sequence[int] = ()) -> tuple[Given, ...]:
        """What the plan writes behind its results. formulas: values of the plan's."""
        found = []
        for number in self._kept:
            buffer = self._plan.buffers[number]
            dims = list(buffer.dims)
            for axis, formula in enumerate(buffer.dim_formulas):
                dims[axis] = formulas[formula - 1] if formula else dims[axis]
            dtype, formula = element_type(buffer.element_type).dtype, buffer.bytes_formula
            size = math.prod(dims) * dtype.itemsize
            if size != (formulas[formula - 1] if formula else buffer.bytes):
                raise malformed("what it keeps of state has another size than it says")
            found.append((tuple(dims), dtype, size + ALIGNMENT - 1))
        return tuple(found)

    def restored(self, buffers: Mapping[int, Any], log: Log) -> dict[int, Array]:
        """The buffers, by argument, that a call may have changed, as they were before it: arrays of
        the host are changed where they lie, others are copied."""
        kept, found = log.read(), dict[int, Array]()
        for one in self._rows:
            rows = kept[one.rows]
            if not rows.size or not (kept[one.saved] == 1).all():
                continue  # nothing was overwritten yet
            if one.argument not in found:
                buffer = buffers[one.argument]
                found[one.argument] = buffer if isinstance(buffer, np.ndarray) else buffer.numpy()
            _write(found[one.argument], rows, [kept[n] for n in one.starts], one.dims, one.base)
        return found


def _write(
    array: Array, rows: Array, starts: Sequence[Array], dims: Sequence[int], base: Sequence[int]
) -> None:
    """Write boxes where they begin."""
    box = rows.shape[rows.ndim - array.ndim :]
    each = rows.reshape(-1, *box)
    places = np.zeros((len(each), 0), np.int64)
    if starts:
        flat = [start.reshape(len(each), -1) for start in starts]
        places = np.concatenate(flat, axis=1)
    for row, place in zip(each, places.tolist(), strict=True):
        at = list(base)
        for d, index in zip(dims, place, strict=True):
            at[d] = index
        begins = (
            max(0, min(n, most - size)) for n, most, size in zip(at, array.shape, box, strict=True)
        )
        array[tuple(slice(n, n + size) for n, size in zip(begins, box, strict=True))] = row
