"""The whole way from an export to a program.

source -> import_model -> Module -> passes (optimizer/pipeline.py) -> schedule -> build -> Program
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .backends import find
from .compilation import compile_entries, options_of, tuner_for, with_variant
from .entries import read_entries
from .hlo.errors import UserError
from .hlo.graph import Module
from .hlo.stated_sizes import Stated
from .lowering import Progress
from .options import Options, hot_text
from .programs import Modules
from .runtime.bundle import Parts
from .runtime.devices import family
from .runtime.devices.choice import choose_processor
from .runtime.devices.cpu import lacks
from .runtime.distributed.launch import axes_in
from .runtime.program import Program


def compile(  # noqa: A001 - the public name of the API
    source: Any,
    *example_inputs: Any,
    target: str | Sequence[str] = "cpu",
    options: Options | None = None,
    progress: Progress | None = None,
    mesh: Mapping[str, int | None] | None = None,
    shardings: Mapping[str, Iterable[Any]] | str | None = None,
    state: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Stated] | None = None,
    hot: Iterable[Mapping[str, int]] = (),
    **keywords: Any,
) -> Program:
    """A program for `target` from any source.

    source: what `import_model` takes, or a dict of entry points, {"prefill": (model.prefill,
        (tokens,)), "decode": "decode.pt2"}: each a source, or (source, example inputs as a tuple),
        or (source, inputs, keywords as a dict). Weights, code and state that they have in common
        are there once; `program.entry("decode")` is one of them, `program.entries` are their names.
    target: "cpu", this machine's; "cpu:avx2", or another feature level of CPUs ("amx",
        "avx512-bf16", "avx512", "baseline", "neon"), on any machine; "nvidia:sm_90a", or another
        architecture of NVIDIA, which needs no GPU; "ptx-sim" or "ptx-sim:sm_80", the same code run
        by the simulator; "null", everything but code. Of several, a bundle holds all, and the first
        one runs, or, where that is for another CPU, the best one of this one's.
    progress: called with the name of each stage when it begins.
    mesh: the sizes of the axes of several devices, {"data": 2, "model": 4}: the program is compiled
        for them, one process each (`spmd.py`); one process alone runs it on a mesh of one device.
    shardings: how arguments and weights lie on them, by name (`annotate.py`); without them, as the
        source says it (`girih.shard`, JAX's and XLA's annotations). "auto": what nobody said is
        found, as costs least where a device holds at most `Options.max_memory`, estimated.
    state: arguments that live between calls, by name or pattern, each with the result that replaces
        it: {"cache": "output[1]"} (`states.py`); `program.session()` keeps them. Buffers of a torch
        model that it changes are state without being named.
    sizes: what the open sizes of the source are: {"batch": (1, 64), "seq": range(16, 513, 16)}
        narrows them, a number fixes one, a name gives it another name. A key is a symbol of the
        source ("batch") or a dimension of an argument ("tokens.0").
    hot: sizes that calls often have, ({"batch": 1, "seq": 128}, ...), by the names of the program's
        open sizes: code for just these is in the bundle as well (`Options.hot`).

    A program that was compiled before comes from the cache (`Options.cache`) and makes its packed
    weights at the first call or when it is saved: until then, as in any program those that are not
    packed, they are the source's arrays, so do not write into these.
    """
    if mesh is None and shardings is not None:
        raise UserError("shardings: need mesh={'data': 2, ...}, the axes on which they lie")
    first, *others = _targets(target)
    options = options or Options()
    if hot := tuple(hot):
        options = replace(options, hot=(*options.hot, *map(hot_text, hot)))
    say = progress or (lambda stage: None)
    tuner = tuner_for(source, options)
    if mesh is not None:
        from .spmd import compile_on  # of several devices, which few programs are for

        say("import")
        modules = read_entries(source, example_inputs, keywords, state, sizes)
        if len(modules) > 1:
            raise UserError(
                f"mesh: a program of several entry points ({', '.join(modules)}) is compiled for "
                "one device; compile each of them for the mesh"
            )
        (module,) = modules.values()
        return compile_on(module, mesh, shardings, [first, *others], options, say, tuner)
    if others:  # what is wrong with them is said before anything is compiled
        for name in others:
            find(name, options, tuner)

    def read() -> dict[str, Module]:
        say("import")
        return read_entries(source, example_inputs, keywords, state, sizes)

    program = compile_entries(read, first, options, say, tuner).program
    return with_targets(program, others, options, progress) if others else program


def _targets(given: Any) -> list[str]:
    """The targets that a user names, each once; UserError where they are no names."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Iterable) or isinstance(names, (bytes, bytearray)):
        raise UserError(f"target: a name such as 'cpu', or a list of names, not {given!r}")
    for name in (found := list(dict.fromkeys(names))):
        if not isinstance(name, str):
            raise UserError(f"target: a name such as 'cpu', or a list of names, not {name!r}")
    if not found:
        raise UserError("target: the list is empty; name a target, such as 'cpu'")
    return found


def with_targets(
    program: Program,
    targets: Sequence[str],
    options: Options | None = None,
    progress: Progress | None = None,
) -> Program:
    """The same program, whose bundle has code for these targets as well."""
    parts = program.parts
    modules = {name: program.entry(name).module for name in program.entries}
    for target in targets:
        parts = add_variant(parts, modules, target, options, progress)
    return _on_this_machine(program, parts)


def _on_this_machine(program: Program, parts: Parts) -> Program:
    """A program of the parts that has the program's target, unless that is for another CPU and the
    parts have code for this one."""
    if family(program.target) == "cpu" and lacks(parts.variants[program.target]):
        choice = choose_processor(parts.variants)
        if not choice.problem:
            return program.with_parts(parts, choice.target, choice.reason)
    return program.with_parts(parts)


def add_variant(
    parts: Parts,
    modules: Modules,
    target: str,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Parts:
    """A program's parts with code for `target` ("cpu", "cpu@data=2,model=4" for a mesh) added,
    compiled from the modules of its entry points; code that is there already is made anew. Without
    options, the numerics are those of the first compilation. Choices that were measured for the
    program are taken again."""
    options = options or options_of(parts)
    say = progress or (lambda stage: None)
    tuner = tuner_for(parts, options)
    base, on_mesh, _ = target.partition("@")
    if on_mesh:
        from .spmd import with_mesh

        (module,) = modules.values()
        return with_mesh(parts, module, axes_in(target), base, options, say, tuner)[0]
    return with_variant(parts, modules, target, options, say, tuner)
