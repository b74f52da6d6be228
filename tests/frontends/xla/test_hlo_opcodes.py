"""Every HLO opcode in a small program: XLA's own numbers, or what the opcode's definition gives."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from girih.frontends.xla import read_hlo, read_program
from girih.frontends.xla.opcodes import HANDLERS, SIMPLE
from girih.hlo.distributed import interpret_parallel
from girih.hlo.errors import ImportBlockers, UserError
from girih.hlo.interpret import interpret
from girih.hlo.verify import verify

from . import reference
from .compare import differences

Array = np.ndarray[Any, Any]

ADD = """add { x = f32[] parameter(0)
 y = f32[] parameter(1)
 ROOT sum = f32[] add(x, y) }
"""
LARGER = """larger { v = f32[] parameter(0)
 w = f32[] parameter(1)
 i = s32[] parameter(2)
 j = s32[] parameter(3)
 ROOT gt = pred[] compare(v, w), direction=GT, type=TOTALORDER }
"""
ARGMAX = """argmax { v = f32[] parameter(0)
 i = s32[] parameter(1)
 w = f32[] parameter(2)
 j = s32[] parameter(3)
 gt = pred[] compare(v, w), direction=GT
 a = f32[] select(gt, v, w)
 b = s32[] select(gt, i, j)
 ROOT pair = (f32[], s32[]) tuple(a, b) }
"""
TWICE = """twice { x = f32[4] parameter(0)
 ROOT sum = f32[4] add(x, x) }
minus { x = f32[4] parameter(0)
 ROOT n = f32[4] negate(x) }
other { x = f32[4] parameter(0)
 ROOT n = f32[4] multiply(x, x) }
