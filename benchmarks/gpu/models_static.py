"""What a model's program does on a GPU, without one: launches, bytes, and predicted time.

    python benchmarks/gpu/models_static.py                       the zoo in bf16 for sm_90a
    python benchmarks/gpu/models_static.py gpt2 --kernels        and every kernel of one model
    python benchmarks/gpu/models_static.py --layers 2 --architecture sm_80

Bytes are what kernels read and write, each operand and result once a launch; the least are those of
weights that are read, inputs and outputs. Times are those of the machine's file, not measured ones:
of each launch the longest of its products, of its bytes from memory (from the L2 cache what fits
it) and of the least that a launch takes; the roofline has the same flops and the least bytes at
once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MODELS = (
    "bert-base", "gpt2", "gpt2-decode", "llama", "t5-small", "vit-b16", "resnet50",
    "whisper-encoder",
)  # fmt: skip
PLAIN = "a thread for each element"


class Step(NamedTuple):
    """One run of a kernel. seconds: predicted."""

    kernel: Any
    launches: int
    flops: float
    bytes: float
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--architecture", default="sm_90a")
    parser.add_argument("--layers", type=int, help="how deep the models are")
    parser.add_argument("--f32", action="store_true", help="instead of bf16")
    parser.add_argument("--kernels", action="store_true", help="every kernel")
    options = parser.parse_args()
    print(
        f"{'model':16} {'compile':>8} {'launches':>8} {'kernels':>8} {'plain':>6} "
        f"{'MB':>8} {'least':>8} {'us':>8} {'roofline':>8}   no GPU: static, {options.architecture}"
    )
    for name in options.models or MODELS:
        found = figures(name, options.architecture, options.layers, options.f32)
        print(line(name, found), flush=True)
        if options.kernels:
            print(*kernel_lines(found["steps"]), sep="\n", flush=True)
    return 0


def figures(
    name: str, architecture: str, layers: int | None = None, wide: bool = False
) -> dict[str, Any]:
    """The figures of a model of the zoo, in bf16 unless `wide`."""
    import girih

    module = girih.import_model(*_source(name, layers, wide))
    started = time.perf_counter()
    program = girih.compile(
        module, target=f"nvidia:{architecture}", options=girih.Options(cache="off")
    )
    seconds = time.perf_counter() - started
    return {"compile_seconds": round(seconds, 2), **static_figures(program, architecture)}


def static_figures(program: Any, architecture: str) -> dict[str, Any]:
    """Of a program for a GPU: launches and so on, of one pass over its steps."""
    from girih.backends.nvidia.target import target

    machine = target(architecture).machine
    plan = program.plan
    steps = [
        step(plan, one.run, machine) for one in plan.steps if one.WhichOneof("action") == "run"
    ]
    flops = sum(one.flops for one in steps)
    least = least_bytes(plan)
    memory, unit = machine.levels[-1], machine.unit(_narrowest(plan))
    roofline = max(
        flops / (unit.flops * machine.executors),
        least / (memory.rate(machine.executors) * machine.executors),
    )
    return {
        "launches": sum(one.launches for one in steps),
        "kernels": len(plan.kernels),
        "plain": sum(any(PLAIN in note for note in one.kernel.notes) for one in steps),
        "flops": flops,
        "bytes": sum(one.bytes for one in steps),
        "least_bytes": least,
        "seconds": sum(one.seconds for one in steps),
        "roofline_seconds": roofline,
        "steps": steps,
    }


def _narrowest(plan: Any) -> str:
    """The element type that products read, judged by what most of the weights' bytes are."""
    sizes: Counter[str] = Counter()
    for buffer in plan.buffers:
        sizes[buffer.element_type] += buffer.bytes if buffer.element_type != "i64" else 0
    (name, _), *_ = sizes.most_common(1)
    return name if name in ("bf16", "f16") else "f32"


def step(plan: Any, run: Any, machine: Any) -> Step:
    """A run of a kernel, with the seconds that the machine's file predicts."""
    kernel = plan.kernels[run.kernel]
    elements = {plan.buffers[argument.buffer].element_type for argument in run.arguments}
    product = bool({"dot_general", "convolution"} & set(kernel.ops))
    narrow = bool(elements & {"bf16", "f16"})
    unit = machine.unit("bf16" if product and narrow else "f32")
    blocks = max((one.grid[0] * one.grid[1] * one.grid[2] for one in kernel.launches), default=1)
    active = max(1, min(blocks, machine.executors))
    near = machine.levels[-2] if run.bytes < machine.levels[-2].capacity / 2 else machine.levels[-1]
    moving = run.bytes / (near.rate(active) * active)
    computing = run.flops / (unit.flops * active)
    launches = len(kernel.launches)
    return Step(
        kernel, launches, run.flops, run.bytes,
        max(moving, computing) + launches * (machine.sync.step + machine.blocks.fill),
    )  # fmt: skip


def least_bytes(plan: Any) -> float:
    """Bytes of the weights that are read, of inputs and of outputs, each once."""
    used = {
        argument.buffer
        for one in plan.steps
        if one.WhichOneof("action") == "run"
        for argument in one.run.arguments
    }
    places = plan.buffers[0].DESCRIPTOR.fields_by_name["place"].enum_type.values_by_name
    arena = places["ARENA"].number
    return float(
        sum(
            buffer.bytes
            for number, buffer in enumerate(plan.buffers)
            if number in used and buffer.place != arena
        )
    )


def line(name: str, found: dict[str, Any]) -> str:
    return (
        f"{name:16} {found['compile_seconds']:7.1f}s {found['launches']:8} {found['kernels']:8} "
        f"{found['plain']:6} {found['bytes'] / 1e6:8.1f} {found['least_bytes'] / 1e6:8.1f} "
        f"{found['seconds'] * 1e6:8.1f} {found['roofline_seconds'] * 1e6:8.1f}"
    )


def kernel_lines(steps: list[Step]) -> list[str]:
    """One line for each distinct kernel, those that take most first."""
    total: dict[str, list[Step]] = {}
    for one in steps:
        total.setdefault(one.kernel.name, []).append(one)
    found = []
    for name, ones in sorted(total.items(), key=lambda item: -sum(s.seconds for s in item[1])):
        first = ones[0]
        grids = [f"{x.grid[0]}x{x.block[0]}" for x in first.kernel.launches]
        notes = "; ".join(first.kernel.notes)
        found.append(
            f"    {len(ones):3} x {name:28} {sum(s.seconds for s in ones) * 1e6:7.1f} us "
            f"{first.flops / 1e6:9.1f} Mflop {first.bytes / 1e6:8.2f} MB  {' '.join(grids)} {notes}"
        )
    return found


def _source(name: str, layers: int | None, wide: bool) -> tuple[Any, ...]:
    """The model and its inputs."""
    from models import model

    built = model(name).build(layers)
    if wide or built.framework != "torch":
        return built.source, *built.inputs
    import torch
    from torch.utils import _pytree as pytree

    def narrowed(leaf: Any) -> Any:
        narrows = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(torch.bfloat16) if narrows else leaf

    return built.source.to(torch.bfloat16), *pytree.tree_map(narrowed, built.inputs)


if __name__ == "__main__":
    sys.exit(main())
