"""The program: modules, functions, regions, operations and values.

Everything here is immutable and compared by identity; a pass that changes something builds new
objects, so "unchanged" is `new is old`. Operations of a region stand in an order in which every
value is defined before it is used; that order carries no other meaning (the schedule is a plan's).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from .assumptions import Assumptions
from .dense import Dense
from .errors import CompilerBug
from .op_attributes import OpAttributes
from .sharding import Mesh
from .signature import Signature
from .sizes import SizeConstraint, Symbol
from .symbols import symbols_of
from .text import print_module
from .types import TensorType, Type, tensor_of

if TYPE_CHECKING:
    from .derivation import Derivation
    from .room import OpDefinition

Array = np.ndarray[Any, Any]
Attribute = Any  # bool, int, float, str, bytes, None, tuple, dict, Dense, a type or a size


class Origin(NamedTuple):
    """Where in the user's program something comes from; empty parts are unknown."""

    file: str = ""
    line: int = 0
    name: str = ""  # framework path: "encoder/layer.0/attention"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        return " ".join(filter(None, [place, f"({self.name})" if self.name else ""])) or "unknown"


MAXIMUM_ORIGINS = 8  # a union of more keeps the first ones: enough to answer "which line"


def union_origins(*origins: tuple[Origin, ...]) -> tuple[Origin, ...]:
    """All different origins, first seen first, at most `MAXIMUM_ORIGINS`."""
    if len(origins) == 1:
        return origins[0]
    return tuple(dict.fromkeys(o for some in origins for o in some))[:MAXIMUM_ORIGINS]


EXACT = "girih.exact"
"""Marks an operation whose rounding decides more than last bits: no licence covers it."""

APPROXIMATE = "girih.approximate"
"""Marks an operation that a target may compute by an approximate formula of its own."""

NOTE = "girih.note"
"""What the user is told of a kernel: what was chosen that costs something, and why."""

PARTS = "girih.parts"
"""Of a `rows` fusion: into how many parts blocks of threads divide each row."""

LOGGED = "girih.logged"
"""Of a module: how many of the entry's last results keep state as it was (`undo-log`)."""


class Value:
    """One result of an operation, or one argument of a region (`owner` tells which)."""

    __slots__ = ("owner", "index", "type")

    def __init__(self, owner: Op | Region, index: int, type: Type) -> None:
        self.owner, self.index, self.type = owner, index, type

    @property
    def op(self) -> Op | None:
        """The operation that computes it; None for an argument."""
        return self.owner if isinstance(self.owner, Op) else None

    @property
    def tensor(self) -> TensorType:
        """Its type, which must be a tensor's."""
        if not isinstance(self.type, TensorType):
            raise CompilerBug(f"a tensor was expected, not {self.type}")
        return self.type

    @property
    def dims(self) -> tuple[Any, ...]:
        return self.tensor.dims

    @property
    def rank(self) -> int:
        return self.tensor.rank

    @property
    def element(self) -> Any:
        return self.tensor.element

    def __repr__(self) -> str:
        source = self.owner.name if isinstance(self.owner, Op) else "argument"
        return f"<{source}#{self.index} {self.type}>"


