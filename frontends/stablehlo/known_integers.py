"""Integers that are known while a program is imported: numbers, and sizes that a call decides.

Programs with free shapes compute sizes as tensors of a few integers. Beside each such value stands
here what it holds: numbers and size expressions, and for booleans also what has to hold of sizes
where they are true (`Claims`). What depends on the program's data is None. The arithmetic is that
of the operations; integers are taken to be large enough for their sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ...hlo.assumptions import Assumptions
from ...hlo.errors import UserError
from ...hlo.graph import Op, Value, constant_of
from ...hlo.sizes import SizeConstraint, Symbol
from ...hlo.symbols import Dim, SizeTooLong, SymbolicDim, maximum, minimum
from ...hlo.types import TensorType

OF_DATA = "depends on the program's data"

MAXIMUM_KNOWN = 64
"""Tensors of at most so many elements are looked at."""

Array = np.ndarray[Any, Any]
Claims = tuple[SizeConstraint, ...]
"""A boolean that is true where all of these hold."""


class _Sign(NamedTuple):
    """1, 0 or -1: the sign of a size, where it is not known."""

    size: Dim


class KnownIntegers:
    """What is known of values, of the symbols of sizes, and of relations between them."""

    def __init__(self, symbols: Mapping[str, Symbol] | None = None) -> None:
        self.symbols: dict[str, Symbol] = dict(symbols or {})
        self.constraints: list[SizeConstraint] = []
        self._facts: Assumptions | None = None
        self._known: dict[Value, Array] = {}

    @property
    def facts(self) -> Assumptions:
        """What follows from the symbols and constraints; UserError where no size is left."""
        if self._facts is None:
            self._facts = Assumptions(self.symbols, self.constraints)
        return self._facts

    def add_symbol(self, name: str, symbol: Symbol) -> None:
        self.symbols[name] = symbol
        self._facts = None

    def demand(self, constraint: SizeConstraint) -> None:
        """From here on, the constraint holds; a bound of one symbol becomes its range."""
        self._facts = None
        if constraint.relation == "<=":
            for name, range_ in _bounded(constraint):
                said = self.symbols.get(name, Symbol())
                try:
                    met = range_.meet(said)
                except UserError:
                    break  # that nothing is left is said by whoever asks for the facts
                if met[:4] != said[:4]:
                    self.symbols[name] = met
                return
        if constraint not in self.constraints:
            self.constraints.append(constraint)

    @contextmanager
    def trying(self) -> Iterator[None]:
        """What is demanded inside is taken back at the end."""
        saved = dict(self.symbols), list(self.constraints), self._facts
        try:
            yield
        finally:
            self.symbols, self.constraints, self._facts = saved

    def numbers(self, value: Value) -> Any:
        """The integers of a value, nested in tuples as its dims are, sizes without what is
        superfluous; None where one of them depends on data."""
        array = self.array(value)
        if array is None:
            return None
        items = array.reshape(-1).tolist()
        if any(not isinstance(item, (int, SymbolicDim)) for item in items):
            return None
        simple = np.empty(array.shape, object)
        simple.reshape(-1)[:] = [
            item if isinstance(item, int) else self.facts.simplify(item) for item in items
        ]
        return _tuples(simple.tolist())

    def truth(self, value: Value) -> bool | Claims | None:
        """What a boolean of one element is."""
        array = self.array(value)
        return None if array is None or array.size != 1 else array.reshape(-1)[0]

    def array(self, value: Value) -> Array | None:
        """What is known of each element; None where nothing is."""
        found = self._known.get(value)
        if found is None and isinstance(value.type, TensorType) and _is_small(value.type):
            dense = constant_of(value)
            return None if dense is None else dense.array.astype(object)
        return found

    def set(self, value: Value, numbers: Any) -> None:
        """Say what a value holds."""
        array = np.empty(np.shape(numbers), object)
        array[...] = numbers
        self._known[value] = array

    def copy(self, source: Value, target: Value) -> None:
        """`target` holds what `source` does."""
        found = self.array(source)
        if found is not None:
            self._known[target] = found

    def learn(self, op: Op) -> None:
        """Compute what is known of the op's result."""
        if len(op.results) != 1 or not isinstance(op.results[0].type, TensorType):
            return
        if op.name == "get_dimension_size":
            self.set(op.result, op.operands[0].dims[op.dimension])
            return
        rule = _RULES.get(op.name)
        kind = op.results[0].type
        if rule is None or not _is_small(kind):
            return
        arrays = [self.array(operand) for operand in op.operands]
        if all(array is None for array in arrays) or not all(
            array is not None or _is_small(value.tensor)
            for value, array in zip(op.operands, arrays, strict=True)
        ):
            return
        full = [
            np.full(value.tensor.dims, None, object) if array is None else array
            for value, array in zip(op.operands, arrays, strict=True)
        ]
        try:
            result = rule(self, op, *full)
        except (SizeTooLong, ZeroDivisionError):
            return
        if result.shape == kind.dims and any(item is not None for item in result.reshape(-1)):
            self._known[op.result] = result

    # What is asked of sizes.

    def is_positive(self, size: Dim) -> bool:
        return self.facts.at_most(1, size) is True

    def is_natural(self, size: Dim) -> bool:
        return self.facts.at_most(0, size) is True

    def contradict(self, claims: Claims) -> bool:
        """Whether the claims cannot hold together."""
        for place, claim in enumerate(claims):
            others = [c for n, c in enumerate(claims) if n != place and c.relation != "!="]
            try:
                facts = Assumptions(self.symbols, [*self.constraints, *others])
            except UserError:
                return True
            if _decided(facts, claim) is False:
                return True
        return False