"""

# name -> (computations, instructions; p0, p1, ... are parameters of the types given first)
AGAINST_XLA: dict[str, tuple[str, str, str]] = {
    "elementwise": (
        "f32[2,3] f32[2,3]",
        "",
        """a = f32[2,3] atan2(p0, p1)
        b = f32[2,3] power(abs(p0), p1)
        c = f32[2,3] remainder(p0, p1)
        d = f32[2,3] cbrt(p0)
        e = f32[2,3] erf(p1)
        f = f32[2,3] expm(p0)
        g = f32[2,3] logistic(p0)
        h = f32[2,3] tan(p0)
        i = f32[2,3] round-nearest-even(p0)
        j = f32[2,3] round-nearest-afz(p0)
        k = pred[2,3] is-finite(p0)
        l = f32[2,3] sign(p0)
        m = f32[2,3] rsqrt(abs(p0))
        n = f32[2,3] log-plus-one(abs(p0))
        o = c64[2,3] complex(p0, p1)
        p = f32[2,3] real(o)
        q = f32[2,3] imag(o)
        r = f32[2,3] reduce-precision(p0), exponent_bits=5, mantissa_bits=4
        ROOT t = (f32[2,3], f32[2,3], f32[2,3], f32[2,3], f32[2,3], f32[2,3], f32[2,3],
          /*index=7*/f32[2,3], f32[2,3], f32[2,3], pred[2,3], f32[2,3], f32[2,3], f32[2,3],
          f32[2,3], f32[2,3], f32[2,3]) tuple(a, b, c, d, e, f, g, h, i, j, k, l, m, n, p, q, r)
        """.replace("expm(", "exponential-minus-one("),
    ),
    "integers": (
        "s32[8] u8[8]",
        "",
        """a = s32[8] popcnt(p0)
        b = u8[8] count-leading-zeros(p1)
        c = s32[8] shift-right-arithmetic(p0, a)
        d = s32[8] shift-right-logical(p0, a)
        e = s32[8] shift-left(p0, a)
        f = s32[8] xor(p0, not(c))
        g = u32[8] bitcast-convert(p0)
        h = s64[8] convert(p1)
        three = s32[] constant(3)
        threes = s32[8] broadcast(three), dimensions={}
        i = s32[8] divide(p0, threes)
        j = s32[8] clamp(three, p0, three)
        ROOT t = (s32[8], u8[8], s32[8], s32[8], s32[8], s32[8], u32[8], s64[8], s32[8], s32[8])
          tuple(a, b, c, d, e, f, g, h, i, j)""",
    ),
    "shapes": (
        "f32[4,6]",
        "",
        """zero = f32[] constant(0)
        a = f32[3,3] slice(p0), slice={[1:4], [0:6:2]}
        b = f32[9,7] pad(p0, zero), padding=1_1_1x-1_2
        c = f32[6,4] transpose(p0), dimensions={1,0}
        d = f32[4,6] reverse(p0), dimensions={1}
        e = f32[8,6] concatenate(p0, d), dimensions={0}
        f = f32[2,4,6] broadcast(p0), dimensions={1,2}
        g = f32[24] reshape(p0)
        i = s32[] constant(9)
        j = s32[] constant(1)
        h = f32[2,3] dynamic-slice(p0, i, j), dynamic_slice_sizes={2,3}
        k = f32[4,6] dynamic-update-slice(p0, h, j, i)
        yes = pred[] constant(true)
        l = f32[4,6] select(yes, p0, d)
        ROOT t = (f32[3,3], f32[9,7], f32[6,4], f32[4,6], f32[8,6], f32[2,4,6], f32[24],
          f32[2,3], f32[4,6], f32[4,6]) tuple(a, b, c, d, e, f, g, h, k, l)""",
    ),
    "reductions": (
        "f32[4,6]",
        ADD + ARGMAX,
        """zero = f32[] constant(0)
        low = f32[] constant(-inf)
        none = s32[] constant(0)
        i = s32[4,6] iota(), iota_dimension=1
        a = f32[4] reduce(p0, zero), dimensions={1}, to_apply=add
        b = (f32[4], s32[4]) reduce(p0, i, low, none), dimensions={1}, to_apply=argmax
        c = f32[5,3] reduce-window(p0, zero), window={size=2x3 stride=1x2 pad=1_1x1_0}, to_apply=add
        d = (f32[4,5], s32[4,5]) reduce-window(p0, i, low, none), window={size=1x2}, to_apply=argmax
        e = f32[4,6] map(p0, p0), dimensions={0,1}, to_apply=add
        ROOT t = (f32[4], (f32[4], s32[4]), f32[5,3], (f32[4,5], s32[4,5]), f32[4,6])
          tuple(a, b, c, d, e)""",
    ),
    "select_and_scatter": (
        "f32[4,6] f32[2,3]",
        ADD
        + """ge { x = f32[] parameter(0)
        y = f32[] parameter(1)
        ROOT r = pred[] compare(x, y), direction=GE }
        """,
        """zero = f32[] constant(0)
        ROOT r = f32[4,6] select-and-scatter(p0, p1, zero), window={size=2x2 stride=2x2},
          select=ge, scatter=add""",
    ),
    "gather_scatter": (
        "f32[3,5,4] s32[3,2,1] f32[3,2,4]",
        ADD + ARGMAX,
        """a = f32[3,2,4] gather(p0, p1), offset_dims={2}, collapsed_slice_dims={1},
          start_index_map={1}, operand_batching_dims={0}, start_indices_batching_dims={0},
          index_vector_dim=2, slice_sizes={1,1,4}
        b = f32[3,5,4] scatter(p0, p1, p2), update_window_dims={2}, inserted_window_dims={1},
          scatter_dims_to_operand_dims={1}, input_batching_dims={0},
          scatter_indices_batching_dims={0}, index_vector_dim=2, to_apply=add
        ROOT t = (f32[3,2,4], f32[3,5,4]) tuple(a, b)""",
    ),
    "scatter_pairs": (
        "f32[8] s32[8] s32[3,1] f32[3] s32[3]",
        ARGMAX.replace("i = s32[] parameter(1)\n w = f32[] parameter(2)",
                       "i = s32[] parameter(1)\n w = f32[] parameter(2)"),
        """ROOT t = (f32[8], s32[8]) scatter(p0, p1, p2, p3, p4), update_window_dims={},
          inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1,
          to_apply=argmax""",
    ),
    "sort": (
        "f32[3,5] s32[3,5]",
        LARGER,
        "ROOT t = (f32[3,5], s32[3,5]) sort(p0, p1), dimensions={1}, is_stable=true, "
        "to_apply=larger",
    ),
    "dot": (
        "f32[2,3,4] f32[2,4,5]",
        "",
        """a = f32[2,3,5] dot(p0, p1), lhs_batch_dims={0}, rhs_batch_dims={0},
          lhs_contracting_dims={2}, rhs_contracting_dims={1}, operand_precision={highest,highest}
        b = f32[2,3,2,5] dot(p0, p1), lhs_contracting_dims={2}, rhs_contracting_dims={1},
          algorithm=dot_f32_f32_f32
        ROOT t = (f32[2,3,5], f32[2,3,2,5]) tuple(a, b)""",
    ),
    "convolution": (
        "f32[2,4,9,8] f32[2,3,2,6]",
        "",
        """ROOT c = f32[2,6,7,9] convolution(p0, p1), window={size=3x2 stride=2x1 pad=1_0x2_1
          lhs_dilate=2x1 rhs_dilate=2x3 rhs_reversal=1x0}, dim_labels=bf01_i01o->bf01,
          feature_group_count=2""".replace("f32[2,6,7,9]", "f32[2,6,7,8]"),
    ),
    "batch_groups": (
        "f32[4,5,5,3] f32[3,3,3,6]",
        "",
        "ROOT c = f32[2,3,3,6] convolution(p0, p1), window={size=3x3}, "
        "dim_labels=b01f_01io->b01f, batch_group_count=2",
    ),
    "linear_algebra": (
        "f32[4,4] f32[4,2]",
        "",
        """t0 = f32[4,4] transpose(p0), dimensions={1,0}
        product = f32[4,4] dot(p0, t0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        i = s32[4,4] iota(), iota_dimension=0
        j = s32[4,4] iota(), iota_dimension=1
        same = pred[4,4] compare(i, j), direction=EQ
        ones = f32[4,4] convert(same)
        positive = f32[4,4] add(product, ones)
        a = f32[4,4] cholesky(positive), lower=true
        below = pred[4,4] compare(i, j), direction=GE
        zero = f32[] constant(0)
        zeros = f32[4,4] broadcast(zero), dimensions={}
        b = f32[4,4] select(below, a, zeros)
        c = f32[4,2] triangular-solve(b, p1), left_side=true, lower=true, unit_diagonal=false,
          transpose_a=TRANSPOSE
        ROOT t = (f32[4,4], f32[4,2]) tuple(b, c)""",
    ),
    "fft": (
        "f32[3,8]",
        "",
        """a = c64[3,5] fft(p0), fft_type=RFFT, fft_length={8}
        b = f32[3,8] fft(a), fft_type=IRFFT, fft_length={8}
        c = c64[3,5] fft(a), fft_type=IFFT, fft_length={5}
        ROOT t = (c64[3,5], f32[3,8], c64[3,5]) tuple(a, b, c)""",
    ),
    "batch_norm": (
        "f32[4,3] f32[3] f32[3]",
        "",
        """a = (f32[4,3], f32[3], f32[3]) batch-norm-training(p0, p1, p2), epsilon=0.001,
          feature_index=1
        m = f32[3] get-tuple-element(a), index=1
        v = f32[3] get-tuple-element(a), index=2
        b = f32[4,3] batch-norm-inference(p0, p1, p2, m, v), epsilon=0.001, feature_index=1
        c = (f32[4,3], f32[3], f32[3]) batch-norm-grad(p0, p1, m, v, b), epsilon=0.001,
          feature_index=1
        ROOT t = ((f32[4,3], f32[3], f32[3]), f32[4,3], (f32[4,3], f32[3], f32[3])) tuple(a, b, c)
        """,
    ),
    "random_bits": (
        "u64[2]",
        "",
        "ROOT t = (u64[2], u32[3,5]) rng-bit-generator(p0), algorithm=rng_three_fry",
    ),
    "branches": (
        "s32[] f32[4] pred[]",
        TWICE,
        """a = f32[4] conditional(p0, p1, p1, p1), branch_computations={twice, minus, other}
        b = f32[4] conditional(p2, p1, a), true_computation=twice, false_computation=minus
        c = f32[4] call(b), to_apply=other
        ROOT t = (f32[4], f32[4], f32[4]) tuple(a, b, c)""",
    ),
    "small_types": (
        "s32[6] f32[6]",
        "",
        """a = s4[6] convert(p0)
        b = s8[6] convert(a)
        c = f8e4m3fn[6] convert(p1)
        d = f32[6] convert(c)
        e = s4[6] constant({-8, 7, 0, 1, -1, 3})
        f = s32[6] convert(e)
        g = bf16[2] constant({1.5, -inf})
        h = f32[2] convert(g)
        ROOT t = (s8[6], f32[6], s32[6], f32[2]) tuple(b, d, f, h)""",
    ),
}  # fmt: skip


def module_text(parameters: str, computations: str, body: str) -> str:
    declared = "\n".join(
        f"p{number} = {kind} parameter({number})" for number, kind in enumerate(parameters.split())
    )
    return f"HloModule m\n{computations}\nENTRY main {{\n{declared}\n{body}\n}}\n"


def made_up(parameters: str) -> list[Array]:
    rng = np.random.default_rng(7)
    names = {"f32": np.float32, "s32": np.int32, "u8": np.uint8, "u64": np.uint64, "pred": np.bool_}
    found: list[Array] = []
    for kind in parameters.split():
        element, _, rest = kind.partition("[")
        dims = tuple(map(int, rest[:-1].split(","))) if rest != "]" else ()
        if element == "f32":
            found.append(rng.standard_normal(dims).astype(np.float32) * 2)
        else:
            found.append(np.asarray(rng.integers(0, 5, dims)).astype(names[element]))
    return found


@pytest.mark.parametrize("name", AGAINST_XLA)
def test_same_numbers_as_xla(name: str) -> None:
    parameters, _, _ = AGAINST_XLA[name]
    text = module_text(*AGAINST_XLA[name])
    data = reference.protobuf_of(text)
    assert not differences(read_program(text), read_program(data))
    inputs = made_up(parameters)
    with jax.enable_x64(True):
        wanted = reference.run(data, inputs)
    for source in (text, data):
        module = read_hlo(source)
        verify(module)
        found = interpret(module, inputs)
        assert len(found) == len(wanted)
        for w, f in zip(wanted, found, strict=True):
            assert w.dtype == f.dtype and w.shape == f.shape
            np.testing.assert_allclose(f, w, rtol=2e-5, atol=2e-5)


def run(text: str, *inputs: Any) -> list[Array]:
    module = read_hlo(text)
    verify(module)
    return interpret(module, list(inputs))


X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("body", "value", "wanted"),
    [
        ("ROOT b = s32[3,4] bitcast(p0)", X, X.view(np.int32)),
        ("ROOT b = f32[4,3]{0,1} bitcast(p0)", X, X.T),
        ("ROOT b = f32[2,6] bitcast(p0)", X, X.reshape(2, 6)),
        ("c = f32[3,4]{0,1} copy(p0)\nROOT b = f32[12] bitcast(c)", X, X.T.reshape(-1)),
        ("ROOT b = u8[3,4,4] bitcast(p0)", X, X.view(np.uint8).reshape(3, 4, 4)),
        ("ROOT b = f64[3,2] bitcast(p0)", X, X.view(np.float64)),
    ],
)
def test_a_bitcast_reads_the_same_bytes(body: str, value: Array, wanted: Array) -> None:
    (found,) = run(module_text("f32[3,4]", "", body), value)
    assert found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


def test_truth_values_are_bytes_in_a_bitcast() -> None:
    flags = np.array([True, False, True, True])
    (found,) = run(module_text("pred[4]", "", "ROOT b = u32[] bitcast(p0)"), flags)
    assert found == flags.view(np.uint32)[0]
    (back,) = run(module_text("u32[]", "", "ROOT b = pred[4] bitcast(p0)"), found)
    assert np.array_equal(back, flags)


def test_a_layout_in_tiles_is_refused() -> None:
    body = "c = f32[3,4]{1,0:T(8,128)} copy(p0)\nROOT b = s32[3,4] bitcast(c)"
    with pytest.raises(ImportBlockers, match=r"bitcast: the layout of f32\[3,4\]"):
        read_hlo(module_text("f32[3,4]", "", body))


def test_stochastic_rounding() -> None:
    values = np.array([1.25, -1.25, 2.5, 300.0, -300.0, 0.0], np.float32)
    low, high = np.zeros(6, np.uint32), np.full(6, 2**32 - 1, np.uint32)
    text = module_text("f32[6] u32[6]", "", "ROOT r = s8[6] stochastic-convert(p0, p1)")
    assert run(text, values, low)[0].tolist() == [2, -2, 3, 127, -128, 0]
    assert run(text, values, high)[0].tolist() == [1, -1, 2, 127, -128, 0]


def test_the_smallest_elements() -> None:
    body = "ROOT t = (f32[3,2], s32[3,2]) topk(p0), k=2, largest=false"
    values, places = run(module_text("f32[3,4]", "", body), -X)
    assert np.array_equal(values, np.sort(-X, axis=1)[:, :2])
    assert np.array_equal(places, [[3, 2]] * 3)


def test_topk_calls_of_optimized_modules() -> None:
    body = """ROOT t = (f32[3,2], s32[3,2]) custom-call(p0), custom_call_target="TopK",
      called_computations={larger}"""
    values, places = run(module_text("f32[3,4]", LARGER, body), X)
    assert np.array_equal(values, X[:, :1:-1]) and np.array_equal(places, [[3, 2]] * 3)


def test_scaled_dot() -> None:
    body = """ROOT d = f32[3,2] scaled-dot(p0, p1, p2, p3), lhs_contracting_dims={1},
      rhs_contracting_dims={0}"""
    rng = np.random.default_rng(0)
    rhs = rng.standard_normal((4, 2)).astype(np.float32)
    left, right = np.array([[1, 2], [3, 4], [5, 6]], np.float32), np.array([[2, 3]], np.float32)
    text = module_text("f32[3,4] f32[4,2] f32[3,2] f32[1,2]", "", body)
    (found,) = run(text, X, rhs, left, right)
    np.testing.assert_allclose(found, (X * np.repeat(left, 2, 1)) @ (rhs * right), rtol=1e-5)


def test_ragged_dot() -> None:
    body = """ROOT d = f32[3,2] ragged-dot(p0, p1, p2), lhs_contracting_dims={1},
      rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}"""
    rhs = np.random.default_rng(0).standard_normal((2, 4, 2)).astype(np.float32)
    sizes = np.array([1, 2], np.int32)
    (found,) = run(module_text("f32[3,4] f32[2,4,2] s32[2]", "", body), X, rhs, sizes)
    np.testing.assert_allclose(found, np.concatenate([X[:1] @ rhs[0], X[1:] @ rhs[1]]), rtol=1e-5)


def test_scan() -> None:
    step = """step { x = f32[4] parameter(0)
     c = f32[4] parameter(1)
     s = f32[4] add(x, c)
     ROOT t = (f32[4], f32[4]) tuple(s, s) }
    """
    body = "ROOT t = (f32[3,4], f32[4]) scan(p0, p1), dimensions={0}, to_apply=step, num_carries=1"
    sums, last = run(module_text("f32[3,4] f32[4]", step, body), X, np.zeros(4, np.float32))
    assert np.array_equal(sums, np.cumsum(X, axis=0)) and np.array_equal(last, X.sum(axis=0))


def test_start_indices_in_one_vector() -> None:
    body = """a = f32[2,2] dynamic-slice(p0, p1), dynamic_slice_sizes={2,2}
      ROOT b = f32[3,4] dynamic-update-slice(p0, a, p1)"""
    (found,) = run(module_text("f32[3,4] s32[2]", "", body), X, np.array([1, 2], np.int32))
    assert np.array_equal(found, X)


def test_asynchronous_operations_are_done_at_once() -> None:
    body = """s = ((f32[4]), f32[4], u32[]) call-start(p0), to_apply=twice
      u = ((f32[4]), f32[4], u32[]) call-update(s)
      d = f32[4] call-done(u)
      c = (f32[4], f32[4], u32[]) copy-start(d)
      ROOT r = f32[4] copy-done(c)"""
    (found,) = run(module_text("f32[4]", TWICE, body), X[0])
    assert np.array_equal(found, X[0] * 2)


def test_uniform_numbers_have_their_range() -> None:
    body = "ROOT r = f32[1000] rng(p0, p1), distribution=rng_uniform"
    (found,) = run(module_text("f32[] f32[]", "", body), np.float32(2), np.float32(3))
    assert found.min() >= 2 and found.max() < 3 and found.std() > 0.2


def test_fusions_are_written_out_and_calls_stay_functions() -> None:
    body = """f = f32[4] fusion(p0), kind=kLoop, calls=twice
      ROOT c = f32[4] call(f), to_apply=minus"""
    module = read_hlo(module_text("f32[4]", TWICE, body))
    assert [op.name for op in module.functions["main"].body.ops] == ["add", "call"]
    assert sorted(module.functions) == ["main", "minus"]


def test_composites_keep_their_name() -> None:
    body = """ROOT c = f32[4] call(p0), to_apply=twice, is_composite=true,
      frontend_attributes={composite.attributes={n = 1 : i32},composite.name="my.double",
      composite.version="2"}"""
    module = read_hlo(module_text("f32[4]", TWICE, body))
    assert np.array_equal(interpret(module, [X[0]])[0], 2 * X[0])


def test_where_a_value_lies_changes_nothing() -> None:
    body = """h = f32[4] custom-call(p0), custom_call_target="MoveToHost"
      ROOT d = f32[4] custom-call(h), custom_call_target="MoveToDevice\""""
    assert np.array_equal(run(module_text("f32[4]", "", body), X[0])[0], X[0])


