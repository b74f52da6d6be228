"""The text and wire forms give back the same module; damaged ones give one clear error."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.errors import CompilerBug, UnsupportedError, UserError, VerifyError
from girih.hlo.graph import Dense, Function, Module, Op, Origin, Region, Weight
from girih.hlo.ops import find
from girih.hlo.parse import parse_module
from girih.hlo.sharding import parse_sharding
from girih.hlo.size_text import parse_dim
from girih.hlo.sizes import Symbol, parse_constraint
from girih.hlo.symbols import SymbolicDim
from girih.hlo.text import print_module
from girih.hlo.types import (
    BF16,
    C64,
    F32,
    F64,
    I1,
    I4,
    I32,
    TOKEN,
    ElementType,
    QuantizedType,
    TensorType,
    TupleType,
)
from girih.hlo.verify import FUSED, HLO, verify
from girih.hlo.wire import decode, encode, fingerprint, read_message


def same(module: Module) -> None:
    """Both forms are fixed points and agree with each other."""
    text = print_module(module, origins=True)
    parsed = parse_module(text)
    assert print_module(parsed, origins=True) == text
    data = encode(module)
    decoded = decode(data)
    assert print_module(decoded, origins=True) == text
    assert encode(decoded) == data == encode(parsed)


def small() -> Module:
    f = TensorType((2, 3), F32)
    scalar = TensorType((), F32)

    def body(b: Builder, x, y):
        b.origin = (Origin("model.py", 41, "encoder/layer.0"), Origin(name='odd "name"'))
        total = b("add", x, b.constant(0.5, f))
        zero = b.constant(0.0, scalar)
        region = build_region([scalar, scalar], lambda b, p, q: [b("add", p, q)])
        sums = b("reduce", total, zero, regions=(region,), dimensions=(1,))
        w = b("weight", type=TensorType((3, 3), F32), weight="layer.w")
        joined = b("concatenate", total, y, w, dimension=0)
        return [sums, joined]

    module = build_module([f, f], body, name='a "quoted" name')
    weight = Weight("layer.w", np.eye(3, dtype=np.float32), aliases=("tied",))
    return module.with_weights({"layer.w": weight}).with_notes("line one\nline two")


def test_a_module_with_regions_weights_origins_and_notes():
    module = small()
    verify(module, HLO)
    same(module)


@pytest.mark.parametrize("element", list(ElementType.table.values()), ids=lambda e: e.name)
def test_constants_of_every_element_type(element):
    values = np.arange(6).reshape(2, 3) % 2
    array = values.astype(element.dtype)
    module = build_module(
        [], lambda b: [b.constant(array), b.constant(Dense.splat(1, TensorType((4,), element)))]
    )
    same(module)
    decoded = decode(encode(module))
    assert decoded.body.ops[0].value.array.tobytes() == array.tobytes()


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38])
def test_hostile_floats_keep_their_bits(value):
    for dtype in (np.float32, np.float64):
        array = np.array([value, 1.5], dtype)
        same(build_module([], lambda b, a=array: [b.constant(a)]))
        payload = array.view(np.uint32 if dtype == np.float32 else np.uint64) | 1
        same(build_module([], lambda b, p=payload, d=dtype: [b.constant(p.view(d))]))


attribute_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=8)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=6), attribute_values, max_size=4))
def test_any_attribute(attributes):
    f = TensorType((), F32)
    module = build_module([f], lambda b, x: [x])
    same(Module(module.functions, attributes=attributes))


@pytest.mark.parametrize(
    "type",
    [
        TensorType((SymbolicDim("batch"), 4), F32),
        TensorType((parse_dim("2*batch+seq-1"),), BF16),
        TensorType((parse_dim("2*batch*seq"), parse_dim("max((seq-1)//2,4)-batch % 7")), BF16),
        TensorType((), I1),
        TensorType((0, 3), I4),
        TensorType((2,), C64, parse_sharding('<@mesh, [{"x", ?}]>')),
        TensorType((2,), QuantizedType(ElementType.table["i8"], F32, None, [0.5], [3], -128, 127)),
        TensorType(
            (2,), QuantizedType(ElementType.table["i8"], F32, 0, [0.5, 0.1], [3, 0], -128, 127)
        ),
        TupleType((TensorType((2,), F64), TupleType((TOKEN,)))),
        TOKEN,
    ],
    ids=str,
)
def test_every_kind_of_type(type):
    module = build_module([type], lambda b, x: [x])
    same(Module(module.functions, symbols={"batch": Symbol(1, 64), "seq": Symbol(2)}))


def test_facts_of_sizes():
    kind = TensorType((SymbolicDim("batch"), SymbolicDim("seq")), F32)
    module = build_module([kind], lambda b, x: [x])
    symbols = {"batch": Symbol(1, 64, origin="x.0"), "seq": Symbol(16, 512, 16, 0, "model.py:7")}
    constraints = (
        parse_constraint("batch*seq <= 4096", "model.py:9"),
        parse_constraint("seq % 32 == 0"),
        parse_constraint("batch != 7"),
    )
    same(Module(module.functions, symbols=symbols, constraints=constraints))


def test_what_needs_a_newer_reader_of_sizes():
    """Sums of multiples of symbols are written as the first format did."""

    def needs(dim: str, symbol: Symbol) -> str:
        module = build_module([TensorType((parse_dim(dim),), F32)], lambda b, x: [x])
        return read_message(encode(Module(module.functions, symbols={"n": symbol}))).minimum_reader

    assert needs("5-2*n-m", Symbol(0, 4)) == "1.0"
    assert needs("n//2", Symbol(0, 4)) == "1.5"
    assert needs("n", Symbol(0, 4, 2)) == "1.5"
    module = build_module([TensorType((parse_dim("5-n"),), F32)], lambda b, x: [x])
    text = read_message(encode(Module(module.functions, symbols={"n": Symbol(origin="x.0")})))
    assert text.types[0].tensor.dims[0].expression == "-1*n+5"
    older = encode(Module(module.functions, symbols={"n": Symbol(origin="x.0")}), "1.0")
    assert decode(older).symbols == {"n": Symbol()}


def test_truncated_and_mutated_text_gives_user_errors():
    text = print_module(small(), origins=True)
    rng = np.random.default_rng(0)
    for _ in range(300):
        cut = int(rng.integers(len(text)))
        other = chr(int(rng.integers(32, 126)))
        broken = text[:cut] + (other + text[cut + 1 :] if rng.random() < 0.7 else "")
        with contextlib.suppress(UserError):
            parse_module(broken)


def test_mutated_wire_gives_user_errors():
    data = encode(small())
    rng = np.random.default_rng(1)
    for _ in range(600):
        broken = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
        with contextlib.suppress(UserError):
            decode(bytes(broken[: int(rng.integers(1, len(broken) + 1))]))


def test_a_newer_program_is_refused_by_name():
    from girih.specs.generated import hlo_pb2

    message = hlo_pb2.WireModule.FromString(encode(small()))
    message.features.add(name="op:from_the_future", since="1.7")
    message.minimum_reader = "1.7"
    with pytest.raises(UnsupportedError, match=r"format 1\.7.*from_the_future"):
        decode(message.SerializeToString())


def test_text_errors_show_line_and_caret():
    with pytest.raises(UserError, match=r"line 3: %7 is not defined before\n.*\n\s+\^"):
        parse_module(
            'girih 1.0 module "m" entry @main {\n'
            "  function @main(%0: f32[]) {\n    return %7\n  }\n}\n"
        )


class TestVerify:
    def test_use_before_definition(self):
        f = TensorType((2,), F32)
        b = Builder()
        (x,) = b.arguments([f])
        one = b("negate", x)
        two = b("negate", one)
        region = Region(b._arguments, list(reversed(b.ops)), [two])
        with pytest.raises(VerifyError, match="used before it is defined"):
            verify(Module({"main": Function("main", region)}))

    def test_wrong_result_type(self):
        f = TensorType((2,), F32)
        b = Builder()
        (x,) = b.arguments([f])
        op = Op(find("negate"), [x], {}, (), [TensorType((3,), F32)])
        region = Region(b._arguments, [op], op.results)
        with pytest.raises(VerifyError, match=r"result 0 must be f32\[2\], is f32\[3\]"):
            verify(Module({"main": Function("main", region)}))

    def test_missing_weight_and_function(self):
        f = TensorType((2,), F32)
        with pytest.raises(VerifyError, match="no weight 'w'"):
            verify(build_module([], lambda b: [b("weight", type=f, weight="w")]))
        with pytest.raises(VerifyError, match="no function 'f'"):
            verify(
                build_module(
                    [f], lambda b, x: b.op("call", [x], {"callee": "f"}, types=[f]).results
                )
            )

    def test_fusion_must_not_capture(self):
        f = TensorType((2,), F32)

        def body(b, x):
            inner = Builder()
            (y,) = inner.arguments([f])
            region = inner.region([inner("add", y, x)])
            return [b.op("fusion", [x], {"kind": "loop"}, (region,), [f]).result]

        with pytest.raises(VerifyError, match="used before it is defined"):
            verify(build_module([f], body), FUSED)

    def test_levels(self):
        f = TensorType((2,), F32)
        module = build_module([f], lambda b, x: [b("negate", x)])
        region = module.body
        fused = build_module(
            [f], lambda b, x: [b.op("fusion", [x], {"kind": "loop"}, (region,), [f]).result]
        )
        verify(fused, FUSED)
        with pytest.raises(VerifyError, match="not legal at level HLO"):
            verify(fused, HLO)

    def test_errors_name_clause_requirement_and_place(self):
        b = Builder((Origin("model.py", 7),))
        x, y = b.arguments([TensorType((4, 8), F32), TensorType((5, 8), F32)])
        with pytest.raises(VerifyError, match=r"model\.py:7: concatenate\.C\d: .*f32\[5,8\]"):
            b("concatenate", x, y, dimension=1)
        with pytest.raises(
            VerifyError, match="concatenate.dimension: attribute 'dimension' is missing"
        ):
            b("concatenate", x, y)


def test_int_types_print(capsys):
    assert str(TensorType((1, 2), I32)) == "i32[1,2]"


def test_a_fingerprint_tells_all_apart_but_the_data_of_weights():
    large = np.arange(2000, dtype=np.float32)

    def program(values: np.ndarray, name: str = "w", note: str = "") -> Module:
        weight = Weight(name, np.full((2000,), len(note), np.float32))

        def body(b, x):
            w = b("weight", type=weight.type, weight=name)
            return [b("add", b("add", x, b.constant(values)), w)]

        module = build_module([weight.type], body).with_weights({name: weight})
        return module.with_notes(note) if note else module

    with pytest.raises(CompilerBug, match="must be a weight"):
        encode(program(large))
    other = large.copy()
    other[-1] += 1
    once = fingerprint(program(large))
    assert once == fingerprint(program(large.copy())) and len(once) < large.nbytes
    changed = [program(other), program(large[::-1]), program(large, "v"), program(large, "w", "n")]
    assert len({once, *map(fingerprint, changed)}) == 5
    data = program(large).with_weights({"w": Weight("w", np.ones((2000,), np.float32))})
    assert fingerprint(data) == once
    small = build_module([TensorType((2,), F32)], lambda b, x: [b("add", x, x)])
    assert fingerprint(small) == encode(small)
