"""From a bundle to a program that runs."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from ..hlo.errors import UserError
from . import devices
from .bundle import Bundle, Variant
from .extras import is_installed

if TYPE_CHECKING:
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

    target: which variant, where there are several: "cpu", "nvidia:sm_90a", or "nvidia"; by default
    the best that this machine can run, and `Program.reason` says why. device: the number of the GPU;
    default the first that can run a variant. simulate: run a GPU's code in the simulator, which
    finds faults and counts, and needs no GPU. threads: at most this many workers; default all
    cores. pin: keep each worker but the caller's thread on a core of its own. allow_native: run
    machine code although this user did not compile it. verify: whose digests are compared before
    the first result is given: members that are "used" (weights in the background), "all" members,
    or, "lazy", not even the weights.
    """
    bundle = Bundle(source, verify)
    choice = _choose(bundle, target, device, simulate)
    chosen = choice.target
    pending = bundle.start_verifying(chosen)
    from .plans import check_version, parse_plan
    from .program import Program  # imports numpy, while the weights are being hashed

    variant = bundle.variants[chosen]
    plan = parse_plan(variant, bundle.label)
    native = variant.native or devices.family(plan.target) in devices.NATIVE
    if native and not (allow_native or bundle.is_trusted):
        reason = "its machine code was not compiled by this user"
        remedy = "pass allow_native=True (--allow-native) if you trust where it comes from"
        return _compile_anew(bundle, chosen, threads, pin, reason, remedy)
    try:
        check_version(plan)
        devices.check_machine(plan)
    except UserError as error:
        return _compile_anew(bundle, chosen, threads, pin, str(error), "")
    try:
        return Program(
            bundle,
            chosen,
            threads=threads,
            pin=pin,
            plan=plan,
            pending=pending,
            driver=choice.driver,
            reason=choice.reason,
        )
    except (UserError, ValueError) as error:
        raise UserError(f"{bundle.label}: {error}") from error


def _choose(bundle: Bundle, target: str | None, device: int | None, simulate: bool) -> Choice:
    """The variant that runs, and its device."""
    if not simulate and not any(devices.family(name) == "nvidia" for name in bundle.variants):
        if device is not None:
            raise UserError(f"{bundle.label}: it holds no code for a GPU, so device is not needed")
        chosen = devices.choose_target(bundle.variants, target, bundle.label)
        return _PlainChoice(chosen)
    from . import devices


def _compile_anew(
    bundle: Bundle, target: str, threads: int | None, pin: bool, reason: str, remedy: str
) -> Program:
    """The program, compiled on this machine from its source form, with a warning that says so."""
    if target != "cpu" or not is_installed("llvmlite"):
        remedies = [remedy] if remedy else []
        remedies.append("install girih[cpu] so that the program is compiled anew")
        raise UserError(f"{bundle.label}: {reason}; {', or '.join(remedies)}")
    advice = f"; {remedy}" if remedy else ""
    warnings.warn(
        f"{bundle.label}: {reason}, so the program is compiled anew{advice}", stacklevel=3
    )
    from ..compiler import compile as compile_program
    from .program import Program, decode_module

    if pending := bundle.start_verifying(target):
        pending.wait()
    module = decode_module(bundle)
    if remedy:
        _refuse_native_kernels(module, f"{bundle.label}: {reason}; {remedy}")
    fresh = compile_program(module, target=target)
    return Program(
        fresh.parts, target, threads=threads, pin=pin, module=fresh.module, plan=fresh.plan
    )


def _refuse_native_kernels(module: Any, reason: str) -> None:
    """UserError if the program has a user's kernel in machine code, C or LLVM IR: compiling it anew
    would run code of whom nobody trusts."""
    for op in module.walk():
        codes = op.codes if op.name == "foreign_call" else ()
        if any(isinstance(code, dict) and code.get("target") == "cpu" for code in codes):
            raise UserError(f"{reason} (it holds the code of kernel '{op.kernel}')")
