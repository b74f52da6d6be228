"""A module becomes an op tree of StableHLO's: `tree_of(module) -> StablehloTree`; undoes `convert`.

Fusions become their parts, kernels become composites whose decomposition is their reference,
CHLO's operations stay, or become composites with their decompositions; weights become constants or
arguments. What StableHLO cannot say is collected.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...hlo.errors import Blocker
from ...hlo.expansion import expansion
from ...hlo.graph import Function, Module, Op, Region, Value
from ...hlo.ops.annotation import ANNOTATIONS
from ...hlo.processes import grid_of
from ...hlo.room import REQUIRED
from ...hlo.tiling import TILE_OPS
from ...hlo.types import Type
from .. import tree
from ..kernel import payload
from . import library_writes, sdy
from .annotation_writes import AnnotationWriter
from .exchanges import exchange_region
from .free_sizes import TWINS, Sizes, needs_twin
from .normal import elements_of, restored
from .tree_parts import (
    default_paths,
    donation,
    location_of,
    operation_of,
    type_of,
    typed_fact,
    typed_facts,
    weight_elements,
)
from .versions import FORMS

_CHLO_WORDS = """
acos acosh asin asinh atan atanh bessel_i1e broadcast_add broadcast_and broadcast_atan2
broadcast_compare broadcast_complex broadcast_divide broadcast_maximum broadcast_minimum
broadcast_multiply broadcast_next_after broadcast_or broadcast_polygamma broadcast_power
broadcast_remainder broadcast_select broadcast_shift_left broadcast_shift_right_arithmetic
broadcast_shift_right_logical broadcast_subtract broadcast_xor broadcast_zeta conj cosh digamma erf
erf_inv erfc is_inf is_neg_inf is_pos_inf lgamma mulhi next_after
polygamma ragged_dot sinh square tan top_k zeta
"""
CHLO = frozenset(_CHLO_WORDS.split())
"""CHLO's operations that other readers of StableHLO text know."""

_COMPOSITE_VERSION = 1
_NUMBERED = re.compile(r"constant_\d+")  # a weight that an importer named


@dataclass(frozen=True)
class StablehloTree:
    """The program's tree. Its `main` takes the module's arguments, then the named `weights` in
    order; `notes` say what was written in other words, `blockers` what StableHLO cannot say: with
    any, the tree is not whole."""

    document: tree.Document
    weights: tuple[str, ...]
    notes: tuple[str, ...]
    blockers: tuple[Blocker, ...]


def tree_of(module: Module, weights_as_arguments: bool = False, chlo: bool = True) -> StablehloTree:
    """The module's tree; `chlo` says whether CHLO's operations may stand in it."""
    return _ModuleLowering(module, weights_as_arguments, chlo).lower()


