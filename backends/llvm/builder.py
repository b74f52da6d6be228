"""A small, fast builder of LLVM IR text: typed SSA handles, structured loops, vector helpers.

`Module` holds functions; `Function` appends instructions to its body and hands out `Value`s. Types
are LLVM's own spellings ("i64", "float", "<16 x float>", "ptr"). Where a method takes an operand, a
Python number is taken as a constant of the other operand's type. Control flow is structured
(`for_range`, `while_loop`, `if_then`, `if_else`), so no caller ever names a block.

Values stand in values.py, instructions in instructions.py; here they become functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...hlo.deciding import surely_below
from .instructions import Instructions
from .values import (
    Operand,
    Value,
    literal,
)

_LONG_BODY = 64  # lines of a loop's body in which an address weighs little


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


class Function(Instructions):
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
        super().__init__(module)
        self.module = module
        self.name = name
        self.returns = returns
        self._last_loop = 0  # the line where the loop begins that began last
        self.arguments = tuple(
            Value(type_name.split(" ", 1)[0] if type_name[0] != "<" else type_name, f"%{label}")
            for type_name, label in parameters
        )
        self._parameters = [f"{type_name} %{label}" for type_name, label in parameters]
        prefix = f"define {linkage} {returns}" if linkage else f"define {returns}"
        self._head, self._attributes = f"{prefix} @{name}", f"#0 {attributes}"

    def text(self) -> str:
        body = "\n  ".join(["entry:", *self._allocas, *self._at_entry, *_flat(self._lines)])
        sizes = [f"i64 %size{number}" for number in range(len(self.given_sizes or ()))]
        signature = ", ".join([*self._parameters, *sizes])
        return f"{self._head}({signature}) {self._attributes} {{\n  {body}\n}}\n"

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
        guard = not (at_least_once or (known and surely_below(first.number, last.number)))
        body, done = self.label(), self.label()
        before = self.block
        if guard:
            enter = self.compare("slt", first, last)
            self.line(f"br i1 {enter.name}, label %{body}, label %{done}")
        else:
            self.line(f"br label %{body}")
        self.start_block(body)
        index = self.emit(first.type, "")
        place = self._last_loop = len(self._lines) - 1
        loop = Loop(index, tuple(self.emit(value.type, "") for value in carried))
        yield loop
        if loop._next is None or len(loop._next) != len(carried):
            raise ValueError("a loop with carried values must carry() as many, once, at its end")
        following = self.emit(first.type, f"add nsw {first.type} {index.name}, {stride.name}")
        again = self.compare("slt", following, last)
        updates = [following, *loop._next]
        if self._hides_growth(place):
            updates = [self._veiled(value) for value in updates]
        latch = self.block
        suffix = f", {metadata}" if metadata else ""
        self.line(f"br i1 {again.name}, label %{body}, label %{done}{suffix}")
        pairs = zip((index, *loop.carried), (first, *carried), updates, strict=True)
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

    def _hides_growth(self, place: int) -> bool:
        """Whether LLVM shall not know how the values grow that the loop carries which begins at a
        line: where there are loops inside, or much else.

        Its loop strength reduction would take a tenth of all time of compiling to keep addresses
        in registers from one turn to the next, of inner loops or all that a long body has, where
        x86 multiplies and adds in no time."""
        if self.module.architecture != "x86_64":
            return False
        return self._last_loop != place or len(self._lines) - place > _LONG_BODY

    def _veiled(self, value: Value) -> Value:
        """A value of the next turn of a loop, such that LLVM cannot tell how it grows. The
        intrinsics stand for their operand; selecting instructions drops them."""
        if value.type == "ptr":
            return self.intrinsic("llvm.launder.invariant.group", "ptr", value)
        if value.type in ("i32", "i64"):
            return self.intrinsic("llvm.expect", value.type, value, value)
        return value

    @contextlib.contextmanager
    def while_below(self, begin: Operand, end: Value) -> Iterator[Loop]:
        """for index = begin; index < end (signed): the body carries the next index."""
        first = self.lift(begin, end.type)
        head, body, done = self.label(), self.label(), self.label()
        before = self.block
        self.line(f"br label %{head}")
        self.start_block(head)
        index = self.emit(end.type, "")
        place = self._last_loop = len(self._lines) - 1
        self.branch(self.compare("slt", index, end), body, done)
        self.start_block(body)
        loop = Loop(index, (index,))
        yield loop
        if loop._next is None or len(loop._next) != 1:
            raise ValueError("a while loop must carry() its next index, once, at its end")
        update = self._veiled(loop._next[0]) if self._hides_growth(place) else loop._next[0]
        text = _phi((first, before), (update, self.block))
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

    def switch(self, value: Value, bodies: Mapping[int, Callable[[], None]]) -> None:
        """The code of the body that stands at the value; none where none does."""
        done, labels = self.label(), {number: self.label() for number in bodies}
        cases = " ".join(f"{value.type} {n}, label %{label}" for n, label in labels.items())
        self.line(f"switch {value}, label %{done} [ {cases} ]")
        for number, emit in bodies.items():
            self.start_block(labels[number])
            emit()
            self.jump(done)
        self.start_block(done)

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
        self._in_parts = False
        self.functions: list[Function] = []
        self.sizes: list[Any] = []  # what the call decides, in the order of the kernel's table

    def place_of_size(self, size: Any) -> int:
        """Where a size stands in the kernel's table."""
        if size not in self.sizes:
            self.sizes.append(size)
        return self.sizes.index(size)

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
        return self.function(name, parameters, linkage="internal" if self._in_parts else "")

    @contextlib.contextmanager
    def parts(self) -> Iterator[None]:
        """Kernels that are begun inside are parts of one that only this module calls."""
        self._in_parts = True
        try:
            yield
        finally:
            self._in_parts = False

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
