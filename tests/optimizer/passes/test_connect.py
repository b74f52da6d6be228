"""Which kernels become one, and that this changes nothing."""

from __future__ import annotations

import io
import tokenize
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import girih
from girih.backends.cpu.machines import typical
from girih.hlo.build import build_region
from girih.hlo.graph import Module
from girih.hlo.interpret import interpret
from girih.hlo.ops.convolution import numbers
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import FUSED, verify
from girih.optimizer.machine import Machine
from girih.optimizer.passes import connect
from girih.optimizer.passes.connect import Connect
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.sink_reshapes import SinkReshapes
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline
from girih.optimizer.tiles.build import make_group

from ..tiles.programs import SMALL, attention, f32, norm_matmul, qkv, softmax_matmul, two_layers


def eager() -> Machine:
    """A machine on which every launch costs a second."""
    machine = typical("avx512")
    return replace(machine, sync=replace(machine.sync, step=1.0))


def fused(function, inputs) -> Module:
    module = girih.import_model(function, *inputs)
    return run_pipeline(module, [*simplify_pipeline(girih.Options()), SinkReshapes(), Fuse()])


def names(module: Module) -> list[str]:
    return [op.name for op in module.body.ops]


@pytest.mark.parametrize("name", SMALL)
def test_whatever_is_connected_gives_the_same(name):
    function, inputs = SMALL[name]
    before = fused(function, inputs)
    after = Connect(eager())(before)
    verify(after, FUSED)
    if len(before.body.ops) > 1:
        assert names(after).count("kernel_call") == 1
        assert len(after.body.ops) < len(before.body.ops)
    for a, b in zip(interpret(after, inputs), interpret(before, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


LARGE = {
    "attention": (attention, qkv(1, 8, 2048, 64)),
    "two_layers": (two_layers, [f32(65536, 64), f32(64, 256), f32(256, 64)]),
    "softmax_matmul": (softmax_matmul, [f32(65536, 256), f32(256, 64)]),
    "norm_matmul": (norm_matmul, [f32(65536, 64), f32(64), f32(64), f32(64, 64)]),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_values_between_kernels_are_not_stored(name):
    function, inputs = LARGE[name]
    assert names(Connect(typical("avx512"))(fused(function, inputs))) == ["kernel_call"]


def windows(y):
    """Attention over queries, keys and values that are windows of one tensor."""
    return attention(y[:, :4], y[:, 4:8], y[:, 8:])


def test_windows_of_one_tensor_are_walked_apart():
    before = fused(windows, [f32(1, 12, 2048, 64)])
    (kernel,) = Connect(typical("avx512"))(before).body.ops
    assert kernel.name == "kernel_call" and len(set(kernel.operands)) == 1
    assert any(op.name == "tile_for" for op in kernel.regions[0].walk())
    inputs = [f32(1, 12, 8, 4)]
    small = fused(windows, inputs)
    connected = Connect(eager())(small)
    assert names(connected) == ["kernel_call"]
    for a, b in zip(interpret(connected, inputs), interpret(small, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_masks_of_a_walk_are_priced():
    """Of 1536 keys every step is whole; of 1500 the last is not, and masks are computed in all."""

    def walked(keys):
        (kernel,) = Connect(typical("avx512"))(fused(attention, qkv(1, 6, keys, 64))).body.ops
        return any(op.name == "tile_for" for op in kernel.regions[0].walk())

    assert walked(1536) and not walked(1500)


def test_rows_that_begin_within_lines_are_rather_not_stored():
    """Writing them costs more: 128 columns are 8 lines, of 130 each vector lies in two."""
    machine = typical("avx512")
    whole, apart = (
        names(Connect(machine)(fused(attention, qkv(1, 12, n, 64)))) for n in (128, 130)
    )
    assert "kernel_call" not in whole and apart == ["kernel_call"]


def test_a_tile_function_does_not_repeat_long_reductions_for_little():
    """What was won by the move before does not pay for the next one."""
    import jax

    def head(x, w):
        y = x.reshape(1, 8, 4, 192, 192)
        y = y - y.mean((2, 3, 4), keepdims=True)
        y = y * jax.lax.rsqrt((y * y).mean((2, 3, 4), keepdims=True) + 1e-5)
        return jax.lax.conv(jax.nn.silu(y.reshape(x.shape)), w, (1, 1), "SAME")

    inputs = [f32(1, 32, 192, 192), f32(4, 32, 1, 1)]
    (kernel,) = (
        op
        for op in Connect(typical("avx512"))(fused(head, inputs)).body.ops
        if op.name == "kernel_call"
    )
    inside = [op.name for op in kernel.regions[0].walk()]
    assert "convolution" in inside and "reduce" not in inside


def test_a_value_that_is_needed_outside_is_not_lost():
    import jax

    def both(x, w):
        y = jax.nn.softmax(x, -1)
        return y, y @ w

    inputs = [f32(30, 40), f32(40, 20)]
    before = fused(both, inputs)
    after = Connect(eager())(before)
    for a, b in zip(interpret(after, inputs), interpret(before, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("depthwise", [False, True])
def test_convolutions_that_sum_features_join_no_other_kernel(depthwise):
    """Where blocks of threads run: windows of a tile lie in no grains of a unit."""
    from girih.backends.nvidia.machines import machine_of

    facts = numbers(2) | {"feature_group_count": 16 if depthwise else 1}
    kinds = [TensorType((1, 8, 8, 16), F32), TensorType((3, 3, 1 if depthwise else 16, 16), F32)]

    def body(b, x, w):
        y = b("convolution", x, w, **facts)
        total = b.reduce("add", y, b.constant(0, TensorType((), F32)), (3,))
        return [b("divide", y, b.broadcast(total, y.dims, (0, 1, 2)))]

    region = build_region(kinds, body)
    group = make_group(region.ops, region.arguments, region.results)
    found = Connect(machine_of("sm_90a")).variants(group, group.inputs, "test")
    assert any(True for _ in found) == depthwise


def test_no_pattern_is_named_in_the_code():
    """Groups come out of the queue: names of what users compute stand in comments at most."""
    words = ("attention", "softmax", "gelu", "norm", "mlp", "conv_", "flash", "transformer")
    for path in Path(connect.__file__).parent.glob("*.py"):
        with io.StringIO(path.read_text()) as text:
            for token in tokenize.generate_tokens(text.readline):
                if token.type == tokenize.NAME:
                    assert not any(word in token.string.lower() for word in words), token


@pytest.mark.parametrize("stored, connected", [(np.float32, 1), (np.int8, 0)])
def test_a_product_that_widens_its_weight_stays_alone(stored, connected):
    import jax.numpy as jnp

    w, u = (np.ones((512, 512), stored) for _ in range(2))

    def widening(x):
        return two_layers(x, jnp.asarray(w).astype(x.dtype), jnp.asarray(u).astype(x.dtype))

    before = fused(widening, [f32(50, 512)])
    assert {op.name for op in before.body.ops} == {"weight", "fusion"}
    after = Connect(eager())(before)
    assert names(after).count("kernel_call") == connected


def test_weights_of_a_connected_group_are_packed():
    from girih.backends.cpu.codegen import make_target
    from girih.backends.cpu.contract.packing import packing_for
    from girih.optimizer.passes.encode import Encode, used_weights

    w, u = f32(128, 160), f32(160, 128)
    target = make_target("x86_64-unknown-linux-gnu", set(), "baseline")
    inputs = [f32(50, 128)]
    connected = Connect(eager())(fused(lambda x: two_layers(x, w, u), inputs))
    packed = Encode(lambda op: packing_for(op, target))(connected)
    verify(packed, FUSED)
    assert names(packed).count("kernel_call") == 1
    assert all("panels" in name for name in used_weights(packed.functions.values()))
    for a, b in zip(interpret(packed, inputs), interpret(connected, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
