"""Which variant of a bundle runs here, on which device, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...hlo.errors import UserError
from . import choose_target, family
from .architectures import FAMILY, architecture_of, name_of
from .cpu import lacks, tells_features
from .driver import Driver

Capability = tuple[int, int]
PROCESSOR = "cpu"
ADD_CODE = "add some: girih retarget FILE --add nvidia:sm_90a"


class VariantChoice(NamedTuple):
    """A variant; `driver`: the GPU that it runs on, None for other targets. `problem`: why none of
    several runs here, if that is known."""

    target: str
    driver: Driver | None
    reason: str
    problem: str = ""


def choose(
    variants: Mapping[str, Any],
    target: str | None,
    label: str,
    find_gpus: Callable[[], Sequence[Driver]],
) -> VariantChoice:
    """The variant of a bundle that is asked for, or the best one of this machine: machine code for
    a GPU that is here, else PTX that its driver compiles, else the CPU's. UserError says why
    nothing runs.
    """
    names = [name for name in variants if family(name) == FAMILY]
    if target == PROCESSOR and target not in variants and any(map(_is_for_processor, variants)):
        return choose_processor(variants)
    if target is not None and family(target) != FAMILY:
        return VariantChoice(choose_target(variants, target, label), None, "it was asked for")
    if target is not None and target != FAMILY:
        names = [choose_target(variants, target, label)]
    if not names:
        if target is None:
            return choose_processor(variants)
        raise UserError(f"{label}: it holds no code for a GPU; {ADD_CODE}")
    try:
        gpus = find_gpus()
    except UserError as error:
        return _without_gpu(variants, target, label, str(error))
    for gpu in gpus:
        fitting = [rank for name in names if (rank := _rank(name, variants[name], gpu.capability))]
        if fitting:
            _, name, code = max(fitting)
            return VariantChoice(name, gpu, f"{code} runs on {_describe(gpu)}")
    found = ", ".join(map(_describe, gpus))
    reason = f"it holds {', '.join(sorted(names))}, which does not run on {found}"
    return _without_gpu(variants, target, label, reason)


def choose_processor(variants: Mapping[str, Any]) -> VariantChoice:
    """Of the variants for CPUs, the one that uses most of this processor's features."""
    names = [*filter(_is_for_processor, variants)]
    if len(names) == 1:
        return VariantChoice(names[0], None, "there is no other for a CPU")
    lacking = {name: lacks(variants[name]) for name in names}
    others = [f"{name}'s {reason}" for name, reason in lacking.items() if reason]
    fitting = [name for name in names if not lacking[name]]
    if not fitting:
        return VariantChoice(
            names[0], None, "", f"it has no code for this machine: {'; '.join(others)}"
        )
    reason, sign = "of the code for CPUs it uses most features that this one has", 1
    if not tells_features():
        reason, sign = "of the code for CPUs it needs fewest features, which this system hides", -1
    best = max(fitting, key=lambda name: (sign * len(variants[name].features), name == PROCESSOR))
    return VariantChoice(best, None, "; ".join([reason, *others]))


def _is_for_processor(name: str) -> bool:
    return family(name) == PROCESSOR


def _describe(gpu: Driver) -> str:
    return f"{gpu.name} ({name_of(gpu.capability)})"


def _rank(target: str, variant: Any, capability: Capability) -> tuple[Any, str, str] | None:
    """How well a variant's code fits a GPU: the greater the better; None if not at all."""
    best: tuple[Any, str, str] | None = None
    for name in variant.cubins:
        made_for = architecture_of(f"{FAMILY}:{name}")
        if made_for is not None and made_for.runs_binary_on(capability):
            best = max(best or ((), "", ""), ((2, made_for), target, f"the cubin for {name}"))
    made_for = architecture_of(target)
    if best is None and made_for is not None and made_for.compiles_for(capability):
        return (1, made_for), target, f"PTX for {made_for}"
    return best


def _without_gpu(
    variants: Mapping[str, Any], target: str | None, label: str, reason: str
) -> VariantChoice:
    if target is None and any(map(_is_for_processor, variants)):
        chosen = choose_processor(variants)
        return chosen._replace(
            reason=f"no GPU takes the bundle's other code: {reason}; {chosen.reason}"
        )
    raise UserError(
        f"{label}: {reason}; or pass simulate=True (--simulate) to run it in the simulator, or add "
        "code for this machine: girih retarget FILE --add cpu"
    )


def simulated(
    variants: Mapping[str, Any],
    target: str | None,
    label: str,
    make: Callable[[str], Driver],
) -> VariantChoice:
    """The variant that is asked for, or the newest one for a GPU, on a simulated device."""
    names = [name for name in variants if family(name) == FAMILY]
    if target is not None and target != FAMILY:
        names = [choose_target(variants, target, label)]
    found = [(architecture, name) for name in names if (architecture := architecture_of(name))]
    if not found:
        raise UserError(
            f"{label}: it holds no code for a GPU, so there is nothing to simulate; {ADD_CODE}"
        )
    name = max(found)[1]
    return VariantChoice(name, make(name), "it is simulated, as asked")
