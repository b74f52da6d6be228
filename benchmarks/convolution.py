"""Convolutions of well-known networks beside torch, XLA:CPU and ONNX Runtime.

    python benchmarks/convolution.py [--threads 2] [--seconds 0.3] [--only TEXT] [--machine FILE]

Each is one convolution with bias and ReLU of float32. girih and XLA run it with features innermost
as inside a network, torch in its own channels-last form, ONNX Runtime as its format has it (NCHW,
its own blocked layout inside). The engines take turns in one process; a time is the median of all
calls and holds what a call costs. "limit" is what the machine's file allows: operations at the peak
of its units, or bytes at the bandwidth of the level that holds them, whichever takes longer.
Writes benchmarks/results/convolution.json where all shapes ran.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Shape:
    """One convolution; `groups` is the number of features for a depthwise one."""

    name: str
    size: int
    inputs: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    batch: int = 1
    pad: int | None = None  # None: half the kernel

    @property
    def padding(self) -> int:
        return self.kernel // 2 if self.pad is None else self.pad

    @property
    def result(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def flops(self) -> int:
        taps = self.kernel**2 * self.inputs // self.groups
        return 2 * self.batch * self.result**2 * self.outputs * taps

    @property
    def bytes(self) -> int:
        weights = self.kernel**2 * self.inputs // self.groups * self.outputs
        image = self.batch * self.size**2 * self.inputs
        return 4 * (weights + image + self.batch * self.result**2 * self.outputs)


SHAPES = (
    Shape("resnet stem 7x7/2", 224, 3, 64, 7, 2),
    Shape("resnet 3x3 64", 56, 64, 64, 3),
    Shape("resnet 1x1 64-256", 56, 64, 256),
    Shape("resnet 1x1 256-64", 56, 256, 64),
    Shape("resnet 3x3/2 128", 56, 128, 128, 3, 2),
    Shape("resnet 3x3 128", 28, 128, 128, 3),
    Shape("resnet 1x1 512-128", 28, 512, 128),
    Shape("resnet 1x1/2 512-1024", 28, 512, 1024, 1, 2),
    Shape("resnet 3x3 256", 14, 256, 256, 3),
    Shape("resnet 1x1 1024-256", 14, 1024, 256),
    Shape("resnet 3x3 512", 7, 512, 512, 3),
    Shape("resnet 1x1 512-2048", 7, 512, 2048),
    Shape("resnet 3x3 256, batch 8", 14, 256, 256, 3, batch=8),
    Shape("resnet 1x1 256-64, batch 8", 56, 256, 64, batch=8),
    Shape("mobilenet stem 3x3/2", 224, 3, 32, 3, 2),
    Shape("mobilenet 1x1 24-144", 56, 24, 144),
    Shape("mobilenet depthwise 144", 56, 144, 144, 3, groups=144),
    Shape("mobilenet depthwise/2 96", 112, 96, 96, 3, 2, groups=96),
    Shape("mobilenet depthwise 960", 7, 960, 960, 3, groups=960),
    Shape("convnext patches 4x4/4", 224, 3, 96, 4, 4, pad=0),
    Shape("convnext depthwise 7x7 96", 56, 96, 96, 7, groups=96),
    Shape("convnext depthwise 7x7 768", 7, 768, 768, 7, groups=768),
    Shape("vgg 3x3 64-128", 112, 64, 128, 3),
)


class Problem:
    """The arrays of a shape, and each engine's call on them."""

    def __init__(self, shape: Shape, threads: int) -> None:
        self.shape, self.threads = shape, threads
        rng = np.random.default_rng(0)
        inner = shape.inputs // shape.groups
        dims = (shape.batch, shape.size, shape.size, shape.inputs)
        self.image = rng.standard_normal(dims).astype(np.float32)
        scale = 1 / math.sqrt(inner * shape.kernel**2)
        weights = rng.standard_normal((shape.kernel, shape.kernel, inner, shape.outputs)) * scale
        self.weights = weights.astype(np.float32)
        self.bias = rng.standard_normal(shape.outputs).astype(np.float32)

    def function(self) -> Callable[[Any], Any]:
        """The problem as a JAX function of the image, features innermost."""
        import jax

        shape = self.shape
        pad = (shape.padding, shape.padding)

        weights: Any = self.weights

        def run(image: Any) -> Any:
            result = jax.lax.conv_general_dilated(
                image, weights, (shape.stride,) * 2, (pad, pad),
                dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=shape.groups,
            )  # fmt: skip
            return jax.nn.relu(result + self.bias)

        return run

    def girih(self) -> Callable[[], Any]:
        import jax

        import girih

        options = girih.Options(threads=self.threads)
        program = girih.compile(jax.jit(self.function()), self.image, options=options)
        return lambda: program(self.image)

    def xla(self) -> Callable[[], Any]:
        import jax

        function, image = jax.jit(self.function()), jax.device_put(self.image)
        return lambda: np.asarray(jax.block_until_ready(function(image)))

    def torch(self) -> Callable[[], Any]:
        import torch

        torch.set_num_threads(self.threads)
        shape, last = self.shape, torch.channels_last
        image = torch.from_numpy(self.image).permute(0, 3, 1, 2)
        weights = torch.from_numpy(self.weights.transpose(3, 2, 0, 1).copy()).to(memory_format=last)
        bias = torch.from_numpy(self.bias)

        def call() -> Any:
            with torch.inference_mode():
                result = torch.nn.functional.conv2d(
                    image, weights, bias, shape.stride, shape.padding, 1, shape.groups
                )
                return torch.relu_(result).permute(0, 2, 3, 1)

        return call

    def onnxruntime(self) -> Callable[[], Any]:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper

        shape, kind = self.shape, TensorProto.FLOAT
        constants = {"w": self.weights.transpose(3, 2, 0, 1).copy(), "b": self.bias}
        nodes = [
            helper.make_node(
                "Conv", ["x", "w", "b"], ["c"], strides=[shape.stride] * 2,
                pads=[shape.padding] * 4, group=shape.groups,
            ),
            helper.make_node("Relu", ["c"], ["y"]),
        ]  # fmt: skip
        graph = helper.make_graph(
            nodes, "convolution",
            [helper.make_tensor_value_info("x", kind, None)],
            [helper.make_tensor_value_info("y", kind, None)],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"]
        )
        image = np.ascontiguousarray(self.image.transpose(0, 3, 1, 2))
        return lambda: np.asarray(session.run(None, {"x": image})[0]).transpose(0, 2, 3, 1)


