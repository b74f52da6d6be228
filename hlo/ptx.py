"""What a PTX text declares: version, target, entries with their parameters, names of the module.

Only declarations are read; whether the instructions are right is for an assembler, a driver or the
simulator to say. `check` compares launches with the entries that they start. Reference: PTX ISA
9.0, sections 5 (state spaces), 10 (kernels) and 11 (directives).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .errors import UserError
from .foreign import Argument, DeviceCode, DeviceLaunch, Number, TensorMap

MAXIMUM_BYTES = 64 << 20
TENSOR_MAP_BYTES = 128
# Functions outside that the driver has itself.
SYSTEM = frozenset({"vprintf", "malloc", "free", "__assertfail"})

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[A-Za-z_$%.][\w$%.]*|\d[\w.]*|[^\s\w]|\s+', re.ASCII)
_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LINKING = frozenset({".visible", ".extern", ".weak", ".common"})
_SPACES = frozenset({".global", ".const", ".shared", ".tex", ".surf"})
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
_LINES = frozenset({".loc", ".file"})
_KINDS = {  # types of numbers that a parameter of this kind takes, besides those of bits
    "u": ("i", "ui"), "s": ("i", "ui"), "f": ("f", "bf"), "b": ("i", "ui", "f", "bf"),
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One parameter of an entry: type as PTX spells it ("u64"), elements of an array, or 0."""

    type: str
    count: int = 0
    alignment: int = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return _SIZES.get(self.type[1:], 0) * max(self.count, 1)

    def __str__(self) -> str:
        return f".{self.type}[{self.count}]" if self.count else f".{self.type}"


@dataclass(frozen=True)
class PtxEntry:
    """A kernel of a module. Extents are () where nothing was said."""

    parameters: tuple[Parameter, ...]
    maximum_block: tuple[int, ...] = ()
    required_block: tuple[int, ...] = ()
    required_cluster: tuple[int, ...] = ()


@dataclass(frozen=True)
class Declared:
    """A module's declarations. `names` are all that stand outside of functions, but those that
    are declared `.extern` functions, which are `outside`."""

    version: tuple[int, int]
    target: str
    entries: Mapping[str, PtxEntry]
    names: frozenset[str]
    outside: frozenset[str]


@functools.lru_cache(maxsize=64)
def declared(text: str) -> Declared:
    """The declarations of a PTX module; UserError where they cannot be read."""
    return _Scanner(text).module()


def check(code: DeviceCode) -> Declared:
    """What the code's PTX declares; UserError where a launch does not fit it."""
    module = declared(code.ptx)
    unknown = sorted(module.outside - SYSTEM)
    if unknown:
        raise UserError(f"the PTX calls '{unknown[0]}', which it does not define")
    if not code.launches:
        raise UserError("the PTX has no launch")
    for launch in code.launches:
        _check_launch(launch, module)
    return module


def _check_launch(launch: DeviceLaunch, module: Declared) -> None:
    entry = module.entries.get(launch.entry)
    if entry is None:
        known = ", ".join(sorted(module.entries)) or "none"
        raise UserError(f"the PTX has no entry '{launch.entry}'; it has {known}")
    place = f"entry '{launch.entry}'"
    threads, blocks = math.prod(launch.block), math.prod(launch.cluster)
    if not 1 <= threads <= 1024 or launch.block[2] > 64:
        raise UserError(f"{place} cannot have blocks of {list(launch.block)} threads; the limit is "
                        "1024, and 64 along z")  # fmt: skip
    if max(launch.grid[1:]) > 65535:
        raise UserError(f"{place}: a grid has at most 65535 blocks along y and z")
    if blocks > 16 or any(n % c for n, c in zip(launch.grid, launch.cluster, strict=True)):
        raise UserError(f"{place}: clusters of {list(launch.cluster)} do not divide a grid of "
                        f"{list(launch.grid)}, or have more than 16 blocks")  # fmt: skip
    if entry.maximum_block and threads > math.prod(entry.maximum_block):
        raise UserError(f"{place} allows blocks of {math.prod(entry.maximum_block)} threads, its "
                        f"launch has {threads}")  # fmt: skip
    for what, required, given in (
        ("blocks", entry.required_block, launch.block),
        ("clusters", entry.required_cluster, launch.cluster),
    ):
        padded = (*required, 1, 1)[:3]
        if required and padded != given:
            raise UserError(f"{place} requires {what} of {list(padded)}, its launch has "
                            f"{list(given)}")  # fmt: skip
    if len(entry.parameters) != len(launch.arguments):
        raise UserError(
            f"{place} takes {len(entry.parameters)} parameters "
            f"({', '.join(map(str, entry.parameters))}), its launch gives {len(launch.arguments)}"
        )
    pairs = zip(entry.parameters, launch.arguments, strict=True)
    for number, (parameter, argument) in enumerate(pairs):
        given = _misfit(parameter, argument)
        if given:
            text = f"parameter {number} is {parameter}, its launch gives {given}"
            raise UserError(f"{place}: {text}")


