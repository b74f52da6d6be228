"""One compilation for one device: modules of a program's entry points become its code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .backends import SIMULATED, Backend, find
from .backends.interface import Scheduled
from .entries import hardest_first, with_equal_weights
from .frontends.source import tuning_in
from .hlo.deciding import Decisions, decided_by
from .hlo.derivation import constant_weight
from .hlo.errors import UserError
from .hlo.files import kind_of_file
from .hlo.graph import Module, Weight, signature_of
from .hlo.verify import verify
from .lowering import EntryLowering, Lowered, Progress, check_limit, hot_ranges, left_out
from .optimizer.licence import Ledger
from .optimizer.meanwhile import collection_paused, computed
from .optimizer.passes.encode import stored_module, stored_weights, used_weights
from .optimizer.pipeline import blamed_on
from .optimizer.schedule import Schedule, schedule
from .optimizer.size_ranges import Range
from .optimizer.tuning import Ready, Tuner, Tuning, from_json, from_text
from .options import Options
from .programs import Made, Modules, Watched, all_weights, digest_of, open_programs
from .runtime import timing
from .runtime.bundle import MAIN, Parts
from .runtime.parts import copied_parts, module_weights, same_bytes, weights_by_name, weights_named
from .runtime.program import Program
from .simulated import simulated_gpu

_ZIP = b"PK"


def tuner_for(source: Any, options: Options) -> Tuner | None:
    """What knows or measures choices; None if the cost model alone chooses."""
    if options.measure and options.locked:
        raise UserError("measure and locked: a locked compilation never times anything; drop one")

    if options.tuning is not None:
        known = _read_tuning(options.tuning)
    else:
        found = tuning_in(source)
        known = None if found is None else from_json(found[1], found[0])
    if known is None and not options.measure:
        return None

    def clock(variants: Sequence[Ready]) -> list[float]:
        return timing.fastest(variants, options.threads)

    return Tuner(known, options.measure, clock)


def _read_tuning(path: str) -> Tuning:
    """The tuning of a bundle or of a JSON file; UserError if there is none."""
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
    with collection_paused():  # also while the compiler is loaded: a program may be large already
        backend = _found(target, options, tuner)
        backend.begin()
    modules = read()
    with collection_paused():
        return _compiled(modules, backend, target, options, say)


def _compiled(
    modules: Modules, backend: Backend, target: str, options: Options, say: Progress
) -> Compiled:
    """The program of the modules of its entry points, from the cache or made."""
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

    lowering = EntryLowering(backend, options, say, ledger, pack)
    lowered: dict[str, Lowered] = {}
    ranges: dict[str, Sequence[Range]] = {}  # of sizes, with plans of their own
    for name in hardest_first(modules):
        lowered[name], ranges[name] = lowering.whole(watched.modules[name])
    hot = hot_ranges(lowered, options)
    for name, one in lowered.items():
        every = (*hot.get(name, ()), *ranges[name])
        others = tuple(lowering.in_range(one, each) for each in every)
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
    backend = _found(target, options)
    backend.begin()
    simulate = target.partition(":")[0] == SIMULATED
    entries = {MAIN: Lowered(module, module)}
    return _packed(entries, backend, options, lambda stage: None, simulate, Ledger()).program


def _found(target: str, options: Options, tuner: Tuner | None = None) -> Backend:
    """The backend of a target; UserError where it has not the schedule that the user wants."""
    backend = find(target, options, tuner)
    if options.schedule not in backend.schedules:
        known = ", ".join(backend.schedules)
        raise UserError(
            f"target {target}: schedule={options.schedule!r} is none of its ways to run a program "
            f"({known}); leave it out, or compile for targets that have it alone"
        )
    return backend


def _program(parts: Parts, target: str, options: Options, simulate: bool) -> Program:
    """The program of parts that the cache has kept."""
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
    target = backend.name
    entries = _with_others(entries)
    fused, stored = _fused_and_stored(entries)
    of_bundle = all_weights(stored)
    tuner = _chosen(entries, fused, backend, say)
    say("emit")
    emitted = _emitted(entries, fused, of_bundle, backend, [] if tuner is None else tuner.notes)
    plans = _plans(entries, emitted.plans, options)
    cubins = backend.assemble(emitted.image) if backend.assemble is not None else {}
    say("package")
    own: dict[str, Weight] = {}
    for name, one in emitted.steps.items():
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
        {target: (plans, emitted.image, own_arrays, cubins)},
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
                "activation_precision": options.activation_precision,
            },
            "rewrites": ledger.report(),
        },
    )
    return Made(program, weights_by_name(*stored.values()), own)


def _fused_and_stored(
    entries: Mapping[str, Lowered],
) -> tuple[dict[str, Module], dict[str, Module]]:
    """The modules that become code, and those that a bundle stores: one of each entry point, what
    only other plans read is the variant's."""
    fused = {name: one.fused for name, one in entries.items()}
    stored = {  # whose functions still read weights as they were
        name: one.simple.with_weights(stored_weights(one.simple, one.fused))
        for name, one in entries.items()
    }
    if len(entries) > 1:
        fused, stored = with_equal_weights(fused, stored)
    return dict(fused), {name: one for name, one in stored.items() if "/" not in name}


