"""One-token steps with a KV cache at batch 1: tokens a second, and how near to memory's speed.

    python benchmarks/decode.py                   GPT-2 and Llama, float32, bfloat16, int8 weights
    python benchmarks/decode.py --layers 2        smaller models

A step reads every weight of its products once: reading limits it. `quantised` stores
those weights as 8-bit integers with one scale per output channel; activations stay float32. Writes
benchmarks/results/decode.json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import girih
from girih.hlo.build import make_op
from girih.hlo.graph import Module, Op, Region, Value, Weight
from girih.hlo.types import F32, I8, TensorType
from zoo import machine

RESULTS = Path(__file__).resolve().parent / "results"
LEAST_BANDWIDTH = 0.85  # of memory's measured read bandwidth, over the weights
LEAST_GAIN = 2.5  # of int8 weights over float32


def gpt2(layers: int) -> tuple[Any, tuple[Any, ...]]:
    from models.torch_models import gpt2_decode

    return gpt2_decode(layers)


def llama(layers: int) -> tuple[Any, tuple[Any, ...]]:
    """Llama of width 768: one token after a cache of 127."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from models.torch_models import CachedDecode, scattered, tokens

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=layers,
        num_attention_heads=12, vocab_size=32000,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(2)
    cache = tuple(
        tuple(torch.randn(1, 12, 127, 64, generator=generator) for _ in range(2))
        for _ in range(layers)
    )
    return CachedDecode(scattered(LlamaForCausalLM(config))), (tokens(1, config.vocab_size), cache)


MODELS = {"gpt2": gpt2, "llama": llama}


def quantised(module: Module) -> Module:
    """The module whose products read weights of 8-bit integers: dot(x, w) becomes
    dot(x, convert(q)) * scale, with w ~ q * scale and one scale per output channel."""
    weights = dict(module.weights)
    mapping: dict[Value, Value] = {}
    ops: list[Op] = []

    def add(
        name: str, operands: list[Value], attributes: dict[str, Any], type: TensorType
    ) -> Value:
        ops.append(make_op(name, operands, attributes, (), [type], check=False))
        return ops[-1].results[0]

    for op in module.body.ops:
        fresh = op.with_operands([mapping.get(value, value) for value in op.operands])
        if _streams_weight(op):
            source = op.operands[1].op
            assert source is not None
            name, axes = source.weight, tuple(op.rhs_contracting_dimensions)
            data = module.weights[name].array.astype(np.float32)
            scale = np.maximum(np.abs(data).max(axis=axes, keepdims=True), 1e-12) / 127
            weights[f"{name}#int8"] = Weight(f"{name}#int8", np.rint(data / scale).astype(np.int8))
            scales = np.ascontiguousarray(scale.reshape(-1), np.float32)
            weights[f"{name}#scale"] = Weight(f"{name}#scale", scales)
            wide, flat = TensorType(data.shape, F32), TensorType(scales.shape, F32)
            q = add("weight", [], {"weight": f"{name}#int8"}, TensorType(data.shape, I8))
            operands = [fresh.operands[0], add("convert", [q], {}, wide)]
            product = add("dot_general", operands, dict(op.attributes), op.type)
            factor = add("weight", [], {"weight": f"{name}#scale"}, flat)
            last = {"broadcast_dimensions": (op.type.rank - 1,)}
            spread = add("broadcast_in_dim", [factor], last, op.type)
            mapping[op.results[0]] = add("multiply", [product, spread], {}, op.type)
            continue
        mapping.update(zip(op.results, fresh.results, strict=True))
        ops.append(fresh)
    results = [mapping.get(value, value) for value in module.body.results]
    body = Region(module.body.arguments, ops, results)
    return module.with_main(body).with_weights(weights)


def _streams_weight(op: Op) -> bool:
    """Whether an operation is a product with a float32 weight matrix."""
    if op.name != "dot_general" or op.rhs_batching_dimensions or op.type.element is not F32:
        return False
    source = op.operands[1].op
    return source is not None and source.name == "weight" and len(op.operands[1].dims) == 2


def streamed_bytes(module: Module) -> int:
    """Bytes of the weights that products read in one step."""
    return sum(op.operands[1].tensor.bytes for op in module.body.ops if _streams_weight(op))


def simplified(module: Module) -> Module:
    from girih.optimizer.pipeline import run_pipeline, simplify_pipeline

    return run_pipeline(module, simplify_pipeline())


