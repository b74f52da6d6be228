"""A `XlaProgram` becomes the op tree of a StableHLO program, which `stablehlo.convert` takes.

What calls a computation by name (call, custom-call, asynchronous ops) calls a function; fusions
and branches are written out where they stand; bodies of loops, reductions and the like become
regions. Tuples stay tuples: the converter takes them apart. An instruction that StableHLO cannot
say becomes an op `hlo.<opcode>` with its reason, so that the import lists all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...hlo.errors import UserError
from .. import tree
from .program import ELEMENTS, Computation, Instruction, Shape, XlaProgram

_SUFFIX = re.compile(r"(?:\.\d+)+$")
REFUSED = "hlo."
"""The dialect of ops that stand for what cannot be imported."""

_NEEDED = {"get-tuple-element": 1, "dynamic-slice": 1, "dynamic-update-slice": 2, "topk": 1}
"""Operands without which an opcode says nothing; the op rooms check what others need."""

Environment = dict[Instruction, tree.TreeValue]
Handler = Callable[["XlaLowering", Instruction, list[tree.TreeValue]], tree.TreeValue]


class XlaLowering:
    """State of one lowering: the functions made so far, and the list that ops are appended to.
    simple, handlers: what opcodes are, see `opcodes.py`."""

    def __init__(
        self, program: XlaProgram, simple: Mapping[str, str], handlers: Mapping[str, Handler]
    ) -> None:
        self.program, self.simple, self.handlers = program, simple, handlers
        self.source = program.source
        self._types: dict[Shape, tree.Type] = {}
        self._functions: dict[Computation, str] = {}
        self._names: set[str] = {"main"}
        self._operations: list[tree.Operation] = []  # of the module
        self._built: list[tree.Operation] = []  # of the region that is being filled
        self._location: Any = None

    def document(self) -> tree.Document:
        main = self._entry(self.program.entry)
        facts: dict[str, Any] = {"sym_name": self.program.name}
        for key in ("num_partitions", "num_replicas"):
            value = self.program.attributes.get(key.replace("num_replicas", "replica_count"))
            if value:
                facts[f"mhlo.{key}"] = tree.Integer(value, "i32")
        extra = self.program.attributes.get("frontend_attributes")
        if extra:
            facts["mhlo.frontend_attributes"] = dict(extra)
        top = tree.Region([], [*self._operations, main])
        module = tree.Operation("builtin.module", attributes=facts, regions=[top])
        return tree.Document(module, self.source, "XLA", self.program.location)

    def fail(self, instruction: Instruction, message: str) -> UserError:
        """The error of an instruction that contradicts itself."""
        location = instruction.location
        line = f":{location.line}" if isinstance(location, tree.TextLine) else ""
        name = instruction.name
        return UserError(f"{self.source}{line}: {instruction.opcode} {name}: {message}")

    # Types

    def type(self, shape: Shape) -> tree.Type:
        known = self._types.get(shape)
        if known is None:
            known = self._types[shape] = self._type(shape)
        return known

    def _type(self, shape: Shape) -> tree.Type:
        if shape.is_tuple:
            return tree.Tuple(tuple(map(self.type, shape.members)))
        if shape.element == "token":
            return "token"
        element = self.element(shape)
        if element is None:
            return tree.Opaque("xla", f".{shape.element}")
        if not shape.dynamic:
            return tree.Tensor(shape.dims, element)
        dims = tuple(
            tree.DYNAMIC if free else dim
            for dim, free in zip(shape.dims, shape.dynamic, strict=True)
        )
        bounds = tuple(
            dim if free and dim >= 0 else tree.DYNAMIC
            for dim, free in zip(shape.dims, shape.dynamic, strict=True)
        )
        return tree.Tensor(dims, element, tree.Structured("bounds", {"bounds": bounds}))

    def element(self, shape: Shape) -> tree.Type | None:
        """The tree's element type; None for one that it has not."""
        name = ELEMENTS.get(shape.element)
        if name is not None and name.startswith("complex<"):
            return tree.Complex(name[len("complex<") : -1])
        return name

    # Building

    def op(
        self,
        name: str,
        operands: Sequence[tree.TreeValue],
        kind: tree.Type,
        attributes: Mapping[str, Any] | None = None,
        regions: Sequence[tree.Region] = (),
    ) -> tree.TreeValue:
        """Append an op with one result (which may be a tuple) and return that."""
        result = tree.TreeValue(kind)
        self._append(name, operands, [result], attributes, regions)
        return result

    def _append(
        self,
        name: str,
        operands: Sequence[tree.TreeValue],
        results: list[tree.TreeValue],
        attributes: Mapping[str, Any] | None = None,
        regions: Sequence[tree.Region] = (),
    ) -> None:
        self._built.append(
            tree.Operation(
                name, list(operands), results, dict(attributes or {}), list(regions), self._location
            )
        )

    def constant(self, array: np.ndarray[Any, Any], shape: Shape) -> tree.TreeValue:
        """A constant of an array's shape, in row-major order."""
        kind = self.type(shape)
        if not isinstance(kind, tree.Tensor):
            return self.op(f"{REFUSED}constant", (), kind, {"refused": "has no element type"})
        if array.size > 1 and not any(array.strides):
            array = array[(0,) * array.ndim]  # one element stands for all
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        elements = tree.Elements(kind, data.data)
        return self.op("stablehlo.constant", (), kind, {"value": elements})

    def refuse(self, instruction: Instruction, reason: str, remedy: str = "") -> tree.TreeValue:
        """A value that stands for what cannot be imported, and says why."""
        facts = {"refused": reason, "remedy": remedy}
        kind = self.type(instruction.shape)
        return self.op(f"{REFUSED}{instruction.opcode}", (), kind, facts)

    @contextmanager
    def _filling(self, built: list[tree.Operation]) -> Iterator[None]:
        outer, self._built = self._built, built
        location = self._location
        try:
            yield
        finally:
            self._built, self._location = outer, location

    # Computations

    def inline(
        self, computation: Computation, arguments: Sequence[tree.TreeValue]
    ) -> tree.TreeValue:
        """Append what the computation does with the arguments; its root's value."""
        environment: Environment = {}
        for parameter, value in zip(computation.parameters, arguments, strict=True):
            environment[parameter] = value
        for instruction in computation.instructions:
            if instruction.opcode == "parameter":
                continue
            self._location = instruction.location
            operands = [environment[operand] for operand in instruction.operands]
            environment[instruction] = self._instruction(instruction, operands)
        return environment[computation.root]

    def _instruction(
        self, instruction: Instruction, operands: list[tree.TreeValue]
    ) -> tree.TreeValue:
        facts = instruction.attributes
        if "refused" in facts:
            return self.refuse(instruction, facts["refused"], facts.get("remedy", ""))
        if len(operands) < _NEEDED.get(instruction.opcode, 0):
            raise self.fail(instruction, "lacks an operand")
        name = self.simple.get(instruction.opcode)
        count = len(self._built)
        if name is not None:
            value = self.op(name, operands, self.type(instruction.shape), accuracy(facts))
        else:
            handler = self.handlers.get(instruction.opcode)
            if handler is None:
                return self.refuse(instruction, "this operation is not known")
            value = handler(self, instruction, operands)
        if ("sharding" in facts or "frontend_attributes" in facts) and len(self._built) > count:
            self._annotate(self._built[-1], facts)
        return value

    def _annotate(self, operation: tree.Operation, facts: Mapping[str, Any]) -> None:
        """The attributes that any op may carry."""
        if "sharding" in facts:
            operation.attributes["mhlo.sharding"] = facts["sharding"]
        told = facts.get("frontend_attributes", {})
        kept = {key: text for key, text in told.items() if not key.startswith("composite.")}
        if kept:
            operation.attributes["mhlo.frontend_attributes"] = kept

    def region(
        self, instruction: Instruction, number: int, shapes: Sequence[Shape] | None = None
    ) -> tree.Region:
        """The called computation of that number as a region with arguments of its own.

        `shapes` are what its parameters have to be, where something else would go unnoticed.
        """
        computation = self.called(instruction, number)
        if shapes is not None:
            self.check_parameters(instruction, computation, shapes)
        arguments = [tree.TreeValue(self.type(p.shape)) for p in computation.parameters]
        region = tree.Region(arguments)
        with self._filling(region.operations):
            root = self.inline(computation, arguments)
            self._append("stablehlo.return", [root], [])
        return region

    def branch(
        self, instruction: Instruction, number: int, arguments: Sequence[tree.TreeValue]
    ) -> tree.Region:
        """The called computation as a region without arguments, applied to values from outside."""
        region = tree.Region()
        with self._filling(region.operations):
            root = self.inline(self.called(instruction, number), arguments)
            self._append("stablehlo.return", [root], [])
        return region

    def called(self, instruction: Instruction, number: int) -> Computation:
        if number >= len(instruction.calls):
            raise self.fail(instruction, "a computation that it calls is missing")
        return instruction.calls[number]

    def check_parameters(
        self, instruction: Instruction, computation: Computation, shapes: Sequence[Shape]
    ) -> None:
        """UserError unless the computation takes values of these shapes."""
        found = [parameter.shape for parameter in computation.parameters]
        if len(found) != len(shapes) or not all(map(Shape.same, found, shapes)):
            wanted = ", ".join(map(str, shapes))
            taken = ", ".join(map(str, found))
            raise self.fail(instruction, f"{computation.name} takes ({taken}), not ({wanted})")

    def check_result(
        self, instruction: Instruction, computation: Computation, shape: Shape
    ) -> None:
        """UserError unless the computation gives a value of this shape."""
        root = computation.root.shape
        if not root.same(shape):
            raise self.fail(instruction, f"{computation.name} gives {root}, not {shape}")

    # Functions

    def function(self, computation: Computation) -> str:
        """The name of the private function that the computation becomes, once."""
        known = self._functions.get(computation)
        if known is not None:
            return known
        name, number = computation.name or "computation", 0
        while name in self._names:
            number += 1
            name = f"{computation.name or 'computation'}_{number}"
        self._names.add(name)
        self._functions[computation] = name
        arguments = [tree.TreeValue(self.type(p.shape)) for p in computation.parameters]
        for value, parameter in zip(arguments, computation.parameters, strict=True):
            value.location = parameter.location
        region = tree.Region(arguments)
        with self._filling(region.operations):
            root = self.inline(computation, arguments)
            self._append("func.return", [root], [])
        kind = tree.FunctionType(tuple(v.type for v in arguments), (root.type,))
        facts = {"sym_name": name, "sym_visibility": "private", "function_type": kind}
        self._operations.append(tree.Operation("func.func", attributes=facts, regions=[region]))
        return name

    def _entry(self, computation: Computation) -> tree.Operation:
        """`main`: the entry with one argument and one result per array at its edge."""
        region = tree.Region()
        names = self._parameter_names(computation)
        facts: list[dict[str, Any]] = []
        starts: list[dict[tuple[int, ...], int]] = []
        with self._filling(region.operations):
            values: list[tree.TreeValue] = []
            for parameter, name in zip(computation.parameters, names, strict=True):
                places: dict[tuple[int, ...], int] = {}
                for path, shape in parameter.shape.leaves():
                    places[path] = len(region.arguments)
                    value = tree.TreeValue(self.type(shape), location=parameter.location)
                    region.arguments.append(value)
                    label = name + "".join(f"[{index}]" for index in path)
                    facts.append({"jax.arg_info": label} if name else {})
                    if not path and "sharding" in parameter.attributes:
                        facts[-1]["mhlo.sharding"] = parameter.attributes["sharding"]
                starts.append(places)
                leaves = iter(region.arguments[len(region.arguments) - len(places) :])
                values.append(self._grouped(parameter.shape, leaves))
            root = self.inline(computation, values)
            self._append("func.return", [root], [])
        self._donate(computation.root.shape, starts, facts)
        outputs = [path for path, _ in computation.root.shape.leaves()]
        attributes: dict[str, Any] = {"sym_name": "main", "sym_visibility": "public"}
        if any(facts):
            attributes["arg_attrs"] = tuple(facts)
        if any(len(path) > 1 for path in outputs):
            attributes["res_attrs"] = tuple(
                {"jax.result_info": "result" + "".join(f"[{index}]" for index in path)}
                for path in outputs
            )
        return tree.Operation("func.func", attributes=attributes, regions=[region])

    def _grouped(self, shape: Shape, leaves: Iterator[tree.TreeValue]) -> tree.TreeValue:
        if not shape.is_tuple:
            return next(leaves)
        members = [self._grouped(member, leaves) for member in shape.members]
        return self.op("stablehlo.tuple", members, self.type(shape))

    def _parameter_names(self, computation: Computation) -> list[str]:
        """The names that the framework gave, else the instructions' own; empty if not distinct."""
        given: list[str] = []
        for parameter in computation.parameters:
            location = self.program.location(parameter.location)
            given.append(location.name if isinstance(location, tree.NameLocation) else "")
        own = [_SUFFIX.sub("", parameter.name) for parameter in computation.parameters]
        full = [parameter.name for parameter in computation.parameters]
        for names in (given, own, full):
            if len(set(names)) == len(names) and all(n and "/" not in n for n in names):
                return names
        return [""] * len(own)

    def _donate(
        self,
        result: Shape,
        starts: Sequence[Mapping[tuple[int, ...], int]],
        facts: Sequence[dict[str, Any]],
    ) -> None:
        """Notes which arguments become which results, and which may be reused."""
        outputs = {path: number for number, (path, _) in enumerate(result.leaves())}
        taken: set[int] = set()
        for output, parameter, path in self.program.aliases:
            argument = starts[parameter].get(path) if 0 <= parameter < len(starts) else None
            number = outputs.get(output)
            if argument is None or number is None or number in taken:
                raise UserError(
                    f"{self.source}: input_output_alias names {output} and parameter {parameter} "
                    f"{path}, which are not there, or twice"
                )
            taken.add(number)
            facts[argument]["tf.aliasing_output"] = tree.Integer(number, "i32")
        for parameter, path in self.program.donors:
            argument = starts[parameter].get(path) if 0 <= parameter < len(starts) else None
            if argument is None:
                raise UserError(f"{self.source}: buffer_donor names a parameter that is not there")
            if "tf.aliasing_output" not in facts[argument]:
                facts[argument]["jax.buffer_donor"] = True


def accuracy(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The attribute of an op whose result accuracy was asked for."""
    asked = facts.get("result_accuracy")
    if asked is None or asked == "default":
        return {}
    if isinstance(asked, str):
        fields = {"atol": 0.0, "rtol": 0.0, "ulps": 0, "mode": asked.upper()}
    else:
        fields = {**asked, "mode": "TOLERANCE"}
    return {"result_accuracy": tree.Structured("result_accuracy", fields)}
