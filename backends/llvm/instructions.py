"""LLVM's instructions as text: arithmetic, calls, vectors and memory, one block at a time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ...hlo.graph import Op
from ...hlo.symbols import SymbolicDim, from_terms
from .places import mark
from .values import (
    Operand,
    Value,
    bits_of,
    constant,
    element_of,
    is_float,
    lanes_of,
    mangled,
    poison,
    vector,
    vector_constant,
)

_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "sdiv": "fdiv", "srem": "frem"}


class Declarations(Protocol):
    """What instructions need of the module around them."""

    fused: bool
    architecture: str

    def declare(self, name: str, text: str) -> None: ...

    def place_of_size(self, size: SymbolicDim) -> int: ...


class Instructions:
    """Straight-line code under construction, in blocks that `start_block` begins."""

    def __init__(self, declarations: Declarations) -> None:
        self._declarations = declarations
        self._lines: list[Any] = []  # texts, and slots: lists of texts that are filled later
        self._allocas: list[str] = []
        self._sizes: dict[tuple[str, Any], Value] = {}
        self.given_sizes: list[SymbolicDim] | None = None  # those that are parameters, one each
        self._has_table = False  # whether the address of the kernel's sizes is known
        self._at_entry: list[str] = []
        self._counter = 0
        self.block = "entry"
        self.mark = ""  # the end of each line: see places.py

    # Raw text.

    @contextlib.contextmanager
    def within(self, op: Op | None) -> Iterator[None]:
        """Code that an operation is computed by; None says nothing."""
        outer = self.mark
        if op is not None:
            self.mark = mark(op, outer)
        yield
        self.mark = outer

    def line(self, text: str) -> None:
        self._lines.append(text + self.mark)

    def emit(self, type_name: str, text: str) -> Value:
        """Appends `%n = text` and hands out %n of the given type."""
        self._counter += 1
        name = f"%v{self._counter}"
        self._lines.append(f"{name} = {text}{self.mark}")
        return Value(type_name, name)

    def label(self) -> str:
        self._counter += 1
        return f"b{self._counter}"

    def start_block(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self.block = label

    def slot(self) -> list[Any]:
        """A place at the current end of the code where `at` can add straight-line code later."""
        slot: list[Any] = []
        self._lines.append(slot)
        return slot

    @contextlib.contextmanager
    def at(self, slot: list[Any]) -> Iterator[None]:
        """Appends to the slot instead of the end. No control flow inside."""
        lines, self._lines = self._lines, slot
        try:
            yield
        finally:
            self._lines = lines

    def constant(self, type_name: str, number: Any) -> Value:
        """A number of a type: a constant, or a size that the call decides."""
        if not isinstance(number, SymbolicDim):
            return constant(type_name, number)
        found = self._sizes.get((type_name, number))
        if found is None:
            found = self._sizes[type_name, number] = self._size(type_name, number)
        return found

    def _size(self, type_name: str, number: SymbolicDim) -> Value:
        """The size in the kernel's table, read once where the function begins, or a parameter."""
        self._counter += 1
        name = f"%s{self._counter}"
        lanes, element = lanes_of(type_name), element_of(type_name)
        if lanes > 1:
            one = self.constant(element, number)
            self._at_entry += [
                f"{name}.0 = insertelement {type_name} poison, {one}, i64 0",
                f"{name} = shufflevector {type_name} {name}.0, {type_name} poison, "
                f"<{lanes} x i32> zeroinitializer",
            ]
        elif element == "i64" and self.given_sizes is not None:
            return Value(type_name, self._sum_of_given(self.given_sizes, name, number), number)
        elif element == "i64":
            self._read(name, number)
        elif element in ("i32", "i16", "i8"):
            self._at_entry.append(f"{name} = trunc {self.constant('i64', number)} to {element}")
        else:
            raise TypeError(f"a size of type {type_name}")
        return Value(type_name, name, number)

    def _read(self, name: str, number: SymbolicDim) -> None:
        """A size from the kernel's table, in which sizes that differ in a factor or by a number are
        one."""
        constant, lines = number.constant, self._at_entry
        factor = math.gcd(*(c for monomial, c in number.terms if monomial))
        factor = factor if number.terms[0][1] > 0 else -factor
        base = (number - constant) // factor
        if base is not number:
            one = self.constant("i64", base).name
            if factor != 1:
                product = f"{name}.m" if constant else name
                lines.append(f"{product} = mul i64 {one}, {factor}")
                one = product
            if constant:
                lines.append(f"{name} = add i64 {one}, {constant}")
            return
        if not self._has_table:
            self._has_table = True
            lines += [
                "%sizes.0 = getelementptr ptr, ptr %args, i64 -1",
                "%sizes = load ptr, ptr %sizes.0, align 8",
            ]
        place = self._declarations.place_of_size(number)
        lines += [
            f"{name}.0 = getelementptr i64, ptr %sizes, i64 {place}",
            f"{name} = load i64, ptr {name}.0, align 8",
        ]

    def _sum_of_given(self, given: list[SymbolicDim], name: str, number: SymbolicDim) -> str:
        """What holds a sum of multiples of products: these are the parameters, which sizes that
        differ in factors alone share."""
        total, lines = "", self._at_entry
        for place, (monomial, factor) in enumerate(number.terms):
            part = str(factor)
            if monomial:
                product = from_terms({monomial: 1})
                if product not in given:
                    given.append(product)
                part = f"%size{given.index(product)}"
                if factor != 1:
                    lines.append(f"{name}.m{place} = mul i64 {part}, {factor}")
                    part = f"{name}.m{place}"
            if total:
                lines.append(f"{name}.a{place} = add i64 {total}, {part}")
                part = f"{name}.a{place}"
            total = part
        return total

    def lift(self, value: Operand, like: str) -> Value:
        """The operand itself, or a constant of type `like`."""
        return value if isinstance(value, Value) else self.constant(like, value)

    def _pair(self, a: Operand, b: Operand) -> tuple[Value, Value]:
        if isinstance(a, Value):
            return a, (b if isinstance(b, Value) else self.constant(a.type, b))
        if isinstance(b, Value):
            return self.constant(b.type, a), b
        return self.constant("i64", a), self.constant("i64", b)

    # Arithmetic. Float or integer is chosen by the operands' type.

    def binary(self, opcode: str, a: Operand, b: Operand) -> Value:
        left, right = self._pair(a, b)
        return self.emit(left.type, f"{opcode} {left.type} {left.name}, {right.name}")

    def _arithmetic(self, opcode: str, a: Operand, b: Operand) -> Value:
        left, right = self._pair(a, b)
        if is_float(left.type):
            opcode = _FLOAT_OPS[opcode]
        return self.emit(left.type, f"{opcode} {left.type} {left.name}, {right.name}")

    def add(self, a: Operand, b: Operand) -> Value:
        left, right = self._pair(a, b)
        if not is_float(left.type):
            if left.number is not None and right.number is not None:
                return self.constant(left.type, left.number + right.number)
            if right.number == 0:
                return left
            if left.number == 0:
                return right
        return self._arithmetic("add", left, right)

    def sub(self, a: Operand, b: Operand) -> Value:
        left, right = self._pair(a, b)
        if not is_float(left.type):
            if left.number is not None and right.number is not None:
                return self.constant(left.type, left.number - right.number)
            if right.number == 0:
                return left
        return self._arithmetic("sub", left, right)

    def mul(self, a: Operand, b: Operand) -> Value:
        left, right = self._pair(a, b)
        if not is_float(left.type):
            if left.number is not None and right.number is not None:
                return self.constant(left.type, left.number * right.number)
            if 0 in (left.number, right.number):
                return self.constant(left.type, 0)
            if right.number == 1:
                return left
            if left.number == 1:
                return right
        return self._arithmetic("mul", left, right)

    def div(self, a: Operand, b: Operand) -> Value:
        """Signed or float division; of non-negative index constants where both are known."""
        left, right = self._pair(a, b)
        if right.number == 1 and not is_float(left.type):
            return left
        return self._arithmetic("sdiv", left, right)

    def udiv(self, a: Operand, b: Operand) -> Value:
        left, right = self._pair(a, b)
        if right.number == 1:
            return left
        if isinstance(left.number, int) and isinstance(right.number, int) and left.number >= 0:
            return self.constant(left.type, left.number // right.number)
        return self.binary("udiv", left, right)

    def urem(self, a: Operand, b: Operand) -> Value:
        left, right = self._pair(a, b)
        if right.number == 1:
            return self.constant(left.type, 0)
        if isinstance(left.number, int) and isinstance(right.number, int) and left.number >= 0:
            return self.constant(left.type, left.number % right.number)
        return self.binary("urem", left, right)

    def neg(self, a: Value) -> Value:
        if is_float(a.type):
            return self.emit(a.type, f"fneg {a}")
        return self.binary("sub", self.constant(a.type, 0), a)

    def land(self, a: Operand, b: Operand) -> Value:
        return self.binary("and", a, b)

    def lor(self, a: Operand, b: Operand) -> Value:
        return self.binary("or", a, b)

    def xor(self, a: Operand, b: Operand) -> Value:
        return self.binary("xor", a, b)

    def lnot(self, a: Value) -> Value:
        return self.binary("xor", a, 1 if a.element == "i1" else -1)

    def shl(self, a: Operand, b: Operand) -> Value:
        return self.binary("shl", a, b)

    def lshr(self, a: Operand, b: Operand) -> Value:
        return self.binary("lshr", a, b)

    def ashr(self, a: Operand, b: Operand) -> Value:
        return self.binary("ashr", a, b)

    def compare(self, predicate: str, a: Operand, b: Operand) -> Value:
        """icmp ("eq ne slt sle sgt sge ult ule ugt uge") or fcmp ("oeq une olt ogt uno ...")."""
        left, right = self._pair(a, b)
        opcode = "fcmp" if is_float(left.type) else "icmp"
        result = vector(lanes_of(left.type), "i1")
        return self.emit(result, f"{opcode} {predicate} {left.type} {left.name}, {right.name}")

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        left, right = self._pair(a, b)
        return self.emit(left.type, f"select {condition}, {left}, {right}")

    def min(self, a: Operand, b: Operand, *, signed: bool = True) -> Value:
        """Integer minimum."""
        left, right = self._pair(a, b)
        return self.intrinsic("llvm.smin" if signed else "llvm.umin", left.type, left, right)

    def max(self, a: Operand, b: Operand, *, signed: bool = True) -> Value:
        """Integer maximum."""
        left, right = self._pair(a, b)
        return self.intrinsic("llvm.smax" if signed else "llvm.umax", left.type, left, right)

    def bit_length(self, number: Operand) -> Operand:
        """How many bits an i64 has that is not negative: a number of a number."""
        if isinstance(number, int):
            return number.bit_length()
        value = self.lift(number, "i64")
        zeros = self.intrinsic("llvm.ctlz", "i64", value, Value("i1", "false"))
        return self.sub(64, zeros)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a*b + c rounded once; two instructions where the target has no fused one."""
        if self._declarations.fused:
            return self.intrinsic("llvm.fma", a.type, a, b, c)
        return self.add(self.mul(a, b), c)

    def cast(self, opcode: str, a: Value, element: str) -> Value:
        """opcode: trunc zext sext fptrunc fpext fptosi fptoui sitofp uitofp ptrtoint inttoptr."""
        result = vector(lanes_of(a.type), element)
        if result == a.type:
            return a
        if a.number is not None and opcode in ("zext", "sext") and a.element != "i1":
            return self.constant(result, a.number)
        return self.emit(result, f"{opcode} {a} to {result}")

    def bitcast(self, a: Value, type_name: str) -> Value:
        return a if a.type == type_name else self.emit(type_name, f"bitcast {a} to {type_name}")

    # Calls.

    def intrinsic(self, name: str, overload: str, *operands: Value, returns: str = "") -> Value:
        """Calls the intrinsic `name.<overload>`; the result has type `returns` or overload."""
        full = f"{name}.{mangled(overload)}" if overload else name
        return self.call(full, returns or overload, *operands, declare=True)

    def call(self, name: str, returns: str, *operands: Value, declare: bool = False) -> Value:
        if declare:
            types = ", ".join(o.type for o in operands)
            self._declarations.declare(name, f"declare {returns} @{name}({types})")
        arguments = ", ".join(map(str, operands))
        if returns == "void":
            self.line(f"call void @{name}({arguments})")
            return Value("void", "")
        return self.emit(returns, f"call {returns} @{name}({arguments})")

    def call_pointer(self, target: Value, returns: str, *operands: Value) -> Value:
        arguments = ", ".join(map(str, operands))
        if returns == "void":
            self.line(f"call void {target.name}({arguments})")
            return Value("void", "")
        return self.emit(returns, f"call {returns} {target.name}({arguments})")

    def ret(self, value: Value | None = None) -> None:
        self.line(f"ret {value}" if value is not None else "ret void")

    # Vectors.

    def splat(self, a: Value, lanes: int) -> Value:
        """The scalar in every lane."""
        if lanes == 1:
            return a
        result = vector(lanes, a.type)
        if a.number is not None:
            return self.constant(result, a.number)
        one = self.emit(result, f"insertelement {result} poison, {a}, i64 0")
        return self.emit(
            result, f"shufflevector {one}, {result} poison, <{lanes} x i32> zeroinitializer"
        )

    def extract(self, a: Value, lane: Operand) -> Value:
        if a.type[0] != "<":
            return a
        return self.emit(a.element, f"extractelement {a}, {self.lift(lane, 'i64')}")

    def insert(self, a: Value, scalar: Value, lane: Operand) -> Value:
        return self.emit(a.type, f"insertelement {a}, {scalar}, {self.lift(lane, 'i64')}")

    def joined(self, scalars: Sequence[Value]) -> Value:
        """Scalars as a vector; one alone stays what it is."""
        if len(scalars) == 1:
            return scalars[0]
        total = poison(vector(len(scalars), scalars[0].type))
        for lane, one in enumerate(scalars):
            total = self.insert(total, one, lane)
        return total

    def shuffle(self, a: Value, b: Value | None, mask: Sequence[int]) -> Value:
        """Lanes of a (0..n-1) and b (n..2n-1); -1 leaves a lane undefined."""
        other = b if b is not None else poison(a.type)
        lanes = ", ".join("i32 poison" if m < 0 else f"i32 {m}" for m in mask)
        result = vector(len(mask), a.element)
        if len(mask) == 1:
            return self.extract(a if mask[0] < a.lanes else other, mask[0] % a.lanes)
        return self.emit(result, f"shufflevector {a}, {other}, <{len(mask)} x i32> <{lanes}>")

    def iota(self, lanes: int, element: str = "i64", step: int = 1) -> Value:
        """<0, step, 2*step, ...>."""
        if lanes == 1:
            return self.constant(element, 0)
        if isinstance(step, SymbolicDim):
            return self.mul(self.iota(lanes, element), self.constant(vector(lanes, element), step))
        return vector_constant(element, [i * step for i in range(lanes)])

    def tail_mask(self, count: Value, lanes: int, *, shifted: bool = False) -> Value:
        """Lane i is true where i < count (an i64). shifted: the count is at least 1, and the target
        has registers for masks, which leaves those of vectors to what is computed."""
        # Narrow lanes compare in one instruction; counts above the lanes are clamped first.
        narrow = self.cast("trunc", self.min(count, lanes), "i32")
        # A mask known to hold one lane makes LLVM 22 store 32 bits of a truncated 16-bit lane,
        # so the count is hidden from constant folding.
        narrow = self.hidden(narrow)
        if shifted:
            kind = "i32" if lanes <= 32 else "i64"
            unwanted = self.sub(bits_of(kind), self.cast("zext", narrow, kind))
            bits = self.lshr(self.constant(kind, -1), unwanted)
            return self.bitcast(self.cast("trunc", bits, f"i{lanes}"), vector(lanes, "i1"))
        return self.compare("ult", self.iota(lanes, "i32"), self.splat(narrow, lanes))

    def hidden(self, value: Value) -> Value:
        """An integer or pointer of which LLVM cannot tell what it is."""
        return self.emit(value.type, f'call {value.type} asm "", "=r,0"({value})')

    # Memory. `align` defaults to the element's own alignment, which is always safe.

    def pointer(self, base: Value, index: Operand, element: str) -> Value:
        """&base[index] of the given element type ("i8" = bytes)."""
        at = self.lift(index, "i64")
        if at.number == 0 and at.type[0] != "<":
            return base
        result = vector(max(lanes_of(at.type), lanes_of(base.type)), "ptr")
        return self.emit(result, f"getelementptr {element}, {base}, {at}")

    def load(self, type_name: str, pointer: Value, *, align: int = 0, extra: str = "") -> Value:
        """extra: metadata or ordering text, e.g. ", !invariant.load !0"."""
        return self.emit(
            type_name, f"load {type_name}, {pointer}, align {align or _align(type_name)}{extra}"
        )

    def store(self, value: Value, pointer: Value, *, align: int = 0) -> None:
        self.line(f"store {value}, {pointer}, align {align or _align(value.type)}")

    def masked_load(
        self, type_name: str, pointer: Value, mask: Value, other: Value | None = None
    ) -> Value:
        """Lanes of false mask are not read and hold `other` (default 0)."""
        name = f"llvm.masked.load.{mangled(type_name)}.p0"
        otherwise = other or Value(type_name, "zeroinitializer")
        declared = f"declare {type_name} @{name}(ptr, {mask.type}, {type_name})"
        self._declarations.declare(name, declared)
        return self.emit(
            type_name,
            f"call {type_name} @{name}"
            f"(ptr align {_align(type_name)} {pointer.name}, {mask}, {otherwise})",
        )

    def masked_store(self, value: Value, pointer: Value, mask: Value) -> None:
        name = f"llvm.masked.store.{mangled(value.type)}.p0"
        self._declarations.declare(name, f"declare void @{name}({value.type}, ptr, {mask.type})")
        self.line(
            f"call void @{name}({value}, ptr align {_align(value.type)} {pointer.name}, {mask})"
        )

    def gather(
        self, type_name: str, pointers: Value, mask: Value | None = None, other: Value | None = None
    ) -> Value:
        """One load per lane through a vector of pointers."""
        lanes = lanes_of(type_name)
        name = f"llvm.masked.gather.{mangled(type_name)}.v{lanes}p0"
        bits = mask or self.constant(vector(lanes, "i1"), True)
        otherwise = other or Value(type_name, "zeroinitializer")
        self._declarations.declare(
            name, f"declare {type_name} @{name}({pointers.type}, {bits.type}, {type_name})"
        )
        return self.emit(
            type_name,
            f"call {type_name} @{name}"
            f"({pointers.type} align {_align(type_name)} {pointers.name}, {bits}, {otherwise})",
        )

    def scatter(self, value: Value, pointers: Value, mask: Value | None = None) -> None:
        """One store per lane through a vector of pointers, in lane order."""
        name = f"llvm.masked.scatter.{mangled(value.type)}.v{value.lanes}p0"
        bits = mask or self.constant(vector(value.lanes, "i1"), True)
        self._declarations.declare(
            name, f"declare void @{name}({value.type}, {pointers.type}, {bits.type})"
        )
        self.line(
            f"call void @{name}"
            f"({value}, {pointers.type} align {_align(value.type)} {pointers.name}, {bits})"
        )

    def alloca(self, type_name: str, count: int = 1, *, align: int = 64) -> Value:
        """Stack memory, allocated once at entry, whatever block this is called in."""
        self._counter += 1
        name = f"%a{self._counter}"
        self._allocas.append(f"{name} = alloca {type_name}, i64 {count}, align {align}")
        return Value("ptr", name)

    def prefetch(self, pointer: Value, *, locality: int = 3, write: bool = False) -> None:
        self._declarations.declare(
            "llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        )
        self.line(
            f"call void @llvm.prefetch.p0({pointer}, i32 {int(write)}, i32 {locality}, i32 1)"
        )

    def copy(self, target: Value, source: Value, count: Operand) -> None:
        """memcpy of `count` bytes; the regions do not overlap."""
        name = "llvm.memcpy.p0.p0.i64"
        self._declarations.declare(name, f"declare void @{name}(ptr, ptr, i64, i1)")
        self.line(f"call void @{name}({target}, {source}, {self.lift(count, 'i64')}, i1 false)")

    def fill(self, target: Value, byte: int, count: Operand) -> None:
        name = "llvm.memset.p0.i64"
        self._declarations.declare(name, f"declare void @{name}(ptr, i8, i64, i1)")
        self.line(f"call void @{name}({target}, i8 {byte}, {self.lift(count, 'i64')}, i1 false)")


def _align(type_name: str) -> int:
    return max(1, bits_of(type_name) // 8)
