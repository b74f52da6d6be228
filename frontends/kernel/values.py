"""What the expressions of a kernel stand for while its source is traced: tiles, memory, arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...hlo.build import Builder
from ...hlo.errors import UserError
from ...hlo.graph import Value
from ...hlo.types import I32, ElementType, TensorType, element_type, element_type_of

INDEX = TensorType((), I32)
_ID = "tile_id"  # the one operation without operands whose value is the same everywhere


class LanguageError(UserError):
    """A rule of the language is broken; the tracer adds the place in the user's source."""


class Open:
    """The value of a size that the compiler chooses; the one object is `auto`."""

    def __repr__(self) -> str:
        return "girih.auto"


auto: Any = Open()


def dtype_of(value: Any) -> ElementType:
    """The element type of a name, a numpy, jax or torch dtype, or an element type itself."""
    if isinstance(value, ElementType):
        return value
    text = str(value).removeprefix("torch.")
    try:
        return element_type({"bool": "i1"}.get(text, text))
    except ValueError:
        pass
    try:
        return element_type_of(value if not text.isidentifier() else text)
    except (TypeError, ValueError):
        raise LanguageError(f"{value!r} is not an element type") from None


@dataclass(frozen=True)
class Array:
    """An array of a kernel: its shape and element type, as `out=` and `grid=` see and give them.

    start: for an output, the name of the input that it starts as a copy of; "" for none, then every
        element has to be stored.
    """

    shape: tuple[int, ...]
    dtype: Any
    start: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", dtype_of(self.dtype))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def type(self) -> TensorType:
        return TensorType(self.shape, self.dtype)


class Affine(NamedTuple):
    """sum(factor * value) + constant, for index scalars; equal ones compare equal."""

    terms: tuple[tuple[Value, int], ...] = ()
    constant: int = 0

    @classmethod
    def of(cls, value: Any) -> Affine | None:
        """The form of an integer or of an index scalar; None for other values."""
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return cls((), int(value))
        if isinstance(value, Tile) and value.value.type is INDEX:
            return value.affine
        return None

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        factors = dict(self.terms)
        for value, factor in other.terms:
            factors[value] = factors.get(value, 0) + sign * factor
        terms = tuple((value, factor) for value, factor in factors.items() if factor)
        return Affine(terms, self.constant + sign * other.constant)

    def times(self, factor: int) -> Affine:
        terms = tuple((value, f * factor) for value, f in self.terms) if factor else ()
        return Affine(terms, self.constant * factor)


class Tile:
    """A tile, or a scalar (rank 0), that the kernel computes. Its methods stand in names.py."""

    __slots__ = ("value", "affine")

    def __init__(self, value: Value, affine: Affine | None = None) -> None:
        self.value = value
        self.affine = affine or Affine(((value, 1),), 0)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.dims

    @property
    def dtype(self) -> ElementType:
        return self.value.element

    @property
    def ndim(self) -> int:
        return self.value.rank

    def __repr__(self) -> str:
        return str(self.value.type)

    def __bool__(self) -> bool:
        raise LanguageError(f"a value of type {self} is not known when the kernel is compiled")


class TracedMemory:
    """One array of the kernel: read and written by windows, `a[i : i + 16, 0:64]`."""

    __slots__ = ("value", "name", "is_output")

    def __init__(self, value: Value, name: str, is_output: bool) -> None:
        self.value, self.name, self.is_output = value, name, is_output

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.dims

    @property
    def dtype(self) -> ElementType:
        return self.value.element

    @property
    def ndim(self) -> int:
        return self.value.rank

    @property
    def size(self) -> int:
        return self.value.tensor.size

    def __repr__(self) -> str:
        return f"the array '{self.name}' ({self.value.type})"


class Trace:
    """The kernel that is being traced: where operations go, and what is known about scalars."""

    def __init__(self, grid: tuple[int, ...]) -> None:
        self.builder = Builder()
        self.grid = grid
        self.natural: set[Value] = set()  # scalars that are never negative
        self._scalars: list[dict[Any, Value]] = [{}]  # index scalars by how they are computed

    def op(self, name: str, *operands: Value, **attributes: Any) -> Value:
        """An operation with one result. Equal index scalars are one value, so that the windows
        `x[i // 2 : i // 2 + 8]` and `x[i // 2 : 8 + i // 2]` have sizes that can be seen."""
        if any(value.type is not INDEX for value in operands) or (not operands and name != _ID):
            return self.builder(name, *operands, **attributes)
        key = (name, operands, tuple(attributes.items()))
        return self._scalar(key, lambda: self.builder(name, *operands, **attributes))

    def constant(self, value: Any, type: TensorType) -> Value:
        if type is not INDEX:
            return self.builder.constant(value, type)
        return self._scalar(int(value), lambda: self.builder.constant(value, type))

    def _scalar(self, key: Any, make: Callable[[], Value]) -> Value:
        for known in self._scalars:
            if key in known:
                return known[key]
        return self._scalars[-1].setdefault(key, make())

    def is_natural(self, value: Any) -> bool:
        """Whether an index scalar is known never to be negative."""
        form = Affine.of(value)
        return (
            form is not None
            and form.constant >= 0
            and all(factor > 0 and v in self.natural for v, factor in form.terms)
        )

    @contextmanager
    def nested(self) -> Iterator[Builder]:
        """Inside, operations go to a builder of their own, for a region."""
        before = self.builder
        self.builder = Builder(before.origin)
        self._scalars.append({})
        try:
            yield self.builder
        finally:
            self.builder = before
            self._scalars.pop()


_TRACE: ContextVar[Trace | None] = ContextVar("trace", default=None)


def current() -> Trace:
    """The kernel that is being traced; LanguageError outside of one."""
    trace = _TRACE.get()
    if trace is None:
        raise LanguageError("this name works inside a kernel only")
    return trace


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    token = _TRACE.set(trace)
    try:
        yield trace
    finally:
        _TRACE.reset(token)


def is_number(value: Any) -> bool:
    """Whether it is a scalar that is known when the kernel is compiled."""
    return isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating))


def shape_of(value: Any, what: str = "a shape") -> tuple[int, ...]:
    """A tuple of constant sizes."""
    sizes = value if isinstance(value, (tuple, list)) else (value,)
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in sizes):
        raise LanguageError(f"{what} has to be of constant integers, not {_listed(sizes)}")
    if any(n < 0 for n in sizes):
        raise LanguageError(f"{what} has a negative size: {_listed(sizes)}")
    return tuple(int(n) for n in sizes)


def _listed(values: Iterable[Any]) -> str:
    return f"({', '.join(map(repr, values))})"
