"""Axes that are manual inside of a `sdy.manual_computation`, at its border.

Inside, a tensor is a block of what it is outside: its sharding says nothing of the manual axes,
which are the major ones of each dim outside. Propagation may add free axes behind them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...hlo.sharding import DimSharding, Sharding


@dataclass(frozen=True)
class Manual:
    """`outer`: what the operation states of one operand or result."""

    axes: tuple[str, ...]
    outer: Sharding

    def inside(self, sharding: Sharding) -> Sharding:
        """Without the manual axes."""
        dims = tuple(
            replace(dim, axes=tuple(axis for axis in dim.axes if axis.name not in self.axes))
            for dim in sharding.dims
        )
        return replace(
            sharding,
            dims=dims,
            replicated=tuple(a for a in sharding.replicated if a.name not in self.axes),
            unreduced=tuple(a for a in sharding.unreduced if a.name not in self.axes),
        )

    def outside(self, sharding: Sharding) -> Sharding:
        """With the manual axes in front of each dim's free ones."""
        dims = tuple(
            DimSharding(
                tuple(axis for axis in stated.axes if axis.name in self.axes) + dim.axes,
                dim.open,
                dim.priority,
            )
            for stated, dim in zip(self.outer.dims, sharding.dims, strict=True)
        )
        return replace(self.outer, mesh=sharding.mesh, dims=dims, replicated=self.outer.replicated)
