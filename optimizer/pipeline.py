"""The list of all passes, and how it is run: with the levels checked on both sides of each.

`pipeline_for` gives the list that every compilation runs; whatever shows a program between two
passes takes it from there as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..hlo.errors import CompilerBug, GirihError, UnsupportedError, UserError
from ..hlo.graph import Module, Op, Region
from ..hlo.verify import Level, verify
from ..options import Options
from .kernels.choose import packing
from .library import library_of
from .licence import ASSUMES_FINITE, BITWISE, IGNORES_ZERO_SIGN, REASSOCIATES, Ledger, Licence
from .machine import Machine
from .passes import Pass
from .passes.activation_precision import ActivationPrecision
from .passes.approximate import Approximate
from .passes.channels_last import ChannelsLast
from .passes.communication import Communication
from .passes.connect import Connect
from .passes.dce import Dce
from .passes.decompose import Decompose
from .passes.encode import Encode
from .passes.expand import Expand
from .passes.externalize import Externalize
from .passes.fold_constants import FoldConstants
from .passes.fold_weights import FoldWeights
from .passes.fuse import Fuse
from .passes.inline import Inline
from .passes.kernel_epilogues import KernelEpilogues
from .passes.kernel_prologues import KernelPrologues
from .passes.kernels import Kernels
from .passes.legalize_quantized import LegalizeQuantized
from .passes.loops import Loops
from .passes.mask_bounded import MaskBounded
from .passes.matmul_precision import BFLOAT16, MatmulPrecision
from .passes.narrow import Narrow
from .passes.note_slow import NoteSlow
from .passes.one_device import OneDevice
from .passes.order import Order
from .passes.require_static import RequireStatic
from .passes.reroll import Reroll
from .passes.simplify import Simplify
from .passes.sink_reshapes import SinkReshapes
from .passes.sink_scales import SinkScales
from .passes.split_complex import SplitComplex
from .passes.stacks import Stacks
from .passes.undo_log import UndoLog
from .passes.unroll import Unroll
from .passes.use_references import UseReferences
from .rolled import each_function, is_rolled
from .shared import Reached, Shared
from .tiles.nodes import KnownGroups

if TYPE_CHECKING:
    from ..backends import Backend

NUMERICS: dict[str, Licence] = {
    "bitwise": BITWISE,
    "ignores-zero-sign": IGNORES_ZERO_SIGN,
    "reassociates": IGNORES_ZERO_SIGN | REASSOCIATES,
    "assumes-finite": IGNORES_ZERO_SIGN | REASSOCIATES | ASSUMES_FINITE,
}

# The stages that every compilation goes through first, each with the pass that ends it.
STAGES = {"simplify": "", "fuse": Fuse.name, "connect": KernelPrologues.name, "kernels": Order.name}


def simplify_pipeline(
    options: Options | None = None,
    ledger: Ledger | None = None,
    only_rules: Sequence[str] = (),
    without_rules: Sequence[str] = (),
    machine: Machine | None = None,
) -> tuple[Pass, ...]:
    """The passes from an imported module to the smallest equal one that fusion starts from.

    ledger: is told which rules fire where; only_rules, without_rules: names of rules.
    machine: what is known of collectives between processes.
    """
    options = options or Options()
    ledger = Ledger() if ledger is None else ledger
    simplify = Simplify(
        NUMERICS[options.numerics],
        frozenset(only_rules),
        frozenset(without_rules),
        options.fold_bytes,
        ledger,
    )
    shrink = (
        simplify,
        Narrow(ledger=ledger),
        FoldConstants(options.fold_bytes, ledger=ledger),
        Loops(ledger=ledger),
        simplify,  # constants that came from iotas make rules fire that could not before
        Externalize(),
        FoldWeights(ledger=ledger),
        MatmulPrecision(options.matmul_precision),  # weights are in their final form
        Dce(),
    )
    return (
        MaskBounded(ledger),
        RequireStatic(),
        LegalizeQuantized(),
        Inline(ledger),
        Communication(ledger, library_of(machine, REASSOCIATES in NUMERICS[options.numerics])),
        OneDevice(ledger),
        Decompose(ledger=ledger),
        Reroll(shrink),
        *shrink,
        Unroll(shrink),
    )


def lowering_pipeline(
    backend: Backend,
    options: Options,
    ledger: Ledger | None = None,
    spare: bool = True,
    alike: Mapping[str, str] | None = None,
    groups: KnownGroups | None = None,
) -> tuple[Pass, ...]:
    """The passes from the simplified program to one whose operations are kernels in their order.

    ledger: is told which operations may be computed approximately. spare: whether kernels may be
    made for the sake of memory. alike: as for `Encode`. groups: as for `Connect`.
    """
    ledger = Ledger() if ledger is None else ledger
    model, rounds = backend.model, REASSOCIATES in NUMERICS[options.numerics]
    split = (SplitComplex(),) if backend.splits_complex and rounds else ()
    kernels: list[Pass] = [
        SinkScales(rounds, in_place=model is not None and model.blocks is not None),
        SinkReshapes(),
        Fuse(),
    ]
    if options.activation_precision == BFLOAT16:
        kernels.append(ActivationPrecision())
    if model is not None and rounds:  # sums in tiles are sums in another order
        connect = Connect(
            model,
            choices=backend.choices,
            capabilities=backend.capabilities,
            finite=options.numerics == "assumes-finite",
            spare=spare,
            in_tiles=backend.in_tiles,
            groups=groups or KnownGroups(),
        )
        kernels.append(connect)
    kernels += [KernelEpilogues(), KernelPrologues()]
    if backend.formulas:
        kernels.append(Approximate(backend.formulas, NUMERICS[options.numerics], ledger))
    if backend.windows:
        kernels.append(Stacks(backend.windows))
    wanted, able = backend.packing, backend.capabilities
    if wanted is None and able is not None:
        wanted = partial(packing, capabilities=able)
    if wanted is not None and options.pack_weights:
        kernels.append(Encode(wanted, backend.shared_packing, alike or {}))
    # What is measured says itself how it is cut.
    shape = backend.shape if backend.choices is None else None
    if model is not None and (able is not None or shape is not None):
        kernels.append(Kernels(model, able, shape))
    if backend.choices is None:  # what is measured is measured for the kernel, not for a sample
        kernels = [Reroll(tuple(kernels)), *kernels, Unroll()]
    first = NoteSlow(backend.slow), ChannelsLast()
    return (*first, *split, *kernels, UndoLog(), Order(backend.in_tiles))


def pipeline_for(
    backend: Backend,
    options: Options,
    ledger: Ledger | None = None,
    spare: bool = True,
    alike: Mapping[str, str] | None = None,
    groups: KnownGroups | None = None,
) -> Pipeline:
    """All passes of a compilation. ledger: is told which rules fire where; a rule that needs more
    than the options allow is a CompilerBug in any case. spare, alike, groups: as for
    `lowering_pipeline`.
    """
    ledger = Ledger() if ledger is None else ledger
    ledger.allowed = NUMERICS[options.numerics]
    simplify = simplify_pipeline(options, ledger, machine=backend.model)
    references = UseReferences(backend.lacks), Expand(backend.expands), *simplify
    lower = lowering_pipeline(backend, options, ledger, spare, alike, groups)
    return Pipeline(simplify, references, lower)


@dataclass(frozen=True)
class Pipeline:
    """The passes of a compilation in three parts; a bundle stores the program after the first.

    simplify: to the smallest equal program; it knows no target.
    references: the first passes replace what the target cannot run; where that changed anything,
        the others simplify what came in.
    lower: to operations that are kernels.
    """

    simplify: tuple[Pass, ...]
    references: tuple[Pass, ...] = ()
    lower: tuple[Pass, ...] = ()

    @property
    def passes(self) -> tuple[Pass, ...]:
        """All of them, in order."""
        return (*self.simplify, *self.references, *self.lower)

    @property
    def stages(self) -> dict[str, int]:
        """How many passes lead to each of `STAGES`."""
        first = len(self.simplify) + len(self.references)
        lower = [step.name for step in self.lower]
        return {
            name: first + len(lower) - lower[::-1].index(end) if end else first
            for name, end in STAGES.items()
            if not end or end in lower
        }

    def run(
        self,
        module: Module,
        *,
        on_pass: Callable[[str], None] | None = None,
        disable: Sequence[str] = (),
        stop_after: str | None = None,
        dump: Path | None = None,
        check: bool = False,
        on_module: Callable[[str, Pass, Module, Module], None] | None = None,
        shared: Shared | None = None,
        since: str | None = None,
        on_stage: Callable[[str, Module], bool] | None = None,
    ) -> tuple[Module, Module]:
        """The program that a bundle stores, and the one after all passes.

        A program with meshes is stored with them, as it is before `one-device` takes them away, so
        that it can be compiled for other meshes later.

        disable: names of passes to leave out; "simplify:2" leaves out the second run only.
        stop_after: the pass after which to stop, "simplify" or "simplify:2".
        dump: a folder that gets the program's text after every pass that runs.
        check: verify the whole module after every pass, not its level alone.
        on_module: called after each pass with a name that means this run alone, the pass, and the
            module before and after it.
        shared: what runs of equal passes for other likely calls have found, and this one adds to.
        since: one of `STAGES`, which the module has behind it already.
        on_stage: called at the end of each of `STAGES` with its name and the module; False stops.
        """
        first, second = len(self.simplify), len(self.simplify) + len(self.references)
        simple = simplified = module
        numbered = _numbered(self.passes, disable, stop_after)
        stages = {number: name for name, number in self.stages.items()}
        held: Level | None = None  # the level at which the module is known to be
        source, connect = module, _place_of_connect(self.passes)
        begin = self.stages[since] if since else 0
        known = None if shared is None else shared.reached(source)
        if known is not None:
            number, simple, simplified, module, held, _ = known
            begin = number + 1
        with blamed_on(disable):
            for number, (step, names) in list(enumerate(numbered))[begin:]:
                replaces = isinstance(step, (UseReferences, Expand))
                needless = first < number < second and module is simplified and not replaces
                if names.isdisjoint(disable) and not needless:
                    if on_pass:
                        on_pass(step.name)
                    before, module = module, _run(module, step, check, held)
                    held = step.takes if module is before else step.gives
                    if on_module:
                        on_module(max(names, key=len), step, before, module)
                    if dump is not None:
                        dump.mkdir(parents=True, exist_ok=True)
                        (dump / f"{number:02d}-{step.name}.txt").write_text(str(module))
                if number < first:
                    simplified = module
                    if module.meshes or not simple.meshes:
                        simple = module
                if shared is not None:
                    reached = Reached(number, simple, simplified, module, held)
                    shared.keep(source, reached, second, connect)
                name = stages.get(number + 1)
                if stop_after in names or name and on_stage and not on_stage(name, module):
                    break
        return simple, module


def _place_of_connect(passes: Sequence[Pass]) -> int:
    """The number of the pass that asks for the likely call of a program first of all; that behind
    the last one where it is not among them."""
    numbers = (n for n, one in enumerate(passes) if isinstance(one, Connect))
    return next(numbers, len(passes))


def connect_of(passes: Pipeline) -> Connect | None:
    """The pass that judges which kernels become one, if it is among them."""
    return next((one for one in passes.lower if isinstance(one, Connect)), None)


def with_connect(passes: Pipeline, connect: Connect) -> Pipeline:
    """The passes with another one in the place of the one that judges which kernels become one."""
    lower = tuple(connect if isinstance(one, Connect) else one for one in passes.lower)
    return replace(passes, lower=lower)


@contextmanager
def blamed_on(disable: Sequence[str]) -> Iterator[None]:
    """What fails inside is an error of the user's that names the passes which are left out."""
    try:
        yield
    except (GirihError, ValueError) as error:
        if not disable:
            raise
        kind = UnsupportedError if isinstance(error, UnsupportedError) else UserError
        raise kind(
            f"{error}\ndisable has left out {', '.join(disable)}, which this program may need"
        ) from error


