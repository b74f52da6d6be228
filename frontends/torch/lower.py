"""Program -> hlo.Module: walks the graph, calls one lowering per node, collects all blockers."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from ...hlo.assumptions import Assumptions, assuming
from ...hlo.errors import (
    Blocker,
    CompilerBug,
    ImportBlockers,
    UnsupportedError,
    UserError,
    VerifyError,
)  # fmt: skip
from ...hlo.graph import Function, Module, Op, Origin, Region, Value, Weight
from ...hlo.needed_sizes import is_known, reduced, with_needed_sizes
from ...hlo.signature import Measured, Signature
from ...hlo.sizes import SizeConstraint, Symbol
from ...hlo.symbols import Dim, SymbolicDim, name_of, symbols_of
from ...hlo.trees import Tree
from ...hlo.types import F64, I1, I64, TensorType, unsharded
from ...hlo.verify import compatible
from .context import Blocked, Context
from .data_sizes import DataSizes, Place
from .draws import KeyStream, key_of_call, with_generator
from .failures import operation_name
from .functional import Aliases, functional_target, is_in_place
from .lowerings import DATA, LOWERINGS, REMEDIES
from .program import Graph, Input, Node, Output, Ref, TorchProgram
from .sizes import input_paths
from .trees import with_constants

_SCALARS = (bool, int, float, str)
SMALL_CONSTANT = 4096
"""Tensor constants up to so many bytes become part of the program, larger ones weights."""

_LIFTED = "lifted_tensor_"  # what an export calls a tensor without a name in the model
ITEM = "keep the value a tensor: .item() makes the program depend on it"


def lower(program: TorchProgram, keeps_generator: bool = True) -> Module:
    """The module of an export; ImportBlockers if there is anything that it cannot say. Buffers that
    it changes are its last arguments. So is the generator of a program that draws random numbers,
    which is its state, or, if it is not to keep it, a plain argument of every call."""
    first = _TorchLowering(program)
    module = first.module()
    changed, generator = frozenset(first.changed), ""
    if first.context.stream.count:
        program, generator = with_generator(program, keeps_generator)
        changed |= {generator} if keeps_generator else frozenset()
    if changed or generator:
        module = _TorchLowering(program, changed, generator).module()
    return with_needed_sizes(module)


def unsupported(graph: Graph) -> set[str]:
    """Targets in the graph that no lowering covers."""
    return {node.target for node in graph.walk() if functional_target(node.target) not in LOWERINGS}


class _TorchLowering:
    """The state of one import."""

    def __init__(
        self, program: TorchProgram, buffers: Set[str] = frozenset(), generator: str = ""
    ) -> None:
        """`buffers`: those that are arguments, because the program changes them. `generator`: the
        input that random draws follow from."""
        self.program, self.buffers, self.generator = program, buffers, generator
        self.changed: dict[str, None] = {}  # buffers, in the order of their results
        self.blockers: dict[Blocker, None] = {}
        self.context = Context(self.inline_writing)
        self.aliases: list[Aliases] = []  # of the graph being lowered and those around it
        self.weights: dict[str, Weight] = {}
        self.weight_values: dict[int, Value] = {}
        self.notes = self.context.notes
        self.notes += program.notes
        self.read = {name for node in program.graph.nodes for name in _refs(node.args)}
        given = [t for b in program.inputs if (t := program.graph.types.get(b.name))]
        self.sizes = _symbols(given)
        self.symbols = {name: program.symbols.get(name, Symbol()) for name in self.sizes}
        self.said = [c for c in program.constraints if {*c.symbols} <= {*self.sizes}]
        self.context.facts = Assumptions(self.symbols, self.said)
        self.context.data = DataSizes(program.symbols)
        self.context.data.given = frozenset(self.sizes)

    # The graph's edge.

    def module(self) -> Module:
        program = self.program
        users = [bound for bound in program.inputs if bound.kind == "user"]
        kept = {
            self.state_name(b): b
            for b in sorted(program.inputs, key=lambda b: (b.name in self.read, b.kind == "weight"))
            if b.kind in ("weight", "constant") and b.target in program.tensors
        }
        buffers = [kept[name] for name in kept if name in self.buffers]
        types = [self.input_type(bound) for bound in users]
        types += [program.tensors[bound.target].type for bound in buffers]
        values = self.context.builder.arguments(types)
        given = [*users, *buffers]
        data = self.context.data
        data.places = _places(values)
        arguments = {bound.name: value for bound, value in zip(given, values, strict=True)}
        inputs = [self.bind(bound, arguments) for bound in program.inputs]
        advanced = dict[str, Value]()
        if self.generator:
            key, state = key_of_call(self.context.builder, arguments[self.generator])
            self.context.stream = KeyStream(key)
            advanced = {self.generator: state} if self.generator in self.buffers else {}
        with assuming(self.context.facts):
            results, written = self.inline_writing(program.graph, inputs)
        self.refuse_views(buffers)
        if self.blockers:
            raise ImportBlockers(list(self.blockers), program.name or "the export")
        bound_results = list(zip(program.outputs, results, strict=True))
        gradients = self.gradients()
        plain = [
            raw if isinstance(raw, _SCALARS) else value
            for kind in ("user", "gradient")
            for (bound, value), raw in zip(bound_results, program.graph.outputs, strict=True)
            if bound.kind == kind
        ]
        state = {**self.state(written, bound_results), **advanced}
        values = [value for value in plain if isinstance(value, Value)] + list(state.values())
        self.changed = {name: None for name in state if name in kept}
        for path in state:
            if path not in kept:
                self.notes.append(
                    f"the model writes its input '{path}'; a call leaves it as it is, and "
                    "program.stateless(...) gives the new value"
                )
        checks = dict(data.checks)
        body = _live(data.explicit(self.context.builder.region([*values, *checks])))
        used = {op.attributes["weight"] for op in body.walk() if op.name == "weight"}
        initial = {self.state_name(b): program.tensors[b.target].name for b in buffers}
        for bound in buffers:
            weight = program.tensors[bound.target]
            self.weights[weight.name] = weight
        used |= set(initial.values())
        return Module(
            {"main": Function("main", body)},
            name=program.name,
            weights={name: weight for name, weight in self.weights.items() if name in used},
            signature=replace(
                self.signature(types, plain, gradients, values, list(state), initial),
                measured=tuple(Measured(message=message) for message in checks.values()),
            ),
            symbols={**{name: self.symbols[name] for name in _symbols(types)}, **data.symbols()},
            constraints=self.constraints(),
            attributes={"mhlo.num_replicas": self.context.ranks} if self.context.ranks else {},
            meshes=self.context.meshes,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def constraints(self) -> tuple[SizeConstraint, ...]:
        """What the export demands of sizes, as far as it does not follow from less. Each branch of
        the model by a size is told: other sizes would take another one."""
        facts, found = self.context.facts, dict.fromkeys(self.said)
        for branch in self.program.branches:
            said = reduced(branch, facts)
            if not {*said.symbols} <= {*self.symbols}:
                continue
            self.notes.append(
                f"{said.origin}: the export has the model's way for {said} alone, calls of other "
                "sizes are refused"
            )
            if not is_known(said, facts):
                found[said] = None
                facts = Assumptions(self.symbols, list(found))
        found.update(dict.fromkeys(self.context.required))
        return tuple(found)

    def state(
        self,
        written: Mapping[int, Value],
        results: Sequence[tuple[Output, Value | None]],
    ) -> dict[str, Value]:
        """New values of buffers and inputs that the program changes, by name or by path: those
        that the export lists, and those that in-place operators changed on the way.
        """
        paths = self.paths()
        found: dict[str, Value] = {}
        for bound, value in results:
            if bound.kind == "buffer" and value is not None:
                found[bound.target] = value
            elif bound.kind == "input" and value is not None:
                found[paths.get(bound.target, bound.target)] = value
        for number, value in written.items():
            bound = self.program.inputs[number]
            name = paths.get(bound.name) or self.state_name(bound)
            found.setdefault(name, value)
        return found

    def gradients(self) -> tuple[str, ...]:
        """What the export has gradients of, in order: parameters by name, inputs by path."""
        paths = self.paths()
        outputs = self.program.outputs
        return tuple(paths.get(b.target, b.target) for b in outputs if b.kind == "gradient")

    def refuse_views(self, buffers: Sequence[Input]) -> None:
        """A tensor in the memory of a buffer that changes would change with it: UserError. So is
        one of no name in the model, which tracing may have changed already."""
        tensors = self.program.tensors
        others = [b for b in self.program.inputs if b.target in tensors and b.name in self.read]
        if nameless := [b.target for b in buffers if _LIFTED in self.state_name(b)]:
            size = tensors[nameless[0]].type
            raise UserError(
                f"the model changes a tensor of {size} that is neither its buffer nor its "
                "attribute; make it one: self.register_buffer(...)"
            )
        for bound, other in itertools.product(buffers, others):
            if bound.name == other.name or not _shares(
                tensors[bound.target], tensors[other.target]
            ):
                continue
            if other.kind == "constant":
                raise UserError(
                    f"the model changes its buffer '{bound.target}', and reads it through "
                    "another attribute, which the export has fixed; register that attribute "
                    "as a buffer, too"
                )
            raise UserError(
                f"the model changes its buffer '{bound.target}', in whose memory '{other.target}' "
                "lies, which a program keeps apart; compute the one of the other in forward"
            )

    def state_name(self, bound: Input) -> str:
        """What a buffer is called in the model: an export may read it by another way."""
        weight = self.program.tensors[bound.target]
        known = (name for name in (weight.name, *weight.aliases) if _LIFTED not in name)
        return bound.target if _LIFTED not in bound.target else next(known, bound.target)

    def paths(self) -> dict[str, str]:
        """The path of each input that a caller gives, by its name in the graph."""
        program = self.program
        found = input_paths(program.inputs, program.input_tree, program.names)
        return {bound.name: path for bound, path in found}

    def trees(self) -> tuple[Tree, Tree]:
        """The structure of positional and of keyword inputs; fixed ones are constants."""
        leaves = [
            Tree.leaf() if b.kind == "user" else b.value
            for b in self.program.inputs
            if b.kind in ("user", "fixed")
        ]
        inputs, keywords = with_constants(self.program.input_tree, leaves).children
        return inputs, keywords

    def input_type(self, bound: Input) -> TensorType:
        found = self.program.graph.types.get(bound.name)
        if found is None:
            reason = f"a size of '{bound.name}' is no formula of whole numbers"
            self.block("input", "", reason, "export with simpler dynamic sizes")
            return TensorType((), I64)
        return found

    def bind(self, bound: Input, arguments: Mapping[str, Value]) -> Any:
        """The value of a graph input."""
        if bound.name in arguments:
            return arguments[bound.name]
        if bound.kind == "fixed":
            if bound.value is not None:
                self.notes.append(
                    f"input '{bound.name}' was fixed to {bound.value!r} by the export"
                )
            return bound.value
        if bound.kind in ("token", "size"):
            return bound.value
        weight = self.program.tensors.get(bound.target)
        if weight is None:
            reason = f"the export carries no data for '{bound.target}'"
            self.block(bound.kind, "", reason, "export the model with its weights loaded")
            return self.missing(self.program.graph.types.get(bound.name))
        known = self.weight_values.get(id(weight))
        if known is None:
            if bound.kind == "constant" and weight.type.bytes <= SMALL_CONSTANT:
                known = self.context.builder.constant(np.array(weight.array))
            else:
                self.weights[weight.name] = weight
                with self.context.builder.at((Origin(name=weight.name),)):
                    known = self.context("weight", type=weight.type, weight=weight.name)
            self.weight_values[id(weight)] = known
        return known

    def signature(
        self,
        types: Sequence[TensorType],
        plain: Sequence[Any],
        gradients: Sequence[str],
        values: Sequence[Value],
        state: Sequence[str],
        buffers: Mapping[str, str],
    ) -> Signature:
        """The program's face. The results of a joint graph are a pair: what the model returns, and
        a dict of gradients."""
        program = self.program
        inputs, keywords = self.trees()
        leaves = [Tree.leaf() if isinstance(value, Value) else value for value in plain]
        own = len(leaves) - len(gradients)
        outputs = with_constants(program.output_tree, leaves[:own])
        if gradients:
            slopes = [leaf if isinstance(leaf, Tree) else Tree.none() for leaf in leaves[own:]]
            by_name = Tree.dict_of(dict(zip(gradients, slopes, strict=True)))
            outputs = Tree.tuple_of(outputs, by_name)
        return Signature.build(
            inputs,
            [_spelled(type) for type in types],
            outputs,
            [_spelled(value.tensor) for value in values],
            program.names[: len(inputs.children)],
            keywords,
            state,
            buffers,
        )

    # Nodes.

    def inline_writing(
        self, graph: Graph, inputs: Sequence[Any]
    ) -> tuple[list[Any], dict[int, Value]]:
        """Lower a graph at this place; the values of its outputs, and the new ones of the inputs
        that it changes, by their numbers."""
        known: dict[str, Any] = dict(zip(graph.inputs, inputs, strict=True))
        self.aliases.append(Aliases(self.context, graph, self.call))
        try:
            for node in graph.nodes:
                results = self.lower_node(node, graph, known)
                known.update(zip(node.outputs, results, strict=False))
                self.aliases[-1].note(node, known)
            results = [self.output(self.resolve(value, known)) for value in graph.outputs]
            return results, self.aliases[-1].written()
        finally:
            self.aliases.pop()

    def lower_node(self, node: Node, graph: Graph, known: dict[str, Any]) -> Sequence[Any]:
        types = tuple(map(graph.types.get, node.outputs))
        try:
            with self.context.entered(node, types):
                args = [self.resolve(argument, known) for argument in node.args]
                kwargs = {name: self.resolve(value, known) for name, value in node.kwargs.items()}
                if is_in_place(node):
                    results: Sequence[Any] = (self.aliases[-1].write(node, args, kwargs, known),)
                elif (size := self.formula(node, graph)) is not None:
                    results = (self.size(node, args, kwargs, size),)
                else:
                    results = self.call(node, args, kwargs)
                    for name, value in self.context.taken_writes():
                        self.aliases[-1].assign(name, value, known)
                self.note_number(node, graph, results)
                self.check(node, types, results)
                return results
        except Blocked as error:
            self.block(node.target, _place(node), error.reason, error.remedy)
        except VerifyError as error:
            where = f"{_place(node)}: the lowering of {node.target}"
            raise CompilerBug(f"{where} made: {error}") from error
        except UnsupportedError as error:
            self.block(node.target, _place(node), str(error), "")
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            if not _reads_item(node, graph, known):
                where = f"{_place(node)}: the lowering of {node.target}"
                raise CompilerBug(f"{where} failed: {error!r}") from error
            self.block(node.target, _place(node), "needs a number that is read from a tensor", ITEM)
        return [self.missing(type) for type in types]

    def note_number(self, node: Node, graph: Graph, results: Sequence[Any]) -> None:
        """A number that is read from a tensor is a size, by the name that the export gives it."""
        size = graph.sizes.get(node.outputs[0]) if len(node.outputs) == 1 else None
        name, data = name_of(0 if size is None else size), self.context.data
        if size is not None and name and data.lacks(size) and isinstance(results[0], Value):
            data.bind(name, self.context.builder.convert(results[0], I64))

    def formula(self, node: Node, graph: Graph) -> Dim | None:
        """The size of a call that a node computes, by the export; None where it is none."""
        size = graph.sizes.get(node.outputs[0]) if len(node.outputs) == 1 else None
        return None if size is None or not {*symbols_of(size)} <= {*self.sizes} else size

    def size(self, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any], said: Dim) -> Any:
        """The result of a node that computes a size: as the program's own arithmetic has it, else
        (of roundings and floats) as the export says it."""
        try:
            (found,) = self.call(node, args, kwargs)
        except Blocked:
            return said
        return said if isinstance(found, Value) else found

    def call(self, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The results of a node's lowering, one per declared output."""
        lowering = LOWERINGS.get(node.target)
        if lowering is None:
            raise Blocked("this operator has no lowering", self.remedy(node.target))
        _bindable(node.target, lowering, args, kwargs)
        results = lowering(self.context, *args, **kwargs)
        return results if isinstance(results, (tuple, list)) else (results,)

    def remedy(self, target: str) -> str:
        """What the user can do about an operator without a lowering."""
        for prefix, remedy in REMEDIES.items():
            if target.startswith(prefix):
                return remedy
        if self.program.composite:
            return "save exported.run_decompositions() instead, which splits composite operators"
        return "write it with other operators, or register a decomposition before torch.export"

    def check(self, node: Node, types: Sequence[TensorType | None], results: Sequence[Any]) -> None:
        """CompilerBug where a result is not what the export declares; Blocked where its size
        depends on values.
        """
        for name in _symbols([type for type in types if type is not None]):
            if name not in self.sizes and name not in self.context.data.values:
                raise Blocked("has a size that no input tells", DATA)
        if len(results) != len(node.outputs):
            if any(node.used):
                count = f"{len(results)} results of {len(node.outputs)}"
                raise CompilerBug(f"{_place(node)}: the lowering of {node.target} gave {count}")
            return
        for name, type, result in zip(node.outputs, types, results, strict=True):
            if isinstance(result, Value) and type not in (None, unsharded(result.type)):
                if self.blockers or compatible(type, result.type):
                    continue  # what stands in for a blocked result may have another type
                made = f"the lowering of {node.target} gave {result.type} for '{name}'"
                raise CompilerBug(f"{_place(node)}: {made}, the export declares {type}")

    def resolve(self, argument: Any, known: dict[str, Any]) -> Any:
        """An argument with values in place of references."""
        if isinstance(argument, Ref):
            return self.aliases[-1].read(argument.name, known)
        if type(argument) is tuple:
            return [self.resolve(item, known) for item in argument]
        return argument

    def output(self, value: Any) -> Value | None:
        """A graph output as a tensor; Python's scalars become constants of rank 0."""
        if value is None or isinstance(value, Value):
            return value
        if isinstance(value, str):
            return None
        if isinstance(value, bool):
            return self.context.scalar(value, I1)
        if isinstance(value, (int, float)):
            return self.context.scalar(value, I64 if isinstance(value, int) else F64)
        kind = type(value).__name__
        self.block("output", "", f"a result is neither a tensor nor a number but {kind}",
                   "return tensors only")  # fmt: skip
        return None

    def missing(self, type: TensorType | None) -> Any:
        """Something that stands in for a blocked result, so that the rest is looked at too."""
        type = type or TensorType((), I64)
        dims = [size if isinstance(size, int) else 1 for size in type.dims]
        return self.context.full(0, dims, type.element)

    def block(self, operation: str, place: str, reason: str, remedy: str) -> None:
        spelled = operation_name(operation)
        self.blockers[Blocker(operation, place, reason, remedy, spelled)] = None


