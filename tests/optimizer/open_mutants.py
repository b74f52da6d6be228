"""Mutants of programs with symbols: is what is wrong with them seen, and do they end no process?

A mutant of a plan is what a mistake of the compiler would make: a guard is missing, the last tile
is left out, an extent that a kernel reads is one off, a buffer is placed without regard to another
one. It is caught where a call is refused, gives other numbers or ends its process. A mutant of a
program has something else about sizes in its text; it is refused, or right. Each has a process of
its own.
"""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import girih
from girih.hlo.errors import GirihError
from girih.hlo.parse import parse_module
from girih.hlo.text import print_module
from girih.hlo.verify import require_proven_sizes, verify
from girih.runtime.parts import copied_parts
from girih.specs.generated import plan_pb2
from girih.tests.fuzz.harness import in_child
from girih.tests.fuzz.mutate import text as mutated_text

from .test_random_open_programs import OpenProgram, apart, open_program

SECONDS = 30  # of a mutant
MORE = 40  # sizes at which it is looked whether a mutant changes anything
OPTIONS = girih.Options(cache="off", numerics="bitwise", threads=1)
SAME = "same"


class Mutant(NamedTuple):
    """kind: what is wrong. found: at the program's own sizes. effect: at many more, where nothing
    was found at these."""

    kind: str
    found: str
    effect: str = ""

    @property
    def is_caught(self) -> bool:
        return self.found != SAME

    @property
    def is_idle(self) -> bool:
        return self.found == self.effect == SAME


# Of plans.


def mutants_of_plan(seed: int) -> Iterator[Mutant]:
    """Mutants of the plan that a random program becomes, one of each kind that it has."""
    chance = random.Random(seed)
    made = open_program(chance, 0)
    require_proven_sizes(made.module)
    try:
        program = girih.compile(made.module, options=OPTIONS)
    except girih.UserError:
        return  # no code for its operations yet
    own = made.calls(made.sizes, chance)
    for kind, mutate in KINDS.items():
        plan = plan_pb2.Plan.FromString(program.parts.variants[program.target].plan)
        if not mutate(plan, chance):
            continue
        other = with_plan(program, plan)
        found = in_own_process(lambda other=other: difference(other, own))
        effect = ""
        if found == SAME:
            more = made.calls([made.drawn(chance) for _ in range(MORE)], chance)
            effect = in_own_process(lambda other=other, more=more: difference(other, more))
        yield Mutant(kind, found, effect)


def with_plan(program: Any, plan: plan_pb2.Plan) -> Callable[[], Any]:
    """What makes the same program with another plan."""
    parts, target = program.parts, program.target
    variant = replace(parts.variants[target], plan=plan.SerializeToString())
    return lambda: program.with_parts(copied_parts(parts, variants={target: variant}))


def difference(make: Callable[[], Any], calls: Sequence[tuple[Any, Any]]) -> str:
    """What is different in the results of calls, given with the right ones."""
    try:
        program = make()
        for given, wanted in calls:
            if what := apart(program.call_flat(given), wanted):
                return what
    except GirihError:
        return "refused"
    return SAME


def _guard(plan: plan_pb2.Plan, chance: random.Random) -> bool:
    """One of the conditions under which a plan is right is missing."""
    plans = [one for one in (plan, *plan.others) if one.guards]
    if plans:
        one = chance.choice(plans)
        del one.guards[chance.randrange(len(one.guards))]
    return bool(plans)


_CEILING = re.compile(r"\((.+) \+ (\d+)\)//(\d+)")


def _tiles(plan: plan_pb2.Plan, chance: random.Random) -> bool:
    """The number of a step's tiles is rounded down, or one too small."""
    runs = [s.run for s in plan.steps if s.WhichOneof("action") == "run" and s.run.tiles_formula]
    if runs:
        run = chance.choice(runs)
        old = plan.formulas[run.tiles_formula - 1]
        ceiling = _CEILING.fullmatch(old)
        if ceiling is not None and int(ceiling[2]) + 1 == int(ceiling[3]):
            plan.formulas.append(f"({ceiling[1]})//{ceiling[3]}")
        else:
            plan.formulas.append(f"{old} - 1")
        run.tiles_formula = len(plan.formulas)
    return bool(runs)