class Op(OpAttributes):
    """One operation. `op.dimension` is short for its attribute, `op.lhs` for its operand."""

    __slots__ = ("definition", "name", "operands", "attributes", "regions", "results", "origin")

    def __init__(
        self,
        definition: OpDefinition,
        operands: Sequence[Value],
        attributes: Mapping[str, Attribute],
        regions: Sequence[Region],
        result_types: Sequence[Type],
        origin: tuple[Origin, ...] = (),
    ) -> None:
        self.definition = definition
        self.name = definition.name
        self.operands: tuple[Value, ...] = tuple(operands)
        self.attributes: Mapping[str, Attribute] = attributes
        self.regions: tuple[Region, ...] = tuple(regions)
        self.results: tuple[Value, ...] = tuple(
            [Value(self, index, type) for index, type in enumerate(result_types)]
        )
        self.origin = origin

    @property
    def result(self) -> Value:
        """Its only result."""
        (result,) = self.results
        return result

    @property
    def type(self) -> TensorType:
        """The type of its only result, a tensor."""
        return self.result.tensor

    @property
    def result_types(self) -> tuple[Type, ...]:
        return tuple([result.type for result in self.results])

    @property
    def place(self) -> str:
        """What a message about it begins with: "model.py:41: ", or "" where that is unknown."""
        return next((f"{origin}: " for origin in self.origin if origin.file or origin.name), "")

    if not TYPE_CHECKING:  # which goes by OpAttributes

        def __getattr__(self, name: str) -> Any:
            # Reached only where no slot or property of that name exists.
            if name.startswith("_"):
                raise AttributeError(name)
            if name in self.attributes:
                return self.attributes[name]
            return self.definition.part(self, name)

    def with_operands(self, operands: Sequence[Value], regions: Sequence[Region] = ()) -> Op:
        """The same operation on other operands (and regions); itself if nothing differs."""
        regions = tuple(regions) or self.regions
        if all(map(is_, operands, self.operands)) and all(map(is_, regions, self.regions)):
            return self
        types = self.result_types
        return Op(self.definition, operands, self.attributes, regions, types, self.origin)

    def __repr__(self) -> str:
        types = ", ".join(str(type) for type in self.result_types)
        return f"<{self.name} -> {types}>"


class Region:
    """A list of operations with arguments and yielded results. Values of enclosing regions may be
    used inside the regions of `while`, `if` and `case`, never inside a fusion.

    The arguments are made with the region: `Region.build` hands them to the code that needs them.
    """

    __slots__ = ("arguments", "ops", "results", "_uses", "_captures", "_definitions", "_types")

    def __init__(
        self, arguments: Sequence[Value], ops: Sequence[Op], results: Sequence[Value]
    ) -> None:
        self.arguments: tuple[Value, ...] = tuple(arguments)
        for index, argument in enumerate(self.arguments):
            if argument.index != index:
                raise CompilerBug("a region's arguments are out of order")
            argument.owner = self
        self.ops: tuple[Op, ...] = tuple(ops)
        self.results: tuple[Value, ...] = tuple(results)
        self._uses: dict[Value, list[tuple[Op | None, int]]] | None = None
        self._captures: tuple[Value, ...] | None = None
        self._definitions: frozenset[OpDefinition] | None = None
        self._types: frozenset[Type] | None = None

    @property
    def argument_types(self) -> tuple[Type, ...]:
        return tuple(argument.type for argument in self.arguments)

    @property
    def result_types(self) -> tuple[Type, ...]:
        return tuple(result.type for result in self.results)

    @property
    def uses(self) -> Mapping[Value, Sequence[tuple[Op | None, int]]]:
        """value -> (user, operand number); the user None is the region's own result list.

        Uses inside nested regions count for the nested operation's owner, with operand number -1.
        """
        if self._uses is None:
            uses: dict[Value, list[tuple[Op | None, int]]] = {}
            for op in self.ops:
                for number, value in enumerate(op.operands):
                    uses.setdefault(value, []).append((op, number))
                for region in op.regions:
                    for value in region.captures():
                        uses.setdefault(value, []).append((op, -1))
            for number, value in enumerate(self.results):
                uses.setdefault(value, []).append((None, number))
            self._uses = uses
        return self._uses

    def captures(self) -> tuple[Value, ...]:
        """Values used inside that are defined outside, each once, in order of first use."""
        if self._captures is None:
            defined: set[Value] = set(self.arguments)
            found: dict[Value, None] = {}
            for op in self.ops:
                used = [*op.operands, *(v for region in op.regions for v in region.captures())]
                found.update(dict.fromkeys(value for value in used if value not in defined))
                defined.update(op.results)
            found.update(dict.fromkeys(value for value in self.results if value not in defined))
            self._captures = tuple(found)
        return self._captures

    @property
    def definitions(self) -> frozenset[OpDefinition]:
        """Which operations stand in it, also in nested regions."""
        if self._definitions is None:
            found = {op.definition for op in self.ops}
            inner = [region.definitions for op in self.ops for region in op.regions]
            self._definitions = frozenset(found.union(*inner))
        return self._definitions

    @property
    def types(self) -> frozenset[Type]:
        """The types of all values in it, also in nested regions."""
        if self._types is None:
            found = {value.type for op in self.ops for value in op.results}
            inner = [region.types for op in self.ops for region in op.regions]
            self._types = frozenset(found.union(self.argument_types, *inner))
        return self._types

    def walk(self) -> Iterator[Op]:
        """Every operation, those of nested regions before their owner."""
        for op in self.ops:
            for region in op.regions:
                yield from region.walk()
            yield op

    def __repr__(self) -> str:
        return f"<region of {len(self.ops)} operations -> {list(self.result_types)}>"


