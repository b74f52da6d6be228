"""The whole way from an export to a program, as a list that can be read.

    source -> import_model -> Module -> simplify -> encode -> fuse -> schedule -> build -> Program
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .hlo.errors import UserError
from .hlo.graph import Module
from .hlo.signature import Signature
from .hlo.verify import verify
from .options import Options

if TYPE_CHECKING:
    from .runtime.program import Program

TARGETS = ("cpu", "null")
Progress = Callable[[str], None]


def import_model(source: Any, *example_inputs: Any, **keywords: Any) -> Module:
    """The module of a JAX or PyTorch export.

    source: a path (.mlir, .mlirbc, .pt2, a jax.export file, .girih), StableHLO text or bytes, a
        `jax.export.Exported`, a `torch.export.ExportedProgram`, or a torch module or traceable
        function with `example_inputs`.
    Raises ImportBlockers, which lists every reason at once, if it cannot be imported.
    """
    from .frontends.source import read_source

    module = read_source(source, *example_inputs, **keywords)
    verify(module)
    return module


def compile(  # noqa: A001 - the public name of the API
    source: Any,
    *example_inputs: Any,
    target: str = "cpu",
    options: Options | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> Program:
    """A program for `target` ("cpu", or "null": everything but code) from any source.

    progress: called with the name of each stage when it begins.
    """
    options = options or Options()
    say = progress or (lambda stage: None)
    if target not in TARGETS:
        raise UserError(f"there is no target '{target}'; targets are {', '.join(TARGETS)}")
    say("import")
    module = import_model(source, *example_inputs, **keywords)
    from .backends import lower
    from .optimizer.pipeline import run_pipeline, simplify_pipeline

    simple = run_pipeline(module, simplify_pipeline(options), on_pass=say)
    compiled = lower(simple, target, options, say)
    say("package")
    from .runtime.program import Program

    return Program.from_parts(
        compiled.stored,
        signature_of(compiled.stored),
        {target: (compiled.plan, compiled.image, compiled.constants)},
        compiled.weights,
        target=target,
        threads=options.threads,
        provenance={"girih": _version(), "numerics": options.numerics},
    )


def signature_of(module: Module) -> Signature:
    """The module's signature; a flat one where the source had none."""
    if module.signature is not None:
        return module.signature
    body = module.body
    return Signature.plain(*(
        [(value.tensor.dims, value.element.name) for value in values]
        for values in (body.arguments, body.results)
    ))


def _version() -> str:
    from . import __version__

    return __version__
