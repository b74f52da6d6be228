"""What an emitter of tile functions has decided about layouts, products and rings, for readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....hlo.graph import Op, Value
from .emitter import Emitter
from .matrix import ProductLowering
from .ring import Ring


@dataclass(frozen=True)
class TileDecisions:
    """The decisions of an emitter that is done."""

    emitter: Emitter

    @property
    def kernel(self) -> Op:
        return self.emitter.kernel

    def layouts(self) -> Mapping[Value, str]:
        """Tiles in registers, and windows that go to shared memory past them. What has none is
        made in whatever layout it is asked for."""
        assignment = self.emitter.assignment
        found = {
            value: str(one.linear) for value, one in assignment.tile_layouts.items() if value.rank
        }
        for plan in assignment.products.values():
            for operand in plan.operands:
                window = operand.source.window
                if window is not None and window.op in assignment.direct:
                    found[window.op.result] = f"shared: {operand.tile}"
        return found

    def lines(self, names: Mapping[Value, str]) -> list[str]:
        """The decisions, one a line."""
        emitter = self.emitter
        order = emitter.order
        found = [f"walk: axes {list(order.axes)}"]
        if order.together:
            found[0] += f", {order.together} tiles together"
        for plan in emitter.assignment.products.values():
            found.append(f"product: {_product(plan, names)}")
        for ring in emitter.rings:
            found += _ring(ring, names)
        return [*found, f"barriers of the block: {emitter.block.hazards.barriers}"]


def _product(plan: ProductLowering, names: Mapping[Value, str]) -> str:
    product, atom = plan.product, plan.atom
    sides = [names[side.value] for side in (product.left, product.right)]
    how = "multiply-adds" if atom is None else atom.opcode
    return (
        f"{names[product.op.result]} = {' * '.join(sides)}: {product.rows} x {product.columns} x "
        f"{product.depth} by {how}, {plan.sums.count} registers of sums"
    )


def _ring(ring: Ring, names: Mapping[Value, str]) -> list[str]:
    found = [
        f"ring: {ring.stages} stages by cp.async, one barrier a turn; waits for all but "
        f"{ring.stages - 2} groups of copies"
    ]
    for source, rows in zip(ring.sources, ring.rows, strict=True):
        assert source.window is not None
        name = names[source.window.op.result]
        found.append(f"  {name}: {rows.bytes} bytes from byte {rows.piece.start}")
    return found
