"""Products in tile functions: matrix instructions, rings of copies, patches, and contractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from girih.backends.nvidia import fits, simulator, tile
from girih.backends.nvidia.target import NvidiaTarget, target
from girih.hlo.build import Builder, make_op
from girih.hlo.graph import Op, arguments
from girih.hlo.interpret import evaluated
from girih.hlo.ops.tile import INDEX
from girih.hlo.precision import OPERANDS, TF32
from girih.hlo.types import BF16, C64, F16, F32, F64, I8, I32

from .. import harness
from .support import (
    SM_80,
    assembled,
    attention,
    call,
    check,
    counted,
    index,
    matmul,
    ptx_of,
    tensor,
    values,
)

SM_90A = target("sm_90a")


@pytest.mark.parametrize("turned", [(False, False), (True, True)])
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_matrix_instructions(turned: tuple[bool, bool], mode: str) -> None:
    op = matmul((48, 72, 70), (32, 32, 16), F16, turned=turned)
    check(op, values(op), tolerance=1e-5, mode=mode, seed=1)


@pytest.mark.parametrize(
    ("sizes", "tiles"),
    [
        ((1, 9, 33), (1, 9, 33)),  # less than an instruction
        ((64, 64, 256), (64, 64, 32)),  # a full ring
        ((16, 8, 1024), (16, 8, 1024)),  # a long sum in one tile
        ((20, 20, 40), (16, 16, 16)),
    ],
)
def test_sizes(sizes: tuple[int, int, int], tiles: tuple[int, int, int]) -> None:
    op = matmul(sizes, tiles)
    check(op, values(op), tolerance=1e-5)


@pytest.mark.parametrize(
    ("element", "sums"), [(I8, I32), (F64, F64), (F32, F32), (C64, C64), (I32, I32)]
)
def test_element_types(element: Any, sums: Any) -> None:
    op = matmul((17, 20, 36), (16, 16, 16), element, sums, sums, turned=(False, True))
    check(op, values(op), tolerance=1e-5)


TURNED = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize(("element", "steps"), [(F32, 32), (F64, 128)], ids=["tf32", "f64"])
def test_wide_elements(element: Any, steps: int, turned: tuple[bool, bool]) -> None:
    """f32 by tf32 where the source allows it, and f64: matrix instructions that meet every bank
    once, however the operands lie."""
    facts: dict[str, Any] = {OPERANDS: TF32} if element is F32 else {}
    op = matmul((40, 32, 70), (32, 32, 32), element, element, element, turned, **facts)
    inputs = values(op)
    reports: list[Any] = []
    code = tile.emit(op, SM_80)
    options = {"counters": True, "reports": reports, "mode": "lazy"}
    (got,) = harness.run(op, inputs, code=code, on=SM_80, **options)
    (wanted,) = evaluated(op, inputs)
    harness.compare(got, np.asarray(wanted), 2e-3 if element is F32 else 1e-12)
    assert reports[0].counters["bank_conflicts"] == 0
    assert counted(ptx_of(op), "mma.sync") * 2 in (steps, 2 * steps)


def test_f32_is_rounded_to_the_nearest_tf32() -> None:
    """The instruction would cut what it does not read."""
    facts: dict[str, Any] = {OPERANDS: TF32}
    op = matmul((16, 8, 8), (16, 8, 8), F32, F32, F32, **facts)
    x, y = np.zeros((16, 8), np.float32), np.zeros((8, 8), np.float32)
    x[:, 0], y[0] = 1 + 2**-11 + 2**-13, 1
    (got,) = harness.run(op, [x, y], code=tile.emit(op, SM_80), on=SM_80)
    np.testing.assert_array_equal(got, np.float32(1 + 2**-10))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    op = attention(1, 64, 32, 32, 32, causal)
    check(op, values(op), tolerance=2e-2)


def test_no_bank_conflicts() -> None:
    """Every access of shared memory of a product takes as long as its bytes need."""
    op = matmul((128, 64, 64), (128, 64, 32))
    inputs = values(op)
    counters: dict[str, int] = {}
    launch = simulator.launch

    def counting(*args: Any, **options: Any) -> Any:
        report = launch(*args, counters=True, **options)
        counters.update(report.counters)
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "launch", counting)
        check(op, inputs, tolerance=1e-5)
    assert counters["shared_requests"] > 0 and counters["bank_conflicts"] == 0
    assert counters["global_sectors"] == counters["global_sectors_ideal"]


def test_the_loop_of_a_product() -> None:
    """128 x 128 x 32 with 8 warps: each multiplies 64 x 32 by 12 loads and 32 instructions a turn,
    meets the others once, and copies straight to shared memory."""
    ptx = ptx_of(matmul((512, 512, 512), (128, 128, 32)))
    assert counted(ptx, "mma.sync.aligned.m16n8k16") == 32
    assert counted(ptx, "ldmatrix") == 12
    assert counted(ptx, "bar") <= 2
    assert counted(ptx, "cp.async.cg") > 0
    assert counted(ptx, "ld.global") == counted(ptx, "st.shared") == 0


def test_probabilities_stay_in_registers() -> None:
    """The sums of one product are the left operand of the next without shared memory."""
    ptx = ptx_of(attention(1, 256, 64, 64, 64, True))
    between = ptx[ptx.index("mma.sync") : ptx.rindex("mma.sync")]
    assert counted(between, "st.shared") == 0 < counted(between, "fma")


@pytest.mark.requires_ptxas
@pytest.mark.parametrize(
    "op",
    [
        matmul((512, 512, 512), (128, 128, 32)),
        matmul((512, 512, 512), (128, 128, 16), F32),
        attention(2, 512, 128, 64, 64, True),
    ],
    ids=["bf16", "f32", "attention"],
)
def test_nothing_is_spilled(op: Op) -> None:
    assert not assembled(op).faults()


def fused(m: int, n: int, k: int, element: Any, batch: int = 0, out: Any = F32) -> Op:
    """tanh(x y + bias) as a contraction, with y transposed."""
    b = Builder()
    lead = (batch,) if batch else ()
    x, y, bias = b.arguments(
        [
            tensor(*lead, m, k, element=element),
            tensor(*lead, n, k, element=element),
            tensor(n, element=out),
        ]
    )
    first = len(lead)
    total = b(
        "dot_general", x, y, type=tensor(*lead, m, n, element=out),
        lhs_batching_dimensions=tuple(range(first)), rhs_batching_dimensions=tuple(range(first)),
        lhs_contracting_dimensions=(first + 1,), rhs_contracting_dimensions=(first + 1,),
    )  # fmt: skip
    total = b("tanh", b("add", total, b.broadcast(bias, total.dims, (first + 1,))))
    region = b.region([total])
    kind = {"kind": "contract"}
    types = region.argument_types
    return make_op("fusion", arguments(types), kind, (region,), region.result_types, check=False)


@pytest.mark.parametrize(
    ("sizes", "element", "batch", "out", "tolerance"),
    [
        ((40, 30, 77), BF16, 0, F32, 1e-5),
        ((16, 24, 200), F16, 3, F32, 1e-5),
        ((16, 16, 300), BF16, 0, BF16, 2e-2),
        ((9, 20, 40), F32, 2, F32, 1e-5),
    ],
)
def test_contractions(
    sizes: tuple[int, int, int], element: Any, batch: int, out: Any, tolerance: float
) -> None:
    op = fused(*sizes, element, batch, out)
    inputs = values(op)
    made = fits.in_blocks(harness.with_tilings(op, SM_80), SM_80)
    assert isinstance(made, tile.Assignment)
    code = tile.emitted(made)
    (got,) = harness.run(op, inputs, code=code, on=SM_80)
    (wanted,) = harness.expected(op, inputs)
    harness.compare(got, np.asarray(wanted), tolerance)


@pytest.mark.parametrize(
    ("element", "m", "on"),
    [(BF16, 16, SM_80), (F32, 16, SM_80), (F32, 1, SM_80), (BF16, 5, SM_90A)],
)
def test_a_long_sum_of_few_tiles_is_done_in_parts(element: Any, m: int, on: NvidiaTarget) -> None:
    """Twice the same bits: parts are added in a fixed order."""
    op = fused(m, 24, 2048, element)
    inputs = values(op)
    code = harness.emitted(op, harness.free(on))
    assert any("parts" in note for note in code.notes)
    assert code.launches[0].grid[0] > 4 and len(code.launches) == 2
    (got,) = harness.run(op, inputs, code=code, on=on)
    (again,) = harness.run(op, inputs, code=code, on=on, seed=3)
    np.testing.assert_array_equal(got, again)
    (wanted,) = harness.expected(op, inputs)
    harness.compare(got, np.asarray(wanted), 1e-4)


@pytest.mark.parametrize("columns", [16, 32, 64])
@pytest.mark.parametrize("turned", TURNED[:2])
def test_products_of_one_row(columns: int, turned: tuple[bool, bool]) -> None:
    """Threads whose patch is one element, or less than one of their own."""
    op = matmul((1, columns, 64), (1, columns, 32), F32, turned=turned)
    check(op, values(op), tolerance=1e-5)


@pytest.mark.parametrize("dims", [(64, 96), (40, 24)])
def test_transposed_tiles_are_stored_in_whole_rows(dims: tuple[int, int]) -> None:
    def body(b: Any, x: Any, out: Any) -> None:
        i, j = index(b, 0, 32), index(b, 1, 32)
        value = b("tile_load", x, i, j, sizes=(32, 32))
        b.op("tile_store", [out, b.transpose(value, (1, 0)), j, i])

    grid = -(-dims[0] // 32), -(-dims[1] // 32)
    op = call(body, [tensor(*dims)], [tensor(*dims[::-1])], grid)
    check(op, values(op))
    assert counted(ptx_of(op), "st.global.v4") > 0 == counted(ptx_of(op), "st.global.b32")


def test_a_sum_of_nothing_is_left_to_others() -> None:
    op = fused(4, 4, 0, F32)
    assert fits.in_blocks(harness.with_tilings(op, SM_80), SM_80) == "a sum of nothing"


def test_batched_products_read_neighbours_at_once() -> None:
    """Formulas of products read several columns of the right operand in one access."""
    kinds = [tensor(2, 16, 16), tensor(2, 16, 32), tensor(2, 16, 32)]

    def body(b: Any, x: Any, y: Any, out: Any) -> None:
        zeros = [b.constant(0, INDEX)] * 3
        left, right = (
            b("tile_load", one, *zeros, sizes=kind.dims)
            for one, kind in zip((x, y), kinds, strict=False)
        )
        found = b(
            "dot_general", left, right, type=kinds[2], lhs_batching_dimensions=(0,),
            rhs_batching_dimensions=(0,), lhs_contracting_dimensions=(2,),
            rhs_contracting_dimensions=(1,), precision_config=(),
        )  # fmt: skip
        b.op("tile_store", [out, found, *zeros], {})

    op = call(body, kinds[:2], kinds[2:], (1,))
    check(op, values(op), tolerance=1e-5)
    assert counted(ptx_of(op), "ld.shared.v4") > 0