def test_typed_custom_calls_keep_their_dictionary() -> None:
    body = """ROOT c = f32[3,4]{0,1} custom-call(p0), custom_call_target="mine",
      operand_layout_constraints={f32[3,4]{0,1}}, api_version=API_VERSION_TYPED_FFI,
      backend_config={lower = true, n = 4 : i64}"""
    with pytest.raises(ImportBlockers, match="custom call 'mine'"):
        read_hlo(module_text("f32[3,4]", "", body))


def test_sizes_that_are_only_known_at_run_time() -> None:
    body = """zero = f32[] constant(0)
      d = f32[<=4] set-dimension-size(p0, p1), dimensions={0}
      r = f32[] reduce(d, zero), dimensions={0}, to_apply=add
      g = s32[] get-dimension-size(d), dimensions={0}
      ROOT t = (f32[], s32[]) tuple(r, g)"""
    total, size = run(module_text("f32[4] s32[]", ADD, body), X[0], np.int32(3))
    assert total == X[0, :3].sum() and size == 3


def test_collectives_on_two_processes() -> None:
    body = """a = f32[4] all-reduce(p0), replica_groups={{0,1}}, to_apply=add
      b = f32[8] all-gather(p0), replica_groups=[1,2]<=[2], dimensions={0}
      c = f32[2] reduce-scatter(p0), replica_groups={{0,1}}, dimensions={0}, to_apply=add
      d = f32[4] collective-permute(p0), source_target_pairs={{0,1},{1,0}}
      e = f32[4] all-to-all(p0), replica_groups={{0,1}}, dimensions={0}
      f = f32[4] collective-broadcast(p0), replica_groups={{0,1}}
      g = (f32[4], f32[8]) all-gather-start(p0), replica_groups={{0,1}}, dimensions={0}
      h = f32[8] all-gather-done(g)
      i = u32[] replica-id()
      ROOT t = (f32[4], f32[8], f32[2], f32[4], f32[4], f32[4], f32[8], u32[])
        tuple(a, b, c, d, e, f, h, i)"""
    module = read_hlo(module_text("f32[4]", ADD, body).replace("m\n", "m, replica_count=2\n", 1))
    verify(module)
    x, y = X[0], X[1]
    both = np.concatenate([x, y])
    first, second = interpret_parallel(module, [[x], [y]]).results
    for rank, found in enumerate((first, second)):
        wanted = [
            x + y, both, (x + y)[2 * rank : 2 * rank + 2], (y, x)[rank],
            np.concatenate([x[2 * rank :][:2], y[2 * rank :][:2]]), x, both, rank,
        ]  # fmt: skip
        assert all(map(np.array_equal, found, wanted))


