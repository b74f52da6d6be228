"""An op tree becomes an `hlo.Module`: types, origins, flat attributes, weights, signature.

Everything that stands in the way is collected and reported at once as `ImportBlockers`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...hlo import ops
from ...hlo.assumptions import assuming
from ...hlo.errors import Blocker, ImportBlockers, SeveralEntries, UnsupportedError, UserError
from ...hlo.graph import (
    Dense,
    Function,
    Module,
    Op,
    Origin,
    Region,
    Value,
    Weight,
    arguments,
)
from ...hlo.needed_sizes import with_needed_sizes
from ...hlo.sizes import Symbol
from ...hlo.specialize import with_inferred_sizes
from ...hlo.types import (
    TOKEN,
    Element,
    FutureType,
    QuantizedType,
    TensorType,
    TokenType,
    TupleType,
    Type,
    element_type,
    unsharded,
)
from ...hlo.verify import compatible
from .. import tree
from . import attributes as attribute_tables
from . import constraints, demanded_sizes, gspmd, refine, special
from .annotations import Annotations, left
from .known_integers import OF_DATA, KnownIntegers
from .literals import element_of, read_elements
from .locations import Locations
from .signatures import read_signature

WEIGHT_BYTES = 4096
"""Constants of at least this size, splats aside, are kept outside the program as weights."""

_KEPT = ("mhlo.sharding", "mhlo.frontend_attributes")
Leaves = Any  # a Value, or a tuple of Leaves where the tree has a tuple


def convert(document: tree.Document, name: str = "", weight_prefix: str = "constant") -> Module:
    """The module of a tree; ImportBlockers lists all that cannot be imported."""
    return Converter(document, name, weight_prefix).module()


@dataclass(frozen=True)
class EntryArgument:
    """What a parameter of the file's entry function is: flat argument `index` of the module, or
    a `weight`, or a `constant`; a token, which cannot be imported, is none of them."""

    index: int = -1
    weight: Weight | None = None
    constant: Dense | None = None


@dataclass
class Converter:
    """State of one conversion; `module` does it all.

    `entry_arguments` says what each parameter of the entry is (by default an argument of its own),
    `unused` gives the types of the module's arguments that the file's entry does not take,
    `global_constants` the values of parameters that JAX tags as the same in every function,
    `input_types` the types of arguments whose shapes the file leaves free, or `examples` arrays
    of those shapes, `entry` the function to start with. `sizes` are symbols in `input_types`.
    `sizes_as_arguments`: integers that the entry takes may be sizes of other arguments.
    """

    document: tree.Document
    name: str = ""
    weight_prefix: str = "constant"
    entry_arguments: Sequence[EntryArgument] | None = None
    unused: Mapping[int, Type] = field(default_factory=dict)
    global_constants: Mapping[str, Dense] = field(default_factory=dict)
    input_types: Mapping[int, Type] = field(default_factory=dict)
    examples: Sequence[Any] = ()
    entry: str | None = None
    sizes: Mapping[str, Symbol] = field(default_factory=dict)
    sizes_as_arguments: bool = False
    blockers: dict[Blocker, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    functions: dict[str, Function | None] = field(default_factory=dict)
    _values: dict[tree.TreeValue, Leaves] = field(default_factory=dict)
    _types: dict[tree.Type, Type] = field(default_factory=dict)
    _names: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.locations = Locations(self.document)
        self.symbols: dict[str, tree.Operation] = {}
        self._contents: dict[tuple[Type, bytes], list[tuple[str, Any]]] = {}
        self.free_shapes = refine.has_free_shapes(self.document.module)
        self.symbolic = False  # each free dimension becomes a symbol of its own
        self.given_types = self.input_types
        self.argument_sizes: dict[str, int] = {}  # symbol -> the argument that it is
        self.known = KnownIntegers(self.sizes)
        self._open_calls: set[str] = set()
        self.callers: list[tree.Operation] = []  # the calls behind what is being converted
        gspmd.regroup(self.document.module)
        self.annotations = Annotations(self.document.module)

    def module(self) -> Module:
        """The whole module; only functions that the entry reaches are converted."""
        try:
            return self._module()
        except ImportBlockers as error:
            reasons = [b.reason for b in error.blockers if OF_DATA in b.reason]
            if not self.free_shapes or not reasons:
                raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            source = self.document.source or "the program"
            raise UserError(f"{source}: a function or its types are malformed: {error}") from error
        inputs = self.symbols[self._entry()].regions[0].arguments
        if self.entry_arguments is None and any(map(demanded_sizes.is_size, inputs)):
            with suppress(ImportBlockers):
                return self._again(sizes_as_arguments=True)._module()
        again = self._again()
        again.free_shapes, again.symbolic = False, True
        module = again._module()
        needed = with_needed_sizes(with_inferred_sizes(module), of_calls=True)
        module = replace(module, constraints=needed.constraints)
        return module.with_notes(f"sizes are computed while it runs: {reasons[0]}")

    def _again(self, sizes_as_arguments: bool = False) -> Converter:
        """The same conversion, not begun yet."""
        return Converter(
            self.document, self.name, self.weight_prefix, self.entry_arguments, self.unused,
            self.global_constants, self.given_types, self.examples, self.entry, self.sizes,
            sizes_as_arguments,
        )  # fmt: skip

    def _module(self) -> Module:
        top = self.document.module
        facts: dict[str, Any] = {}
        for key, value in left(top.attributes).items():
            if key not in ("sym_name", "sym_visibility"):
                facts[key] = attribute_tables.plain(value, self.type)
        for operation in itertools.chain.from_iterable(r.operations for r in top.regions):
            if operation.name == "func.func":
                self.symbols[str(operation.attributes.get("sym_name", ""))] = operation
            elif operation.name != "sdy.mesh":
                self.block(operation, "is not known at the top of a module", "remove it")
        if self.free_shapes:
            # Types are inferred one from the other, so nothing can be converted behind a blocker.
            special.block_all_unknown(self, top)
        self.raise_blockers()
        entry = self._entry()
        if self.examples:
            self.input_types = refine.example_types(self, self.symbols[entry], self.examples)
        if self.free_shapes:
            self.input_types = refine.open_inputs(self, self.symbols[entry])
        self.function(entry, self.entry_arguments)
        self.raise_blockers()
        functions = {key: value for key, value in self.functions.items() if value is not None}
        title = self.name or str(top.attributes.get("sym_name", ""))
        main = functions[entry]
        module = Module(
            functions,
            entry,
            title,
            self.weights,
            None
            if self.entry_arguments is not None
            else read_signature(self.symbols[entry], main, self.locations),
            symbols=self.known.symbols,
            attributes=facts,
            notes=tuple(dict.fromkeys(self.notes)),
            meshes=constraints.meshes_of(self, functions),
            constraints=tuple(self.known.constraints),
        )
        return demanded_sizes.with_equal_sizes(self, module)

    def _entry(self) -> str:
        """`main`, the only public function, or the only function with a body."""
        bodies = {key: value for key, value in self.symbols.items() if value.regions}
        public = [
            key for key, f in bodies.items() if f.attributes.get("sym_visibility") != "private"
        ]
        if self.entry is not None:
            if self.entry in bodies:
                return self.entry
            raise UserError(
                f"{self.document.source}: the program has no function '{self.entry}'; its public "
                f"functions are: {', '.join(public[:8]) or 'none'}"
            )
        for candidates in (["main"] if "main" in bodies else [], public, list(bodies)):
            if len(candidates) == 1:
                return candidates[0]
        listed = ", ".join(f"@{key}" for key in public[:8]) or "none"
        raise SeveralEntries(
            f"{self.document.source}: the program needs one function 'main' to start with; "
            f"its public functions are: {listed}; name one: import_model(source, entry='NAME')",
            public,
            lambda name: Converter(
                self.document, self.name, examples=self.examples, entry=name
            ).module(),
        )

    # Blockers

    def raise_blockers(self) -> None:
        """ImportBlockers if there are any."""
        if self.blockers:
            raise ImportBlockers(list(self.blockers), self.document.source or "the program")

    def block(self, operation: tree.Operation, reason: str, remedy: str, name: str = "") -> None:
        """Note one reason why the import cannot succeed, and go on."""
        places = (operation, *reversed(self.callers))
        place = self.locations.place(*(place.location for place in places))
        blocker = Blocker(name or operation.name, place, reason, remedy)
        self.blockers[blocker] = None

    # Types

    def type(self, kind: tree.Type) -> Type:
        """The hlo type; UnsupportedError for one that girih has not."""
        known = self._types.get(kind)
        if known is None:
            known = self._types[kind] = self._convert_type(kind)
        return known

    def _convert_type(self, kind: tree.Type) -> Type:
        match kind:
            case "token":
                return TOKEN
            case tree.Tensor(shape, element):
                if any(dim < 0 for dim in shape):
                    raise UnsupportedError(f"the shape of {tree.spell(kind)} is not fixed")
                return TensorType(shape, self.element(element))
            case tree.Tuple(types):
                return TupleType(tuple(self.type(member) for member in types))
            case tree.Future(types):
                return FutureType(tuple(self.type(member) for member in types))
        raise UnsupportedError(f"values of type {tree.spell(kind)} are not supported")

    def element(self, kind: tree.Type) -> Element:
        if isinstance(kind, tree.Quantized):
            return QuantizedType(
                element_of(kind),
                element_type(kind.expressed),
                kind.axis,
                kind.scales,
                kind.zero_points,
                kind.minimum,
                kind.maximum,
            )
        return element_of(kind)

    def value_type(self, value: tree.TreeValue, operation: tree.Operation) -> Type:
        """The type of a value; a type that is not supported blocks the import once per type."""
        try:
            if self.symbolic and refine.is_free(value.type):
                return refine.symbolic_type(value.type, self.known, self.type)
            return self.type(value.type)
        except (UnsupportedError, ValueError) as error:
            remedy = "export the program with fixed shapes and plain element types"
            self.block(operation, str(error), remedy)
            self._types[value.type] = TOKEN
            return TOKEN

    # Values: tuples are taken apart, so no hlo op ever sees one

    def use(self, value: tree.TreeValue) -> Leaves:
        try:
            return self._values[value]
        except KeyError:
            raise UserError(
                f"{self.document.source}: a value is used before it is defined"
            ) from None

    def leaves(self, value: tree.TreeValue) -> list[Value]:
        """The values that stand for one of the tree, tuples taken apart."""
        return list(leaves(self.use(value)))

    def operands(self, operation: tree.Operation) -> list[Value]:
        """The op's operands, tuples taken apart."""
        return [leaf for value in operation.operands for leaf in self.leaves(value)]

    def bind(self, values: list[tree.TreeValue], results: Iterable[Value]) -> None:
        """Say which hlo values stand for `values`, regrouping tuples."""
        source = iter(results)
        try:
            for value in values:
                self._values[value] = _group(value.type, source)
        except StopIteration:
            raise UserError(
                f"{self.document.source}: an operation has fewer results than it announces"
            ) from None

    def rename(self, value: tree.TreeValue, leaf: Leaves) -> None:
        """`value` is what `leaf` already is."""
        self._values[value] = leaf

    def leaf_types(self, values: list[tree.TreeValue], operation: tree.Operation) -> list[Type]:
        return [leaf for v in values for leaf in _leaf_types(self.value_type(v, operation))]

    # Structure

    def function(self, name: str, layout: Sequence[EntryArgument] | None = None) -> Function | None:
        """Convert the function of that name, once; None where it cannot be."""
        if name in self.functions:
            return self.functions[name]
        operation = self.symbols[name]
        self.functions[name] = None  # seen while it is still open: a recursive call
        if not operation.regions:
            self.block(operation, f"function @{name} has no body", "export it with its body")
            return None
        facts = operation.attributes
        if layout is None:
            given = self.input_types if self.entry_arguments is None and not self.callers else {}
            region = self._function_region(operation, given)
        else:
            region = self._entry_region(operation, layout)
        self._check_results(operation, region)
        self.functions[name] = Function(
            name,
            region,
            self._argument_facts(facts.get("arg_attrs"), layout),
            self._dictionaries(facts.get("res_attrs")),
        )
        # Callees come before callers.
        self.functions[name] = self.functions.pop(name)
        return self.functions[name]

    def _check_results(self, operation: tree.Operation, region: Region) -> None:
        """UserError if the function returns other types than it declares."""
        declared = operation.attributes.get("function_type")
        if self.free_shapes or self.blockers or not isinstance(declared, tree.FunctionType):
            return
        wanted = self.leaf_types([tree.TreeValue(kind) for kind in declared.results], operation)
        found = [value.type for value in region.results]
        if len(wanted) != len(found) or not all(map(compatible, wanted, found)):
            name = operation.attributes.get("sym_name", "")
            words = (", ".join(map(str, kinds)) or "nothing" for kinds in (wanted, found))
            raise UserError(
                f"{self.document.source}: function @{name} declares to return {next(words)}, "
                f"but returns {next(words)}"
            )

    def _argument_facts(
        self, value: Any, layout: Sequence[EntryArgument] | None
    ) -> tuple[Mapping[str, Any], ...]:
        """Attributes per argument of the module, moved to where `layout` puts it."""
        facts = self._dictionaries(value)
        if layout is None or not facts:
            return facts
        moved = {s.index: f for s, f in zip(layout, facts, strict=False) if s.index >= 0}
        count = len(self.unused) + sum(slot.index >= 0 for slot in layout)
        return tuple(moved.get(index, {}) for index in range(count))

    def _dictionaries(self, value: Any) -> tuple[Mapping[str, Any], ...]:
        if not isinstance(value, tuple):
            return ()
        return tuple(
            attribute_tables.plain(left(item), self.type) if isinstance(item, dict) else {}
            for item in value
        )

    def region(
        self,
        region: tree.Region,
        owner: tree.Operation,
        types: Sequence[Type] | None = None,
        same: Mapping[int, Value] | None = None,
    ) -> Region:
        """The region, its terminator turned into results; `types` are its arguments', `same` says
        which of them hold what other values do."""
        values = arguments(types or self.leaf_types(region.arguments, owner))
        self.bind(region.arguments, values)
        for place, source in (same or {}).items():
            self.known.copy(source, values[place])
        built: list[Op] = []
        results = self.inline(region, built)
        return Region(values, built, results)

    def _function_region(self, owner: tree.Operation, given: Mapping[int, Type]) -> Region:
        """A function's region; a parameter that is the same constant everywhere is that."""
        region = owner.regions[0]
        types: list[Type] = []
        entry = not self.callers
        for index, value in enumerate(region.arguments):
            known = given.get(index)
            found = self.leaf_types([value], owner) if known is None else [*_leaf_types(known)]
            if entry and len(found) == 1:
                found = [constraints.argument_type(self, owner, index, found[0])]
            types += found
        if self.free_shapes:
            self.raise_blockers()
        values = arguments(types)
        self.bind(region.arguments, values)
        if entry and self.sizes_as_arguments:
            demanded_sizes.name_argument_sizes(self, owner)
        built: list[Op] = []
        for index, value in enumerate(() if entry else region.arguments):
            constraints.on_argument(self, owner, index, value, built)
        facts = owner.attributes.get("arg_attrs", ())
        for value, fact in zip(region.arguments, facts, strict=False):
            constant = self.global_constants.get(fact.get("jax.global_constant", ""))
            if constant is not None:
                built.append(_constant_op(constant))
                self._values[value] = built[-1].result
        return self._body(owner, values, built)

    def _entry_region(self, owner: tree.Operation, layout: Sequence[EntryArgument]) -> Region:
        """The entry's region with the arguments that `layout` and `unused` ask for."""
        region = owner.regions[0]
        if len(layout) != len(region.arguments):
            raise UserError(
                f"{self.document.source}: the program takes {len(region.arguments)} arguments, "
                f"but its export says {len(layout)}"
            )
        types: dict[int, Type] = dict(self.unused)
        for index, (slot, value) in enumerate(zip(layout, region.arguments, strict=True)):
            if slot.index >= 0:
                found = self.input_types.get(slot.index) or self.value_type(value, owner)
                types[slot.index] = constraints.argument_type(self, owner, index, found)
        self.raise_blockers()
        values = arguments([types[index] for index in sorted(types)])
        built: list[Op] = []
        for index, (slot, value) in enumerate(zip(layout, region.arguments, strict=True)):
            if slot.weight is not None:
                self._add_weight(slot.weight)
                facts: dict[str, Any] = {"weight": slot.weight.name}
                built.append(Op(ops.find("weight"), (), facts, (), (slot.weight.type,)))
            elif slot.constant is not None:
                built.append(_constant_op(slot.constant))
            elif slot.index < 0:
                remedy = "remove callbacks and ordered prints before the export"
                self.block(owner, "the program has ordered side effects", remedy)
                self.bind([value], arguments([self.value_type(value, owner)]))
                continue
            self._values[value] = values[slot.index] if slot.index >= 0 else built[-1].result
            if slot.index < 0:
                constraints.on_argument(self, owner, index, value, built)
        return self._body(owner, values, built)

    def _body(self, owner: tree.Operation, values: tuple[Value, ...], built: list[Op]) -> Region:
        """A function's region whose arguments are bound, its first operations built."""
        results = self.inline(owner.regions[0], built)
        return Region(values, built, constraints.on_results(self, owner, results, built))

    def inline(self, region: tree.Region, built: list[Op]) -> list[Value]:
        """Append what the region computes, its arguments bound; the values that it returns."""
        for operation in region.operations:
            if operation.name in special.TERMINATORS:
                return self.operands(operation)
            self.operation(operation, built)
        return []

    def operation(self, operation: tree.Operation, built: list[Op]) -> None:
        """Convert one op and append what it becomes."""
        handler = special.HANDLERS.get(operation.name)
        if self.symbolic and operation.name in refine.HANDLERS:
            handler = None  # the sizes that it would settle are not known
        try:
            if handler is None or not handler(self, operation, built):
                self.emit(special.hlo_name(operation), operation, built)
            constraints.on_operation(self, operation, built)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            self.block(operation, f"it is malformed: {error}", "export the program again")
            self.raise_blockers()

    def emit(
        self,
        name: str,
        operation: tree.Operation,
        built: list[Op],
        facts: Mapping[str, Any] | None = None,
        operands: list[Value] | None = None,
        types: Sequence[Type] | None = None,
    ) -> None:
        """Append the op `name` with this operation's operands, regions and result types."""
        if operands is None:
            operands = self.operands(operation)
        # With free shapes, a loop's region takes what the loop takes.
        loop, kept = None, dict[int, Value]()
        if self.free_shapes and name == "while":
            loop = [unsharded(v.type) for v in operands]
            kept = {n: operands[n] for n in refine.unchanged(operation, len(operands))}
        regions = [self.region(region, operation, loop, kept) for region in operation.regions]
        if types is None and not self.free_shapes:
            types = self.leaf_types(operation.results, operation)
        if not ops.known(name):
            special.block_unknown(self, operation)
            if types is None:
                self.raise_blockers()
            self.bind(operation.results, arguments(types or ()))
            return
        definition = ops.find(name)
        if facts is None:
            try:
                facts = attribute_tables.flatten(operation, self.type)
            except UserError as error:
                self.block(operation, str(error), "correct the attribute")
                facts = {}
        specs = definition.attributes
        attributes = {
            key: value
            for key, value in left(facts).items()
            if (key in specs and not _is_default(value, specs[key].default))
            or (key not in specs and (key in _KEPT or "." not in key))
        }
        origin = self.locations.origins(operation.location)
        if types is None:
            draft = Op(definition, operands, attributes, regions, (), origin)
            with assuming(self.known.facts):
                types = refine.result_types(self, draft, operation)
        op = Op(definition, operands, attributes, regions, types, origin)
        if self.free_shapes:
            op = refine.folded(op)
            self.known.learn(op)
            for place, value in kept.items():
                self.known.copy(value, op.results[place])
            demanded_sizes.demand_sizes(self, operation, op)
        built.append(op)
        self.bind(operation.results, op.results)

    def constant(self, operation: tree.Operation, built: list[Op]) -> None:
        """A `constant`, or a `weight` where it is large and no splat; the data stays a view."""
        (result,) = operation.results
        kind = self.value_type(result, operation)
        value = operation.attributes.get("value")
        if not isinstance(value, tree.Elements) or not isinstance(kind, TensorType):
            if kind is not TOKEN:
                self.block(operation, "has no tensor value", "export the constant as dense data")
            self.bind([result], arguments([kind]))
            return
        try:
            array = read_elements(value)
        except UnsupportedError as error:
            self.block(operation, str(error), "use another element type")
            self.bind([result], arguments([kind]))
            return
        except UserError as error:
            place = self.locations.place(operation.location) or self.document.source
            raise UserError(f"{place}: {error}" if place else str(error)) from None
        if array.shape != kind.dims or array.dtype != kind.dtype:
            raise UserError(f"{self.document.source}: a constant does not fit its type {kind}")
        dense = Dense(kind, array)
        origin = self.locations.origins(operation.location)
        if kind.bytes >= WEIGHT_BYTES and not dense.is_splat:
            name = self._weight_name(array, kind)
            op = Op(ops.find("weight"), (), {"weight": name}, (), (kind,), origin)
        else:
            op = _constant_op(dense, origin)
        built.append(op)
        self._values[result] = op.result

    def append_constant(self, operation: tree.Operation, value: Dense, built: list[Op]) -> None:
        """The operation's result is this constant."""
        built.append(_constant_op(value, self.locations.origins(operation.location)))
        self.bind(operation.results, built[-1].results)

    @contextmanager
    def calling(self, callee: str, operation: tree.Operation) -> Iterator[None]:
        """While the function is inlined here; it must not be inlined inside itself."""
        if callee in self._open_calls:
            self.block(operation, f"@{callee} calls itself", "use a while loop")
            self.raise_blockers()
        self._open_calls.add(callee)
        yield
        self._open_calls.discard(callee)

    def _add_weight(self, weight: Weight) -> None:
        """Take a weight that comes with the export."""
        self.weights[weight.name] = weight
        data = _bytes_of(weight.array)
        self._contents.setdefault((weight.type, data[:64].tobytes()), []).append(
            (weight.name, data)
        )

    def _weight_name(self, array: Any, kind: TensorType) -> str:
        """The name of the weight with this content; a new one where there is none yet."""
        data = _bytes_of(array)
        alike = self._contents.setdefault((kind, data[:64].tobytes()), [])
        for name, other in alike:
            if np.array_equal(other, data):
                return name
        name = f"{self.weight_prefix}_{next(self._names)}"
        self.weights[name] = Weight(name, array, kind)
        alike.append((name, data))
        return name


def _constant_op(value: Dense, origin: tuple[Origin, ...] = ()) -> Op:
    return Op(ops.find("constant"), (), {"value": value}, (), (value.type,), origin)


def _bytes_of(array: Any) -> Any:
    """The array's data as bytes, a view where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def leaves(value: Leaves) -> Iterator[Value]:
    """The values inside nested tuples, in order."""
    if isinstance(value, tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def _leaf_types(kind: Type) -> Iterator[TensorType | TokenType | FutureType]:
    if isinstance(kind, TupleType):
        for member in kind.members:
            yield from _leaf_types(member)
    else:
        yield kind


def _group(kind: tree.Type, source: Iterator[Value]) -> Leaves:
    if isinstance(kind, tree.Tuple):
        # A list: in a generator, a missing value would be no StopIteration any more.
        return tuple([_group(member, source) for member in kind.types])
    return next(source)


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and value == default
