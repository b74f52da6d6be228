"""A small, fast builder of LLVM IR text: typed SSA handles, structured loops, vector helpers.

`Module` holds functions; `Function` appends instructions to its body and hands out `Value`s. Types
are LLVM's own spellings ("i64", "float", "<16 x float>", "ptr"). Where a method takes an operand, a
Python number is taken as a constant of the other operand's type. Control flow is structured
(`for_range`, `while_loop`, `if_then`, `if_else`), so no caller ever names a block.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

_SHORT = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}
_FLOATS = frozenset(("float", "double", "half", "bfloat"))
_BITS = {"float": 32, "double": 64, "half": 16, "bfloat": 16, "ptr": 64}
_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "sdiv": "fdiv", "srem": "frem"}


def vector(lanes: int, element: str) -> str:
    """The vector type of `lanes` elements; `lanes` 1 is the scalar itself."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def element_of(type_name: str) -> str:
    """The element type of a vector type, or the scalar type itself."""
    return type_name[type_name.index("x ") + 2 : -1] if type_name[0] == "<" else type_name


def lanes_of(type_name: str) -> int:
    """The number of lanes of a vector type; 1 for a scalar."""
    return int(type_name[1 : type_name.index(" ")]) if type_name[0] == "<" else 1


def bits_of(type_name: str) -> int:
    """The bits of one element of a type."""
    element = element_of(type_name)
    return _BITS[element] if element in _BITS else int(element[1:])


def is_float(type_name: str) -> bool:
    return element_of(type_name) in _FLOATS


def mangled(type_name: str) -> str:
    """A type as it is spelled inside an intrinsic's name: "v16f32", "i64", "p0"."""
    element = element_of(type_name)
    short = _SHORT.get(element, element)
    return f"v{lanes_of(type_name)}{short}" if type_name[0] == "<" else short


def literal(element: str, number: int | float | bool) -> str:
    """The exact text of a constant; floats are written as their bits."""
    if element in ("float", "double"):
        value = float(number)
        if element == "float" and value - value == 0.0:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if element == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', float(number)))[0]:04X}"
    if element == "bfloat":
        return f"0xR{_bfloat_bits(float(number)):04X}"
    if element == "i1":
        return "true" if number else "false"
    if element == "ptr":
        return "null"
    return str(int(number))