def test_collectives_of_several_arrays() -> None:
    body = """a = (f32[4], f32[4]) all-to-all(p0, p1), replica_groups={{0,1}}
      b = (f32[4], f32[4]) collective-permute(p0, p1), source_target_pairs={{0,1},{1,0}}
      c = (f32[4], f32[4]) all-reduce(p0, p1), replica_groups={}, to_apply=add
      ROOT t = ((f32[4], f32[4]), (f32[4], f32[4]), (f32[4], f32[4])) tuple(a, b, c)"""
    text = module_text("f32[4] f32[4]", ADD, body).replace("m\n", "m, replica_count=2\n", 1)
    module = read_hlo(text)
    verify(module)
    w, x, y, z = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    found = interpret_parallel(module, [[w, x], [y, z]]).results
    sums = [w + y, x + z]
    for rank, wanted in enumerate(([w, y, y, z, *sums], [x, z, w, x, *sums])):
        assert all(map(np.array_equal, found[rank], wanted))


def test_groups_of_a_mesh() -> None:
    groups = "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b':(1)2,'a'}"
    body = f"""ROOT a = f32[4] all-reduce(p0), replica_groups={groups}, channel_id=1,
      use_global_device_ids=true, to_apply=add"""
    text = module_text("f32[4]", ADD, body)
    root = read_program(text).entry.root
    devices = np.arange(8).reshape(4, 2).T.reshape(2, 2, 2)  # a, b cut into 2 x 2
    wanted = devices.transpose(2, 1, 0).reshape(2, 4)
    assert root.attributes["replica_groups"] == tuple(map(tuple, wanted.tolist()))
    data = reference.protobuf_of(text)
    assert not differences(read_program(text), read_program(data))


