"""Products by matrix instructions (mma.sync): operands through swizzled shared memory.

Sums stay in registers, and an operand whose registers already are what an instruction takes (the
sums of another product) is taken from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....hlo.graph import Op
from ... import llvm
from ...llvm import elements
from .. import layouts
from ..atoms import BITS, MatrixAtom, best_atom, contraction_atoms
from ..layouts import LinearLayout
from ..target import Architecture, NvidiaTarget
from .analysis import TileProduct
from .distributed_layout import DistributedLayout, conversion, layout_of, log2
from .operands import LINE, Place, ProductOperand, Words, held_words

if TYPE_CHECKING:
    from .emitter import Emitter
from .scope import Tile

UNROLLED = 16  # instructions along the sum, before they become a loop


@dataclass(frozen=True, eq=False)
class ProductLowering:
    """How a product is done: by which instruction (None: by multiply-adds), its operands (left,
    right), and how its sums lie."""

    product: TileProduct
    atom: MatrixAtom | None
    operands: tuple[ProductOperand, ProductOperand]
    sums: DistributedLayout

    @property
    def size(self) -> int:
        """Bytes of an element of an operand."""
        return self.product.left.value.element.itemsize


def atoms_of(op: Op, architecture: Architecture) -> list[MatrixAtom]:
    """The instructions of a warp that multiply a contraction's elements."""
    return [atom for atom in contraction_atoms(op, architecture) if not atom.asynchronous]


