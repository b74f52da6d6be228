"""What a contraction needs besides its own kernel are kernels of the program, with its memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.nvidia.capabilities import capabilities
from girih.backends.nvidia.target import target
from girih.hlo.build import build_module
from girih.hlo.graph import NOTE, Module
from girih.hlo.interpret import interpret
from girih.hlo.types import BF16, F32, I8, I32, ElementType, TensorType
from girih.hlo.verify import FUSED, verify
from girih.optimizer.machine import Machine
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.kernels import Kernels
from girih.optimizer.pipeline import run_pipeline
from girih.optimizer.tiles.tilings import LARGEST_TILINGS
from girih.options import Options

ON = target("sm_90a")
ABLE = capabilities(ON.architecture)


def free() -> Machine:
    """Memory so fast that small products repay copies, and kernels that begin at once."""
    rows = [
        replace(one, bandwidth=tuple(row._replace(read=1e18, write=1e18) for row in one.bandwidth))
        for one in ON.machine.levels
    ]
    assert ON.machine.blocks is not None
    blocks = replace(ON.machine.blocks, fill=1e-12, tile=1e-12)
    sync = replace(ON.machine.sync, step=0.0)
    return replace(ON.machine, levels=tuple(rows), blocks=blocks, sync=sync)


def product(
    m: int, n: int, k: int, element: ElementType, sums: ElementType, twice: bool = False
) -> Module:
    """[M, K] x [K, N], or the sum of two of these."""
    kind = TensorType((m, n), sums)

    def body(b: Any, x: Any, *others: Any) -> list[Any]:
        made = [
            b("dot_general", x, w, type=kind, lhs_contracting_dimensions=(1,),
              rhs_contracting_dimensions=(0,))
            for w in others
        ]  # fmt: skip
        return [b("add", *made) if twice else made[0]]

    sides = [TensorType((m, k), element), *[TensorType((k, n), element)] * (1 + twice)]
    return build_module(sides, body)


def chosen(module: Module) -> tuple[Module, Kernels]:
    kernels = Kernels(free(), ABLE)
    fused = run_pipeline(module, [Fuse()])
    after = run_pipeline(fused, [kernels], check=True)
    verify(after, FUSED)
    inputs = [np.ones(value.dims, value.tensor.dtype) for value in module.body.arguments]
    for a, b in zip(interpret(after, inputs), interpret(module, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    return after, kernels


def kinds(module: Module) -> list[str]:
    return [op.kind if op.name == "fusion" else op.name for op in module.body.ops]


def test_operands_of_bytes_are_copied_along_the_sum() -> None:
    after, _ = chosen(product(72, 48, 64, I8, I32))
    assert kinds(after) == ["loop", "contract"]
    assert after.body.ops[0].result.dims == (48, 64)
    assert "copied first" in str(after.body.ops[0].attributes[NOTE])


def test_a_long_sum_is_done_in_parts() -> None:
    after, _ = chosen(product(16, 24, 2048, F32, F32))
    assert kinds(after) == ["reshape", "reshape", "contract", "loop"]
    assert "parts" in str(after.body.ops[2].attributes[NOTE])


def test_equal_contractions_are_judged_once() -> None:
    after, kernels = chosen(product(72, 48, 64, I8, I32, twice=True))
    assert kinds(after) == ["loop", "contract", "loop", "contract"]
    assert len(kernels.made) == 2  # the second one adds the first


def test_what_is_one_kernel_stays() -> None:
    fused = run_pipeline(product(256, 256, 256, BF16, F32), [Fuse()])
    after = Kernels(ON.machine, ABLE)(fused)
    assert kinds(after) == kinds(fused) == ["contract"]
    assert after.body.ops[0].attributes[LARGEST_TILINGS]  # nothing but these is said of it
    assert len(after.body.ops[0].attributes) == len(fused.body.ops[0].attributes) + 2


@pytest.mark.parametrize("gpu", ["sm_90a", "sm_80"])
def test_the_plan_owns_the_memory_of_copies(gpu: str) -> None:
    side = 4096
    module = product(side, side, side, I8, I32)
    program = girih.compile(module, target=f"nvidia:{gpu}", options=Options(cache="off"))
    assert len(program.plan.kernels) == 2
    assert not any(kernel.scratch_bytes for kernel in program.plan.kernels)
    assert program.memory.temporary_bytes == side * side
