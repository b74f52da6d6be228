"""`girih compile`, and how the commands read a SOURCE."""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from ..backends import Backend, find
from ..compilation import tuner_for
from ..compiler import compile as compile_program
from ..entries import read_entries
from ..frontends.source import tuning_in
from ..hlo.errors import UserError
from ..hlo.graph import Module
from ..hlo.interpret import interpret
from ..hlo.stated_sizes import Stated, read_stated_sizes
from ..lowering import tuned
from ..optimizer.pipeline import Pipeline, pipeline_for
from ..options import Options
from ..partitioning import AUTO
from ..runtime.bundle import MAIN, Check
from ..runtime.plans import parse_plan
from . import arrays, show
from .spelled import read_mesh, read_shardings, read_state


def compile_source(
    source: str | None,
    output: Path,
    targets: Sequence[str],
    settings: Sequence[str],
    checks: int,
    as_json: bool,
    lying: tuple[str | None, Sequence[str]] = (None, ()),
    entries: Sequence[str] = (),
    state: Sequence[str] = (),
    sizes: Sequence[str] = (),
    hot: Sequence[str] = (),
) -> None:
    """Import, compile, write the bundle; stages and their times are shown on stderr.

    sizes: what open sizes are, as `--size` says it. hot: sizes that get code of their own.
    lying: a mesh, and how arguments and weights lie on it, as `--mesh` and `--shard` say it.
    entries: NAME=SOURCE of each entry point, instead of one source. state: as `--state` says it.
    """
    options = read_options(settings)
    options = options if source is None else with_tuning(options, source)
    options = replace(options, hot=(*options.hot, *hot))
    mesh, shardings = _lying(*lying)
    times: dict[str, float] = {}
    stated = read_stated_sizes(sizes)
    with _TimedStage("import", times):
        modules = import_entries(source, entries, read_state(state), stated)
    with _TimedStage("compile", times) as stage:
        program = compile_program(
            modules, target=targets, options=options, progress=stage.update, mesh=mesh,
            shardings=shardings,
        )  # fmt: skip
    if checks:
        with _TimedStage("golden checks", times):
            program = program.with_golden(
                [one for name in modules for one in _golden(modules[name], program, name, checks)]
            )
    with _TimedStage("write", times):
        program.save(output)
    written, notes = output.stat().st_size, _notes(modules, program)
    plans = {name: program.entry(name) for name in program.entries}
    described = {
        name: {
            "kernels": len(one.plan.kernels),
            "steps": len(one.plan.steps),
            "memory": asdict(one.memory),
        }
        for name, one in plans.items()
    }
    if as_json:
        return show.print_json(
            {
                "bundle": str(output),
                "bytes": written,
                "targets": sorted(program.parts.variants),
                "seconds": times,
                **(described[MAIN] if list(described) == [MAIN] else {"entries": described}),
                "measured": len((program.parts.tuning or {}).get("kernels", ())),
                "notes": notes,
            }
        )
    told = [
        f"{'' if name == MAIN else f'{name} '}{one['kernels']} kernels, {one['steps']} steps, "
        f"arena {show.size(one['memory']['arena_bytes'])}"
        for name, one in described.items()
    ]
    show.console.print(
        f"{output}: {show.size(written)} for {', '.join(sorted(program.parts.variants))}, "
        f"{'; '.join(told)}"
    )
    for note in notes:
        show.console.print(f"note: {note}")


def _notes(modules: Mapping[str, Module], program: Any) -> list[str]:
    """Those of the import and of the code; with the names of the entry point and of the target
    where others lack it."""
    variants = sorted(program.parts.variants.items())
    told: list[str] = []
    for entry, module in modules.items():
        found = {name: list(parse_plan(one, entry=entry).notes) for name, one in variants}
        plan = program.entry(entry).plan
        common = [note for note in plan.notes if all(note in one for one in found.values())]
        own = [f"{name}: {n}" for name, notes in found.items() for n in notes if n not in common]
        place = f"{entry}: " if len(modules) > 1 else ""
        told += [f"{place}{note}" for note in (*module.notes, *common, *own)]
    return told


def passed(
    source: str, target: str, options: Options, entry: str | None = None
) -> tuple[Module, Backend]:
    """The program of a source as a compilation for `target` has it after all passes, and what would
    make its kernels."""
    options = with_tuning(options, source)
    module = import_source(source, entry)
    backend = find(target, options, tuner_for(module, options))
    with tuned(module, backend):
        passes = pipeline_for(backend, options)
        return passes.run(module, disable=options.disable)[1], backend


def pipeline_of(module: Module, target: str, options: Options) -> Pipeline:
    """The passes that a compilation of the module for `target` runs."""
    return pipeline_for(find(target, options, tuner_for(module, options)), options)


def import_source(
    source: str, entry: str | None = None, sizes: Mapping[str, Stated] | None = None
) -> Module:
    """The module of a file, or of what a function in a Python file returns: of the entry point that
    is named, where there are several. sizes: what open sizes are."""
    modules = import_entries(source, sizes=sizes)
    return modules[show.chosen_entry(source, tuple(modules), entry)]