def _chosen(
    entries: Mapping[str, Lowered], fused: Mapping[str, Module], backend: Backend, say: Progress
) -> Tuner | None:
    """What has decided how kernels are cut; None if the cost model alone does."""
    if backend.choices is None:
        return None
    if any(one.decisions is not None for one in entries.values()):
        raise UserError("measure: kernels are timed at fixed sizes; give them with sizes=")
    say("choose")
    for module in fused.values():
        backend.choices.kernels(schedule(module))  # while nothing else runs
    return backend.choices.tuner


class _Emitted(NamedTuple):
    """The schedule and the plan of each lowered entry point, and the image of all."""

    steps: dict[str, Schedule]
    plans: Sequence[Any]
    image: bytes


def _emitted(
    entries: Mapping[str, Lowered],
    fused: Mapping[str, Module],
    of_bundle: Mapping[str, Weight],
    backend: Backend,
    told: Sequence[str],
) -> _Emitted:
    """The code, while what kernels read is computed on other threads. told: notes of choices."""
    of_kernels = all_weights(fused)
    functions = [one for module in fused.values() for one in module.functions.values()]
    read_by_kernels = [of_kernels[name] for name in sorted(used_weights(functions))]
    with computed([*of_bundle.values(), *read_by_kernels]):
        made = {
            name: scheduled(fused[name], one.decisions, backend, told)
            for name, one in entries.items()
        }
        built, image = backend.build(list(made.values()))
    return _Emitted({name: steps for name, (steps, _) in made.items()}, built, image)


def scheduled(
    fused: Module, decisions: Decisions | None, backend: Backend, told: Sequence[str] = ()
) -> Scheduled:
    """The steps of a module whose operations are kernels, with the notes that its plan bears.
    told: notes of choices."""
    with decided_by(decisions):
        steps = schedule(fused, backend.in_tiles)
    return steps, (*fused.notes, *told, *steps.notes)


def _plans(
    entries: Mapping[str, Lowered], built: Sequence[Any], options: Options
) -> dict[str, Any]:
    """One message of each entry point, which holds its plans in the order in which they are
    tried; UserError where `strict` refuses their notes."""
    tried: dict[str, tuple[list[Any], list[Any]]] = {}  # plans of ranges, and those behind them
    for (name, one), plan in zip(entries.items(), built, strict=True):
        if options.strict:
            _refuse_notes(plan)
        take_schedule(plan, options)
        plan.notes.extend(one.own_notes)
        for condition in one.conditions:
            plan.guards.add(text=str(condition), origin=condition.origin)
        tried.setdefault(name.partition("/")[0], ([], []))[not one.conditions].append(plan)
    return {name: _in_turn([*before, *behind]) for name, (before, behind) in tried.items()}


def take_schedule(plan: Any, options: Options) -> None:
    """Sets how the user wants a plan to be run; UserError, with the line of the first step that is
    in the way, where it cannot be run so."""
    if options.schedule == "auto":
        return
    # What is merged stands in the plan, and the host decides between.
    plan.schedule = "host" if options.schedule == "merged" else options.schedule
    plan.schedule_required = options.strict
    for step in plan.steps if options.schedule == "graph" else ():
        kind = step.WhichOneof("action")
        if kind in ("exchange", "collective"):
            message = getattr(step, kind)
            place = f"{message.origin.file}:{message.origin.line}: " if message.origin.file else ""
            what = message.part_of if kind == "exchange" else message.kind
            raise UserError(
                f"{place}schedule='graph': processes exchange here ({what or kind}), which no "
                "graph of kernels does; take 'host' or 'launches', or leave it out"
            )


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


def _refuse_notes(plan: Any) -> None:
    """UserError if anything happened that a user may not want to happen silently."""
    notes = [*plan.notes, *(f"{k.name}: {note}" for k in plan.kernels for note in k.notes)]
    if notes:
        raise UserError("strict: " + "; ".join(dict.fromkeys(notes)))


def with_variant(
    parts: Parts,
    modules: Modules,
    target: str,
    options: Options,
    say: Progress,
    tuner: Tuner | None,
) -> Parts:
    """The parts with code for one device, compiled from the modules of the entry points."""
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
