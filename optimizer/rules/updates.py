"""Rules for updates in place: additions and selections that change a part of a tensor only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...hlo.graph import Op, Value
from ...hlo.types import F32, I1, I32, TensorType
from ..licence import IGNORES_ZERO_SIGN
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by
from .indexing import update, window
from .slices import padded

A = TensorType((6, 4), F32)
PART = TensorType((2, 4), F32)
INDEX = TensorType((), I32)
STARTS = tuple(np.int32(n) for n in (-1, 0, 3, 5))
LEAST_RATIO = 4  # how much larger a tensor is than the part of it that is updated in place


def _numbers(count: int) -> np.ndarray[Any, Any]:
    return np.arange(count, dtype=np.float32).reshape(-1, 4)


# select over an update.


def _select_examples() -> Iterator[Example]:
    types = [TensorType((), I1), A, PART, INDEX]

    def taken(b: Any, p: Value, x: Value, u: Value, i: Value) -> Value:
        return b("select", p, update(b, x, u, [i, b.constant(0, INDEX)]), x)

    def refused(b: Any, p: Value, x: Value, u: Value, i: Value) -> Value:
        wide = b.broadcast(p, (6, 4), ())
        return b("select", wide, x, update(b, x, u, [i, b.constant(0, INDEX)]))

    for flag in (False, True):
        for start in STARTS:
            inputs = (np.array(flag), _numbers(24), -_numbers(8), start)
            yield example(f"{flag} {start}", types, taken, inputs)
            yield example(f"not {flag} {start}", types, refused, inputs)

    def other(b: Any, p: Value, x: Value, u: Value, i: Value) -> Value:
        changed = update(b, x, u, [i, b.constant(0, INDEX)])
        return b("select", p, changed, b("negate", x))

    yield example("another tensor", types, other, inputs, fires=False)
    masks = [A.with_element(I1), A, PART, INDEX]
    inputs = (np.ones((6, 4), bool), *inputs[1:])
    yield example("element by element", masks, taken, inputs, fires=False)


@structural("select-of-update", "select", examples=_select_examples, lowers="selected elements",
            makers=("dynamic_update_slice",), single=True)  # fmt: skip
def select_of_update(op: Op, b: Rewriter) -> Value | None:
    """select(p, update(x, u, i), x) -> update(x, select(p, u, slice(x, i)), i) [p is one value]"""
    predicate, *branches = op.operands
    for side in (0, 1):
        inner, x = made_by(branches[side], "dynamic_update_slice"), branches[1 - side]
        if inner is None or inner.operands[0] is not x or not b.single_use(branches[side]):
            continue
        part, starts = inner.operands[1], inner.operands[2:]
        flag = _one_flag(predicate, part.dims, b)
        if flag is None:
            return None
        old = window(b, x, starts, part.dims)
        chosen = (part, old) if side == 0 else (old, part)
        return update(b, x, b("select", flag, *chosen), starts)
    return None


def _one_flag(predicate: Value, dims: Sequence[int], b: Rewriter) -> Value | None:
    """A predicate that is the same everywhere, for a tensor of `dims`."""
    if predicate.rank == 0:
        return predicate
    op = made_by(predicate, "broadcast_in_dim")
    if op is None or op.operands[0].tensor.size != 1:
        return None
    return b.broadcast(b.reshape(op.operands[0], ()), dims, ())


# Sums with what is zero but for a part.


def _pad_examples() -> Iterator[Example]:
    def body(number: float = 0.0, low: int = 1, made: str = "") -> Any:
        def build(b: Any, x: Value, u: Value) -> Value:
            scalar = TensorType((), F32)
            high = x.dims[0] - low - u.dims[0]
            wide = padded(b, u, b.constant(number, scalar), (low, 0), (high, 0))
            return b("add", b(made, x) if made else x, wide)

        return build

    row = TensorType((1, 4), F32)
    yield example("argument", [A, row], body())
    yield example("first", [A, row], body(low=0))
    yield example("ones", [A, row], body(number=1.0), fires=False)
    yield example("large part", [A, PART], body(), fires=False)
    yield example("computed", [A, row], body(made="exponential"), fires=False)

    def before_a_map(b: Any, x: Value, u: Value) -> Value:
        return b("tanh", body()(b, x, u))

    yield example("computed with", [A, row], before_a_map, fires=False)

    def updated(b: Any, x: Value, u: Value, i: Value, number: float = 0.0) -> Value:
        return b("add", update(b, b.constant(number, A), u, [i, b.constant(0, INDEX)]), x)

    for start in STARTS:
        inputs = (_numbers(24), -_numbers(4), start)
        yield example(f"update {start}", [A, row, INDEX], updated, inputs)
    yield example("update of ones", [A, row, INDEX],
                  lambda b, x, u, i: updated(b, x, u, i, 1.0), inputs, fires=False)  # fmt: skip


@structural("add-of-part", "add", licence=IGNORES_ZERO_SIGN, examples=_pad_examples,
            lowers="added elements", makers=("pad", "dynamic_update_slice"),
            single=True)  # fmt: skip
def add_of_part(op: Op, b: Rewriter) -> Value | None:
    """x + pad(u, 0), x + update(0, u, i) -> update(x, slice(x, i) + u, i) [x in memory, u small]"""
    if b.replacing is None or "elementwise" in b.users(b.replacing.results[0]):
        return None  # one loop over all elements then computes the sum on the way
    for wide, x in (op.operands, op.operands[::-1]):
        found = _part(wide, b)
        if found is None or not b.single_use(wide) or not _in_memory(x):
            continue
        part, starts = found
        if x.tensor.size < LEAST_RATIO * part.tensor.size:
            continue
        places = [b.constant(s, INDEX) if isinstance(s, int) else s for s in starts]
        old = window(b, x, places, part.dims)
        return update(b, x, b("add", old, part), places)
    return None


def _part(value: Value, b: Rewriter) -> tuple[Value, Sequence[Value | int]] | None:
    """What a tensor of zeros holds somewhere, and where it starts."""
    op = made_by(value, "pad", "dynamic_update_slice")
    if op is None or not value.tensor.is_static:
        return None
    if op.name == "dynamic_update_slice":
        return (op.operands[1], op.operands[2:]) if b.scalar(op.operands[0]) == 0 else None
    low = op.edge_padding_low
    if b.scalar(op.operands[1]) != 0 or any(op.interior_padding):
        return None
    return (op.operands[0], low) if min((*low, *op.edge_padding_high), default=0) >= 0 else None


def _in_memory(value: Value) -> bool:
    """Whether a value is stored whichever way: no loop computes it element by element."""
    op = value.op
    if op is None:
        return True
    return op.definition.pattern in ("opaque", "control") and op.name != "pad"


def _sum_examples() -> Iterator[Example]:
    def body(b: Any, u: Value, v: Value, i: Value, j: Value, number: float = 0.0) -> Value:
        zero, nothing = b.constant(0, INDEX), b.constant(number, A)
        return b("add", update(b, nothing, u, [i, zero]), update(b, nothing, v, [j, zero]))

    types = [PART, PART, INDEX]
    for start in STARTS:
        inputs = (_numbers(8), 3 * _numbers(8), start)
        yield example(f"at {start}", types, lambda b, u, v, i: body(b, u, v, i, i), inputs)
    yield example("ones", types, lambda b, u, v, i: body(b, u, v, i, i, 1.0), inputs, fires=False)
    yield example("elsewhere", [*types, INDEX], body, (*inputs, STARTS[1]), fires=False)


@structural("add-of-updates", "add", examples=_sum_examples, lowers="added elements",
            makers=("dynamic_update_slice",), single=True)  # fmt: skip
def add_of_updates(op: Op, b: Rewriter) -> Value | None:
    """update(0, u, i) + update(0, v, i) -> update(0, u + v, i)"""
    first, second = (made_by(value, "dynamic_update_slice") for value in op.operands)
    if first is None or second is None:
        return None
    same = first.operands[2:] == second.operands[2:]
    if not same or first.operands[1].type is not second.operands[1].type:
        return None
    if any(b.scalar(one.operands[0]) != 0 for one in (first, second)):
        return None
    if not all(b.single_use(value) for value in op.operands):
        return None
    total = b("add", first.operands[1], second.operands[1])
    return update(b, first.operands[0], total, first.operands[2:])


RULES: tuple[Rule, ...] = (select_of_update, add_of_part, add_of_updates)
