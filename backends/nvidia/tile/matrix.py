"""Products by matrix instructions (mma.sync): operands through swizzled shared memory.

Operands lie in shared memory in rows as their tile has them; 16-byte chunks of a row are permuted
by the row's number, so that ldmatrix meets every bank once. What ldmatrix cannot load (rows across
the sum of 4-byte elements, and all of 8-byte ones) is loaded element by element, and pairs of
chunks are permuted. Offsets are linear over bits: an element's is that of the thread's part xor
that of the register's part. Sums stay in registers, and an operand whose registers already are a
fragment (the sums of another product) is taken from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....hlo.graph import Op
from ... import llvm
from ...llvm import elements
from ..atoms import MatrixAtom, contraction_atoms
from ..target import Architecture, Target
from .analysis import Product, Source
from .shared import CHUNK, SEGMENT, Rows
from .spread import LANE_BITS, Spread, accumulator, fragment, log2

if TYPE_CHECKING:
    from .emitter import Emitter
from .scope import Tile

STEP = 32  # bytes of a row that one instruction multiplies
UNROLLED = 16  # instructions along the sum, before they become a loop


@dataclass(frozen=True, eq=False)
class Plan:
    """How a product is done: by which instruction (None: by multiply-adds), warps (down, across),
    how its sums lie."""

    product: Product
    atom: MatrixAtom | None
    warps: tuple[int, int]
    sums: Spread

    @property
    def size(self) -> int:
        """Bytes of an element of an operand."""
        return self.product.left.value.element.itemsize

    def single(self, source: Source) -> bool:
        """Whether an operand's elements are loaded one by one."""
        return self.atom is not None and (self.size > 4 or self.size == 4 and not source.along)

    def unit(self, source: Source) -> int:
        """Bytes of an operand's rows that stay together in shared memory."""
        return STEP if self.single(source) else CHUNK


def atoms_of(op: Op, architecture: Architecture) -> list[MatrixAtom]:
    """The instructions of a warp that multiply a contraction's elements, 32 bytes along the sum."""
    return [
        atom
        for atom in contraction_atoms(op, architecture)
        if not atom.asynchronous and atom.k * op.operands[0].element.itemsize == STEP
    ]


def plan(product: Product, target: Target, warps: int, chained: bool) -> Plan | None:
    """The plan of a product; None where no matrix instruction has its types."""
    atoms = atoms_of(product.op, target.architecture)
    if not atoms or min(product.rows, product.columns, product.depth) < 1:
        return None
    single = product.left.value.element.itemsize == 1
    if single and not (product.left.along and product.right.along):
        return None  # bytes cannot be transposed on the way to registers
    cut = _warps(product.rows, product.columns, warps, chained)
    dims = product.op.result.dims
    return Plan(product, atoms[0], cut, accumulator(dims, product.row, product.column, cut))


