"""Contractions that become several kernels: where, which, and that they compute the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from girih.backends.nvidia.capabilities import capabilities
from girih.backends.nvidia.target import target
from girih.hlo.build import Builder
from girih.hlo.graph import NOTE, Op, Region, Value, arguments
from girih.hlo.ops.convolution import numbers
from girih.hlo.types import BF16, F16, F32, F64, I8, I32, TensorType, element_type
from girih.optimizer.kernels import split_sum
from girih.optimizer.kernels.choose import Chooser
from girih.optimizer.kernels.tiled import Limitation, Tiled, Tilings

from . import harness

ABLE, MACHINE = capabilities(harness.TARGET.architecture), harness.TARGET.machine


def product(residual: bool = True, twice: bool = False, moved: bool = False) -> Op:
    """tanh(negate(reshape(transpose(x))) @ w) + r, and the product itself if `twice`, transposed if
    `moved`."""
    b = Builder()
    x, w, r = b.arguments([TensorType(dims, F32) for dims in ((16, 10, 24), (384, 40), (10, 40))])
    left = b.reshape(b.transpose(x, (1, 0, 2)), (10, 384))
    made = b(
        "dot_general", b("negate", left), w, type=TensorType((10, 40), F32),
        lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
    )  # fmt: skip
    out = b("add", b("tanh", made), r) if residual else made
    again = [b.transpose(made, (1, 0)) if moved else made] if twice else []
    return harness.fusion("contract", b.region([out, *again]))


def inputs(op: Op) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [(random.standard_normal(v.dims) / 8).astype(np.float32) for v in op.operands]


def written(op: Op, way: Any) -> harness.Emitted:
    """The kernels that a chooser writes of an operation: way(chooser, region, operands)."""
    own, b = arguments([value.type for value in op.operands]), Builder(check=False)
    results = way(Chooser(b, MACHINE, ABLE), op.regions[0], own)
    region = Region(own, b.ops, results)
    return harness.Emitted(region, {o: harness.emit(o, harness.TARGET) for o in region.ops})


@pytest.mark.parametrize("twice", (False, True))
@pytest.mark.parametrize("residual", (False, True))
def test_operands_are_computed_first(
    monkeypatch: pytest.MonkeyPatch, residual: bool, twice: bool
) -> None:
    monkeypatch.setattr(split_sum, "MOST", 1)  # its sum stays whole

    def way(chooser: Chooser, region: Region, operands: Sequence[Value]) -> Sequence[Value]:
        computed = [v for o in region.ops if o.name == "dot_general" for v in o.operands if v.op]
        return chooser.fission(region, computed, operands, "a reason")

    op = product(residual, twice)
    code = written(op, way)
    assert [one.kind for one in code.region.ops] == ["loop", "contract"]
    assert code.region.ops[0].attributes[NOTE] == "a reason" == code.notes[0]
    harness.check(op, inputs(op), tolerance=1e-5, emitter=lambda: code)


def test_products_run_alone_where_nothing_else_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operand, product, and what follows in each of two shapes."""
    monkeypatch.setattr(split_sum, "MOST", 1)
    op = product(twice=True, moved=True)
    code = harness.emitted(op)
    assert [one.kind for one in code.region.ops] == ["loop", "contract", "loop", "loop"]
    assert any("apart: results of several shapes" in note for note in code.notes)
    harness.check(op, inputs(op), tolerance=1e-5, emitter=lambda: code)


def test_limitations_have_a_reason() -> None:
    found = Tilings(MACHINE, ABLE).best(product(twice=True, moved=True).regions[0])
    assert found == Limitation("nvidia:sm_90a", "f32", "results of several shapes")


SIZES = [1, 3, 8, 17, 40, 64, 100, 128, 200, 256, 1000, 4096]
E4M3 = element_type("f8E4M3FN")
TYPES = [(F32, F32), (BF16, F32), (BF16, BF16), (F16, F16), (I8, I32), (E4M3, F32), (F64, F64)]


def followed(b: Builder, y: Value, r: random.Random) -> Value:
    for _ in range(r.randrange(4)):
        kind = r.randrange(4)
        if kind == 0:
            y = b("negate", y)
        elif kind == 1:
            y = b("maximum", y, b.constant(0, y.tensor))
        elif kind == 2:
            y = b("add", y, b("iota", type=y.tensor, iota_dimension=r.randrange(y.rank)))
        elif y.element.is_float:
            y = b.convert(y, r.choice([F32, BF16]))
    return y


def a_product(r: random.Random) -> Region:
    b, (element, sums) = Builder(), r.choice(TYPES)
    m, n, k = (r.choice(SIZES) for _ in range(3))
    lead, sides = r.choice([(), (), (3,)]), (r.randrange(2), r.randrange(2))
    shapes = [(*lead, *(dims if side else dims[::-1]))
              for dims, side in zip(((m, k), (n, k)), sides, strict=True)]  # fmt: skip
    x, w = b.arguments([TensorType(dims, element) for dims in shapes])
    x = b("negate", x) if r.random() < 0.2 and element.is_float else x
    batches, first = tuple(range(len(lead))), len(lead)
    y = b(
        "dot_general", x, w, type=TensorType((*lead, m, n), sums), lhs_batching_dimensions=batches,
        rhs_batching_dimensions=batches, lhs_contracting_dimensions=(first + sides[0],),
        rhs_contracting_dimensions=(first + sides[1],),
    )  # fmt: skip
    return b.region([followed(b, y, r)])


def a_convolution(r: random.Random) -> Region:
    b, element, spatial = Builder(), r.choice([F32, BF16, F16]), r.choice([1, 2, 3])
    features, out = r.choice([1, 3, 8, 16, 64]), r.choice([1, 8, 24, 64])
    dims, taps = [r.choice([7, 14, 20])] * spatial, [r.choice([1, 2, 3])] * spatial
    image, kernel = (2, *dims, features), (*taps, features, out)
    facts: dict[str, Any] = numbers(spatial) | {"window_strides": (r.choice([1, 2]),) * spatial}
    facts |= {"padding": ((r.randrange(3), r.randrange(3)),) * spatial}
    if r.random() < 0.3:
        facts |= {"lhs_dilation": (2,) * spatial, "window_strides": (1,) * spatial}
    x, w = b.arguments([TensorType(image, element), TensorType(kernel, element)])
    return b.region([followed(b, b("convolution", x, w, **facts), r)])


@pytest.mark.parametrize("gpu", ["sm_80", "sm_89", "sm_90a"])
def test_what_has_a_tiling_is_emitted_in_tiles(gpu: str) -> None:
    """The optimizer knows before emission what is one kernel: none of these falls back."""
    on = target(gpu)
    tilings = Tilings(on.machine, capabilities(on.architecture))
    tiled = 0
    for seed in range(40):
        r = random.Random(seed)
        op = harness.fusion("contract", (a_product if r.random() < 0.6 else a_convolution)(r))
        for one, code in harness.emitted(op, on).codes.items():
            region = one.regions[0]
            contraction = one.kind == "contract" and isinstance(tilings.best(region), Tiled)
            tiled += contraction
            fell = any(note.startswith("a thread for each element") for note in code.notes)
            assert code.launches and not (contraction and fell), (seed, code.notes)
    assert tiled > 30
