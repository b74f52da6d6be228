"""All checks of a first run, in their order, on one device."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from girih.backends.nvidia.simulator.driver import SimulatedGpu
from girih.backends.nvidia.target import ARCHITECTURES, NvidiaTarget, target
from girih.runtime.devices.architectures import target_for
from girih.runtime.devices.driver import OutOfMemory

from . import atoms, calibration, kernels, prepared, programs, speeds, sweeps
from .trial import Array, Ready, Trial, error, made, run

Facts = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """`run` gives facts, or raises; `prepare` makes what a run takes from a folder."""

    name: str
    group: str
    run: Callable[[], Facts]
    prepare: Callable[[prepared.Folder], None] | None = None


class Bench:
    """A device, and the checks that it can run, by name. `dry`: through the simulator, in a small
    form what is large, unless checks are only prepared."""

    def __init__(
        self, dry: bool, architecture: str, folder: str | None = None, preparing: bool = False
    ) -> None:
        self.dry, self.small = dry, dry and not preparing
        if dry:
            name = architecture
        else:
            from girih.runtime.devices.cuda import find_gpus

            self.device: Any = find_gpus()[0]
            name = target_for(self.device.capability).partition(":")[2]
            if name not in ARCHITECTURES:  # a newer one of the same family runs older PTX
                name = "sm_80"
        self.target: NvidiaTarget = target(name)
        if dry:
            self.device = SimulatedGpu(self.target.architecture, OutOfMemory, "eager")
        self.model = SimulatedGpu(self.target.architecture, OutOfMemory, "lazy", 1)
        self.sources = prepared.sources()
        self.folder = None if folder is None else prepared.Folder.open(Path(folder), name)
        self.checks = {check.name: check for check in self._all()}

    def _all(self) -> Iterator[Check]:
        architecture = self.target.architecture
        for name, make in atoms.atoms(self.target):
            yield self._of_trials(name, "atom", lambda make=make: [("", make(self.target))])
        for name, make in kernels.everything(self.target):
            yield self._of_trials(name, "kernel", lambda make=make: make(self.target))
        yield from self._speeds()
        for name, measure in calibration.everything(self.device, architecture.multiprocessors):
            yield Check(name, "calibration", measure)
        if architecture.warpgroups:
            for name, variants in sweeps.everything(self.small):
                yield Check(
                    name, "sweep",
                    lambda n=name, v=variants: sweeps.measure(
                        self.device, self._kept(n) or v(self.target)
                    ),
                    lambda folder, n=name, v=variants: folder.put(n, v(self.target)),
                )  # fmt: skip
        family = "ptx-sim" if self.dry else "nvidia"
        source = programs.Source(f"{family}:{architecture.name}", self.folder)
        for name in programs.PROGRAMS:
            if self.small and name in programs.SLOW:
                continue
            label = f"program: {name}"
            yield Check(
                label, "program", lambda n=name: {"error": programs.called(n, source)},
                lambda folder, n=name: programs.prepare(n, architecture.name, folder),
            )  # fmt: skip
        for name, check in programs.others(not self.dry):
            group = name.partition(":")[0]
            yield Check(name, group, lambda check=check: {"error": check(source)})

    def _speeds(self) -> Iterator[Check]:
        name = self.target.architecture.name
        clock = speeds.Speeds(name, self.dry)
        yield Check("speed: peaks", "speed", clock.start)
        for label, case, small in speeds.SPEEDS:

            def measure(label: str = label, case: Any = small if self.dry else case) -> Facts:
                folder = None if self.dry else self.folder
                return clock.measure(case(), folder and folder.bundle(label))

            def prepare(folder: prepared.Folder, label: str = label, case: Any = case) -> None:
                speeds.prepare(case(), name, folder.file(label, ".girih"))
                folder.put(label, None)

            yield Check(label, "speed", measure, prepare)

    def _of_trials(
        self, name: str, group: str, trials: Callable[[], Iterator[tuple[str, Trial]] | Any]
    ) -> Check:
        """Kernels on the device beside what they have to give, and beside the simulator."""

        def ready(with_cubin: bool) -> Iterator[Ready]:
            for label, trial in trials():
                one = made(label, trial, self.target, with_cubin)
                yield replace(one, modelled=run(self.model, one))

        def check() -> Facts:
            return self.compared(self.folder.get(name) if self.folder else ready(False))

        return Check(name, group, check, lambda folder: folder.put(name, [*ready(True)]))

    def _kept(self, name: str) -> Any:
        """What was prepared for a check that runs in another size when dry."""
        return None if self.folder is None or self.dry else self.folder.get(name)

    def compared(self, trials: Any) -> Facts:
        """The worst error of ready trials."""
        worst, apart, count = 0.0, 0.0, 0
        for one in trials:
            count += 1
            found = run(self.device, one)
            off = error(found, one.wanted)
            between = error(found, one.modelled)
            worst, apart = max(worst, off), max(apart, between)
            if not off <= one.tolerance:
                place = f"{one.label}: " if one.label else ""
                said = f"{place}off by {off:.2e} of the largest number, the simulator by "
                said += f"{error(one.modelled, one.wanted):.2e}; {_where(found, one.wanted)}"
                return {"good": False, "reason": said, "error": off}
        return {"error": worst, "beside_simulator": apart, "kernels": count}

    def check(self, name: str) -> Facts:
        """The facts of one check; a failure of any kind is one of them."""
        check = self.checks[name]
        started = time.monotonic()
        try:
            found = {"good": True, **check.run()}
        except Exception as error:  # noqa: BLE001  # the next checks shall run
            lines = str(error).strip().splitlines() or [""]
            said = f"{type(error).__name__}: {' '.join(lines[:3])}"[:600]
            frame = traceback.extract_tb(error.__traceback__)[-1]
            known = isinstance(error, (programs.Wrong, prepared.Missing, ImportError))
            found = {"good": False, "reason": said, "broken": not known}
            found["at"] = f"{Path(frame.filename).name}:{frame.lineno}"
            if isinstance(error, ImportError) and not (error.name or "").startswith("girih"):
                found = {"unavailable": said}
        return {
            "name": name, "group": check.group, **found,
            "seconds": round(time.monotonic() - started, 2),
        }  # fmt: skip


def _where(found: Sequence[Array], wanted: Sequence[Array]) -> str:
    """The first place where two lists of arrays differ much."""
    for number, (got, right) in enumerate(zip(found, wanted, strict=True)):
        a, b = np.asarray(got, np.complex128), np.asarray(right, np.complex128)
        scale = np.abs(b[np.isfinite(b)]).max(initial=1e-30)
        apart = ~(np.abs(a - b) <= 1e-2 * scale) & ~(np.isnan(a) & np.isnan(b)) & (a != b)
        if apart.any():
            place = tuple(int(i) for i in np.argwhere(apart)[0])
            count = int(apart.sum())
            return (
                f"result {number}: {count} of {a.size} elements, first {list(place)}: "
                f"{got[place]} instead of {right[place]}"
            )
    return "all a little"