@dataclass
class _ModuleLowering:
    module: Module
    weights_as_arguments: bool
    chlo: bool
    values: dict[Value, tree.TreeValue] = field(default_factory=dict)
    blockers: dict[Blocker, None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    functions: list[tree.Operation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._types: dict[int, tree.Type] = {}
        self._constants: dict[str, tree.Elements] = {}
        self._made: dict[Any, str] = {}  # decompositions by what they compute
        self._names = set(self.module.functions) | {"main"}
        self._weight_values: dict[str, tree.TreeValue] = {}
        self._uses = self._weights_of_functions() if self.weights_as_arguments else {}
        self.shardings = AnnotationWriter(self.module)
        used = (op.attributes.get("channel_id", 0) for op in self.module.walk())
        self._channels = itertools.count(1 + max(used, default=0))

    def lower(self) -> StablehloTree:
        module = self.module
        top: list[tree.Operation] = []
        facts: dict[str, Any] = {"sym_name": module.name} if module.name else {}
        for key, value in module.attributes.items():
            facts[key] = typed_fact(key, value)
        if not self.shardings.older:
            top += self.shardings.declarations()
        self.blockers |= dict.fromkeys(self.shardings.blockers())
        weights = tuple(self._uses.get(module.entry, ()))
        main = self.function(module.main, "main", "public", weights)
        others = [f for f in module.functions.values() if f.name != module.entry]
        for function in others:
            extra = tuple(self._uses.get(function.name, ()))
            self.functions.append(
                self.function(function, self.symbol(function.name), "private", extra)
            )
        document = tree.Document(
            operation_of("builtin.module", facts, [tree.Region([], [*top, main, *self.functions])]),
            module.name or "the program",
        )
        return StablehloTree(document, weights, tuple(self.notes), tuple(self.blockers))

    def symbol(self, name: str) -> str:
        """The function's name in the tree, where the entry is always `main`."""
        if name == self.module.entry:
            return "main"
        return self._fresh("main") if name == "main" else name

    def _fresh(self, base: str) -> str:
        for number in itertools.count():
            name = f"{base}_{number}"
            if name not in self._names:
                self._names.add(name)
                return name
        raise AssertionError

    # Functions

    def _weights_of_functions(self) -> dict[str, dict[str, None]]:
        """Function -> the weights that it and the functions it calls use."""
        found: dict[str, dict[str, None]] = {}

        def visit(name: str) -> dict[str, None]:
            if name not in found:
                found[name] = {}
                for op in self.module.functions[name].body.walk():
                    if op.name == "weight":
                        found[name][op.attributes["weight"]] = None
                    elif op.name == "call":
                        found[name].update(visit(op.attributes["callee"]))
            return found[name]

        visit(self.module.entry)
        return found

    def function(
        self, function: Function, name: str, visibility: str, weights: Sequence[str]
    ) -> tree.Operation:
        body = function.body
        entry = visibility == "public"
        region = tree.Region([self.define(value) for value in body.arguments])
        if entry:
            self._name_arguments(region.arguments)
        self._weight_values = {}
        for weight in weights:
            kind = self.type(self.module.weights[weight].type)
            value = tree.TreeValue(kind, location=tree.NameLocation(weight, None))
            self._weight_values[weight] = value
            region.arguments.append(value)
        self._sizes = Sizes(body.arguments, region.arguments[: len(body.arguments)])
        self.shardings.begin(body, entry)
        self.fill(region, body, "func.return")
        region.operations[:0] = self._sizes.operations
        arguments = [typed_facts(given) for given in function.argument_attributes]
        results = [typed_facts(given) for given in function.result_attributes]
        if entry:
            arguments, results = self._signature_facts(arguments, results)
        arguments = self.shardings.added(arguments, self.shardings.of_arguments(body))
        results = self.shardings.added(results, self.shardings.of_results(body))
        arguments += [{}] * len(weights) if arguments else []
        facts: dict[str, Any] = {
            "sym_name": name,
            "sym_visibility": visibility,
            "function_type": tree.FunctionType(
                tuple(value.type for value in region.arguments),
                tuple(self.type(kind) for kind in body.result_types),
            ),
        }
        if any(arguments):
            facts["arg_attrs"] = tuple(arguments)
        if any(results):
            facts["res_attrs"] = tuple(results)
        return operation_of("func.func", facts, [region])

    def _name_arguments(self, values: Sequence[tree.TreeValue]) -> None:
        signature = self.module.signature
        if signature is None or len(signature.arguments) != len(values):
            return
        names = [argument.path for argument in signature.arguments]
        if names != default_paths(signature)[0]:
            for value, name in zip(values, names, strict=True):
                value.location = tree.NameLocation(name, None)

    def _signature_facts(
        self, arguments: list[dict[str, Any]], results: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Donations and names of results that the signature knows, in the framework's words."""
        signature = self.module.signature
        if signature is None:
            return arguments, results
        if not any(arguments) and any(argument.donated for argument in signature.arguments):
            arguments = [donation(argument) for argument in signature.arguments]
        paths = [result.path for result in signature.results]
        if not any(results) and paths != default_paths(signature)[1]:
            names = [path.replace("output", "result", 1) for path in paths]
            results = [{"jax.result_info": name} for name in names]
            results += [{} for _ in signature.measured]
        for number, one in enumerate(signature.measured, len(signature.results)):
            self.notes[f"result {number} is {one.result.path}"] = None
        return arguments, results

    def fill(self, region: tree.Region, body: Region, terminator: str) -> None:
        """The operations of `body` into the tree's region."""
        for op in body.ops:
            made = self.operation(op)
            self.shardings.produced(op, made)
            region.operations += made
        results = [self.values[value] for value in body.results]
        region.operations.append(operation_of(terminator, {}, [], results))

    def define(self, value: Value) -> tree.TreeValue:
        made = self.values[value] = tree.TreeValue(self.type(value.type))
        return made

    def type(self, kind: Type) -> tree.Type:
        known = self._types.get(id(kind))
        if known is None:
            known = self._types[id(kind)] = type_of(kind, self.module.symbols)
        return known

    # Operations

    def operation(self, op: Op) -> list[tree.Operation]:
        """What the op becomes."""
        special = _SPECIAL.get(op.name)
        if special is not None:
            return list(special(self, op))
        if needs_twin(op):
            return self.twin(op)
        if op.name in FORMS:
            return [self.plain(op, f"stablehlo.{op.name}")]
        if op.name in TILE_OPS:
            return self.block(op, "a tile operation stands outside a kernel", "do not export plans")
        return list(self._other(op))

    def _other(self, op: Op) -> Iterator[tree.Operation]:
        """An op that VHLO does not have: CHLO's, or its decomposition."""
        dialect, _, base = op.name.partition(".")
        if self.chlo and dialect == "chlo" and base in CHLO:
            yield self.plain(op, op.name)
            return
        if library_writes.is_library_call(op):
            for made in library_writes.custom_call(op, self.uses(op.operands), self.define):
                made.location = location_of(op.origin)
                yield made
            return
        region = expansion(op)
        if region is None:
            remedy = "write it as text" if dialect == "chlo" else "replace it in the model"
            reason = "StableHLO has no such operation, and it has no decomposition"
            yield from self.block(op, reason, remedy)
            return
        if dialect != "chlo" or op.regions or base.startswith("broadcast_"):
            self.notes[f"{op.name} was written as its decomposition"] = None
            yield from self.inlined(region, op)
            return
        key = (op.name, region)
        if key not in self._made:
            self._made[key] = self._decomposition(f"{op.name}.impl", region)
        facts = {key: restored(value) for key, value in self.given(op).items()}
        yield self._composite(op, op.name, facts, self._made[key])

    def _decomposition(self, name: str, region: Region) -> str:
        """A function of the region; its name."""
        name = name if name not in self._names else self._fresh(name)
        self._names.add(name)
        saved, self._weight_values = (self._weight_values, self._sizes), {}
        function = self.function(Function(name, region), name, "private", ())
        self.functions.append(function)
        self._weight_values, self._sizes = saved
        return name

    def _composite(
        self, op: Op, name: str, facts: Mapping[str, Any], decomposition: str
    ) -> tree.Operation:
        attributes = {
            "name": name,
            "composite_attributes": dict(facts),
            "decomposition": decomposition,
            "version": _COMPOSITE_VERSION,
        }
        made = operation_of("stablehlo.composite", attributes, [], self.uses(op.operands))
        made.results = [self.define(value) for value in op.results]
        made.location = location_of(op.origin)
        return made

    def uses(self, values: Sequence[Value]) -> list[tree.TreeValue]:
        return [self.values[value] for value in values]

    def given(self, op: Op) -> dict[str, Any]:
        """The op's attributes with the room's defaults, but for those that say nothing."""
        specs = op.definition.attributes
        found = {
            key: spec.default
            for key, spec in specs.items()
            if spec.default is not REQUIRED and spec.default not in (None, (), "")
        }
        for key, value in op.attributes.items():
            spec = specs.get(key)
            silent = value is None or (spec is not None and value == () == spec.default)
            if not silent:
                found[key] = value
        return found

    def plain(self, op: Op, name: str) -> tree.Operation:
        """The op under its own name."""
        specs = op.definition.attributes
        facts = {k: v if k in specs else restored(v) for k, v in self.given(op).items()}
        made = operation_of(name, facts, [], self.uses(op.operands))
        for inner in op.regions:
            region = tree.Region([self.define(value) for value in inner.arguments])
            self.fill(region, inner, "stablehlo.return")
            made.regions.append(region)
        made.results = [self.define(value) for value in op.results]
        made.location = location_of(op.origin)
        return made

    def twin(self, op: Op) -> list[tree.Operation]:
        """The op with its result's shape as an operand."""
        dims = op.type.dims
        shape = self._sizes.shape(dims)
        if shape is None:
            reason = f"the sizes of {op.type} are not those of its function's arguments"
            return self.block(op, reason, "export with fixed shapes")
        made = self.plain(op, f"stablehlo.{TWINS[op.name]}")
        made.operands.append(shape)
        return [made]

    def inlined(self, region: Region, op: Op) -> Iterator[tree.Operation]:
        """The region's operations in place of the op."""
        for argument, operand in zip(region.arguments, op.operands, strict=True):
            self.values[argument] = self.values[operand]
        for part in region.ops:
            for made in self.operation(part):
                made.location = made.location or location_of(op.origin)
                yield made
        for result, value in zip(op.results, region.results, strict=True):
            self.values[result] = self.values[value]

    def block(self, op: Op, reason: str, remedy: str) -> list[tree.Operation]:
        """Note a reason, and let values stand for the op's results."""
        place = next((str(origin) for origin in op.origin), "")
        self.blockers[Blocker(op.name, place, reason, remedy)] = None
        for value in op.results:
            self.define(value)
        return []

    def manual_computation(self, op: Op) -> Iterator[tree.Operation]:
        """Shardy's op; its mesh by name where the module has one of that content."""
        whole = self.shardings.of_manual(op)
        attributes = {
            "in_shardings": sdy.per_value(whole[: len(op.in_shardings)]),
            "manual_axes": sdy.manual_axes(op.manual_axes),
            "out_shardings": sdy.per_value(whole[len(op.in_shardings) :]),
        }
        made = operation_of(op.name, attributes, [], self.uses(op.operands))
        region = tree.Region([self.define(value) for value in op.regions[0].arguments])
        self.fill(region, op.regions[0], "sdy.return")
        made.regions.append(region)
        made.results = [self.define(value) for value in op.results]
        made.location = location_of(op.origin)
        yield made

    def annotation(self, op: Op) -> Iterator[tree.Operation]:
        """Shardings, said where the source said them."""
        operand = self.values[op.operands[0]]
        made = self.shardings.operation(op)
        if made is None:
            self.values[op.result] = operand
            return
        made.operands = [operand]
        made.results = [self.define(value) for value in op.results]
        made.location = location_of(op.origin)
        yield made

    def constant(self, op: Op) -> Iterator[tree.Operation]:
        elements = elements_of(op.attributes["value"])
        made = operation_of("stablehlo.constant", {"value": elements})
        made.results = [self.define(op.result)]
        made.location = location_of(op.origin)
        yield made

    def weight(self, op: Op) -> Iterator[tree.Operation]:
        name = op.attributes["weight"]
        value = self._weight_values.get(name)
        if value is not None:
            self.values[op.result] = value
            return
        if self.weights_as_arguments:
            self.notes[f"weight '{name}' is used in a decomposition and was kept inside"] = None
        known = self._constants.get(name)
        if known is None:
            known = self._constants[name] = weight_elements(self.module, name)
        made = operation_of("stablehlo.constant", {"value": known})
        made.results = [self.define(op.result)]
        made.location = location_of(op.origin)
        if made.location is None and not _NUMBERED.fullmatch(name):
            made.location = tree.NameLocation(name, None)
        yield made

    def fusion(self, op: Op) -> Iterator[tree.Operation]:
        return self.inlined(op.regions[0], op)

    def kernel(self, op: Op) -> Iterator[tree.Operation]:
        """A composite that holds the kernel; whoever does not know it runs the reference."""
        reference = payload.reference_of(op)
        if reference is None:
            yield from self.block(
                op, f"kernel '{op.kernel}' has no reference, so only girih can run it",
                "give the kernel a reference=",
            )  # fmt: skip
            return
        name = self._decomposition(f"{payload.NAME}.{op.kernel}", reference)
        text = payload.of_op(op)
        yield self._composite(op, payload.NAME, {"kernel": text}, name)

    def exchange(self, op: Op) -> Iterator[tree.Operation]:
        devices = max(*grid_of(self.module), op.definition.devices(op))
        self.notes["exchange was written as collective_permute"] = None
        yield from self.inlined(exchange_region(op, devices, self._channels.__next__), op)

    def call(self, op: Op) -> Iterator[tree.Operation]:
        callee = op.attributes["callee"]
        extra = [self._weight_values[name] for name in self._uses.get(callee, ())]
        facts = {"callee": self.symbol(callee)}
        made = operation_of("func.call", facts, [], self.uses(op.operands) + extra)
        made.results = [self.define(value) for value in op.results]
        made.location = location_of(op.origin)
        yield made

    def composite(self, op: Op) -> Iterator[tree.Operation]:
        made = self.plain(op, "stablehlo.composite")
        made.attributes["decomposition"] = self.symbol(made.attributes["decomposition"])
        yield made


_SPECIAL: dict[str, Callable[[_ModuleLowering, Op], Iterator[tree.Operation]]] = {
    "constant": _ModuleLowering.constant,
    "weight": _ModuleLowering.weight,
    "fusion": _ModuleLowering.fusion,
    "foreign_call": _ModuleLowering.kernel,
    "kernel_call": _ModuleLowering.kernel,
    "exchange": _ModuleLowering.exchange,
    "call": _ModuleLowering.call,
    "composite": _ModuleLowering.composite,
    "sdy.manual_computation": _ModuleLowering.manual_computation,
    **dict.fromkeys(sorted(ANNOTATIONS), _ModuleLowering.annotation),
}
