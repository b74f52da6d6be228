"""The stages of a compilation as texts, and the way on from the text of each.

A program goes through `import` and the stages of `optimizer/pipeline.py`; each of its kernels goes
through those that the backend states (`Backend.stages`); then there is a `plan`. What runs between
two stages is what a compilation runs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import text_format

from .backends import Backend
from .backends.interface import KERNELS, Scheduled
from .compilation import scheduled, take_schedule
from .hlo.deciding import codeable, decided_by
from .hlo.errors import UnsupportedError, UserError
from .hlo.graph import Module, Op, symbols_in
from .hlo.parse import parse_module
from .hlo.specialize import with_inferred_sizes
from .hlo.text import print_module
from .hlo.verify import verify
from .lowering import Lowered, tuned
from .optimizer.coverage import is_open
from .optimizer.machine import Machine
from .optimizer.pipeline import STAGES, pipeline_for
from .optimizer.places import Edge, edges
from .optimizer.plan import KernelEntry, KernelFacts, Planner, headline, kernel_ops
from .optimizer.schedule import Schedule, schedule
from .options import Options

IMPORT, PLAN = "import", "plan"
_KERNEL = re.compile(r"^// kernel (\S+)\n", re.MULTILINE)

Kernels = Mapping[str, str]  # texts by kernels' names
Text = str | Kernels


def names(backend: Backend) -> tuple[str, ...]:
    """All stages, in order."""
    return (IMPORT, *STAGES, *backend.stages, PLAN)


def written(text: Text) -> str:
    """One text of a stage: a line `// kernel NAME` before each kernel's."""
    if isinstance(text, str):
        return text
    return "".join(
        f"// kernel {name}\n{one if one.endswith(chr(10)) else one + chr(10)}"
        for name, one in text.items()
    )


def read(text: str, stage: str, backend: Backend) -> Module | Kernels:
    """What a stage's text says: a verified module, or the kernels' texts. UserError where it says
    something else, or where nothing goes on from the stage."""
    if stage in (IMPORT, *STAGES):
        module = parse_module(text)
        verify(module)
        return module
    readable = [name for name in backend.stages if _is_taken(name, backend)]
    if stage not in readable:
        raise UserError(
            f"nothing goes on from the text of stage '{stage}' on target {backend.name}; from that "
            f"of {', '.join((IMPORT, *STAGES, *readable))} it does"
        )
    found = _KERNEL.split(text)
    if len(found) == 1:
        return {"kernel": text}
    return dict(zip(found[1::2], found[2::2], strict=True))


def _is_taken(name: str, backend: Backend) -> bool:
    """Whether a stage goes on from the text of that one."""
    return any(stage.takes == name for stage in backend.stages.values())


