"""What the assembler makes of the kernels: no spills, nothing serialised, products back to back."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from girih.backends.nvidia.assemble import Assembly, disassemble
from girih.optimizer.asynchronous.configuration import PipelineConfiguration

from ..sass import Instruction, counts, instructions, requires_nvdisasm
from .support import BF16, SM_90A, assembled, attention, call_of, gated, layer, matmul, planned

pytestmark = pytest.mark.requires_ptxas

LARGE = np.zeros((4096, 4096), BF16)
HEADS = np.zeros((16, 4096, 128), BF16)
NARROW = np.zeros((16, 4096, 64), BF16)
SQUARE = {"M": 4096, "N": 4096, "K": 4096}
KERNELS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "matmul": (matmul, (LARGE, LARGE), {**SQUARE, "TM": 128, "TN": 256, "TK": 64}),
    "transposed": (
        matmul, (LARGE, LARGE),
        {**SQUARE, "TM": 128, "TN": 256, "TK": 64, "left": "km", "right": "nk"},
    ),
    "256 x 128": (matmul, (LARGE, LARGE), {**SQUARE, "TM": 256, "TN": 128, "TK": 64}),
    "three groups": (
        matmul, (LARGE, LARGE), {**SQUARE, "TM": 192, "TN": 160, "TK": 64, "right": "nk"},
    ),
    "f32 results": (
        matmul, (LARGE, LARGE), {**SQUARE, "TM": 128, "TN": 256, "TK": 64, "OUT": "float32"},
    ),
    "gated": (gated, (LARGE, LARGE[:, :128], LARGE[:, :128]), {}),
    "layer": (layer, (HEADS, HEADS.reshape(16, 128, 4096), LARGE[0], LARGE.reshape(1, 4096, 4096)
                      .repeat(16, 0)), {}),
    "attention": (attention, (HEADS,) * 3, {}),
    "attention 176": (attention, (HEADS,) * 3, {"TK": 176}),
    "causal": (attention, (HEADS,) * 3, {"causal": True}),
    "causal 64": (attention, (NARROW,) * 3, {"causal": True, "TQ": 192}),
}  # fmt: skip


@pytest.fixture(scope="module")
def built() -> dict[str, tuple[PipelineConfiguration, str, Assembly]]:
    return {}


def get(built: dict[str, Any], name: str) -> tuple[PipelineConfiguration, str, Assembly]:
    if name not in built:
        kernel, arrays, options = KERNELS[name]
        plan = planned(call_of(kernel, *arrays, **options))
        built[name] = (plan, *assembled(plan))
    return built[name]


@pytest.mark.parametrize("name", KERNELS)
def test_registers_suffice(built, name: str) -> None:
    plan, ptx, assembly = get(built, name)
    assert assembly.faults() == []
    (usage,) = assembly.usages.values()
    assert usage.registers <= {1: 255, 2: 168, 3: 128}[plan.groups]
    assert ".local" not in ptx and "call" not in ptx
    assert plan.shared_bytes <= SM_90A.architecture.shared_bytes


def test_a_turn_of_the_loop_is_four_products(built) -> None:
    plan, ptx, assembly = get(built, "matmul")
    assert plan.cluster == 2 and plan.rings[0].stages == 4
    assert len(re.findall(r"wgmma\.mma_async", ptx)) == 4
    assert len(re.findall(r"wgmma\.fence", ptx)) == 1
    assert re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)", ptx) == ["1", "0"]
    # Each block brings its own rows (one box) and half of the columns (four chunks) for both.
    assert len(re.findall(r"cp\.async\.bulk\.tensor\S*shared::cluster\.global", ptx)) == 5
    assert len(re.findall(r"multicast::cluster", ptx)) == 4
    assert len(re.findall(r"stmatrix", ptx)) == 16


def test_the_softmax_runs_under_a_product(built) -> None:
    """Exponentials stand between the two waits of a turn."""
    _, ptx, assembly = get(built, "attention")
    loop = ptx[ptx.index("wait_group.sync.aligned 1") :]
    loop = loop[: loop.index("wait_group.sync.aligned 0")]
    assert loop.count("ex2.approx") >= 64


@requires_nvdisasm
@pytest.mark.parametrize("name", ["matmul", "transposed", "256 x 128", "f32 results"])
def test_products_stand_back_to_back(built, name: str) -> None:
    """Between the arrival and the wait nothing but uniform registers' work, which other units do,
    changes a descriptor; one thread starts copies without a vote."""
    _, _, assembly = get(built, name)
    code = code_of(assembly)
    arrive = next(n for n, one in enumerate(code) if one.opcode == "WARPGROUP.ARRIVE")
    wait = next(n for n, one in enumerate(code) if n > arrive and waited(one) is not None)
    turn = code[arrive:wait]
    products = [n for n, one in enumerate(turn) if one.name == "HGMMA"]
    assert len(products) == 4 * (2 if name == "256 x 128" else 1)
    assert waited(code[wait]) == 1
    for one in turn[products[0] : products[-1]]:
        assert one.name not in ("R2UR", "MOV", "BAR", "SYNCS", "BRA"), one
    assert not any("U.ANY" in one.opcode or one.name == "VOTEU" for one in code)
    assert counts(code)["HGMMA"] == len(products)


@requires_nvdisasm
def test_a_turn_of_a_cluster_waits_for_no_memory(built) -> None:
    """Its blocks tell each other that a stage was read, not what they have written."""
    _, ptx, assembly = get(built, "matmul")
    assert len(re.findall(r"mbarrier\.arrive\.shared::cluster", ptx)) == 2
    assert sum(one.opcode == "MEMBAR.ALL.GPU" for one in code_of(assembly)) == 1  # at the exit


@requires_nvdisasm
def test_exponentials_run_under_a_product(built) -> None:
    _, _, assembly = get(built, "attention")
    code = code_of(assembly)
    first = next(n for n, one in enumerate(code) if waited(one) == 1)
    last = next(n for n, one in enumerate(code) if n > first and waited(one) == 0)
    assert counts(code[first:last])["MUFU"] >= 64
    assert not {"LDL", "STL"} & set(counts(code))


def code_of(assembly: Assembly) -> list[Instruction]:
    text = disassemble(assembly.cubin)
    assert text is not None
    return instructions(text)[0]


def waited(one: Instruction) -> int | None:
    """How many groups a wait for products leaves in flight; None for other instructions."""
    depth = re.search(r"gsb0, 0x(\d)", one.operands)
    return int(depth[1]) if one.opcode.startswith("WARPGROUP.DEPBAR") and depth else None