def import_entries(
    source: str | None,
    entries: Sequence[str] = (),
    state: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Stated] | None = None,
) -> dict[str, Module]:
    """The modules of all entry points: of a source, or of NAME=SOURCE each."""
    if (source is None) == (not entries):
        raise UserError("give one SOURCE, or --entry NAME=SOURCE for each entry point")
    if source is not None:
        given, *inputs = _call(source)
        return read_entries(given, inputs, {}, state, sizes)
    named: dict[str, Any] = {}
    for text in entries:
        name, equals, one = text.partition("=")
        if not equals or not one or name in named:
            raise UserError(f"--entry: each is NAME=SOURCE, names differ, not '{text}'")
        given, *inputs = _call(one)
        if isinstance(given, Mapping):
            raise UserError(f"--entry {text}: it gives several entry points; give it as SOURCE")
        named[name] = (given, tuple(inputs))
    return read_entries(named, (), {}, state, sizes)


def _call(source: str) -> tuple[Any, ...]:
    """What a SOURCE on the command line is: (source, *example inputs)."""
    file, colon, function = source.rpartition(":")
    if colon and file.endswith(".py"):
        return call_function(file, function)
    return (Path(source),)


def _lying(
    mesh: str | None, shards: Sequence[str]
) -> tuple[dict[str, int | None] | None, dict[str, tuple[Any, ...]] | str | None]:
    """The axes of `data=2,model=4` and the specs of `PATTERN=-,data+model`, None for none."""
    if mesh is None and shards:
        raise UserError("--shard: needs --mesh data=2,..., the axes on which the arrays lie")
    return None if mesh is None else read_mesh(mesh), read_said(shards)


def read_said(shards: Sequence[str]) -> dict[str, tuple[Any, ...]] | str | None:
    """What `--shard` says: specs by pattern, `auto`, or nothing."""
    if list(shards) == [AUTO]:
        return AUTO
    return read_shardings(shards) if shards else None


def with_tuning(options: Options, source: str) -> Options:
    """The options with the tuning of the source, where that is a bundle that has one."""
    if options.tuning is None and tuning_in(Path(source)) is not None:
        return replace(options, tuning=source)
    return options


def call_function(file: str, function: str) -> tuple[Any, ...]:
    """What `function` of a Python file returns: (source, *example_inputs)."""
    if not Path(file).exists():
        raise UserError(f"{file}: there is no such file")
    names = runpy.run_path(file, run_name="girih_source")
    if not callable(names.get(function)):
        raise UserError(f"{file}: it has no function {function!r}")
    made = names[function]()
    return made if isinstance(made, tuple) else (made,)


def read_options(settings: Sequence[str], base: Options | None = None) -> Options:
    """girih.Options from OPTION=VALUE texts; the others are those of `base`."""
    known = {field.name: str(field.type) for field in fields(Options)}
    chosen: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in known:
            raise UserError(f"--set {setting}: write OPTION=VALUE; options are {', '.join(known)}")
        chosen[name] = _option_value(name, known[name], text)
    try:
        return replace(base or Options(), **chosen)
    except ValueError as error:
        raise UserError(f"--set: {error}") from error


def _option_value(name: str, kind: str, text: str) -> Any:
    """The text as a value of the field's declared type."""
    if text == "none" and kind.endswith("None"):
        return None
    if kind.startswith("bool"):
        if text not in ("true", "false"):
            raise UserError(f"--set {name}: true or false, not {text!r}")
        return text == "true"
    if kind.startswith("int") and "str" not in kind:
        if not text.isdecimal():
            raise UserError(f"--set {name}: a whole number, not {text!r}")
        return int(text)
    if kind.startswith("tuple"):
        return tuple(part for part in text.split(",") if part)
    return text


def _golden(module: Module, program: Any, entry: str, count: int) -> list[Any]:
    """Made-up inputs and what the reference interpreter gives for them."""
    found = []
    for seed in range(count):
        signature = program.entry(entry).signature
        values = arrays.collect_inputs(signature, (), seed)
        values += [
            module.weights[one.default].array
            for one in signature.arguments
            if one.state is not None and one.default is not None
        ]
        outputs = interpret(module, [value.copy() for value in values])
        found.append(Check(tuple(values), tuple(outputs), entry=entry))
    return found


class _TimedStage:
    """Times a stage and, on a terminal, shows that it is under way."""

    def __init__(self, name: str, times: dict[str, float]) -> None:
        self._name, self._times = name, times
        self._status = show.progress_console.status(f"{name} ...")

    def __enter__(self) -> _TimedStage:
        self._begin = perf_counter()
        if show.progress_console.is_terminal:
            self._status.start()
        return self

    def update(self, part: str) -> None:
        """Show which part of the stage is under way."""
        self._status.update(f"{self._name}: {part} ...")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._status.stop()
        self._times[self._name] = perf_counter() - self._begin
        if kind is None and show.progress_console.is_terminal:
            show.progress_console.print(f"{self._name:>14} {self._times[self._name]:7.2f} s")