@dataclass(frozen=True)
class Stages:
    """The stages of programs for a backend, with a user's options.

    origins: whether modules say where operations come from, as plans do. kernel: the only one whose
    texts are wanted.
    """

    backend: Backend
    options: Options
    origins: bool = False
    kernel: str | None = None

    def texts(
        self, given: Module | Kernels, wanted: Collection[str], since: str = IMPORT
    ) -> dict[str, Text]:
        """The texts of the wanted stages, in order. given: what the stage `since` gives. UserError
        for one that is not behind it."""
        order = names(self.backend)
        for name in wanted:
            self._require(name, since)
        if not isinstance(given, Module):
            made = {name: self._of_kernel(wanted, {since: text}) for name, text in given.items()}
            return {one: {name: made[name][one] for name in made} for one in order if one in wanted}
        if self.options.memory_limit is not None and not {*wanted} <= {IMPORT, *STAGES} - {KERNELS}:
            raise UserError("max_memory changes kernels when all is known of them: leave it out")
        found: dict[str, Text] = {}
        if since == IMPORT and IMPORT in wanted:
            found[IMPORT] = self._printed(given)
        if any(name != IMPORT for name in wanted):
            found |= self._behind(given, wanted, since)
        return found

    def edges(self, module: Module, since: str = IMPORT) -> tuple[list[Edge], Machine]:
        """The edges of a program's plan and of its kernels, and the machine that prices them.
        module: as of `texts`. UserError where the target states none."""
        machine = self.backend.model
        if machine is None:
            raise UserError(f"target {self.backend.name} has no machine to price places by")
        found = self._scheduled(self._passed(module, since))
        with decided_by(found[0].decisions):
            kernels = {entry.name: entry.op for entry in self._entries(found[0])}
            return edges(self._plan(found), kernels), machine

    def after(self, module: Module, name: str, since: str = IMPORT) -> str:
        """The text of a program behind a pass, "simplify:2" for its second run. module: what the
        stage `since` gives. UserError where there is no such pass."""
        passes = dict.fromkeys(one.name for one in pipeline_for(self.backend, self.options).passes)
        if name.partition(":")[0] not in passes:
            raise UserError(
                f"there is no stage '{name}' on target {self.backend.name}: there are "
                f"{', '.join(names(self.backend))}, and the passes {', '.join(passes)}"
            )
        return self._printed(self._passed(module, since, stop_after=name).fused)

    def behind(self, since: str) -> list[str]:
        """The stages that follow from the text of one; all, where that is the first."""
        order, stages = names(self.backend), self.backend.stages
        first = order.index(since) + (since != IMPORT)
        if since not in stages:
            return [*order[first:]]
        found = [since]
        found += [name for name in order[first:] if name in stages and stages[name].takes in found]
        return found[1:]

    def _require(self, name: str, since: str) -> None:
        """UserError where the stage is not behind `since`."""
        if name not in self.behind(since):
            raise UserError(f"stage '{name}' does not follow from the text of stage '{since}'")

    def _printed(self, module: Module) -> str:
        return print_module(module, self.origins)

    def _passed(self, module: Module, since: str, **settings: Any) -> Lowered:
        """The program behind all passes; settings are those of `Pipeline.run`."""
        known = None if since == IMPORT else since
        passes = pipeline_for(self.backend, self.options)
        if known is None and self.backend.open_sizes and is_open(module):
            module = with_inferred_sizes(module)
        with tuned(module, self.backend) as decisions:
            simple, fused = passes.run(
                module, disable=self.options.disable, since=known, **settings
            )  # fmt: skip
        return Lowered(simple, fused, (), decisions)

    def _behind(self, module: Module, wanted: Collection[str], since: str) -> dict[str, Text]:
        """The texts of stages behind that of a module."""
        backend, found = self.backend, dict[str, Text]()
        whole = not {*wanted} <= {IMPORT, *STAGES}
        last = KERNELS if whole else [name for name in STAGES if name in wanted][-1]

        def reached(name: str, module: Module) -> bool:
            if name in wanted:
                found[name] = self._printed(module)
            return name != last

        made = self._passed(module, since, on_stage=reached)
        if not whole:
            return found
        made_steps = self._scheduled(made)
        if any(name in backend.stages for name in wanted):
            found |= self._kernels(made_steps[0], wanted)
        if PLAN in wanted:
            found[PLAN] = text_format.MessageToString(self._plan(made_steps))
        return found

    def _scheduled(self, made: Lowered) -> Scheduled:
        """The steps of a program behind all passes, where choices of its kernels are made."""
        told: tuple[str, ...] = ()
        if self.backend.choices is not None:
            self.backend.choices.kernels(schedule(made.fused))
            told = self.backend.choices.tuner.notes
        return scheduled(made.fused, made.decisions, self.backend, told)

    def _plan(self, made: Scheduled) -> Any:
        plan = self.backend.build([made])[0][0]
        take_schedule(plan, self.options)
        return plan

    def _kernels(self, steps: Schedule, wanted: Collection[str]) -> Mapping[str, Kernels]:
        """The texts of each distinct kernel of a schedule."""
        found: dict[str, dict[str, str]] = {n: {} for n in self.backend.stages if n in wanted}
        missing: dict[str, None] = {}
        for entry in self._entries(steps):
            symbols = () if steps.decisions is None else symbols_in(entry.op)
            what = headline(kernel_ops(entry.op))
            try:
                with decided_by(steps.decisions), codeable(entry.op.place, what, symbols):
                    texts = self._of_kernel(found, {KERNELS: entry.op})
            except UnsupportedError as error:
                missing[str(error)] = None
                continue
            for name, text in texts.items():
                found[name][entry.name] = text
        if missing:
            raise UnsupportedError("\n".join(missing))
        return found

    def _entries(self, steps: Schedule) -> list[KernelEntry]:
        planner = Planner(steps, self.backend.name, lambda text, op: KernelFacts(1))
        with decided_by(steps.decisions):
            planner.collect()
        entries = [*planner.kernels.values()]
        chosen = [entry for entry in entries if self.kernel in (None, entry.name)]
        if not chosen and entries:
            known = ", ".join(entry.name for entry in entries)
            raise UserError(f"there is no kernel '{self.kernel}'; there are {known}")
        return chosen

    def _of_kernel(self, wanted: Collection[str], known: dict[str, Any]) -> dict[str, str]:
        """The wanted texts of one kernel, of which that of one stage is known."""

        def text(name: str) -> Op | str:
            if name not in known:
                stage = self.backend.stages[name]
                known[name] = stage.run(text(stage.takes))
            return known[name]

        return {name: str(text(name)) for name in self.backend.stages if name in wanted}
