"""The whole way from an export to a program.

source -> import_model -> Module -> passes (optimizer/pipeline.py) -> schedule -> build -> Program
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .hlo.errors import UserError
from .hlo.graph import Module, Op, Weight, signature_of
from .hlo.verify import verify
from .lowering import Lowered, Lowering, Progress, check_limit, hot_ranges, left_out
from .options import Options, hot_text
from .runtime.bundle import MAIN

if TYPE_CHECKING:
    from .backends import Backend
    from .hlo.stated_sizes import Stated
    from .optimizer.licence import Ledger
    from .optimizer.size_ranges import Range
    from .optimizer.tuning import Ready, Tuner, Tuning
    from .programs import Made, Modules
    from .runtime.bundle import Parts
    from .runtime.program import Program

_ZIP = b"PK"


def import_model(
    source: Any,
    *example_inputs: Any,
    sizes: Mapping[str, Stated] | None = None,
    **keywords: Any,
) -> Module:
    """The module of a JAX or PyTorch export.

    source: a path (.mlir, .mlirbc, .hlo, .hlo.pb, .pt2, a jax.export file, .girih), StableHLO or
        HLO as text or bytes, a `jax.export.Exported`, a `torch.export.ExportedProgram`, or a torch
        module or traceable function with `example_inputs`.
    sizes: what its open sizes are, as in `compile`.
    Raises ImportBlockers, which lists every reason at once, if it cannot be imported.
    """
    from .frontends.source import read_source
    from .hlo.stated_sizes import with_stated_sizes

    module = read_source(source, *example_inputs, **keywords)
    if sizes is not None:
        module = with_stated_sizes(module, sizes)
    verify(module)
    return module


def export_stablehlo(
    source: Any,
    *example_inputs: Any,
    version: str | None = None,
    text: bool = False,
    weights_as_arguments: bool = False,
    **keywords: Any,
) -> bytes | str:
    """A program of any source that `import_model` takes as StableHLO, for XLA and other compilers.

    version: of StableHLO, "0.9.0" to "1.20.0"; by default the lowest from 1.0.0 on that has all
        that the program needs, so that most readers know it.
    text: StableHLO text, in which CHLO's operations stay unless a version is given, instead of a
        portable artifact (MLIR bytecode), in which they are composites.
    weights_as_arguments: `main` takes the weights, named by their locations, after the inputs.
    Raises ExportBlockers, which lists every reason at once, where StableHLO cannot say the program.
    """
    from .frontends.stablehlo.versions import parse_version
    from .frontends.stablehlo.write import write_artifact, write_text

    chosen = None if version is None else parse_version(version)
    module = import_model(source, *example_inputs, **keywords)
    if text:
        return write_text(module, chosen, weights_as_arguments).text
    return write_artifact(module, chosen, weights_as_arguments).data


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
    from .entries import read_entries

    if mesh is None and shardings is not None:
        raise UserError("shardings: need mesh={'data': 2, ...}, the axes on which they lie")
    first, *others = _targets(target)
    options = options or Options()
    if hot := tuple(hot):
        options = replace(options, hot=(*options.hot, *map(hot_text, hot)))
    say = progress or (lambda stage: None)
    tuner = tuner_for(source, options)
    if mesh is not None:
        from .spmd import compile_on

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
        from .backends import find

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


def tuner_for(source: Any, options: Options) -> Tuner | None:
    """What knows or measures choices; None if the cost model alone chooses."""
    if options.measure and options.locked:
        raise UserError("measure and locked: a locked compilation never times anything; drop one")
    from .frontends.source import tuning_in
    from .optimizer.tuning import Tuner, from_json

    if options.tuning is not None:
        known = _read_tuning(options.tuning)
    else:
        found = tuning_in(source)
        known = None if found is None else from_json(found[1], found[0])
    if known is None and not options.measure:
        return None
    from .runtime import timing

    def clock(variants: Sequence[Ready]) -> list[float]:
        return timing.fastest(variants, options.threads)

    return Tuner(known, options.measure, clock)


def _read_tuning(path: str) -> Tuning:
    """The tuning of a bundle or of a JSON file; UserError if there is none."""
    from .frontends.source import tuning_in
    from .hlo.files import kind_of_file
    from .optimizer.tuning import from_json, from_text

    if (found := tuning_in(Path(path))) is not None:
        return from_json(found[1], path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(len(_ZIP))
            if data == _ZIP:
                raise UserError(
                    f"tuning: '{path}' holds no tuning; compile with measure to make one"
                )
            data += file.read()
    except (OSError, ValueError) as error:
        raise UserError(f"tuning: cannot read '{path}': {error}") from error
    try:
        return from_text(data, path)
    except UserError as error:
        kind = kind_of_file(Path(path))
        if kind is None or data[:1] == b"{":
            raise
        raise UserError(
            f"tuning: '{path}': this is {kind.what}; name a bundle that was compiled "
            "with measure, or a tuning.json"
        ) from error


class Compiled(NamedTuple):
    """A program, and what `remade()` finds: what gives the arrays that its plan names where the
    modules' weights hold other data; None where their data has decided its code."""

    program: Program
    remade: Callable[[], Callable[[Modules], Mapping[str, Any]] | None]


