"""Which operation of a kernel an instruction is for, and LLVM's line information of it.

Kernels are kept by their content, whatever program they stand in, so their code cannot name lines
of a program. It names operations by number instead: 1 is the kernel itself, the operations inside
follow in the order of `Region.walk`. `numbered` gives every origin its number; a builder ends each
line of IR in a comment `;@17`; `with_places` makes LLVM's metadata of the comments, with the number
as a line. Whoever puts a program together knows the lines that numbers stand for: `places`.
"""

from __future__ import annotations

import re
from itertools import chain

from ...hlo.graph import Op, Origin, Region, Value, arguments

KERNEL = 1  # the number of the kernel itself
KERNEL_MARK = f" ;@{KERNEL}"
FILE = "kernel"  # the name of the file whose lines are numbers of operations
_NODE = re.compile(r"^!(\d+) = ", re.MULTILINE)
_KERNEL = re.compile(r"define ptx_kernel [^\n]*?@([\w.$]+)\(")


class Spot(Origin):
    """An origin that knows the number of its operation."""

    number: int

    @classmethod
    def of(cls, origin: Origin, number: int) -> Spot:
        made = cls(*origin)
        made.number = number
        return made


def mark(op: Op, otherwise: str) -> str:
    """The end of a line of IR that an operation is computed by; `otherwise` for one without a
    number."""
    if op.origin:
        number = getattr(op.origin[0], "number", None)
        if number is not None:
            return f" ;@{number}"
    return otherwise


def _walk(op: Op) -> list[Op]:
    return list(chain.from_iterable(region.walk() for region in op.regions))


def numbered(op: Op) -> Op:
    """The same kernel on the same operands; all origins in it are `Spot`s."""
    numbers = {inner: number for number, inner in enumerate(_walk(op), KERNEL + 1)}

    def spots(one: Op, number: int) -> tuple[Origin, ...]:
        return tuple(Spot.of(origin, number) for origin in one.origin or (Origin(),))

    def copied(region: Region, known: dict[Value, Value]) -> Region:
        known = dict(known)
        inner = arguments(region.argument_types)
        known.update(zip(region.arguments, inner, strict=True))
        ops = []
        for one in region.ops:
            regions = [copied(nested, known) for nested in one.regions]
            operands = [known.get(value, value) for value in one.operands]
            made = Op(
                one.definition, operands, one.attributes, regions, one.result_types,
                spots(one, numbers[one]),
            )  # fmt: skip
            known.update(zip(one.results, made.results, strict=True))
            ops.append(made)
        return Region(inner, ops, [known.get(value, value) for value in region.results])

    regions = [copied(region, {}) for region in op.regions]
    return Op(
        op.definition, op.operands, op.attributes, regions, op.result_types, spots(op, KERNEL)
    )


def places(op: Op) -> list[Origin | None]:
    """The origin of each number (and of 0, which LLVM gives to what belongs to several): the first
    one with a file. Where an operation has none, and for the kernel itself, that of the first
    operation that has one; None if there is none at all."""
    inner = [_first(one) for one in _walk(op)]
    kernel = next(filter(None, inner), None) or _first(op)
    return [kernel, kernel, *(one or kernel for one in inner)]


def _first(op: Op) -> Origin | None:
    return next((origin for origin in op.origin if origin.file), None)


def with_places(text: str) -> str:
    """LLVM IR whose kernels' instructions have debug locations where comments name operations: only
    what gives `.loc`, no names or types of variables."""
    if ";@" not in text:
        return text
    first = 1 + max((int(number) for number in _NODE.findall(text)), default=-1)
    nodes: list[str] = []

    def node(content: str) -> str:
        nodes.append(f"!{first + len(nodes)} = {content}")
        return f"!{first + len(nodes) - 1}"

    file = node(f'!DIFile(filename: "{FILE}", directory: "")')
    unit = node(
        f'distinct !DICompileUnit(language: DW_LANG_C, file: {file}, producer: "", '
        "isOptimized: true, runtimeVersion: 0, emissionKind: DebugDirectivesOnly)"
    )
    version = node('!{i32 2, !"Debug Info Version", i32 3}')
    kind = node(f"!DISubroutineType(types: {node('!{}')})")

    lines: list[str] = []
    scope, known = "", dict[str, str]()
    for line in text.split("\n"):
        if line.endswith("{") and (begun := _KERNEL.match(line)):
            known = {}
            scope = node(
                f'distinct !DISubprogram(name: "{begun[1]}", scope: {file}, file: {file}, '
                f"line: {KERNEL}, type: {kind}, unit: {unit}, "
                "spFlags: DISPFlagDefinition | DISPFlagOptimized)"
            )
            line = f"{line[:-1]}!dbg {scope} {{"
        elif line == "}":
            scope = ""
        elif (at := line.rfind(" ;@")) >= 0 and scope and line[at + 3 :].isdigit():
            number = line[at + 3 :]
            if number not in known:
                known[number] = node(f"!DILocation(line: {number}, scope: {scope})")
            line = f"{line[:at]}, !dbg {known[number]}"
        lines.append(line)
    lines += [f"!llvm.dbg.cu = !{{{unit}}}", f"!llvm.module.flags = !{{{version}}}", *nodes, ""]
    return "\n".join(lines)
