"""Kernels of operations whose sizes a call decides: compiled once, run at many sizes.

kernel = OpenKernel(op, {"s": Symbol(1, 300)}, {"s": 128})
kernel.check({"s": 37}, inputs)
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from girih.backends.cpu import codegen, kernels
from girih.hlo.assumptions import Assumptions
from girih.hlo.build import Builder
from girih.hlo.deciding import deciding, largest
from girih.hlo.graph import Function, Module, Op, Region, Value, arguments
from girih.hlo.interpret import interpret
from girih.hlo.sizes import SizeConstraint, Symbol
from girih.hlo.symbols import SymbolicDim, bound
from girih.hlo.types import TensorType

from .harness import GUARD, aligned, compiled

Array = Any


class OpenKernel:
    """The kernel of an operation at all sizes of its symbols; `guards` are what it is not for."""

    def __init__(
        self,
        op: Op,
        symbols: Mapping[str, Symbol],
        hints: Mapping[str, int],
        constraints: Sequence[SizeConstraint] = (),
        target: codegen.Target | None = None,
    ) -> None:
        self.op = op
        target = target or codegen.host_target()
        with deciding(Assumptions(symbols, constraints), hints) as decisions:
            self.code = kernels.emit(op, target)
            self.most = int(largest(self.code.scratch_bytes))
        self.guards = list(decisions.guards)
        self.function = compiled(self.code, target)

    def __call__(
        self, values: Mapping[str, int], inputs: Sequence[Array], splits: int = 1
    ) -> list[Array]:
        """The results at these sizes, all tiles in `splits` ranges, the last one first."""
        scratch_bytes = bound(self.code.scratch_bytes, values)
        assert scratch_bytes <= self.most
        scratch = aligned(scratch_bytes + GUARD)
        scratch[scratch_bytes:] = 0xA5
        blocks, results = [], []
        for result in self.op.results:
            kind = _at(result.type, values)
            block = aligned(kind.bytes + GUARD)
            block[:] = 0xA5
            blocks.append((block, kind.bytes))
            results.append(block[: kind.bytes].view(kind.dtype).reshape(kind.dims))
        # What lies behind an operand is not to be read: NaN would show where it is summed.
        ready = [_guarded(np.ascontiguousarray(array)) for array in inputs]
        sizes = np.array([bound(size, values) for size in self.code.sizes], np.int64)
        addresses = [sizes.ctypes.data, *(a.ctypes.data for a in (*ready, *results))]
        table = (ctypes.c_void_p * len(addresses))(*addresses)
        begin = ctypes.addressof(table) + ctypes.sizeof(ctypes.c_void_p)
        tiles = bound(self.code.tiles, values)
        bounds = [tiles * n // splits for n in range(splits + 1)]
        for first, last in reversed(list(zip(bounds, bounds[1:], strict=False))):
            if first < last:
                self.function(begin, first, last, scratch.ctypes.data)
        for block, size in blocks:
            assert np.all(block[size:] == 0xA5), "written past the end of a result"
        assert np.all(scratch[scratch_bytes:] == 0xA5), "written past the end of scratch"
        return results

    def check(
        self, values: Mapping[str, int], inputs: Sequence[Array], tolerance: float = 1e-5
    ) -> None:
        """At these sizes the kernel gives what the interpreter does, however tiles are split."""
        self.compare(values, inputs, interpreted(at(self.op, values), inputs), tolerance)

    def compare(
        self,
        values: Mapping[str, int],
        inputs: Sequence[Array],
        wanted: Sequence[Array],
        tolerance: float,
    ) -> None:
        """The same with results that are known."""
        got = self(values, inputs)
        for one, other, again in zip(got, wanted, self(values, inputs, 3), strict=True):
            assert one.tobytes() == again.tobytes(), "another split gives other bits"
            if one.dtype.kind in "iub":
                np.testing.assert_array_equal(one, other)
                continue
            wide, expected = one.astype(np.float64), other.astype(np.float64)
            scale = max(1.0, float(np.abs(expected).max(initial=0)))
            np.testing.assert_allclose(wide, expected, rtol=0, atol=tolerance * scale)


def _at(kind: Any, values: Mapping[str, int]) -> TensorType:
    return kind.with_dims([bound(d, values) for d in kind.dims])


def _guarded(array: Array) -> Array:
    """The same in a place of its own, with bytes behind it that are NaN as floats."""
    block = aligned(array.nbytes + GUARD)
    block[:] = 0xFF
    block[: array.nbytes] = array.reshape(-1).view(np.uint8)
    return block[: array.nbytes].view(array.dtype).reshape(array.shape)


def at(op: Op, values: Mapping[str, int]) -> Op:
    """The operation at these sizes, on arguments of its own."""
    own = arguments([_at(value.type, values) for value in op.operands])
    return _fixed(op, values, dict(zip(op.operands, own, strict=True)))


def _fixed(op: Op, values: Mapping[str, int], known: Mapping[Value, Value]) -> Op:
    regions = []
    for region in op.regions:
        b = Builder()
        fresh = b.arguments([_at(kind, values) for kind in region.argument_types])
        inner = {**known, **dict(zip(region.arguments, fresh, strict=True))}
        ops = []
        for one in region.ops:
            ops.append(_fixed(one, values, inner))
            inner.update(zip(one.results, ops[-1].results, strict=True))
        regions.append(Region(fresh, ops, [inner[result] for result in region.results]))
    types = [_at(kind, values) for kind in op.result_types]
    attributes = {name: _number(value, values) for name, value in op.attributes.items()}
    return Op(op.definition, [known[v] for v in op.operands], attributes, regions, types)


def _number(value: Any, values: Mapping[str, int]) -> Any:
    """An attribute, where its sizes are these."""
    if isinstance(value, tuple):
        return tuple(_number(one, values) for one in value)
    return value.bind(values) if isinstance(value, SymbolicDim) else value


def interpreted(op: Op, inputs: Sequence[Array]) -> list[Array]:
    """What the interpreter computes."""
    module = Module({"main": Function("main", Region(op.operands, (op,), op.results))})
    return [np.asarray(result) for result in interpret(module, list(inputs))]