def compile_entries(
    read: Callable[[], Modules], target: str, options: Options, say: Progress, tuner: Tuner | None
) -> Compiled:
    """A program for one target; `read` gives the modules of its entry points, whose equal weights
    are one, after the backend has begun to start."""
    from .optimizer.meanwhile import collection_paused

    with collection_paused():  # also while the compiler is loaded: a program may be large already
        from .backends import find

        backend = find(target, options, tuner)
        backend.begin()
    modules = read()
    with collection_paused():
        return _compiled(modules, backend, target, options, say)


def _compiled(
    modules: Modules, backend: Backend, target: str, options: Options, say: Progress
) -> Compiled:
    """The program of the modules of its entry points, from the cache or made."""
    from .backends import SIMULATED
    from .entries import hardest_first
    from .optimizer.licence import Ledger
    from .optimizer.pipeline import blamed_on
    from .programs import Watched, digest_of, open_programs

    simulate, own_name = target.partition(":")[0] == SIMULATED, backend.name
    cache = open_programs(options.cache)
    digest = None if cache is None else digest_of(modules, backend, options)
    if cache is not None and digest is not None:
        parts = cache.load(digest, modules)
        if parts is not None and own_name in parts.variants:
            say("package")
            program = _program(parts, own_name, options, simulate)
            return Compiled(program, lambda: lambda other: cache.arrays(digest, other, own_name))
    for module in modules.values():
        verify(module)
    watched = Watched(modules)
    ledger = Ledger()

    def pack(entries: Mapping[str, Lowered]) -> Made:
        with blamed_on(options.disable):
            return _packed(entries, backend, options, say, simulate, ledger)

    lowering = Lowering(backend, options, say, ledger, pack)
    lowered: dict[str, Lowered] = {}
    ranges: dict[str, Sequence[Range]] = {}  # of sizes, with plans of their own
    for name in hardest_first(modules):
        lowered[name], ranges[name] = lowering.whole(watched.modules[name])
    hot = hot_ranges(lowered, options)
    for name, one in lowered.items():
        every = (*hot.get(name, ()), *ranges[name])
        others = tuple(lowering.in_range(watched.modules[name], each) for each in every)
        lowered[name] = one._replace(others=others)
    depends_on_data = watched.asked
    lowered = lowering.agreed({name: lowered[name] for name in modules})
    made = pack(lowered)
    while (left := left_out(lowered)) is not None:
        name, call = left
        other = lowering.lowered(watched.modules[name], call)
        lowered[name] = lowered[name]._replace(others=(*lowered[name].others, other))
        lowered = lowering.agreed(lowered)
        made = pack(lowered)
    if options.memory_limit is not None:
        check_limit(made.program, lowered, options.memory_limit)
    if cache is not None and digest is not None and not depends_on_data:
        cache.store(digest, modules, made)
    return Compiled(made.program, lambda: None if depends_on_data else made.remade(modules))


def compile_lowered(module: Module, target: str, options: Options) -> Program:
    """A program of a module that all passes have gone over, or of a part of one: its kernels
    as they are."""
    from .backends import SIMULATED, find
    from .optimizer.licence import Ledger

    backend = find(target, options)
    backend.begin()
    simulate = target.partition(":")[0] == SIMULATED
    entries = {MAIN: Lowered(module, module)}
    return _packed(entries, backend, options, lambda stage: None, simulate, Ledger()).program