def _misfit(parameter: Parameter, argument: Argument) -> str:
    """What an argument is, where it does not fit the parameter, else ""."""
    if isinstance(argument, TensorMap):
        fits = parameter.size == TENSOR_MAP_BYTES and parameter.alignment >= 64
        return "" if fits else f"a tensor map, which is .b8[{TENSOR_MAP_BYTES}] with .align 64"
    if isinstance(argument, Number):
        kind = argument.element.rstrip("0123456789")
        right = parameter.size == len(argument.data) and not parameter.count
        if right and kind in _KINDS.get(parameter.type[0], ()):
            return ""
        return f"a number of type {argument.element}"
    is_address = parameter.type in ("u64", "s64", "b64") and not parameter.count
    return "" if is_address else "an address (.u64)"


def runs_on(target: str, architecture: str) -> bool:
    """Whether PTX for `target` ("sm_80", "sm_90a") can be compiled for an architecture."""
    wanted, given = _architecture(target), _architecture(architecture)
    if wanted is None or given is None:
        return False
    if wanted[1] == "a":
        return wanted == given
    if wanted[1] == "f":
        return given[0] // 10 == wanted[0] // 10 and given[0] >= wanted[0]
    return given[0] >= wanted[0]


def _architecture(text: str) -> tuple[int, str] | None:
    match = re.fullmatch(r"sm_(\d{2,3})([af]?)", text)
    return None if match is None else (int(match[1]), match[2])


def renamed(text: str, prefix: str) -> str:
    """The module without comments and debug sections, but with its lines, and with the prefix
    before every name of its own, so that it can stand beside others."""
    module = declared(text)
    major, minor = module.version
    head = f".version {major}.{minor}\n.target {module.target}\n.address_size 64\n"
    kept = "".join(
        f"{prefix}{token}" if token in module.names else token for token in _Scanner(text).kept()
    )
    return head + re.sub(r"\n\s*\n+", "\n", kept).strip() + "\n"


