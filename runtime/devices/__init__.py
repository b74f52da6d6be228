"""Targets that a program can run on, each in a module of its own that is imported when needed.

In: a plan, an image and weights. Out: a `Device`, whose contexts run calls. Imported by `cli`,
`girih`, `runtime`.
"""

from __future__ import annotations

import functools
import importlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...hlo.errors import UserError
from ..distributed.launch import local_rank

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

# Family of targets -> where its variant class is; a target is "family" or "family:architecture".
TARGETS = {
    "cpu": ("cpu", "CpuVariant"),
    "nvidia": ("nvidia", "NvidiaVariant"),
    "null": ("null", "NullVariant"),
}
# Families whose plans steer machine code: even a plan without an image is native there.
NATIVE = ("cpu", "nvidia")
GROUP = "girih.devices"  # of entry points: other packages' families, each with a variant class


def known_families() -> tuple[str, ...]:
    """The families of targets that can run here, those of other packages last."""
    return (*TARGETS, *_installed())


def is_native(target: str) -> bool:
    """Whether plans of a target steer machine code, which a stranger's may not without leave: those
    of devices that other packages bring always do."""
    return family(target) in NATIVE or family(target) not in TARGETS


@functools.cache
def _installed() -> Mapping[str, Any]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in TARGETS}


