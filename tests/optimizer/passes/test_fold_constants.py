"""What is known becomes a constant, where that is small."""

from __future__ import annotations

from girih.hlo.build import build_module
from girih.hlo.types import F32, I32, TensorType
from girih.optimizer.passes.fold_constants import FoldConstants

from .modules import names


def test_masks_over_iotas_stay_formulas_and_long_ones_do_not() -> None:
    square = TensorType((64, 64), I32)

    def mask(b, x):
        rows = b("iota", type=square, iota_dimension=0)
        columns = b("iota", type=square, iota_dimension=1)
        return [b("select", b.compare("GE", rows, columns), x, b("negate", x))]

    kind = TensorType((64, 64), F32)
    module = build_module([kind], mask)
    assert "iota" in names(FoldConstants()(module))

    def angles(b, x):
        line = b.convert(b("iota", type=TensorType((64,), I32), iota_dimension=0), F32)
        return [b("multiply", x, b("sine", line))]

    after = FoldConstants()(build_module([TensorType((64,), F32)], angles))
    assert names(after) == ["constant", "multiply"]


def test_fold_constants_keeps_its_budget() -> None:
    def body(b, x):
        line = b.convert(b("iota", type=TensorType((64,), I32), iota_dimension=0), F32)
        return [b("multiply", x, b("sine", line))]

    module = build_module([TensorType((64,), F32)], body)
    assert FoldConstants(limit=255)(module) is module
    assert FoldConstants(limit=0)(module) is module


def test_broadcasts_of_constants_are_not_stored() -> None:
    def body(b, x):
        line = b.convert(b("iota", type=TensorType((64,), I32), iota_dimension=0), F32)
        return [b("multiply", x, b.broadcast(b("sine", line), (64, 64), (1,)))]

    after = FoldConstants()(build_module([TensorType((64, 64), F32)], body))
    assert names(after) == ["constant", "broadcast_in_dim", "multiply"]
