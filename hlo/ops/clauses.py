"""What constraints of several rooms have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..assumptions import assumed
from ..errors import UnsupportedError
from ..graph import Op, Value
from ..symbols import SizeTooLong
from ..types import QuantizedType, TensorType


def same_dim(left: Any, right: Any) -> bool:
    """Whether two sizes are equal, as far as it is known (`assumptions.assuming`)."""
    if left is right or (isinstance(left, int) and isinstance(right, int)):
        return left == right
    here = assumed()
    return here.accepts(here.facts.is_equal(left, right), left, "==", right)


def same_dims(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) and all(map(same_dim, left, right))


def is_same(left: Any, right: Any) -> bool:
    """Whether two sizes are known to be equal."""
    if left is right or (isinstance(left, int) and isinstance(right, int)):
        return left == right
    return assumed().facts.is_equal(left, right) is True


def at_most(left: Any, right: Any) -> bool:
    """Whether left <= right, as far as it is known."""
    if isinstance(left, int) and isinstance(right, int):
        return left <= right
    here = assumed()
    return here.accepts(here.facts.at_most(left, right), left, "<=", right)


def divides(divisor: Any, size: Any) -> bool:
    """Whether divisor * k = size for an integer k, as far as it is known."""
    if isinstance(divisor, int) and isinstance(size, int):
        return size % divisor == 0 if divisor else size == 0
    if divisor == 0:
        return same_dim(size, 0)
    here = assumed()
    known = here.facts.divides(divisor, size)
    return here.accepts(known, divisor * (size // divisor), "==", size)


def same_size(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether dims have the same number of elements, as far as it is known."""
    try:
        return same_dim(math.prod(left), math.prod(right))
    except SizeTooLong:
        return assumed().accepts_too_long()


def simplified(size: Any) -> Any:
    """The size without what is superfluous by what is known."""
    return size if isinstance(size, int) else assumed().facts.simplify(size)


def same_element(left: Any, right: Any) -> bool:
    """One element type; quantised ones with the same parameters."""
    return left is right


def same_or_quantized(left: Any, right: Any) -> bool:
    """One element type, or at least one is quantised: operations on real values allow that."""
    return left is right or isinstance(left, QuantizedType) or isinstance(right, QuantizedType)


def merge_dims(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """Dims of tensors of one shape: the fixed one where some are symbolic."""
    return tuple(
        next((d for d in dims if isinstance(d, int)), dims[0]) for dims in zip(*shapes, strict=True)
    )


def is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType)


def unique(values: Sequence[Any]) -> bool:
    return len(set(values)) == len(values)


def ascending(values: Sequence[int]) -> bool:
    return list(values) == sorted(values)


def within(values: Sequence[int], bound: int) -> bool:
    """0 <= v < bound for all v."""
    return all(0 <= v < bound for v in values)


def any_result(holds: Callable[[Op], bool]) -> Callable[[Op], bool]:
    """A clause about the result: it holds while the results are not known yet."""
    return lambda o: not o.results or holds(o)


def result_element(o: Op, usual: Any) -> Any:
    """The result's element type where an operation may choose it, `usual` while it is not given."""
    return o.results[0].element if o.results else usual


def per_dim(values: Any, count: int, default: Any) -> tuple[Any, ...]:
    """An attribute with one entry per dimension, all `default` where it is left out."""
    return tuple(values) if values else (default,) * count


def static_dims(type: TensorType, name: str) -> tuple[int, ...]:
    """The dims of a type that must be fixed to be computed with."""
    if not type.is_static:
        raise UnsupportedError(f"'{name}' cannot run while the dimensions of {type} are not fixed")
    return type.dims