class _Scanner:
    """The tokens of one module, from the first on."""

    def __init__(self, text: str) -> None:
        if len(text) > MAXIMUM_BYTES:
            raise UserError(f"the PTX has {len(text)} characters, more than {MAXIMUM_BYTES}")
        plain = _COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else " ", text)
        self.all = _TOKEN.findall(plain)
        self.tokens = [token for token in self.all if not token.isspace()]
        self.at = 0
        self.entries: dict[str, PtxEntry] = {}
        self.names: set[str] = set()
        self.outside: set[str] = set()

    def module(self) -> Declared:
        version, target = (0, 0), ""
        while self.at < len(self.tokens):
            token = self.next()
            if token == ".version":
                version = self.version(self.next())
            elif token == ".target":
                target = self.next()
                while self.peek() == ",":
                    self.at += 2
            elif token == ".address_size":
                if self.next() != "64":
                    raise UserError("the PTX has addresses of 32 bits; 64 are needed")
            else:
                self.statement(token)
        if version == (0, 0) or not target:
            raise UserError("this is no PTX: it does not begin with .version and .target")
        entries = MappingProxyType(dict(self.entries))
        return Declared(version, target, entries, frozenset(self.names), frozenset(self.outside))

    def kept(self) -> Iterator[str]:
        """All tokens and spaces but the header and debug sections, and what lines say of inlined
        functions, which stands there."""
        skip, depth = "", 0
        for token in self.all:
            if skip == "line":
                if "\n" not in token:
                    continue
                skip = ""
            elif skip == "inlined":
                skip = "line" if token == "," else "" if "\n" in token else skip
                if skip == "line":
                    continue
            elif skip == "section":
                depth += (token == "{") - (token == "}")
                if token != "}" or depth:
                    continue
                skip = ""
                continue
            if token in (".version", ".target", ".address_size", ".pragma"):
                skip = "line"
            elif token in _LINES:
                skip = "inlined"
                yield token
            elif token == ".section":
                skip, depth = "section", 0
            else:
                yield token

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        if self.at >= len(self.tokens):
            raise UserError("the PTX ends in the middle of a declaration")
        self.at += 1
        return self.tokens[self.at - 1]

    def version(self, text: str) -> tuple[int, int]:
        match = re.fullmatch(r"(\d{1,2})\.(\d{1,2})", text)
        if match is None:
            raise UserError(f"the PTX has the version '{text[:20]}', which is none")
        return int(match[1]), int(match[2])

    def statement(self, token: str) -> None:
        """What stands outside of functions, from its first token on."""
        external = False
        while token in _LINKING:
            external = external or token == ".extern"
            token = self.next()
        if token == ".entry":
            self.entry()
        elif token == ".func":
            self.function(external)
        elif token in _SPACES:
            self.variable()
        elif token == ".section":
            while self.peek() != "{":
                self.next()
            self.block("{", "}")
        elif token in _LINES:
            while self.at < len(self.tokens) and not self.peek().startswith("."):
                self.at += 1
        elif token in (".pragma", ".alias"):
            while self.next() != ";":
                pass
        elif token != ";":
            raise UserError(f"the PTX has '{token[:40]}' where a declaration should begin")

    def entry(self) -> None:
        name = self.next()
        parameters = self.parameters() if self.peek() == "(" else ()
        facts: dict[str, tuple[int, ...]] = {}
        while self.peek() not in ("{", ";", ""):
            directive = self.next()
            sizes = []
            while self.peek()[:1].isdigit() or self.peek() == ",":
                token = self.next()
                if token != ",":
                    sizes.append(self.number(token))
            facts[directive] = tuple(sizes)
        self.names.add(name)
        if self.peek() == ";":
            self.at += 1
            return
        self.block("{", "}")
        self.entries[name] = PtxEntry(
            parameters, facts.get(".maxntid", ()), facts.get(".reqntid", ()),
            facts.get(".reqnctapercluster", ()),
        )  # fmt: skip

    def parameters(self) -> tuple[Parameter, ...]:
        """Of an entry, in brackets."""
        found: list[Parameter] = []
        inside = self.block("(", ")")
        for part in _split(inside):
            if not part:
                continue
            types = [t[1:] for t in part if re.fullmatch(r"\.[busf](8|16|32|64)", t)]
            if part[0] != ".param" or len(types) != 1:
                raise UserError(f"the PTX has a parameter that is none: {' '.join(part)[:60]}")
            alignment = count = 0
            if ".align" in part and ".ptr" not in part:
                alignment = self.number(_behind(part, ".align"))
            if "[" in part:
                count = self.number(_behind(part, "["))
            found.append(Parameter(types[0], count, alignment))
        return tuple(found)

    def function(self, external: bool) -> None:
        if self.peek() == "(":
            self.block("(", ")")
        name = self.next()
        if self.peek() == "(":
            self.block("(", ")")
        while self.peek() not in ("{", ";", ""):
            self.next()
        if self.peek() == "{":
            self.block("{", "}")
            external = False
        elif self.next() != ";":
            raise UserError(f"the PTX has a function '{name}' without an end")
        (self.outside if external else self.names).add(name)
        self.outside -= self.names

    def variable(self) -> None:
        """One or several of one type; names stand before `[`, `=`, `,` or `;`."""
        depth, before, initial = 0, "", False
        while True:
            token = self.next()
            ends = depth == 0 and not initial and token in ("[", "=", ",", ";")
            if ends and re.fullmatch(r"[A-Za-z_$%][\w$]*", before):
                self.names.add(before)
            if depth == 0:
                initial = token == "=" or (initial and token not in (",", ";"))
            depth += (token in ("{", "[")) - (token in ("}", "]"))
            if token == ";" and depth <= 0:
                return
            before = token

    def block(self, begin: str, end: str) -> Sequence[str]:
        """The tokens in brackets, which may be nested."""
        if self.next() != begin:
            raise UserError(f"the PTX lacks a '{begin}' before '{self.peek()[:40]}'")
        first, depth = self.at, 1
        while depth:
            token = self.next()
            depth += (token == begin) - (token == end)
        return self.tokens[first : self.at - 1]

    def number(self, token: str) -> int:
        try:
            value = int(token, 0)
        except ValueError:
            value = -1
        if not 0 <= value < 1 << 31:
            raise UserError(f"the PTX has '{token[:40]}' where a size should be")
        return value


def _behind(tokens: Sequence[str], token: str) -> str:
    """What follows the token; "" where nothing does."""
    place = tokens.index(token) + 1
    return tokens[place] if place < len(tokens) else ""


def _split(tokens: Sequence[str]) -> Iterator[list[str]]:
    """Parts between commas."""
    part: list[str] = []
    for token in tokens:
        if token == ",":
            yield part
            part = []
        else:
            part.append(token)
    yield part