def _bindable(
    target: str, lowering: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Blocked if the lowering does not know an argument that the node has."""
    try:
        _signature(lowering).bind(None, *args, **kwargs)
    except TypeError as error:
        raise Blocked(f"called in a way that is not supported: {error}") from None


_SIGNATURES: dict[Callable[..., Any], inspect.Signature] = {}


def _signature(lowering: Callable[..., Any]) -> inspect.Signature:
    known = _SIGNATURES.get(lowering)
    if known is None:
        known = _SIGNATURES[lowering] = inspect.signature(lowering)
    return known


def _reads_item(node: Node, graph: Graph, known: Mapping[str, Any]) -> bool:
    """Whether an argument is a number that `.item()` read."""
    names = {name for argument in (*node.args, *node.kwargs.values()) for name in _refs(argument)}
    return any(isinstance(known.get(name), Value) and name not in graph.types for name in names)


def _refs(argument: Any) -> set[str]:
    if isinstance(argument, Ref):
        return {argument.name}
    if type(argument) is tuple:
        return {name for item in argument for name in _refs(item)}
    return set()


def _place(node: Node) -> str:
    return str(node.origin[0]) if node.origin else ""


def _shares(one: Weight, other: Weight) -> bool:
    """Whether two tensors lie in the same memory, at least partly."""
    return one is other or np.shares_memory(one.array, other.array)


def _spelled(type: TensorType) -> tuple[list[Any], str]:
    dims = [size if isinstance(size, int) else str(size) for size in type.dims]
    return dims, type.element.name


def _symbols(types: Sequence[TensorType]) -> list[str]:
    """The symbols in the types of the inputs, in order."""
    sizes = (size for type in types for size in type.dims if isinstance(size, SymbolicDim))
    return list(dict.fromkeys(name for size in sizes for name in size.symbols))


def _places(arguments: Sequence[Value]) -> dict[str, Place]:
    """Where arguments tell symbols, by their names."""
    found: dict[str, Place] = {}
    for value in arguments:
        for axis, size in enumerate(value.dims):
            factors = size.affine if isinstance(size, SymbolicDim) else None
            if factors and len(factors) == 1:
                ((name, factor),) = factors.items()
                if name not in found or found[name][2] != 1:
                    found[name] = value, axis, factor, size.constant
    return found


def _live(region: Region) -> Region:
    """The region without operations that nothing uses."""
    needed: set[Value] = set(region.results)
    kept: list[Op] = []
    for op in reversed(region.ops):
        if op.definition.effects or not needed.isdisjoint(op.results):
            kept.append(op)
            needed.update(op.operands)
            for inner in op.regions:
                needed.update(inner.captures())
    return Region(region.arguments, kept[::-1], region.results)
