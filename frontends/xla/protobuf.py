"""XLA's protobuf files become a `Program`: HloModuleProto, HloProto, HloSnapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...hlo.errors import UnsupportedError, UserError
from . import devices, literals, messages
from .locations import Frames
from .program import (
    Computation,
    ConvolutionLabels,
    Instruction,
    Program,
    Shape,
    WindowDimension,
    check_shape,
    measure,
)
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


def read_protobuf(data: memoryview, source: str) -> Program:
    """The program of a file; UserError where it is damaged or holds no HLO module."""
    module = find_module(data)
    if module is None:
        raise UserError(f"{source}: this protobuf holds no HLO module, or it is damaged")
    try:
        return _Reader(source).program(module)
    except Damaged as error:
        raise damaged(source, error) from None


class _Reader:
    """State of one reading: shapes that were read already, and what is unknown in the file."""

    def __init__(self, source: str):
        self.source = source
        self._shapes: dict[bytes, Shape] = {}
        self._unknown: set[tuple[str, int]] = set()
        self._metadata: list[memoryview] = []

    def program(self, data: memoryview) -> Program:
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
        program = Program(
            module.get("name", ""), self.source, entry, computations, locate=frames.location
        )
        self._module_facts(program, module)
        return program

    def _module_facts(self, program: Program, module: Mapping[str, Any]) -> None:
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
        facts = _frontend_attributes(module.get("frontend_attributes", {}))
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
            converted = _ATTRIBUTES.get(key)
            if converted is None:
                continue
            try:
                converted(self, instruction, attributes, value)
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


def _frontend_attributes(facts: Mapping[str, Any]) -> dict[str, str]:
    return {item.get("key", ""): item.get("value", "") for item in facts.get("map", ())}


# Attributes: each takes the reader, the instruction, its attributes and the field's value

_Attributes = dict[str, Any]
_Convert = Callable[[_Reader, Instruction, _Attributes, Any], None]


def _plain(name: str) -> _Convert:
    """A number, truth value or text."""

    def convert(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
        facts[name] = value

    return convert


def _numbers(name: str) -> _Convert:
    def convert(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
        facts[name] = tuple(value)

    return convert


def _word(name: str, words: tuple[str, ...]) -> _Convert:
    """One of the words of an enumeration."""

    def convert(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
        facts[name] = _of(words, value, name)

    return convert


def _truth(name: str) -> _Convert:
    """A value that may also be left open: 1 is true, 2 is false."""

    def convert(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
        facts[name] = value == 1

    return convert


def _of(words: tuple[str, ...], value: int, name: str) -> str:
    if not 0 <= value < len(words):
        raise Damaged(f"{name} is {value}, which is not known")
    return words[value]


def _merged(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    """The message's fields are attributes of their own names."""
    for key, item in value.items():
        facts[key] = tuple(item) if isinstance(item, list) else item


