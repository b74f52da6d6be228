"""Constant folding: operations on constants are done by the compiler, within a budget.

A splat stays one number. Work is counted in elements, not in seconds, so that the same program
always folds the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..hlo.graph import Dense, Op, Value
from ..hlo.interpret import Interpreter
from ..hlo.ops import find
from ..hlo.types import TensorType
from .licence import Ledger

SMALL = 256  # bytes
FOLDED_PATTERNS = frozenset({"elementwise", "index", "reduce", "contract"})


class Folder:
    """Evaluates operations whose operands are constants.

    `limit` bounds the bytes of one result that is no splat, `elements` the elements read and
    written altogether.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        ledger: Ledger,
        limit: int = 64 << 10,
        elements: int = 1 << 26,
    ) -> None:
        self.interpreter, self.ledger = interpreter, ledger
        self.limit, self.elements = limit, elements

    def fold(self, op: Op) -> Dense | None:
        """The constant that an operation computes; None if it is none, or too large."""
        definition = op.definition
        if len(op.results) != 1 or definition.effects:
            return None
        type = op.results[0].type
        if not isinstance(type, TensorType) or not type.is_static:
            return None
        if type.size == 0:
            return None
        if definition.pattern not in FOLDED_PATTERNS or not op.operands:
            return None
        if definition.name == "broadcast_in_dim":
            return None  # only makes it larger
        constants = []
        for operand in op.operands:
            owner = operand.owner
            if not isinstance(owner, Op) or owner.definition.name != "constant":
                return None
            constants.append(owner.attributes["value"])
        if definition.moves and constants[0].is_splat:
            return None  # rule "move-of-splat" keeps it a splat
        if definition.pattern == "elementwise" and all(dense.is_splat for dense in constants):
            return Dense.splat(self._on_scalars(op, constants), type)
        splats = all(dense.is_splat for dense in constants)
        if definition.pattern == "index" and type.bytes > SMALL and splats:
            return None  # a formula of two numbers; some rule may make it one
        work = type.size + sum(dense.type.size for dense in constants)
        if type.bytes > self.limit or self.ledger.folded_elements + work > self.elements:
            return None
        if definition.pattern == "contract" and definition.flops(op) > self.elements:
            return None
        self.ledger.folded_elements += work
        return compact(Dense(type, self._run(op, [dense.array for dense in constants])))

    def _on_scalars(self, op: Op, constants: Sequence[Dense]) -> Any:
        """The number that an elementwise operation makes of splats."""
        operands, arrays = [], []
        for dense in constants:
            scalar = Dense(TensorType((), dense.type.element), np.asarray(dense.splat_value))
            operands.append(_constant(scalar))
            arrays.append(scalar.array)
        results = [TensorType((), op.type.element)]
        small = Op(op.definition, operands, op.attributes, op.regions, results, op.origin)
        return self._run(small, arrays)

    def _run(self, op: Op, arrays: Sequence[Any]) -> Any:
        with np.errstate(all="ignore"):
            (array,) = self.interpreter.evaluate(op, arrays, {})
        return np.asarray(array)


def compact(dense: Dense) -> Dense:
    """The same constant, as a splat if all of its elements have the same bits."""
    array = dense.array
    if dense.is_splat or array.size < 2:
        return dense
    first = array[(0,) * array.ndim]
    if array[(-1,) * array.ndim].tobytes() != first.tobytes():
        return dense
    bits = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)
    if (bits != bits[0]).any():
        return dense
    return Dense(dense.type, np.broadcast_to(np.asarray(first), array.shape))


def evaluated(value: Value, interpreter: Interpreter, known: dict[Value, Any]) -> Any:
    """The array that a value is, where `known` (which grows) and constants determine it."""
    stack = [value]
    while stack:
        last = stack[-1]
        op = last.op
        if last in known or op is None:
            stack.pop()
            continue
        missing = [operand for operand in op.operands if operand not in known]
        if missing:
            stack.extend(missing)
            continue
        with np.errstate(all="ignore"):
            results = interpreter.evaluate(op, [known[operand] for operand in op.operands], {})
        known.update(zip(op.results, results, strict=True))
    return known[value]


def grows(op: Op) -> bool:
    """Whether an operation only repeats elements: better repeated again than stored."""
    return op.name == "broadcast_in_dim" and op.type.size > op.operands[0].tensor.size


def _constant(dense: Dense) -> Value:
    return Op(find("constant"), (), {"value": dense}, (), (dense.type,)).result
