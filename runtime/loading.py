"""From a bundle to a program that runs."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from ..hlo.errors import UserError
from ..hlo.extras import is_installed
from . import devices
from .bundle import Bundle

if TYPE_CHECKING:
    from .devices.choice import Choice
    from .devices.driver import Driver
    from .program import Program


def load(
    source: str | os.PathLike[str] | bytes,
    *,
    target: str | None = None,
    device: int | None = None,
    simulate: bool = False,
    threads: int | None = None,
    pin: bool = False,
    allow_native: bool = False,
    verify: str = "used",
) -> Program:
    """The program of a bundle, from a path (memory-mapped) or bytes; needs no compiler.

    target: which variant, where there are several: "cpu", "cpu:avx2", "nvidia:sm_90a", "nvidia"; by
    default the best that this machine can run, and `Program.reason` says why. device: a GPU's
    number; default the first that can run a variant. simulate: run a GPU's code in the simulator,
    which finds faults and counts, and needs no GPU. threads: at most this many workers; default all
    cores. pin: keep each worker but the caller's thread on a core of its own. allow_native: run
    machine code although this user did not compile it. verify: whose digests are compared before
    the first result is given: members that are "used" (weights in the background), "all" members,
    or, "lazy", not even the weights.
    """
    bundle = Bundle(source, verify)
    chosen, driver, reason, problem = choose_variant(bundle, target, device, simulate)
    if problem:
        return _compile_anew(bundle, chosen, threads, pin, problem, "", driver)
    pending = bundle.start_verifying(chosen)
    from .plans import check_version, parse_plan
    from .program import Program  # imports numpy, while the weights are being hashed

    variant = bundle.variants[chosen]
    plan = parse_plan(variant, bundle.label)
    native = variant.native or devices.family(plan.target) in devices.NATIVE
    if native and not (allow_native or bundle.is_trusted):
        problem = "its machine code was not compiled by this user"
        remedy = "pass allow_native=True (--allow-native) if you trust where it comes from"
        return _compile_anew(bundle, chosen, threads, pin, problem, remedy, driver)
    try:
        check_version(plan)
        devices.check_machine(plan)
    except UserError as error:
        if target is not None and target.startswith("cpu:"):  # no other code is the answer
            raise UserError(f"{bundle.label}: {error}") from None
        return _compile_anew(bundle, chosen, threads, pin, str(error), "", driver)
    try:
        return Program(
            bundle,
            chosen,
            threads=threads,
            pin=pin,
            plan=plan,
            pending=pending,
            driver=driver,
            reason=reason,
        )
    except (UserError, ValueError) as error:
        raise UserError(f"{bundle.label}: {error}") from error


def choose_variant(
    bundle: Bundle, target: str | None = None, device: int | None = None, simulate: bool = False
) -> Choice:
    """The variant that runs, its GPU if it needs one, and why."""
    from .devices.choice import Choice, choose, simulated

    variants, label = bundle.variants, bundle.label
    several = sum(devices.family(name) in devices.NATIVE for name in variants) > 1
    has_gpu_code = any(devices.family(name) == "nvidia" for name in variants)
    if not (has_gpu_code or several and not target) and device is None and not simulate:
        reason = "it was asked for" if target else "there is no other"
        return Choice(devices.choose_target(variants, target, label), None, reason)
    if device is not None and target is None:
        target = "nvidia"  # a GPU is asked for: the CPU is no answer
    if simulate:
        from ..compiler import simulated_gpu

        return simulated(variants, target, label, simulated_gpu)
    from .devices.cuda import find_gpus

    return choose(variants, target, label, lambda: find_gpus(device))


def _compile_anew(
    bundle: Bundle,
    target: str,
    threads: int | None,
    pin: bool,
    problem: str,
    remedy: str,
    driver: Driver | None,
) -> Program:
    """The program, compiled on this machine from its source form, with a warning that says so. Code
    for CPUs is made for this one."""
    if devices.family(target) not in devices.NATIVE or not is_installed("llvmlite"):
        remedies = [remedy] if remedy else []
        remedies.append("install girih[cpu] so that the program is compiled anew")
        raise UserError(f"{bundle.label}: {problem}; {', or '.join(remedies)}")
    advice = f"; {remedy}" if remedy else ""
    warnings.warn(
        f"{bundle.label}: {problem}, so the program is compiled anew{advice}", stacklevel=3
    )
    from ..compiler import compile as compile_program
    from .parts import decode_module
    from .program import Program

    if pending := bundle.start_verifying(target):
        pending.wait()
    module = decode_module(bundle)
    if remedy:
        _refuse_native_kernels(module, f"{bundle.label}: {problem}; {remedy}")
    target = "cpu" if devices.family(target) == "cpu" else target
    fresh = compile_program(module, target=target)
    return Program(
        fresh.parts,
        target,
        threads=threads,
        pin=pin,
        module=fresh.module,
        plan=fresh.plan,
        driver=driver,
        reason="it was compiled anew",
    )


def _refuse_native_kernels(module: Any, reason: str) -> None:
    """UserError if the program has a user's kernel in machine code, C or LLVM IR: compiling it anew
    would run code of whom nobody trusts."""
    for op in module.walk():
        codes = op.codes if op.name == "foreign_call" else ()
        if any(isinstance(code, dict) and code.get("target") == "cpu" for code in codes):
            raise UserError(f"{reason} (it holds the code of kernel '{op.kernel}')")
