"""What a tile function does, as data: its products, and the windows that they read.

    for product in Facts(kernel_call).products: product.rows, product.left.window

Nothing here knows of layouts or of a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ....hlo.graph import Op, Value
from ....hlo.offsets import Offset, Offsets
from ....hlo.tiling import trip_count
from ....optimizer.asynchronous.work import shape


@dataclass(frozen=True, eq=False)
class WindowLoad:
    """A `tile_load`: the window at `offsets`, of which `tile` has every `strides`-th element along
    each dim."""

    op: Op
    offsets: tuple[Offset, ...]
    tile: Value
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class OperandSource:
    """Where an operand of a product comes from: `origin`, behind transposes and reshapes that add
    or drop dims of size 1. `own` and `depth` are the dims of the origin that the result has, and
    that is summed over; all others have size 1. `window` is the load that the origin is, or whose
    pixels are its rows; `moves` are the operations between the two and what the product reads.
    """

    value: Value
    origin: Value
    window: WindowLoad | None
    own: int
    depth: int
    moves: tuple[Op, ...]

    @property
    def along(self) -> bool:
        """Whether rows of the origin run along the sum."""
        return self.depth > self.own

    @property
    def rows_and_columns(self) -> list[int | None]:
        """For each dim of the origin: 0 for rows, 1 for columns, None for the others."""
        first, second = sorted((self.own, self.depth))
        return [{first: 0, second: 1}.get(d) for d in range(self.origin.rank)]


@dataclass(frozen=True, eq=False)
class TileProduct:
    """A dot_general with at most one dim each of rows, columns and summation that is not 1.

    `row` and `column` are dims of the result.
    """

    op: Op
    left: OperandSource
    right: OperandSource
    row: int
    column: int

    @property
    def rows(self) -> int:
        return self.op.result.dims[self.row]

    @property
    def columns(self) -> int:
        return self.op.result.dims[self.column]

    @property
    def depth(self) -> int:
        return self.left.origin.dims[self.left.depth]


class Facts:
    """What is known of one kernel_call."""

    def __init__(self, kernel: Op) -> None:
        self.kernel = kernel
        self.region = kernel.regions[0]
        self.offsets = Offsets(kernel)
        count = len(kernel.operands)
        self.inputs = self.region.arguments[:count]
        self.results = self.region.arguments[count:]

    @cached_property
    def products(self) -> tuple[TileProduct, ...]:
        """All products, in loops or not."""
        dots = (op for op in self.region.walk() if op.name == "dot_general")
        return tuple(one for one in map(self._product, dots) if one is not None)

    def trips(self, loop: Op) -> int | None:
        """Turns of a `tile_for`; None if its bounds are no numbers."""
        bounds = [self.offsets.of(bound).constant for bound in loop.operands[:2]]
        fixed = all(isinstance(bound, int) for bound in bounds)
        return trip_count(loop, self.offsets) if fixed else None

    def window(self, op: Op, moves: Sequence[Op] = ()) -> WindowLoad:
        """A tile_load as a window; `moves` come behind it."""
        rank = op.operands[0].rank
        offsets = tuple(self.offsets.of(value) for value in op.offsets[:rank])
        tile, strides = op.result, (1,) * rank
        for move in moves:
            if move.name == "slice":
                tile, strides = move.result, tuple(move.strides)
        return WindowLoad(op, offsets, tile, strides)

    def follows(self, window: WindowLoad, loop: Op) -> bool:
        """Whether the window in any turn is known before it: its offsets depend on what the loop
        carries through its index alone."""
        region = loop.regions[0]
        inner = set(region.ops)
        pending = [variable for offset in window.offsets for variable in offset.variables]
        while pending:
            value = pending.pop()
            if value.op in inner:
                plain = value.op.name in ("constant", "tile_id")
                if value.rank or not plain and value.op.definition.pattern != "elementwise":
                    return False
                pending.extend(value.op.operands)
            elif value.owner is region and value is not region.arguments[0]:
                return False
        return True

    def _product(self, op: Op) -> TileProduct | None:
        """The product in its canonical form; None for batches and several dims of a kind."""
        left, right = op.operands
        batches = len(op.lhs_batching_dimensions)
        sides: list[tuple[int, int, int]] = []  # own dim, summed dim, and dim of the result
        first = batches
        for value, side in ((left, "lhs"), (right, "rhs")):
            taken = tuple(getattr(op, f"{side}_batching_dimensions"))
            summed = tuple(getattr(op, f"{side}_contracting_dimensions"))
            free = [d for d in range(value.rank) if d not in (*taken, *summed)]
            own, depth = _only(value, free), _only(value, summed)
            if own is None or depth is None or any(value.dims[d] != 1 for d in taken):
                return None
            sides.append((own, depth, first + free.index(own)))
            first += len(free)
        (row, left_depth, down), (column, right_depth, across) = sides
        return TileProduct(
            op,
            self.source(left, row, left_depth),
            self.source(right, column, right_depth),
            down,
            across,
        )

    def source(self, value: Value, own: int, depth: int) -> OperandSource:
        """Follows an operand's two dims to where it is made."""
        origin = value
        moves: list[Op] = []
        while origin.op is not None:
            op = origin.op
            if op.name == "transpose":
                own, depth = op.permutation[own], op.permutation[depth]
            elif op.name == "reshape":
                before = op.operands[0]
                moved = [_moved(origin, before, d) for d in (own, depth)]
                if moved[0] is None or moved[1] is None:
                    break
                own, depth = moved[0], moved[1]
            else:
                break
            moves.append(op)
            origin = op.operands[0]
        found = _loaded(origin)
        if found is None:
            return OperandSource(value, origin, None, own, depth, ())
        window = self.window(*found)
        return OperandSource(value, origin, window, own, depth, (*moves, *found[1]))


def _loaded(value: Value) -> tuple[Op, tuple[Op, ...]] | None:
    """(the load behind a value, what moves its elements): every so many elements of the window, and
    its pixels as one dim."""
    moves: list[Op] = []
    op = value.op
    if op is not None and op.name == "reshape" and _powers(op.operands[0]) and _powers(value):
        moves.append(op)
        op = op.operands[0].op
    if op is not None and op.name == "slice" and not any(op.start_indices):
        moves.append(op)
        op = op.operands[0].op
    return (op, tuple(moves)) if op is not None and op.name == "tile_load" else None


def _powers(value: Value) -> bool:
    """Whether all sizes are powers of two, so that a reshape moves bits of the index alone."""
    return all(n and n & (n - 1) == 0 for n in value.dims)


def _only(value: Value, dims: Sequence[int]) -> int | None:
    """The one of these dims that is not 1 (the last of them if all are); None if there are more."""
    large = [d for d in dims if value.dims[d] != 1]
    if len(large) > 1 or not dims:
        return None
    return large[0] if large else dims[-1]


def _moved(after: Value, before: Value, d: int) -> int | None:
    """Which dim of a reshape's operand dim d of the result is, where only 1s come and go."""
    if shape(after) != shape(before) or after.dims[d] == 1:
        return None
    place = sum(n != 1 for n in after.dims[:d])
    return [e for e, n in enumerate(before.dims) if n != 1][place]