def test_transfers_keep_their_order() -> None:
    body = """k = token[] after-all()
      i = ((f32[2], s32[]), token[]) infeed(k), infeed_config="x"
      kk = token[] get-tuple-element(i), index=1
      o = token[] outfeed(p0, kk)
      s = (f32[4], u32[], token[]) send(p0, o), channel_id=1, is_host_transfer=true
      sd = token[] send-done(s), channel_id=1, is_host_transfer=true
      r = (f32[4], u32[], token[]) recv(sd), channel_id=2, is_host_transfer=true
      rd = (f32[4], token[]) recv-done(r), channel_id=2, is_host_transfer=true
      ROOT q = f32[4] get-tuple-element(rd), index=0"""
    module = read_hlo(module_text("f32[4]", "", body))
    verify(module)
    names = [op.name for op in module.body.ops]
    assert names == ["after_all", "infeed", "outfeed", "send", "recv"]


_REFUSED: list[tuple[str, str, str]] = [
    ("u64[]", "ROOT r = u64[1] rng-get-and-update-state(), delta=4", "a state outside the program"),
    ("s32[4]", "ROOT r = s1[4] convert(p0)", "s1"),
    ("f32[4]", "ROOT r = f32[4] frobnicate(p0)", "frobnicate: this operation is not known"),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "body", "reason"), _REFUSED)
