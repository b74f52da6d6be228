"""Several emitted kernels as one entry: each is a body that takes a range of the entry's blocks.

    one = BlockRange(entry_of(ptx_text, "first"), (64, 1, 1), row=Row(0, (0, 8), 64), repeats=8)
    two = BlockRange(entry_of(ptx_text, "second"), (8, 2, 1), Row(512, (0, 8), 64))
    text = compose("both", [one, two], 576)

A body is the text of an entry as it was emitted, in a scope of its own. What it asks of the machine
is remapped (`Remap`): its number among blocks, how many there are of it, its threads, where its
arguments lie. The arguments of all are one table, the entry's only parameter; a kernel that is
started several times with other arguments is one body, which takes its row of the table. ptxas
gives the entry as many registers as the largest body needs.

Threads of a block beyond those of a body leave at once, so barriers of whole blocks count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...hlo.errors import CompilerBug
from ...optimizer.merges import ALIGNMENT

_ENTRY = re.compile(
    r"^\.visible \.entry (?P<name>[\w$]+)\((?P<parameters>[^)]*)\)\n"
    r"(?P<directives>(?:\.[^\n]*\n)*)\{\n(?P<body>.*?)^\}\n?",
    re.MULTILINE | re.DOTALL,
)
_PARAMETER = re.compile(
    r"\s*\.param\s+(?:\.align\s+\d+\s+)?\.(?P<type>\w+)(?:\s+\.ptr(?:\s+\.\w+)?(?:\s+\.align\s+\d+)?)?"
    r"\s+(?P<name>[\w$]+)(?:\[(?P<count>\d+)\])?\s*$"
)
_BYTES = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "b32": 4, "u32": 4, "s32": 4,
          "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8}  # fmt: skip
_LABEL = re.compile(r"\$L_")
_SPECIAL = re.compile(r"%(n?(?:ctaid|clusterid|tid))\.([xyz])\b")
_WHOLE_BARRIER = re.compile(r"\b(bar\.sync|barrier\.sync(?:\.aligned)?)(\s+)([^,;\s]+)\s*;")
_UNCOUNTED = re.compile(r"\b(?:bar|barrier)(?:\.cta)?\.red\b|\bbarrier\.cluster\b|\bsetmaxnreg\b")
_UNKNOWN = re.compile(r"%(?:gridid|cluster_n?ctaid\.[yz]|clusterid\.[yz]|nclusterid\.[yz])\b")
_BLOCK = "%block_x", "%block_y", "%block_z"
_DIRECTIVE = re.compile(r"^\.(\w+)\s*([\d, ]*)", re.MULTILINE)


class EntryText(NamedTuple):
    """An entry of PTX text: the bytes of its parameters, in order; its directives' numbers, as
    "maxntid" -> 256; its body without braces."""

    name: str
    parameters: tuple[int, ...]
    directives: Mapping[str, str]
    body: str

    @property
    def threads(self) -> int:
        """Of its blocks."""
        found = self.directives.get("maxntid") or self.directives.get("reqntid")
        if found is None:
            raise CompilerBug(f"entry {self.name} does not say how many threads it has")
        return int(found.split(",")[0])


class Remap(NamedTuple):
    """What a body reads in place of the machine's registers. block: registers, or numbers, of its
    block's place along x, y, z, which are set before it; grid: blocks along these. arguments: the
    register with the address, in space .param, where its own begin; places: where each of them
    lies from there on, in bytes. threads: of the block that it runs in; where it has fewer itself,
    those beyond have left. cluster: blocks of each cluster, along x; cluster_block: the register
    with its cluster's number.
    """

    block: tuple[str, str, str]
    grid: tuple[int, int, int]
    arguments: str
    places: Sequence[int]
    threads: int
    cluster: int = 1
    cluster_block: str = ""


class Row(NamedTuple):
    """Where arguments of a body lie in the table, in bytes: its first row begins at `begin`,
    argument n of a row at places[n] of it, and the next row, if any, `bytes` later."""

    begin: int
    places: tuple[int, ...]
    bytes: int


class BlockRange(NamedTuple):
    """A body that is started `repeats` times, each on `grid` blocks and with the next row."""

    body: EntryText
    grid: tuple[int, int, int]
    row: Row
    repeats: int = 1

    @property
    def each(self) -> int:
        x, y, z = self.grid
        return x * y * z

    @property
    def blocks(self) -> int:
        return self.each * self.repeats


def entries_in(text: str) -> list[str]:
    """The names of the entries of a PTX module that can be bodies."""
    return [match["name"] for match in _ENTRY.finditer(text)]


def entry_of(text: str, name: str) -> EntryText:
    """An entry of a PTX module; CompilerBug where there is none that can be a body."""
    for match in _ENTRY.finditer(text):
        if match["name"] == name:
            break
    else:
        raise CompilerBug(f"the PTX has no entry {name}")
    sizes = []
    for number, one in enumerate(filter(str.strip, match["parameters"].split(","))):
        found = _PARAMETER.match(one)
        if found is None or found["name"] != f"{name}_param_{number}":
            raise CompilerBug(f"a parameter of {name} is not understood: {one.strip()}")
        sizes.append(_BYTES[found["type"]] * int(found["count"] or 1))
    directives = {key: numbers.strip() for key, numbers in _DIRECTIVE.findall(match["directives"])}
    return EntryText(name, tuple(sizes), directives, match["body"])


def inlined(entry: EntryText, to: Remap, number: int) -> str:
    """The body as one scope of another entry, in which `ret` ends the thread. number: no other body
    of that entry has it."""
    if _UNKNOWN.search(entry.body):
        raise CompilerBug(f"entry {entry.name} asks for places that no body has")
    body = _LABEL.sub(f"$L{number}_", entry.body)
    body = _SPECIAL.sub(lambda match: _register(entry, to, match[1], match[2]), body)
    if len(to.places) != len(entry.parameters):
        raise CompilerBug(f"entry {entry.name} has {len(entry.parameters)} parameters")
    own = re.escape(f"{entry.name}_param_")
    body = re.sub(
        rf"\[{own}(\d+)(?:\+(\d+))?\]",
        lambda match: f"[{to.arguments}+{to.places[int(match[1])] + int(match[2] or 0)}]",
        body,
    )
    body = re.sub(
        rf"\bmov\.[bu]64(\s+)(%\w+), {own}(\d+);",
        lambda match: f"add.s64{match[1]}{match[2]}, {to.arguments}, {to.places[int(match[3])]};",
        body,
    )
    if f"{entry.name}_param_" in body:
        raise CompilerBug(f"entry {entry.name} uses a parameter in a way that no body can")
    if entry.threads != to.threads:
        if _UNCOUNTED.search(body):
            raise CompilerBug(f"entry {entry.name} counts on all threads of its block")
        body = _WHOLE_BARRIER.sub(rf"\1\2\3, {entry.threads};", body)
    return f"\t{{\n{body}\t}}\n"


def _register(entry: EntryText, to: Remap, register: str, dimension: str) -> str:
    """What stands for a special register."""
    place = "xyz".index(dimension)
    if register == "tid":
        return f"%tid.{dimension}"  # blocks are rows of threads
    if register == "ntid":
        return str(entry.threads) if place == 0 else "1"
    if register in ("ctaid", "nctaid"):
        return to.block[place] if register == "ctaid" else str(to.grid[place])
    if register == "nclusterid":
        return str(to.grid[0] // to.cluster)
    return to.cluster_block


def compose(name: str, ranges: Sequence[BlockRange], table_bytes: int, cluster: int = 1) -> str:
    """The text of an entry `name` whose blocks run the bodies of all ranges, one behind the other.
    Its parameter is the table of arguments. cluster: blocks of each cluster, of all."""
    threads = max(one.body.threads for one in ranges)
    kept = [one.body.directives.get("minnctapersm", "1") for one in ranges]
    head = [
        f".visible .entry {name}(",
        f"\t.param .align {ALIGNMENT} .b8 {name}_param_0[{table_bytes}]",
        ")",
        f".maxntid {threads}",
        f".minnctapersm {min(map(int, kept))}",
    ]
    clusters = {key: ranges[0].body.directives[key] for key in ("explicitcluster",
                "reqnctapercluster") if key in ranges[0].body.directives}  # fmt: skip
    head += [f".{key} {numbers}".rstrip() for key, numbers in clusters.items()]
    lines = [
        "{",
        "\t.reg .pred \t%in_range;",
        "\t.reg .b32 \t%block, %row;",
        f"\t.reg .b32 \t{', '.join(_BLOCK)}, %cluster, %rest;",
        "\t.reg .b64 \t%arguments;",
        "\tmov.u32 \t%block, %ctaid.x;",
    ]
    text = "\n".join([*head, *lines]) + "\n"
    first = 0
    for number, one in enumerate(ranges):
        first += one.blocks
        if number < len(ranges) - 1:
            text += f"\tsetp.ge.u32 \t%in_range, %block, {first};\n"
            text += f"\t@%in_range bra \t$L_range_{number + 1};\n"
        text += _prologue(name, one, first - one.blocks, threads, cluster)
        to = Remap(_BLOCK, one.grid, "%arguments", one.row.places, threads, cluster, "%cluster")
        text += inlined(one.body, to, number)
        if number < len(ranges) - 1:
            text += f"$L_range_{number + 1}:\n"
    return text + "}\n"


def _prologue(name: str, one: BlockRange, first: int, threads: int, cluster: int) -> str:
    """Sets the registers that the body of a range reads."""
    lines = []
    if one.body.threads != threads:
        lines += ["mov.u32 \t%rest, %tid.x", f"setp.ge.u32 \t%in_range, %rest, {one.body.threads}",
                  "@%in_range ret"]  # fmt: skip
    lines += [f"sub.u32 \t%rest, %block, {first}" if first else "mov.u32 \t%rest, %block",
              f"mov.b64 \t%arguments, {name}_param_0"]  # fmt: skip
    if one.repeats > 1:
        lines += [f"div.u32 \t%row, %rest, {one.each}", f"rem.u32 \t%rest, %rest, {one.each}",
                  f"mad.wide.u32 \t%arguments, %row, {one.row.bytes}, %arguments"]  # fmt: skip
    if one.row.begin:
        lines.append(f"add.s64 \t%arguments, %arguments, {one.row.begin}")
    x, y, z = one.grid
    lines += [f"rem.u32 \t%block_x, %rest, {x}" if y * z > 1 else "mov.u32 \t%block_x, %rest"]
    if y * z > 1:
        lines += [f"div.u32 \t%rest, %rest, {x}", f"rem.u32 \t%block_y, %rest, {y}",
                  f"div.u32 \t%block_z, %rest, {y}"]  # fmt: skip
    else:
        lines += ["mov.u32 \t%block_y, 0", "mov.u32 \t%block_z, 0"]
    if cluster > 1:
        lines.append(f"div.u32 \t%cluster, %block_x, {cluster}")
    return "".join(f"\t{line};\n" for line in lines)
