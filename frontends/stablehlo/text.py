"""StableHLO text, generic or pretty, becomes an op tree: `read_text(text) -> tree.Document`."""

from __future__ import annotations

from typing import Any

from ...hlo.errors import UserError
from .. import tree
from . import text_forms
from .scanner import IDENTIFIER, LABEL, VALUE
from .text_attributes import AttributeReader
from .text_locations import LocationReader

ISOLATED = frozenset(("builtin.module", "func.func"))
"""Ops whose regions see no values from outside."""

SHORT_NAMES = {"return": "func.return", "call": "func.call", "module": "builtin.module"}


def read_text(text: str, name: str = "<text>") -> tree.Document:
    """The tree of a StableHLO program; UserError with line and snippet where it is malformed."""
    reader = TextReader(text, name)
    try:
        module = reader.file()
    except RecursionError:
        reader.fail("nests too deeply")
    except ValueError:
        reader.fail("a number has too many digits")
    return tree.Document(module, source=name, locate=reader.resolve_location)


class TextReader(LocationReader):
    """Operations, regions and values. One scope holds every visible value; `_undo` restores it."""

    def __init__(self, text: str, name: str = "<text>"):
        super().__init__(text, name)
        self._scope: dict[str, tree.TreeValue] = {}
        self._undo: list[tuple[str, tree.TreeValue | None]] = []

    # Values

    def use(self) -> tree.TreeValue:
        """A value that was defined before."""
        name = self.read(VALUE, "a value")
        value = self._scope.get(name)
        if value is None and name.endswith("#0"):
            value = self._scope.get(name[:-2])
        if value is None:
            self.fail(f"'{name}' is not defined here", self.position - len(name))
        return value

    def define(self, name: str, value: tree.TreeValue) -> tree.TreeValue:
        """Make `value` visible as `name` up to the end of the region."""
        self._undo.append((name, self._scope.get(name)))
        self._scope[name] = value
        return value

    def typed_argument(self) -> tree.TreeValue:
        """`%name: type loc(...)`, defined."""
        name = self.read(VALUE, "an argument")
        self.expect(":")
        value = tree.TreeValue(self.type(), name)
        value.location = self.location_handle()
        return self.define(name, value)

    def check_types(self, values: list[tree.TreeValue], types: list[tree.Type], start: int) -> None:
        """The written operand types must be the operands' own."""
        if len(values) != len(types):
            self.fail(f"{len(values)} operands but {len(types)} operand types", start)
        for value, kind in zip(values, types, strict=True):
            if value.type is not kind and value.type != kind:
                found, wanted = tree.spell(value.type), tree.spell(kind)
                self.fail(f"{value.name or 'an operand'} is {found}, used as {wanted}", start)

    # Structure

    def file(self) -> tree.Operation:
        """Everything in the file; loose functions are put into a module."""
        operations: list[tree.Operation] = []
        while True:
            start = self.skip()
            if start >= len(self.text):
                break
            if self.text.startswith("{-#", start):
                end = self.text.find("#-}", start)
                self.position = end + 3 if end >= 0 else len(self.text)
            elif self.text[start] in "#!":
                self._alias_definition(self.text[start])
            else:
                operations.append(self.operation())
        if len(operations) == 1 and operations[0].name == "builtin.module":
            return operations[0]
        if not operations:
            self.fail("the file holds no program")
        return tree.Operation("builtin.module", regions=[tree.Region([], operations)])

    def _alias_definition(self, mark: str) -> None:
        """`#name = attribute` or `!name = type`: noted, and stepped over."""
        self.position += 1
        self.parts = 0
        name = mark + self.identifier()
        self.expect("=")
        self.aliases.setdefault(name, self.position)
        if self.location_handle() is None:
            self.alias(name)
            if mark == "!":
                self.type()
            else:
                self.attribute()

    def region(
        self, arguments: list[tuple[str, tree.TreeValue]] | None = None, isolated: bool = False
    ) -> tree.Region:
        """`{ ... }` of one block; `arguments` are named by what stands before the region."""
        self.enter()
        self.expect("{")
        outer, mark = self._scope, len(self._undo)
        if isolated:
            self._scope = {}
        region = tree.Region()
        for name, value in arguments or ():
            region.arguments.append(self.define(name, value))
        blocks = 0
        operations = region.operations
        while not self.accept("}"):
            if self.peek() == "^":
                self.read(LABEL, "a block label")
                blocks += 1
                if blocks > 1 or operations:
                    self.fail("regions of several blocks are not StableHLO")
                if self.at("("):
                    region.arguments = self.sequence("(", ")", self.typed_argument)
                self.expect(":")
                continue
            operations.append(self.operation())
        if isolated:
            self._scope = outer
            del self._undo[mark:]
        else:
            self._restore(mark)
        self.leave()
        return region

    def _restore(self, mark: int) -> None:
        """Forget what was defined since the undo list had `mark` entries."""
        scope, undo = self._scope, self._undo
        while len(undo) > mark:
            name, before = undo.pop()
            if before is None:
                del scope[name]
            else:
                scope[name] = before

    def operation(self) -> tree.Operation:
        """One op with the values that it defines."""
        self.parts = 0
        start = self.skip()
        line = self.line_of(start)
        character = self.text[start : start + 1]
        names: list[str] = []
        if character == "%":
            names = self._result_names()
            character = self.peek()
        operation = self._generic() if character == '"' else self._pretty()
        location = self.location_handle()
        if location is not None:
            operation.location = location
        elif operation.location is None:
            operation.location = tree.TextLine(line)
        results = operation.results
        if names:
            if len(names) != len(results):
                self.fail(
                    f"{len(names)} names for {len(results)} results of {operation.name}", start
                )
            for name, value in zip(names, results, strict=True):
                value.name = name
                self.define(name, value)
                if name.endswith("#0"):
                    self.define(name[:-2], value)  # `%a` is short for `%a#0`
        return operation

    def _result_names(self) -> list[str]:
        """`%a, %b:2 =`"""
        names: list[str] = []
        while True:
            name = self.read(VALUE, "a value name")
            if self.accept(":"):
                count = self.integer()
                if not 0 < count <= 65536:
                    self.fail(f"an op cannot have {count} results")
                # `%b:1` is used as `%b` or `%b#0`.
                names += [f"{name}#{index}" for index in range(count)] if count > 1 else [name]
            else:
                names.append(name)
            if self.accept("="):
                return names
            self.expect(",")

    def _generic(self) -> tree.Operation:
        """`"name"(%a, %b) <{properties}> ({regions}) {attributes} : (types) -> types`"""
        operation = tree.Operation(self.string())
        start = self.position
        operation.operands = self.sequence("(", ")", self.use)
        if self.at("["):
            self.fail("ops with successor blocks are not StableHLO")
        if self.accept("<"):
            operation.attributes.update(self.dictionary())
            self.expect(">")
        if self.at("("):
            isolated = operation.name in ISOLATED
            operation.regions = self.sequence("(", ")", lambda: self.region(isolated=isolated))
        if self.at("{"):
            operation.attributes.update(self.dictionary())
        self.signature(operation, start)
        return operation

    def signature(self, operation: tree.Operation, start: int) -> None:
        """`: (operand types) -> result types`; gives the op its results."""
        self.expect(":")
        self.check_types(operation.operands, self.sequence("(", ")", self.type), start)
        self.expect("->")
        operation.results = [tree.TreeValue(kind) for kind in self.types()]

    def _pretty(self) -> tree.Operation:
        start = self.skip()
        name = self.read(IDENTIFIER, "an operation")
        name = SHORT_NAMES.get(name, name)
        if "." not in name:
            self.fail(f"unknown operation '{name}'", start)
        form = text_forms.FORMS.get(name, text_forms.common_form)
        return form(self, name)

    def attributes_into(self, operation: tree.Operation) -> None:
        """`{...}` if it stands here."""
        if self.at("{"):
            operation.attributes.update(self.dictionary())


def parse_attribute(text: str) -> Any:
    """One attribute from its own text (attributes that bytecode keeps as assembly)."""
    reader = AttributeReader(text, "<attribute>")
    return reader.attribute()


def parse_type(text: str) -> tree.Type:
    """One type from its own text; UserError where it is none."""
    reader = AttributeReader(text, "<type>")
    kind = reader.type()
    if reader.skip() != len(text):
        raise UserError(f"'{text}' is no type")
    return kind
