"""C of a kernel, from the text that girih's shared rooms write it in.

Kernels come as functions of typed values in single assignment (LLVM's text): a few dozen kinds of
lines, each of which becomes one statement. Vectors are GCC's and Clang's vector types, whose lanes
loops fill where the language has no operator for it. What has no translation is an
`UnsupportedError` that names the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .words import (
    ATTRIBUTES,
    CASTS,
    FLAGS,
    OPERATORS,
    ORDERS,
    SIGNED,
    SIZES,
    Module,
    bits_of,
    c_name,
    parts_of,
    typed,
    unsupported,
    vector,
)


def c_of(text: str) -> str:
    """The C of a module's text."""
    return Module().translated(text, lambda *given: _Function(*given[:2]).translated(given[2]))


_HIDDEN = '__attribute__((visibility("hidden"))) '


class _Function:
    """One function's lines, statement by statement."""

    def __init__(self, module: Module, line: str) -> None:
        found = re.match(r"define (?:(internal|hidden) )?(.+?) @([\w.]+)\((.*)\) #0", line)
        if found is None:
            raise unsupported(line)
        self.module = module
        linkage, returns, name, parameters = found.groups()
        pairs = [typed(ATTRIBUTES.sub("", part)) for part in parts_of(parameters)]
        self.types = {label: kind for kind, label in pairs}
        given = ", ".join(f"{module.type(kind)} {c_name(label)}" for kind, label in pairs)
        static = {"internal": "static ", "hidden": _HIDDEN}.get(linkage, "")
        if "noinline" in line:
            static += "__attribute__((noinline)) "
        self.head = f"{static}{module.type(returns)} {c_name('@' + name)}({given or 'void'})"
        module.heads.append(self.head)
        self.out: list[str] = []
        self.locals: list[str] = []
        self.block = "entry"
        self.arrivals: dict[str, list[tuple[str, str, str]]] = {}  # phi, by label and origin

    def translated(self, body: Sequence[str]) -> str:
        label = "entry"
        for line in body:
            if line.endswith(":"):
                label = line[:-1]
            elif found := re.match(r"(%\S+) = phi (.*)", line):
                kind, rest = typed(found[2])
                for pair in parts_of(rest):
                    value, origin = parts_of(pair[1:-1])
                    self.arrivals.setdefault(f"{origin[1:]}>{label}", []).append(
                        (found[1], kind, value)
                    )
        for line in body:
            self.line(line.partition(", !")[0] if not line.startswith("switch") else line)
        lines = "\n  ".join([*dict.fromkeys(self.locals), *self.out])
        return f"{self.head}\n{{\n  {lines}\n}}"

    # Operands.

    def value(self, kind: str, text: str) -> str:
        """An operand as an expression."""
        if text[0] == "%":
            return c_name(text)
        lanes, element = vector(kind)
        if lanes:
            if text.startswith("splat"):
                numbers = [self.value(element, typed(text[7:-1])[1])] * lanes
            elif text[0] == "<":
                numbers = [self.value(*typed(part)) for part in parts_of(text[1:-1])]
            else:
                numbers = ["0"] * lanes  # zeroinitializer, poison
            return f"({self.module.type(kind)}){{{', '.join(numbers)}}}"
        if kind[0] == "{":
            return f"({self.module.type(kind)}){{0}}"
        if text[0] == "@":
            return f"((char *){c_name(text)})"
        if text in ("null", "poison", "undef", "zeroinitializer"):
            return f"(({self.module.type(kind)})0)"
        if element in ("float", "double"):
            return f"f{8 * SIZES[element]}({bits_of(element, text)})"
        return f"(({self.module.type(kind)}){bits_of(element, text)})"

    def typed(self, text: str) -> tuple[str, str]:
        """The type and the expression of a text that has both."""
        kind, rest = typed(text)
        return kind, self.value(kind, ATTRIBUTES.sub("", rest))

    # Statements.

    def line(self, line: str) -> None:
        if line.endswith(":"):
            self.block = line[:-1]
            self.out.append(f"{c_name('%' + self.block)}_: ;")
            return
        found = re.match(r"(%\S+) = (.*)", line)
        target, text = (found[1], found[2]) if found else ("", line)
        opcode, _, rest = text.partition(" ")
        words = rest.split(" ")
        while words[0] in FLAGS:
            words.pop(0)
        self.source, self.target = line, target
        if opcode in OPERATORS:
            self.binary(opcode, " ".join(words))
        elif opcode in CASTS:
            self.cast(opcode, " ".join(words))
        elif (own := getattr(self, f"do_{opcode}", None)) is not None:
            own(" ".join(words))
        else:
            raise unsupported(line)

    def give(self, kind: str, expression: str) -> None:
        """The line's result is an expression."""
        self.types[self.target] = kind
        self.locals.append(f"{self.module.type(kind)} {c_name(self.target)};")
        self.out.append(f"{c_name(self.target)} = {expression};")

    def give_lanes(self, kind: str, lane: Callable[[str], str]) -> None:
        """The same, lane by lane of a vector; `lane` gives the expression of one from "" or
        "[i]"."""
        lanes, _ = vector(kind)
        if not lanes:
            self.give(kind, lane(""))
            return
        name = c_name(self.target)
        self.types[self.target] = kind
        self.locals.append(f"{self.module.type(kind)} {name};")
        self.out.append(f"for (int i = 0; i < {lanes}; i++) {name}[i] = {lane('[i]')};")

    def held(self, expression: str, kind: str) -> str:
        """An expression that lanes can be taken of."""
        if vector(kind)[0] and expression[0] == "(":
            name = f"c{len(self.out)}_{len(self.locals)}"
            self.locals.append(f"{self.module.type(kind)} {name};")
            self.out.append(f"{name} = {expression};")
            return name
        return expression

    def binary(self, opcode: str, text: str) -> None:
        kind, rest = typed(text)
        lanes, element = vector(kind)
        left, right = (self.value(kind, part) for part in parts_of(rest))
        if opcode in SIGNED:
            left, right = (self.held(value, kind) for value in (left, right))
            own = f"(int{8 * SIZES[element]}_t)"
            self.give_lanes(kind, lambda i: f"{own}{left}{i} {OPERATORS[opcode]} {own}{right}{i}")
        elif element == "i1" and opcode in ("add", "sub", "mul"):
            raise unsupported(self.source)
        else:
            self.give(kind, f"{left} {OPERATORS[opcode]} {right}")

    def do_fneg(self, text: str) -> None:
        kind, value = self.typed(text)
        self.give(kind, f"-{value}")

    def do_freeze(self, text: str) -> None:
        self.give(*self.typed(text))

    def compared(self, text: str, sign: Callable[[str, str], str], order: str) -> None:
        kind, rest = typed(text)
        left, right = (self.held(self.value(kind, part), kind) for part in parts_of(rest))
        lanes, element = vector(kind)
        result = f"<{lanes} x i1>" if lanes else "i1"
        self.give_lanes(result, lambda i: sign(f"{left}{i}", f"{right}{i}"))

    def do_icmp(self, text: str) -> None:
        order, _, rest = text.partition(" ")
        _, element = vector(typed(rest)[0])
        own = f"(int{8 * SIZES[element]}_t)" if order[0] == "s" else ""
        mark = ORDERS[order if order in ORDERS else order[1:]]
        self.compared(rest, lambda a, b: f"{own}{a} {mark} {own}{b}", order)

    def do_fcmp(self, text: str) -> None:
        order, _, rest = text.partition(" ")

        def said(a: str, b: str) -> str:
            ordered = f"({a} == {a} && {b} == {b})"
            if order in ("ord", "uno"):
                return ordered if order == "ord" else f"!{ordered}"
            plain = f"{a} {ORDERS[order[1:]]} {b}"
            return f"{ordered} && {plain}" if order[0] == "o" else f"!{ordered} || {plain}"

        self.compared(rest, said, order)

    def do_select(self, text: str) -> None:
        (chosen, condition), (kind, left), (_, right) = map(self.typed, parts_of(text))
        if not vector(chosen)[0]:
            self.give(kind, f"{condition} ? {left} : {right}")
            return
        condition, left, right = (
            self.held(value, of) for value, of in ((condition, chosen), (left, kind), (right, kind))
        )
        self.give_lanes(kind, lambda i: f"{condition}{i} ? {left}{i} : {right}{i}")

    def cast(self, opcode: str, text: str) -> None:
        source, _, kind = text.rpartition(" to ")
        before, value = self.typed(source)
        value = self.held(value, before)
        _, narrow = vector(before)
        _, element = vector(kind)
        own = self.module.type("i64" if element == "ptr" and kind != "ptr" else element)
        inner = ""
        if opcode in ("sext", "sitofp"):
            inner = f"(int{8 * SIZES[narrow]}_t)" if narrow != "i1" else "-(int8_t)"
        if opcode in ("fptosi", "sext"):
            inner = f"(int{8 * SIZES[element]}_t){inner}"
        mask = " & 1" if opcode == "trunc" and element == "i1" else ""
        self.give_lanes(kind, lambda i: f"({own}){inner}({value}{i}{mask})")

    def do_bitcast(self, text: str) -> None:
        source, _, kind = text.rpartition(" to ")
        before, value = self.typed(source)
        if "i1>" in before + kind:
            raise unsupported(self.source)
        a, b = self.module.type(before), self.module.type(kind)
        self.give(kind, f"({{ union {{ {a} a; {b} b; }} u; u.a = {value}; u.b; }})")

    # Memory.

    def do_getelementptr(self, text: str) -> None:
        size, base, index = parts_of(text)
        (base_kind, pointer), (index_kind, at) = self.typed(base), self.typed(index)
        lanes = max(vector(base_kind)[0], vector(index_kind)[0])
        at, pointer = self.held(at, index_kind), self.held(pointer, base_kind)
        signed = f"(int{8 * SIZES[vector(index_kind)[1]]}_t)"
        width = f"(int64_t)sizeof({self.module.type(size)})"
        if not lanes:
            self.give("ptr", f"{pointer} + (int64_t){signed}{at} * {width}")
            return
        mine, own = (("[i]" if vector(kind)[0] else "") for kind in (base_kind, index_kind))
        self.give_lanes(
            f"<{lanes} x ptr>",
            lambda i: (
                f"(uint64_t){pointer}{mine} + (uint64_t)((int64_t){signed}{at}{own} * {width})"
            ),
        )

    def do_load(self, text: str) -> None:
        if text.startswith("atomic "):
            kind, pointer = parts_of(text[7:])[:2]
            _, where = self.typed(pointer.split(" seq_cst")[0])
            self.give(kind, f"__atomic_load_n(({self.module.type(kind)} *){where}, 5)")
            return
        kind, pointer = parts_of(text)[:2]
        self.give(kind, f"*({self.module.memory(kind)} *){self.typed(pointer)[1]}")

    def do_store(self, text: str) -> None:
        atomic = text.startswith("atomic ")
        value, pointer = parts_of(text.removeprefix("atomic "))[:2]
        kind, stored = self.typed(value)
        _, where = self.typed(pointer.split(" seq_cst")[0])
        if atomic:
            own = self.module.type(kind)
            self.out.append(f"__atomic_store_n(({own} *){where}, {stored}, 5);")
        else:
            self.out.append(f"*({self.module.memory(kind)} *){where} = {stored};")

    def do_atomicrmw(self, text: str) -> None:
        action, _, rest = text.partition(" ")
        pointer, value = parts_of(rest)
        kind, given = self.typed(value.split(" seq_cst")[0])
        where = self.typed(pointer)[1]
        names = {"xchg": "exchange_n"} | {n: f"fetch_{n}" for n in ("add", "sub", "and", "or")}
        if action not in names:
            raise unsupported(self.source)
        own = self.module.type(kind)
        self.give(kind, f"__atomic_{names[action]}(({own} *){where}, {given}, 5)")

    def do_cmpxchg(self, text: str) -> None:
        pointer, expected, new = parts_of(text)
        (kind, old), (_, fresh) = self.typed(expected), self.typed(new.split(" seq_cst")[0])
        pair, own = f"{{ {kind}, i1 }}", self.module.type(kind)
        self.give(pair, self.value(pair, "poison"))
        name, where = c_name(self.target), self.typed(pointer)[1]
        self.out.append(f"{name}.m0 = {old};")
        given = f"({own} *){where}, &{name}.m0, {fresh}, 0, 5, 5"
        self.out.append(f"{name}.m1 = __atomic_compare_exchange_n({given});")

    def do_fence(self, text: str) -> None:
        self.out.append("__atomic_thread_fence(5);")

    def do_alloca(self, text: str) -> None:
        kind, count, *rest = parts_of(text)
        many = int(typed(count)[1]) if count[0] == "i" else 1
        align = next((part.split(" ")[1] for part in (count, *rest) if part[:5] == "align"), "16")
        room = f"m{c_name(self.target)}"
        self.locals.append(
            f"{self.module.type(kind)} {room}[{max(1, many)}] __attribute__((aligned({align})));"
        )
        self.give("ptr", f"(char *){room}")

    # Vectors and structures.

    def do_insertelement(self, text: str) -> None:
        (kind, whole), (_, value), (_, lane) = map(self.typed, parts_of(text))
        self.give(kind, whole)
        if kind.endswith("ptr>"):
            value = f"(uint64_t){value}"
        self.out.append(f"{c_name(self.target)}[{lane}] = {value};")

    def do_extractelement(self, text: str) -> None:
        (kind, whole), (_, lane) = map(self.typed, parts_of(text))
        element = vector(kind)[1]
        self.give(element, f"({self.module.type(element)}){self.held(whole, kind)}[{lane}]")

    def do_shufflevector(self, text: str) -> None:
        first, second, mask = parts_of(text)
        (kind, left), (_, right) = self.typed(first), self.typed(second)
        shape, said = typed(mask)
        count, (lanes, element) = vector(shape)[0], vector(kind)
        places = [0] * count
        if said[0] == "<":
            places = [int(p) if (p := typed(x)[1]).isdigit() else 0 for x in parts_of(said[1:-1])]
        elif said.startswith("splat"):
            places = [int(typed(said[7:-1])[1])] * count
        left, right = self.held(left, kind), self.held(right, kind)
        picked = [f"{left}[{p}]" if p < lanes else f"{right}[{p - lanes}]" for p in places]
        result = f"<{count} x {element}>"
        self.give(result, f"({self.module.type(result)}){{{', '.join(picked)}}}")

    def do_extractvalue(self, text: str) -> None:
        whole, number = parts_of(text)
        kind, value = self.typed(whole)
        self.give(parts_of(kind[1:-1])[int(number)], f"{value}.m{number}")

    def do_insertvalue(self, text: str) -> None:
        whole, part, number = parts_of(text)
        kind, value = self.typed(whole)
        self.give(kind, value)
        self.out.append(f"{c_name(self.target)}.m{number} = {self.typed(part)[1]};")

    # Control flow.

    def do_phi(self, text: str) -> None:
        kind, _ = typed(text)
        self.locals.append(f"{self.module.type(kind)} {c_name(self.target)}_in;")
        self.give(kind, f"{c_name(self.target)}_in")

    def jump(self, label: str) -> str:
        """To a block of this function, with the values that its phis take from here."""
        label = label.strip().removeprefix("label %")
        moves = [
            f"{c_name(target)}_in = {self.value(kind, value)};"
            for target, kind, value in self.arrivals.get(f"{self.block}>{label}", ())
        ]
        return f"{{ {' '.join(moves)} goto {c_name('%' + label)}_; }}"

    def do_br(self, text: str) -> None:
        parts = parts_of(text)
        if len(parts) == 1:
            self.out.append(self.jump(parts[0]))
            return
        condition = self.typed(parts[0])[1]
        self.out.append(f"if ({condition}) {self.jump(parts[1])} else {self.jump(parts[2])}")

    def do_switch(self, text: str) -> None:
        head, _, cases = text.partition("[")
        value, default = parts_of(head)
        self.out.append(f"switch ({self.typed(value)[1]}) {{")
        for number, label in re.findall(r"\w+ (-?\d+), (label %\S+)", cases):
            self.out.append(f"case {number}: {self.jump(label)}")
        self.out.append(f"default: {self.jump(default)} }}")

    def do_ret(self, text: str) -> None:
        self.out.append("return;" if text == "void" else f"return {self.typed(text)[1]};")

    def do_unreachable(self, text: str) -> None:
        self.out.append("__builtin_unreachable();")

    # Calls.

    def do_tail(self, text: str) -> None:
        self.do_call(text.removeprefix("call "))

    def do_call(self, text: str) -> None:
        if found := re.match(r'(\S+) asm (?:sideeffect )?"", "=\w,0"\((.*)\)', text):
            self.give(found[1], self.typed(found[2])[1])
            return
        kind, rest = typed(text)
        if rest[0] == "(":  # of a function with any number of arguments
            rest = rest[rest.index(")") + 2 :]
        found = re.match(r"([@%][\w.]+)\((.*)\)", rest)
        if found is None:
            raise unsupported(self.source)
        name = found[1]
        given = [self.typed(ATTRIBUTES.sub("", part)) for part in parts_of(found[2])]
        if name.startswith("@llvm."):
            self.intrinsic(name[6:].split("."), kind, given)
            return
        function = c_name(name)
        if name[0] == "%":
            types = ", ".join(self.module.type(kind) for kind, _ in given)
            function = f"(({self.module.type(kind)} (*)({types})){function})"
        call = f"{function}({', '.join(value for _, value in given)})"
        if kind == "void":
            self.out.append(f"{call};")
        else:
            self.give(kind, call)

    def intrinsic(self, parts: list[str], kind: str, given: list[tuple[str, str]]) -> None:
        name, values = parts[0], [value for _, value in given]
        if name in ("memcpy", "memset"):
            self.out.append(f"{'copy' if name == 'memcpy' else 'fill'}({', '.join(values)});")
        elif name in ("prefetch", "assume", "lifetime"):
            return
        elif name in ("expect", "launder"):  # the first argument, of which LLVM is told something
            self.give(kind, values[0])
        elif parts[-1] == "pause" or "hint" in parts:
            self.out.append("PAUSE();")
        elif name == "readcyclecounter":
            self.give(kind, "CLOCK()")
        elif name == "masked":
            self.masked(parts[1], kind, given)
        elif name == "vector" and parts[1] == "reduce":
            self.reduced(parts[2], kind, given)
        else:
            form = self.formula(name, parts, kind, given)
            held = [self.held(value, of) for of, value in given]
            self.give_lanes(
                kind,
                lambda i: form(
                    *(
                        f"{value}{i if vector(of)[0] else ''}"
                        for value, (of, _) in zip(held, given, strict=True)
                    )
                ),
            )

    def formula(
        self, name: str, parts: list[str], kind: str, given: list[tuple[str, str]]
    ) -> Callable[..., str]:
        """An intrinsic of single elements as an expression of its arguments."""
        _, element = vector(kind)
        bits = 8 * SIZES.get(element, 0)
        own, signed = self.module.type(element), f"(int{bits}_t)"
        tail = "f" if element == "float" else ""
        if name in ("fabs", "sqrt", "copysign", "fma"):
            return lambda *x: f"__builtin_{name}{tail}({', '.join(x)})"
        if name in ("smin", "smax", "umin", "umax"):
            cast, mark = signed if name[0] == "s" else "", "<" if name.endswith("min") else ">"
            return lambda a, b: f"{cast}{a} {mark} {cast}{b} ? {a} : {b}"
        if name in ("minimum", "maximum"):
            macro = "LEAST" if name == "minimum" else "MOST"
            return lambda a, b: f"{macro}({own}, uint{bits}_t, {a}, {b})"
        if name in ("fptosi", "fptoui"):
            most, low, high = f"0x1p{bits}", "0", f"({own})-1"
            if name == "fptosi":
                most, low, high = f"0x1p{bits - 1}", f"({own})1 << {bits - 1}", f"({own})-1 >> 1"
            least = f"-{most}" if name == "fptosi" else "0.0"
            cast = signed if name == "fptosi" else own
            rest = f"{least}, {most}, {low}, {high}"
            return lambda a, *_: f"SATURATED({own}, {cast.strip('()')}, {a}, {rest})"
        if name in ("ctpop", "ctlz", "cttz") and bits <= 64:
            if name == "ctpop":
                return lambda a: f"ones({a})"
            if name == "ctlz":
                return lambda a, *_: f"{a} ? __builtin_clzll({a}) - {64 - bits} : {bits}"
            return lambda a, *_: f"{a} ? __builtin_ctzll({a}) : {bits}"
        if name == "abs":
            return lambda a, *_: f"{signed}{a} < 0 ? -{a} : {a}"
        if name in ("fshl", "fshr"):
            if name == "fshr":
                return lambda a, b, n: f"SHIFTED({own}, {bits}, {a}, {b}, {bits} - {n} % {bits})"
            return lambda a, b, n: f"SHIFTED({own}, {bits}, {a}, {b}, {n})"
        raise unsupported(self.source)

    def masked(self, action: str, kind: str, given: list[tuple[str, str]]) -> None:
        """Loads and stores of the lanes that a mask has."""
        held = [self.held(value, of) for of, value in given]
        if action in ("load", "gather"):
            pointers, mask, other = held
            memory = self.module.memory(vector(kind)[1])
            at = "(char *)%s[i]" if action == "gather" else f"%s + i * sizeof({memory})"
            where = f"*({memory} *)({at % pointers})"
            self.give_lanes(kind, lambda i: f"{mask}{i} ? {where} : {other}{i}")
            return
        if action not in ("store", "scatter"):
            raise unsupported(self.source)
        value, pointers, mask = held
        lanes, element = vector(given[0][0])
        memory = self.module.memory(element)
        at = "(char *)%s[i]" if action == "scatter" else f"%s + i * sizeof({memory})"
        self.out.append(
            f"for (int i = 0; i < {lanes}; i++) if ({mask}[i]) "
            f"*({memory} *)({at % pointers}) = {value}[i];"
        )

    def reduced(self, action: str, kind: str, given: list[tuple[str, str]]) -> None:
        """All lanes of a vector as one, in their order."""
        *start, (shape, whole) = given
        whole = self.held(whole, shape)
        lanes = vector(shape)[0]
        mark = {"or": "|", "and": "&", "xor": "^", "add": "+", "mul": "*", "fadd": "+", "fmul": "*"}
        name = c_name(self.target)
        if action in mark:
            self.give(kind, start[0][1] if start else f"{whole}[0]")
            step = f"{name} = {name} {mark[action]} {whole}[i];"
        elif action in ("smin", "smax", "umin", "umax"):
            self.give(kind, f"{whole}[0]")
            form = self.formula(action, [action], kind, [])
            step = f"{name} = {form(name, f'{whole}[i]')};"
        else:
            raise unsupported(self.source)
        self.out.append(f"for (int i = {0 if start else 1}; i < {lanes}; i++) {step}")
