"""What fuses, what must not, and that fusing changes nothing."""

import numpy as np
import pytest

from girih.hlo.assumptions import Assumptions
from girih.hlo.build import build_module, build_region
from girih.hlo.deciding import deciding
from girih.hlo.graph import Module
from girih.hlo.interpret import interpret
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim
from girih.hlo.text import canonical_op
from girih.hlo.types import BF16, F32, I1, I32, TensorType
from girih.hlo.verify import FUSED, HLO, verify
from girih.optimizer.fusable import reshape_moves
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.sink_reshapes import SinkReshapes

from ..transformer import SCALAR, dot, layer_norm, softmax, transformer_layer

MATRIX = TensorType((4, 6), F32)


def fused(module):
    """The fused module, checked against the source on random inputs."""
    verify(module, HLO)
    result = Fuse()(SinkReshapes()(module))
    verify(result, FUSED)
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal(a.dims).astype(a.tensor.dtype)
        if a.element is F32
        else rng.integers(0, 3, a.dims).astype(a.tensor.dtype)
        for a in module.body.arguments
    ]
    for left, right in zip(interpret(module, inputs), interpret(result, inputs), strict=True):
        np.testing.assert_array_equal(left, right)
    return result


def kinds(module) -> list[str]:
    return [op.kind if op.name == "fusion" else op.name for op in module.body.ops]


def test_a_transformer_layer_is_eleven_kernels():
    assert sorted(kinds(fused(transformer_layer()))) == ["contract"] * 8 + ["rows"] * 3


def test_layer_norm_and_softmax_are_one_kernel_each():
    vector = TensorType((6,), F32)
    assert kinds(
        fused(build_module([MATRIX, vector, vector], lambda b, *v: [layer_norm(b, *v)]))
    ) == ["rows"]
    assert kinds(fused(build_module([MATRIX], lambda b, x: [softmax(b, x)]))) == ["rows"]


def test_equal_groups_are_equal_wherever_their_inputs_stood():
    square = TensorType((4, 4), F32)

    def body(b, x, *weights):
        def product(value, number):
            return dot(b, value, weights[number], 0, 1, 0)

        early = product(x, 0)
        first = b("add", product(product(x, 1), 2), early)
        through = product(first, 1)
        late = product(first, 0)
        return [b("add", product(through, 2), late)]

    module = fused(build_module([square] * 4, body))
    assert kinds(module) == ["contract"] * 6
    assert len({canonical_op(op) for op in module.body.ops}) == 2


def test_what_depends_on_a_product_otherwise_stays_out_of_its_epilogue():
    square = TensorType((4, 4), F32)

    def body(b, x, w):
        product = dot(b, x, w, 0, 1, 0)
        other = dot(b, product, w, 0, 1, 0)
        return [b("add", b("negate", product), b("multiply", other, other))]

    module = fused(build_module([square, square], body))
    inside = [sorted(op.name for op in kernel.regions[0].ops) for kernel in module.body.ops]
    assert inside == [["dot_general"], ["add", "dot_general", "multiply", "negate"]]


def test_softmax_over_the_first_dim_is_no_rows_kernel():
    def body(b, x):
        top = b.reduce("maximum", x, b.constant(-np.inf, SCALAR), (0,))
        return [b("exponential", b("subtract", x, b.broadcast(top, x.dims, (1,))))]

    assert kinds(fused(build_module([MATRIX], body))) == ["reduce", "loop"]


def times(module: Module, name: str) -> int:
    """How often an operation is computed."""
    kernels = [op for op in module.body.ops if op.name == "fusion"]
    return [inner.name for op in kernels for inner in op.regions[0].ops].count(name)


@pytest.mark.parametrize(("depth", "computed"), [(1, 2), (2, 4), (3, 3), (8, 8)])
def test_what_costs_more_than_to_store_it_is_computed_once(depth, computed):
    def body(b, x):
        e = x
        for _ in range(depth):
            e = b("exponential", e)
        return [b.transpose(e, (1, 0)), b("negate", b("add", e, x))]

    assert times(fused(build_module([MATRIX], body)), "exponential") == computed


@pytest.mark.parametrize(("inputs", "computed"), [(1, 0), (2, 2), (3, 2), (6, 6)])
def test_what_reads_more_than_two_large_values_is_stored(inputs, computed):
    def body(b, *xs):
        total = xs[0]
        for x in xs[1:]:
            total = b("add", total, x)
        return [
            b.transpose(total, (1, 0)),
            b.reduce("maximum", total, b.constant(0.0, SCALAR), (0,)),
        ]

    assert times(fused(build_module([MATRIX] * inputs, body)), "add") == computed


