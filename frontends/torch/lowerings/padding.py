"""Padding by a number or by what is at the border: pad, constant_pad_nd, reflection_pad, ..."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ..context import Context, Number, sized


def constant_pad(c: Context, self: Value, pad: Sequence[int], value: Number = 0) -> Value:
    """(low, high) pairs from the last dimension backwards; negative ones cut."""
    return c.pad(self, value, _pads(self.rank, pad))


def _pads(rank: int, pad: Sequence[Dim]) -> list[tuple[Dim, Dim, int]]:
    pads = [(0, 0, 0)] * rank
    for number in range(len(pad) // 2):
        pads[rank - 1 - number] = (sized(pad[2 * number]), sized(pad[2 * number + 1]), 0)
    return pads


def edge_pad(mode: str) -> Callable[..., Value]:
    """Padding by the border's own elements: "reflect", "replicate" or "circular"."""

    def lower(c: Context, self: Value, padding: Sequence[int]) -> Value:
        return _edge_pad(c, self, padding, mode)

    return lower


def _edge_pad(c: Context, value: Value, padding: Sequence[int], mode: str) -> Value:
    """Negative padding cuts: before the others where borders are those of what is left."""
    for axis, (low, high, _) in enumerate(_pads(value.rank, padding)):
        if mode == "circular":
            value = _cropped(c, value, axis, low, high)
        size = value.dims[axis]
        parts = [value]
        for count, at_front in ((c.larger(low, 0), True), (c.larger(high, 0), False)):
            if count != 0:
                part = _border(c, value, axis, size, count, at_front, mode)
                parts = [part, *parts] if at_front else [*parts, part]
        value = c.concatenate(parts, axis)
        if mode != "circular":
            value = _cropped(c, value, axis, low, high)
    return value


def _cropped(c: Context, value: Value, axis: int, low: Dim, high: Dim) -> Value:
    """value without the elements that negative padding takes from both ends."""
    return c.slice(value, axis, c.larger(-low, 0), value.dims[axis] - c.larger(-high, 0))


def _border(
    c: Context, value: Value, axis: int, size: Dim, count: Dim, at_front: bool, mode: str
) -> Value:
    if mode == "replicate":
        edge = c.slice(value, axis, 0, 1) if at_front else c.slice(value, axis, size - 1, size)
        dims = (*value.dims[:axis], count, *value.dims[axis + 1 :])
        return c.builder.broadcast(edge, dims, range(value.rank))
    if mode == "circular":
        first = size - count if at_front else 0
        return c.slice(value, axis, first, first + count)
    first = 1 if at_front else size - 1 - count
    return c("reverse", c.slice(value, axis, first, first + count), dimensions=(axis,))


def pad(
    c: Context, self: Value, pad: Sequence[int], mode: str = "constant", value: Any = None
) -> Value:
    """torch.nn.functional.pad."""
    return _pad(c, self, pad, mode, value)


def _pad(c: Context, self: Value, pad: Sequence[int], mode: str, value: Any) -> Value:
    if mode == "constant":
        return constant_pad(c, self, pad, value or 0)
    return _edge_pad(c, self, pad, mode)


_MODES = ("reflect", "replicate", "circular", "constant")


def pad_by_number(
    c: Context, self: Value, pad: Sequence[int], mode: int, value: Any = None
) -> Value:
    """The same, the mode by its number in PyTorch."""
    return _pad(c, self, pad, _MODES[mode], value)


TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.reflection_pad{n}d.default": edge_pad("reflect") for n in (1, 2, 3)},
    **{f"aten.replication_pad{n}d.default": edge_pad("replicate") for n in (1, 2, 3)},
    "aten._pad_circular.default": edge_pad("circular"),
    "aten._pad_enum.default": pad_by_number,
    "aten.constant_pad_nd.default": constant_pad,
    "aten.pad.default": pad,
}
