"""Programs whose sizes a call decides: what a call's sizes are, and the plan at these.

A plan names sizes by formulas of symbols. At given values of the symbols it is a plan of fixed
sizes: tiles and bytes are numbers, and buffers of the arena lie as low as those allow that the
compiler has put below them. All of that is straight-line Python, written once for each plan.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..hlo.errors import UserError
from ..hlo.signature import Signature
from ..hlo.size_text import parse_dim
from ..hlo.sizes import SizeConstraint, SizeSolver, parse_constraint
from ..hlo.symbols import Dim, SymbolicDim, bound, substituted, symbols_of
from ..specs.generated import plan_pb2
from .parts import ALIGNMENT
from .undo import Undo

if TYPE_CHECKING:
    from .program import Program

KEPT = 64  # sizes whose tables are kept, the latest used
Accepted = tuple[Any, tuple[int, ...]]  # type and shape of an argument
Given = tuple[tuple[int, ...], Any, int]  # shape, type and room of a result
Tensors = tuple[tuple[Accepted, ...], tuple[Given, ...]]


class Sized(NamedTuple):
    """A plan at fixed sizes. number: of the plan. formulas: their values. offsets: in the arena, of
    buffers by their numbers. given: bytes of arguments and results."""

    number: int
    formulas: tuple[int, ...]
    offsets: tuple[int, ...]
    arena_bytes: int
    given: tuple[int, ...]


class OpenSizes:
    """What a plan with symbols asks of a call. `plans`: in the order in which they are tried."""

    def __init__(self, plan: plan_pb2.Plan, signature: Signature, label: str) -> None:
        self.declared = signature
        self._arguments = [_dims(argument.dims) for argument in signature.arguments]
        results = [_dims(result.dims) for result in signature.computed]
        used = {name for dims in self._arguments for dim in dims for name in symbols_of(dim)}
        self.symbols = {name: said for name, said in signature.symbols if name in used}
        if used != self.symbols.keys() or any(s.last is None for s in self.symbols.values()):
            raise UserError(f"{label}: it does not say what its sizes may be; compile it again")
        try:
            self._solver = signature.sizes
            self.plans = (plan, *plan.others)
            names = tuple(self.symbols)
            count = len(results)
            self._plans = [_OpenPlan(n, one, names, count) for n, one in enumerate(self.plans)]
        except (ValueError, ZeroDivisionError, KeyError, IndexError) as error:
            raise UserError(f"{label}: its sizes are malformed ({error}); compile again") from None
        self.undo = [Undo(one, len(results)) for one in self.plans]
        self._results, self._tensors = results, None
        self.largest = tuple(said.last or 0 for said in self.symbols.values())
        self._programs: OrderedDict[tuple[int, ...], Program] = OrderedDict()
        self._known: OrderedDict[Any, Program] = OrderedDict()  # by the shapes of a call
        self._lock = threading.Lock()

    @functools.cached_property
    def _quickly(self) -> Callable[..., Any]:
        """Made by the first call: a program that is only compiled and saved has none."""
        return _quick_solver(self._solver, tuple(self.symbols))

    def of_call(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """What symbols stand for in a call with arguments of these shapes, in their order;
        UserError where they are none of the program's."""
        try:
            found = self._quickly(shapes)
        except (ValueError, ZeroDivisionError):  # other ranks, or what divides by 0
            found = None
        if found is not None:
            return found
        declared = zip(self.declared.arguments, self._arguments, shapes, strict=True)
        for argument, dims, shape in declared:
            if len(shape) != len(dims):
                raise UserError(f"{argument}: got an array of {len(shape)} dims")
        values = self._solver.solve(shapes)
        return tuple(values[name] for name in self.symbols)

    def _named(self, values: Sequence[int]) -> dict[str, int]:
        return dict(zip(self.symbols, values, strict=True))

    def check(self, values: Sequence[int]) -> None:
        """UserError unless the program has such sizes."""
        named = self._named(values)
        self._solver.solve([[bound(d, named) for d in dims] for dims in self._arguments])

    def at(self, values: Sequence[int]) -> Sized:
        """The plan at these sizes, of all symbols in their order; UserError where the program has
        none."""
        for plan in self._plans:
            try:
                if plan.admits(*values):
                    return plan.at(*values)
            except ZeroDivisionError:  # what divides by 0 does not hold
                continue
        said = ", ".join(f"{name} = {value}" for name, value in self._named(values).items())
        raise UserError(
            f"the program has no code for {said}: compile it again, with a range around them"
        )

    @property
    def number_at_largest(self) -> int:
        """The number of the plan for the largest sizes; of the first, where these are none."""
        try:
            return self.at(self.largest).number
        except UserError:
            return 0

    def message(self, sized: Sized) -> plan_pb2.Plan:
        """The plan at fixed sizes as a message."""
        return self._plans[sized.number].message(sized)

    def largest_of(self, number: int) -> Sized:
        """A plan at the largest sizes, in which its calls of all sizes have room."""
        return self._plans[number].at(*self.largest)

    def tensors_at(
        self, values: Sequence[int], sized: Sized, accepts: Sequence[Any], gives: Sequence[Any]
    ) -> Tensors:
        """What a call of these sizes takes, and what it gives, as it is computed: of the types of
        what calls of other sizes do. UserError where the plan has other bytes for it."""
        if self._tensors is None:
            types = [dtype for dtype, *_ in accepts], [dtype for _, dtype, *_ in gives]
            self._tensors = _tensors_of(tuple(self.symbols), self._arguments, self._results, *types)
        takes, gets, wanted = self._tensors(*values)
        if wanted != sized.given:
            raise UserError(
                f"the plan has {sized.given} bytes for what the signature says has {wanted}; "
                "compile the program again"
            )
        return takes, gets

    def signature_at(self, values: Sequence[int]) -> Signature:
        """The signature at these sizes."""
        named = self._named(values)

        def stated(dim: Dim) -> int | str:
            size = substituted(dim, named)
            return size if isinstance(size, int) else str(size)  # what data decide stays open

        def fixed(items: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(
                replace(item, dims=tuple(stated(d) for d in _dims(item.dims))) for item in items
            )

        signature = self.declared
        return replace(
            signature,
            arguments=fixed(signature.arguments),
            results=fixed(signature.results),
            measured=tuple(
                replace(one, bound=stated(parse_dim(str(one.bound)))) for one in signature.measured
            ),
        )

    def known(self, shapes: Any) -> Program | None:
        """The program of a call whose arguments have these shapes, where it is kept."""
        found = self._known.get(shapes)
        if found is not None:
            try:
                self._known.move_to_end(shapes)
            except KeyError:  # another thread has just dropped it
                return None
        return found

    def program(
        self, values: tuple[int, ...], make: Callable[[], Program], shapes: Any = None
    ) -> Program:
        """The program at these sizes, made where it is not kept; `shapes`: of a call that has
        them."""
        made = self._programs.get(values) or make()
        with self._lock:
            found = self._programs.setdefault(values, made)
            self._programs.move_to_end(values)
            if shapes is not None:
                self._known[shapes] = found
            for kept in (self._programs, self._known):
                while len(kept) > KEPT:
                    kept.popitem(last=False)
        return found


class _OpenPlan:
    """One plan, for calls of which its guards hold."""

    def __init__(
        self, number: int, plan: plan_pb2.Plan, names: Sequence[str], results: int
    ) -> None:
        """results: how many of the outputs the signature has."""
        self.number, self.plan, self.results = number, plan, results
        guards = [parse_constraint(one.text, one.origin) for one in plan.guards]
        formulas = [parse_dim(text) for text in plan.formulas]
        for size in (*formulas, *(side for one in guards for side in (one.left, one.right))):
            if not set(symbols_of(size)) <= set(names):
                raise ValueError(f"{size} is no size of the arguments")
        said = " and ".join(_said(one, names) for one in guards)
        self.admits: Callable[..., bool] = _function(names, [f"return {said}"]) if said else _always
        self.at: Callable[..., Sized] = _function(names, self._lines(names, formulas))

    def _lines(self, names: Sequence[str], formulas: Sequence[Dim]) -> list[str]:
        """A plan's sizes, one after the other."""
        plan, unit = self.plan, self.plan.arena_alignment
        lines = [f"f{n} = {_text(size, names)}" for n, size in enumerate(formulas)]
        offsets = ["0"] * len(plan.buffers)
        ends: dict[int, str] = {}
        arena = [n for n, b in enumerate(plan.buffers) if b.place == plan_pb2.ARENA]
        for number in sorted(arena, key=lambda n: plan.buffers[n].offset):
            buffer = plan.buffers[number]
            below = [ends[other] for other in dict.fromkeys(buffer.above)]
            offsets[number] = f"max({', '.join(below)})" if len(below) > 1 else "".join(below)
            offsets[number] = offsets[number] or "0"
            if below and buffer.bytes_formula:
                lines.append(f"o{number} = {offsets[number]}")
                offsets[number] = f"o{number}"
            if buffer.bytes_formula:
                size = f"-(-max({self._bytes(number)}, 1) // {unit}) * {unit}"
            else:
                size = str(-(-max(buffer.bytes, 1) // unit) * unit)
            lines.append(f"e{number} = {offsets[number]} + {size}")
            ends[number] = f"e{number}"
        outputs = plan.outputs[: self.results]
        given = [self._bytes(number) for number in (*plan.inputs, *outputs)]
        parts = [[f"f{n}" for n in range(len(formulas))], offsets, given]
        values, places, bytes_given = (f"({''.join(f'{one}, ' for one in part)})" for part in parts)
        most = f"max({', '.join(['0', '0', *ends.values()])})"
        lines.append(f"return Sized({self.number}, {values}, {places}, {most}, {bytes_given})")
        return lines

    def _bytes(self, number: int) -> str:
        buffer = self.plan.buffers[number]
        return f"f{buffer.bytes_formula - 1}" if buffer.bytes_formula else str(buffer.bytes)

    def message(self, sized: Sized) -> plan_pb2.Plan:
        """The plan as a message of fixed sizes."""
        sizes = sized.formulas
        made = plan_pb2.Plan()
        made.CopyFrom(self.plan)
        del made.others[:], made.guards[:]
        for number, buffer in enumerate(made.buffers):
            if buffer.bytes_formula:
                buffer.bytes = sizes[buffer.bytes_formula - 1]
            for axis, formula in enumerate(buffer.dim_formulas):
                if formula:
                    buffer.dims[axis] = sizes[formula - 1]
            if buffer.place == plan_pb2.ARENA:
                buffer.offset = sized.offsets[number]
        memory = made.memory
        memory.arena_bytes = sized.arena_bytes
        memory.argument_bytes = sum(made.buffers[n].bytes for n in dict.fromkeys(made.inputs))
        memory.output_bytes = sum(made.buffers[n].bytes for n in dict.fromkeys(made.outputs))
        for step in made.steps:
            if step.WhichOneof("action") == "run" and step.run.tiles_formula:
                step.run.tiles = sizes[step.run.tiles_formula - 1]
        return made


def _always(*values: int) -> bool:
    """What a plan without guards says of all sizes."""
    return True


def _function(
    names: Sequence[str], lines: Sequence[str], parameters: str = "", **scope: Any
) -> Callable[..., Any]:
    """A function of the symbols' values, or of other parameters. `lines` hold nothing that a bundle
    has written, but for numbers: `_text` writes sizes anew. scope: what they name."""
    parameters = parameters or ", ".join(f"v{n}" for n in range(len(names)))
    body = "\n    ".join(lines)
    scope["Sized"] = Sized
    exec(compile(f"def function({parameters}):\n    {body}\n", "<sizes>", "exec"), scope)  # noqa: S102
    return scope["function"]


def _text(size: Dim, names: Sequence[str]) -> str:
    """A size in Python, in which symbol n is `vN`."""
    return str(size) if isinstance(size, int) else _written(size, tuple(names))


@functools.lru_cache(maxsize=1 << 12)
def _written(size: SymbolicDim, names: tuple[str, ...]) -> str:
    return str(substituted(size, {name: SymbolicDim(f"v{n}") for n, name in enumerate(names)}))


def _said(constraint: SizeConstraint, names: Sequence[str]) -> str:
    left, right = _text(constraint.left, names), _text(constraint.right, names)
    return f"{left} {constraint.relation} {right}"


def _quick_solver(solver: SizeSolver, names: Sequence[str]) -> Callable[..., Any]:
    """A function of a call's shapes: the values of symbols, in the order of their names, or None
    where something is wrong with them, which the solver says. ValueError for other ranks."""
    place = {name: n for n, name in enumerate(names)}
    shapes = (
        f"({''.join(f's{n}_{d}, ' for d in range(rank))})" for n, rank in enumerate(solver.ranks)
    )
    lines = [f"({''.join(f'{shape}, ' for shape in shapes)}) = shapes"]
    wanted: list[str] = []
    for name, number, axis, factor, rest in solver.steps:
        value, size = f"v{place[name]}", f"s{number}_{axis}"
        if factor == 1:
            lines.append(f"{value} = {size} - ({_text(rest, names)})")
        else:
            lines.append(f"{value}, left = divmod({size} - ({_text(rest, names)}), {factor})")
            lines.append("if left: return None")
        said = solver.symbols[name]
        wanted.append(f"{said.minimum} <= {value} <= {said.maximum}")
        if said.modulus > 1:
            wanted.append(f"({value} - {said.residue}) % {said.modulus} == 0")
    wanted += [f"s{number}_{axis} == {_text(dim, names)}" for number, axis, dim in solver.checked]
    wanted += [_said(constraint, names) for constraint in solver.constraints]
    lines.append(f"if not ({' and '.join(wanted) or True}): return None")
    lines.append(f"return ({''.join(f'v{n}, ' for n in range(len(names)))})")
    return _function(names, lines, "shapes")


def _tensors_of(
    names: Sequence[str],
    arguments: Sequence[Sequence[Dim]],
    results: Sequence[Sequence[Dim]],
    accepted: Sequence[Any],
    given: Sequence[Any],
) -> Callable[..., Any]:
    """A function of the symbols' values: what a call takes and gives, and bytes of both."""
    lines: list[str] = []
    parts: list[list[str]] = [[], [], []]
    types = [*accepted, *given]
    for n, (dims, dtype) in enumerate(zip((*arguments, *results), types, strict=True)):
        shape = [_text(dim, names) for dim in dims]
        factors = [*(f"({size})" for size in shape), str(dtype.itemsize)]
        lines.append(f"s{n} = ({''.join(f'{size}, ' for size in shape)})")
        lines.append(f"b{n} = {' * '.join(factors)}")
        if n < len(arguments):
            parts[0].append(f"(types[{n}], s{n})")
        else:
            parts[1].append(f"(s{n}, types[{n}], b{n} + {ALIGNMENT - 1})")
        parts[2].append(f"b{n}")
    texts = (f"({''.join(f'{one}, ' for one in part)})" for part in parts)
    lines.append(f"return {', '.join(texts)}")
    return _function(names, lines, types=types)


def _dims(dims: Sequence[int | str | SymbolicDim]) -> tuple[Dim, ...]:
    """A signature's dims, which name sizes by text."""
    return tuple(parse_dim(dim) if isinstance(dim, str) else dim for dim in dims)


def is_open(signature: Signature) -> bool:
    """Whether calls decide sizes of the arguments."""
    return any(not isinstance(dim, int) for a in signature.arguments for dim in a.dims)
