"""Prices stand in one place, machines' files and optimizer/cost/, and are the same for all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import girih
from girih.backends.nvidia import fits
from girih.backends.nvidia.capabilities import capabilities
from girih.backends.nvidia.target import target
from girih.hlo.build import build_region, make_op
from girih.hlo.graph import Op, arguments
from girih.hlo.types import BF16, F16, F32, F64, I8, I32, TensorType
from girih.optimizer.cost.blocks import BlockCounter, LargestGrain
from girih.optimizer.kernels.tiled import Tilings
from girih.optimizer.passes.connect import Connect
from girih.optimizer.tiles import contraction, tilings

ROOT = Path(girih.__file__).parent
ROOMS = ("optimizer", "backends", "runtime")
# What a constant of a machine is called, or what its comment says that it is.
NAMED = re.compile(
    r"(^|_)(CLOCKS?|CYCLES?|RATES?|LATENC\w+|BANDWIDTH|SECONDS|MICROSECONDS|NANOSECONDS|US|NS|PER|"
    r"TRAFFIC|SYNC|BARRIER|DISPATCH|SERIAL|BETWEEN)(_|$)"
)
SAID = re.compile(r"\bper (clock|cycle|second|us|microsecond)|\bclocks\b|\bflops? per\b|/s\b|GB/s")
# Constants that are no prices: of waits for people and processes, and names of things.
NO_PRICES = {
    "backends/cpu/foreign.py": {"_SECONDS"},
    "optimizer/asynchronous/configuration.py": {"_BARRIER"},
}


def numbers(path: Path) -> Iterator[tuple[str, str]]:
    """Names of the module's and its classes' constants that hold a number, with their line."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef)):
            continue
        for one in node.body:
            if isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value is not None:
                held = [n.value for n in ast.walk(one.value) if isinstance(n, ast.Constant)]
                if any(isinstance(v, (int, float)) and not isinstance(v, bool) for v in held):
                    targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                    for target in targets:
                        for name in ast.walk(target):
                            if isinstance(name, ast.Name):
                                yield name.id, lines[one.lineno - 1]


def prices(path: Path) -> list[str]:
    """Constants of a file that are prices of a machine, by their names or comments."""
    return [
        name
        for name, line in numbers(path)
        if NAMED.search(name) or SAID.search(line.partition("#")[2])
    ]


def test_no_price_stands_elsewhere() -> None:
    found = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith("optimizer/cost/"):
                known = NO_PRICES.get(name, set())
                found += [f"{name}: {one}" for one in prices(path) if one not in known]
    assert not found


def test_prices_are_found(tmp_path: Path) -> None:
    path = tmp_path / "room.py"
    path.write_text(
        "_CACHE = 64.0  # bytes per clock from the L2 cache\n_FIXED = 900.0  # clocks of a tile\n"
        "SERIAL_US, FEW = 1.5, 3\nBYTES_PER_US: float = 20e3\nWIDTH = 16  # bytes\nPERMUTED = 3\n"
    )
    assert prices(path) == ["_CACHE", "_FIXED", "SERIAL_US", "BYTES_PER_US"]


# Rows, columns, depth, element, result, whether the right side lies along the sum, batches.
PRODUCTS = [
    (8192, 8192, 8192, BF16, F32, True, 0),
    (4096, 4096, 4096, BF16, F32, False, 0),
    (1024, 1024, 1024, F16, F32, True, 0),
    (256, 256, 256, BF16, F32, True, 0),
    (4096, 50304, 768, BF16, F32, True, 0),
    (512, 3072, 768, BF16, F32, True, 0),
    (512, 768, 3072, BF16, F32, False, 0),
    (200, 768, 768, F16, F32, True, 0),
    (16, 4096, 4096, BF16, F32, True, 0),
    (1, 4096, 4096, BF16, F32, True, 0),
    (4096, 4096, 4096, I8, I32, True, 0),
    (512, 768, 768, I8, I32, True, 0),
    (4096, 4096, 4096, F32, F32, False, 0),
    (512, 768, 768, F32, F32, True, 0),
    (1024, 1024, 1024, F64, F64, True, 0),
    (100, 96, 64, F32, F32, False, 0),
    (512, 512, 64, BF16, F32, True, 12),
    (512, 64, 512, BF16, F32, False, 12),
    (200, 200, 64, F16, F32, True, 32),
    (2048, 2048, 128, F32, F32, True, 4),
]
# Batch, sides of the image, features in and out, side of the window, stride, element.
CONVOLUTIONS = [
    (1, 56, 64, 64, 3, 1, BF16),
    (16, 56, 64, 64, 3, 1, BF16),
    (1, 28, 128, 128, 3, 1, F16),
    (8, 28, 128, 256, 3, 2, BF16),
    (1, 14, 256, 256, 3, 1, BF16),
    (32, 7, 512, 512, 3, 1, BF16),
    (1, 56, 64, 256, 1, 1, BF16),
    (4, 32, 320, 320, 3, 1, F16),
    (2, 64, 64, 128, 5, 2, BF16),
    (2, 32, 640, 640, 1, 1, F16),
]