def _window(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    facts["window"] = tuple(
        WindowDimension(
            dim.get("size", 0),
            dim.get("stride", 0),
            dim.get("padding_low", 0),
            dim.get("padding_high", 0),
            dim.get("base_dilation", 0),
            dim.get("window_dilation", 0),
            dim.get("window_reversal", False),
        )
        for dim in value.get("dimensions", ())
    )


def _labels(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    def part(name: str, first: str, second: str) -> tuple[int, ...]:
        return (
            value.get(f"{name}_{first}_dimension", 0),
            value.get(f"{name}_{second}_dimension", 0),
            *value.get(f"{name}_spatial_dimensions", ()),
        )

    facts["dim_labels"] = ConvolutionLabels(
        part("input", "batch", "feature"),
        part("kernel", "input_feature", "output_feature"),
        part("output", "batch", "feature"),
    )


def _slice(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    facts["slice"] = tuple(
        (item.get("start", 0), item.get("limit", 0), item.get("stride", 0)) for item in value
    )


def _padding(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    facts["padding"] = tuple(
        (item.get("low", 0), item.get("high", 0), item.get("interior", 0))
        for item in value.get("dimensions", ())
    )


def _precision(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    words = [
        _of(messages.PRECISIONS, item, "operand_precision")
        for item in value.get("operand_precision", ())
    ]
    if any(word != "default" for word in words):
        facts["operand_precision"] = tuple(words)
    if value.get("algorithm"):
        facts["algorithm"] = _of(messages.DOT_ALGORITHMS, value["algorithm"], "algorithm")


def _ragged(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    _merged(reader, instruction, facts, value.pop("dot_dimension_numbers", {}))
    _merged(reader, instruction, facts, value)


def _triangular(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    facts.update(value)
    facts["transpose_a"] = _of(messages.TRANSPOSES, value.get("transpose_a", 0), "transpose_a")


def _sharding(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    facts["sharding"] = devices.spell_sharding(value)


def _frontend(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    if value:
        facts["frontend_attributes"] = _frontend_attributes(value)


def _literal(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    try:
        facts["literal"] = reader.literal(value)
    except UnsupportedError as error:
        facts["refused"] = str(error)


def _groups(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    facts["replica_groups"] = tuple(tuple(group.get("replica_ids", ())) for group in value)


def _device_list(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    if "iota_replica_group_list" in value:
        _iota_groups(reader, instruction, facts, value["iota_replica_group_list"])
    else:
        _groups(reader, instruction, facts, value.get("replica_groups", ()))


def _iota_groups(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    dims = (value.get("num_replica_groups", 0), value.get("num_devices_per_group", 0))
    facts["replica_groups"] = devices.iota_groups(
        dims, value.get("iota_reshape_dims", ()), value.get("iota_transpose_perm", ())
    )


def _mesh_groups(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    facts["replica_groups"] = devices.mesh_groups(value.get("mesh", {}), value.get("axes", ()))


def _pairs(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    facts["source_target_pairs"] = tuple(
        (item.get("source", 0), item.get("target", 0)) for item in value
    )


def _operand_layouts(
    reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any
) -> None:
    if any(isinstance(item, int) for item in value):
        raise Damaged("an operand's layout is no shape")
    facts["operand_layout_constraints"] = tuple(reader.shape(item) for item in value)


def _aliasing(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    facts["output_to_operand_aliasing"] = tuple(
        (
            tuple(item.get("output_shape_index", ())),
            item.get("operand_index", 0),
            tuple(item.get("operand_shape_index", ())),
        )
        for item in value
    )


def _accuracy(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    if "tolerance" in value:
        facts["result_accuracy"] = {"atol": 0.0, "rtol": 0.0, "ulps": 0, **value["tolerance"]}
    elif value.get("mode"):
        facts["result_accuracy"] = _of(messages.ACCURACIES, value["mode"], "result_accuracy")


def _payload(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    if value.get("value"):
        facts["backend_config"] = str(value["value"], "utf-8", "surrogateescape")
    elif value:
        facts["refused"] = "its configuration stands elsewhere in the file"


def _channel(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
    if value > 0:
        facts["channel_id"] = value


def _refused(reason: str) -> _Convert:
    """A feature that no operation of girih has."""

    def convert(reader: _Reader, instruction: Instruction, facts: _Attributes, value: Any) -> None:
        if len(value):
            facts["refused"] = reason

    return convert


_ATTRIBUTES: dict[str, _Convert] = {
    **{
        name: _plain(name)
        for name in (
            "exponent_bits",
            "mantissa_bits",
            "outfeed_config",
            "epsilon",
            "feature_index",
            "infeed_config",
            "custom_call_target",
            "backend_config",
            "is_host_transfer",
            "feature_group_count",
            "batch_group_count",
            "is_stable",
            "custom_call_has_side_effect",
            "delta",
            "indices_are_sorted",
            "unique_indices",
            "use_global_device_ids",
            "k",
            "largest",
            "is_composite",
            "constrain_layout",
            "is_reverse",
            "num_carries",
        )
    },
    "is_associative": _truth("is_associative"),
    "comparison_direction": _plain("direction"),
    "comparison_type": _plain("type"),
    "tuple_index": _plain("index"),
    **{name: _numbers(name) for name in ("dimensions", "dynamic_slice_sizes", "fft_length")},
    "gather_slice_sizes": _numbers("slice_sizes"),
    "fft_type": _word("fft_type", messages.FFT_TYPES),
    "distribution": _word("distribution", messages.DISTRIBUTIONS),
    "rng_algorithm": _word("algorithm", messages.ALGORITHMS),
    "padding_type": _word("padding_type", messages.PADDING_TYPES),
    "custom_call_api_version": _word("api_version", messages.API_VERSIONS),
    "window": _window,
    "convolution_dimension_numbers": _labels,
    "slice_dimensions": _slice,
    "padding_config": _padding,
    "dot_dimension_numbers": _merged,
    "gather_dimension_numbers": _merged,
    "scatter_dimension_numbers": _merged,
    "cholesky_options": _merged,
    "precision_config": _precision,
    "ragged_dot_dimension_numbers": _ragged,
    "triangular_solve_options": _triangular,
    "sharding": _sharding,
    "frontend_attributes": _frontend,
    "literal": _literal,
    "replica_groups": _groups,
    "collective_device_list": _device_list,
    "iota_collective_device_list": _iota_groups,
    "mesh_axes_replica_group_list": _mesh_groups,
    "source_target_pairs": _pairs,
    "operand_shapes_with_layout": _operand_layouts,
    "output_operand_aliasing": _aliasing,
    "result_accuracy": _accuracy,
    "backend_config_payload": _payload,
    "channel_id": _channel,
    "all_reduce_id": _channel,
    "dot_sparsity": _refused("sparse operands are not supported"),
    "sparsity_config": _refused("sparse operands are not supported"),
}
