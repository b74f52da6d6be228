"""The StableHLO writer: what XLA makes of the written text equals what it makes of the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib import xla_client

import girih
from girih.frontends.stablehlo import read_stablehlo
from girih.frontends.stablehlo.write import write_text
from girih.hlo.build import Builder
from girih.hlo.graph import Function, Module
from girih.hlo.types import F32, TensorType


def run_on_xla(text: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
    backend = jax.extend.backend.get_backend("cpu")
    devices = xla_client.DeviceList(tuple(backend.local_devices()[:1]))
    loaded = backend.compile_and_load(text, devices, xla_client.CompileOptions())
    results = loaded.execute_sharded([jax.device_put(array) for array in inputs])
    return [np.asarray(s[0]) for s in results.disassemble_into_single_device_arrays()]


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def convolve(x: Any, filters: Any) -> Any:
    return jax.lax.conv_general_dilated(
        x, filters, (2, 1), ((1, 0), (2, 1)), rhs_dilation=(1, 2), feature_group_count=2
    )


def loop(x: Any) -> Any:
    return jax.lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 1.5), (0, x))


CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "arithmetic": (lambda x: jnp.where(x > 0, jnp.sqrt(jnp.abs(x)), x - 3), [images(4, 5)]),
    "constant": (lambda x: x + np.arange(5, dtype=np.float32), [images(5)]),
    "booleans": (lambda x: jnp.where(np.array([True, False, True]), x, 0), [images(3)]),
    "dot": (lambda a, b: jnp.einsum("bij,bkj->bik", a, b), [images(2, 3, 4), images(2, 5, 4)]),
    "convolution": (convolve, [images(1, 4, 9, 9), images(6, 2, 3, 3)]),
    "gather": (lambda x, i: x[i], [images(7, 3), np.array([1, 6, 0], np.int32)]),
    "scatter": (lambda x, i: x.at[i].add(2.0), [images(7, 3), np.array([1, 6, 1], np.int32)]),
    "pad and slice": (lambda x: jnp.pad(x, 2)[1:6:2, ::-1], [images(4, 4)]),
    "reduce": (lambda x: (x.max(0), x.sum(1), x.argmax(1)), [images(4, 5)]),
    "sort": (lambda x: jnp.argsort(x, axis=1), [images(4, 5)]),
    "window": (lambda x: jax.lax.cumsum(x, axis=1), [images(4, 5)]),
    "while": (loop, [images(4)]),
    "branches": (lambda i, x: jax.lax.switch(i, [jnp.sin, jnp.cos], x), [np.int32(1), images(3)]),
    "call": (lambda x: jax.nn.gelu(jax.nn.silu(x)), [images(8)]),
}


@pytest.mark.parametrize("name", CASES)
def test_xla_gives_the_same(name: str) -> None:
    function, inputs = CASES[name]
    arrays = [np.asarray(array) for array in inputs]
    lowered = jax.jit(function).lower(*arrays)
    original = lowered.as_text()
    expected = run_on_xla(original, arrays)
    written = write_text(read_stablehlo(original))
    assert written.weights == ()
    found = run_on_xla(written.text, arrays)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("version", ["1.0.0", "1.17.0"])
@pytest.mark.parametrize("name", CASES)
def test_xla_runs_artifacts(name: str, version: str) -> None:
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    function, inputs = CASES[name]
    arrays = [np.asarray(array) for array in inputs]
    data = girih.export_stablehlo(jax.jit(function), *arrays, version=version)
    with mlir.make_ir_context() as context, ir.Location.unknown():
        text = str(stablehlo.deserialize_portable_artifact(context, data))
    expected = jax.tree.leaves(jax.jit(function)(*arrays))
    for ours, theirs in zip(run_on_xla(text, arrays), expected, strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs))


@pytest.mark.parametrize("name", CASES)
def test_written_text_reads_back(name: str) -> None:
    function, inputs = CASES[name]
    first = write_text(read_stablehlo(jax.jit(function).lower(*inputs).as_text())).text
    assert write_text(read_stablehlo(first)).text == first


def test_weights_become_arguments() -> None:
    table = images(300, 64)  # large enough to be a weight
    x = images(4, 300)
    function = jax.jit(lambda x: x @ table)
    module = girih.import_model(function, x)
    written = write_text(module)
    assert len(written.weights) == 1
    weights = [module.weights[name].array for name in written.weights]
    (found,) = run_on_xla(written.text, [x, *weights])
    np.testing.assert_allclose(found, np.asarray(function(x)), rtol=1e-6, atol=1e-6)


def test_fusions_are_written_as_their_parts() -> None:
    kind = TensorType((4,), F32)
    inner = Builder()
    (argument,) = inner.arguments([kind])
    body = inner.region([inner("sine", inner("negate", argument))])
    outer = Builder()
    (x,) = outer.arguments([kind])
    fused = outer.op("fusion", [x], {"kind": "loop"}, [body])
    module = Module({"main": Function("main", outer.region([fused.result]))})
    (found,) = run_on_xla(write_text(module).text, [images(4)])
    np.testing.assert_allclose(found, np.sin(-images(4)), rtol=1e-6)
