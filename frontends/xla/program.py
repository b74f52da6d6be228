"""The instruction tree that both readers of XLA's formats fill: `XlaProgram`.

It says what a file says, names and numbers as HLO text spells them ("f32", "get-tuple-element",
"lhs_contracting_dims"), with the computations that an instruction calls, and its operands, as
objects. `lowering` makes the op tree of a StableHLO program of it.

An attribute that has the value that HLO takes when it is absent may be missing. Values:

    numbers, bools, strings       as they are; enumerations are HLO text's words ("GT", "highest")
    lists of numbers              tuples
    window                        tuple of `WindowDimension`
    padding                       tuple of (low, high, interior)
    slice                         tuple of (start, limit, stride)
    dim_labels                    `ConvolutionLabels`
    literal                       `numpy` array, of the shape's dimensions, or a tuple of them
    sharding                      HLO's spelling, without metadata
    frontend_attributes           dict of strings
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...hlo.errors import UserError
from .. import tree

MAXIMUM_DEPTH = 64
"""How deep shapes nest, and computations call each other; real programs stay below twenty."""

MAXIMUM_SIZE = 1 << 62
"""Elements of one array: more is no program's."""

# HLO's element types -> the op tree's; types of one bit, which StableHLO lacks, are not here.
ELEMENTS = {
    "pred": "i1",
    "s2": "i2",
    "s4": "i4",
    "s8": "i8",
    "s16": "i16",
    "s32": "i32",
    "s64": "i64",
    "u2": "ui2",
    "u4": "ui4",
    "u8": "ui8",
    "u16": "ui16",
    "u32": "ui32",
    "u64": "ui64",
    "f16": "f16",
    "bf16": "bf16",
    "f32": "f32",
    "f64": "f64",
    "f4e2m1fn": "f4E2M1FN",
    "f6e2m3fn": "f6E2M3FN",
    "f6e3m2fn": "f6E3M2FN",
    "f8e3m4": "f8E3M4",
    "f8e4m3": "f8E4M3",
    "f8e4m3fn": "f8E4M3FN",
    "f8e4m3b11fnuz": "f8E4M3B11FNUZ",
    "f8e4m3fnuz": "f8E4M3FNUZ",
    "f8e5m2": "f8E5M2",
    "f8e5m2fnuz": "f8E5M2FNUZ",
    "f8e8m0fnu": "f8E8M0FNU",
    "c64": "complex<f32>",
    "c128": "complex<f64>",
}
OTHER_ELEMENTS = ("s1", "u1", "token", "opaque")


class Shape(NamedTuple):
    """An array, a tuple ("tuple"), a token ("token"), an "opaque", or a "buffer" of one array.

    `dims` are sizes, or bounds where `dynamic` says that a size is only known at run time (an
    unknown bound is -1); `dynamic` is empty where no size is. `layout` lists the dimensions from
    the minor one to the major one, None where the file does not say; `tiled` is set where the
    layout says more than an order.
    """

    element: str
    dims: tuple[int, ...] = ()
    dynamic: tuple[bool, ...] = ()
    layout: tuple[int, ...] | None = None
    tiled: bool = False
    members: tuple[Shape, ...] = ()

    @property
    def is_tuple(self) -> bool:
        return self.element == "tuple"

    @property
    def major_to_minor(self) -> tuple[int, ...]:
        """The order of the dimensions in memory."""
        order = range(len(self.dims)) if self.layout is None else reversed(self.layout)
        return tuple(order)

    def same(self, other: Shape) -> bool:
        """Whether the values are of one kind, whatever their layouts and free sizes."""
        return self is other or (
            self.element == other.element
            and self.dims == other.dims
            and len(self.members) == len(other.members)
            and all(map(Shape.same, self.members, other.members))
        )

    def leaves(self, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Shape]]:
        """Each array or token in the shape with its index."""
        if not self.is_tuple:
            yield path, self
            return
        for index, member in enumerate(self.members):
            yield from member.leaves((*path, index))

    def __str__(self) -> str:
        if self.is_tuple:
            return f"({', '.join(map(str, self.members))})"
        if self.element == "buffer":
            return f"b({', '.join(map(str, self.members))})"
        dynamic = self.dynamic or (False,) * len(self.dims)
        dims = ",".join(
            ("?" if dim < 0 else f"<={dim}") if free else str(dim)
            for dim, free in zip(self.dims, dynamic, strict=True)
        )
        return f"{self.element}[{dims}]"