def _extent(plan: plan_pb2.Plan, chance: random.Random) -> bool:
    """A size that a kernel reads is one too small or too large."""
    runs = [s.run for s in plan.steps if s.WhichOneof("action") == "run" and s.run.sizes]
    if runs:
        run = chance.choice(runs)
        place = chance.randrange(len(run.sizes))
        plan.formulas.append(f"{plan.formulas[run.sizes[place]]} {chance.choice('+-')} 1")
        run.sizes[place] = len(plan.formulas) - 1
    return bool(runs)


def _place(plan: plan_pb2.Plan, chance: random.Random) -> bool:
    """A buffer does not lie above one that it must not overlap."""
    buffers = [buffer for buffer in plan.buffers if buffer.above]
    if buffers:
        buffer = chance.choice(buffers)
        del buffer.above[chance.randrange(len(buffer.above))]
    return bool(buffers)


KINDS = {"guard": _guard, "tiles": _tiles, "extent": _extent, "place": _place}


# Of programs.


def mutant_of_program(seed: int) -> str:
    """What becomes of a random program with something else in its text: "refused" or "same", or
    what is wrong."""
    chance = random.Random(seed)
    module = open_program(chance).module
    text = print_module(module)
    mutant = text
    for _ in range(100):
        mutant = chance.choice(_CHANGES)(chance, text)
        if mutant != text:
            break
    return in_own_process(lambda: _outcome(mutant, chance))


def _outcome(text: str, chance: random.Random) -> str:
    try:
        module = parse_module(text)
        verify(module)
        require_proven_sizes(module)
        program = girih.compile(module, options=OPTIONS)
    except GirihError:
        return "refused"
    made = OpenProgram(module, [])
    for _ in range(5):
        sizes = {name: chance.randint(s.first, min(s.last or s.first, s.first + 20))
                 for name, s in module.symbols.items()}  # fmt: skip
        try:
            ((given, wanted),) = made.calls([sizes], chance)
        except (GirihError, ValueError):  # sizes that the mutant's constraints leave out
            continue
        try:
            got = program.call_flat(given)
        except GirihError:
            return "refused"
        if what := apart(got, wanted):
            return f"{what} at {sizes}"
    return SAME


_DIMS = re.compile(r"(?<=\[)[^\[\]\"]+(?=\])")
_RANGE = re.compile(r"(?<=^  symbol )(\w+) (\d+) (\d+)", re.MULTILINE)


def _size(chance: random.Random, text: str) -> str:
    """One size in the text is another one, or one off."""
    places = [found for found in _DIMS.finditer(text) if re.search(r"[a-z]", found[0])]
    if not places:
        return text
    place = chance.choice(places)
    dims = re.split(r",\s*(?![^(]*\))", place[0])
    at = chance.randrange(len(dims))
    others = [d for found in places for d in re.split(r",\s*(?![^(]*\))", found[0])]
    dims[at] = chance.choice((chance.choice(others), f"{dims[at]} + 1", f"{dims[at]} - 1", "3"))
    return text[: place.start()] + ",".join(dims) + text[place.end() :]


def _range(chance: random.Random, text: str) -> str:
    """A symbol may be something else."""
    found = chance.choice([*_RANGE.finditer(text)])
    first, last = int(found[2]), int(found[3])
    first, last = chance.choice(
        ((0, last), (first, last + 1), (first, 10 * last), (last, first), (first, 1 << 62), (2, 2))
    )
    return text[: found.start()] + f"{found[1]} {first} {last}" + text[found.end() :]


def _tokens(chance: random.Random, text: str) -> str:
    return mutated_text(chance, text.encode(), [text.encode()]).decode("utf-8", "replace")


_CHANGES = (_size, _size, _size, _range, _tokens)


def in_own_process(work: Callable[[], str]) -> str:
    """What `work` gives; what ended its process, where it did not."""

    def inside(tell: Callable[[Any], None]) -> None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        with np.errstate(all="ignore"):
            try:
                tell(work())
            except Exception as error:  # noqa: BLE001 - told
                tell(f"raises {type(error).__name__}: {error}")

    told, died, _ = in_child(inside)
    if told:
        return str(told[-1])
    return f"dies of {signal.Signals(died).name}" if died > 0 else f"ends with {-died}"
