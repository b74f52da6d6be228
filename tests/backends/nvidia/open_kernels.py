"""Kernels of operations whose sizes a call decides: emitted once, simulated at many sizes.

kernel = OpenKernel(op, {"s": Symbol(1, 3000)}, {"s": 1500})
kernel.check({"s": 37})
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from girih.backends.nvidia.assemble import assemble, find_ptxas
from girih.backends.nvidia.target import NvidiaTarget
from girih.hlo.assumptions import Assumptions
from girih.hlo.deciding import deciding
from girih.hlo.graph import Op
from girih.hlo.sizes import Symbol

from ..cpu.open_kernels import at, interpreted
from ..support import compare, inputs_for
from . import harness


class OpenKernel:
    """The kernels of an operation at all sizes of its symbols; `guards` are what they are not
    for."""

    def __init__(
        self,
        op: Op,
        symbols: Mapping[str, Symbol],
        hints: Mapping[str, int],
        target: NvidiaTarget = harness.TARGET,
    ) -> None:
        self.op, self.target = op, target
        with deciding(Assumptions(symbols), hints) as decisions:
            self.code = harness.emitted(op, target)
        self.guards = list(decisions.guards)
        self.compiled = self.code.compiled(target)

    def assembles(self) -> None:
        """ptxas takes it, where there is one."""
        for code in self.compiled.codes.values() if find_ptxas() is not None else ():
            assemble(code.text, self.target.architecture)

    def check(self, sizes: Mapping[str, int], tolerance: float = 0.0) -> list[np.ndarray]:
        """At these sizes the kernel gives what the interpreter does."""
        op = at(self.op, sizes)
        inputs = inputs_for([value.tensor for value in op.operands])
        got = harness.run(op, inputs, code=self.compiled, on=self.target, sizes=sizes)
        for one, wanted in zip(got, interpreted(op, inputs), strict=True):
            compare(one, wanted, tolerance)
        return got