def check_shape(shape: Shape) -> str:
    """What is wrong with an array's shape, or ""."""
    count = len(shape.dims)
    if shape.dynamic and len(shape.dynamic) != count:
        return "a shape needs one dynamic flag per dimension"
    if shape.layout is not None and sorted(shape.layout) != list(range(count)):
        return f"a layout does not name each dimension of {shape} once"
    for number, dim in enumerate(shape.dims):
        unbounded = bool(shape.dynamic) and shape.dynamic[number] and dim in (-1, tree.DYNAMIC)
        if dim < 0 and not unbounded:
            return f"a shape has the dimension {dim}"
    if count and math.prod(max(dim, 1) for dim in shape.dims) > MAXIMUM_SIZE:
        return f"{shape} is larger than any memory"
    return ""


class WindowDimension(NamedTuple):
    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1
    reversal: bool = False


class ConvolutionLabels(NamedTuple):
    """Which dimension is what: (batch, feature, spatial...) of input, kernel and output.

    The kernel's "batch" is its input feature dimension, its "feature" the output feature one.
    """

    input: tuple[int, ...]
    kernel: tuple[int, ...]
    output: tuple[int, ...]


class Instruction:
    """One instruction; `location` is what `XlaProgram.location` takes."""

    __slots__ = (
        "name", "opcode", "shape", "operands", "calls", "attributes", "location", "number"
    )  # fmt: skip

    def __init__(self, name: str, opcode: str, shape: Shape, location: Any = None):
        self.name = name
        self.opcode = opcode
        self.shape = shape
        self.operands: list[Instruction] = []
        self.calls: list[Computation] = []
        self.attributes: dict[str, Any] = {}
        self.location = location
        self.number = 0  # of a parameter


class Computation:
    """Instructions, each after its operands; `parameters` by number.

    `depth`, `size` and `spread`: how deep the calls in it nest, how many instructions it has with
    what is called taken in, and with only the computations that become regions taken in.
    """

    __slots__ = ("name", "instructions", "parameters", "root", "depth", "size", "spread")

    def __init__(self, name: str, instructions: list[Instruction], root: Instruction):
        self.name = name
        self.instructions = instructions
        self.root = root
        self.parameters: list[Instruction] = []
        self.depth = 0
        self.size = 0
        self.spread = 0


@dataclass(slots=True)
class XlaProgram:
    """A whole module. `aliases`: (output index, parameter number, parameter index) of inputs that
    become outputs; `donors`: (parameter number, parameter index) of inputs that may be reused."""

    name: str
    source: str
    entry: Computation
    computations: list[Computation]
    attributes: dict[str, Any] = field(default_factory=dict)
    aliases: list[tuple[tuple[int, ...], int, tuple[int, ...]]] = field(default_factory=list)
    donors: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    locate: Any = None

    def location(self, handle: Any) -> Any:
        """The op tree's location behind an instruction's."""
        return self.locate(handle) if isinstance(handle, int) and self.locate else handle

    @property
    def instruction_count(self) -> int:
        return sum(len(computation.instructions) for computation in self.computations)


CALLED = ("call", "custom-call")
"""Opcodes whose computations become functions; those of the others become regions."""


def measure(computation: Computation) -> str:
    """Sets the computation's parameters and sizes; what is wrong with it, or ""."""
    parameters: dict[int, Instruction] = {}
    depth, size, spread = 0, 0, 0
    for instruction in computation.instructions:
        size += 1
        spread += 1
        if instruction.opcode == "parameter":
            if instruction.number in parameters:
                return f"parameter {instruction.number} stands twice in {computation.name}"
            parameters[instruction.number] = instruction
        for called in instruction.calls:
            depth = max(depth, called.depth)
            size += called.size
            if instruction.opcode not in CALLED:
                spread += called.spread
    if sorted(parameters) != list(range(len(parameters))):
        return f"the parameters of {computation.name} are not numbered 0, 1, ..."
    computation.parameters = [parameters[number] for number in range(len(parameters))]
    computation.depth, computation.size, computation.spread = depth + 1, size, spread
    if computation.depth > MAXIMUM_DEPTH:
        return f"computations call each other deeper than {MAXIMUM_DEPTH} levels"
    return ""


def check_sizes(program: XlaProgram) -> None:
    """UserError where a short file describes a program that is too large to be written out."""
    count = program.instruction_count
    functions = {
        called
        for computation in program.computations
        for instruction in computation.instructions
        if instruction.opcode in CALLED
        for called in instruction.calls
    }
    written = program.entry.spread + sum(function.spread for function in functions)
    if written > 100_000 + 10 * count or program.entry.size > 1_000_000 + 100 * count:
        raise UserError(
            f"{program.source}: {count} instructions describe {program.entry.size} once every "
            "call is written out; that is too many"
        )
