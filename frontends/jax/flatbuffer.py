"""The tables of a `jax.export` file, a flatbuffer, as Python dictionaries: `read_export(data)`.

A table's field is found by its place in the schema; fields that are absent get an empty value.
Strings, offsets and counts are checked against the file, so a damaged one is a `UserError`.
"""

from __future__ import annotations

import struct
from typing import Any

from ...hlo.errors import UserError

_SCHEMA = {
    "Exported": """
        serialization_version:u16 function_name:s in_tree:PyTreeDef in_avals:[AbstractValue
        out_tree:PyTreeDef out_avals:[AbstractValue nr_devices_short:i16 in_shardings:[Sharding
        out_shardings:[Sharding platforms:[s ordered_effects:[Effect unordered_effects:[Effect
        disabled_checks:[DisabledSafetyCheck mlir_module_serialized:[b
        calling_convention_version:u16 module_kept_var_idx:[u16 uses_global_constants:?
        vjp:Exported nr_devices:u32 unique_avals:[AbstractValue
        unique_abstract_meshes:[AbstractMesh unique_named_shardings:[NamedSharding
        in_avals_idxs:[u32 out_avals_idxs:[u32 in_shardings_idxs:[u32 out_shardings_idxs:[u32
        jax_version:s""",
    "PyTreeDef": "kind:i8 children:[PyTreeDef children_names:[s custom_name:s custom_auxdata:[b",
    "AbstractValue": "kind:i8 shape:[s dtype:i8 memory_space:i8",
    "Sharding": "kind:i8 hlo_sharding_proto:[b named_sharding:NamedSharding",
    "Effect": "type_name:s",
    "DisabledSafetyCheck": "kind:i8 custom_call_target:s",
    "AbstractDevice": "device_kind:s num_cores:u32 platform:s",
    "AbstractMesh": "axis_sizes:[u32 axis_names:[s axis_types:[i8 abstract_device:AbstractDevice",
    "PartitionSpecOneAxis": "axes:[s",
    "PartitionSpec": "partitions:[PartitionSpecOneAxis reduced:[s unreduced:[s",
    "NamedSharding": "mesh:AbstractMesh spec:PartitionSpec memory_kind:s abstract_mesh_idx:u32",
}
_FIELDS = {
    table: [tuple(field.split(":")) for field in text.split()] for table, text in _SCHEMA.items()
}
"""Table -> (field, type) in vtable order; `[` marks a vector, `s` a string, `b` raw bytes."""

_SCALARS = {"u16": "<H", "i16": "<h", "i8": "<b", "u32": "<I", "?": "<?"}
_SKIPPED = ("vjp", "in_shardings", "out_shardings", "unique_named_shardings")
_MAXIMUM_DEPTH = 64
_MAXIMUM_TABLES = 1_000_000


def read_export(data: bytes | memoryview, name: str = "<export>") -> dict[str, Any]:
    """The fields of the file's `Exported` table; shardings and the derivative are left out."""
    reader = _FlatBufferReader(memoryview(data).cast("B"), name)
    try:
        return reader.table(reader.offset(0), "Exported", 0)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise refusal(name, str(error)) from error


def refusal(name: str, reason: str) -> UserError:
    """The error for bytes that are no export: nothing else that girih reads looks like them."""
    return UserError(
        f"{name} is none of the files that girih reads, or a damaged jax.export file ({reason}); "
        "give StableHLO, HLO, a .girih bundle, or what torch.export or jax.export wrote"
    )


class _FlatBufferReader:
    def __init__(self, data: memoryview, name: str):
        self.data = data
        self.name = name
        self.tables = 0

    def _fail(self, reason: str) -> Any:
        raise refusal(self.name, reason)

    def offset(self, position: int) -> int:
        """The absolute position that the 32-bit offset at `position` points to."""
        target = position + struct.unpack_from("<I", self.data, position)[0]
        if target + 4 > len(self.data):
            self._fail("an offset points outside the file")
        return target

    def table(self, position: int, name: str, depth: int) -> dict[str, Any]:
        self.tables += 1
        if depth > _MAXIMUM_DEPTH or self.tables > _MAXIMUM_TABLES:
            self._fail("its tables nest too deeply")
        directory = position - struct.unpack_from("<i", self.data, position)[0]
        if not 0 <= directory <= len(self.data) - 4:
            self._fail("a table's directory lies outside the file")
        size = struct.unpack_from("<H", self.data, directory)[0]
        slots = max(size - 4, 0) // 2
        fields: dict[str, Any] = {}
        for slot, (field, kind) in enumerate(_FIELDS[name]):
            start = 0
            if slot < slots:
                start = struct.unpack_from("<H", self.data, directory + 4 + 2 * slot)[0]
            if not start or field in _SKIPPED:
                fields[field] = _empty(kind)
            else:
                fields[field] = self._value(position + start, kind, depth)
        return fields

    def _value(self, position: int, kind: str, depth: int) -> Any:
        if kind in _SCALARS:
            return struct.unpack_from(_SCALARS[kind], self.data, position)[0]
        target = self.offset(position)
        if kind == "s":
            return self._bytes(target).tobytes().decode()
        if kind[0] != "[":
            return self.table(target, kind, depth + 1)
        item = kind[1:]
        if item == "b":
            return self._bytes(target)
        count = struct.unpack_from("<I", self.data, target)[0]
        width = struct.calcsize(_SCALARS[item]) if item in _SCALARS else 4
        if count * width > len(self.data) - target - 4:
            self._fail(f"a list of {count} items is longer than the file")
        places = range(target + 4, target + 4 + width * count, width)
        return [self._value(place, item, depth) for place in places]

    def _bytes(self, position: int) -> memoryview:
        size = struct.unpack_from("<I", self.data, position)[0]
        if size > len(self.data) - position - 4:
            self._fail(f"{size} bytes are longer than the file")
        return self.data[position + 4 : position + 4 + size]


def _empty(kind: str) -> Any:
    if kind[0] == "[":
        return []
    return "" if kind == "s" else 0 if kind in _SCALARS else None
