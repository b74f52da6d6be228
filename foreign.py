"""Kernels that were written elsewhere: `girih.foreign_kernel`.

scale = girih.foreign_kernel(
    "scale",
    out=lambda x: x,
    codes=[
        girih.foreign.Cuda(CUDA_SOURCE, girih.foreign.Launch("scale", grid=..., block=256)),
        girih.foreign.C(C_SOURCE, "scale"),
    ],
    reference=lambda x: 2 * x,
)

docs/foreign_kernels.md is a tutorial, specs/foreign_kernels.md the definition.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .frontends.kernel.foreign import (
    C,
    Code,
    Cuda,
    ForeignDefinition,
    Launch,
    Llvm,
    Ptx,
    Scratch,
    TensorMap,
    Triton,
)
from .hlo.errors import UserError
from .hlo.graph import Origin
from .hlo.interpret import interpret
from .hlo.tiling import Counts
from .kernels import Kernel

__all__ = [
    "C",
    "Cuda",
    "ForeignKernel",
    "Launch",
    "Llvm",
    "Ptx",
    "Scratch",
    "TensorMap",
    "Triton",
    "foreign_kernel",
]


class ForeignKernel(Kernel):
    """A kernel that was written elsewhere; see `girih.foreign_kernel`. It is called, checked and
    put into models like every `girih.Kernel`."""

    def interpret(self, *arrays: Any, **constants: Any) -> Any:
        """The outputs of the reference as numpy arrays."""
        values, ready = self._values(arrays, constants)
        results = interpret(ready.built.module, values)
        return results[0] if len(results) == 1 else tuple(results)

    def counts(self, *arrays: Any, **constants: Any) -> Counts:
        """UserError: nobody knows what the code does."""
        raise UserError(
            f"{self.definition.place} was written elsewhere, so girih cannot count what it does"
        )


def foreign_kernel(
    name: str,
    *,
    out: Any,
    codes: Sequence[Code] = (),
    reference: Callable[..., Any] | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] = ("out",),
    constants: Mapping[str, Any] | None = None,
    sharding: str = "",
    local: Mapping[str, int | Sequence[int]] | None = None,
) -> ForeignKernel:
    """A kernel of codes for some devices, called on numpy, torch and JAX arrays.

    out: the outputs: a `tl.Array(shape, dtype)`, a list of them, or a function that gives that for
        the inputs and constants that it names (`out=lambda a, b: a`).
    codes: `Ptx`, `Cuda`, `Triton`, `C`, `Llvm`; of those that fit a target the first is taken.
    reference: a function of the inputs (and constants, as keywords) that computes the same. The
        interpreter, `check`, plain JAX and targets without a code run it.
    inputs: names of the inputs for rules; by default the reference's positional parameters.
    outputs: names of the outputs. constants: names and defaults; by default the reference's
        keyword-only parameters. sharding: the contract by which a partitioner may split the
        call; "" forbids to. local: names of its dims, and into how many parts they may be cut: the
        program has the kernel for these parts with it.
    """
    found, defaults = _parameters(reference)
    if inputs is None:
        if reference is None:
            raise UserError(f"kernel '{name}' needs inputs=, the names of its inputs")
        inputs = found
    frame = sys._getframe(1)
    definition = ForeignDefinition(
        reference, out, (), sharding, local or {}, label=name, codes=tuple(codes),
        inputs=tuple(inputs), outputs_named=tuple(outputs),
        given=defaults if constants is None else constants,
        origin=Origin(frame.f_code.co_filename, frame.f_lineno, name),
    )  # fmt: skip
    return ForeignKernel(definition, reference)


def _parameters(reference: Callable[..., Any] | None) -> tuple[list[str], dict[str, Any]]:
    """Names of a reference's positional parameters, and its keyword-only ones with defaults."""
    if reference is None:
        return [], {}
    names, constants = [], {}
    for parameter in inspect.signature(reference).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            constants[parameter.name] = parameter.default
        elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            names.append(parameter.name)
    return names, constants
