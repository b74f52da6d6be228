"""PTX text -> `Module`: functions, variables, instructions with parsed operands.

Every .entry and .func keeps its registers numbered from 0; names of nested scopes are resolved
here. Unknown text is a `UserError` that names the line.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right

from ....hlo.errors import UserError
from .operands import Scope, integer, number, split
from .syntax import (
    SIZES,
    Function,
    Instruction,
    Module,
    Register,
    Symbol,
    Variable,
)

_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.S)
_LABEL = re.compile(r"\s*([A-Za-z$_%][\w$]*)\s*:(?!:)")
_INSTRUCTION = re.compile(r"\s*(?:@\s*(!?)\s*([%\w$]+)\s+)?([a-z][\w.:]*)\s*([^;]*);")
_SPACE = re.compile(r"\s*")
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)[^\n]*")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"[^\n]*')
_STATEMENT = re.compile(r"\s*([^;{]*(?:\{[^}]*\})?[^;{]*);", re.S)
_REGISTERS = re.compile(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)", re.S)
_FAMILY = re.compile(r"(.*?)<\s*(\d+)\s*>$")
_DIRECTIVE = re.compile(r"\s*\.(\w+)\s*([^.{;(]*)")
_VARIABLE = re.compile(
    r"(?P<space>global|const|shared|local|param)\b"
    r"(?P<mods>(?:\s*\.(?!align\b)[a-z]\w*(?:\s*\([^)]*\))?)*?)"
    r"(?:\s*\.align\s+(?P<align>\d+))?(?:\s*\.(?P<vector>v[24]))?"
    r"\s*\.(?P<type>[busf]\d+|f16x2|texref|samplerref|surfref)\s*(?P<rest>.*)$",
    re.S,
)
_PARAMETER = re.compile(
    r"\s*\.(?:param|reg)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)"
    r"(?:\s+\.ptr(?:\s+\.(?:global|const|local|shared|generic))?"
    r"(?:\s+\.align\s+\d+)?)?\s+(?:\.align\s+(\d+)\s+)?([%\w$]+)\s*(?:\[\s*(\d+)\s*\])?\s*$"
)


class _Reader:
    def __init__(self, text: str) -> None:
        def blank(match: re.Match[str]) -> str:
            found = match.group()
            if found[0] == '"':
                return found
            return "\n" * found.count("\n") or " "

        self.original = text
        self.text = _COMMENT.sub(blank, text)
        self.at = 0
        self.starts = [0]
        find, position = self.text.find, 0
        while (position := find("\n", position) + 1) > 0:
            self.starts.append(position)

    def line(self, position: int | None = None) -> int:
        return bisect_right(self.starts, self.at if position is None else position)

    def error(self, message: str, position: int | None = None) -> UserError:
        line = self.line(position)
        lines = self.original.splitlines()
        shown = lines[line - 1].strip() if line <= len(lines) else ""
        return UserError(f"PTX line {line}: {message}\n    {shown}")

    def skip(self) -> str:
        """The next character that is no white space; "" at the end."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]


def parse_text(text: str) -> Module:
    """The module that `text` spells. Raises `UserError` with the line of what is not PTX."""
    reader = _Reader(text)
    module = Module(text)
    while reader.skip():
        try:
            _top_level(reader, module)
        except (ValueError, LookupError, OverflowError) as error:
            raise reader.error(str(error)) from error
    if not module.version:
        raise UserError("the PTX text has no .version directive")
    return module


def _top_level(reader: _Reader, module: Module) -> None:
    start = reader.at
    match = _FILE.match(reader.text, start)
    if match:
        module.files[int(match.group(1))] = match.group(2)
        reader.at = match.end()
        return
    match = re.compile(r"\.(version|target|address_size)\s+([^\n]*)").match(reader.text, start)
    if match:
        value = match.group(2).strip()
        if match.group(1) == "version":
            module.version = value
        elif match.group(1) == "target":
            module.target = value.split(",")[0].strip()
        elif value != "64":
            raise reader.error(f"addresses of {value} bits are not simulated, only 64")
        reader.at = match.end()
        return
    match = re.compile(r"\.(section|pragma|alias|noreturn)\b").match(reader.text, start)
    if match:
        mark = "}" if match.group(1) == "section" else ";"
        end = reader.text.find(mark, start)
        if end < 0:
            raise reader.error(f".{match.group(1)} without end")
        reader.at = end + 1
        return
    if reader.text[start] == ";":
        reader.at += 1
        return
    match = re.compile(r"((?:\.(?:visible|extern|weak|common)\s+)*)\.(entry|func)\b").match(
        reader.text, start
    )
    if match:
        reader.at = match.end()
        _function(reader, module, match.group(2) == "entry")
        return
    match = re.compile(r"((?:\.(?:visible|extern|weak|common)\s+)*)\.").match(reader.text, start)
    statement = _STATEMENT.match(reader.text, match.end()) if match else None
    if not match or not statement:
        raise reader.error("unknown text")
    variable = _variable(reader, statement.group(1), "extern" in match.group(1))
    module.variables[variable.name] = variable
    reader.at = statement.end()


