"""What a configuration of the pipeline says of layouts, roles and rings, for readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....hlo.graph import Op, Value
from ....optimizer.asynchronous.configuration import PipelineConfiguration, Ring
from ....optimizer.asynchronous.protocol import Program, lines
from ....optimizer.asynchronous.work import Panel, PipelineProduct, trips
from ..layouts import LinearLayout
from .fragment import FragmentLayout
from .instructions import WARPGROUP, matrix_kind

Names = Mapping[Value, str]


@dataclass(frozen=True)
class PipelineDecisions:
    """The decisions of a configuration."""

    plan: PipelineConfiguration
    copies: Program
    multiplies: Program

    @property
    def kernel(self) -> Op:
        return self.plan.work.kernel

    def layouts(self) -> Mapping[Value, str]:
        """Panels in shared memory, and values that are spread over threads as accumulators are:
        the roles of their dims, and the tile of registers that repeats along rows and columns."""
        work = self.plan.work
        found = {
            value: f"({', '.join(roles)}) in tiles of "
            f"{_tile(FragmentLayout(value.dims, roles, self.plan.rows).tile)}"
            for value, roles in work.roles.items()
            if any(roles)
        }
        panels = [*work.panels, *(load.panel for load in self.plan.epilogue_loads)]
        return found | {panel.op.result: f"shared: {_panel(panel)}" for panel in panels}

    def lines(self, names: Names) -> list[str]:
        """The decisions, one a line."""
        plan = self.plan
        budget = [f", {count} registers a thread" if count else "" for count in plan.budget]
        groups = "one warp group" if plan.groups == 1 else f"{plan.groups} warp groups"
        found = [
            f"role copy: one thread of a warp group of {WARPGROUP}{budget[0]}",
            *lines(self.copies, "  "),
            f"role multiply: {groups} with {plan.rows} rows each{budget[1]}",
            *lines(self.multiplies, "  "),
        ]
        if plan.ping_pong:
            found.append("the groups that multiply take turns with products")
        walk = f"walk: axes {list(plan.raster.axes)}"
        walk += f", {plan.raster.together} tiles together" if plan.raster.together else ""
        walk += f", axes {sorted(plan.reversed_axes)} from their end" if plan.reversed_axes else ""
        if plan.cluster > 1:
            walk += f", {plan.cluster} blocks of a cluster along axis {plan.cluster_axis}"
        found.append(walk)
        known = trips(plan.work)
        if known is not None:
            low, high = known
            found.append(f"loop: {low} rounds" if low == high else f"loop: {low} to {high} rounds")
        found.append(f"products, {plan.style.value}:")
        for word, some in (("in the loop", plan.work.inner), ("outside", plan.work.outer)):
            found += [f"  {word}: {self._product(one, names)}" for one in some]
        for number, ring in enumerate(plan.rings):
            found += [f"ring {number}: {_ring(ring)}", *_panels(ring, names)]
        for load in plan.epilogue_loads:
            found.append(
                f"epilogue load through the ring of the loop: {names[load.panel.op.result]}, "
                f"{_panel(load.panel)}, {len(load.fills)} stages"
            )
        found += [self._store(store, names) for store in plan.work.stores]
        return found

    def _product(self, product: PipelineProduct, names: Names) -> str:
        atom = matrix_kind(product.kind).atoms[product.columns]
        left = product.left.op.result if isinstance(product.left, Panel) else product.left
        where = "" if isinstance(product.left, Panel) else " of registers"
        count = self.plan.rows // atom.m
        adds = "" if product.addend is None else f" + {names[product.addend]}"
        return (
            f"{names[product.result]} = {names[left]}{where} * {names[product.right.op.result]}"
            f"{adds}: {atom.opcode}, {count} x {product.depth // atom.k} a group, "
            f"{count * atom.m * atom.n // WARPGROUP} registers of sums"
        )

    def _store(self, store: Op, names: Names) -> str:
        memory, value = (names[operand] for operand in store.operands[:2])
        staged = self.plan.stores.get(store)
        if staged is None:
            return f"store: {value} to {memory} by threads"
        return (
            f"store: {value} to {memory} by the copy engine, boxes {list(staged.box)}, swizzled by "
            f"{staged.swizzle} bytes, {staged.chunks} at a time, from byte {self.plan.staging}, "
            f"{self.plan.staging_bytes} a group"
        )


def _tile(tile: LinearLayout) -> str:
    """`64 x 8: register ...`"""
    return f"{' x '.join(map(str, tile.shape))}: {tile}"


def _panel(panel: Panel) -> str:
    text = f"{panel.outer} rows of {panel.inner} {panel.element}"
    return f"{text} in {panel.chunks} chunks of {panel.swizzle} bytes, swizzled"


def _ring(ring: Ring) -> str:
    kind = "filled in the loop" if ring.moves else "filled once a tile"
    return (
        f"{ring.stages} stages of {ring.stage_bytes} bytes from byte {ring.offset}, barriers from "
        f"byte {ring.barriers}, {kind}"
    )


def _panels(ring: Ring, names: Names) -> list[str]:
    found = []
    for panel, share in zip(ring.panels, ring.shares, strict=True):
        shared = f", {share} blocks bring it together" if share > 1 else ""
        place = ring.place(panel)
        found.append(f"  {names[panel.op.result]} at {place}: {_panel(panel)}{shared}")
    return found