def symbols_in(op: Op) -> tuple[str, ...]:
    """The symbols of the sizes in an operation: of its operands, results and all inside."""
    values = [*op.operands, *op.results]
    for region in op.regions:
        values += region.arguments
        values += (value for inner in region.walk() for value in inner.results)
    kinds = {value.type for value in values}
    found = {
        name
        for kind in kinds
        if isinstance(kind, TensorType) and not kind.is_static
        for dim in kind.dims
        for name in symbols_of(dim)
    }
    return tuple(sorted(found))


def arguments(types: Sequence[Type], first: int = 0) -> tuple[Value, ...]:
    """Fresh arguments for a region that is about to be built; first: the number of the first."""
    return tuple(Value(_UNOWNED, index, type) for index, type in enumerate(types, first))


_UNOWNED = Region((), (), ())


class Weight:
    """External data by name: loaded when first asked for, never part of the program's text.

    `aliases` are further names of the same tensor (tied weights). `inverse` says that this weight
    holds another one in another order: (its name, a region that gives it back from this one).
    `derivation` says how it follows from other weights; None: it is one of the source's.
    """

    __slots__ = ("name", "type", "aliases", "inverse", "derivation", "_source", "_lock")

    def __init__(
        self,
        name: str,
        source: Array | Callable[[], Array],
        type: TensorType | None = None,
        aliases: Sequence[str] = (),
        inverse: tuple[str, Region] | None = None,
        derivation: Derivation | None = None,
    ) -> None:
        if type is None:
            if callable(source):
                raise CompilerBug(f"weight '{name}' is lazy and has no type")
            type = tensor_of(source)
        self.name, self.type, self.aliases = name, type, tuple(aliases)
        self.inverse, self.derivation = inverse, derivation
        self._source: Array | Callable[[], Array] = source
        self._lock = threading.Lock()

    @property
    def array(self) -> Array:
        """The data, read-only by convention."""
        if callable(self._source):
            with self._lock:  # several threads may ask; the data is computed once
                if callable(self._source):
                    self._source = self._source()
        if self._source.shape != self.type.dims or self._source.dtype != self.type.dtype:
            found = f"{self._source.dtype}{list(self._source.shape)}"
            raise CompilerBug(f"weight '{self.name}' is {found}, declared {self.type}")
        return self._source

    @property
    def view(self) -> Array:
        """The data with any strides, where that spares a copy: to be read once, not to be kept."""
        view = getattr(self._source, "view", None)
        if not callable(self._source) or view is None:
            return self.array
        found = view()
        return self.array if found is None else found

    def __repr__(self) -> str:
        return f"<weight {self.name} {self.type}>"