def run_pipeline(module: Module, passes: Sequence[Pass], **settings: Any) -> Module:
    """The module after these passes; settings are those of `Pipeline.run`."""
    return Pipeline(tuple(passes)).run(module, **settings)[1]


def _numbered(
    passes: Sequence[Pass], disable: Sequence[str], stop_after: str | None
) -> list[tuple[Pass, set[str]]]:
    """Each pass with the names that mean it; UserError if a wanted name means none."""
    seen: dict[str, int] = {}
    found = []
    for step in passes:
        seen[step.name] = seen.get(step.name, 0) + 1
        found.append((step, {step.name, f"{step.name}:{seen[step.name]}"}))
    wanted = [(name, " to disable") for name in disable]
    wanted += [(stop_after, "")] if stop_after else []
    for name, use in wanted:
        if not any(name in names for _, names in found):
            raise UserError(f"there is no pass '{name}'{use}; there are {', '.join(seen)}")
    return found


def _run(module: Module, step: Pass, check: bool, held: Level | None) -> Module:
    if held is not step.takes:
        _at_level(module, step.takes, f"before pass '{step.name}'")
    try:
        alone = isinstance(step, Unroll) or not is_rolled(module)
        after = step(module) if alone else each_function(step.name, step, module)
    except GirihError as error:
        raise type(error)(f"{error}\nin pass '{step.name}'") if _plain(error) else error from None
    if after is module:
        return module
    _at_level(after, step.gives, f"after pass '{step.name}'")
    if check:
        try:
            verify(after, step.gives)
        except UserError as error:
            raise CompilerBug(f"{error}\nafter pass '{step.name}'") from error
    return after


def _plain(error: GirihError) -> bool:
    return type(error).__init__ is Exception.__init__ or type(error) in (UserError, CompilerBug)


def _at_level(module: Module, level: Level, place: str) -> None:
    if all(map(level.holds, module.definitions)):  # those inside of kernels as well
        return
    for function in module.functions.values():
        for op in _programs(function.body):
            if not level.holds(op.definition):
                raise CompilerBug(f"{op.name} is not legal at level {level.name}, {place}")


def _programs(region: Region) -> Iterator[Op]:
    """Every operation that is not part of a kernel."""
    for op in region.ops:
        yield op
        for body in () if op.definition.sealed else op.regions:
            yield from _programs(body)