def product(m: int, n: int, k: int, element: Any, sums: Any, along: bool, batches: int) -> Op:
    lead = (batches,) if batches else ()
    first = len(lead)
    left = TensorType((*lead, m, k), element)
    right = TensorType((*lead, *((n, k) if along else (k, n))), element)
    facts = {
        "lhs_batching_dimensions": tuple(range(first)),
        "rhs_batching_dimensions": tuple(range(first)),
        "lhs_contracting_dimensions": (first + 1,),
        "rhs_contracting_dimensions": (first + along,),
    }
    result = TensorType((*lead, m, n), sums)
    return fusion([left, right], lambda b, x, y: [b("dot_general", x, y, type=result, **facts)])


def convolution(n: int, s: int, c: int, f: int, window: int, stride: int, element: Any) -> Op:
    side = (s + 2 * (window // 2) - window) // stride + 1
    facts = {
        "window_strides": (stride,) * 2, "padding": ((window // 2,) * 2,) * 2,
        "lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "window_reversal": (False, False),
        "input_batch_dimension": 0, "input_feature_dimension": 3,
        "input_spatial_dimensions": (1, 2), "kernel_input_feature_dimension": 2,
        "kernel_output_feature_dimension": 3, "kernel_spatial_dimensions": (0, 1),
        "output_batch_dimension": 0, "output_feature_dimension": 3,
        "output_spatial_dimensions": (1, 2), "feature_group_count": 1, "batch_group_count": 1,
    }  # fmt: skip
    image, kernel = TensorType((n, s, s, c), element), TensorType((window, window, c, f), element)
    result = TensorType((n, side, side, f), F32)
    return fusion([image, kernel], lambda b, x, w: [b("convolution", x, w, type=result, **facts)])


def fusion(types: list[TensorType], body: Any) -> Op:
    region = build_region(types, body)
    kind = {"kind": "contract"}
    return make_op("fusion", arguments(types), kind, (region,), region.result_types, check=False)


KERNELS = [product(*one) for one in PRODUCTS] + [convolution(*one) for one in CONVOLUTIONS]


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_optimizer_and_backend_predict_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect's seconds of a kernel are those of the tiles that the backend takes."""
    on = target(name)
    taken: list[tuple[int, ...]] = []

    def built(group: Any, operands: Any, name: str, sizes: Any, step: int, way: int) -> Op:
        taken.append((way, step, *sizes))
        return build(group, operands, name, sizes, step, way)

    build = tilings.built
    monkeypatch.setattr(tilings, "built", built)
    able = capabilities(on.architecture)
    for op in KERNELS:
        region = op.regions[0]
        group, main = tilings.contraction_group(region)
        found = Connect(on.machine, capabilities=able).plan(group)
        facts = {"kind": "contract", **Tilings(on.machine, able).listed(region)}
        bearing = make_op("fusion", op.operands, facts, (region,), region.result_types)
        kind: type[BlockCounter] = LargestGrain
        if tilings.LARGEST_TILINGS not in facts or isinstance(fits.pipelined(bearing, on), str):
            kind = BlockCounter
            next(tilings.tile_functions(bearing, tilings.BLOCK_TILINGS))
        plans = contraction.tilings(group, main, on.machine, kind)
        times: dict[tuple[int, ...], float] = {
            (plan.way, plan.step, *plan.sizes): plan.time for plan in plans
        }
        assert found is not None and found.time == times[taken[-1]], (str(region), found, taken)
