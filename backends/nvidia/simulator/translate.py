"""Blocks of PTX become Python functions over numpy arrays, compiled when they first run.

Inside a block registers are local variables `r<number><kind>`; kinds are views of the same bits
("u4", "i4", "f4"). Between blocks a register lives in `S.R[number]` in its canonical kind, as an
array over the threads of the batch, or as a scalar while it is the same for all of them. Every
array in `S.R` belongs to one register alone, so a block that runs for some threads (`A`) may write
into it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ....hlo.errors import UserError
from .flow import Block, Flow, Node, registers_of
from .memory import DTYPES
from .syntax import (
    SIZES,
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

BLANK: dict[str, Any] = {**DTYPES, "np": np, "where": np.where}
_ALIAS = re.compile(r"[A-Za-z_]\w*(\.view\(\w+\))?$")
_TYPE = re.compile(r"([usbf])(8|16|32|64)$")


def kind_of(type_: str) -> str:
    """ "s32" -> "i4", "b16" -> "u2", "pred" -> "b1"."""
    if type_ == "pred":
        return "b1"
    match = _TYPE.match(type_)
    if match:
        letter = {"u": "u", "b": "u", "s": "i", "f": "f"}[match.group(1)]
        return letter + str(int(match.group(2)) // 8)
    if type_ in SIZES and SIZES[type_] in (1, 2, 4, 8):
        return f"u{SIZES[type_]}"
    raise UserError(f"values of PTX type .{type_} are not simulated")


def unsigned(kind: str) -> str:
    return "u" + kind[1:]


def put(S: Any, old: Any, A: np.ndarray, value: Any) -> np.ndarray:
    """`old` with `value` at the threads `A`, in place where `old` is an array."""
    if not old.ndim:
        old = np.full(S.T, old)
    old[A] = value
    return old


def gather(value: Any, A: np.ndarray) -> Any:
    return value.take(A) if value.ndim else value


BLANK.update(put=put, gather=gather)


class Emitter:
    """Source of one block. Rooms of instructions call `use`, `define`, `line` and `helper`."""

    def __init__(self, program: Program, block: Block, masked: bool) -> None:
        self.program, self.block, self.masked = program, block, masked
        self.lines: list[str] = []
        self.have: dict[int, dict[str, str]] = {}
        self.written: set[int] = set()
        self.guard: str | None = None
        self.node: Node | None = None
        self.space = program.space
        self.count = 0

    # ------------------------------------------------------------ names

    def helper(self, function: Callable[..., Any]) -> str:
        name = function.__name__
        if self.space.setdefault(name, function) is not function:
            name = f"{name}_{len(self.space)}"
            self.space[name] = function
        return name

    def constant(self, kind: str, value: int) -> str:
        """A numpy scalar with the bits of `value`."""
        key = (kind, value)
        name = self.program.constants.get(key)
        if name is None:
            name = self.program.constants[key] = f"c{len(self.program.constants)}"
            if kind == "b1":
                self.space[name] = np.bool_(value)
            else:
                size = int(kind[1:])
                bits = (value % (1 << 8 * size)).to_bytes(size, "little")
                self.space[name] = np.frombuffer(bits, DTYPES[kind])[0]
        return name

    def fresh(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def line(self, text: str) -> None:
        self.lines.append(text)

    def error(self, instruction: Instruction, why: str) -> UserError:
        return UserError(
            f"PTX line {instruction.line}: '{instruction.opcode}': {why}\n    {instruction.text}"
        )

    def only(self, instruction: Instruction, *allowed: str) -> None:
        """Refuses modifiers between the name and the last type that are not `allowed`."""
        for part in instruction.parts[1:-1]:
            if part not in allowed:
                raise self.error(instruction, f"modifier .{part} is not simulated")

    # ------------------------------------------------------------ reading

    def use(self, operand: Operand, kind: str) -> str:
        """Source of the operand's value, as an array (or scalar) of `kind`."""
        if isinstance(operand, Register):
            return self._register(operand, kind)
        if isinstance(operand, Immediate):
            return self.constant(kind, self._bits(operand, kind))
        if isinstance(operand, Negated):
            return f"(~{self._register(operand.register, 'b1')})"
        if isinstance(operand, Special):
            value = f"{self.helper(self.program.special)}(S, A, {operand.name[1:]!r})"
            return f"{value}.astype({kind})"
        if isinstance(operand, Symbol):
            return self._symbol(operand, kind)
        raise UserError(f"operand {operand} cannot be read as a value of {kind}")

    def _bits(self, operand: Immediate, kind: str) -> int:
        if operand.float_bits == 64 and kind in ("f4", "f2"):
            value = np.uint64(operand.value).view(np.float64)
            return int(value.astype(DTYPES[kind]).view(DTYPES[unsigned(kind)]))
        if operand.float_bits == 32 and kind == "f8":
            value = np.uint32(operand.value).view(np.float32)
            return int(value.astype(np.float64).view(np.uint64))
        return operand.value

    def _symbol(self, operand: Symbol, kind: str) -> str:
        place = self.program.places.get(operand.name)
        if place is not None:
            return self.constant(kind, place + operand.offset)
        if operand.name not in self.program.globals:
            raise UserError(f"symbol '{operand.name}' is not known")
        value = f"(S.symbols[{operand.name!r}] + {self.constant('u8', operand.offset)})"
        return (
            value
            if kind == "u8"
            else f"{value}.view(i8)"
            if kind == "i8"
            else (f"{value}.astype({kind})")
        )

    def _register(self, register: Register, kind: str) -> str:
        number = register.number
        known = self.have.get(number)
        if known is None:
            own = self.program.kinds[number]
            name = f"r{number}{own}"
            if self.masked:
                self.line(f"{name} = gather(R[{number}], A)")
            else:
                self.line(f"{name} = R[{number}]")
            known = self.have[number] = {own: name}
        if kind in known:
            return known[kind]
        size = int(kind[1:])
        own, name = next(iter(known.items()))
        if own == "b1" or kind == "b1":
            raise UserError(f"register '{register.name}' (.{register.type}) read as {kind}")
        width = int(own[1:])
        if width == size:
            view = f"r{number}{kind}"
            self.line(f"{view} = {name}.view({kind})")
            known[kind] = view
            return view
        if own[0] != "u":
            name = self._register(register, f"u{width}")
        if kind[0] == "f":
            return f"{name}.astype(u{size}).view({kind})"
        if size > width and kind[0] == "i":
            return f"{name}.view(i{width}).astype({kind})"
        return f"{name}.astype({kind})"

    def address(self, operand: Operand) -> tuple[str, int]:
        """An int64 base and a constant offset."""
        if isinstance(operand, Address):
            base, offset = operand.base, operand.offset
        else:
            base, offset = operand, 0
        if isinstance(base, Symbol):
            place = self.program.places.get(base.name)
            if place is not None:
                return self.constant("i8", place + base.offset), offset
        if isinstance(base, Register) and SIZES[base.type] == 4:
            return f"{self._register(base, 'u4')}.astype(i8)", offset
        return self.use(base, "i8"), offset

    # ------------------------------------------------------------ writing

    def define(self, operand: Operand, kind: str, source: str) -> None:
        """The register `operand` gets the value that `source` has, of `kind`."""
        if isinstance(operand, Sink):
            if "(" in source:
                self.line(source)
            return
        if not isinstance(operand, Register):
            raise UserError(f"{operand} is no register to write to")
        if kind != "b1" and operand.type != "pred":
            kind, source = self._fit(SIZES[operand.type], kind, source)
        elif kind != "b1" or operand.type != "pred":
            raise UserError(f"register '{operand.name}' (.{operand.type}) written as {kind}")
        if self.guard is not None:
            old = self._register(operand, kind)
            source = f"where({self.guard}, {source}, {old})"
        elif _ALIAS.match(source):
            source = f"{source}.copy()"
        name = f"r{operand.number}{kind}"
        self.line(f"{name} = {source}")
        self.have[operand.number] = {kind: name}
        self.written.add(operand.number)

    def _fit(self, width: int, kind: str, source: str) -> tuple[str, str]:
        size = int(kind[1:])
        if size == width:
            return kind, source
        if size < width and kind[0] == "i":
            return f"i{width}", f"({source}).astype(i{width})"
        if kind[0] == "f":
            source = f"({source}).view(u{size})"
        return f"u{width}", f"({source}).astype(u{width})"

    # ------------------------------------------------------------ the block

    def emit(self, node: Node) -> None:
        instruction = node.instruction
        self.node = node
        self.guard = None
        if node.entry.kind == "expression" and instruction.guard is not None:
            predicate = self._register(instruction.guard, "b1")
            self.guard = f"(~{predicate})" if instruction.guard_negated else predicate
        if node.entry.kind == "operation":
            self._operate(node)
            return
        try:
            node.entry.function(self, instruction)
        except (IndexError, KeyError, AttributeError, ValueError, TypeError) as problem:
            raise self.error(instruction, f"this form is not known ({problem!r})") from problem

    def _operate(self, node: Node) -> None:
        bound = node.bound
        assert bound is not None
        sources = []
        for operand, kind in bound.sources:
            if isinstance(operand, Vector):
                sources.append("[" + ", ".join(self._source(o, kind) for o in operand.items) + "]")
            else:
                sources.append(self._source(operand, kind))
        result = self.fresh()
        self.line(f"A, {result} = S.operate(A, {node.number}, [{', '.join(sources)}])")
        for position, (operand, kind) in enumerate(bound.targets):
            value = f"{result}[{position}]"
            if isinstance(operand, Vector):
                for number, item in enumerate(operand.items):
                    if not isinstance(item, Sink):
                        self.define(item, kind, f"{value}[{number}]")
            elif not isinstance(operand, Sink):
                self.define(operand, kind, value)

    def _source(self, operand: Operand, kind: str) -> str:
        if kind != "address":
            return self.use(operand, kind)
        base, offset = self.address(operand)
        return f"{base} + {offset}" if offset else base

    def finish(self) -> str:
        """Source of the whole function."""
        block = self.block
        result = "None"
        if block.guard is not None:
            predicate = self._register(block.guard, "b1")
            result = f"~{predicate}" if block.negated else predicate
        elif block.index is not None:
            result = self.use(block.index, "i8")
        for number in sorted(self.written):
            if not block.live_out >> number & 1:
                continue
            own = self.program.kinds[number]
            name = self.have[number].get(own)
            if name is None:
                other = next(iter(self.have[number].values()))
                name = f"{other}.view({own})"
            if self.masked:
                self.line(f"R[{number}] = put(S, R[{number}], A, {name})")
            else:
                self.line(f"R[{number}] = {name}")
        body = "\n    ".join(self.lines)
        return f"def block(S, A):\n    R = S.R\n    {body}\n    return {result}\n"