@dataclass(frozen=True, eq=False)
class Function:
    """A named region; `main` is what a caller calls."""

    name: str
    body: Region
    argument_attributes: tuple[Mapping[str, Attribute], ...] = ()
    result_attributes: tuple[Mapping[str, Attribute], ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def with_body(self, body: Region) -> Function:
        return self if body is self.body else replace(self, body=body)


@dataclass(frozen=True, eq=False)
class Module:
    """A whole program: functions (the entry among them), weights, and how a caller sees it."""

    functions: Mapping[str, Function]
    entry: str = "main"
    name: str = ""
    weights: Mapping[str, Weight] = field(default_factory=dict)
    signature: Signature | None = None
    symbols: Mapping[str, Symbol] = field(default_factory=dict)  # in its types
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what an importer or a pass wants the user to know
    meshes: Mapping[str, Mesh] = field(default_factory=dict)  # that shardings name
    constraints: tuple[SizeConstraint, ...] = ()  # of its symbols

    @property
    def main(self) -> Function:
        return self.functions[self.entry]

    @property
    def body(self) -> Region:
        """The entry function's region."""
        return self.main.body

    @property
    def logged(self) -> int:
        """How many of the entry's results, the last ones, are not the program's own: state as it
        was before it is overwritten."""
        return cast(int, self.attributes.get(LOGGED, 0))

    @functools.cached_property
    def assumptions(self) -> Assumptions:
        """What is known of its symbols; UserError where no sizes are admitted."""
        return Assumptions(self.symbols, self.constraints)

    def with_main(self, body: Region) -> Module:
        """The same module with another entry body; itself if it is the same."""
        if body is self.body:
            return self
        return self.with_functions({**self.functions, self.entry: self.main.with_body(body)})

    def with_functions(self, functions: Mapping[str, Function]) -> Module:
        return replace(self, functions=dict(functions))

    def with_bodies(self, change: Callable[[Region], Region]) -> Module:
        """The module with `change` applied to every function's body; itself if none differs."""
        functions = {n: f.with_body(change(f.body)) for n, f in self.functions.items()}
        if all(functions[name] is old for name, old in self.functions.items()):
            return self
        return self.with_functions(functions)

    def with_weights(self, weights: Mapping[str, Weight]) -> Module:
        return replace(self, weights=dict(weights))

    def with_notes(self, *notes: str) -> Module:
        return replace(self, notes=self.notes + notes) if notes else self

    @property
    def definitions(self) -> frozenset[OpDefinition]:
        """Which operations stand in its functions."""
        bodies = (function.body for function in self.functions.values())
        return frozenset(one for body in bodies for one in body.definitions)

    @property
    def types(self) -> frozenset[Type]:
        """The types of all values of its functions."""
        bodies = (function.body for function in self.functions.values())
        return frozenset(one for body in bodies for one in body.types)

    def has(self, *names: str) -> bool:
        """Whether any operation of one of these names stands in it."""
        return any(definition.name in names for definition in self.definitions)

    def walk(self) -> Iterator[Op]:
        """Every operation of every function."""
        for function in self.functions.values():
            yield from function.body.walk()

    def __str__(self) -> str:
        return print_module(self)

    def __repr__(self) -> str:
        count = sum(1 for _ in self.walk())
        return f"<module {self.name or self.entry}: {count} operations>"


def signature_of(module: Module) -> Signature:
    """The module's signature, with what is known of its sizes; a flat one where the source had
    none."""
    known = {"symbols": tuple(module.symbols.items()), "constraints": module.constraints}
    if module.signature is not None:
        said = module.signature.symbols, module.signature.constraints
        same = said == tuple(known.values())
        return module.signature if same else replace(module.signature, **known)
    body = module.body
    arguments, results = (
        [(_stated(value.dims), value.element.name) for value in values]
        for values in (body.arguments, body.results)
    )
    return replace(Signature.plain(arguments, results), **known)


def _stated(dims: Sequence[Any]) -> list[int | str]:
    """Sizes as signatures have them."""
    return [dim if isinstance(dim, int) else str(dim) for dim in dims]


def constant_of(value: Value) -> Dense | None:
    """The constant that a value is, if it comes straight from a `constant`."""
    op = value.op
    if op is not None and op.name == "constant":
        return op.attributes["value"]
    return None


_REPEATING = ("broadcast_in_dim", "broadcast", "sharding_constraint")


def repeated_constant(value: Value) -> Dense | None:
    """The constant that a value is, or of which broadcasts make it; so zeros are, for example."""
    while value.op is not None and value.op.name in _REPEATING:
        value = value.op.operands[0]
    return constant_of(value)