def _program(parts: Parts, target: str, options: Options, simulate: bool) -> Program:
    """The program of parts that the cache has kept."""
    from .runtime.program import Program

    driver = simulated_gpu(target) if simulate else None
    return Program(
        parts, target, threads=options.threads, pin=options.pin, driver=driver, opened=False,
        comm_timeout=options.comm_timeout,
    )  # fmt: skip


def _packed(
    entries: Mapping[str, Lowered],
    backend: Backend,
    options: Options,
    say: Progress,
    simulate: bool,
    ledger: Ledger,
) -> Made:
    """The program of lowered entry points."""
    from .entries import with_equal_weights
    from .hlo.deciding import decided_by
    from .hlo.derivation import constant_weight
    from .optimizer.meanwhile import computed
    from .optimizer.passes.encode import stored_module, stored_weights, used_weights
    from .optimizer.schedule import schedule
    from .programs import Made, all_weights
    from .runtime.parts import module_weights, weights_by_name
    from .runtime.program import Program

    target = backend.name
    entries = _with_others(entries)
    fused = {name: one.fused for name, one in entries.items()}
    stored = {  # whose functions still read weights as they were
        name: one.simple.with_weights(stored_weights(one.simple, one.fused))
        for name, one in entries.items()
    }
    if len(entries) > 1:
        fused, stored = with_equal_weights(fused, stored)
    # A bundle has one program of each entry point; what only other plans read is the variant's.
    stored = {name: one for name, one in stored.items() if "/" not in name}
    of_kernels, of_bundle = all_weights(fused), all_weights(stored)
    functions = [one for module in fused.values() for one in module.functions.values()]
    read_by_kernels = [of_kernels[name] for name in sorted(used_weights(functions))]
    tuner = None
    if backend.choices is not None:
        if any(one.decisions is not None for one in entries.values()):
            raise UserError("measure: kernels are timed at fixed sizes; give them with sizes=")
        say("choose")
        for module in fused.values():
            backend.choices.kernels(schedule(module))  # while nothing else runs
        tuner = backend.choices.tuner
    told = [] if tuner is None else tuner.notes
    say("emit")
    with computed([*of_bundle.values(), *read_by_kernels]):
        steps = {}
        for name, module in fused.items():
            with decided_by(entries[name].decisions):
                steps[name] = schedule(module, backend.in_tiles)
        notes = {
            name: (*fused[name].notes, *told, *_slow(one, backend), *steps[name].notes)
            for name, one in entries.items()
        }
        built, image = backend.build([(steps[name], notes[name]) for name in entries])
    tried: dict[str, tuple[list[Any], list[Any]]] = {}  # plans of ranges, and those behind them
    for (name, one), plan in zip(entries.items(), built, strict=True):
        if options.strict:
            _refuse_notes(plan)
        plan.notes.extend(one.own_notes)
        for condition in one.conditions:
            plan.guards.add(text=str(condition), origin=condition.origin)
        tried.setdefault(name.partition("/")[0], ([], []))[not one.conditions].append(plan)
    plans = {name: _in_turn([*before, *behind]) for name, (before, behind) in tried.items()}
    cubins = backend.assemble(image) if backend.assemble is not None else {}
    say("package")
    own: dict[str, Weight] = {}
    for name, one in steps.items():
        own |= {n: constant_weight(n, dense) for n, dense in one.constants.items() if n not in own}
        own |= {n: fused[name].weights[n] for n in one.weights if n not in of_bundle}
    own_arrays = {name: weight.array for name, weight in own.items()}
    plain = {  # a program does not hold what its weights were made of
        name: Weight(name, one.array, one.type, one.aliases, one.inverse)
        for name, one in of_bundle.items()
    }
    kept = {
        name: module.with_weights({n: plain[n] for n in module.weights})
        for name, module in stored.items()
    }
    program = Program.from_parts(
        {name: functools.partial(stored_module, module) for name, module in kept.items()},
        {name: signature_of(module) for name, module in kept.items()},
        {target: (plans, image, own_arrays, cubins)},
        module_weights(*kept.values()),
        target=target,
        driver=simulated_gpu(target) if simulate else None,
        threads=options.threads,
        pin=options.pin,
        comm_timeout=options.comm_timeout,
        tuning=None if tuner is None else tuner.tuning.to_json(),
        provenance={
            "options": {
                "numerics": options.numerics,
                "machine": backend.machine,
                "matmul_precision": options.matmul_precision,
            },
            "rewrites": ledger.report(),
        },
    )
    return Made(program, weights_by_name(*stored.values()), own)


