"""What computes a kernel is known before code is emitted: whatever `fits` accepts is emitted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from girih.backends.nvidia.fits import Choice, fits
from girih.backends.nvidia.kernels import emit
from girih.backends.nvidia.launch import KernelCode
from girih.backends.nvidia.target import NvidiaTarget, target
from girih.hlo.build import build_region, make_op
from girih.hlo.errors import UnsupportedError
from girih.hlo.graph import Op, arguments
from girih.hlo.ops.convolution import numbers
from girih.hlo.types import BF16, F16, F32, F64, I8, I32, ElementType, TensorType
from girih.optimizer.machine import Limitation

from . import harness
from .test_gate import examples
from .tile.support import attention, matmul

NAMES = ("sm_80", "sm_90a")
SCALAR = TensorType((), F32)


def asked(op: Op, on: NvidiaTarget) -> KernelCode | str:
    """The code of what is accepted, or the reason why nothing is, which `emit` gives as well."""
    op = harness.with_tilings(op, on)
    found = fits(op, on)
    if isinstance(found, Choice):
        return found.emit()
    assert found.target == f"nvidia:{on.architecture.name}" and found.reason
    with pytest.raises(UnsupportedError) as error:
        emit(op, on)
    assert str(error.value) == found.reason
    return found.reason


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_rooms(name: str) -> None:
    found = Counter(isinstance(asked(op, target(name)), str) for op in examples())
    assert found[False] > 800 and found[True] > 10


def products(chance: random.Random) -> Op:
    """A tile function of one product, in tiles of any sizes."""
    element, sums = chance.choice(((BF16, F32), (F16, F32), (I8, I32), (F32, F32), (F64, F64)))
    rows, columns = chance.choice((8, 16, 64, 128, 192)), chance.choice((8, 24, 64, 128, 256))
    depth = chance.choice((16, 32, 64, 128))
    sizes = tuple(n * chance.choice((1, 2)) + chance.choice((0, 0, 3)) for n in (rows, columns))
    out = chance.choice((F32, BF16)) if sums is F32 else sums
    turned = chance.random() < 0.3, chance.random() < 0.3
    whole = (*sizes, depth * chance.choice((1, 3)))
    return matmul(whole, (rows, columns, depth), element, sums, out, turned)  # type: ignore[arg-type]


def attentions(chance: random.Random) -> Op:
    rows, keys = chance.choice((16, 64, 128, 192)), chance.choice((16, 64, 128, 160))
    depth = chance.choice((16, 64, 128, 256))
    return attention(2, 2 * rows * keys, depth, rows, keys, chance.random() < 0.5)


def fusion(kind: str, types: list[TensorType], body: Callable[..., Any]) -> Op:
    region = build_region(types, body)
    return make_op("fusion", arguments(types), {"kind": kind}, (region,), region.result_types)


def contractions(chance: random.Random) -> Op:
    """A product or a convolution with what stands around it."""
    element: ElementType = chance.choice((BF16, F16, F32, I8, F64))
    sums = {BF16: F32, F16: F32, I8: I32}.get(element, element)
    if chance.random() < 0.3:
        side, features = chance.choice((7, 16, 28)), chance.choice((3, 16, 64))
        window, groups = chance.choice((1, 3, 5)), 1
        if chance.random() < 0.3:
            groups = features
        image = TensorType((2, side, side, features), element)
        kernel = TensorType((window, window, features // groups, features), element)
        facts = {
            **numbers(2), "padding": ((window // 2, window // 2),) * 2,
            "feature_group_count": groups, "window_strides": (chance.choice((1, 2)),) * 2,
        }  # fmt: skip
        return fusion(
            "contract", [image, kernel], lambda b, x, w: [b("convolution", x, w, **facts)]
        )
    m, n, k = (chance.choice((1, 5, 64, 128, 200, 1024)) for _ in range(3))
    batch = chance.choice(((), (), (3,)))
    across = len(batch)
    left = TensorType((*batch, m, k), element)
    right = TensorType((*batch, k, n), element)
    result = TensorType((*batch, m, n), sums)
    ops = chance.sample(("tanh", "abs", "negate"), chance.choice((0, 1, 2)))

    def body(b: Any, x: Any, y: Any) -> list[Any]:
        value = b(
            "dot_general", x, y, type=result, lhs_batching_dimensions=tuple(range(across)),
            rhs_batching_dimensions=tuple(range(across)), lhs_contracting_dimensions=(across + 1,),
            rhs_contracting_dimensions=(across,),
        )  # fmt: skip
        for name in ops:
            if name != "tanh" or sums.is_float:
                value = b(name, value)
        return [value]

    return fusion("contract", [left, right], body)


def loops(chance: random.Random) -> Op:
    """Elementwise operations, reductions, and both, of any dims."""
    dims = tuple(chance.choice((1, 2, 7, 32, 100, 2048)) for _ in range(chance.randint(1, 3)))
    element: ElementType = chance.choice((F32, F32, BF16, F16, F64))
    kind = chance.choice(("loop", "rows", "reduce"))
    x = TensorType(dims, element)
    over = (len(dims) - 1,) if kind == "rows" or chance.random() < 0.6 else (0,)
    turn = chance.random() < 0.4

    def body(b: Any, x: Any, y: Any) -> list[Any]:
        value = b(chance.choice(("add", "multiply", "maximum")), x, y)
        if kind == "loop":
            order = tuple(reversed(range(len(dims)))) if turn else tuple(range(len(dims)))
            return [b.transpose(b("tanh", value), order)]
        total = b.reduce("add", value, b.constant(0, TensorType((), element)), over)
        if kind == "reduce":
            return [total]
        kept = tuple(d for d in range(len(dims)) if d not in over)
        return [b("subtract", value, b.broadcast(total, dims, kept))]

    return fusion(kind, [x, x], body)


# How many random kernels are made of each sort.
Maker = Callable[[random.Random], Op]
MAKERS: dict[Maker, int] = {products: 100, attentions: 25, contractions: 90, loops: 120}


def drawn(maker: Maker) -> Iterator[Op]:
    chance = random.Random(MAKERS[maker])
    return (maker(chance) for _ in range(MAKERS[maker]))


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_accepted_is_emitted(name: str, maker: Maker) -> None:
    """Random kernels; each has code, of several emitters."""
    on = target(name)
    firsts: Counter[str] = Counter()
    for op in drawn(maker):
        code = asked(op, on)
        assert isinstance(code, KernelCode), code
        launches = code.launches
        firsts.update({launch.symbol for launch in launches})
    if maker is not loops and on.architecture.warpgroups:
        assert firsts["pipeline"] > 5
    assert firsts["tile"] > 5 or maker is loops or maker is attentions
    assert len(firsts) > 1 or not on.architecture.warpgroups


def test_reasons_are_collected() -> None:
    """What neither the pipeline nor a block can take says both."""
    op = products(random.Random(0))
    notes = emit(matmul((16, 16, 64), (16, 16, 32)), target("sm_90a")).notes
    assert any(note.startswith("not in Hopper's pipeline: 16 rows") for note in notes), notes
    assert not isinstance(fits(op, target("sm_80")), Limitation)
