"""Tensor maps and the bulk copies that go by them (the tensor memory accelerator).

A map is 128 bytes of this simulator's own format; `encode_tensor_map` takes what
cuTensorMapEncodeTiled takes and keeps its rules.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ....hlo.errors import UserError
from .bulk import issue_load, issue_store, multicast_places, reduction
from .matrix import unsupported
from .syntax import Address, Instruction, Operand, Vector
from .table import Bound, operation
from .traffic import global_bytes, shared_place

if TYPE_CHECKING:
    from .engine import At

MAGIC = b"girihTMA"
_FORMAT = "<8sQBBBBB3x5Q4Q5H5B"
# Names of element types -> numpy types; what is copied are bytes, so only reductions and
# not-a-number fills look at values.
_ELEMENTS: tuple[tuple[str, Any], ...] = (
    ("ui8", np.uint8), ("ui16", np.uint16), ("ui32", np.uint32), ("i32", np.int32),
    ("ui64", np.uint64), ("i64", np.int64), ("f16", np.float16), ("f32", np.float32),
    ("f64", np.float64), ("bf16", ml_dtypes.bfloat16), ("tf32", np.float32), ("i8", np.int8),
    ("i16", np.int16), ("f8E4M3FN", ml_dtypes.float8_e4m3fn), ("f8E5M2", ml_dtypes.float8_e5m2),
    ("i1", np.uint8),
)  # fmt: skip
_CODES = {name: code for code, (name, _) in enumerate(_ELEMENTS)}
SWIZZLES = (0, 32, 64, 128)
_MASKS = {0: 0, 32: 1, 64: 3, 128: 7}


@dataclass(frozen=True)
class DecodedMap:
    """Dims, strides and box go from the fastest dimension to the slowest."""

    element: str
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]  # bytes; of dims 1..
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int
    fill_nan: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(_ELEMENTS[_CODES[self.element]][1])

    @property
    def box_bytes(self) -> int:
        return int(np.prod(self.counts)) * self.dtype.itemsize

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements of the box along each dimension."""
        return tuple(-(-b // s) for b, s in zip(self.box, self.element_strides, strict=True))

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        strides = (self.dtype.itemsize, *self.strides)
        last = sum((n - 1) * s for n, s in zip(self.dims, strides, strict=True))
        return last + self.dtype.itemsize


def encode_tensor_map(
    element: str,
    address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int] | None = None,
    interleave: int = 0,
    swizzle: int = 0,
    fill: str = "zero",
) -> bytes:
    """128 bytes of a tensor map. Dims fastest first, in elements; `strides` in bytes of dims 1..;
    `swizzle` 0, 32, 64 or 128 bytes; `fill` "zero" or "nan". Raises `UserError` where
    cuTensorMapEncodeTiled would refuse."""
    rank = len(dims)
    element_strides = tuple(element_strides or (1,) * rank)

    def need(good: bool, rule: str) -> None:
        if not good:
            raise UserError(f"tensor map of {element}{list(dims)}, box {list(box)}: {rule}")

    need(element in _CODES, f"element type '{element}' has no tensor map")
    need(1 <= rank <= 5, "the rank is 1 to 5")
    need(len(strides) == rank - 1, "there is one stride for each dimension but the first")
    need(len(box) == rank == len(element_strides), "box and element strides have the rank")
    size = np.dtype(_ELEMENTS[_CODES[element]][1]).itemsize
    need(address % 16 == 0, f"the address {address:#x} is no multiple of 16")
    need(all(1 <= n <= 1 << 32 for n in dims), "a dimension has 1 to 2**32 elements")
    need(
        all(s % 16 == 0 and 0 <= s < 1 << 40 for s in strides), "strides are multiples of 16 bytes"
    )
    need(all(1 <= b <= 256 for b in box), "a box has 1 to 256 elements along a dimension")
    need(all(1 <= s <= 8 for s in element_strides), "element strides are 1 to 8")
    need(element_strides[0] == 1, "that of the fastest dimension is 1; the driver ignores others")
    need(interleave == 0, "interleaved layouts are not simulated")
    need(swizzle in SWIZZLES, "the swizzle is 0, 32, 64 or 128 bytes")
    inner = box[0] * size
    need(inner % 16 == 0, f"a row of the box has {inner} bytes, no multiple of 16")
    need(
        not swizzle or inner <= swizzle,
        f"a row of the box has {inner} bytes, more than the swizzle",
    )
    need(fill in ("zero", "nan"), "what is outside reads as zero or nan")

    def padded(values: Sequence[int], count: int) -> list[int]:
        return [*values, *(0 for _ in range(count - len(values)))]

    data = struct.pack(
        _FORMAT, MAGIC, address, rank, _CODES[element], SWIZZLES.index(swizzle), interleave,
        fill == "nan", *padded(dims, 5), *padded(strides, 4), *padded(box, 5),
        *padded(element_strides, 5),
    )  # fmt: skip
    return data.ljust(128, b"\0")


def decode_tensor_map(data: bytes) -> DecodedMap | None:
    """The map in 128 bytes; None where they hold none."""
    if data[:8] != MAGIC:
        return None
    fields = struct.unpack(_FORMAT, data[: struct.calcsize(_FORMAT)])
    _, address, rank, code, swizzle, _, nan = fields[:7]
    dims, strides, box, steps = fields[7:12], fields[12:16], fields[16:21], fields[21:26]
    return DecodedMap(
        _ELEMENTS[code][0], address, dims[:rank], strides[: rank - 1], box[:rank], steps[:rank],
        SWIZZLES[swizzle], bool(nan),
    )  # fmt: skip


def _map_at(at: At, thread: int, address: int) -> DecodedMap | None:
    if address % 64:
        at.fault("alignment", f"tensor map at {address:#x}; it has to be a multiple of 64")
    cache = at.state.data.setdefault("tensor maps", {})
    data = bytes(at.state.read_bytes(thread, address, 128))
    if data not in cache:
        cache[data] = decode_tensor_map(data)
    if cache[data] is None:
        at.fault("tensor map", f"the 128 bytes at {address:#x} are no tensor map")
    return cache[data]


def _box(at: At, tensor: DecodedMap, start: Sequence[int]) -> tuple[np.ndarray, Any, Any]:
    """(view of the tensor, slowest dimension first; its part that the box covers; where this part
    lies in the box)."""
    data = global_bytes(at, tensor.address, tensor.span, "copy by a tensor map")
    strides = (tensor.dtype.itemsize, *tensor.strides)
    view = np.ndarray(
        tensor.dims[::-1], tensor.dtype, data.data if data.flags.c_contiguous else data,
        strides=strides[::-1],
    )  # fmt: skip
    of_tensor, of_box = [], []
    for first, size, step, extent in zip(
        start, tensor.counts, tensor.element_strides, tensor.dims, strict=True
    ):
        low = max(0, -(first // step)) if first < 0 else 0
        high = min(size, -(-(extent - first) // step)) if extent > first else 0
        high = max(low, high)
        of_tensor.append(slice(first + low * step, max(0, first + (high - 1) * step + 1), step))
        of_box.append(slice(low, high))
        if high == low:
            of_tensor[-1] = slice(0, 0)
    if at.state.counting:
        _count_rows(at, tensor, of_tensor)
    return view, tuple(of_tensor[::-1]), tuple(of_box[::-1])


def _count_rows(at: At, tensor: DecodedMap, part: Sequence[slice]) -> None:
    """Counts a copy of this part, fastest dimension first."""
    starts = np.array([tensor.address + part[0].start * tensor.dtype.itemsize])
    for one, stride in zip(part[1:], tensor.strides, strict=True):
        steps = np.arange(one.start, one.stop, one.step) * stride
        starts = (starts[:, None] + steps).reshape(-1)
    at.state.counting.rows(
        at, starts, len(range(*part[0].indices(1 << 60))) * tensor.dtype.itemsize
    )


def read_box(at: At, tensor: DecodedMap, start: Sequence[int]) -> np.ndarray:
    """Bytes of the box at `start`; elements outside of the tensor are 0 or not-a-number."""
    view, inside, where = _box(at, tensor, start)
    box = np.zeros(tensor.counts[::-1], tensor.dtype)
    if tensor.fill_nan and tensor.element[0] in "ftb":
        box.fill(np.nan)
    box[where] = view[inside]
    return box.reshape(-1).view(np.uint8)


def write_box(at: At, tensor: DecodedMap, start: Sequence[int], data: np.ndarray,
              combine: Any = None) -> None:  # fmt: skip
    """Writes (or combines) the part of a box that lies inside of the tensor."""
    view, inside, where = _box(at, tensor, start)
    box = data.view(tensor.dtype).reshape(tensor.counts[::-1])[where]
    view[inside] = box if combine is None else combine(view[inside], box)


def swizzled_words(offset: int, nbytes: int, swizzle: int) -> np.ndarray:
    """Words of a box's bytes, in order, from the shared address `offset`."""
    plain = np.arange(offset, offset + nbytes, 4, dtype=np.int64)
    return (plain ^ (plain >> 7 & _MASKS[swizzle]) << 4) // 4


def _places(at: At, tensor: DecodedMap, place: int) -> np.ndarray:
    """Words of the box in `state.shared`, from the place of its first byte."""
    stride = at.state.shared_stride
    offset = place % stride
    align = {0: 128, 32: 256, 64: 512, 128: 1024}[tensor.swizzle]
    if offset % align:
        at.fault(
            "alignment",
            f"a box with swizzle of {tensor.swizzle} bytes at shared address {offset}; it has to "
            f"be a multiple of {align}",
        )
    return (place - offset) // 4 + swizzled_words(offset, tensor.box_bytes, tensor.swizzle)


def _coordinates(instruction: Instruction, operand: Operand, rank: int) -> tuple[Operand, ...]:
    if not isinstance(operand, Address) or not isinstance(operand.coordinates, Vector):
        raise unsupported(instruction, "its tensor map has no coordinates")
    if len(operand.coordinates.items) != rank or operand.more:
        raise unsupported(instruction, f"it takes {rank} coordinates")
    return operand.coordinates.items


def _start(at: At, tensor: DecodedMap | None, lane: int, coordinates: Sequence[Any]
           ) -> tuple[int, ...] | None:  # fmt: skip
    start = tuple(int(c[lane]) for c in coordinates)
    if tensor is None:
        return None
    if len(start) != len(tensor.dims):
        at.fault("tensor map", f"{len(start)} coordinates for a map of rank {len(tensor.dims)}")
        return None
    return start


def _refuse(instruction: Instruction) -> int:
    """The rank; refuses what is not simulated."""
    for part in instruction.parts:
        if part.startswith(("im2col", "tile::", "cta_group")):
            raise unsupported(instruction, f".{part} is not known here")
    rank = next((p for p in instruction.parts if len(p) == 2 and p[1] == "d" and p[0] in "12345"),
                None)  # fmt: skip
    if rank is None:
        raise unsupported(instruction, "it names no rank")
    return int(rank[0])


@operation("cp.async.bulk.tensor")
def tensor_copy(instruction: Instruction) -> Bound:
    parts, operands = instruction.parts, list(instruction.operands)
    rank = _refuse(instruction)
    if "L2::cache_hint" in parts:
        operands.pop()
    if parts[5] in ("shared::cluster", "shared::cta") and parts[6] == "global":
        return _load(instruction, operands, rank)
    if parts[5] == "global" and parts[6] == "shared::cta":
        return _store(instruction, operands, rank, None)
    raise unsupported(instruction, "this direction is not known")


def _load(instruction: Instruction, operands: list[Operand], rank: int) -> Bound:
    destination, source, barrier, *rest = operands
    multicast = "multicast::cluster" in instruction.parts
    coordinates = _coordinates(instruction, source, rank)

    def run(at: At, to: Any, source: Any, bars: Any, *others: Any) -> None:
        mask = others[0] if multicast else None
        starts = others[1:] if multicast else others
        bar_places = shared_place(at, bars, 8, 8, "mbarrier")
        for lane, thread in enumerate(at.threads):
            tensor = _map_at(at, int(thread), int(source[lane]))
            start = _start(at, tensor, lane, starts)
            if tensor is None or start is None:
                return
            one = slice(lane, lane + 1)
            place = shared_place(
                at, to[one], tensor.box_bytes, 128, "copy by a tensor map", at.threads[one]
            )
            index, signals = multicast_places(
                at, int(thread), _places(at, tensor, int(place[0])), int(bar_places[lane]),
                None if mask is None else int(mask[lane]),
            )  # fmt: skip
            nbytes = tensor.box_bytes

            def read(
                tensor: Any = tensor, start: Any = start, index: Any = index, nbytes: int = nbytes
            ) -> np.ndarray:
                return np.broadcast_to(read_box(at, tensor, start), (index.shape[0], nbytes))

            issue_load(at, index, read, [(signal, nbytes) for signal in signals], "tensor copy")

    sources: list[tuple[Operand, str]] = [
        (destination, "address"), (source, "address"), (barrier, "address"),
    ]  # fmt: skip
    if multicast:
        sources.append((rest[0], "u2"))
    sources += [(coordinate, "i4") for coordinate in coordinates]
    return Bound(run, tuple(sources))


def _store(instruction: Instruction, operands: list[Operand], rank: int, combine: Any) -> Bound:
    destination, source = operands
    coordinates = _coordinates(instruction, destination, rank)

    def run(at: At, destination: Any, source: Any, *starts: Any) -> None:
        for lane, thread in enumerate(at.threads):
            tensor = _map_at(at, int(thread), int(destination[lane]))
            start = _start(at, tensor, lane, starts)
            if tensor is None or start is None:
                return
            one = slice(lane, lane + 1)
            place = shared_place(
                at, source[one], tensor.box_bytes, 128, "copy by a tensor map", at.threads[one]
            )

            def write(data: np.ndarray, tensor: Any = tensor, start: Any = start) -> None:
                write_box(at, tensor, start, data, combine)

            issue_store(at, int(thread), _places(at, tensor, int(place[0])), write, "tensor copy")

    sources = [(destination, "address"), (source, "address")]
    sources += [(coordinate, "i4") for coordinate in coordinates]
    return Bound(run, tuple(sources))


@operation("cp.reduce.async.bulk.tensor")
def tensor_reduce(instruction: Instruction) -> Bound:
    operands = list(instruction.operands)
    rank = _refuse(instruction)
    if "L2::cache_hint" in instruction.parts:
        operands.pop()
    return _store(instruction, operands, rank, reduction(instruction))


@operation("cp.async.bulk.prefetch.tensor")
def tensor_prefetch(instruction: Instruction) -> Bound:
    rank = _refuse(instruction)
    coordinates = _coordinates(instruction, instruction.operands[0], rank)

    def run(at: At, source: Any, *starts: Any) -> None:
        for lane, thread in enumerate(at.threads):
            _start(at, _map_at(at, int(thread), int(source[lane])), lane, starts)

    sources = ((instruction.operands[0], "address"), *((c, "i4") for c in coordinates))
    return Bound(run, sources)


@operation("prefetch.tensormap")
def prefetch_tensor_map(instruction: Instruction) -> Bound:
    def run(at: At, address: Any) -> None:
        for thread, place in zip(at.threads, address, strict=True):
            _map_at(at, int(thread), int(place))

    return Bound(run, ((instruction.operands[0], "address"),))
