"""From a bundle to a program that runs."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping
from typing import Any

from ..hlo.errors import UserError
from ..hlo.extras import is_installed
from . import devices
from .bundle import Bundle
from .devices.choice import VariantChoice, choose, simulated
from .devices.driver import Driver
from .distributed.launch import fitting, local_rank
from .parts import copied_parts, decode_modules
from .plans import check_version, parse_plan
from .program import Program

_STRANGE = "its machine code was not compiled by this user"
_ALLOW = "pass allow_native=True (--allow-native) if you trust where it comes from"
_ADD = "add code for it: girih retarget FILE --add cpu"


def load(
    source: str | os.PathLike[str] | bytes,
    *,
    target: str | None = None,
    mesh: Mapping[str, int] | None = None,
    device: int | None = None,
    simulate: bool = False,
    threads: int | None = None,
    pin: bool = False,
    allow_native: bool = False,
    verify: str = "used",
    comm_timeout: float | None = None,
) -> Program:
    """The program of a bundle, from a path (memory-mapped) or bytes; needs no compiler.

    target: which variant, where there are several: "cpu:avx2", "nvidia:sm_90a"; "cpu" or "nvidia",
    the best of those; by default the best that this machine can run. `Program.reason` says why.
    mesh: the axes of the code that runs, where a bundle has several; by default the first that has
    as many devices as a launcher (mpiexec, torchrun) has started processes.
    device: a GPU's number; default the first that can run a variant, and for several processes the
    one with this process's number on the machine. simulate: run a GPU's code in
    the simulator, which finds faults and counts, and needs no GPU. threads: at most this many
    workers; default all cores. pin: keep each worker but the caller's thread on a core of its own.
    allow_native: run machine code although this user did not compile it. verify: whose digests are
    compared before the first result is given: members that are "used" (weights in the background),
    "all" members, or, "lazy", not even the weights. comm_timeout: seconds that one wait of a
    program of several processes for the others may take; default GIRIH_COMM_TIMEOUT, or 300.
    """
    bundle = Bundle(source, verify)
    chosen, driver, reason, problem = choose_variant(bundle, target, device, simulate, mesh)
    anew = functools.partial(
        _compile_anew, bundle, chosen, threads, pin, comm_timeout, driver,
        allow_native or bundle.is_trusted,
    )  # fmt: skip
    if problem:
        return anew(problem, _ADD)
    pending = bundle.start_verifying(chosen)
    variant = bundle.variants[chosen]
    plans = [parse_plan(variant, bundle.label, entry) for entry in bundle.signatures]
    plan = plans[0]
    native = variant.native or any(devices.is_native(p.target) for p in plans)
    if native and not (allow_native or bundle.is_trusted):
        return anew(_STRANGE, _ALLOW)
    try:
        for one in plans:
            check_version(one)
            devices.check_machine(one)
    except UserError as error:
        if target is not None and target.startswith("cpu:"):  # no other code is the answer
            raise UserError(f"{bundle.label}: {error}") from None
        problem, _, remedy = str(error).partition("; ")
        return anew(problem, remedy)
    if plan.processes:  # refused, and watched over, before weights are read
        from .distributed.started import joined_world

        joined_world(plan.processes, comm_timeout)
    try:
        return Program(
            bundle,
            chosen,
            threads=threads,
            pin=pin,
            plan=plan if len(plans) == 1 else None,
            pending=pending,
            driver=driver,
            reason=reason,
            comm_timeout=comm_timeout,
        )
    except (UserError, ValueError) as error:
        raise UserError(f"{bundle.label}: {error}") from error


def choose_variant(
    bundle: Bundle,
    target: str | None = None,
    device: int | None = None,
    simulate: bool = False,
    mesh: Mapping[str, int] | None = None,
) -> VariantChoice:
    """The variant that runs, its GPU if it needs one, and why."""
    variants, label = bundle.variants, bundle.label
    names = fitting(variants, target, mesh, label)
    fits = "there is no other"
    if len(names) < len(variants) or any("@" in name for name in names):
        variants = {name: variants[name] for name in names if name in variants}
        on = {name.partition("@")[0]: name for name in names}
        target = on.get(target, target) if target is not None else None
        fits = "its mesh has as many devices as there are processes"
        if mesh is not None:
            fits = "its mesh was asked for"
    several = sum(devices.family(name) in devices.NATIVE for name in variants) > 1
    has_gpu_code = any(devices.family(name) == "nvidia" for name in variants)
    best = has_gpu_code or target == "cpu" or several and not target
    if not best and device is None and not simulate:
        reason = "it was asked for" if target else fits
        return VariantChoice(devices.choose_target(variants, target, label), None, reason)
    if device is not None and target is None:
        target = "nvidia"  # a GPU is asked for: the CPU is no answer
    if simulate:
        from ..simulated import simulated_gpu

        return simulated(variants, target, label, simulated_gpu)
    from .devices.cuda import find_gpus, own_gpu

    if device is None and any("@" in name for name in names):
        return choose(variants, target, label, lambda: [own_gpu(local_rank())])
    return choose(variants, target, label, lambda: find_gpus(device))


def _compile_anew(
    bundle: Bundle,
    target: str,
    threads: int | None,
    pin: bool,
    comm_timeout: float | None,
    driver: Driver | None,
    trusted: bool,
    problem: str,
    remedy: str,
) -> Program:
    """The program, compiled on this machine from its source form, with a warning that says so, and
    with the numerics and the measured choices of the bundle. Code for CPUs is made for this one."""
    if devices.family(target) not in devices.NATIVE or not is_installed("llvmlite"):
        remedies = [remedy] if remedy else []
        remedies.append("have the program compiled anew: pip install 'girih[cpu]'")
        raise UserError(f"{bundle.label}: {problem}; {', or '.join(remedies)}")
    from ..compiler import add_variant

    if pending := bundle.start_verifying(target):
        pending.wait()
    modules = decode_modules(bundle)
    kernel = next(filter(None, map(native_kernel, modules.values())), None)
    if not trusted and kernel is not None:
        raise UserError(
            f"{bundle.label}: {_STRANGE}; {_ALLOW} (it holds the code of kernel '{kernel}')"
        )
    advice = f"; to avoid that, {remedy}" if remedy else ""
    warnings.warn(
        f"{bundle.label}: {problem}, so the program is compiled anew{advice}", stacklevel=3
    )
    base, _, mesh = target.partition("@")
    base = "cpu" if devices.family(base) == "cpu" else base
    # What is saved gets this user's seal, so code of others is left out.
    kept = bundle if bundle.is_trusted else copied_parts(bundle, variants={})
    target = f"{base}@{mesh}" if mesh else base
    return Program(
        add_variant(kept, modules, target),
        target,
        threads=threads,
        pin=pin,
        module=(lambda: next(iter(modules.values()))) if len(modules) == 1 else None,
        driver=driver,
        reason="it was compiled anew",
        comm_timeout=comm_timeout,
    )


def native_kernel(module: Any) -> str | None:
    """The name of a user's kernel in machine code, C or LLVM IR: whoever compiles the program gives
    its maker what machine code can do."""
    for op in module.walk():
        codes = op.codes if op.name == "foreign_call" else ()
        if any(isinstance(code, dict) and code.get("target") == "cpu" for code in codes):
            return op.kernel
    return None
