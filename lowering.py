"""An entry point after all passes: the plan for all sizes, and those for some of them.

Where calls decide sizes, an entry point is lowered several times: for a likely call, for others
with which that is compared, for ranges of sizes, and for calls that guards leave out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from .backends import Backend
from .hlo.deciding import Decisions, codeable, decided_by
from .hlo.errors import MemoryLimitError, UserError
from .hlo.graph import Module
from .hlo.sizes import SizeConstraint
from .hlo.specialize import with_inferred_sizes
from .hlo.stated_sizes import with_stated_sizes
from .hlo.verify import require_proven_sizes
from .optimizer.coverage import MOST_PLANS, decisions_about, is_open, uncovered
from .optimizer.licence import Ledger
from .optimizer.limit import need, not_found, note, within
from .optimizer.measure import measure
from .optimizer.passes.connect import Judged
from .optimizer.passes.encode import Encode, packings
from .optimizer.pipeline import Pipeline, blamed_on, connect_of, pipeline_for, with_connect
from .optimizer.shared import Shared
from .optimizer.size_ranges import PlanSizes, Range, choose
from .optimizer.tiles.nodes import KnownGroups
from .options import Options
from .programs import Made
from .runtime.bundle import MAIN
from .runtime.program import Program

FITTED = 4  # plans that are made for a limit before it is given up
Progress = Callable[[str], None]


class Lowered(NamedTuple):
    """An entry point of a program: as a bundle stores it, and after all passes; `own_notes`: of
    what the user has asked for, which `strict` does not refuse."""

    simple: Module
    fused: Module
    own_notes: Sequence[str] = ()
    decisions: Decisions | None = None  # about sizes that calls decide
    others: tuple[Lowered, ...] = ()  # for calls that guards leave out, and for those of ranges
    conditions: tuple[SizeConstraint, ...] = ()  # of a range, whose plan is tried before this one


class EntryLowering:
    """How the entry points of one compilation are lowered: for a backend, with a user's options.

    pack: makes the program of lowered entry points, where its memory has to be known.
    """

    def __init__(
        self,
        backend: Backend,
        options: Options,
        say: Progress,
        ledger: Ledger,
        pack: Callable[[Mapping[str, Lowered]], Made],
    ) -> None:
        self.backend, self.options, self.say, self.ledger = backend, options, say, ledger
        self.pack = pack
        self.alike: dict[str, str] = {}  # how weights lie that several entries read
        self.shared = Shared()  # by calls that code is tuned for
        self.groups = KnownGroups()
        self.inferred: dict[Module, Module] = {}  # with the sizes that follow

    def whole(self, module: Module) -> tuple[Lowered, Sequence[Range]]:
        """An entry point for all sizes, and the ranges of sizes that are worth plans of their own.
        What is lowered after it has its weights as this one has them, where that can be."""
        choice = self.choice(module) if self.options.size_plans > 1 else None
        one = self.lowered(module, None if choice is None else choice.hints)
        self.alike = {**packings(one.fused), **self.alike}
        return one, () if choice is None else choice.ranges

    def in_range(self, lowered: Lowered, range: Range) -> Lowered:  # noqa: A002 - the word for it
        """A lowered entry point for calls of a range of sizes alone: its simplified program, with
        what is known of those."""
        module = with_stated_sizes(lowered.simple, dict(range.bounds))
        made = self.lowered(module, range.hints)
        return made._replace(own_notes=(str(range),), conditions=range.conditions)

    def agreed(self, entries: Mapping[str, Lowered]) -> dict[str, Lowered]:
        """The entry points, in each of whose plans a weight lies as another one has it alone, where
        its kernels read that as well: so that it is stored once."""
        plans = [plan for one in entries.values() for plan in (one, *one.others)]
        if len(plans) == 1:
            return dict(entries)
        alike: dict[str, str] = {}
        for plan in plans:
            alike = {**packings(plan.fused), **alike}
        alike = {**alike, **self.alike}
        encode = Encode(lambda op: None, self.backend.shared_packing, alike)

        def agree(plan: Lowered) -> Lowered:
            with decided_by(plan.decisions):
                return plan._replace(fused=encode(plan.fused), others=(*map(agree, plan.others),))

        return {name: agree(one) for name, one in entries.items()}

    def lowered(self, module: Module, call: Mapping[str, int] | None = None) -> Lowered:
        """An entry point after all passes, and within the user's limit of memory. call: the sizes
        that its code is tuned for, where calls decide them; None: likely ones."""
        backend, options, say = self.backend, self.options, self.say
        if backend.open_sizes and is_open(module):
            module = self.with_inferred_sizes(module)
        with tuned(module, backend, call) as decisions:
            passes = self.pipeline(module, self.ledger)
            simple, fused = passes.run(
                module, on_pass=say, disable=options.disable, shared=self.shared
            )
        limit = options.memory_limit
        if limit is None or decisions is not None:
            return Lowered(simple, fused, (), decisions)

        def tried(fused: Module, notes: Sequence[str]) -> int:
            made = self.pack({MAIN: Lowered(simple, fused, notes)})
            return made.program.memory.allocated_bytes

        with blamed_on(options.disable):
            try:
                fused, notes = _within(limit, fused, backend, tried, say)
            except MemoryLimitError as error:  # kernels made for memory hide what is in them
                apart = pipeline_for(backend, options, Ledger(), spare=False, alike=self.alike)
                _, fused = apart.run(module, on_pass=say, disable=options.disable)
                fused, notes = _within(limit, fused, backend, tried, say, error)
        return Lowered(simple, fused, notes)

    def choice(self, module: Module) -> PlanSizes | None:
        """For which sizes plans are made, as is predicted to be fastest; None where no call decides
        any, or nothing predicts."""
        if self.backend.model is None or not (self.backend.open_sizes and is_open(module)):
            return None
        module = self.with_inferred_sizes(module)

        decisions = decisions_about(module)
        assert decisions is not None

        def judged(call: Mapping[str, int]) -> Sequence[Judged]:
            # What simplifies is left out of all later runs: the first one tells the ledger.
            ledger = self.ledger if call == decisions.likely else Ledger()
            with tuned(module, self.backend, call):
                passes = self.pipeline(module, ledger, rebuilds=False)
                connect = connect_of(passes)
                if connect is None:
                    return ()
                passes.run(
                    module, on_pass=self.say, disable=self.options.disable,
                    stop_after=connect.name, shared=self.shared,
                )  # fmt: skip
                return tuple(connect.judged.values())

        return choose(
            decisions.assumptions, decisions.likely, self.backend.model, judged,
            self.options.size_plans - 1,
        )  # fmt: skip

    def pipeline(self, module: Module, ledger: Ledger, rebuilds: bool = True) -> Pipeline:
        """All passes, for the likely call that is decided about. rebuilds: as for `Connect`."""
        passes = pipeline_for(
            self.backend, self.options, ledger, alike=self.alike, groups=self.groups
        )
        connect = connect_of(passes)
        if connect is None:
            return passes
        tilings = self.shared.tilings_of(module)
        return with_connect(passes, replace(connect, tilings=tilings, rebuilds=rebuilds))

    def with_inferred_sizes(self, module: Module) -> Module:
        """The module with the sizes that follow from others; the same one each time."""
        if module not in self.inferred:
            self.inferred[module] = with_inferred_sizes(module)
        return self.inferred[module]


@contextmanager
def tuned(
    module: Module, backend: Backend, call: Mapping[str, int] | None = None
) -> Iterator[Decisions | None]:
    """Inside, passes decide about the sizes that calls of the module decide. call: the sizes that
    code is tuned for; None: likely ones."""
    decisions = decisions_about(module, call) if backend.open_sizes else None
    names: tuple[str, ...] = ()
    if decisions is not None:
        require_proven_sizes(module)  # no code looks whether sizes are equal
        names = tuple(decisions.assumptions.symbols)
    with decided_by(decisions), codeable("", module.name or "the program", names):
        yield decisions


def hot_ranges(lowered: Mapping[str, Lowered], options: Options) -> dict[str, list[Range]]:
    """The sizes that a user has asked code for, by entry point; UserError where none has them."""
    found: dict[str, list[Range]] = {}
    for text, sizes in options.hot_sizes.items():
        known: dict[str, None] = {}
        used = False
        for name, one in lowered.items():
            symbols = {} if one.decisions is None else one.decisions.assumptions.symbols
            known.update(dict.fromkeys(symbols))
            if not sizes.keys() <= symbols.keys():
                continue
            for size, value in sizes.items():
                if not symbols[size].admits(value):
                    raise UserError(f"hot: {size} = {value}, but it must be {symbols[size]}")
            found.setdefault(name, []).append(Range({n: (v, v) for n, v in sizes.items()}))
            used = True
        if not used:
            raise UserError(
                f"hot: no entry point has all the sizes of {text}; open sizes are "
                f"{', '.join(known) or 'none'}"
            )
    return found


def left_out(lowered: Mapping[str, Lowered]) -> tuple[str, Mapping[str, int]] | None:
    """An entry point, and sizes that its code is not for; None where there are none. UserError
    where that is so of too many."""
    for name, one in lowered.items():
        if one.decisions is None:
            continue
        every = [one.decisions, *(o.decisions for o in one.others if not o.conditions)]
        call = uncovered(one.decisions.assumptions, [d.guards for d in every if d is not None])
        if call is not None and len(every) >= MOST_PLANS:
            guards = dict.fromkeys(guard for d in every if d is not None for guard in d.guards)
            raise UserError(
                f"{name}: no {MOST_PLANS} plans serve all sizes, such as {dict(call)}; narrow "
                f"their ranges (sizes=). They depend on {'; '.join(map(str, list(guards)[:8]))}"
            )
        if call is not None:
            return name, call
    return None


def check_limit(program: Program, lowered: Mapping[str, Lowered], limit: int) -> None:
    """MemoryLimitError where calls of the largest sizes need more than the user allows."""
    for name, one in lowered.items():
        entry = program.entry(name)
        needed = entry.memory.allocated_bytes
        if one.decisions is not None and needed > limit:
            raise not_found(limit, needed, _fitting(entry, limit))


def _fitting(program: Program, limit: int) -> list[str]:
    """For each size that calls decide the longest range of it, `batch=1..13`, whose calls stay
    within a limit while the other sizes are as large as they can be."""
    largest = {name: said.last or said.first for name, said in program.sizes.items()}
    found: list[str] = []
    for name, said in program.sizes.items():

        def fits(size: int, name: str = name) -> bool:
            try:
                return program.at(**{**largest, name: size}).memory.allocated_bytes <= limit
            except UserError:  # no call has these sizes
                return False

        values = range(said.first, largest[name] + 1, said.modulus)
        count = bisect_left(values, True, key=lambda size: not fits(size))
        if count:
            step = f":{said.modulus}" if said.modulus > 1 else ""
            found.append(f"{name}={values[0]}..{values[count - 1]}{step}")
    return found


def _within(
    limit: int,
    fused: Module,
    backend: Backend,
    tried: Callable[[Module, Sequence[str]], int],
    say: Progress,
    known: MemoryLimitError | None = None,
) -> tuple[Module, list[str]]:
    """The program in `limit` bytes of memory, with a note where it was changed for that;
    MemoryLimitError if it cannot be: `known` where other kernels, for which that was the error,
    need less. tried: what the program of a module allocates."""
    before = measure(fused, backend.in_tiles)
    beside = 0  # scratch, gaps between buffers, rest of a page: known once there is a plan
    allocated: list[int] = []
    while len(allocated) < FITTED:
        say("fit")
        try:
            fitted = within(fused, limit, lambda one: measure(one, backend.in_tiles), beside)
        except MemoryLimitError as error:
            raise min(known or error, error, key=lambda e: e.needed_bytes) from None
        notes = [note(fitted, before)] if fitted.moves else []
        allocated.append(tried(fitted.module, notes))
        if allocated[-1] <= limit:
            return fitted.module, notes
        beside = max(beside, allocated[-1] - need(fitted.measure).total)
    error = not_found(limit, min(allocated))
    raise min(known or error, error, key=lambda e: e.needed_bytes)
