"""Programs whose sizes a call decides: what a call's sizes are, and the plan at these.

A plan names sizes by formulas of symbols. At given values of the symbols it is a plan of fixed
sizes: tiles and bytes are numbers, and buffers of the arena lie as low as what lives beside them
allows, in the order that the compiler has found for the largest sizes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..hlo.errors import UserError
from ..hlo.signature import Signature
from ..hlo.size_text import parse_dim
from ..hlo.sizes import SizeConstraint, parse_constraint
from ..hlo.symbols import Dim, SymbolicDim, bound, substituted, symbols_of
from ..specs.generated import plan_pb2

if TYPE_CHECKING:
    from .program import Program

KEPT = 64  # sizes whose tables are kept, the latest used


class Sized(NamedTuple):
    """A plan at fixed sizes, and the values of its formulas."""

    plan: plan_pb2.Plan
    formulas: tuple[int, ...]


class OpenSizes:
    """What a plan with symbols asks of a call."""

    def __init__(self, plan: plan_pb2.Plan, signature: Signature, label: str) -> None:
        self.declared = signature
        try:
            self._solver = signature.sizes
            self._plans = [_OpenPlan(one) for one in (plan, *plan.others)]
        except (ValueError, ZeroDivisionError) as error:
            raise UserError(f"{label}: its sizes are malformed ({error}); compile again") from None
        self._arguments = [_dims(argument.dims) for argument in signature.arguments]
        used = {name for dims in self._arguments for dim in dims for name in symbols_of(dim)}
        self.symbols = {name: said for name, said in signature.symbols if name in used}
        if used != self.symbols.keys() or any(s.last is None for s in self.symbols.values()):
            raise UserError(f"{label}: it does not say what its sizes may be; compile it again")
        self.largest = {name: said.last or 0 for name, said in self.symbols.items()}
        self._programs: OrderedDict[tuple[int, ...], Program] = OrderedDict()
        self._lock = threading.Lock()

    def of_call(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """What symbols stand for in a call with arguments of these shapes; UserError where they
        are none of the program's."""
        declared = zip(self.declared.arguments, self._arguments, shapes, strict=True)
        for argument, dims, shape in declared:
            if len(shape) != len(dims):
                raise UserError(f"{argument}: got an array of {len(shape)} dims")
        return self._solver.solve(shapes)

    def check(self, values: Mapping[str, int]) -> None:
        """UserError unless the program has such sizes."""
        self._solver.solve([[bound(d, values) for d in dims] for dims in self._arguments])

    def at_largest(self) -> Sized:
        """The plan at the largest sizes, in which calls of all sizes have room."""
        fitting = (p for p in self._plans if all(g.holds(self.largest) for g in p.guards))
        return next(fitting, self._plans[0]).at(self.largest)

    def at(self, values: Mapping[str, int]) -> Sized:
        """The plan at these sizes; UserError where the program has none."""
        for plan in self._plans:
            if all(guard.holds(values) for guard in plan.guards):
                return plan.at(values)
        said = ", ".join(f"{name} = {value}" for name, value in values.items())
        raise UserError(
            f"the program has no code for {said}: compile it again, with a range around them"
        )

    def signature_at(self, values: Mapping[str, int]) -> Signature:
        """The signature at these sizes."""

        def stated(dim: Dim) -> int | str:
            size = substituted(dim, values)
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

    def program(self, values: Mapping[str, int], make: Callable[[], Program]) -> Program:
        """The program at these sizes, made where it is not kept."""
        key = tuple(values.values())
        with self._lock:
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
                return found
        made = make()
        with self._lock:
            found = self._programs.setdefault(key, made)
            while len(self._programs) > KEPT:
                self._programs.popitem(last=False)
        return found


class _OpenPlan:
    """One plan, for calls of which its guards hold."""

    def __init__(self, plan: plan_pb2.Plan) -> None:
        self.plan = plan
        self.guards: list[SizeConstraint] = [
            parse_constraint(one.text, one.origin) for one in plan.guards
        ]
        self.formulas = [parse_dim(text) for text in plan.formulas]
        arena = [n for n, b in enumerate(plan.buffers) if b.place == plan_pb2.ARENA]
        self.arena = sorted(arena, key=lambda n: plan.buffers[n].offset)

    def at(self, values: Mapping[str, int]) -> Sized:
        sizes = [bound(formula, values) for formula in self.formulas]
        made = plan_pb2.Plan()
        made.CopyFrom(self.plan)
        del made.others[:], made.guards[:]
        for buffer in made.buffers:
            if buffer.bytes_formula:
                buffer.bytes = sizes[buffer.bytes_formula - 1]
            for axis, formula in enumerate(buffer.dim_formulas):
                if formula:
                    buffer.dims[axis] = sizes[formula - 1]
        unit = made.arena_alignment
        ends = np.zeros(len(made.buffers), np.int64)
        for number in self.arena:
            buffer = made.buffers[number]
            buffer.offset = int(max((ends[below] for below in buffer.above), default=0))
            ends[number] = buffer.offset + -(-max(buffer.bytes, 1) // unit) * unit
        memory = made.memory
        memory.arena_bytes = int(ends.max(initial=0))
        memory.argument_bytes = sum(made.buffers[n].bytes for n in dict.fromkeys(made.inputs))
        memory.output_bytes = sum(made.buffers[n].bytes for n in dict.fromkeys(made.outputs))
        for step in made.steps:
            if step.WhichOneof("action") == "run" and step.run.tiles_formula:
                step.run.tiles = sizes[step.run.tiles_formula - 1]
        return Sized(made, tuple(sizes))


def _dims(dims: Sequence[int | str | SymbolicDim]) -> tuple[Dim, ...]:
    """A signature's dims, which name sizes by text."""
    return tuple(parse_dim(dim) if isinstance(dim, str) else dim for dim in dims)


def is_open(signature: Signature) -> bool:
    """Whether calls decide sizes of the arguments."""
    return any(not isinstance(dim, int) for a in signature.arguments for dim in a.dims)
