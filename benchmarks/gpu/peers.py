"""Engines behind one face: a maker takes a case (or a model) and its inputs on the GPU, and gives a
call that starts the work and returns the results; `Unavailable` says why an engine cannot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cases import Case


class Unavailable(Exception):  # noqa: N818  # an answer, no fault
    """This engine cannot run this case; the text says why."""


@dataclass
class Prepared:
    """`call()` starts the work and gives its results as torch tensors, in the order of torch's
    stream."""

    call: Callable[[], Any]
    seconds: float  # that preparing took
    facts: dict[str, Any] = field(default_factory=dict)


def girih_engine(case: Case, inputs: Sequence[Any]) -> Prepared:
    import girih

    started = time.perf_counter()
    if "bundle" in case.facts:  # made ahead
        program = girih.load(case.facts["bundle"], target="nvidia", allow_native=True)
    else:
        options = girih.Options(numerics=case.numerics)
        program = girih.compile(case.exported(), target=f"nvidia:{architecture()}", options=options)
    return _girih_program(program, inputs, time.perf_counter() - started)


def girih_model(source: Any, example: Sequence[Any], inputs: Sequence[Any]) -> Prepared:
    """A zoo model from its framework's own form."""
    import girih

    started = time.perf_counter()
    program = girih.compile(source, *example, target=f"nvidia:{architecture()}")
    return _girih_program(program, inputs, time.perf_counter() - started)


def _girih_program(program: Any, inputs: Sequence[Any], seconds: float) -> Prepared:
    import torch
    from torch.utils import _pytree as pytree

    def call() -> Any:
        return pytree.tree_map(torch.from_dlpack, program.on_device(*inputs))

    plan = program.plan
    notes = [*plan.notes, *(note for kernel in plan.kernels for note in kernel.notes)]
    launches = sum(len(kernel.launches) for kernel in plan.kernels)
    return Prepared(call, seconds, {"notes": sorted(set(notes)), "launches": launches})


def torch_engine(case: Case, inputs: Sequence[Any]) -> Prepared:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
    return Prepared(lambda: case.torch(*inputs), 0.0)


def compiled_engine(case: Case, inputs: Sequence[Any]) -> Prepared:
    import torch

    torch._dynamo.reset()
    torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
    function = torch.compile(case.torch, mode="max-autotune-no-cudagraphs", dynamic=False)
    return _warmed(lambda: function(*inputs))


def xla_engine(case: Case, inputs: Sequence[Any]) -> Prepared:
    jax = gpu_jax()
    import torch

    function = jax.jit(case.jax)
    arrays = [jax.dlpack.from_dlpack(x) for x in inputs]
    return _warmed(lambda: torch.from_dlpack(function(*arrays)))


def gpu_jax() -> Any:
    """JAX with a GPU; Unavailable where there is none."""
    try:
        import jax

        jax.devices("gpu")
    except (ImportError, RuntimeError) as error:
        raise Unavailable(f"JAX has no GPU: {first_line(error)}") from error
    return jax


def triton_engine(case: Case, inputs: Sequence[Any]) -> Prepared:
    if not case.triton:
        raise Unavailable("there is no Triton kernel for it here")
    try:
        import triton_kernels
    except ImportError as error:
        raise Unavailable(f"triton: {first_line(error)}") from error
    return _warmed(triton_kernels.bound(case.triton, case.dtype, inputs))


ENGINES: dict[str, Callable[[Case, Sequence[Any]], Prepared]] = {
    "girih": girih_engine,
    "torch": torch_engine,
    "torch.compile": compiled_engine,
    "xla": xla_engine,
    "triton": triton_engine,
}


def prepared(name: str, case: Case, inputs: Sequence[Any]) -> Prepared:
    """An engine for a case; Unavailable for whatever it cannot do, our own engine's faults too."""
    try:
        return ENGINES[name](case, inputs)
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001  # a benchmark goes on with the other engines
        raise Unavailable(f"{type(error).__name__}: {first_line(error)}") from error


def _warmed(call: Callable[[], Any]) -> Prepared:
    import torch

    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return Prepared(call, time.perf_counter() - started)


def architecture() -> str:
    """girih's name for the GPU at hand."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