def _variant_class(target: str) -> tuple[Any, Any]:
    """The module of a target's devices, and the class that opens a plan on one; UserError if none
    is here."""
    name = family(target)
    if name in TARGETS:
        module_name, variant = TARGETS[name]
        module = importlib.import_module(f".{module_name}", __name__)
        return module, getattr(module, variant)
    entry = _installed().get(name)
    if entry is None:
        raise UserError(
            f"this girih runs the targets {', '.join(known_families())}; the program is for "
            f"{target!r}"
        )
    try:
        opened = entry.load()
    except Exception as error:
        raise UserError(
            f"the devices of target {name}, {entry.value}, cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    return importlib.import_module(opened.__module__), opened


def family(target: str) -> str:
    """The family of a target: "nvidia" of "nvidia:sm_90a", "cpu" of "cpu@data=2"."""
    return target.partition("@")[0].partition(":")[0]


class Device(NamedTuple):
    """A plan, its code and weights, ready to run; shared by all threads.

    context() makes what one call at a time needs: arena, scratch, tables. run(context, inputs,
    outputs, profile) reads `inputs` and fills `outputs`, all C-contiguous and of the plan's types,
    and returns the events of a profiled call. bind(context, inputs, outputs) gives a function that
    does the same on the same arrays each time.

    A device with memory of its own never writes the arrays that it reads. It has borrow(value): an
    array of another library in that memory, to be passed for an array; run_on_device(context,
    inputs, gives, begin, log, saved): the results, of these shapes and types, in that memory;
    begin() is called when nothing is left to be allocated, before a kernel starts; and log(gives):
    memory for what the plan has behind these results (`Undo.saved` of it).
    """

    context: Callable[[], Any]
    run: Callable[[Any, Sequence[Array], Sequence[Array], bool], Sequence[Any]]
    bind: Callable[[Any, Sequence[Array], Sequence[Array]], Callable[[], Any]]
    borrow: Callable[[Any], Any] | None = None
    run_on_device: Callable[..., list[Any]] | None = None
    log: Callable[[Any], Any] | None = None
    workers: int = 1  # that have scratch of their own
    context_bytes: int = 0  # that a context allocates: arena and scratch, in the device's units
    padding_bytes: int = 0  # between weights
    received: Callable[[], dict[str, int]] = dict  # bytes from other processes, by operation
    events: Callable[[], dict[str, int]] = dict  # what it was asked for, by name
    at: Callable[[Sequence[int], Sequence[int], int], Device] | None = None
    """The same plan for other sizes, `CpuVariant.at`; None where one is opened for each."""
    contexts: deque[Any] | None = None
    """Contexts without a call, of which calls of all sizes make use; None where each size has its
    own."""

    @property
    def has_memory(self) -> bool:
        """Whether arrays of the host are copied to it and back."""
        return self.borrow is not None


def check_machine(plan: Any) -> None:
    """UserError if this machine cannot run the plan's code: another processor, missing features."""
    if family(plan.target) == "cpu":
        importlib.import_module(".cpu", __name__).check_machine(plan)


def open_device(
    plan: Any,
    image: bytes | memoryview,
    weights: Mapping[str, Array],
    threads: int | None,
    pin: bool = False,
    cubins: Mapping[str, Any] | None = None,
    driver: Any = None,
    facts: Mapping[str, bytes] | None = None,
    comm_timeout: float | None = None,
    shared: dict[str, Any] | None = None,
    sizes: Sequence[int] = (),
    beside: Sequence[Any] = (),
) -> Device:
    """The plan on this machine. What it cannot run is opened as well, to be saved: then the first
    call is a UserError.

    `driver`: the GPU of a plan for one; None looks for it at the first call. `cubins`: machine code
    of the image by architecture. facts, comm_timeout: of several processes (`CpuVariant`). shared:
    what plans of one image and of the same weights have in memory together; one at a time is opened
    with it. sizes, beside: where calls decide sizes (`CpuVariant`).
    """
    shared = {} if shared is None else shared
    name = family(plan.target)
    if name not in known_families():
        return _refusing(functools.partial(_variant_class, plan.target))
    module, variant = _variant_class(plan.target)
    if name == "nvidia":
        find = functools.partial(_own_gpu, bool(plan.processes))
        find = find if driver is None else lambda: driver
        opened = module.NvidiaVariant(
            plan, image, weights, cubins or {}, find, shared, facts, comm_timeout, sizes
        )
        bind = _binder(module.run)
        return Device(
            opened.context, module.run, bind, opened.borrow, module.run_on_device, module.DeviceLog,
            context_bytes=opened.context_bytes, padding_bytes=opened.padding_bytes,
            received=opened.received, events=opened.events,
        )  # fmt: skip
    if name == "cpu" and module.lacks(plan):
        return _refusing(functools.partial(module.check_machine, plan))
    several = (facts, comm_timeout, shared, sizes, beside) if name == "cpu" else ()
    opened = variant(plan, image, weights, threads, pin, *several)
    return _device(module, opened, plan.memory.arena_bytes)


def _refusing(refuse: Callable[[], Any]) -> Device:
    """A device of which each use is the error that `refuse` raises; its program can be saved."""
    refusing = Device(refuse, lambda *_: refuse(), lambda *_: refuse())
    return refusing._replace(at=lambda *_: refusing)


def _device(module: Any, opened: Any, arena_bytes: int) -> Device:
    """What a module of this folder has opened on a device without memory of its own."""
    bind = getattr(module, "bind", None) or _binder(module.run)
    device = Device(
        opened.context, module.run, bind, workers=getattr(opened, "threads", 1),
        context_bytes=getattr(opened, "context_bytes", arena_bytes),
        received=getattr(opened, "received", dict),
    )  # fmt: skip
    if not hasattr(opened, "at"):
        return device
    contexts = deque[Any]()

    def at(sizes: Sequence[int], offsets: Sequence[int], arena_bytes: int) -> Device:
        one = opened.at(sizes, offsets, arena_bytes)
        return Device(
            opened.context, one.run, one.bind, None, None, None, one.threads, one.context_bytes,
            0, opened.received, dict, at, contexts,
        )  # fmt: skip

    return device._replace(at=at)


def _own_gpu(several: bool) -> Any:
    """The first GPU; of several processes, this one's."""
    from .cuda import find_gpus, own_gpu

    try:
        return own_gpu(local_rank()) if several else find_gpus()[0]
    except UserError as error:
        raise UserError(f"{error}; or compile for the target ptx-sim to simulate one") from error


def _binder(run: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """`bind` of a device for which a bound call is a call like any other."""
    return lambda *arguments: functools.partial(run, *arguments, False)


def choose_target(
    variants: Mapping[str, Any], target: str | None, label: str = "the program"
) -> str:
    """The target to run: the one asked for, the first of `known_families()` that is there, or
    the first."""
    if target is None:
        known = [name for one in known_families() for name in variants if family(name) == one]
        target = next(iter(known or variants), None)
        if target is None:
            raise UserError(f"{label}: it holds no compiled variant; compile it again")
    if target not in variants:
        others = ", ".join(variants) or "nothing"
        raise UserError(f"{label}: it was not compiled for {target!r}, only for {others}")
    return target