class Program:
    """An entry, ready to run: blocks with their functions, places of its variables."""

    def __init__(
        self,
        flow: Flow,
        places: dict[str, int],
        globals_: set[str],
        special: Callable[..., Any],
    ) -> None:
        self.flow, self.places, self.globals, self.special = flow, places, globals_, special
        self.nodes = flow.nodes
        self.call_parameters: set[str] = set()  # places of the calls' arguments, per thread
        self.communicates = False  # may its blocks agree on an order?
        self.cooperative = any(
            n.entry.cooperative or any(p.startswith("shared") for p in n.instruction.parts)
            for n in self.nodes
        )
        self.lockstep = all(n.entry.lockstep for n in self.nodes)
        self.operations = any(n.bound is not None and not n.entry.lockstep for n in self.nodes)
        self.space: dict[str, Any] = dict(BLANK)
        self.constants: dict[tuple[str, int], str] = {}
        self.kinds = self._canonical()
        blocks = flow.blocks
        self.counts = [len(b.nodes) + (b.instruction is not None) for b in blocks]
        self.functions: list[list[Callable[..., Any] | None]] = [[None, None] for _ in blocks]
        self.initial = [DTYPES[k].type(0) for k in self.kinds]
        self.touched = [
            (
                sum(1 << r for r in {r for n in b.nodes for r in n.reads}),
                sum(1 << r for r in {r for n in b.nodes for r in n.writes}),
            )
            for b in (blocks if self.operations else ())
        ]

    def _canonical(self) -> list[str]:
        """Registers live in the kind that most of their instructions want."""
        votes = [0] * len(self.flow.registers)
        for node in self.flow.nodes:
            parts = node.instruction.parts
            types = [p for p in parts[1:] if p in ("f32", "f64")]
            if not types:
                continue
            for operand in node.instruction.operands:
                for register in registers_of(operand) if not isinstance(operand, Address) else ():
                    if SIZES[register.type] == SIZES[types[0]]:
                        votes[register.number] += 1
        kinds = []
        for register, vote in zip(self.flow.registers, votes, strict=True):
            kind = kind_of(register.type)
            if kind[0] == "i" or (vote and kind in ("u4", "u8")):
                kind = ("f" if vote else "u") + kind[1:]
            kinds.append(kind)
        return kinds

    def function(self, rank: int, masked: bool) -> Callable[..., Any]:
        found = self.functions[rank][masked]
        if found is None:
            block = self.flow.blocks[rank]
            emitter = Emitter(self, block, masked)
            if self.operations and block.nodes and not block.blocking:
                emitter.line(f"if S.flying: S.check_flying(A, {rank})")
            for node in block.nodes:
                emitter.emit(node)
            source = emitter.finish()
            made: dict[str, Any] = {}
            exec(compile(source, f"<ptx block {rank}>", "exec"), self.space, made)
            found = self.functions[rank][masked] = made["block"]
        return found
