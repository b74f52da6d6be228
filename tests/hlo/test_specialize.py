"""Programs with open sizes mean at each size what the program of that size means."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.hlo.build import Builder, build_region
from girih.hlo.errors import UserError, VerifyError
from girih.hlo.graph import Function, Module, Region, arguments
from girih.hlo.interpret import interpret
from girih.hlo.parse import parse_module
from girih.hlo.signature import Signature
from girih.hlo.sizes import Symbol, parse_constraint
from girih.hlo.specialize import names_of, specialized
from girih.hlo.symbols import Dim, SymbolicDim, ceildiv
from girih.hlo.text import print_module
from girih.hlo.types import F32, I32, TensorType
from girih.hlo.verify import require_proven_sizes, verify
from girih.hlo.wire import decode, encode

SYMBOLS = {"b": Symbol(1, 9), "s": Symbol(1, 12), "t": Symbol(1, 6)}
SCALAR = TensorType((), F32)


class Program:
    """A random chain of operations; the same choices for symbols and for numbers."""

    def __init__(self, seed: int, sizes: Mapping[str, Dim], private: bool) -> None:
        """private: called functions have symbols of their own."""
        self.chance, self.private = Random(seed), private
        self.is_open = any(isinstance(size, SymbolicDim) for size in sizes.values())
        self.functions: dict[str, Function] = {}
        b, s, t = sizes["b"], sizes["s"], sizes["t"]
        types = [TensorType((b, s, 4), F32), TensorType((b, t), F32)]
        own = arguments(types)
        self.b = Builder()
        x, y = own
        results = [self.chain(x), self.chain(y)]
        body = Region(own, self.b.ops, results)
        functions = {"main": Function("main", body), **self.functions}
        self.module = Module(functions, symbols=SYMBOLS if self.is_open else {})

    def chain(self, x: Any) -> Any:
        for _ in range(self.chance.randint(2, 6)):
            step = self.chance.choice(STEPS)
            if x.rank:
                x = step(self, x, self.chance.randrange(x.rank))
        return x

    def merge(self, x: Any, axis: int) -> Any:
        """Two dims become their product."""
        if axis + 1 == x.rank:
            return x
        dims = list(x.dims)
        dims[axis : axis + 2] = [dims[axis] * dims[axis + 1]]
        return self.b.reshape(x, dims)

    def windows(self, x: Any, axis: int) -> Any:
        """Padded to a multiple of 7, and cut into windows."""
        size = x.dims[axis]
        wide = self.padded(x, axis, 0, -size % 7)
        dims = list(wide.dims)
        dims[axis : axis + 1] = [(size + -size % 7) // 7, 7]
        return self.b.reshape(wide, dims)

    def padded(self, x: Any, axis: int, low: Any, high: Any, interior: int = 0) -> Any:
        def at(value: Any) -> tuple[Any, ...]:
            return tuple(value if d == axis else 0 for d in range(x.rank))

        zero = self.b.constant(0.5, SCALAR)
        return self.b(
            "pad", x, zero, edge_padding_low=at(low), edge_padding_high=at(high),
            interior_padding=at(interior),
        )  # fmt: skip

    def spread(self, x: Any, axis: int) -> Any:
        return self.padded(x, axis, 1, 2, 1)

    def every_second(self, x: Any, axis: int) -> Any:
        """A slice with a stride; sizes become round-ups of halves, also nested."""
        strides = [2 if d == axis else 1 for d in range(x.rank)]
        return self.b(
            "slice", x, start_indices=(0,) * x.rank, limit_indices=tuple(x.dims),
            strides=tuple(strides),
        )  # fmt: skip

    def half(self, x: Any, axis: int) -> Any:
        size = ceildiv(x.dims[axis], 2)
        limits = [size if d == axis else n for d, n in enumerate(x.dims)]
        start = self.b.constant(1, TensorType((), I32))
        return self.b("dynamic_slice", x, *[start] * x.rank, slice_sizes=tuple(limits))

    def pooled(self, x: Any, axis: int) -> Any:
        at = [3 if d == axis else 1 for d in range(x.rank)]
        return self.b.op(
            "reduce_window", [x, self.b.constant(0, SCALAR)],
            {
                "window_dimensions": tuple(at),
                "window_strides": tuple(2 if d == axis else 1 for d in range(x.rank)),
                "padding": tuple((1, 1) if d == axis else (0, 0) for d in range(x.rank)),
            },
            [_add()],
        ).result  # fmt: skip

    def doubled(self, x: Any, axis: int) -> Any:
        return self.b("concatenate", x, self.b("negate", x), dimension=axis)

    def transposed(self, x: Any, axis: int) -> Any:
        order = [*range(axis, x.rank), *range(axis)]
        return self.b.transpose(x, order)

    def means(self, x: Any, axis: int) -> Any:
        """What is left of a sum over one dim is subtracted from each element."""
        total = self.b.op(
            "reduce", [x, self.b.constant(0, SCALAR)], {"dimensions": (axis,)}, [_add()]
        ).result
        others = [d for d in range(x.rank) if d != axis]
        size = self.b("get_dimension_size", x, dimension=axis)
        size = self.b.broadcast(self.b("convert", size, type=SCALAR), total.dims, ())
        mean = self.b("divide", total, size)
        return self.b("subtract", x, self.b.broadcast(mean, x.dims, others))

    def counted(self, x: Any, axis: int) -> Any:
        return self.b("add", x, self.b("iota", type=x.type, iota_dimension=axis))

    def products(self, x: Any, axis: int) -> Any:
        facts = {"lhs_contracting_dimensions": (axis,), "rhs_contracting_dimensions": (axis,)}
        return self.b.op("dot_general", [x, x], facts).result if x.rank < 3 else x

    def looped(self, x: Any, axis: int) -> Any:
        """Three turns of a loop that carries the value, and reads it from outside as well."""
        kinds = [TensorType((), I32), x.type]

        def turns(b: Builder, i: Any, v: Any) -> list[Any]:
            return [b.compare("LT", i, b.constant(3, kinds[0]))]

        def turn(b: Builder, i: Any, v: Any) -> list[Any]:
            again = b("add", b("multiply", v, b.broadcast(b.constant(0.5, SCALAR), v.dims, ())), x)
            return [b("add", i, b.constant(1, kinds[0])), again]

        regions = [build_region(kinds, turns), build_region(kinds, turn)]
        zero = self.b.constant(0, kinds[0])
        return self.b.op("while", [zero, x], {}, regions, kinds).results[1]

    def chosen(self, x: Any, axis: int) -> Any:
        index = self.b.constant(1, TensorType((), I32))
        regions = [build_region([], lambda b, f=f: [b(f, x)]) for f in ("negate", "abs")]
        return self.b.op("case", [index], {}, regions, [x.type]).result

    def called(self, x: Any, axis: int) -> Any:
        """A function is called; where symbols are its own, a second time for other sizes."""
        first = self.call(x, self.function(x.tensor))
        if not self.private:
            return first
        longer = self.doubled(x, 0)
        again = list(self.functions)[-1] if self.is_open else self.function(longer.tensor)
        second = self.call(longer, again)
        return self.b("concatenate", first, second, dimension=0)

    def call(self, x: Any, callee: str) -> Any:
        return self.b.op("call", [x], {"callee": callee}, (), [_merged(x.tensor)]).result

    def function(self, kind: TensorType) -> str:
        """The name of a new function of one argument."""
        dims = list(kind.dims)
        if self.private and self.is_open:
            dims = [
                d if isinstance(d, int) and p else SymbolicDim(f"n{p}") for p, d in enumerate(dims)
            ]
        outer, self.b = self.b, Builder()
        own = arguments([kind.with_dims(dims)])
        result = self.merge(self.b("tanh", own[0]), 0)
        name = f"f{len(self.functions)}"
        self.functions[name] = Function(name, Region(own, self.b.ops, [result]))
        self.b = outer
        return name


def _merged(kind: TensorType) -> TensorType:
    if kind.rank < 2:
        return kind
    return kind.with_dims([kind.dims[0] * kind.dims[1], *kind.dims[2:]])


def _add() -> Region:
    return build_region([SCALAR, SCALAR], lambda b, x, y: [b("add", x, y)])


STEPS = tuple(
    getattr(Program, name)
    for name in (
        "merge", "windows", "spread", "every_second", "half", "pooled", "doubled", "transposed",
        "means", "counted", "products", "looped", "chosen", "called",
    )
)  # fmt: skip
OPEN = {name: SymbolicDim(name) for name in SYMBOLS}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.tuples(st.integers(1, 9), st.integers(1, 12), st.integers(1, 6)))
def test_open_programs_are_the_static_ones(seed, point):
    sizes = dict(zip(SYMBOLS, point, strict=True))
    for private in (False, True):
        static = Program(seed, sizes, private).module
        numbers = np.random.default_rng(seed)
        inputs = [numbers.normal(size=a.dims).astype(np.float32) for a in static.body.arguments]
        wanted = interpret(static, inputs)
        program = Program(seed, OPEN, private).module
        verify(program)
        require_proven_sizes(program)
        again = parse_module(print_module(program))
        assert print_module(decode(encode(again))) == print_module(program)
        for found in (interpret(program, inputs), interpret(again, inputs)):
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one, other)
        fixed = specialized(program, sizes)
        verify(fixed)
        assert not names_of(fixed) and specialized(program, sizes) is fixed
        types = [v.type for op in fixed.walk() for v in op.results]
        assert all(kind.is_static for kind in types if isinstance(kind, TensorType))


def text(body: str, *lines: str) -> Module:
    listed = "".join(f"  {line}\n" for line in lines)
    return parse_module(f'girih 1.0 module "" entry @main {{\n{listed}{body}\n}}\n')


ADD = """
  function @main(%0: f32[b,s], %1: f32[b,t]) {
    %2 = add(%0, %1) : f32[b,s]
    return %2
  }"""


def test_equal_sizes_have_to_be_said():
    """What is unknown is refused where it has to be proven, and at each size that contradicts."""
    open_module = text(ADD)
    verify(open_module)
    with pytest.raises(VerifyError, match=r"add.C1: .* operand 0 is f32\[b,s\]"):
        require_proven_sizes(open_module)
    require_proven_sizes(text(ADD, 'constraint "s == t" by "model.py:4"'))
    with pytest.raises(VerifyError, match=r"add.C1"):
        verify(text(ADD, 'constraint "s+1 <= t"'))
    same = [np.ones((2, 3), np.float32)] * 2
    np.testing.assert_array_equal(interpret(open_module, same)[0], 2 * same[0])
    with pytest.raises(UserError, match=r"add.C1: .* operand 1 is f32\[2,1\]"):
        interpret(open_module, [same[0], same[0][:, :1]])


def test_sizes_that_are_not_admitted():
    module = text(
        ADD, 'symbol b 1 8 by "x.0"', "symbol s 4 64 4 0", "symbol t 0 *",
        'constraint "s == t"', 'constraint "b*s <= 96" by "model.py:4"',
    )  # fmt: skip
    with pytest.raises(UserError, match=r"the size b cannot be 9: it must be from 1 to 8 \(x.0\)"):
        specialized(module, {"b": 9})
    with pytest.raises(UserError, match="it must be from 4 to 64 in steps of 4"):
        specialized(module, {"s": 6})
    with pytest.raises(
        UserError, match=r"b\*s <= 96 does not hold for b = 8, s = 16 \(model.py:4\)"
    ):
        specialized(module, {"b": 8, "s": 16})
    with pytest.raises(UserError, match=r"input 0: dimension 1 is 6, but the size s must be"):
        interpret(module, [np.ones((2, 6), np.float32)] * 2)
    half = specialized(module, {"s": 16})
    assert [str(c) for c in half.constraints] == ["(-t+16) == 0"] or len(half.constraints) == 2
    assert specialized(module, {"q": 7}) is module


def test_symbols_get_other_names():
    module = text(ADD, "symbol b 1 8", "symbol s 4 64 4 0", "symbol t 2 16")
    renamed = specialized(module, {"b": "batch", "s": "length", "t": "length"})
    assert renamed.symbols == {"batch": Symbol(1, 8), "length": Symbol(4, 16, 4, 0)}
    assert str(renamed.body.arguments[1].type) == "f32[batch,length]"
    require_proven_sizes(renamed)


def test_a_signature_has_the_sizes_of_its_module():
    module = text(ADD)
    kinds = [(("b", "s"), "f32"), (("b", "t"), "f32")]
    signature = Signature.plain(kinds, [(("b*s",), "f32")])
    module = Module(module.functions, signature=signature)
    fixed = specialized(module, {"b": 3, "s": "length"}).signature
    assert fixed is not None
    assert [a.dims for a in fixed.arguments] == [(3, "length"), (3, "t")]
    assert fixed.results[0].dims == ("3*length",)
    whole = specialized(module, {"b": 3, "s": 4, "t": 4}).signature
    assert whole is not None and whole.results[0].dims == (12,)


def test_sizes_that_only_operands_tell():
    """As in exports in which each `?` is a size of its own."""
    module = text("""
  function @main(%0: f32[b,3], %1: f32[c,3]) {
    %2 = concatenate(%0, %1) {dimension = 0} : f32[d7,3]
    %3 = iota() {iota_dimension = 0} : f32[d7,3]
    %4 = add(%2, %3) : f32[d8,3]
    return %4
  }""")
    parts = [np.ones((2, 3), np.float32), np.zeros((3, 3), np.float32)]
    lines = np.arange(5, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(interpret(module, parts)[0], np.concatenate(parts) + lines)


def test_negative_sizes():
    module = text("""
  function @main(%0: f32[b]) {
    %1 = slice(%0) {limit_indices = (size "b-2",), start_indices = (0,), strides = (1,)} : f32[b-2]
    return %1
  }""")
    np.testing.assert_array_equal(interpret(module, [np.arange(3, dtype=np.float32)])[0], [0])
    with pytest.raises(UserError, match=r"f32\[b-2\] has a negative size where b = 1"):
        interpret(module, [np.ones(1, np.float32)])
    with pytest.raises(VerifyError, match="slice.C3"):
        require_proven_sizes(module)
    known = Module(module.functions, symbols={"b": Symbol(2)})
    require_proven_sizes(known)
    assert parse_constraint("b >= 2").holds({"b": 2})
