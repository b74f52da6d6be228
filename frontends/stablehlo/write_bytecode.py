"""An op tree as a portable artifact of a chosen StableHLO: `artifact(document, version) -> bytes`.

Inverse of `bytecode`: StableHLO's ops become the forms of VHLO that the version has, and the
container is MLIR's bytecode in the format that the version wrote.
"""

from __future__ import annotations

from typing import Any

from .. import tree
from .bytecode import CAST, MAGIC, PROPERTY_NAMES
from .downgrade import Requirements, base_of, expanded
from .encoder import (
    FLAGGED,
    UNFLAGGED,
    Chunk,
    Nested,
    Part,
    Reference,
    Table,
    order,
    resolve,
    section,
    varint,
)
from .entry_writer import EntryWriter
from .normal import integers
from .versions import Version, bytecode_format, form_at, version_text

_STRINGS, _DIALECTS, _ENTRIES, _OFFSETS, _IR = range(5)
_PROPERTIES = 8
_ISOLATED = ("builtin.module", "vhlo.func_v1")
_ATTRIBUTES, _RESULTS, _OPERANDS, _REGIONS, _HAS_PROPERTIES = 1, 2, 4, 16, 64


def artifact(
    document: tree.Document, version: Version, requirements: Requirements | None = None
) -> bytes:
    """The program's bytes; ExportBlockers lists everything that the version cannot say."""
    requirements = requirements or Requirements(document)
    requirements.check(version)
    return b"".join(_BytecodeWriter(document, version, requirements).chunks())


class _ValueNumbers:
    """Numbers of the values that an isolated region and what it holds define."""

    __slots__ = ("numbers", "size")

    def __init__(self) -> None:
        self.numbers: dict[tree.TreeValue, int] = {}
        self.size = 0  # of all open regions: a nested region numbers on from here