def test_small_values_do_not_count_as_read():
    def body(b, x, *rows):
        for row in rows:
            x = b("add", x, b.broadcast(row, x.dims, (1,)))
        return [b.transpose(x, (1, 0)), b.reduce("maximum", x, b.constant(0.0, SCALAR), (0,))]

    matrix, row = TensorType((64, 6), F32), TensorType((6,), F32)
    assert times(fused(build_module([matrix, row, row, row], body)), "add") == 6


def test_a_shared_cheap_value_is_computed_twice():
    def body(b, x, y):
        s = b("add", x, y)
        return [b.transpose(s, (1, 0)), b("exponential", s)]

    module = fused(build_module([MATRIX, MATRIX], body))
    inside = [
        inner.name for op in module.body.ops if op.name == "fusion" for inner in op.regions[0].ops
    ]
    assert inside.count("add") == 2


def test_equal_dims_that_feed_each_other_share_a_kernel():
    def body(b, p, m, g):  # a momentum update: two results, one kernel
        m = b("add", b("multiply", m, b.constant(0.9, m.tensor)), g)
        return [b("subtract", p, b("tanh", m)), m]

    assert kinds(fused(build_module([MATRIX] * 3, body))) == ["loop"]


@pytest.mark.parametrize("dims", [(1, 4, 6), (4, 6, 1), (24,)])
def test_what_is_only_named_anew_joins_others_of_its_dims(dims):
    """Dims of one are added outside of the kernel; other reshapes are what a kernel computes."""

    def body(b, x):
        y = b("tanh", x)
        return [b.reshape(b("add", y, x), dims), y]

    found = kinds(fused(build_module([MATRIX], body)))
    assert found == (["loop", "reshape"] if 1 in dims else ["loop", "loop"])


@pytest.mark.parametrize("also", [False, True])
def test_a_value_is_computed_in_the_kernel_that_two_became(also):
    """Two loops read a row; they are one since one of them reads the other."""

    def body(b, x, stack, i):
        zero = b.constant(0, TensorType((), I32))
        row = b("dynamic_slice", stack, i, zero, zero, slice_sizes=(1, 4, 6))
        y = b("tanh", b("add", x, b.reshape(row, (4, 6))))
        return [y, b("subtract", y, b.reshape(row, (4, 6))), *([row] if also else [])]

    stack = TensorType((3, 4, 6), F32)
    found = kinds(fused(build_module([MATRIX, stack, TensorType((), I32)], body)))
    assert found == ["loop"] * (1 + also)


def test_a_cycle_through_a_third_kernel_is_never_made():
    def body(b, x):
        e = b("exponential", x)
        column = b.reduce("add", e, b.constant(0.0, SCALAR), (0,))
        return [b("add", e, b.broadcast(column, x.dims, (1,))), e]

    assert kinds(fused(build_module([MATRIX], body))) == ["loop", "reduce", "loop"]


def test_the_operand_of_a_contraction_is_stored():
    def body(b, x, w):
        return [dot(b, b("tanh", x), w, 0, 1, 0)]

    module = fused(build_module([MATRIX, TensorType((6, 5), F32)], body))
    assert kinds(module) == ["loop", "contract"]


def test_what_reads_a_large_contraction_alone_is_one_more_result_of_it():
    def body(b, x, w):
        z = dot(b, x, w, 0, 1, 0)
        narrow = b.convert(b("tanh", z), BF16)
        return [narrow, z, dot(b, narrow, narrow, 0, 1, 1)]

    for rows, first in ((512, ["contract"]), (256, ["contract", "loop"])):
        module = fused(build_module([TensorType((rows, 6), F32), TensorType((6, 256), F32)], body))
        assert kinds(module) == [*first, "contract"]
        product = next(op for op in module.main.body.ops if op.name == "fusion")
        assert [value.element for value in product.results] == [F32, BF16][: 3 - len(first)]


@pytest.mark.parametrize("reads", ["another", "elsewhere"])
def test_a_value_that_leaves_twice_ends_the_epilogue(reads: str):
    def body(b, x, w, y):
        z = dot(b, x, w, 0, 1, 0)
        if reads == "another":
            return [b("tanh", b("add", z, y)), z, b("exponential", z)]
        return [b("tanh", b.transpose(z, (1, 0))), z]

    types = [TensorType(dims, F32) for dims in ((512, 6), (6, 256), (512, 256))]
    assert kinds(fused(build_module(types, body))) == ["contract", "loop"]