def _in_turn(plans: Sequence[Any]) -> Any:
    """One message of an entry point's plans, which are tried in this order."""
    first, *others = plans
    if others:
        first.format_version = max(plan.format_version for plan in plans)
        needed = sorted({feature for plan in plans for feature in plan.features})
        del first.features[:]
        first.features.extend(needed)
        first.others.extend(others)
    return first


def _with_others(entries: Mapping[str, Lowered]) -> dict[str, Lowered]:
    """The entry points, and NAME/1, NAME/2 for calls of ranges and those that guards leave out."""
    found = dict(entries)
    for name, one in entries.items():
        found |= {f"{name}/{n}": other for n, other in enumerate(one.others, 1)}
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
    from .runtime.devices import family
    from .runtime.devices.choice import choose_processor
    from .runtime.devices.cpu import lacks

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
    from .runtime.parts import copied_parts, same_bytes, weights_named

    options = options or options_of(parts)
    say = progress or (lambda stage: None)
    tuner = tuner_for(parts, options)
    if "@" in target:
        from .runtime.distributed.launch import axes_in
        from .spmd import with_mesh

        base = target.partition("@")[0]
        (module,) = modules.values()
        return with_mesh(parts, module, axes_in(target), base, options, say, tuner)[0]
    made = compile_entries(lambda: modules, target, options, say, tuner).program
    variant = made.parts.variants[made.target]
    given = {**made.parts.weights, **variant.weights}
    own = {}
    for name in sorted(weights_named(p for one in made.entries for p in made.entry(one).plans)):
        array, stored = given[name], parts.weights.get(name)
        if stored is None or not same_bytes(stored, array):
            own[name] = array
    variants = {**parts.variants, made.target: replace(variant, weights=own)}
    return copied_parts(parts, variants=variants, tuning=_united(parts.tuning, made.parts.tuning))


def options_of(parts: Parts) -> Options:
    """What a program was compiled with, as far as other targets have to keep to it."""
    known = parts.provenance.get("options")
    numerics = known.get("numerics", Options.numerics) if isinstance(known, dict) else None
    try:
        return Options(numerics=Options.numerics if numerics is None else numerics)
    except (TypeError, ValueError) as error:
        raise UserError(f"the bundle's provenance is malformed: {error}") from error


def _united(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Any:
    """The document of both tunings."""
    if old is None or new is None:
        return old or new
    return {**new, "kernels": {**old.get("kernels", {}), **new["kernels"]}}


def simulated_gpu(target: str) -> Any:
    """A simulated device for a target such as "nvidia:sm_90a": a runtime/devices/driver.py
    `Driver`."""
    from .backends.nvidia.simulator.driver import SimulatedGpu
    from .backends.nvidia.target import target as find_target
    from .runtime.devices.driver import OutOfMemory

    name = target.partition("@")[0].partition(":")[2]
    return SimulatedGpu(find_target(name).architecture, OutOfMemory)


def _slow(lowered: Lowered, backend: Backend) -> list[str]:
    """A note for each reason why operations are slow on the backend, in a likely call: how many,
    and the first."""
    from .hlo.deciding import decided_by, estimating

    slow: dict[str, list[Op]] = {}
    with decided_by(lowered.decisions), estimating():
        for op in lowered.simple.walk():
            if why := backend.slow(op):
                slow.setdefault(why, []).append(op)
    return [
        f"{ops[0].place}{ops[0].name}: {why}" + (f" ({len(ops)} operations)" if ops[1:] else "")
        for why, ops in slow.items()
    ]


def _refuse_notes(plan: Any) -> None:
    """UserError if anything happened that a user may not want to happen silently."""
    notes = [*plan.notes, *(f"{k.name}: {note}" for k in plan.kernels for note in k.notes)]
    if notes:
        raise UserError("strict: " + "; ".join(dict.fromkeys(notes)))
