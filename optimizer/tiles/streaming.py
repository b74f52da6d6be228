"""Streaming: a long dim that a group only reduces over is walked tile by tile, with carried sums.

A reduction over dim k that is read again along k, as in `sum(exp(x - max(x)))`, needs all of k
before its second use. It can still be formed in one walk where the second use depends on the first
result through a factor alone: exp(x - m) grows by exp(m_old - m_new) when m changes, so sums of it
are mended by that factor. What follows here finds such factors by rules about single operations;
softmax, logsumexp and attention are consequences.

Every value along k gets a `StreamForm`:

    value = tile value * exp(sum of sign * u) * product of v     u, v constant along k

where `shift` are the u that were added and are not yet inside an exponential, `power` those that
are, and `outer` the v, which are multiplied after the sum.

A sum of squares (x - u)^2 is mended when u changes by d = u_old - u_new as well: it grows by
2 d sum(x - u_old) + n d^2. So any estimate of u will do while walking; a sum of what was seen so
far, times how much more there is, is the best one (the running mean, where u is the mean).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np

from ...hlo.access import Access, IterationKind, access_of
from ...hlo.errors import CompilerBug
from ...hlo.graph import Function, Module, Op, Value, constant_of
from ...hlo.interpret import Interpreter
from ...hlo.ops import find
from ...hlo.ops.bodies import monoid
from ...hlo.symbols import Dim


class Factor(NamedTuple):
    """A value that is constant along k, spread over others: dim i of it is dim `dims[i]` there, or
    repeated (-1). sign: +1 or -1 for a term of a sum; for a factor, -1 means that it divides.
    """

    value: Value
    dims: tuple[int, ...]
    sign: int


@dataclass(frozen=True)
class StreamForm:
    """How a value along k depends on reductions over k."""

    shift: tuple[Factor, ...] = ()
    power: tuple[Factor, ...] = ()
    outer: tuple[Factor, ...] = ()
    uniform: Factor | None = None  # the value is this one, constant along k, and depends on sums
    offset: Factor | None = None  # the value is x - this one, an estimate while walking
    square: Factor | None = None  # the value is (x - this one) squared

    @property
    def stable(self) -> bool:
        """Whether it depends on no reduction over k."""
        return self == _STABLE


_STABLE = StreamForm()


class StreamStage(Enum):
    """When a value is computed."""

    BEFORE = "before the walk"
    ALONG = "for each tile of k"
    FOLD = "a reduction over k"
    RUNNING = "after the walk, and for each tile from the reductions so far"
    AFTER = "after the walk"


@dataclass(eq=False)
class StreamedGroup:
    """A group that can be walked along k. `dims` has the dim of each value that k is."""

    extent: Dim
    dims: Mapping[Value, int]
    stages: Mapping[Value, StreamStage]
    forms: Mapping[Value, StreamForm]  # of values along k, and of the operands' product in a fold
    inner: Mapping[Op, int] = field(default_factory=dict)  # folds: which inner iteration is k
    estimated: frozenset[Value] = frozenset()  # sums that are used while walking


def streams(ops: Sequence[Op], roots: Sequence[Value]) -> list[StreamedGroup]:
    """All ways to walk a group, one per dim that is reduced."""
    accesses = {op: access_of(op) for op in ops}
    if any(access is None for access in accesses.values()):
        return []
    known = {op: access for op, access in accesses.items() if access is not None}
    found: list[StreamedGroup] = []
    seen: set[tuple[Value, int]] = set()
    for op in ops:
        for place, iteration in enumerate(known[op].iterations):
            if iteration.kind is not IterationKind.REDUCE:
                continue
            start = _operand_dims(op, known[op], place)
            if not start or start[0] in seen:
                continue
            closure = _closure(start, ops, known)
            seen.update(start)
            if closure is None:
                continue
            seen.update(closure.items())
            stream = _Analysis(ops, known, roots, closure).run()
            if stream is not None:
                found.append(stream)
    return found


def _operand_dims(op: Op, access: Access, place: int) -> list[tuple[Value, int]]:
    """The operand dims that are just this iteration."""
    return [
        (value, dim)
        for value, indices in zip(op.operands, access.operands, strict=True)
        for dim, index in enumerate(indices)
        if index.same == place and value.dims[dim] != 1
    ]


def _closure(
    start: Sequence[tuple[Value, int]], ops: Sequence[Op], accesses: Mapping[Op, Access]
) -> dict[Value, int] | None:
    """The values that have k as a dim; None where k is not one dim of each of them."""
    dims: dict[Value, int] = {}
    pending = list(start)
    users: dict[Value, list[Op]] = {}
    for op in ops:
        for value in (*op.operands, *op.results):
            users.setdefault(value, []).append(op)
    while pending:
        value, dim = pending.pop()
        if dims.setdefault(value, dim) != dim:
            return None
        for op in users.get(value, ()):
            touched = _walked(op, accesses[op], value, dim)
            if touched is None:
                return None
            pending += [item for item in touched if dims.get(item[0]) != item[1]]
    return dims


def _walked(op: Op, access: Access, value: Value, dim: int) -> list[tuple[Value, int]] | None:
    """The other dims of an operation that are k if that one is; None where k is mixed."""
    places = {dim} if value in op.results else set()
    for operand, indices in zip(op.operands, access.operands, strict=True):
        if operand is value:
            place = indices[dim].same
            if place is None:
                return None
            places.add(place)
    if len(places) != 1:
        return None
    (place,) = places
    for indices in access.operands:
        for index in indices:
            if index.same is None and any(term.dim == place for term in index.terms):
                return None
    touched = _operand_dims(op, access, place)
    if place < access.rank:
        touched += [(result, place) for result in op.results]
    return touched


class _Analysis:
    """Finds the stage of every value and the form of those along k."""

    def __init__(
        self,
        ops: Sequence[Op],
        accesses: Mapping[Op, Access],
        roots: Sequence[Value],
        dims: Mapping[Value, int],
    ) -> None:
        self.ops, self.accesses, self.roots, self.dims = ops, accesses, roots, dims
        self.inside = {result for op in ops for result in op.results}
        self.stages: dict[Value, StreamStage] = {}
        self.forms: dict[Value, StreamForm] = {}
        self.inner: dict[Op, int] = {}
        self.estimated: set[Value] = set()

    def run(self) -> StreamedGroup | None:
        if any(root in self.dims for root in self.roots):
            return None
        for op in self.ops:
            if not self.place(op):
                return None
        folds = [op for op in self.ops if self.stages[op.results[0]] is StreamStage.FOLD]
        if not folds:
            return None
        value, dim = next(iter(self.dims.items()))
        extent, estimated = value.dims[dim], frozenset(self.estimated)
        return StreamedGroup(extent, self.dims, self.stages, self.forms, self.inner, estimated)

    def stage(self, value: Value) -> StreamStage:
        if value in self.inside:
            return self.stages[value]
        return StreamStage.ALONG if value in self.dims else StreamStage.BEFORE

    def form(self, value: Value) -> StreamForm:
        return self.forms.get(value, _STABLE)

    def place(self, op: Op) -> bool:
        """Note when the operation is computed; False where that cannot be said."""
        along = [value for value in op.operands if value in self.dims]
        result = op.results[0]
        if result in self.dims:
            form = self.along(op)
            if form is None:
                return False
            self.note(op, StreamStage.ALONG, form)
            return True
        if along:
            return self.fold(op)
        stages = {self.stage(value) for value in op.operands}
        if stages <= {StreamStage.BEFORE}:
            stage = StreamStage.BEFORE
        elif all(self.running(value) for value in op.operands):
            stage = StreamStage.RUNNING
        else:
            stage = StreamStage.AFTER
        self.note(op, stage)
        return True

    def note(self, op: Op, stage: StreamStage, form: StreamForm = _STABLE) -> None:
        for result in op.results:
            self.stages[result] = stage
            if not form.stable:
                self.forms[result] = form

    def running(self, value: Value) -> bool:
        """Whether the value may be used while walking, from what was seen so far."""
        stage = self.stage(value)
        if stage is StreamStage.FOLD:
            return _is_idempotent(value.op) and value not in self.forms
        return stage in (StreamStage.BEFORE, StreamStage.RUNNING)

    def fold(self, op: Op) -> bool:
        """A reduction over k, and over nothing that is not there while walking."""
        access = self.accesses[op]
        places = {
            indices[self.dims[value]].same
            for value, indices in zip(op.operands, access.operands, strict=True)
            if value in self.dims
        }
        if len(places) != 1 or None in places:
            return False
        (place,) = places
        if place is None or place < access.rank:
            return False
        if access.iterations[place].kind is not IterationKind.REDUCE:
            return False
        folding = folding_of(op)
        forms = [self.form(value) for value in op.operands]
        if any(form.shift or form.uniform or form.offset for form in forms):
            return False
        square = forms[0].square
        if any(form.square for form in forms) and (op.name != "reduce" or folding != "add"):
            return False
        if any(self.stage(v) not in (StreamStage.BEFORE, StreamStage.ALONG) for v in op.operands):
            return False
        if folding != "add" and not all(form.stable for form in forms):
            return False
        if op.name == "reduce" and not _restarts(op):
            return False
        power: list[Factor] = []
        outer: list[Factor] = []
        for number, form in enumerate(forms):
            moved = [self.through(op, number, f) for f in (*form.power, *form.outer)]
            kept = [factor for factor in moved if factor is not None]
            if len(kept) != len(moved):
                return False
            power += kept[: len(form.power)]
            outer += kept[len(form.power) :]
        self.inner[op] = place - access.rank
        if square is not None:
            square = self.through(op, 0, square)
            if square is None:
                return False
        self.note(op, StreamStage.FOLD, StreamForm((), tuple(power), tuple(outer), square=square))
        return True

    def estimate(self, value: Value) -> bool:
        """Whether the value can be estimated while walking, from sums so far; then it will be."""
        stage = self.stage(value)
        if stage is StreamStage.BEFORE or self.running(value):
            return True
        op = value.op
        if op is None or not value.element.is_float:
            return False
        if stage is StreamStage.FOLD:
            whole = folding_of(op) == "add" and value not in self.forms
            if whole:
                self.estimated.add(value)
            return whole
        if stage is not StreamStage.AFTER or not all(map(self.estimate, op.operands)):
            return False
        self.note(op, StreamStage.RUNNING)
        return True

    def through(self, op: Op, number: int, factor: Factor) -> Factor | None:
        """The factor as seen from the result of `op`, when it multiplies operand `number`."""
        access = self.accesses[op]
        indices = access.operands[number]
        places: list[int] = []
        for dim in factor.dims:
            place = -1 if dim == -1 else indices[dim].same
            if place is None or place >= access.rank:
                return None
            places.append(place)
        return factor._replace(dims=tuple(places))

    # Forms.

    def along(self, op: Op) -> StreamForm | None:
        """The form of the result of an operation along k; None where it has none."""
        uniform = self.spread(op)
        if uniform is not None:
            return StreamForm(uniform=uniform)
        forms = [self.operand_form(op, number) for number in range(len(op.operands))]
        known = [form for form in forms if form is not None]
        if len(known) != len(forms):
            return None
        if all(form.stable for form in known):
            return _STABLE
        rule = _RULES.get(op.name)
        form = rule(op, known) if rule is not None else None
        if form is None or all(self.running(factor.value) for factor in form.shift):
            return form
        # What is not there while walking may still be estimated, for a square.
        (factor, *others) = form.shift
        alone = op.name == "subtract" and not others and known[0].stable
        if alone and self.estimate(factor.value):
            return StreamForm(offset=factor)
        return None

    def operand_form(self, op: Op, number: int) -> StreamForm | None:
        """The form of an operand with its factors' dims as those of the result."""
        value = op.operands[number]
        if value not in self.dims:
            return _STABLE if self.stage(value) is StreamStage.BEFORE else None
        form = self.form(value)
        if form.stable:
            return form
        moved: list[list[Factor]] = []
        single = [[f] if f else [] for f in (form.uniform, form.offset, form.square)]
        for factors in (form.shift, form.power, form.outer, *single):
            seen = [self.through(op, number, factor) for factor in factors]
            if None in seen:
                return None
            moved.append([factor for factor in seen if factor is not None])
        shift, power, outer, *one = map(tuple, moved)
        return StreamForm(shift, power, outer, *(found[0] if found else None for found in one))

    def spread(self, op: Op) -> Factor | None:
        """The value that a broadcast along k repeats, if it depends on reductions over k."""
        if op.name != "broadcast_in_dim" or op.operands[0] in self.dims:
            return None
        (value,) = op.operands
        if self.stage(value) is StreamStage.BEFORE:
            return None
        places = [
            d if value.dims[number] != 1 or op.type.dims[d] == 1 else -1
            for number, d in enumerate(op.broadcast_dimensions)
        ]
        return Factor(value, tuple(places), 1)