def test_bodies_of_loops_are_fused_and_see_renamed_values():
    scalar = TensorType((), I32)

    def body(b, x):
        y = b("tanh", b("add", x, x))  # captured by the loop
        condition = build_region(
            [scalar, MATRIX],
            lambda b, i, v: [b.compare("LT", i, b.constant(3, scalar))],
        )
        step = build_region(
            [scalar, MATRIX],
            lambda b, i, v: [b("add", i, b.constant(1, scalar)), b("tanh", b("add", v, y))],
        )
        start = b.constant(0, scalar)
        loop = b.op("while", [start, y], {}, (condition, step), [scalar, MATRIX])
        return [loop.results[1]]

    module = fused(build_module([MATRIX], body))
    loop = next(op for op in module.body.ops if op.name == "while")
    assert [op.name for op in loop.regions[0].ops] == ["fusion"]
    assert sum(op.name == "fusion" for op in loop.regions[1].ops) == 2


def test_branches():
    def body(b, p, x):
        def branch(f):
            return build_region([], lambda b: [f(b)])

        made = b("if", p, type=MATRIX, regions=(
            branch(lambda b: b("negate", b("tanh", x))), branch(lambda b: b("abs", x)),
        ))  # fmt: skip
        return [b("negate", made)]

    assert "if" in kinds(fused(build_module([TensorType((), I1), MATRIX], body)))


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_keep_their_meaning(seed):
    rng = np.random.default_rng(seed)

    def body(b, x, y):
        pool = [x, y]
        for _ in range(25):
            v = pool[int(rng.integers(len(pool)))]
            w = pool[int(rng.integers(len(pool)))]
            choice = int(rng.integers(8))
            if choice == 0 and v.dims == w.dims:
                pool.append(b("add", v, w))
            elif choice == 1:
                pool.append(b("tanh", v))
            elif choice == 2 and v.rank == 2:
                pool.append(b.transpose(v, (1, 0)))
            elif choice == 3 and v.rank == 2:
                axis = int(rng.integers(2))
                total = b.reduce("add", v, b.constant(0.0, SCALAR), (axis,))
                pool.append(b.broadcast(total, v.dims, (1 - axis,)))
            elif choice == 4 and v.rank == 2:
                pool.append(b.reduce("maximum", v, b.constant(-np.inf, SCALAR), (1,)))
            elif choice == 5 and v.rank == 2 and w.rank == 2 and v.dims[1] == w.dims[0]:
                pool.append(dot(b, v, w, 0, 1, 0))
            elif choice == 6:
                pool.append(b.reshape(v, (v.tensor.size,)))
            elif choice == 7 and v.rank == 1 and v.tensor.size == 24:
                pool.append(b.reshape(v, (4, 6)))
        return pool[-4:]

    fused(build_module([MATRIX, MATRIX], body))


@pytest.mark.parametrize("least", (0, 1))
def test_moves_of_open_reshapes_leave_no_guard(least):
    """Of sizes that may be 1, or 0, in a call as well: no other plan is needed for those."""
    b, t = SymbolicDim("b"), SymbolicDim("t")
    known = Assumptions({"b": Symbol(least, 64), "t": Symbol(least, 512)})
    with deciding(known, {"b": 4, "t": 128}) as decisions:
        assert reshape_moves((b, t, 768), (b * t, 768)) == (False, True)
        assert reshape_moves((b * t, 768), (b, t, 12, 64)) == (True, False)
        assert reshape_moves((b, t, 768), (t, b, 768)) == (True, True)
        assert reshape_moves((b, t), (b + 1, t)) == (True, True)
    assert not decisions.guards


@pytest.mark.parametrize("element, inside", [(BF16, False), (F32, True)])
def test_features_of_narrow_images_come_together_before_a_convolution(element, inside):
    """What multiplies narrow numbers reads pairs of features: it has no view across them."""
    types = [TensorType((1, 8, 20), element), TensorType((16, 8, 3), element)]

    def body(b, image, kernel):
        moved = b.transpose(b("negate", image), (0, 2, 1))
        return [b(
            "convolution", moved, kernel, type=TensorType((1, 18, 16), F32), window_strides=(1,),
            padding=((0, 0),), lhs_dilation=(1,), rhs_dilation=(1,), window_reversal=(False,),
            input_batch_dimension=0, input_feature_dimension=2, input_spatial_dimensions=(1,),
            kernel_output_feature_dimension=0, kernel_input_feature_dimension=1,
            kernel_spatial_dimensions=(2,), output_batch_dimension=0, output_feature_dimension=2,
            output_spatial_dimensions=(1,), feature_group_count=1, batch_group_count=1,
        )]  # fmt: skip

    ops = Fuse()(build_module(types, body)).body.ops
    (contraction,) = (op for op in ops if any(i.name == "convolution" for i in op.regions[0].ops))
    assert any(op.name == "transpose" for op in contraction.regions[0].ops) == inside