def _warps(rows: int, columns: int, warps: int, chained: bool) -> tuple[int, int]:
    """Warps down and across, so that they load the fewest operands."""
    best: tuple[int, tuple[int, int]] | None = None
    down = 1
    while down <= warps:
        across = warps // down
        own = max(16, (1 << log2(rows)) // down), max(8, (1 << log2(columns)) // across)
        idle = down > max(1, (1 << log2(rows)) // 16) or across > max(1, (1 << log2(columns)) // 8)
        price = own[0] + own[1] + (1 << 20) * idle + (1 << 21) * (chained and across > 1)
        if best is None or price < best[0]:
            best = price, (down, across)
        down *= 2
    assert best is not None
    return best[1]


def offset_of(
    e: Emitter, rows: Rows, row_steps: Sequence[int], byte_steps: Sequence[int]
) -> llvm.Value:
    """The thread's part of an offset, i32, from its steps along rows and along bytes of a row."""
    f, block = e.f, e.block
    row = block.bits(block.thread, row_steps)
    shift, mask = rows.permutation
    swizzle = f.shl(f.land(f.lshr(row, shift), mask), log2(rows.unit))
    byte = f.xor(block.bits(block.thread, byte_steps), swizzle)
    own = f.lor(f.mul(row, rows.row_bytes), byte)
    return own if rows.stage is None else f.add(own, rows.stage)


def place_of(e: Emitter, rows: Rows, thread: llvm.Value, constant: int) -> llvm.Value:
    """The address (shared memory) of the thread's part xor a constant."""
    f = e.f
    low = constant & (SEGMENT - CHUNK)
    at = f.xor(thread, low) if low else thread
    kind = "ptr addrspace(3)"
    base = f.emit(kind, f"getelementptr i8, {kind} @shared, {at}")
    return f.emit(kind, f"getelementptr i8, {base}, i32 {rows.piece.start + constant - low}")


# Operands in shared memory.


def staged(e: Emitter, source: Source, size: int, unit: int = CHUNK) -> Rows:
    """The operand in shared memory, written if it is not there yet."""
    stage = e.scope.ring(source.origin)
    if stage is not None:
        return stage
    padded, row_bytes = rows_of(source, size, unit)
    key = (source.origin, f"rows of {unit}")
    piece = e.scope.stage(key)
    if piece is None:
        piece = e.block.arena.take(padded * row_bytes, 1024)
        e.scope.staged[key] = piece
        place = Rows(piece, padded, row_bytes, unit=unit)
        e.block.hazards.write(piece)
        if e.assignment.goes_direct(source):
            copy_window(e, source, place)
        else:
            _write(e, source, place, size)
    return Rows(piece, padded, row_bytes, unit=unit)


def axes(source: Source) -> tuple[int, int]:
    """The dims of the origin that are rows and columns."""
    return min(source.own, source.depth), max(source.own, source.depth)


def rows_of(source: Source, size: int, unit: int = CHUNK) -> tuple[int, int]:
    """Padded rows of an operand, and bytes of each: an instruction takes 16 along the own dim."""
    rows, columns = (source.origin.dims[d] for d in axes(source))
    least = max(STEP, 16 * size) if unit > CHUNK else STEP
    return max(16, STEP // size, 1 << log2(rows)), max(least, (1 << log2(columns)) * size)


def coordinates(spread: Spread, number: int) -> tuple[int, ...]:
    """The register's part of an index, also outside of the tile."""
    return tuple(
        sum(basis[d] for bit, basis in enumerate(spread.registers) if number >> bit & 1)
        for d in range(len(spread.dims))
    )


def _write(e: Emitter, source: Source, rows: Rows, size: int) -> None:
    """From registers; what pads the tile becomes 0."""
    f, value = e.f, source.origin
    known = e.scope.any_tile(value)
    spread = known[0] if known else e.spread(value)
    tile = e.tile(value, spread)
    first, second = axes(source)
    thread = thread_part(e, rows, spread, first, second, size)
    if rows.rows > value.dims[first] or rows.row_bytes > value.dims[second] * size:
        _clear(e, rows)
        e.block.hazards.write(rows.piece)
    owner = e.block.owner(spread)
    width = spread.vector(CHUNK // size)
    while width > 1 and value.dims[second] % width:
        width //= 2
    for number in range(0, spread.count, width):
        place = spread.places[number]
        if place is None:
            continue
        held = e.block.both(owner, e.block.inside(spread, place))
        raw = [_raw(f, tile[number + lane], value.element) for lane in range(width)]
        pointer = place_of(e, rows, thread, rows.offset(place[first], place[second] * size))
        e.guarded(held, lambda p=pointer, r=raw: _store(f, r, p, size))


def thread_part(
    e: Emitter, rows: Rows, spread: Spread, first: int, second: int, size: int
) -> llvm.Value:
    """The offset of the thread's part of a tile whose dims `first` and `second` are the rows'."""
    row_steps = [basis[first] for basis in spread.threads]
    byte_steps = [basis[second] * size for basis in spread.threads]
    return offset_of(e, rows, row_steps, byte_steps)


def _clear(e: Emitter, rows: Rows) -> None:
    """Zeros everywhere."""
    f = e.f
    total = rows.rows * rows.row_bytes
    zero = llvm.Value("<4 x i32>", "zeroinitializer")
    at = f.mul(e.block.thread, CHUNK)
    for start in range(0, total, e.block.threads * CHUNK):
        held = None
        if start + e.block.threads * CHUNK > total:
            held = f.compare("ult", at, total - start)
        pointer = place_of(e, rows, at, start)
        e.guarded(held, lambda p=pointer: f.store(zero, p, align=CHUNK))


def _raw(f: llvm.Function, register: object, element: object) -> llvm.Value:
    """The bits of an element as memory has them."""
    assert isinstance(register, llvm.Value)
    raw = elements.narrow(f, register, element)
    return f.bitcast(raw, f"i{llvm.bits_of(raw.type)}")


def _store(f: llvm.Function, raw: Sequence[llvm.Value], pointer: llvm.Value, size: int) -> None:
    f.store(packed(f, raw), pointer, align=size * len(raw))


def packed(f: llvm.Function, raw: Sequence[llvm.Value]) -> llvm.Value:
    """Neighbours as one vector."""
    if len(raw) == 1:
        return raw[0]
    vector = llvm.poison(llvm.vector(len(raw), raw[0].type))
    for lane, one in enumerate(raw):
        vector = f.insert(vector, one, lane)
    return vector


def copy_window(e: Emitter, source: Source, rows: Rows) -> None:
    """From global memory straight to shared memory; asynchronously where that is possible."""
    from .copies import copy

    copy(e, source, rows)


# Products.


class _Operand:
    """Fragments of one operand, loaded when they are asked for."""

    def __init__(self, e: Emitter, plan: Plan, side: int) -> None:
        self.e, self.f, self.plan, self.side = e, e.f, plan, side
        product = plan.product
        self.source = (product.left, product.right)[side]
        self.along = self.source.along
        self.own = (product.row, product.column)[side]
        self.rows = staged(e, self.source, plan.size, plan.unit(self.source))
        self.single = plan.single(self.source)
        self.thread = self._thread()

    def _thread(self) -> llvm.Value:
        """Lanes give the rows of four 8 by 16-byte matrices, or hold an element of each."""
        plan, size = self.plan, self.plan.size
        lanes = [1, 2, 4]  # rows of a matrix
        warps = [basis[self.own] for basis in plan.sums.threads[LANE_BITS:]]
        none = [0] * len(warps)
        if self.single and self.along:
            byte = [size, 2 * size, 0, 0, 0]
            return offset_of(self.e, self.rows, [0, 0, *lanes, *warps], [*byte, *none])
        if self.single:
            own = [size * step for step in (0, 0, *lanes, *warps)]
            return offset_of(self.e, self.rows, [1, 2, 0, 0, 0, *none], own)
        # The second and third matrix: 8 further along the own dim and along the sum, in the order
        # of the instruction's registers.
        own_first = self.side == 0
        if self.along:
            row = [*lanes, 8, 0] if own_first else [*lanes, 0, 8]
            byte = [0, 0, 0, 0, CHUNK] if own_first else [0, 0, 0, CHUNK, 0]
            return offset_of(self.e, self.rows, [*row, *warps], [*byte, *none])
        row = [*lanes, 0, 8] if own_first else [*lanes, 8, 0]
        byte = [0, 0, 0, CHUNK, 0] if own_first else [0, 0, 0, 0, CHUNK]
        bytes_of_warps = [step * plan.size for step in warps]
        return offset_of(self.e, self.rows, [*row, *none], [*byte, *bytes_of_warps])

    def load(self, own: int, step: int, shift: llvm.Value | None) -> list[llvm.Value]:
        """The registers for 16 of the own dim from `own` on, 32 bytes along the sum."""
        plan = self.plan
        along = step * (STEP // plan.size)
        if self.single:
            return self._elements(own, along, shift)
        if self.along:
            constant = self.rows.offset(own, step * STEP)
        else:
            constant = self.rows.offset(along, own * plan.size)
        thread = self.thread if shift is None else self.f.add(self.thread, shift)
        pointer = place_of(self.e, self.rows, thread, constant)
        found = load_matrices(self.f, pointer, not self.along)
        return [rounded(self.f, one) for one in found] if plan.size == 4 else found

    def _elements(self, own: int, along: int, shift: llvm.Value | None) -> list[llvm.Value]:
        """The same, loaded one by one: lane 4 i + j has the i-th of the own dim, the j-th of four
        along the sum."""
        f, size = self.f, self.plan.size
        thread = self.thread if shift is None else f.add(self.thread, shift)
        halves = range(0, STEP // size, 4)
        if self.side == 0:
            places = [(own + eight, along + half) for half in halves for eight in (0, 8)]
        else:
            places = [(own + eight, along + half) for eight in (0, 8) for half in halves]
        found = []
        for mine, depth in places:
            row, column = (mine, depth) if self.along else (depth, mine)
            pointer = place_of(self.e, self.rows, thread, self.rows.offset(row, column * size))
            raw = f.load("double" if size == 8 else "i32", pointer, align=size)
            found.append(rounded(f, raw) if size == 4 else raw)
        return found

    def advance(self, steps: int) -> int:
        """Bytes from one group of steps to the next, a multiple of what swizzles repeat after."""
        if self.along:
            return steps * STEP
        return steps * (STEP // self.plan.size) * self.rows.row_bytes


def load_matrices(f: llvm.Function, pointer: llvm.Value, transposed: bool) -> list[llvm.Value]:
    """Four 8 by 16-byte matrices whose rows the lanes point to: a register of each."""
    middle = ".trans" if transposed else ""
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{middle}.b16.p3"
    result = "{ i32, i32, i32, i32 }"
    both = f.call(name, result, pointer, declare=True)
    return [f.emit("i32", f"extractvalue {both}, {n}") for n in range(4)]


def rounded(f: llvm.Function, word: llvm.Value) -> llvm.Value:
    """An f32 in a register (i32) rounded to the nearest tf32: the instructions would cut it."""
    return f.call("llvm.nvvm.f2tf32.rna", "i32", f.bitcast(word, "float"), declare=True)


def product(e: Emitter, plan: Plan, start: Tile | None) -> Tile:
    """start + left * right, in the layout of the plan's sums; None starts from 0."""
    f, spread, size = e.f, plan.sums, plan.size
    assert plan.atom is not None
    kind = {"i32": "i32", "f64": "double"}.get(plan.atom.accumulator, "float")
    zero = llvm.constant(kind, 0)
    sums: list[llvm.Value] = []
    for number in range(spread.count):
        one = start[number] if start is not None else None
        sums.append(one if isinstance(one, llvm.Value) else zero)
    held = _held(e, plan)
    left = None if held is not None else _Operand(e, plan, 0)
    right = _Operand(e, plan, 1)
    e.block.hazards.read(*(side.rows.piece for side in (left, right) if side is not None))
    depth = max(STEP // size, 1 << log2(plan.product.depth))
    steps = -(-plan.product.depth * size // STEP)
    group = SEGMENT // STEP
    if steps <= UNROLLED or held is not None or depth * size % SEGMENT:
        sums = _steps(f, plan, left, right, held, sums, range(steps), None)
    else:
        assert left is not None
        alive = [number for number in range(spread.count) if _used(spread, number)]
        turns = -(-steps // group)
        with f.for_range(
            llvm.constant("i32", 0), llvm.constant("i32", turns), 1, [sums[n] for n in alive]
        ) as loop:
            shifts = [f.mul(loop.index, side.advance(group)) for side in (left, right)]
            inner = list(sums)
            for number, one in zip(alive, loop.carried, strict=True):
                inner[number] = one
            inner = _steps(f, plan, left, right, None, inner, range(group), shifts)
            loop.carry(*(inner[n] for n in alive))
        for number, one in zip(alive, loop.results, strict=True):
            sums[number] = one
    element = plan.product.op.result.element
    return [
        None if place is None else elements.rounded(f, one, element)
        for one, place in zip(sums, spread.places, strict=True)
    ]


def _used(spread: Spread, number: int) -> bool:
    """Whether an instruction that has a use writes the register."""
    return any(spread.places[number & ~3 | n] is not None for n in range(4))


def _held(e: Emitter, plan: Plan) -> Tile | None:
    """The left operand's registers, where they are a fragment already."""
    source = plan.product.left
    value = source.origin
    if e.assignment.goes_direct(source) or plan.size > 4:
        return None
    wanted = fragment(value.dims, source.own, source.depth, plan.size, plan.warps)
    known = e.scope.tile(value, wanted)
    if known is None:
        found = e.scope.any_tile(value)
        if found is None or found[0].renaming(wanted) is None:
            return None
        known = e.tile(value, wanted)
    raw: Tile = []
    for number, one in enumerate(known):
        if one is None:
            raw.append(llvm.constant(f"i{8 * plan.size}", 0))
            continue
        place = wanted.places[number]
        assert place is not None
        bits = _raw(e.f, one, value.element)
        inside = e.block.inside(wanted, place, (source.depth,))
        raw.append(bits if inside is None else e.f.select(inside, bits, 0))
    return raw


def _steps(
    f: llvm.Function,
    plan: Plan,
    left: _Operand | None,
    right: _Operand,
    held: Tile | None,
    sums: list[llvm.Value],
    steps: Sequence[int],
    shifts: Sequence[llvm.Value] | None,
) -> list[llvm.Value]:
    """The instructions of some steps along the sum."""
    spread, size = plan.sums, plan.size
    assert plan.atom is not None
    sums = list(sums)
    row, column = plan.product.row, plan.product.column
    down = [basis[row] for basis in spread.registers[2:] if basis[row]]
    across = [basis[column] for basis in spread.registers[2:] if basis[column]]
    rows = [_total(down, n) for n in range(1 << len(down))]
    columns = [_total(across, n) for n in range(1 << len(across))]
    own, other = (None, None) if shifts is None else shifts
    for step in steps:
        b: dict[int, list[llvm.Value]] = {}
        for j, at in enumerate(columns):
            if not any(_used(spread, (i * len(columns) + j) * 4) for i in range(len(rows))):
                continue
            if j % 2 == 0:
                loaded = right.load(at, step, other)
                half = len(loaded) // 2
                b[j], b[j + 1] = loaded[:half], loaded[half:]
        for i, at in enumerate(rows):
            numbers = [(i * len(columns) + j) * 4 for j in range(len(columns))]
            if not any(_used(spread, number) for number in numbers):
                continue
            if left is not None:
                a = left.load(at, step, own)
            else:
                assert held is not None
                a = _fragment(f, held, i, step, len(held) // len(rows), size)
            for j, number in enumerate(numbers):
                if _used(spread, number):
                    new = multiply(f, plan.atom, a, b[j], sums[number : number + 4])
                    sums[number : number + 4] = new
    return sums


def _fragment(
    f: llvm.Function, held: Tile, i: int, step: int, each: int, size: int
) -> list[llvm.Value]:
    """Four registers of packed elements: rows r, r + 8 of the first half, then of the second."""
    packs = 4 // size
    first = i * each + step * packs * 4
    found = []
    for n in range(4):
        raw = [held[first + n * packs + lane] for lane in range(packs)]
        vector = packed(f, [one for one in raw if isinstance(one, llvm.Value)])
        word = f.bitcast(vector, "i32")
        found.append(rounded(f, word) if size == 4 else word)
    return found


def _total(steps: Sequence[int], number: int) -> int:
    return sum(step for bit, step in enumerate(steps) if number >> bit & 1)


def multiply(
    f: llvm.Function,
    atom: MatrixAtom,
    a: Sequence[llvm.Value],
    b: Sequence[llvm.Value],
    sums: Sequence[llvm.Value],
) -> list[llvm.Value]:
    """One matrix instruction, or two of 8 rows: sums + a * b."""
    if atom.m == 8 and len(a) > 1:
        lower = multiply(f, atom, a[:1], b, sums[:2])
        return [*lower, *multiply(f, atom, a[1:], b, sums[2:])]
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