ENGINES = ("girih", "xla", "torch", "onnxruntime")


def limit(shape: Shape, machine: Any, threads: int) -> float:
    """Seconds below which the machine cannot be."""
    arithmetic = shape.flops / (machine.unit("f32").flops * threads)
    for level in machine.levels:
        capacity = level.capacity * (1 if level.shared else threads)
        if shape.bytes <= capacity or level is machine.levels[-1]:
            return max(arithmetic, shape.bytes / (level.rate(threads, "copy") * threads))
    return arithmetic


def measure(shape: Shape, threads: int, seconds: float, machine: Any) -> dict[str, Any]:
    """Median times in microseconds of each engine, errors beside the first, shares of the limit."""
    problem = Problem(shape, threads)
    calls = {engine: getattr(problem, engine)() for engine in ENGINES}
    exact = np.asarray(calls["xla"](), np.float64)
    for engine, call in calls.items():
        error = float(np.abs(np.asarray(call()) - exact).max() / np.abs(exact).max())
        if error > 1e-4:
            raise SystemExit(f"{shape.name}: {engine} differs from xla by {error:.1e}")
    times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    turns = 4
    for _ in range(turns):
        for engine, call in calls.items():
            time.sleep(0.05)  # the threads of the engine before go to sleep
            call()
            finish = time.perf_counter() + seconds / turns
            while True:
                started = time.perf_counter()
                call()
                ended = time.perf_counter()
                times[engine].append(ended - started)
                if ended > finish:
                    break
    medians = {engine: float(np.median(taken)) * 1e6 for engine, taken in times.items()}
    bound = limit(shape, machine, threads) * 1e6
    own = medians["girih"]
    return {
        "name": shape.name,
        "microseconds": {engine: round(value, 1) for engine, value in medians.items()},
        "gigaflops": round(shape.flops / own * 1e-3, 1),
        "limit_microseconds": round(bound, 1),
        "of_limit": round(bound / own, 3),
        "over_best_peer": round(min(v for e, v in medians.items() if e != "girih") / own, 3),
    }


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each engine and shape")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--machine", type=Path, help="a machine's file; default: the shipped one")
    options = parser.parse_args()
    from girih.optimizer.machine import read_machine

    shipped = HERE.parent / "backends" / "cpu" / "machines" / "avx512.json"
    machine = read_machine(options.machine or shipped)
    rows = []
    for shape in SHAPES:
        if options.only in shape.name:
            rows.append(measure(shape, options.threads, options.seconds, machine))
    table = Table("convolution", *(f"{e} us" for e in ENGINES), "GF/s", "limit %", "over best")
    for row in rows:
        table.add_row(
            row["name"], *(f"{row['microseconds'][e]:.0f}" for e in ENGINES),
            f"{row['gigaflops']:.0f}", f"{row['of_limit'] * 100:.0f}",
            f"{row['over_best_peer']:.2f}",
        )  # fmt: skip
    console = Console(width=120)
    console.print(table)
    means = {key: geometric_mean([row[key] for row in rows]) for key in
             ("of_limit", "over_best_peer")}  # fmt: skip
    console.print(f"geometric means: {means}")
    if not options.only:
        report = {"threads": options.threads, "machine": machine.name, "rows": rows, **means}
        file = HERE / "results" / "convolution.json"
        file.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