class _BytecodeWriter:
    def __init__(
        self, document: tree.Document, version: Version, requirements: Requirements
    ) -> None:
        self.document, self.version, self.requirements = document, version, requirements
        self.format = bytecode_format(version)
        self.entries = EntryWriter(document)
        self._op_names = Table()
        self._properties = Table()

    def chunks(self) -> list[Chunk]:
        """The whole file in pieces."""
        body: list[Part] = [varint(1 << 1)]
        self._operation(self.document.module, body, _ValueNumbers(), "", [0])
        entries = self.entries.entries
        names: dict[str, list[int]] = {}
        for number, (dialect, _) in enumerate(self._op_names.items):
            names.setdefault(dialect, []).append(number)
        groups = entries[0].grouped(), entries[1].grouped()
        orders = order(groups[0]), order(groups[1]), order(names)
        dialects = list(dict.fromkeys([*names, *groups[0], *groups[1], "builtin", "vhlo"]))

        offsets: list[Chunk] = [varint(len(table.bodies)) for table in entries]
        data: list[Chunk] = []
        for table, members in zip(entries, groups, strict=True):
            for dialect, numbers in members.items():
                offsets += [varint(dialects.index(dialect)), varint(len(numbers))]
                for number in numbers:
                    _, parts, encoded = table.bodies[number]
                    found = resolve(parts, orders)
                    offsets.append(varint(sum(map(len, found)) << 1 | encoded))
                    data += found
        properties: list[Chunk] = [varint(len(self._properties.items))]
        for parts in self._properties.items:
            encoded_parts = b"".join(resolve(parts, orders))
            properties += [varint(len(encoded_parts)), encoded_parts]
        code = [b"".join(resolve(body, orders))]
        head = self._dialects(dialects, names)
        producer = f"StableHLO_v{version_text(self.version)}".encode() + b"\0"
        return [
            MAGIC + varint(self.format) + producer,
            *section(_DIALECTS, head),
            *section(_OFFSETS, [b"".join(offsets)]),
            *section(_ENTRIES, data),
            *section(_IR, code),
            *section(_STRINGS, self._strings()),
            *(section(_PROPERTIES, [b"".join(properties)]) if self.format >= 5 else []),
        ]

    def _dialects(self, dialects: list[str], names: dict[str, list[int]]) -> list[Chunk]:
        shift = 1 if self.format >= 1 else 0

        def string(text: str) -> int:
            return self.entries.strings.number(text.encode())

        chunks: list[Chunk] = [varint(len(dialects))]
        chunks += [varint(string(dialect) << shift) for dialect in dialects]
        known = list(self._op_names.items)
        if self.format >= 4:
            chunks.append(varint(len(known)))
        for dialect, numbers in names.items():
            chunks += [varint(dialects.index(dialect)), varint(len(numbers))]
            for number in numbers:
                place = string(known[number][1])
                chunks.append(varint(place << 1 | 1 if self.format >= 5 else place))
        return [b"".join(chunks)]

    def _strings(self) -> list[Chunk]:
        found: list[bytes] = list(self.entries.strings.items)
        lengths = b"".join(varint(len(text) + 1) for text in reversed(found))
        return [varint(len(found)) + lengths, b"".join(text + b"\0" for text in found)]

    # IR

    def _operation(
        self,
        operation: tree.Operation,
        out: list[Part],
        scope: _ValueNumbers,
        parent: str,
        next_: list[int],
    ) -> None:
        """Append one op; `next_` holds the number of the next value of its block."""
        name, properties, attributes = self._form(operation, parent)
        dialect, _, short = name.partition(".")
        out.append(Reference(2, self._op_names.number((dialect, short))))
        mask = _HAS_PROPERTIES if properties else 0
        mask |= _ATTRIBUTES if attributes else 0
        mask |= _RESULTS if operation.results else 0
        mask |= _OPERANDS if operation.operands else 0
        mask |= _REGIONS if operation.regions or name in _ISOLATED else 0
        out += [bytes((mask,)), self.entries.location(operation.location)]
        if attributes:
            out.append(self.entries.dictionary(attributes))
        if properties:
            out.append(varint(self._properties.number(tuple(properties))))
        if operation.results:
            out.append(varint(len(operation.results)))
            for value in operation.results:
                out.append(self.entries.type(value.type))
                scope.numbers[value] = next_[0]
                next_[0] += 1
        if operation.operands:
            numbers = [varint(scope.numbers[value]) for value in operation.operands]
            out.append(varint(len(numbers)) + b"".join(numbers))
        if mask & _REGIONS:
            self._regions(operation, name, out, scope)

    def _regions(
        self, operation: tree.Operation, name: str, out: list[Part], scope: _ValueNumbers
    ) -> None:
        isolated = name in _ISOLATED
        # A function without a body has a region without a block.
        regions: list[tree.Region | None] = [*operation.regions] or [None]
        out.append(varint(len(regions) << 1 | isolated))
        body = out
        if isolated:
            scope, body = _ValueNumbers(), []
        for region in regions:
            if region is None:
                body.append(varint(0))
                continue
            self._region(region, body, scope, operation.name)
        if isolated and self.format >= 2:
            out.append(Nested(_IR, body))
        elif isolated:
            out += body

    def _region(
        self, region: tree.Region, out: list[Part], scope: _ValueNumbers, parent: str
    ) -> None:
        operations = [
            part for operation in region.operations for part in expanded(operation, self.version)
        ]
        count = len(region.arguments) + sum(len(item.results) for item in operations)
        if not operations and not region.arguments and parent != "builtin.module":
            out.append(varint(0))
            return
        out.append(varint(1) + varint(count))
        next_ = [scope.size]
        scope.size += count
        out.append(varint(len(operations) << 1 | bool(region.arguments)))
        if region.arguments:
            out.append(varint(len(region.arguments)))
            for value in region.arguments:
                kind, place = self.entries.type(value.type), self.entries.location(value.location)
                scope.numbers[value] = next_[0]
                next_[0] += 1
                if self.format < 4:
                    out += [kind, place]
                elif place == self.entries.unknown:
                    out.append(kind._replace(form=UNFLAGGED))
                else:
                    out += [kind._replace(form=FLAGGED), place]
            if self.format >= 3:
                out.append(b"\0")  # no order of uses
        for item in operations:
            self._operation(item, out, scope, parent, next_)
        scope.size -= count

    def _form(
        self, operation: tree.Operation, parent: str
    ) -> tuple[str, list[Part], dict[str, Reference]]:
        """The op's name, its properties in stored order, and its other attributes."""
        if operation.name == CAST:
            return CAST, [], {}
        if operation.name in PROPERTY_NAMES:
            return self._other(operation)
        base = base_of(operation)
        form = form_at(base, self.version)
        assert form is not None, base  # `Requirements.blockers` has seen to it
        facts = self.requirements.facts(operation)
        known = {key: self.entries.typed(key, facts.known[key]) for key in form.attributes
                 if key in facts.known}  # fmt: skip
        if form.name == "dynamic_conv_v1":
            known["padding"] = self.entries.typed("padding", self._dead_padding(facts.known))
        extra = {key: self.entries.value(value) for key, value in facts.extra.items()}
        if self.format < 5:
            return f"vhlo.{form.name}", [], {**extra, **known}
        return f"vhlo.{form.name}", [known[key] for key in form.attributes], extra

    def _dead_padding(self, known: dict[str, Any]) -> Any:
        """What the oldest form of dynamic_conv stores beside its operand."""
        import numpy as np

        return integers(np.zeros((len(known["input_spatial_dimensions"]), 2), np.int64))

    def _other(self, operation: tree.Operation) -> tuple[str, list[Part], dict[str, Reference]]:
        """The module itself, and Shardy's meshes."""
        attributes = {key: self.entries.builtin(v) for key, v in operation.attributes.items()}
        names = PROPERTY_NAMES[operation.name]
        if self.format < 5:
            return operation.name, [], attributes
        properties: list[Part] = []
        for name in names:
            value = attributes.pop(name.lstrip("?"), None)
            if name[0] != "?":
                assert value is not None
                properties.append(value)
            else:
                properties.append(varint(0) if value is None else value._replace(form=FLAGGED))
        return operation.name, properties, attributes