def plan(
    product: TileProduct, target: NvidiaTarget, warps: int, chained: bool
) -> ProductLowering | None:
    """The plan of a product; None where no matrix instruction has its types."""
    sizes = product.rows, product.columns, product.depth
    if min(sizes) < 1:
        return None
    atom = best_atom(atoms_of(product.op, target.architecture), *sizes)
    if atom is None:
        return None
    least = atom.m, atom.n, atom.k
    shape = tuple(max(n, 1 << log2(size)) for n, size in zip(least, sizes, strict=True))
    cut = _warps(shape[0] // atom.m, shape[1] // atom.n, (atom.m, atom.n), warps, chained)
    bits = BITS[atom.a], BITS[atom.b]
    a, b, c = layouts.mma_tiles(shape, least, *bits, cut)
    size = product.left.value.element.itemsize
    operands = (
        ProductOperand(product.left, a, size),
        ProductOperand(product.right, b.transpose((1, 0)), size),
    )
    if any(operand.loads(operand.tile)[1].bytes < 4 for operand in operands):
        return None  # single bytes would be loaded
    dims = product.op.result.dims
    kept = [{product.row: 0, product.column: 1}.get(d) for d in range(len(dims))]
    return ProductLowering(product, atom, operands, layout_of(dims, c, kept))


def _warps(
    down: int, across: int, atom: tuple[int, int], warps: int, chained: bool
) -> tuple[int, int]:
    """Warps down and across a tile of so many atoms, so that they load the fewest operands."""

    def price(cut: tuple[int, int]) -> tuple[bool, bool, int]:
        own = [max(1, n // w) * size for n, w, size in zip((down, across), cut, atom, strict=True)]
        return chained and cut[1] > 1, cut[0] > down or cut[1] > across, sum(own)

    return min(((1 << n, warps >> n) for n in range(log2(warps) + 1)), key=price)


def rounded(f: llvm.Function, word: llvm.Value) -> llvm.Value:
    """An f32 in a register (i32) rounded to the nearest tf32: the instructions would cut it."""
    return f.call("llvm.nvvm.f2tf32.rna", "i32", f.bitcast(word, "float"), declare=True)


def product(e: Emitter, plan: ProductLowering, start: Tile | None) -> Tile:
    """start + left * right, in the layout of the plan's sums; None starts from 0."""
    f, layout, size = e.f, plan.sums, plan.size
    assert plan.atom is not None
    kind = {"i32": "i32", "f64": "double"}.get(plan.atom.accumulator, "float")
    zero = llvm.constant(kind, 0)
    before = start or [None] * layout.count
    sums = [one if isinstance(one, llvm.Value) else zero for one in before]
    held = _held(e, plan)
    left = held if held is not None else Words(e, plan.operands[0])
    right = Words(e, plan.operands[1])
    sides = [side for side in (left, right) if isinstance(side, Words)]
    e.block.hazards.read(*(side.rows.piece for side in sides))
    depth = plan.operands[0].value.shape[1]
    steps = -(-plan.product.depth // plan.atom.k)
    group = LINE // size // plan.atom.k
    if steps <= UNROLLED or held is not None or depth * size % LINE:
        sums = _steps(f, plan, left, right, sums, range(steps))
    else:
        alive = [number for number in range(layout.count) if _used(plan, number)]
        turns = -(-steps // group)
        with f.for_range(
            llvm.constant("i32", 0), llvm.constant("i32", turns), 1, [sums[n] for n in alive]
        ) as loop:
            for side in sides:
                side.again(f.mul(loop.index, side.advance(LINE // size)))
            inner = list(sums)
            for number, one in zip(alive, loop.carried, strict=True):
                inner[number] = one
            inner = _steps(f, plan, left, right, inner, range(group))
            loop.carry(*(inner[n] for n in alive))
        for number, one in zip(alive, loop.results, strict=True):
            sums[number] = one
    element = plan.product.op.result.element
    return [
        None if place is None else elements.rounded(f, one, element)
        for one, place in zip(sums, layout.places, strict=True)
    ]


def _each(plan: ProductLowering) -> int:
    """Registers that one instruction adds to."""
    assert plan.atom is not None
    return plan.atom.m * plan.atom.n // 32


def _used(plan: ProductLowering, number: int) -> bool:
    """Whether an instruction that has a use writes the register."""
    each = _each(plan)
    first = number - number % each
    return any(place is not None for place in plan.sums.places[first : first + each])


def _held(e: Emitter, plan: ProductLowering) -> dict[Place, llvm.Value] | None:
    """The left operand's words, where registers of the same warp have them already."""
    operand = plan.operands[0]
    source, value = operand.source, operand.source.origin
    if e.assignment.goes_direct(source):
        return None
    kept = [{source.own: 0, source.depth: 1}.get(d) for d in range(value.rank)]
    wanted = layout_of(value.dims, operand.value, kept)
    known = e.scope.tile(value, wanted)
    if known is None:
        found = e.scope.any_tile(value)
        if found is None or conversion(found[0], wanted, 8 * operand.size).kind == "shared":
            return None
        known = e.tile(value, wanted)
    return held_words(e, operand, wanted, known)


def _steps(
    f: llvm.Function,
    plan: ProductLowering,
    left: Words | dict[Place, llvm.Value],
    right: Words,
    sums: list[llvm.Value],
    steps: Sequence[int],
) -> list[llvm.Value]:
    """The instructions of some steps along the sum."""
    atom, each = plan.atom, _each(plan)
    assert atom is not None
    a_tile, b_tile, _ = atom.operands()
    a_words, b_words = _words(a_tile, plan.size), _words(b_tile.transpose((1, 0)), plan.size)
    row, column = plan.product.row, plan.product.column
    sums = list(sums)
    tiles: dict[int, list[tuple[int, int]]] = {}  # by row: columns, and registers of their sums
    for number in range(0, plan.sums.count, each):
        if _used(plan, number):
            place = plan.sums.linear.registers[number]
            tiles.setdefault(place[row], []).append((place[column], number))

    def words(
        side: Words | dict[Place, llvm.Value], own: int, depth: int, of: Sequence[Place]
    ) -> list[llvm.Value]:
        places = [(own + i, depth + k) for i, k in of]
        found = [side.word(*at) if isinstance(side, Words) else side[at] for at in places]
        return [rounded(f, one) for one in found] if plan.size == 4 else found

    for step in steps:
        depth = step * atom.k
        across = {at: None for columns in tiles.values() for at, _ in columns}
        b = {at: words(right, at, depth, b_words) for at in across}
        for at, columns in tiles.items():
            a = words(left, at, depth, a_words)
            for column_at, number in columns:
                new = multiply(f, atom, a, b[column_at], sums[number : number + each])
                sums[number : number + each] = new
    return sums


def _words(tile: LinearLayout, size: int) -> list[Place]:
    """Where the words of an instruction's operand (own, depth) begin, those of lane 0."""
    per = max(1, 4 // size)
    return list(tile.registers[::per])


def multiply(
    f: llvm.Function,
    atom: MatrixAtom,
    a: Sequence[llvm.Value],
    b: Sequence[llvm.Value],
    sums: Sequence[llvm.Value],
) -> list[llvm.Value]:
    """One matrix instruction: sums + a * b."""
    kind = sums[0].type
    letter = {"i32": "r", "double": "d"}.get(kind, "f")
    places = iter(range(len(a) + len(b) + 2 * len(sums)))
    lists = [
        "{" + ",".join(f"${next(places)}" for _ in values) + "}" for values in (sums, a, b, sums)
    ]
    text = f"{atom.opcode} {', '.join(lists)};"
    given = ["d" if one.type == "double" else "r" for one in (*a, *b)]
    constraints = ",".join([f"={letter}"] * len(sums) + given + [letter] * len(sums))
    operands = ", ".join(map(str, (*a, *b, *sums)))
    result = "{ " + ", ".join([kind] * len(sums)) + " }"
    both = f.emit(result, f'call {result} asm "{text}", "{constraints}"({operands}) convergent')
    return [f.emit(kind, f"extractvalue {both}, {n}") for n in range(len(sums))]