def _bounded(constraint: SizeConstraint) -> list[tuple[str, Symbol]]:
    """The symbol and its range where a `<=` is about one symbol alone."""
    difference = constraint.right - constraint.left
    factors = difference.affine if isinstance(difference, SymbolicDim) else None
    if factors is None or len(factors) != 1:
        return []
    ((name, factor),) = factors.items()
    if factor > 0:
        low = -(difference.constant // factor)
        return [(name, Symbol(low, None, origin=constraint.origin))]
    return [(name, Symbol(0, difference.constant // -factor, origin=constraint.origin))]


def _is_small(kind: TensorType) -> bool:
    return (
        kind.is_static
        and kind.size <= MAXIMUM_KNOWN
        and (kind.element.is_integer or kind.element.is_bool)
    )


def _tuples(items: Any) -> Any:
    return tuple(map(_tuples, items)) if isinstance(items, list) else items


# Elementwise operations.

Rule = Callable[..., Array]


def _each(compute: Callable[..., Any]) -> Rule:
    """The rule of an operation that computes each element alone; what it is given is never None,
    and integers are sizes or numbers."""

    def rule(known: KnownIntegers, op: Op, *arrays: Array) -> Array:
        shape = op.results[0].type.dims  # type: ignore[union-attr]
        columns = [np.broadcast_to(array, shape).reshape(-1) for array in arrays]
        result = np.empty(shape, object)
        flat = result.reshape(-1)
        for place, items in enumerate(zip(*columns, strict=True)):
            flat[place] = compute(known, op, *items)
        return result

    return rule


def _integers(compute: Callable[..., Any]) -> Rule:
    """The rule of an operation on integers alone, which are wide enough for sizes."""

    def one(known: KnownIntegers, op: Op, *items: Any) -> Any:
        element = op.results[0].element
        if not all(isinstance(item, (int, SymbolicDim)) for item in items):
            return None
        if element.is_bool or element.bits < 32:
            return None
        found = compute(known, *items)
        unsigned = element.kind == "uint" and isinstance(found, (int, SymbolicDim))
        return None if unsigned and not known.is_natural(found) else found

    return _each(one)


def _truncated(known: KnownIntegers, x: Dim, y: Dim) -> Dim | None:
    """x / y, cut towards zero."""
    if known.is_positive(-y):
        x, y = -x, -y
    if not known.is_positive(y):
        return None
    if known.is_natural(x):
        return x // y
    return -(-x // y) if known.is_natural(-x) else None


def _remainder(known: KnownIntegers, x: Dim, y: Dim) -> Dim | None:
    quotient = _truncated(known, x, y)
    return None if quotient is None else x - y * quotient


def _sign(known: KnownIntegers, x: Dim) -> Any:
    if known.is_positive(x):
        return 1
    if known.is_positive(-x):
        return -1
    return 0 if known.facts.is_equal(x, 0) else _Sign(x)


def _absolute(known: KnownIntegers, x: Dim) -> Dim | None:
    if known.is_natural(x):
        return x
    return -x if known.is_natural(-x) else None


def _larger(known: KnownIntegers, x: Dim, y: Dim) -> Dim:
    return known.facts.simplify(maximum(x, y))


def _smaller(known: KnownIntegers, x: Dim, y: Dim) -> Dim:
    return known.facts.simplify(minimum(x, y))


def _converted(known: KnownIntegers, op: Op, x: Any) -> Any:
    target = op.results[0].element  # type: ignore[union-attr]
    if isinstance(x, bool):
        return x if target.is_bool else int(x) if target.is_integer else None
    if isinstance(x, int):
        return bool(x) if target.is_bool else x
    if isinstance(x, SymbolicDim) and target.is_integer and target.bits >= 32:
        return x if target.kind != "uint" or known.is_natural(x) else None
    return x if target.is_bool and isinstance(x, tuple) else None


# Booleans.


def _decided(facts: Assumptions, claim: SizeConstraint) -> bool | None:
    if claim.relation == "<=":
        return facts.at_most(claim.left, claim.right)
    equal = facts.is_equal(claim.left, claim.right)
    return equal if equal is None or claim.relation == "==" else not equal


def _claim(known: KnownIntegers, relation: Any, left: Dim, right: Dim) -> bool | Claims:
    claim = SizeConstraint(left, relation, right)
    found = _decided(known.facts, claim)
    return (claim,) if found is None else found


def _not(x: Any) -> Any:
    if isinstance(x, bool):
        return not x
    if not isinstance(x, tuple) or len(x) != 1:
        return None
    (claim,) = x
    if claim.relation == "<=":
        return (SizeConstraint(claim.right + 1, "<=", claim.left),)
    return (claim._replace(relation="!=" if claim.relation == "==" else "=="),)


def _and(known: KnownIntegers, op: Op, x: Any, y: Any) -> Any:
    for one, other in ((x, y), (y, x)):
        if one is False:
            return False
        if one is True:
            return other if isinstance(other, (bool, tuple)) else None
    if not isinstance(x, tuple) or not isinstance(y, tuple):
        return None
    both = tuple(dict.fromkeys((*x, *y)))
    return False if known.contradict(both) else both


def _or(known: KnownIntegers, op: Op, x: Any, y: Any) -> Any:
    for one, other in ((x, y), (y, x)):
        if one is True:
            return True
        if one is False:
            return other if isinstance(other, (bool, tuple)) else None
    return x if x is not None and x == y else None


def _unlike(x: Any, y: Any) -> Any:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, bool):
            return _not(other) if one else other if isinstance(other, (bool, tuple)) else None
    return None


_SIGNS: Mapping[tuple[int, bool], tuple[str, int]] = {
    (1, True): (">=", 1), (1, False): ("<=", 0), (-1, True): ("<=", -1), (-1, False): (">=", 0),
    (0, True): ("==", 0), (0, False): ("!=", 0),
}  # fmt: skip
"""(number, whether the sign is to be it) -> what that says of the size."""


def _compare(known: KnownIntegers, op: Op, x: Any, y: Any) -> Any:
    direction = op.comparison_direction
    if op.operands[0].element.is_bool:
        if direction not in ("EQ", "NE"):
            return None
        unlike = _unlike(x, y)
        return unlike if direction == "NE" else None if unlike is None else _not(unlike)
    if isinstance(y, _Sign):
        x, y = y, x
        if direction not in ("EQ", "NE"):
            return None
    if isinstance(x, _Sign):
        if direction not in ("EQ", "NE") or not isinstance(y, int):
            return None
        if abs(y) > 1:
            return direction == "NE"
        relation, number = _SIGNS[y, direction == "EQ"]
        if relation == ">=":
            return _claim(known, "<=", number, x.size)
        return _claim(known, relation, x.size, number)
    if not isinstance(x, (int, SymbolicDim)) or not isinstance(y, (int, SymbolicDim)):
        return None
    match direction:
        case "EQ" | "NE":
            return _claim(known, "==" if direction == "EQ" else "!=", x, y)
        case "LE":
            return _claim(known, "<=", x, y)
        case "LT":
            return _claim(known, "<=", x + 1, y)
        case "GE":
            return _claim(known, "<=", y, x)
        case _:
            return _claim(known, "<=", y + 1, x)


def _select(known: KnownIntegers, op: Op, which: Any, x: Any, y: Any) -> Any:
    if isinstance(which, bool):
        return x if which else y
    if x is None or y is None:
        return None
    if x is y or x == y:
        return x
    if not isinstance(which, tuple):
        return None
    if known.contradict(which):
        return y
    if not isinstance(x, (int, SymbolicDim)) or not isinstance(y, (int, SymbolicDim)):
        return None
    return _chosen(known, which, x, y)


def _chosen(known: KnownIntegers, which: Claims, x: Dim, y: Dim) -> Dim | None:
    """x where the claims hold, else y, as one expression: floor division and modulo, which are
    spelled so by operations that cut towards zero, and extrema."""
    step = x - y
    for claim in which:
        rest, others = _small(known, claim), [c for c in which if c is not claim]
        if rest is None:
            continue
        size, modulus = rest  # 0 <= size < modulus; the claim is that it is not 0
        facts = Assumptions(known.symbols, [*known.constraints, SizeConstraint(1, "<=", size)])
        if all(_decided(facts, other) is True for other in others):
            return y + step * ((size + modulus - 1) // modulus)
    if len(which) == 1 and which[0].relation == "<=":
        over = which[0].right - which[0].left
        for sign in (1, -1):
            for part in (over, over + 1):
                if known.facts.is_equal(step, part * sign) is True:
                    return y + sign * maximum(part, 0)
    return None


def _small(known: KnownIntegers, claim: SizeConstraint) -> tuple[Dim, int] | None:
    """A size in 0 .. modulus - 1, which is not 0 where the claim holds, and modulus."""
    difference = claim.left - claim.right
    candidates = [difference, -difference]
    if claim.relation == "<=":
        candidates = [1 - difference]
    for size in candidates if claim.relation != "==" else ():
        low, high = known.facts.bounds(size)
        if low is not None and low >= 0 and high is not None:
            return size, high + 1
    return None


# Operations that move elements.


def _reshape(known: KnownIntegers, op: Op, x: Array) -> Array:
    return x.reshape(op.results[0].type.dims)  # type: ignore[union-attr]


def _broadcast(known: KnownIntegers, op: Op, x: Array) -> Array:
    shape = op.results[0].type.dims  # type: ignore[union-attr]
    inner = [1] * len(shape)
    for dim, place in enumerate(op.broadcast_dimensions):
        inner[place] = x.shape[dim]
    return np.broadcast_to(x.reshape(inner), shape)


def _concatenate(known: KnownIntegers, op: Op, *arrays: Array) -> Array:
    return np.concatenate(arrays, op.dimension)


def _slice(known: KnownIntegers, op: Op, x: Array) -> Array:
    cuts = zip(op.start_indices, op.limit_indices, op.strides or (1,) * x.ndim, strict=True)
    return x[tuple(slice(*cut) for cut in cuts)]


def _transpose(known: KnownIntegers, op: Op, x: Array) -> Array:
    return x.transpose(op.permutation)


def _reduce(known: KnownIntegers, op: Op, *arrays: Array) -> Array:
    """The product or sum of sizes."""
    body = op.regions[0]
    if len(arrays) != 2 or len(body.ops) != 1 or body.ops[0].name not in ("multiply", "add"):
        return np.full(op.results[0].type.dims, None, object)  # type: ignore[union-attr]
    x, first = arrays
    combine = math.prod if body.ops[0].name == "multiply" else sum
    kept = [d for d in range(x.ndim) if d not in op.dimensions]
    rows = x.transpose([*kept, *op.dimensions]).reshape([x.shape[d] for d in kept] + [-1])
    result = np.empty(rows.shape[:-1], object)
    for place in np.ndindex(result.shape):
        items = [*rows[place], first.item()]
        fine = all(isinstance(item, (int, SymbolicDim)) for item in items)
        result[place] = combine(items) if fine else None
    return result


_RULES: dict[str, Rule] = {
    "abs": _integers(_absolute),
    "add": _integers(lambda known, x, y: x + y),
    "and": _each(_and),
    "broadcast_in_dim": _broadcast,
    "clamp": _integers(lambda known, a, x, b: _smaller(known, _larger(known, x, a), b)),
    "compare": _each(_compare),
    "concatenate": _concatenate,
    "convert": _each(_converted),
    "divide": _integers(_truncated),
    "maximum": _integers(_larger),
    "minimum": _integers(_smaller),
    "multiply": _integers(lambda known, x, y: x * y),
    "negate": _integers(lambda known, x: -x),
    "not": _each(lambda known, op, x: _not(x)),
    "or": _each(_or),
    "reduce": _reduce,
    "remainder": _integers(_remainder),
    "reshape": _reshape,
    "select": _each(_select),
    "sign": _integers(_sign),
    "slice": _slice,
    "subtract": _integers(lambda known, x, y: x - y),
    "transpose": _transpose,
    "xor": _each(lambda known, op, x, y: _unlike(x, y)),
}
