"""What a PTX module consists of: functions, variables, instructions, operands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SIZES = {
    **dict.fromkeys(("b8", "u8", "s8", "e4m3", "e5m2"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16", "e4m3x2", "e5m2x2"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2", "tf32", "e4m3x4"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64", "f32x2", "texref", "samplerref", "surfref"), 8),
    "b128": 16,
    "pred": 0,
}
CARRY = "%cc"  # the carry flag, as the last operand of instructions that set or read it
SPECIAL = re.compile(
    r"%(?:n?tid|n?ctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]$"
    r"|%(?:laneid|n?warpid|n?smid|gridid|cluster_ctarank|cluster_nctarank|is_explicit_cluster"
    r"|lanemask_(?:eq|le|lt|ge|gt)|clock(?:_hi|64)?|globaltimer(?:_lo|_hi)?|dynamic_smem_size"
    r"|total_smem_size|aggr_smem_size|current_graph_exec|pm\d+|envreg\d+)$"
)


@dataclass(frozen=True, slots=True)
class Register:
    name: str
    number: int
    type: str  # "b32", "pred", ...


@dataclass(frozen=True, slots=True)
class Immediate:
    """`value` is an integer, or the bits of a float with `float_bits` (32 or 64), 0 otherwise."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable's or a parameter's address plus `offset`, a label, or a function."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    name: str  # "%tid.x"


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a result that nobody wants."""


@dataclass(frozen=True, slots=True)
class Vector:
    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Address:
    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: Vector | None = None
    more: tuple[Operand, ...] = ()  # what follows the coordinates (im2col offsets)


@dataclass(frozen=True, slots=True)
class Pair:
    """`%r1|%p1`: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Negated:
    """`!%p1`"""

    register: Register


@dataclass(frozen=True, slots=True)
class Group:
    """`(a, b)`: arguments or results of a call."""

    items: tuple[Operand, ...]


Operand = Register | Immediate | Symbol | Special | Sink | Vector | Address | Pair | Negated | Group


@dataclass(slots=True, eq=False)
class Instruction:
    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None  # predicate of `@%p1`
    guard_negated: bool
    line: int  # of the PTX text
    source: tuple[int, int] | None = None  # file number, line of the last .loc
    text: str = ""
    parts: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()  # labels of a brx.idx

    @property
    def modifiers(self) -> frozenset[str]:
        return frozenset(self.parts[1:])


@dataclass(frozen=True, slots=True)
class Variable:
    """An array in a state space; `words` places addresses of symbols into `initial`."""

    space: str  # "global", "const", "shared", "local", "param"
    name: str
    nbytes: int
    align: int
    initial: bytes | None = None
    words: tuple[tuple[int, int, str, int], ...] = ()  # offset, size, symbol, addend
    external: bool = False


@dataclass(slots=True, eq=False)
class Function:
    name: str
    is_entry: bool
    line: int
    parameters: tuple[Variable, ...] = ()
    results: tuple[Variable, ...] = ()
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    body: list[Instruction] | None = None
    labels: dict[str, int] = field(default_factory=dict)  # name -> index into body
    registers: list[Register] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Module:
    text: str
    version: str = ""
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    programs: dict[str, object] = field(default_factory=dict)  # translated entries, by name

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(name for name, f in self.functions.items() if f.is_entry)
