"""What benchmarks/versions.py runs in each environment: `version_probe.py FOLDER`, one line each.

FOLDER holds minilm.pt2, exported elsewhere, with its inputs and result. A row is a name and "good",
or the reason. Imports nothing that may be missing before it is used.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import girih
import girih.language as tl

FOLDER = Path(sys.argv[1])


def minilm() -> None:
    """A PyTorch export without PyTorch, through a bundle."""
    known = np.load(FOLDER / "minilm.npz")
    program = girih.compile(FOLDER / "minilm.pt2")
    found = through_a_bundle(program)(known["ids"], known["mask"])
    found = found[0] if isinstance(found, (list, tuple)) else found
    near(found, known["result"])


def jax_program() -> None:
    if importlib.util.find_spec("jax") is None:
        girih.compile(abs, np.ones(2))  # says what is missing
    import jax
    import jax.numpy as jnp

    def layer(params: Any, x: Any) -> Any:
        hidden = jax.nn.gelu(x @ params["w"] + params["b"])
        return jax.nn.softmax(hidden, axis=-1), jnp.sort(x)

    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(8, 16)).astype("f4"), "b": np.ones(16, "f4")}
    x = rng.normal(size=(4, 8)).astype("f4")
    program = through_a_bundle(girih.compile(layer, params, x))
    for found, expected in zip(program(params, x), layer(params, x), strict=True):
        near(found, expected)
    step = jax.jit(lambda p, x: jax.grad(lambda q: layer(q, x)[0].var())(p), donate_argnums=(0,))
    near(girih.compile(step, params, x)(params, x)["w"], step(dict(params), x)["w"])
    exported = jax.export.export(jax.jit(layer))(params, x)
    near(girih.compile(exported)(params, x)[0], layer(params, x)[0])
    file = FOLDER / "exported.jax"
    file.write_bytes(exported.serialize())
    near(girih.compile(file)(params, x)[0], layer(params, x)[0])
    near(girih.jit(layer)(params, x)[0], layer(params, x)[0])


@girih.kernel(
    out=lambda a, b: tl.Array((a.shape[0], b.shape[1]), a.dtype),
    grid=lambda a, b, M, N: (girih.cdiv(a.shape[0], M), girih.cdiv(b.shape[1], N)),
)
def matmul(a, b, out, *, M=girih.auto, N=girih.auto, K=girih.auto):
    i, j = tl.tile_id(0) * M, tl.tile_id(1) * N
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, a.shape[1], K):
        total += tl.dot(a[i : i + M, k : k + K], b[k : k + K, j : j + N])
    out[i : i + M, j : j + N] = total.to(out.dtype)


def kernels() -> None:
    """The kernel of the README on numpy arrays, and its interpreter."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(70, 50)).astype("f4"), rng.normal(size=(50, 90)).astype("f4")
    near(matmul(a, b), a @ b)
    near(matmul.interpret(a, b, M=32, N=32, K=16), a @ b)


def convolution() -> None:
    """StableHLO text; the vectors of a convolution are what older LLVMs stumble over."""
    text = """
func.func @main(%x: tensor<1x14x14x16xf32>, %w: tensor<3x3x16x32xf32>) -> tensor<1x14x14x32xf32> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x14x14x16xf32>, tensor<3x3x16x32xf32>) -> tensor<1x14x14x32xf32>
  return %0 : tensor<1x14x14x32xf32>
}"""
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=s).astype("f4") for s in ((1, 14, 14, 16), (3, 3, 16, 32))]
    module = girih.import_model(text)
    near(girih.compile(module)(*inputs)[0], girih.interpret(module, inputs)[0], 1e-4)


def hopper() -> None:
    """Products through wgmma and the copy engine, as PTX; and their code in the simulator."""
    import ml_dtypes

    a, b = (np.ones(s, ml_dtypes.bfloat16) for s in ((128, 64), (64, 256)))
    module = matmul.module(a, b, M=128, N=256, K=64)
    text = bytes(
        girih.compile(module, target="nvidia:sm_90a").parts.variants["nvidia:sm_90a"].image
    )
    if b"wgmma.mma_async" not in text or b"cp.async.bulk.tensor" not in text:
        raise AssertionError("the product runs without wgmma")
    near(girih.compile(module, target="ptx-sim")(a, b)[0], np.full((128, 256), 64))


def factorisation() -> None:
    from girih.hlo.build import build_module
    from girih.hlo.types import F64, TensorType

    matrix = TensorType((5, 5), F64)
    module = build_module([matrix], lambda b, x: [b.op("linalg.qr", [x]).results[0]])
    a = np.random.default_rng(0).normal(size=(5, 5))
    near(girih.compile(module)(a)[0], girih.interpret(module, [a])[0])


def command() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bundle = str(Path(folder) / "minilm.girih")
        source = str(FOLDER / "minilm.pt2")
        for words in (
            ["--help"], ["compile", "--help"], ["compile", source, "-o", bundle],
            ["inspect", bundle], ["run", bundle, "--random"], ["doctor", bundle],
        ):  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-m", "girih", *words], capture_output=True, text=True
            )
            if done.returncode:
                last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
                raise AssertionError(f"girih {' '.join(words[:1])}: {' '.join(last)}")


def through_a_bundle(program: Any) -> Any:
    """Saved, and loaded again."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.girih"
        program.save(file)
        return girih.load(file.read_bytes())


def near(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    left, right = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    worst = float(np.abs(left - right).max() / max(1e-30, np.abs(right).max()))
    if not worst <= tolerance:
        raise AssertionError(f"the error is {worst:.1e}")


CHECKS: dict[str, Callable[[], None]] = {
    "MiniLM": minilm, "JAX": jax_program, "kernels": kernels, "convolution": convolution,
    "Hopper": hopper, "LAPACK": factorisation, "command": command,
}  # fmt: skip


def main() -> None:
    for name, check in CHECKS.items():
        try:
            check()
            said = "good"
        except Exception as error:  # noqa: BLE001  # a row of the table
            lines = str(error).strip().splitlines() or [""]
            kind = "" if isinstance(error, girih.UserError) else f"{type(error).__name__}: "
            said = f"{kind}{lines[0]}"
            if kind:
                traceback.print_exc()
        print(f"{name}\t{said}", flush=True)


if __name__ == "__main__":
    main()
