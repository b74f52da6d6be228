"""GPU kernels whose sizes a call decides, in the simulator beside the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from girih.backends.capabilities import RowParts
from girih.backends.nvidia.target import target
from girih.hlo.build import build_region
from girih.hlo.graph import Op
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim, bound
from girih.hlo.types import BF16, F16, F64, I1, TensorType
from girih.optimizer.kernels import divided_rows

from ..support import SCALAR, argmax, fusion, kind, layer_norm, softmax
from .open_kernels import OpenKernel

N, M = map(SymbolicDim, ("n", "m"))
SIZES = ((1, 1), (2, 3), (37, 5), (31, 64), (33, 65), (4, 131), (128, 129), (5, 260))


class Case(NamedTuple):
    types: Sequence[TensorType]
    body: Callable[..., Any]
    kind: str
    tolerance: float = 0.0
    launches: tuple[str, ...] = ()
    largest: int = 3000

    @property
    def op(self) -> Op:
        return fusion(self.kind, build_region(self.types, self.body))

    def kernel(self, architecture: str = "sm_90a") -> OpenKernel:
        names = {name for one in self.types for dim in one.dims for name in _symbols(dim)}
        symbols = {name: Symbol(1, self.largest) for name in sorted(names)}
        hints = dict.fromkeys(symbols, self.largest // 2)
        return OpenKernel(self.op, symbols, hints, target(architecture))


def _symbols(dim: Any) -> tuple[str, ...]:
    return dim.symbols if isinstance(dim, SymbolicDim) else ()


def _total(dims: tuple[int, ...]) -> Callable[..., Any]:
    return lambda b, x: [b.reduce("add", x, b.constant(0, TensorType((), x.element)), dims)]


def _spread(b: Any, x: Any, y: Any) -> Any:
    return [b("add", x, b.broadcast(y, x.dims, (1,)))]


def _joined(b: Any, x: Any, y: Any) -> Any:
    return [b("concatenate", b("negate", x), y, dimension=0)]


def _padded(b: Any, x: Any) -> Any:
    edges = {"edge_padding_low": (1, 2), "edge_padding_high": (3, 0), "interior_padding": (0, 0)}
    return [b("pad", x, b.constant(0, SCALAR), **edges)]


def _turned(*order: int) -> Callable[..., Any]:
    return lambda b, x: [b("transpose", x, permutation=order)]


def _places(b: Any, x: Any) -> Any:
    top, place = argmax(b, x, (1,))
    nothing = b.broadcast(b.constant(0, SCALAR), x.dims, ())
    some = b.reduce("or", b.compare("GT", x, nothing), b.constant(False, TensorType((), I1)), (1,))
    return [b("subtract", x, b.broadcast(top, x.dims, (0,))), place, some]


def _product(turned: bool, follow: str = "") -> Callable[..., Any]:
    def body(b: Any, x: Any, w: Any) -> Any:
        dims = x.dims[0], w.dims[0 if turned else 1]
        sums = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (int(turned),)}
        made = b("dot_general", x, w, type=TensorType(dims, x.element), **sums)
        return [b(follow, made) if follow else made]

    return body


def _batched(b: Any, x: Any, y: Any) -> Any:
    dims = TensorType((x.dims[0], x.dims[1], y.dims[1]), x.element)
    batch = {"lhs_batching_dimensions": (0,), "rhs_batching_dimensions": (0,)}
    sums = {"lhs_contracting_dimensions": (2,), "rhs_contracting_dimensions": (2,)}
    return [b("dot_general", x, y, type=dims, **batch, **sums)]


CASES = {
    "sum": Case([kind(N, M), kind(N, M)], lambda b, x, y: [b("add", x, y)], "loop", 0.0, ("loop",)),
    "halves": Case([kind(N, M, element=F16)], lambda b, x: [b("negate", x)], "loop"),
    "vectors": Case([kind(N, 768), kind(768)], _spread, "loop", 0.0, ("loop",)),
    "spread": Case([kind(N, M), kind(M)], _spread, "loop", 0.0, ("loop",)),
    "joined": Case([kind(N, M), kind(M, M)], _joined, "loop", 0.0, ("loop",)),
    "padded": Case([kind(N, M)], _padded, "loop", 0.0, ("loop",)),
    "turned": Case([kind(N, M)], _turned(1, 0), "loop", 0.0, ("loop",)),
    "packed": Case([kind(N, 64, element=BF16)], _turned(1, 0), "loop", 0.0, ("loop",)),
    "inner": Case([kind(N, M, 48)], _turned(0, 2, 1), "loop", 0.0, ("loop",), 500),
    "heads": Case([kind(N, M, 4, 16)], _turned(0, 2, 1, 3), "loop", 0.0, ("loop",), 500),
    "softmax": Case([kind(N, M)], lambda b, x: [softmax(b, x)], "rows", 3e-6, ("rows",)),
    "rows": Case([kind(N, 768)], lambda b, x: [softmax(b, x)], "rows", 3e-6, ("rows",)),
    "doubles": Case([kind(3, M, element=F64)], lambda b, x: [softmax(b, x)], "rows", 1e-13),
    "norm": Case(
        [kind(N, 320, element=BF16), kind(320, element=BF16), kind(320, element=BF16)],
        lambda b, *xs: [layer_norm(b, *xs)], "rows", 1e-2, ("rows",),
    ),
    "places": Case([kind(N, M)], _places, "rows", 1e-6, ("rows",)),
    "along": Case([kind(N, M)], _total((1,)), "reduce", 1e-5, ("reduce",)),
    "down": Case([kind(N, M)], _total((0,)), "reduce", 1e-5, ("reduce", "join")),
    "all": Case([kind(N, M)], _total((0, 1)), "reduce", 1e-5, ("reduce", "join")),
    "middle": Case([kind(N, M, 24)], _total((1,)), "reduce", 1e-5, ("reduce",), 500),
    "product": Case([kind(N, 64), kind(64, 96)], _product(False), "contract", 1e-5, ("tile",)),
    "along_the_sum": Case(
        [kind(N, M, element=BF16), kind(40, M, element=BF16)],
        _product(True), "contract", 1e-2, ("tile",),
    ),
    "whole_steps": Case(
        [kind(N, 72, element=F16), kind(96, 72, element=F16)],
        _product(True, "tanh"), "contract", 2e-3, ("pipeline",),
    ),
    "pipeline": Case(
        [kind(N, 16 * M, element=BF16), kind(16 * M, 64, element=BF16)],
        _product(False), "contract", 1e-2, ("pipeline", "loop"),  # the sum in two parts
    ),
    "square": Case(
        [kind(2, N, 64, element=F16), kind(2, M, 64, element=F16)],
        _batched, "contract", 2e-3, ("pipeline",),
    ),
    "parts": Case(
        [kind(N, 2048), kind(2048, 32)], _product(False), "contract", 1e-5,
        ("tile", "loop"), 48,
    ),
    "batches": Case(
        [kind(3, N, 16 * M), kind(3, M, 16 * M)], _batched, "contract", 1e-5, (), 200,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_for_all_sizes(name: str) -> None:
    case = CASES[name]
    kernel = case.kernel()
    assert not kernel.guards
    named = tuple(launch.symbol for launch in kernel.code.launches)
    assert not case.launches or named == case.launches, kernel.code.notes
    kernel.assembles()
    large = any(len(one.dims) > 2 or 16 * M in one.dims for one in case.types)
    for n, m in SIZES[: 3 if large else None]:
        kernel.check({"n": min(n, case.largest), "m": min(m, case.largest)}, case.tolerance)


@pytest.mark.parametrize("name", ["vectors", "softmax", "down", "along_the_sum"])
def test_older_machines(name: str) -> None:
    kernel = CASES[name].kernel("sm_80")
    kernel.assembles()
    for n, m in SIZES[2:4]:
        kernel.check({"n": n, "m": m}, CASES[name].tolerance)


def test_few_long_rows_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many blocks share a row is decided for the likely call; any length is right then."""
    monkeypatch.setattr(divided_rows, "streamed", lambda *features: -features[3])  # more tasks win
    monkeypatch.setattr(RowParts, "least", lambda parts, width: parts.threads * width)
    case = Case([kind(2, M)], lambda b, x: [softmax(b, x)], "rows", 3e-6, (), 140000)
    kernel = case.kernel()
    assert [launch.symbol for launch in kernel.code.launches] == ["fold0", "fold1", "roots"]
    kernel.assembles()
    for m in (1, 131, 9001):
        kernel.check({"m": m}, 3e-6)


def test_scratch_is_as_large_as_the_call_needs() -> None:
    kernel = CASES["down"].kernel()
    (code,) = kernel.code.codes.values()
    sizes = [bound(code.scratch_bytes, {"n": 8, "m": m}) for m in (1, 100, 1000)]
    assert sizes == sorted(set(sizes))


def test_sizes_are_parameters() -> None:
    """An entry takes each product of symbols once, whatever multiples of it the code needs."""
    kernel = CASES["heads"].kernel()
    (launch,) = kernel.code.launches
    assert len(launch.arguments) <= 2 + len({"n", "m", "n*m"}) + 2
    assert not any(np.isscalar(one) for one in launch.grid[:1])
