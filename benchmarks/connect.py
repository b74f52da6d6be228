"""Groups of kernels that became one, beside the same program with every kernel on its own.

    python benchmarks/connect.py [name ...]

Attention over 2,048 keys, a separable convolution, two convolutions, and three pairs of layers:
girih with and without `connect`, torch and jax.jit in turns in one process, medians. Besides the
times: the error against float64, the temporary memory of the plan, how far the resident memory
grew, what is computed twice (halos), and the bytes that the plan moves from beyond the private
caches, as a multiple of inputs and outputs read and written once. Results go to
benchmarks/results/connect.json.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import girih
from girih.backends.cpu.machines import typical
from girih.optimizer.cost.estimate import level_bytes
from girih.optimizer.passes.connect import Connect
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.sink_reshapes import SinkReshapes
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline
from turns import in_turns, keep_heap

TURNS, CALLS = 6, 3
F = torch.nn.functional


def f32(*dims: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(sum(dims))
    return (rng.standard_normal(dims) * scale).astype(np.float32)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhid,bhjd->bhij", q, k) * 0.125
    return jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(scores, -1), v)


def convolve(x: Any, w: Any, **options: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", **options)


def separable(x: Any, w: Any, u: Any) -> Any:
    return convolve(jax.nn.relu(convolve(x, w, feature_group_count=x.shape[1])), u)


def two_convolutions(x: Any, w: Any, u: Any) -> Any:
    return convolve(jax.nn.relu(convolve(x, w)), u)


def norm_matmul(x: Any, scale: Any, shift: Any, w: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return ((x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift) @ w


def two_layers(x: Any, w: Any, u: Any) -> Any:
    return jax.nn.gelu(x @ w, approximate=False) @ u


def softmax_matmul(x: Any, w: Any) -> Any:
    return jax.nn.softmax(x, -1) @ w


@dataclass(frozen=True)
class Case:
    """One program. gate: milliseconds on two cores with a peak of 522 GF/s; 0 for none."""

    name: str
    function: Callable[..., Any]
    torch_function: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    gate: float = 0.0


CASES = (
    Case(
        "wel-cpu-1 attention 1x8x2048x64", attention,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.125),
        (f32(1, 8, 2048, 64), f32(1, 8, 2048, 64) + 0.1, f32(1, 8, 2048, 64) - 0.1), 35.0,
    ),
    Case(
        "wel-cpu-2 depthwise 3x3, relu, 1x1; 64 channels 256x256", separable,
        lambda x, w, u: F.conv2d(F.relu(F.conv2d(x, w, padding=1, groups=64)), u),
        (f32(1, 64, 256, 256), f32(64, 1, 3, 3), f32(64, 64, 1, 1)), 6.0,
    ),
    Case(
        "wel-cpu-3 3x3, relu, 3x3; 32 channels 512x512", two_convolutions,
        lambda x, w, u: F.conv2d(F.relu(F.conv2d(x, w, padding=1)), u, padding=1),
        (f32(1, 32, 512, 512), f32(32, 32, 3, 3, scale=0.1), f32(32, 32, 3, 3, scale=0.1)), 45.0,
    ),
    Case(
        "wel-cpu-4 layer norm, matmul", norm_matmul,
        lambda x, s, b, w: F.layer_norm(x, (64,), s, b) @ w,
        (f32(131072, 64), f32(64), f32(64), f32(64, 64)),
    ),
    Case(
        "wel-cpu-4 matmul, gelu, matmul", two_layers,
        lambda x, w, u: F.gelu(x @ w) @ u,
        (f32(65536, 64), f32(64, 256, scale=0.1), f32(256, 64, scale=0.1)),
    ),
    Case(
        "wel-cpu-4 softmax, matmul", softmax_matmul,
        lambda x, w: F.softmax(x, -1) @ w,
        (f32(65536, 256), f32(256, 64)),
    ),
)  # fmt: skip


def resident() -> int:
    """The process's largest resident size so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def planned(case: Case) -> dict[str, Any]:
    """What the optimizer says about the group: its tile sizes, and bytes from shared memory."""
    module = girih.import_model(case.function, *case.inputs)
    passes = [*simplify_pipeline(girih.Options()), SinkReshapes(), Fuse()]
    fused = run_pipeline(module, passes)
    machine = typical("avx512")
    connect = Connect(machine)
    after = connect(fused)
    compulsory = sum(v.tensor.bytes for v in (*after.body.arguments, *after.body.results))
    report: dict[str, Any] = {"kernels": [op.name for op in after.body.ops]}
    chosen = max(
        ((group, plan) for group, plan in connect.considered() if plan is not None),
        key=lambda pair: len(pair[0].ops),
    )
    group, plan = chosen
    bytes = level_bytes(group, machine, plan)
    report["sizes"] = [*plan.sizes, plan.step] if plan.step else list(plan.sizes)
    beyond = sum(bytes[level.name] for level in machine.levels if level.shared)
    report["beyond private caches / compulsory"] = round(beyond / compulsory, 2)
    kernels = [op for op in after.body.ops if op.name == "kernel_call"]
    needed = sum(op.definition.flops(op) for op in group.ops)
    done = sum(op.definition.flops(op) for op in kernels)
    report["computed twice"] = round(max(0.0, done / needed - 1), 3) if kernels else 0.0
    return report


def run(case: Case) -> dict[str, Any]:
    report = planned(case)
    tensors = [torch.from_numpy(x) for x in case.inputs]
    module = girih.import_model(case.function, *case.inputs)
    connected = girih.compile(module)
    before = resident()
    result = np.asarray(connected(*case.inputs))
    report["resident growth MB"] = round((resident() - before) / 1e6, 1)
    report["temporary MB"] = round(connected.memory.temporary_bytes / 1e6, 2)
    separate = girih.compile(module, options=girih.Options(disable=("connect",)))
    report["temporary MB separate"] = round(separate.memory.temporary_bytes / 1e6, 2)
    jitted = jax.jit(case.function)
    arrays = [jnp.asarray(x) for x in case.inputs]
    with torch.no_grad():
        wide = case.torch_function(*(t.double() for t in tensors)).numpy()
        error = np.abs(result - wide).max() / np.abs(wide).max()
        calls: dict[str, Callable[[], Any]] = {
            "girih": lambda: connected(*case.inputs),
            "girih separate": lambda: separate(*case.inputs),
            "torch": lambda: case.torch_function(*tensors),
            "jax.jit": lambda: jitted(*arrays).block_until_ready(),
        }
        times = in_turns(calls, TURNS, CALLS)
    report["error"] = float(f"{error:.1e}")
    report["ms"] = {name: round(statistics.median(t) * 1e3, 2) for name, t in times.items()}
    report["gate ms"] = case.gate
    return report


def main(names: list[str]) -> int:
    report = {}
    for case in CASES:
        if names and not any(name in case.name for name in names):
            continue
        report[case.name] = run(case)
        print(case.name)
        for key, value in report[case.name].items():
            print(f"    {key:36s} {value}")
    if not names:
        file = Path(__file__).resolve().parent / "results" / "connect.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    keep_heap()
    sys.exit(main(sys.argv[1:]))