def read_bandwidth(threads: int, seconds: float = 2.0) -> float:
    """Bytes a second that all threads read together from memory: the best of many passes."""
    from girih.backends.cpu import image, probes
    from girih.backends.cpu.codegen import compile_object, host_target
    from girih.runtime.devices.cpu import map_image

    target = host_target()
    module = target.module()
    probes.read(module, "read", target)
    linked = image.link([compile_object(module.text(), target)])
    mapped = map_image(linked.data)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)
    read = kind(mapped.address + linked.symbols["read"])
    size = 1 << 28
    blocks = [np.zeros(size + 64, np.uint8) for _ in range(threads)]
    for block in blocks:
        block.fill(1)
    result = np.zeros(1 << 12, np.uint8)

    def run(block: Any) -> None:
        start = block.ctypes.data + -block.ctypes.data % 64
        read(start, start, result.ctypes.data, size, 1)

    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        others = [threading.Thread(target=run, args=(block,)) for block in blocks[1:]]
        begin = time.perf_counter()
        for thread in others:
            thread.start()
        run(blocks[0])
        for thread in others:
            thread.join()
        best = min(best, time.perf_counter() - begin)
    return size * threads / best


def programs(build: Any, layers: int) -> tuple[dict[str, Any], dict[str, int], tuple[Any, ...]]:
    """Compiled steps by precision, the bytes of weights that each reads, and the inputs."""
    from torch.utils import _pytree as pytree

    source, inputs = build(layers)
    module = simplified(girih.import_model(source, *inputs))
    bf16 = girih.Options(matmul_precision="bfloat16")
    bytes_read = streamed_bytes(module)
    compiled = {
        "float32": girih.compile(module),
        "bfloat16": girih.compile(module, options=bf16),
        "int8": girih.compile(quantised(module)),
    }
    read = {"float32": bytes_read, "bfloat16": bytes_read // 2, "int8": bytes_read // 4}
    arrays = pytree.tree_map(lambda leaf: np.array(leaf.detach()), inputs)
    return compiled, read, arrays


def measure(name: str, layers: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of a step for each precision; they take turns."""
    compiled, read, inputs = programs(MODELS[name], layers)
    expected = np.asarray(compiled["float32"](*inputs)[0])
    times: dict[str, list[float]] = {key: [] for key in compiled}
    turns = 8
    for _ in range(turns):
        for key, program in compiled.items():
            program(*inputs)
            end = time.perf_counter() + seconds / turns
            while time.perf_counter() < end:
                begin = time.perf_counter()
                program(*inputs)
                times[key].append(time.perf_counter() - begin)
    bandwidth = read_bandwidth(len(os.sched_getaffinity(0)))
    row: dict[str, Any] = {"name": name, "layers": layers, "read_bandwidth": bandwidth}
    for key, program in compiled.items():
        step, least = float(np.median(times[key])), float(np.quantile(times[key], 0.05))
        found = np.asarray(program(*inputs)[0])
        row[key] = {
            "tokens_per_second": 1 / step,
            "weight_bytes": read[key],
            "of_bandwidth": read[key] / step / bandwidth,
            "of_bandwidth_best": read[key] / least / bandwidth,
            "error": float(np.abs(found - expected).max() / np.abs(expected).max()),
        }
    row["int8_gain"] = row["int8"]["tokens_per_second"] / row["float32"]["tokens_per_second"]
    return row


def main() -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=MODELS, help="one model")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each precision")
    options = parser.parse_args()
    names = [options.only] if options.only else list(MODELS)
    rows = [measure(name, options.layers, options.seconds) for name in names]
    table = Table(title="decode, batch 1")
    for heading in ("model", "precision", "tokens/s", "of read bandwidth", "best", "error"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        for key in ("float32", "bfloat16", "int8"):
            entry = row[key]
            table.add_row(
                row["name"], key, f"{entry['tokens_per_second']:.1f}",
                f"{entry['of_bandwidth']:.0%}", f"{entry['of_bandwidth_best']:.0%}",
                f"{entry['error']:.1e}",
            )  # fmt: skip
    console = Console()
    console.print(table)
    for row in rows:
        console.print(
            f"{row['name']}: int8 weights give {row['int8_gain']:.2f} x float32's tokens a second; "
            f"memory reads {row['read_bandwidth'] / 1e9:.1f} GB/s"
        )
    if not options.only and options.layers == 12:
        RESULTS.mkdir(exist_ok=True)
        report = {"machine": machine(), "models": rows}
        (RESULTS / "decode.json").write_text(json.dumps(report, indent=1) + "\n")
    good = all(
        row["int8_gain"] >= LEAST_GAIN and row["float32"]["of_bandwidth"] >= LEAST_BANDWIDTH
        for row in rows
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