def _variable(reader: _Reader, text: str, external: bool) -> Variable:
    match = _VARIABLE.match(text.strip())
    if not match or "texref" in text or "samplerref" in text or "surfref" in text:
        raise reader.error("this declaration is not understood")
    declared, _, initial = match.group("rest").partition("=")
    found = re.match(r"\s*([%\w$@]+)\s*((?:\[\s*\d*\s*\]\s*)*)$", declared)
    if not found:
        raise reader.error("this declaration is not understood")
    element = SIZES[match.group("type")] * int((match.group("vector") or "v1")[1:])
    count = 1
    for extent in re.findall(r"\[\s*(\d*)\s*\]", found.group(2)):
        count *= int(extent) if extent else 0
    align = int(match.group("align") or element)
    data, words = None, []
    if initial:
        scalar = SIZES[match.group("type")]
        values = [v for v in re.split(r"[{},\s]+", initial) if v]
        if "mask" in initial or "generic" in initial or any(_is_symbol(v) for v in values):
            data, words = _relocated(initial, scalar, reader)
        elif match.group("type").startswith("f"):
            data = b"".join(_float_bytes(v, scalar) for v in values)
        else:
            data = b"".join(
                (integer(v) % (1 << 8 * scalar)).to_bytes(scalar, "little") for v in values
            )
        count = count or len(data) // element
    if align.bit_count() != 1 or not len(data or b"") <= element * count < 1 << 32:
        raise reader.error("its alignment is none, or it has more numbers than elements")
    return Variable(
        match.group("space"), found.group(1), element * count, align, data, tuple(words), external
    )