def _bfloat_bits(value: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if value != value:
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


class Value:
    """An SSA value, argument, global or constant: `type name` is its spelling as an operand."""

    __slots__ = ("type", "name", "number")

    def __init__(self, type_name: str, name: str, number: int | float | None = None) -> None:
        self.type = type_name
        self.name = name
        self.number = number  # the Python number of a (splat) constant, else None

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    @property
    def lanes(self) -> int:
        return lanes_of(self.type)

    @property
    def element(self) -> str:
        return element_of(self.type)


Operand = Value | int | float | bool


def constant(type_name: str, number: int | float | bool) -> Value:
    """A constant; of a vector type, the number in every lane."""
    element = element_of(type_name)
    text = literal(element, number)
    if type_name[0] == "<":
        text = f"splat ({element} {text})"
    return Value(type_name, text, number)


def vector_constant(element: str, numbers: Sequence[int | float | bool]) -> Value:
    """A constant vector of the given lanes."""
    text = ", ".join(f"{element} {literal(element, n)}" for n in numbers)
    return Value(vector(len(numbers), element), f"<{text}>")


def poison(type_name: str) -> Value:
    return Value(type_name, "poison")


class Loop:
    """What a loop body sees: `index`, the `carried` values; after the loop, `results`."""

    __slots__ = ("index", "carried", "results", "_next")

    def __init__(self, index: Value, carried: tuple[Value, ...]) -> None:
        self.index = index
        self.carried = carried
        self.results: tuple[Value, ...] = ()
        self._next: tuple[Value, ...] | None = None if carried else ()

    def carry(self, *values: Value) -> None:
        """States the carried values of the next iteration; once, at the end of the body."""
        self._next = values


class Branch:
    """An if with two arms: `with branch.then(): ...`, `with branch.otherwise(): ...`.

    Each arm may `give` values; after both, `results` holds the merged ones.
    """

    def __init__(self, function: Function, condition: Value) -> None:
        self._function = function
        self._labels = [function.label() for _ in range(3)]
        self._given: list[tuple[str, tuple[Value, ...]]] = []
        self._values: tuple[Value, ...] = ()
        self.results: tuple[Value, ...] = ()
        function.line(f"br i1 {condition.name}, label %{self._labels[0]}, label %{self._labels[1]}")

    def give(self, *values: Value) -> None:
        self._values = values

    @contextlib.contextmanager
    def then(self) -> Iterator[None]:
        self._function.start_block(self._labels[0])
        yield
        self._close()

    @contextlib.contextmanager
    def otherwise(self) -> Iterator[None]:
        self._function.start_block(self._labels[1])
        yield
        self._close()
        self._function.start_block(self._labels[2])
        (first, left), (second, right) = self._given
        self.results = tuple(
            self._function.emit(
                a.type, f"phi {a.type} [ {a.name}, %{first} ], [ {b.name}, %{second} ]"
            )
            for a, b in zip(left, right, strict=True)
        )

    def _close(self) -> None:
        self._given.append((self._function.block, self._values))
        self._values = ()
        self._function.line(f"br label %{self._labels[2]}")


class Function:
    """One function under construction. `arguments` are its parameters as values."""

    def __init__(
        self,
        module: Module,
        name: str,
        parameters: Sequence[tuple[str, str]],
        returns: str = "void",
        *,
        linkage: str = "",
        attributes: str = "",
    ) -> None:
        self.module = module
        self.name = name
        self.returns = returns
        self.arguments = tuple(
            Value(type_name.split(" ", 1)[0] if type_name[0] != "<" else type_name, f"%{label}")
            for type_name, label in parameters
        )
        signature = ", ".join(f"{type_name} %{label}" for type_name, label in parameters)
        prefix = f"define {linkage} {returns}" if linkage else f"define {returns}"
        self._head = f"{prefix} @{name}({signature}) #0 {attributes}"
        self._allocas: list[str] = []
        self._lines: list[Any] = []  # texts, and slots: lists of texts that are filled later
        self._counter = 0
        self.block = "entry"
        self._cache: dict[tuple[str, str], Value] = {}

    # Raw text.

    def line(self, text: str) -> None:
        self._lines.append(text)

    def emit(self, type_name: str, text: str) -> Value:
        """Appends `%n = text` and hands out %n of the given type."""
        self._counter += 1
        name = f"%v{self._counter}"
        self._lines.append(f"{name} = {text}")
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

    def text(self) -> str:
        body = "\n  ".join(["entry:", *self._allocas, *_flat(self._lines)])
        return f"{self._head} {{\n  {body}\n}}\n"

    def lift(self, value: Operand, like: str) -> Value:
        """The operand itself, or a constant of type `like`."""
        return value if isinstance(value, Value) else constant(like, value)

    def _pair(self, a: Operand, b: Operand) -> tuple[Value, Value]:
        if isinstance(a, Value):
            return a, (b if isinstance(b, Value) else constant(a.type, b))
        if isinstance(b, Value):
            return constant(b.type, a), b
        return constant("i64", a), constant("i64", b)

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
                return constant(left.type, left.number + right.number)
            if right.number == 0:
                return left
            if left.number == 0:
                return right
        return self._arithmetic("add", left, right)

    def sub(self, a: Operand, b: Operand) -> Value:
        left, right = self._pair(a, b)
        if not is_float(left.type):
            if left.number is not None and right.number is not None:
                return constant(left.type, left.number - right.number)
            if right.number == 0:
                return left
        return self._arithmetic("sub", left, right)

    def mul(self, a: Operand, b: Operand) -> Value:
        left, right = self._pair(a, b)
        if not is_float(left.type):
            if left.number is not None and right.number is not None:
                return constant(left.type, left.number * right.number)
            if 0 in (left.number, right.number):
                return constant(left.type, 0)
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
            return constant(left.type, left.number // right.number)
        return self.binary("udiv", left, right)

    def urem(self, a: Operand, b: Operand) -> Value:
        left, right = self._pair(a, b)
        if right.number == 1:
            return constant(left.type, 0)
        if isinstance(left.number, int) and isinstance(right.number, int) and left.number >= 0:
            return constant(left.type, left.number % right.number)
        return self.binary("urem", left, right)

    def neg(self, a: Value) -> Value:
        if is_float(a.type):
            return self.emit(a.type, f"fneg {a}")
        return self.binary("sub", constant(a.type, 0), a)

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

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a*b + c rounded once; two instructions where the target has no fused one."""
        if self.module.fused:
            return self.intrinsic("llvm.fma", a.type, a, b, c)
        return self.add(self.mul(a, b), c)

    def cast(self, opcode: str, a: Value, element: str) -> Value:
        """opcode: trunc zext sext fptrunc fpext fptosi fptoui sitofp uitofp ptrtoint inttoptr."""
        result = vector(lanes_of(a.type), element)
        if result == a.type:
            return a
        if a.number is not None and opcode in ("zext", "sext") and a.element != "i1":
            return constant(result, a.number)
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
            self.module.declare(name, f"declare {returns} @{name}({types})")
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
            return constant(result, a.number)
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
            return constant(element, 0)
        return vector_constant(element, [i * step for i in range(lanes)])

    def tail_mask(self, count: Value, lanes: int) -> Value:
        """Lane i is true where i < count (an i64)."""
        # Narrow lanes compare in one instruction; counts above the lanes are clamped first.
        narrow = self.cast("trunc", self.min(count, lanes), "i32")
        # A mask known to hold one lane makes LLVM 22 store 32 bits of a truncated 16-bit lane,
        # so the count is hidden from constant folding.
        narrow = self.emit("i32", f'call i32 asm "", "=r,0"({narrow})')
        return self.compare("ult", self.iota(lanes, "i32"), self.splat(narrow, lanes))

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
        self.module.declare(name, f"declare {type_name} @{name}(ptr, {mask.type}, {type_name})")
        return self.emit(
            type_name,
            f"call {type_name} @{name}"
            f"(ptr align {_align(type_name)} {pointer.name}, {mask}, {otherwise})",
        )

    def masked_store(self, value: Value, pointer: Value, mask: Value) -> None:
        name = f"llvm.masked.store.{mangled(value.type)}.p0"
        self.module.declare(name, f"declare void @{name}({value.type}, ptr, {mask.type})")
        self.line(
            f"call void @{name}({value}, ptr align {_align(value.type)} {pointer.name}, {mask})"
        )

    def gather(
        self, type_name: str, pointers: Value, mask: Value | None = None, other: Value | None = None
    ) -> Value:
        """One load per lane through a vector of pointers."""
        lanes = lanes_of(type_name)
        name = f"llvm.masked.gather.{mangled(type_name)}.v{lanes}p0"
        bits = mask or constant(vector(lanes, "i1"), True)
        otherwise = other or Value(type_name, "zeroinitializer")
        self.module.declare(
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
        bits = mask or constant(vector(value.lanes, "i1"), True)
        self.module.declare(
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
        self.module.declare(
            "llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        )
        self.line(
            f"call void @llvm.prefetch.p0({pointer}, i32 {int(write)}, i32 {locality}, i32 1)"
        )

    def copy(self, target: Value, source: Value, count: Operand) -> None:
        """memcpy of `count` bytes; the regions do not overlap."""
        name = "llvm.memcpy.p0.p0.i64"
        self.module.declare(name, f"declare void @{name}(ptr, ptr, i64, i1)")
        self.line(f"call void @{name}({target}, {source}, {self.lift(count, 'i64')}, i1 false)")

    def fill(self, target: Value, byte: int, count: Operand) -> None:
        name = "llvm.memset.p0.i64"
        self.module.declare(name, f"declare void @{name}(ptr, i8, i64, i1)")
        self.line(f"call void @{name}({target}, i8 {byte}, {self.lift(count, 'i64')}, i1 false)")

    # Control flow.

    @contextlib.contextmanager
    def for_range(
        self,
        begin: Operand,
        end: Operand,
        step: Operand = 1,
        carried: Sequence[Value] = (),
        *,
        at_least_once: bool = False,
        metadata: str = "",
    ) -> Iterator[Loop]:
        """for index = begin; index < end (signed); index += step, with loop-carried values.

        `at_least_once` promises begin < end, which saves the guard. Constants decide by themselves.
        """
        first, last = self.lift(begin, "i64"), self.lift(end, "i64")
        stride = self.lift(step, first.type)
        known = first.number is not None and last.number is not None
        guard = not (at_least_once or (known and first.number < last.number))  # type: ignore[operator]
        body, done = self.label(), self.label()
        before = self.block
        if guard:
            enter = self.compare("slt", first, last)
            self.line(f"br i1 {enter.name}, label %{body}, label %{done}")
        else:
            self.line(f"br label %{body}")
        self.start_block(body)
        index = self.emit(first.type, "")
        place = len(self._lines) - 1
        loop = Loop(index, tuple(self.emit(value.type, "") for value in carried))
        yield loop
        if loop._next is None or len(loop._next) != len(carried):
            raise ValueError("a loop with carried values must carry() as many, once, at its end")
        following = self.emit(first.type, f"add nsw {first.type} {index.name}, {stride.name}")
        again = self.compare("slt", following, last)
        latch = self.block
        suffix = f", {metadata}" if metadata else ""
        self.line(f"br i1 {again.name}, label %{body}, label %{done}{suffix}")
        pairs = zip(
            (index, *loop.carried), (first, *carried), (following, *loop._next), strict=True
        )
        for offset, (phi, initial, update) in enumerate(pairs):
            text = _phi((initial, before), (update, latch))
            self._lines[place + offset] = f"{phi.name} = {text}"
        self.start_block(done)
        if guard:
            loop.results = tuple(
                self.emit(update.type, _phi((initial, before), (update, latch)))
                for initial, update in zip(carried, loop._next, strict=True)
            )
        else:
            loop.results = loop._next

    @contextlib.contextmanager
    def while_below(self, begin: Operand, end: Value) -> Iterator[Loop]:
        """for index = begin; index < end (signed): the body carries the next index."""
        first = self.lift(begin, end.type)
        head, body, done = self.label(), self.label(), self.label()
        before = self.block
        self.line(f"br label %{head}")
        self.start_block(head)
        index = self.emit(end.type, "")
        place = len(self._lines) - 1
        self.branch(self.compare("slt", index, end), body, done)
        self.start_block(body)
        loop = Loop(index, (index,))
        yield loop
        if loop._next is None or len(loop._next) != 1:
            raise ValueError("a while loop must carry() its next index, once, at its end")
        text = _phi((first, before), (loop._next[0], self.block))
        self._lines[place] = f"{index.name} = {text}"
        self.line(f"br label %{head}")
        self.start_block(done)

    @contextlib.contextmanager
    def if_then(self, condition: Value) -> Iterator[None]:
        """Runs the body where the i1 is true."""
        inside, done = self.label(), self.label()
        self.line(f"br i1 {condition.name}, label %{inside}, label %{done}")
        self.start_block(inside)
        yield
        self.line(f"br label %{done}")
        self.start_block(done)

    def if_else(self, condition: Value) -> Branch:
        return Branch(self, condition)

    def jump(self, label: str) -> None:
        """Ends the block with a jump to a label from `label()`; start another block afterwards."""
        self.line(f"br label %{label}")

    def branch(self, condition: Value, then: str, otherwise: str) -> None:
        self.line(f"br i1 {condition.name}, label %{then}, label %{otherwise}")

    def unreachable(self) -> None:
        self.line("unreachable")


class Module:
    """A translation unit. `attributes` go to every function (see `codegen.Target.attributes`)."""

    def __init__(
        self, attributes: str = "", *, fused: bool = True, architecture: str = "x86_64"
    ) -> None:
        self.attributes = attributes
        self.architecture = architecture
        self.fused = fused
        self._declarations: dict[str, str] = {}
        self._globals: dict[str, str] = {}
        self._data: dict[bytes, Value] = {}
        self.functions: list[Function] = []

    def declare(self, name: str, text: str) -> None:
        self._declarations.setdefault(name, text)

    def has(self, name: str) -> bool:
        """Whether a function of that name was begun."""
        return any(function.name == name for function in self.functions)

    def function(
        self,
        name: str,
        parameters: Sequence[tuple[str, str]],
        returns: str = "void",
        **options: str,
    ) -> Function:
        """parameters: (type with attributes, label), e.g. ("ptr noalias readonly", "a")."""
        function = Function(self, name, parameters, returns, **options)
        self.functions.append(function)
        return function

    def kernel(self, name: str) -> Function:
        """A kernel of the plan's ABI: arguments (ptr args, i64 begin, i64 end, ptr scratch)."""
        parameters = [
            ("ptr noalias readonly", "args"),
            ("i64", "begin"),
            ("i64", "end"),
            ("ptr noalias align 64", "scratch"),
        ]
        return self.function(name, parameters)

    def helper(
        self,
        name: str,
        parameters: Sequence[tuple[str, str]],
        returns: str = "void",
        *,
        inline: str = "",
    ) -> Function:
        """A function that only this module calls. inline: "alwaysinline", "noinline" or ""."""
        return self.function(name, parameters, returns, linkage="internal", attributes=inline)

    def table(self, name: str, element: str, numbers: Sequence[int | float]) -> Value:
        """A constant array in read-only data, 64-byte aligned."""
        values = ", ".join(f"{element} {literal(element, n)}" for n in numbers)
        self._globals[name] = (
            f"@{name} = internal unnamed_addr constant [{len(numbers)} x {element}] [{values}], "
            "align 64"
        )
        return Value("ptr", f"@{name}")

    def data(self, content: bytes) -> Value:
        """The bytes in read-only data, 64-byte aligned; equal contents are one."""
        found = self._data.get(content)
        if found is None:
            name = f"data{len(self._data)}"
            text = "".join(f"\\{byte:02X}" for byte in content)
            self._globals[name] = (
                f"@{name} = internal unnamed_addr constant [{len(content)} x i8] "
                f'c"{text}", align 64'
            )
            found = self._data[content] = Value("ptr", f"@{name}")
        return found

    def text(self) -> str:
        """The module as LLVM IR."""
        parts = [*self._globals.values()]
        parts += [function.text() for function in self.functions]
        parts += self._declarations.values()
        parts.append(f"attributes #0 = {{ {self.attributes} }}")
        return "\n".join(parts) + "\n"


def _flat(lines: Sequence[Any]) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            yield from _flat(line)


def _phi(*incoming: tuple[Value, str]) -> str:
    """The merge of values by the block that control comes from."""
    pairs = ", ".join(f"[ {value.name}, %{block} ]" for value, block in incoming)
    return f"phi {incoming[0][0].type} {pairs}"


def _align(type_name: str) -> int:
    return max(1, bits_of(type_name) // 8)
