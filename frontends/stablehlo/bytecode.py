"""MLIR bytecode, formats 0 to 6, becomes an op tree: `read_bytecode(data) -> tree.Document`.

The container is read here; what an attribute or type entry means is in `bytecode_entries`, what a
VHLO op means in `vhlo`. Constants stay views into the data; attributes, types and locations are
read when they are first asked for.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ...hlo.errors import UserError
from .. import tree
from .bytecode_entries import EntryReader, Raw
from .cursor import Cursor
from .scanner import MAX_DEPTH
from .vhlo import stablehlo_form
from .vhlo_table import ATTRIBUTES

MAGIC = b"ML\xefR"
NEWEST_FORMAT = 6

_STRINGS, _DIALECTS, _ENTRIES, _OFFSETS, _IR, _RESOURCES, _RESOURCE_OFFSETS, _VERSIONS = range(8)
_PROPERTIES = 8

CAST = "builtin.unrealized_conversion_cast"

PROPERTY_NAMES: dict[str, tuple[str, ...]] = {
    "builtin.module": ("?sym_name", "?sym_visibility"),
    "sdy.mesh": ("mesh", "sym_name"),
    "sdy.sharding_constraint": ("sharding",),
    "sdy.reshard": ("sharding",),
    "sdy.manual_computation": ("in_shardings", "manual_axes", "out_shardings"),
    "sdy.sharding_group": ("group_id",),
    "sdy.named_computation": ("?in_shardings", "name", "?out_shardings"),
    "sdy.propagation_barrier": ("allowed_direction",),
    "sdy.return": (),
}
"""Properties of ops outside VHLO in stored order; `?` may be absent."""


def read_bytecode(data: bytes | memoryview, name: str = "<bytecode>") -> tree.Document:
    """The tree of a portable artifact, upgraded to today's StableHLO.

    UserError where it is malformed or from a newer producer.
    """
    reader = BytecodeReader(memoryview(data), name)
    try:
        module = reader.read()
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
        raise UserError(f"{name}: the bytecode is malformed ({type(error).__name__})") from error
    except RecursionError:
        raise UserError(f"{name}: the bytecode nests too deeply") from None
    return tree.Document(module, name, reader.producer, reader.location)


class _Values:
    """The value table of one isolated region; nested regions number on from its end."""

    __slots__ = ("table", "next")

    def __init__(self) -> None:
        self.table: list[tree.TreeValue] = []
        self.next = 0


class BytecodeReader(EntryReader):
    """Sections first, then the IR."""

    def __init__(self, data: memoryview, name: str):
        super().__init__(data.cast("B"), name)
        self.format = 0
        self.producer = ""
        self.resources: dict[str, bytes | memoryview] = {}
        self._op_names: list[str] = []
        self._property_ranges: list[tuple[int, int]] = []
        self._known_properties: dict[tuple[str, int], dict[str, Any]] = {}
        self._depth = 0

    def read(self) -> tree.Operation:
        """The top module."""
        cursor = Cursor(self.data, name=self.name)
        if bytes(cursor.take(4)) != MAGIC:
            cursor.fail("this is no MLIR bytecode")
        self.format = cursor.varint()
        if self.format > NEWEST_FORMAT:
            cursor.fail(
                f"bytecode format {self.format} is newer than {NEWEST_FORMAT}, the newest that "
                "girih reads; export with an older StableHLO, or update girih"
            )
        self.producer = cursor.terminated()
        sections: dict[int, Cursor] = {}
        while not cursor.done:
            number, inner = cursor.section()
            if number in sections:
                cursor.fail(f"section {number} comes twice")
            sections[number] = inner
        missing = [n for n in (_STRINGS, _DIALECTS, _ENTRIES, _OFFSETS, _IR) if n not in sections]
        if missing:
            cursor.fail(f"section {missing[0]} is missing")
        self._read_strings(sections[_STRINGS])
        self._read_dialects(sections[_DIALECTS])
        if _PROPERTIES in sections:
            self._read_properties(sections[_PROPERTIES])
        if _RESOURCES in sections and _RESOURCE_OFFSETS in sections:
            self._read_resources(sections[_RESOURCES], sections[_RESOURCE_OFFSETS])
        self._read_entries(sections[_ENTRIES], sections[_OFFSETS])
        top = self._block(sections[_IR], _Values(), "")
        modules = [op for op in top.operations if op.name == "builtin.module"]
        if len(modules) != 1:
            cursor.fail("the file must hold one module")
        return modules[0]

    # Sections

    def _read_strings(self, cursor: Cursor) -> None:
        """Lengths stand in reversed order and count a closing zero."""
        lengths = [cursor.varint() for _ in range(cursor.count())]
        end = cursor.end
        found: list[str] = []
        for length in lengths:
            start = end - length
            if length < 1 or start < cursor.position:
                cursor.fail("a string's length does not fit")
            # Strings are bytes (kernels, hashes): what is no UTF-8 is kept as surrogates.
            found.append(bytes(self.data[start : end - 1]).decode("utf-8", "surrogateescape"))
            end = start
        if end != cursor.position:
            cursor.fail("the string lengths do not add up")
        found.reverse()
        self.strings = found

    def _read_dialects(self, cursor: Cursor) -> None:
        for _ in range(cursor.count()):
            value = cursor.varint()
            if self.format < 1:
                self.dialects.append(self.strings[value])
                continue
            self.dialects.append(self.strings[value >> 1])
            if value & 1 and cursor.section()[0] != _VERSIONS:
                cursor.fail("a dialect's version is malformed")
        if self.format >= 4:
            cursor.varint()  # how many op names follow
        while not cursor.done:
            dialect = self.dialects[cursor.varint()]
            for _ in range(cursor.count()):
                value = cursor.varint()
                name = self.strings[value >> 1 if self.format >= 5 else value]
                self._op_names.append(f"{dialect}.{name}" if name else dialect)

    def _read_properties(self, cursor: Cursor) -> None:
        for _ in range(cursor.count()):
            size = cursor.varint()
            start = cursor.position
            cursor.take(size)
            self._property_ranges.append((start, start + size))

    def _read_resources(self, data: Cursor, offsets: Cursor) -> None:
        def group() -> None:
            for _ in range(offsets.count()):
                key = self.strings[offsets.varint()]
                size = offsets.varint()
                kind = offsets.byte()
                start = data.position
                data.take(size)
                if kind == 0 and size:
                    blob = Cursor(self.data, start, start + size, self.name)
                    alignment = blob.varint()
                    length = blob.varint()
                    blob.align(alignment)
                    self.resources[key] = blob.take(length)
                self.resource_keys.append(key)

        for _ in range(offsets.count()):
            offsets.varint()
            group()
        self.resource_keys.clear()  # the handles of attributes count dialect resources only
        while not offsets.done:
            offsets.varint()
            group()

    def _read_entries(self, data: Cursor, offsets: Cursor) -> None:
        """The extent of every attribute and type entry."""
        counts = offsets.count(), offsets.count()
        position = data.position
        tables: list[list[Raw]] = []
        for count in counts:
            table: list[Raw] = []
            while len(table) < count:
                dialect = self.dialects[offsets.varint()]
                for _ in range(offsets.count()):
                    value = offsets.varint()
                    size = value >> 1
                    table.append(Raw(dialect, bool(value & 1), position, position + size))
                    position += size
            tables.append(table)
        if position > data.end:
            data.fail("attributes and types are longer than their section")
        self.set_entries(tables[0], tables[1])

    # IR

    def _skip_use_orders(self, cursor: Cursor, values: int) -> None:
        count = cursor.count() if values > 1 else 1
        for _ in range(count):
            if values > 1:
                cursor.varint()
            for _ in range(cursor.varint() >> 1):
                cursor.varint()

    def _define(self, values: _Values, kind: tree.Type) -> tree.TreeValue:
        if values.next >= len(values.table):
            raise UserError(f"{self.name}: a region defines more values than it announces")
        value = values.table[values.next]
        values.next += 1
        value.type = kind
        return value

    def _block(self, cursor: Cursor, values: _Values, parent: str) -> tree.Region:
        """One block; `parent` is the op that holds it."""
        header = cursor.varint()
        block = tree.Region()
        if header & 1:
            count = cursor.count()
            for _ in range(count):
                kind = cursor.varint()
                location = None
                if self.format < 4:
                    location = cursor.varint()
                else:
                    if kind & 1:
                        location = cursor.varint()
                    kind >>= 1
                value = self._define(values, self.type(kind))
                value.location = location
                block.arguments.append(value)
            if self.format >= 3 and cursor.byte():
                self._skip_use_orders(cursor, count)
        append = block.operations.append
        for _ in range(header >> 1):
            operation = self._operation(cursor, values, parent)
            if operation is not None:
                append(operation)
        return block

    def _operation(self, cursor: Cursor, values: _Values, parent: str) -> tree.Operation | None:
        """One op in StableHLO's form; None for a cast, which is folded away."""
        name = self._op_names[cursor.varint()]
        mask = cursor.byte()
        location = cursor.varint()
        stored: dict[str, Any] = {}
        if mask & 1:
            stored = dict(self.attribute(cursor.varint()))
        if mask & 64:
            stored.update(self._properties(name, cursor.varint()))
        types = [self.type(cursor.varint()) for _ in range(cursor.count())] if mask & 2 else []
        operands: list[tree.TreeValue] = []
        if mask & 4:
            table = values.table
            operands = [table[cursor.varint()] for _ in range(cursor.count())]
        if mask & 8:
            cursor.fail("ops with successor blocks are not StableHLO")
        if mask & 32 and self.format >= 3:
            self._skip_use_orders(cursor, len(types))
        if name == CAST and len(types) == len(operands):
            for operand in operands:
                values.table[values.next] = operand
                values.next += 1
            return None
        results = [self._define(values, kind) for kind in types] if parent else []
        operation = tree.Operation(name, operands, results, stored, location=location)
        if name.startswith("vhlo."):
            if name[len("vhlo.") :] not in ATTRIBUTES:
                self._unknown(name, cursor)
            stablehlo_form(operation, parent)
        if mask & 16:
            self._regions(cursor, values, operation)
        return operation

    def _properties(self, name: str, index: int) -> dict[str, Any]:
        """The properties of that number as `name` stores them; many ops share them."""
        known = self._known_properties.get((name, index))
        if known is None:
            known = self._known_properties[name, index] = self._read_property(name, index)
        return known

    def _read_property(self, name: str, index: int) -> dict[str, Any]:
        start, end = self._property_ranges[index]
        cursor = Cursor(self.data, start, end, self.name)
        if name.startswith("vhlo."):
            names = ATTRIBUTES.get(name[len("vhlo.") :])
        else:
            names = PROPERTY_NAMES.get(name)
        if names is None:
            self._unknown(name, cursor)
        found: dict[str, Any] = {}
        for key in names:
            if key[0] == "?":
                value = self.optional_attribute(cursor)
                if value is not None:
                    found[key[1:]] = value
            else:
                found[key] = self.attribute(cursor.varint())
        if not cursor.done:
            cursor.fail(f"'{name}' has more properties than are known")
        return found

    def _unknown(self, name: str, cursor: Cursor) -> NoReturn:
        cursor.fail(
            f"the operation '{name}' is unknown; the producer '{self.producer}' may be newer than "
            "this girih: export for an older StableHLO, or update girih"
        )

    def _regions(self, cursor: Cursor, values: _Values, operation: tree.Operation) -> None:
        header = cursor.varint()
        count, isolated = header >> 1, header & 1
        if count > cursor.end - cursor.position:
            cursor.fail(f"{count} regions are more than the data that is left")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            cursor.fail(f"regions nest deeper than {MAX_DEPTH} levels")
        if isolated:
            values = _Values()
            if self.format >= 2:
                number, cursor = cursor.section()
                if number != _IR:
                    cursor.fail("a nested region is malformed")
        table, outer_next = values.table, values.next
        for _ in range(count):
            blocks = cursor.count()
            if blocks > 1:
                cursor.fail("regions of several blocks are not StableHLO")
            if not blocks:
                if operation.name != "func.func":
                    operation.regions.append(tree.Region())
                continue
            base = len(table)
            table.extend([tree.TreeValue("none") for _ in range(cursor.count())])
            values.next = base
            operation.regions.append(self._block(cursor, values, operation.name))
            if values.next != len(table):
                cursor.fail("a region defines fewer values than it announces")
            del table[base:]
        values.next = outer_next
        self._depth -= 1