def _float_bytes(text: str, size: int) -> bytes:
    constant = number(text)
    if constant.float_bits == 8 * size or not constant.float_bits:
        return (constant.value % (1 << 8 * size)).to_bytes(size, "little")
    bits, form = constant.float_bits, "<d" if constant.float_bits == 64 else "<f"
    (value,) = struct.unpack(form, constant.value.to_bytes(bits // 8, "little"))
    return struct.pack("<f" if size == 4 else "<d", value)


def _is_symbol(text: str) -> bool:
    return text[0].isalpha() or text[0] in "_$"


def _relocated(
    initial: str, scalar: int, reader: _Reader
) -> tuple[bytes, list[tuple[int, int, str, int]]]:
    """Bytes of an initialiser that holds addresses: `symbol+4`, `generic(symbol)+4`."""
    data, words = bytearray(), []
    for item in split(initial.strip().strip("{}")):
        match = re.match(
            r"(?:generic\(\s*([\w$]+)\s*\)|([A-Za-z_$][\w$]*))\s*(?:\+\s*(\d+))?$", item
        )
        if match:
            if scalar != 8:
                raise reader.error("an address in an initialiser of fewer than 64 bits")
            name = match.group(1) or match.group(2)
            words.append((len(data), scalar, name, int(match.group(3) or 0)))
            data += bytes(scalar)
        else:
            data += (integer(item) % (1 << 8 * scalar)).to_bytes(scalar, "little")
    return bytes(data), words


def _parameters(reader: _Reader) -> tuple[Variable, ...]:
    """A list in parentheses, at the reader's place."""
    end = reader.text.find(")", reader.at)
    if end < 0:
        raise reader.error("a list of parameters without end")
    inside = reader.text[reader.at + 1 : end]
    reader.at = end + 1
    found = []
    for text in inside.split(","):
        if not text.strip():
            continue
        match = _PARAMETER.match(text)
        if not match or match.group(2) not in SIZES:
            raise reader.error(f"parameter '{text.strip()}' is not understood")
        size = SIZES[match.group(2)] or 1
        count = int(match.group(5)) if match.group(5) else 1
        align = int(match.group(1) or match.group(3) or size)
        found.append(Variable("param", match.group(4), size * count, align))
    return tuple(found)


def _function(reader: _Reader, module: Module, is_entry: bool) -> None:
    line = reader.line()
    results: tuple[Variable, ...] = ()
    if reader.skip() == "(":
        results = _parameters(reader)
    reader.skip()
    name = re.compile(r"[\w$%]+").match(reader.text, reader.at)
    if not name:
        raise reader.error("a function without a name")
    reader.at = name.end()
    function = Function(name.group(), is_entry, line, results=results)
    if reader.skip() == "(":
        function.parameters = _parameters(reader)
    while (character := reader.skip()) == ".":
        match = _DIRECTIVE.match(reader.text, reader.at)
        if not match:
            raise reader.error("this directive is not understood")
        if match.group(1) == "pragma":
            reader.at = reader.text.index(";", reader.at) + 1
            continue
        numbers = tuple(int(n) for n in re.findall(r"\d+", match.group(2)))
        function.directives[match.group(1)] = numbers
        reader.at = match.end()
    if character == ";":
        reader.at += 1
        module.functions.setdefault(function.name, function)
        return
    if character != "{":
        raise reader.error("expected the body of a function")
    reader.at += 1
    _body(reader, module, function)
    module.functions[function.name] = function


def _body(reader: _Reader, module: Module, function: Function) -> None:
    scope = Scope(function)
    body: list[Instruction] = []
    function.body = body
    source: tuple[int, int] | None = None
    text, tables = reader.text, {}
    parts_of: dict[str, tuple[str, ...]] = {}
    while True:
        character = reader.skip()
        if not character:
            raise reader.error("a function without end")
        if character == "}":
            reader.at += 1
            if len(scope.levels) == 1:
                break
            scope.close()
            continue
        if character == "{":
            reader.at += 1
            scope.open()
            continue
        if character == ".":
            source = _declaration(reader, module, function, scope, source)
            continue
        start = reader.at
        match = _LABEL.match(text, start)
        if match:
            reader.at = match.end()
            label = match.group(1)
            following = re.compile(r"\s*\.branchtargets\s+([^;]*);").match(text, reader.at)
            if following:
                tables[label] = tuple(name.strip() for name in following.group(1).split(","))
                reader.at = following.end()
                continue
            following = re.compile(r"\s*\.call(?:prototype|targets)[^;]*;").match(text, reader.at)
            if following:
                reader.at = following.end()
                continue
            unique = label
            if len(scope.levels) > 1:  # labels of an inner scope may repeat
                scope.unique += 1
                unique = f"{label}@{scope.unique}" if label in function.labels else label
            scope.levels[-1][label] = Symbol(unique)
            function.labels[unique] = len(body)
            continue
        match = _INSTRUCTION.match(text, start)
        if not match:
            raise reader.error("unknown text")
        negated, guard, opcode, operands = match.groups()
        reader.at = match.end()
        try:
            parsed = tuple(scope.operand(part) for part in split(operands))
            predicate = scope.operand(guard) if guard else None
        except ValueError as problem:
            raise reader.error(str(problem), start) from None
        if predicate is not None and not isinstance(predicate, Register):
            raise reader.error(f"'{guard}' is no predicate", start)
        parts = parts_of.get(opcode)
        if parts is None:
            parts = parts_of[opcode] = tuple(opcode.replace("::", "##").split("."))
            parts = parts_of[opcode] = tuple(part.replace("##", "::") for part in parts)
        if "cc" in parts or parts[0] in ("addc", "subc", "madc"):
            parsed += (scope.carry(),)
        instruction = Instruction(
            opcode, parsed, predicate, negated == "!", reader.line(start), source, "", parts
        )
        instruction.text = f"{opcode} {operands.strip()}"
        body.append(instruction)
    for instruction in body:
        if instruction.opcode.startswith("brx"):
            table = instruction.operands[-1] if instruction.operands else None
            if not isinstance(table, Symbol) or table.name not in tables:
                raise UserError(f"PTX line {instruction.line}: brx.idx without its .branchtargets")
            instruction.targets = tables[table.name]
    _resolve_labels(function)


def _resolve_labels(function: Function) -> None:
    """Branches name labels that stand further down; here each must be known."""
    for instruction in function.body or ():
        if instruction.parts[0] == "bra":
            target = instruction.operands[0] if instruction.operands else None
            if not isinstance(target, Symbol) or target.name not in function.labels:
                raise UserError(f"PTX line {instruction.line}: no label for '{instruction.text}'")


def _declaration(
    reader: _Reader,
    module: Module,
    function: Function,
    scope: Scope,
    source: tuple[int, int] | None,
) -> tuple[int, int] | None:
    match = _LOC.match(reader.text, reader.at)
    if match:
        reader.at = match.end()
        return int(match.group(1)), int(match.group(2))
    match = _FILE.match(reader.text, reader.at)
    if match:
        module.files[int(match.group(1))] = match.group(2)
        reader.at = match.end()
        return source
    if reader.text.startswith(".pragma", reader.at):
        reader.at = reader.text.index(";", reader.at) + 1
        return source
    match = _STATEMENT.match(reader.text, reader.at)
    if not match:
        raise reader.error("unknown text")
    statement = match.group(1).strip()
    registers = _REGISTERS.match(statement)
    if registers:
        _declare_registers(reader, registers, scope)
    else:
        _, _, rest = statement.partition(".")
        external = rest.startswith("extern")
        if external:
            rest = rest[len("extern") :].strip().lstrip(".")
        variable = scope.rename(_variable(reader, rest, external))
        function.variables[variable.name] = variable
    reader.at = match.end()
    return source


def _declare_registers(reader: _Reader, match: re.Match[str], scope: Scope) -> None:
    type_ = match.group(1)
    if type_ not in SIZES:
        raise reader.error(f"registers of type .{type_} are not known")
    for name in match.group(2).split(","):
        name = name.strip()
        family = _FAMILY.match(name)
        if not family:
            scope.declare(name, type_)
        elif len(scope.levels) == 1:
            scope.families.append((family.group(1), type_, int(family.group(2))))
        else:
            for number in range(int(family.group(2))):
                scope.declare(f"{family.group(1)}{number}", type_)
