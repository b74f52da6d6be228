"""A kernel's rules: its arrays, its outputs, its grid, and the operation that they make."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...hlo.build import Builder
from ...hlo.contracts import check_windows
from ...hlo.errors import UserError
from ...hlo.graph import Function, Module, Op, Origin
from ...hlo.verify import Level, verify
from .cleanup import cleaned
from .syntax import source_of
from .trace import Reads, SyntaxWalker, outer_value
from .values import Array, LanguageError, Open, Trace, TracedMemory, tracing
from .variants import Local, with_variants

Constants = Mapping[str, Any]


@dataclass
class Definition:
    """A kernel function with what `girih.kernel` was told about it.

    Positional parameters of the function are arrays, the inputs first, then the outputs; keyword-
    only ones are constants: sizes, numbers, names. `out` and `grid` are values, or functions of
    the arrays and constants that they name.
    """

    function: Any
    out: Any
    grid: Any = ()
    sharding: str = ""
    local: Local = field(default_factory=dict)
    arrays: tuple[str, ...] = field(init=False)
    constants: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        arrays, constants = [], {}
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY:
                constants[parameter.name] = parameter.default
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise UserError(f"{self.place}: a kernel's parameters are named one by one")
            elif parameter.default is not parameter.empty:
                raise UserError(
                    f"{self.place}: '{parameter.name}' is an array, which has no default; "
                    "constants stand behind *"
                )
            else:
                arrays.append(parameter.name)
        self.arrays, self.constants = tuple(arrays), constants

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def place(self) -> str:
        code = self.function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}: kernel '{self.name}'"

    def bind(self, given: Constants) -> dict[str, Any]:
        """All constants, the given ones in place of their defaults; UserError for others."""
        for key in given:
            if key not in self.constants:
                listed = ", ".join(self.constants) or "none"
                raise UserError(f"{self.place} has no constant '{key}'; it has {listed}")
        bound = {**self.constants, **given}
        for key, value in bound.items():
            if value is inspect.Parameter.empty:
                raise UserError(f"{self.place} needs a value for '{key}'")
        return bound

    def open_sizes(self, bound: Constants) -> list[str]:
        """Constants that the compiler is to choose."""
        return [name for name, value in bound.items() if isinstance(value, Open)]

    def outputs(self, inputs: Sequence[Array], bound: Constants) -> dict[str, Array]:
        """The arrays that the kernel makes from inputs of those shapes, by name."""
        known = {**dict(zip(self.arrays, inputs, strict=False)), **bound}
        found = self._call(self.out, known, "out")
        several = list(found) if isinstance(found, (tuple, list)) else [found]
        count = len(self.arrays) - len(several)
        if len(inputs) != count:
            raise UserError(
                f"{self.place} takes {count} inputs ({', '.join(self.arrays[:count])}), "
                f"got {len(inputs)}"
            )
        for array in several:
            if not isinstance(array, Array):
                raise UserError(
                    f"{self.place}: out gives tl.Array(shape, dtype) or arrays like it, "
                    f"not {array!r}"
                )
            if array.start and array.start not in self.arrays[:count]:
                raise UserError(f"{self.place}: there is no input '{array.start}' to start as")
        return dict(zip(self.arrays[count:], several, strict=True))

    def grid_of(self, known: Mapping[str, Any]) -> tuple[int, ...]:
        """Tiles along each axis of the grid."""
        found = self._call(self.grid, known, "grid")
        sizes = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in sizes):
            raise UserError(f"{self.place}: the grid has to be of integers from 0, not {found!r}")
        return tuple(int(n) for n in sizes)

    def _call(self, rule: Any, known: Mapping[str, Any], what: str) -> Any:
        """A rule's value: itself, or what it returns for the arrays and constants it names."""
        if not callable(rule):
            return rule
        names = list(inspect.signature(rule).parameters)
        missing = [name for name in names if name not in known]
        if missing:
            raise UserError(
                f"{self.place}: {what} asks for '{missing[0]}', which is no array or constant "
                "of the kernel that is known there"
            )
        try:
            return rule(*(known[name] for name in names))
        except UserError:
            raise
        except (LanguageError, ArithmeticError, LookupError, TypeError, ValueError,
                AttributeError) as error:  # fmt: skip
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"{self.place}: {what} failed: {reason}") from error

    def build(self, inputs: Sequence[Array], bound: Constants) -> Built:
        """The kernel for inputs of those shapes, and its variants; every constant has a value."""
        built = self.build_one(inputs, bound)
        if not self.local:
            return built
        if not self.sharding:
            raise UserError(f"{self.place}: local= needs sharding=, which names the dims")
        module = with_variants(
            built.module, self.local, inputs, lambda parts: self.build_one(parts, bound).module
        )
        return replace(built, module=module)

    def build_one(self, inputs: Sequence[Array], bound: Constants) -> Built:
        """The kernel for inputs of those shapes, without variants."""
        outputs = self.outputs(inputs, bound)
        names = self.arrays[: len(inputs)]
        known = {**dict(zip(names, inputs, strict=True)), **outputs, **bound}
        trace = Trace(self.grid_of(known))
        types = [array.type for array in (*inputs, *outputs.values())]
        memory = trace.builder.arguments(types)
        environment: dict[str, Any] = {
            name: TracedMemory(value, name, number >= len(inputs))
            for number, (name, value) in enumerate(zip(self.arrays, memory, strict=True))
        }
        reads: Reads = {}
        with tracing(trace):
            SyntaxWalker(self.function, trace, reads).run({**environment, **bound})
        body = cleaned(trace.builder.region([]), len(inputs))
        module = self._module(inputs, outputs, trace.grid, body)
        return Built(module, dict(bound), tuple(reads.values()))

    def _module(
        self, inputs: Sequence[Array], outputs: Mapping[str, Array], grid: Any, body: Any
    ) -> Module:
        code = self.function.__code__
        builder = Builder((Origin(code.co_filename, source_of(self.function).first, self.name),))
        operands = builder.arguments([array.type for array in inputs])
        starts = tuple(
            self.arrays.index(array.start) if array.start else -1 for array in outputs.values()
        )
        facts: dict[str, Any] = {"kernel": self.name, "grid": grid}
        if any(start >= 0 for start in starts):
            facts["starts"] = starts
        if self.sharding:
            facts["sharding"] = self.sharding
        op = builder.op("kernel_call", operands, facts, (body,))
        if self.sharding:
            check_windows(op)
        module = Module({"main": Function("main", builder.region(op.results))}, name=self.name)
        verify(module, _KERNEL)
        return module


_KERNEL = Level("KERNEL", "one kernel_call", lambda op: op.name == "kernel_call")


@dataclass(frozen=True)
class Built:
    """A kernel for certain shapes: a module with its one `kernel_call`, and its constants.

    reads: (where, name, value) of what the source took from around it.
    """

    module: Module
    constants: dict[str, Any]
    reads: tuple[tuple[Any, str, Any], ...]

    @property
    def op(self) -> Op:
        return self.module.body.ops[0]

    def is_current(self) -> bool:
        """Whether everything that the source took from around it is still the same object."""
        try:
            return all(outer_value(where, name) is value for where, name, value in self.reads)
        except (LookupError, ValueError):
            return False