def folding_of(op: Op | None) -> str | None:
    """The monoid of a reduction: "add" for contractions, None for one without a known name."""
    if op is None:
        return None
    if op.name == "reduce":
        return monoid(op.regions[0]) if len(op.operands) == 2 else None
    return "add"


def _is_idempotent(op: Op | None) -> bool:
    """Whether a result so far is a valid stand-in for the final one while walking."""
    name = folding_of(op)
    return name is not None and find(name).idempotent


def _restarts(op: Op) -> bool:
    """Whether each part of k may be folded from the initial values, and the parts then together:
    so it is if folding the initial values with themselves leaves them as they are."""
    initials = [constant_of(value) for value in op.operands[len(op.operands) // 2 :]]
    known = [dense.array for dense in initials if dense is not None]
    if len(known) != len(initials):
        return False
    body = op.regions[0]
    found = Interpreter(Module({"main": Function("main", body)})).run(body, [*known, *known])
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found, known, strict=True))


def away_from_square(value: Value) -> Value:
    """x - u, of which the value is the square."""
    if value.op is None:
        raise CompilerBug("a square comes from nowhere")
    return value.op.operands[0]


def _sum(op: Op, forms: Sequence[StreamForm]) -> StreamForm | None:
    """Tile value plus or minus something constant along k."""
    a, b = forms
    if _squared(forms):
        return None
    if b.uniform is not None and not (a.power or a.outer or a.uniform):
        sign = 1 if op.name == "add" else -1
        return StreamForm(shift=(*a.shift, b.uniform._replace(sign=sign)))
    if op.name == "add" and a.uniform is not None:
        return _sum(op, (b, a))
    return None


