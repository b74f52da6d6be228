"""HLO text, in all the forms in which XLA prints it, becomes a `XlaProgram`.

Whole modules, with or without a header; names with or without "%"; operands with or without
shapes, or instructions themselves; computations with or without their signatures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...hlo.errors import UnsupportedError, UserError
from .. import tree
from . import literals
from .attributes import AttributeReader
from .inference import infer
from .locations import Frames
from .program import Computation, Instruction, Shape, XlaProgram, measure
from .scanner import SKIP

_START = re.compile(SKIP + r"(?:HloModule\b|ENTRY\b)")
_ROOT = re.compile(SKIP + r"ROOT\b")
_ENTRY = re.compile(SKIP + r"ENTRY\b")
_OPERAND = re.compile(SKIP + r"%?([A-Za-z_][\w.\-]*)" + SKIP + r"(?=[,)])")
_OPCODE = re.compile(SKIP + r"([a-z][\w\-]*)" + SKIP + r"(?=\()")
# The beginning of nearly every line: marked root, name, shape, opcode, operands without shapes.
_LINE = re.compile(
    SKIP
    + r"(ROOT\s++)?+%?([A-Za-z_][\w.\-]*+)\s*+=\s*+([a-z][a-z0-9]*+\[[\d,]*+\](?:\{[\d,]*+\})?+)"
    r"\s++([a-z][\w\-]*+)\(((?:%?[A-Za-z_][\w.\-]*+,?\s*+)*+)\)"
)
_TABLE = re.compile(SKIP + r"(FileNames|FunctionNames|FileLocations|StackFrames)\s+(?=\d|\n|\r)")
_ROW = re.compile(SKIP + r"(\d{1,9})\s*(?=[\"{])")
_LITERAL_MARK = re.compile(r"[(){},]")

_REMEDY = (
    "print the module with large constants: --xla_dump_large_constants, "
    "HloPrintOptions.print_large_constants"
)
_STARTS = ("async", "all-gather", "all-reduce", "collective-permute", "copy")
_DONES = (*_STARTS, "send", "recv")
"""Operations whose "-start" and "-done" are opcodes; those of others mean async-start and -done."""


def is_hlo_text(text: str) -> bool:
    """Whether the text begins as HLO text does."""
    return _START.match(text) is not None


def read_text(text: str, source: str) -> XlaProgram:
    """The program of HLO text; UserError with line and snippet where it is malformed."""
    reader = TextReader(text, source)
    try:
        return reader.program()
    except RecursionError:
        reader.fail("nests too deeply")


class TextReader(AttributeReader):
    """Computations and instructions; one scope per computation."""

    def __init__(self, text: str, name: str):
        super().__init__(text, name)
        self._scope: dict[str, Instruction] = {}
        self._body: list[Instruction] = []
        self._metadata: list[tuple[int, int]] = []
        self._tables: dict[str, list[Any]] = {}
        self._nested = 0

    def program(self) -> XlaProgram:
        title = ""
        facts: dict[str, Any] = {}
        if self.accept_word("HloModule"):
            title = self.name_or_string()
            self.accept(":")
            facts = self.header()
        while (table := _TABLE.match(self.text, self.position)) is not None:
            self.position = table.end()
            self._tables[table[1]] = self._rows(table[1])
        entry: Computation | None = None
        found: list[Computation] = []
        while self.skip() < len(self.text):
            computation, is_entry = self._computation()
            found.append(computation)
            if is_entry:
                if entry is not None:
                    self.fail("a module has one ENTRY computation only")
                entry = computation
        if not found:
            self.fail("the module has no computation")
        program = XlaProgram(title, self.source, entry or found[-1], found)
        # Computations that asynchronous operations wrap stand before those that they are in.
        program.computations = list(self.computations.values()) + [
            computation for computation in found if computation.name not in self.computations
        ]
        program.aliases = facts.pop("input_output_alias", [])
        program.donors = facts.pop("buffer_donor", [])
        program.attributes = facts
        program.notes += [f"{key} of the module was ignored" for key in self.ignored]
        program.locate = self._frames().location
        return program

    # Tables of stack frames

    def _rows(self, table: str) -> list[Any]:
        """`1 "name"` or `1 {key=1 key=2}`, counted from 1."""
        rows: list[Any] = []
        while (match := _ROW.match(self.text, self.position)) is not None:
            self.position = match.end()
            if int(match[1]) != len(rows) + 1:
                self.fail(f"the rows of {table} are not numbered 1, 2, ...", match.start(1))
            rows.append(self.string() if self.at('"') else self.integer_fields())
        return rows

    def _frames(self) -> Frames:
        places = [
            (row.get("file_name_id", 0), row.get("function_name_id", 0), row.get("line", 0),
             row.get("column", 0))
            for row in self._tables.get("FileLocations", ())
            if isinstance(row, dict)
        ]  # fmt: skip
        frames = [
            (row.get("file_location_id", 0), row.get("parent_frame_id", 0))
            for row in self._tables.get("StackFrames", ())
            if isinstance(row, dict)
        ]
        files = [str(row) for row in self._tables.get("FileNames", ())]
        functions = [str(row) for row in self._tables.get("FunctionNames", ())]

        def metadata(handle: int) -> Mapping[str, Any]:
            start, end = self._metadata[handle]
            try:
                return TextReader(self.text[start:end], self.source).metadata_fields()
            except UserError:
                return {}

        return Frames(files, functions, places, frames, metadata)

    # Computations and instructions

    def _computation(self) -> tuple[Computation, bool]:
        match = _ENTRY.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        start = self.skip()
        name = self.identifier()
        if name in self.computations:
            self.fail(f"a second computation is named {name}", start)
        if self.at("("):
            self.brackets("(")
            self.expect("->")
            self.shape()
        computation = self._instructions(name, start)
        self.computation_attributes()
        return computation, match is not None

    def inner_computation(self) -> Computation:
        """`{ ... }` in place of a computation's name."""
        start = self.skip()
        outer = self._scope, self._body, self._nested
        self.enter()
        name = f"{len(self.computations)}.inner"
        computation = self._instructions(name, start)
        self.leave()
        self._scope, self._body, self._nested = outer
        return computation

    def _instructions(self, name: str, start: int) -> Computation:
        """`{ instructions }`"""
        self.expect("{")
        self._scope, self._body, self._nested = {}, [], 0
        root: Instruction | None = None
        while not self.accept("}"):
            quick = self._line()
            if quick is not None:
                instruction, is_root = quick
                if is_root:
                    if root is not None:
                        self.fail("a computation has one ROOT only")
                    root = instruction
                continue
            marked = _ROOT.match(self.text, self.position)
            if marked is not None:
                self.position = marked.end()
                if root is not None:
                    self.fail("a computation has one ROOT only", marked.start())
            instruction = self._instruction()
            if marked is not None:
                root = instruction
        if not self._body:
            self.fail(f"{name} has no instructions", start)
        computation = Computation(name, self._body, root or self._body[-1])
        self.measured(computation, start)
        self.computations[name] = computation
        return computation

    def measured(self, computation: Computation, start: int) -> None:
        if wrong := measure(computation):
            self.fail(wrong, start)

    def _line(self) -> tuple[Instruction, bool] | None:
        """An instruction in the common form, and whether it is the root; None for other forms."""
        match = _LINE.match(self.text, self.position)
        if match is None:
            return None
        root, name, kind, opcode, listed = match.groups()
        shape = self.known_shape(kind)
        if shape is None or opcode == "constant" or name in self._scope:
            return None
        instruction = Instruction(name, opcode, shape)
        scope = self._scope
        for operand in listed.split(",") if listed else ():
            value = scope.get(operand.strip().removeprefix("%"))
            if value is None:
                return None
            instruction.operands.append(value)
        self.position = match.end()
        self._finish(instruction, match.start(2))
        scope[name] = instruction
        return instruction, root is not None

    def _instruction(self) -> Instruction:
        """`name = shape opcode(operands), attributes`"""
        start = self.skip()
        name = self.identifier()
        if name in self._scope:
            self.fail(f"a second instruction is named {name}", start)
        self.expect("=")
        instruction = self._right_side(name, start, True)
        self._scope[name] = instruction
        return instruction

    def _right_side(self, name: str, start: int, outer: bool) -> Instruction:
        """What stands behind `=`, or an instruction among operands, which has no attributes."""
        shape = self.shape() if self.at_shape() else None
        opcode = self.read(_OPCODE, "an operation")
        instruction = Instruction(name, opcode, shape or Shape("tuple"), None)
        self.expect("(")
        text = ""
        if opcode == "parameter":
            instruction.number = self.integer()
            self.expect(")")
        elif opcode == "constant":
            text = self._literal_text()
        elif not self.accept(")"):
            instruction.operands.append(self._operand())
            while self.accept(","):
                instruction.operands.append(self._operand())
            self.expect(")")
        self._finish(instruction, start, outer, shape is None)
        if opcode == "constant":
            self._set_literal(instruction, text, start)
        return instruction

    def _finish(
        self, instruction: Instruction, start: int, outer: bool = True, shapeless: bool = False
    ) -> None:
        """What follows the operands; the instruction becomes part of the computation."""
        if outer:
            self.attributes(instruction)
        instruction.location = self._location(instruction, start)
        if shapeless:
            instruction.shape = self._inferred(instruction, start)
        if instruction.opcode == "topk":
            instruction.attributes.setdefault("largest", True)
        elif instruction.opcode.endswith(("-start", "-update", "-done")):
            self._asynchronous(instruction, start)
        self._body.append(instruction)

    def _location(self, instruction: Instruction, start: int) -> Any:
        span = instruction.attributes.pop("metadata", None)
        if span is None:
            return tree.TextLine(self.line_of(start))
        self._metadata.append(span)
        return len(self._metadata) - 1

    def _inferred(self, instruction: Instruction, start: int) -> Shape:
        shape = infer(instruction)
        if shape is None:
            self.fail(f"the shape of {instruction.name or instruction.opcode} is missing", start)
        return shape

    def _operand(self) -> Instruction:
        """`%x`, `f32[4] %x`, or an instruction"""
        match = _OPERAND.match(self.text, self.position)
        shape: Shape | None = None
        before = self.position
        if match is None and self.at_shape():
            shape = self.shape()
            match = _OPERAND.match(self.text, self.position)
        if match is None:
            self.position = before
            self.enter()
            self._nested += 1
            nested = self._right_side(f"{self._nested}.nested", self.skip(), False)
            self.leave()
            return nested
        operand = self._scope.get(match[1])
        if operand is None:
            self.fail(f"'{match[1]}' is not defined here", match.start(1))
        if shape is not None and not shape.same(operand.shape):
            self.fail(f"'{match[1]}' is {operand.shape}, used as {shape}", match.start(1))
        self.position = match.end()
        return operand

    def _asynchronous(self, instruction: Instruction, start: int) -> None:
        """`custom-call-start` and the like are an async-start of a computation with that op."""
        wrapped, _, phase = instruction.opcode.rpartition("-")
        if wrapped in (_STARTS if phase != "done" else _DONES):
            return
        instruction.opcode = f"async-{phase}"
        if phase != "start":
            return
        if not instruction.shape.is_tuple or len(instruction.shape.members) < 2:
            self.fail("an asynchronous operation has a tuple of operands and results", start)
        root = Instruction("async_op", wrapped, instruction.shape.members[1], instruction.location)
        for number, operand in enumerate(instruction.operands):
            parameter = Instruction(f"async_param.{number}", "parameter", operand.shape)
            parameter.number = number
            root.operands.append(parameter)
        root.attributes, instruction.attributes = instruction.attributes, {}
        root.calls = instruction.calls
        name = f"async_computation.{len(self.computations)}.{instruction.name}"
        computation = Computation(name, [*root.operands, root], root)
        self.measured(computation, start)
        self.computations[name] = computation
        instruction.calls = [computation]

    # Literals

    def _literal_text(self) -> str:
        """Up to the parenthesis that closes `constant(`."""
        start, depth = self.position, 1
        for match in re.compile(r"[()]").finditer(self.text, start):
            depth += 1 if match[0] == "(" else -1
            if not depth:
                self.position = match.end()
                return self.text[start : match.start()]
        self.fail("a constant is not closed", start)

    def _set_literal(self, instruction: Instruction, text: str, start: int) -> None:
        shape, facts = instruction.shape, instruction.attributes
        try:
            if shape.is_tuple:
                facts["literal"], end = _tuple_literal(shape, text, 0)
                if text[end:].strip():
                    raise ValueError("a tuple constant has more members than its shape")
            else:
                facts["literal"] = literals.of_text(shape, text)
        except UnsupportedError as error:
            facts["refused"] = str(error)
            facts["remedy"] = _REMEDY
        except (ValueError, OverflowError) as error:
            self.fail(str(error), start)


def _tuple_literal(shape: Shape, text: str, position: int) -> tuple[Any, int]:
    """The members of `( {1, 2}, 3 )` from `position` on, and where they end."""
    position = _past(text, position, "(")
    members: list[Any] = []
    for number, member in enumerate(shape.members):
        if number:
            position = _past(text, position, ",")
        if member.is_tuple:
            value, position = _tuple_literal(member, text, position)
        else:
            end = _literal_end(text, position)
            value = literals.of_text(member, text[position:end])
            position = end
        members.append(value)
    return tuple(members), _past(text, position, ")")


def _past(text: str, position: int, token: str) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    if not text.startswith(token, position):
        raise ValueError(f"a tuple constant needs '{token}'")
    return position + 1


def _literal_end(text: str, position: int) -> int:
    """Where the array's literal ends: at a comma or a parenthesis that is not inside of it."""
    depth = 0
    for match in _LITERAL_MARK.finditer(text, position):
        if match[0] in "({":
            depth += 1
        elif depth == 0:
            return match.start()
        elif match[0] in ")}":
            depth -= 1
    raise ValueError("a tuple constant is not closed")
