"""XLA's protobuf files become a `XlaProgram`: HloModuleProto, HloProto, HloSnapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...hlo.errors import UnsupportedError, UserError
from . import literals, messages
from .locations import Frames
from .program import (
    Computation,
    Instruction,
    Shape,
    XlaProgram,
    check_shape,
    measure,
)
from .proto_attributes import ATTRIBUTES, frontend_attributes
from .wire import Damaged, damaged

_WRAPPED = 1  # the number of the field that holds the module in HloProto, the proto in HloSnapshot
_NESTED = 3  # HloSnapshot in HloUnoptimizedSnapshot holds HloProto, which holds the module


def find_module(data: memoryview) -> memoryview | None:
    """The bytes of the HloModuleProto in the file, None where there is none.

    A module has computations (field 3) which have a name; the messages around one have it, or the
    next message, in field 1.
    """
    for _ in range(_NESTED):
        first: memoryview | None = None
        computation: memoryview | None = None
        try:
            for number, wire, value in _fields(data):
                if number == _WRAPPED and wire == 2 and first is None:
                    first = value
                if number == 3 and wire == 2 and computation is None:
                    computation = value
        except Damaged:
            if computation is None:
                return None
        if computation is not None and _is_computation(computation):
            return data
        if first is None:
            return None
        data = first
    return None


def _fields(data: memoryview) -> Any:
    position, end = 0, len(data)
    while position < end:
        key, position = _number(data, position)
        wire = key & 7
        if wire == 0:
            value, position = _number(data, position)
        elif wire in (1, 2, 5):
            if wire == 2:
                length, position = _number(data, position)
            else:
                length = 8 if wire == 1 else 4
            if length > end - position:
                raise Damaged("the file is cut off")
            value = data[position : position + length]
            position += length
        else:
            raise Damaged("the file is no protobuf")
        if key >> 3 == 0:
            raise Damaged("the file is no protobuf")
        yield key >> 3, wire, value


def _number(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise Damaged("a number is cut off")


def _is_computation(data: memoryview) -> bool:
    """Whether the message has a name, then instructions with an opcode, as computations do."""
    try:
        for number, wire, value in _fields(data):
            if number == 2:
                found = {field for field, kind, _ in _fields(value) if kind == 2}
                return wire == 2 and 2 in found and 3 in found
            if number == 1 and wire != 2:
                return False
    except (Damaged, TypeError):
        return False
    return False


def read_protobuf(data: memoryview, source: str) -> XlaProgram:
    """The program of a file; UserError where it is damaged or holds no HLO module."""
    module = find_module(data)
    if module is None:
        raise UserError(f"{source}: this protobuf holds no HLO module, or it is damaged")
    try:
        return ProtobufReader(source).program(module)
    except Damaged as error:
        raise damaged(source, error) from None


class ProtobufReader:
    """State of one reading: shapes that were read already, and what is unknown in the file."""

    def __init__(self, source: str):
        self.source = source
        self._shapes: dict[bytes, Shape] = {}
        self._unknown: set[tuple[str, int]] = set()
        self._metadata: list[memoryview] = []

    def program(self, data: memoryview) -> XlaProgram:
        module = messages.MODULE.read(data, self._unknown)
        computations: list[Computation] = []
        by_id: dict[int, Computation] = {}
        for facts in module.get("computations", ()):
            computation = self._computation(facts, by_id)
            number = facts.get("id", 0)
            if number in by_id:
                raise Damaged(f"two computations have the id {number}")
            by_id[number] = computation
            computations.append(computation)
        entry = by_id.get(module.get("entry_computation_id", 0))
        name = module.get("entry_computation_name", "")
        if entry is None or (name and entry.name != name):
            named = [computation for computation in computations if computation.name == name]
            if len(named) != 1:
                raise Damaged("the entry computation is missing")
            entry = named[0]
        frames = Frames.of_proto(module.get("stack_frame_index", {}), self._metadata)
        program = XlaProgram(
            module.get("name", ""), self.source, entry, computations, locate=frames.location
        )
        self._module_facts(program, module)
        return program

    def _module_facts(self, program: XlaProgram, module: Mapping[str, Any]) -> None:
        for item in module.get("input_output_alias", {}).get("entries", ()):
            program.aliases.append(
                (
                    tuple(item.get("output_shape_index", ())),
                    item.get("parameter_number", 0),
                    tuple(item.get("parameter_shape_index", ())),
                )
            )
        for item in module.get("buffer_donor", {}).get("entries", ()):
            program.donors.append(
                (item.get("parameter_number", 0), tuple(item.get("parameter_shape_index", ())))
            )
        facts = frontend_attributes(module.get("frontend_attributes", {}))
        if facts:
            program.attributes["frontend_attributes"] = facts
        assignment = module.get("device_assignment", {})
        for key, attribute in (
            ("replica_count", "replica_count"),
            ("computation_count", "num_partitions"),
        ):
            if assignment.get(key, 1) > 1:
                program.attributes[attribute] = assignment[key]
        if self._unknown:
            listed = ", ".join(f"{name}.{number}" for name, number in sorted(self._unknown)[:8])
            program.notes.append(f"fields that this version does not know were ignored: {listed}")

    def _computation(
        self, facts: Mapping[str, Any], known: Mapping[int, Computation]
    ) -> Computation:
        instructions: list[Instruction] = []
        by_id: dict[int, Instruction] = {}
        name = facts.get("name", "")
        for item in facts.get("instructions", ()):
            instruction = self._instruction(item, by_id, known)
            number = item.get("id", 0)
            if number in by_id:
                raise Damaged(f"two instructions of {name} have the id {number}")
            by_id[number] = instruction
            instructions.append(instruction)
        root = by_id.get(facts.get("root_id", 0))
        if root is None:
            raise Damaged(f"the root of {name} is missing")
        computation = Computation(name, instructions, root)
        if wrong := measure(computation):
            raise Damaged(wrong)
        return computation

    def _instruction(
        self,
        facts: dict[str, Any],
        known: Mapping[int, Instruction],
        computations: Mapping[int, Computation],
    ) -> Instruction:
        location: Any = None
        metadata = facts.pop("metadata", None)
        if metadata:
            location = len(self._metadata)
            self._metadata.append(metadata)
        shape = facts.pop("shape", None)
        if shape is None:
            raise Damaged("an instruction has no shape")
        instruction = Instruction(
            facts.pop("name", ""), facts.pop("opcode", ""), self.shape(shape), location
        )
        instruction.number = facts.pop("parameter_number", 0)
        try:
            instruction.operands = [known[number] for number in facts.pop("operand_ids", ())]
            instruction.calls = [
                computations[number] for number in facts.pop("called_computation_ids", ())
            ]
        except KeyError as error:
            raise Damaged(
                f"{instruction.name} uses id {error.args[0]}, which does not stand before it"
            ) from None
        attributes = instruction.attributes
        for key, value in facts.items():
            converted = ATTRIBUTES.get(key)
            if converted is None:
                continue
            try:
                converted(self, attributes, value)
            except (IndexError, ValueError) as error:
                raise Damaged(f"{instruction.name}: {error}") from None
        return instruction

    # Shapes and literals

    def shape(self, data: memoryview, depth: int = 0) -> Shape:
        """The shape behind the bytes of a ShapeProto; equal bytes are one object."""
        key = bytes(data)
        known = self._shapes.get(key)
        if known is None:
            known = self._shapes[key] = self._shape(data, depth)
        return known

    def _shape(self, data: memoryview, depth: int) -> Shape:
        if depth > 64:
            raise Damaged("a shape nests too deeply")
        facts = messages.SHAPE.read(data, self._unknown)
        number = facts.get("element_type", 0)
        element = messages.ELEMENT_TYPES.get(number)
        if element is None:
            raise Damaged(f"a shape has the element type {number}, which is not known")
        members = facts.get("tuple_shapes", ())
        if any(isinstance(member, int) for member in members):
            raise Damaged("a member of a tuple is no shape")
        inner = tuple(self.shape(member, depth + 1) for member in members)
        if inner and element not in ("tuple", "buffer"):
            raise Damaged(f"a shape of {element} has members")
        dynamic = tuple(value != 0 for value in facts.get("is_dynamic_dimension", ()))
        layout = facts.get("layout")
        order = None if layout is None else tuple(layout.get("minor_to_major", ()))
        dims = tuple(facts.get("dimensions", ()))
        if order == () and dims:
            order = None
        shape = Shape(
            element,
            dims,
            dynamic if any(dynamic) else (),
            order,
            layout is not None and _is_tiled(layout),
            inner,
        )
        if wrong := check_shape(shape) or (
            "a dynamic flag is missing" if dynamic and len(dynamic) != len(dims) else ""
        ):
            raise Damaged(wrong)
        return shape

    def literal(self, data: memoryview, depth: int = 0) -> Any:
        """The array of a LiteralProto, or a tuple of them."""
        if depth > 64:
            raise Damaged("a literal nests too deeply")
        facts = messages.LITERAL.read(data, self._unknown)
        shape = self.shape(facts.get("shape", memoryview(b"")))
        if shape.is_tuple:
            parts = facts.get("tuple_literals", ())
            if any(isinstance(part, int) for part in parts):
                raise Damaged("a member of a literal is no literal")
            return tuple(self.literal(part, depth + 1) for part in parts)
        if facts.get("sparse_indices") or facts.get("dynamic_sizes"):
            raise UnsupportedError(f"{self.source}: a constant {shape} is sparse or has free sizes")
        return literals.of_proto(shape, facts.get(literals.FIELDS.get(shape.element, ""), []))


def _is_tiled(layout: Mapping[str, Any]) -> bool:
    """Whether the layout says more than an order of dimensions."""
    return bool(
        layout.get("tiles")
        or any(layout.get("dim_level_types", ()))
        or layout.get("element_size_in_bits")
        or layout.get("tail_padding_alignment_in_elements", 1) > 1
        or layout.get("physical_shape")
    )
