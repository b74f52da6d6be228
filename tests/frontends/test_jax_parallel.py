"""shard_map and pmap with collectives: the multi-device interpreter gives JAX's numbers.

JAX runs on eight host devices, which a process must ask for before it imports jax: a child does.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import girih
from girih.frontends.stablehlo.write import write_text

pytest.importorskip("jax")

CHILD = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

devices = np.array(jax.devices())
mesh = Mesh(devices.reshape(4, 2), ("x", "y"))
backwards = Mesh(devices[::-1].reshape(2, 4), ("a", "b"))
ring = [(k, (k + 1) % 4) for k in range(4)]


def sharded(f, inputs, outputs, mesh=mesh, **options):
    options = dict(options, in_specs=inputs, out_specs=outputs, check_vma=False)
    return jax.jit(jax.shard_map(f, mesh=mesh, **options))


def mixed(a, b):
    s = lax.psum(a @ b, "y")
    gathered = lax.all_gather(s, "x")
    scattered = lax.psum_scatter(gathered.sum(0), "x", scatter_dimension=1, tiled=True)
    place = lax.axis_index("x").astype(s.dtype)
    return s + place, gathered.sum(0), lax.ppermute(s, "x", ring), scattered


def loop(x):
    return lax.fori_loop(0, 3, lambda i, c: lax.ppermute(c, "x", ring) + lax.psum(c, "y"), x)


def nested(x):
    inner = jax.shard_map(
        lambda y: lax.psum(y, "y"), in_specs=P(None, "y"), out_specs=P(None, None),
        axis_names={"y"},
    )
    return inner(x) + lax.axis_index("x").astype(x.dtype)


a = np.arange(64, dtype=np.float32).reshape(8, 8)
wide = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
programs = {
    "mixed": (
        sharded(mixed, (P("x", "y"), P("y", None)), (P("x"), P(None), P("x"), P(None, "x"))),
        a, a / 7,
    ),
    "extremes": (
        sharded(
            lambda x: (lax.pmean(x, ("x", "y")), lax.pmax(x, "x"), lax.pmin(x, "y")),
            P("x", "y"), (P(), P(None, "y"), P("x")),
        ), a,
    ),
    "exchange": (
        sharded(lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True), P("x", "y"), P("x", "y")), wide
    ),
    "backwards": (
        sharded(
            lambda x: lax.axis_index("a") * 10 + lax.axis_index("b") + lax.all_gather(x, "b")[1],
            P(("a", "b")), P(("b", "a")), backwards,
        ), np.arange(16, dtype=np.int32),
    ),
    "loop": (sharded(loop, P("x", "y"), P("x", "y")), a),
    "partly": (sharded(lambda x: lax.psum(x, "x"), P("x"), P(), axis_names={"x"}), a),
    "nested": (sharded(nested, P("x"), P("x"), axis_names={"x"}), a),
    "gradient": (
        jax.jit(jax.grad(lambda x: sharded(
            lambda x: lax.psum(jnp.sin(x).sum(), ("x", "y")), P("x", "y"), P()
        )(x))), a,
    ),
    "pmap": (
        jax.pmap(
            lambda x, y: (lax.all_gather(x, "i"), lax.pswapaxes(x, "i", 0), lax.psum(x, "i") * y),
            axis_name="i", in_axes=(0, None),
        ), np.arange(128, dtype=np.float32).reshape(8, 8, 2), np.float32(3),
    ),
}
found = {}
for name, (f, *inputs) in programs.items():
    found[f"{name}.text"] = f.lower(*inputs).as_text(debug_info=True)
    if name != "pmap":
        found[f"{name}.export"] = np.frombuffer(jax.export.export(f)(*inputs).serialize(), np.uint8)
    for number, value in enumerate(inputs):
        found[f"{name}.in{number}"] = value
    for number, value in enumerate(jax.tree_util.tree_leaves(f(*inputs))):
        found[f"{name}.out{number}"] = np.asarray(value)
jax.config.update("jax_use_shardy_partitioner", False)
for name in ("mixed", "extremes", "backwards", "partly", "loop"):
    f, *inputs = programs[name]
    found[f"{name}.older"] = f.lower(*inputs).as_text()
np.savez(sys.argv[1], **found)
"""
NAMES = (
    "mixed", "extremes", "exchange", "backwards", "loop", "partly", "nested", "gradient", "pmap",
)  # fmt: skip


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    path = tmp_path_factory.mktemp("parallel") / "known.npz"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    subprocess.run([sys.executable, "-c", CHILD, str(path)], check=True, env=environment)
    return dict(np.load(path))


def arrays(known, prefix):
    found = []
    while f"{prefix}{len(found)}" in known:
        found.append(known[f"{prefix}{len(found)}"])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_equal_to_jax_on_eight_devices(known, name):
    text, exported = str(known[f"{name}.text"]), known.get(f"{name}.export")
    modules = [girih.import_model(text)]
    modules.append(girih.import_model(write_text(modules[0]).text))
    if f"{name}.older" in known:  # as XLA's partitioner before Shardy had it
        older = str(known[f"{name}.older"])
        assert "SPMDFullToShardShape" in older and "sdy." not in older
        modules.append(girih.import_model(older))
    if exported is not None:
        modules.append(girih.import_model(exported.tobytes()))
    inputs, wanted = arrays(known, f"{name}.in"), arrays(known, f"{name}.out")
    for module in modules:
        results = girih.interpret(module, inputs)
        assert len(results) == len(wanted) > 0
        for result, expected in zip(results, wanted, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_every_device_computes_the_whole(known):
    module = girih.import_model(str(known["mixed.text"]))
    inputs, wanted = arrays(known, "mixed.in"), arrays(known, "mixed.out")
    found = girih.interpret_parallel(module, [inputs] * 8)  # the module says: eight partitions
    for results in found.results:
        for result, expected in zip(results, wanted, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(girih.UserError, match="its mesh has 8 devices, but the program runs"):
        girih.interpret_parallel(module, [inputs] * 2, num_partitions=2)


def test_it_is_compiled_for_eight_processes(known):
    program = girih.compile(str(known["loop.text"]))
    assert program.plan.processes == 8