def test_what_cannot_be_said_is_refused_by_name(parameters: str, body: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        read_hlo(module_text(parameters, "", body))


def test_all_blockers_are_listed_at_once() -> None:
    body = """a = u64[1] rng-get-and-update-state(), delta=4
      b = f32[2] constant({...})
      ROOT t = (u64[1], f32[2]) tuple(a, b)"""
    with pytest.raises(ImportBlockers) as caught:
        read_hlo(module_text("f32[4]", "", body))
    assert len(caught.value.blockers) == 2
    assert "print the module with large constants" in str(caught.value)


def test_every_opcode_has_a_meaning() -> None:
    def words(name: str) -> str:
        """`kAddDependency` -> `add-dependency`"""
        return "".join(f"-{c.lower()}" if c.isupper() else c for c in name[1:]).lstrip("-")

    renamed = {
        "clz": "count-leading-zeros", "cos": "cosine", "exp": "exponential",
        "expm1": "exponential-minus-one", "log1p": "log-plus-one", "sin": "sine",
        "optimization-barrier": "opt-barrier", "population-count": "popcnt", "top-k": "topk",
    }  # fmt: skip
    opcodes = [words(name) for name in dir(reference.hlo.HloOpcode) if name.startswith("k")]
    known = {*SIMPLE, *HANDLERS, "parameter"}
    assert len(opcodes) > 100
    assert [name for name in opcodes if renamed.get(name, name) not in known] == []


def test_literals_of_small_floats() -> None:
    body = "ROOT c = f8e5m2[3] constant({1, -inf, nan})"
    (found,) = run(module_text("f32[1]", "", body), np.zeros(1, np.float32))
    wanted = np.array([1, -np.inf, np.nan], ml_dtypes.float8_e5m2)
    assert np.array_equal(found.astype(np.float32), wanted.astype(np.float32), equal_nan=True)