def _multiply(op: Op, forms: Sequence[StreamForm]) -> StreamForm | None:
    a, b = forms
    if a.offset is not None and op.operands[0] is op.operands[1]:
        return StreamForm(square=a.offset)
    if a.shift or b.shift or _squared(forms):
        return None
    if a.uniform is not None:
        a, b = b, a
    if a.uniform is not None:
        return None
    outer = (*a.outer, *b.outer)
    if b.uniform is not None:
        outer = (*outer, b.uniform)
    return StreamForm(power=(*a.power, *b.power), outer=outer)


def _divide(op: Op, forms: Sequence[StreamForm]) -> StreamForm | None:
    a, b = forms
    if a.shift or a.uniform or _squared(forms) or not (b.stable or b.uniform):
        return None
    if b.uniform is None:
        return a
    return StreamForm(power=a.power, outer=(*a.outer, b.uniform._replace(sign=-1)))


def _exponential(op: Op, forms: Sequence[StreamForm]) -> StreamForm | None:
    (a,) = forms
    if a.power or a.outer or a.uniform or _squared(forms):
        return None
    return StreamForm(power=a.shift)


def _squared(forms: Sequence[StreamForm]) -> bool:
    return any(form.offset or form.square for form in forms)


def _moved(op: Op, forms: Sequence[StreamForm]) -> StreamForm | None:
    if _squared(forms):
        return None
    return None if forms[0].uniform is not None and op.name != "convert" else forms[0]


def _select(op: Op, forms: Sequence[StreamForm]) -> StreamForm | None:
    """A choice between the value and zero keeps its factors."""
    pred, a, b = forms
    if not pred.stable:
        return None
    for kept, other, value in ((a, b, op.operands[2]), (b, a, op.operands[1])):
        zero = constant_of(_source(value))
        plain = not kept.shift and not kept.uniform and not kept.offset and other.stable
        if plain and zero is not None and zero.is_splat and zero.splat_value == 0:
            return kept
    return None


def _source(value: Value) -> Value:
    while value.op is not None and value.op.name == "broadcast_in_dim":
        value = value.op.operands[0]
    return value


_RULES = {
    "add": _sum,
    "subtract": _sum,
    "multiply": _multiply,
    "divide": _divide,
    "exponential": _exponential,
    "select": _select,
    "convert": _moved,
    "transpose": _moved,
    "reshape": _moved,
}
