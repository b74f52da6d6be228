"""Random structured programs: branches, loops with breaks, early returns, against Python."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import numpy as np
import pytest

from .elementwise import kernel, run

MASK = 0xFFFFFFFF
THREADS = 96
State = list[int]


class Left(Exception):
    """The thread has returned."""


class Writer:
    """Writes a program as PTX and as Python functions over one thread's four variables."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.labels = 0
        self.predicates = 0
        self.counters = 0

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def emit(self, line: str) -> None:
        self.lines.append("  " + line)

    def variable(self) -> int:
        return self.random.randrange(4)

    def assignment(self) -> Callable[[State], None]:
        d, a, b = self.variable(), self.variable(), self.variable()
        name, function = self.random.choice(
            [
                ("add.u32", lambda x, y: x + y),
                ("sub.u32", lambda x, y: x - y),
                ("xor.b32", lambda x, y: x ^ y),
                ("mul.lo.u32", lambda x, y: x * y),
                ("min.u32", min),
            ]
        )
        constant = self.random.randrange(1, 9) if self.random.random() < 0.4 else None
        self.emit(f"{name} %r{d}, %r{a}, {f'%r{b}' if constant is None else constant};")

        def go(state: State) -> None:
            state[d] = function(state[a], state[b] if constant is None else constant) & MASK

        return go

    def condition(self) -> tuple[str, Callable[[State], bool]]:
        self.predicates += 1
        name, a = f"%q{self.predicates}", self.variable()
        bits, value = self.random.choice([1, 3, 7]), self.random.randrange(4)
        self.emit(f"and.b32 %r20, %r{a}, {bits};")
        self.emit(f"setp.gt.u32 {name}, %r20, {value};")
        return name, lambda state: (state[a] & bits) > value

    def choice(self, depth: int, loop: tuple[str, str] | None) -> Callable[[State], str]:
        predicate, truth = self.condition()
        other, end = self.label(), self.label()
        self.emit(f"@!{predicate} bra {other};")
        first = self.block(depth - 1, loop)
        self.emit(f"bra {end};")
        self.lines.append(f"{other}:")
        second = self.block(depth - 1, loop) if self.random.random() < 0.6 else lambda state: ""
        self.lines.append(f"{end}:")
        return lambda state: first(state) if truth(state) else second(state)

    def loop(self, depth: int) -> Callable[[State], str]:
        self.counters += 1
        counter, a, bits = f"%n{self.counters}", self.variable(), self.random.choice([1, 3, 7])
        head, end = self.label(), self.label()
        predicate = f"%c{self.counters}"
        self.emit(f"and.b32 {counter}, %r{a}, {bits};")
        self.lines.append(f"{head}:")
        self.emit(f"setp.eq.u32 {predicate}, {counter}, 0;")
        self.emit(f"@{predicate} bra {end};")
        self.emit(f"sub.u32 {counter}, {counter}, 1;")
        body = self.block(depth - 1, (head, end))
        self.emit(f"bra {head};")
        self.lines.append(f"{end}:")

        def go(state: State) -> str:
            for _ in range(state[a] & bits):
                if body(state) == "break":
                    break
            return ""

        return go

    def jump(self, loop: tuple[str, str] | None) -> Callable[[State], str]:
        predicate, truth = self.condition()
        if loop is None or self.random.random() < 0.3:
            done = self.label()
            self.emit(f"@!{predicate} bra {done};")
            for k in range(4):
                self.emit(f"st.global.u32 [%d1+{4 * k}], %r{k};")
            self.emit("ret;")
            self.lines.append(f"{done}:")

            def leave(state: State) -> str:
                if truth(state):
                    raise Left
                return ""

            return leave
        kind = self.random.choice(["continue", "break"])
        self.emit(f"@{predicate} bra {loop[kind == 'break']};")
        return lambda state: kind if truth(state) else ""

    def block(self, depth: int, loop: tuple[str, str] | None) -> Callable[[State], str]:
        parts: list[Callable[[State], str | None]] = []
        for _ in range(self.random.randrange(1, 5)):
            draw = self.random.random()
            if depth and draw < 0.3:
                parts.append(self.choice(depth, loop))
            elif depth and draw < 0.5:
                parts.append(self.loop(depth))
            elif draw < 0.6:
                parts.append(self.jump(loop))
            else:
                parts.append(self.assignment())

        def go(state: State) -> str:
            for part in parts:
                outcome = part(state)
                if outcome:
                    return outcome
            return ""

        return go


@pytest.mark.parametrize("seed", range(40))
def test_program(seed: int) -> None:
    writer = Writer(seed)
    program = writer.block(4, None)
    declared = f"""
  .reg .pred %q<{writer.predicates + 1}>, %c<{writer.counters + 1}>;
  .reg .b32 %n<{writer.counters + 1}>;
  mad.wide.u32 %d1, %t, 16, %a0;
  mov.u32 %r0, %t;
  mul.lo.u32 %r1, %t, 7;
  xor.b32 %r2, %t, 21;
  mov.u32 %r3, 5;
"""
    tail = "\n".join(f"  st.global.u32 [%d1+{4 * k}], %r{k};" for k in range(4))
    text = kernel(declared + "\n".join(writer.lines) + "\n" + tail, 1)
    together = text.replace("  mov.u32 %r3, 5;", "  mov.u32 %r3, 5;\n  activemask.b32 %r59;")
    expected = []
    for thread in range(THREADS):
        state = [thread, thread * 7, thread ^ 21, 5]
        with contextlib.suppress(Left):
            program(state)
        expected.append(state)
    for form, draw in ((text, 0), (together, 0), (together, seed + 1)):
        found, _ = run(form, [], [(np.uint32, 4 * THREADS)], (3, 1, 1), (32, 1, 1), seed=draw)
        assert (found[0].reshape(-1, 4) == np.asarray(expected, np.uint32)).all()
