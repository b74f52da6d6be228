"""`girih retarget` and `girih repartition`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..backends import SIMULATED
from ..compilation import options_of
from ..compiler import add_variant
from ..hlo.errors import UserError
from ..hlo.graph import Module
from ..options import Options
from ..runtime.bundle import Bundle, Parts
from ..runtime.bundle_writer import write
from ..runtime.loading import native_kernel
from ..runtime.parts import decode_modules
from ..runtime.plans import parse_plan
from ..spmd import with_mesh
from . import show
from .compiling import read_options
from .spelled import read_mesh


def retarget_bundle(
    path: Path, targets: Sequence[str], output: Path | None, settings: Sequence[str], as_json: bool
) -> None:
    """Write the bundle again with code for more targets; nothing of it is run."""
    if wrong := [name for name in targets if name.startswith(SIMULATED)]:
        raise UserError(
            f"--add {wrong[0]}: that is a way to run code, not code of its own; add nvidia:sm_90a "
            "and run it with --simulate"
        )
    _write_with(path, targets, add_variant, output, settings, as_json)


def repartition_bundle(
    path: Path,
    mesh: str,
    targets: Sequence[str],
    output: Path | None,
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Write the bundle again with code for a mesh of other sizes; nothing of it is run."""
    sizes = read_mesh(mesh)

    def add(parts: Parts, modules: Mapping[str, Module], target: str, options: Options) -> Parts:
        if len(modules) > 1:
            raise UserError(
                f"{path}: it has the entry points {', '.join(modules)}; a program of several is "
                "compiled for one device"
            )
        (module,) = modules.values()
        return with_mesh(parts, module, sizes, target, options)[0]

    if not targets:
        targets = [name.partition("@")[0] for name in Bundle(path).variants] or ["cpu"]
    _write_with(path, targets, add, output, settings, as_json)


def _write_with(
    path: Path,
    targets: Sequence[str],
    add: Callable[[Parts, Mapping[str, Module], str, Options], Parts],
    output: Path | None,
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Write the bundle with the code that `add` compiles for each target, and say what it has."""
    bundle = Bundle(path)
    bundle.verify_all()  # else damage would get a digest that fits
    modules = decode_modules(bundle)
    options = read_options(settings, options_of(bundle))
    parts: Parts = bundle
    for target in dict.fromkeys(targets):
        parts = add(parts, modules, target, options)
    kept = [name for name in bundle.variants if parts.variants[name] is bundle.variants[name]]
    foreign = [name for name in kept if bundle.variants[name].native and not bundle.is_trusted]
    kernel = next(filter(None, map(native_kernel, modules.values())), None)
    if not bundle.is_trusted and kernel is not None:
        foreign.append(f"kernel '{kernel}'")
    written = output or path
    write(written, parts, seal=not foreign)
    facts = {
        name: _facts(parts, name, bundle.label, name in kept) for name in sorted(parts.variants)
    }
    if as_json:
        return show.print_json(
            {"bundle": str(written), "bytes": written.stat().st_size, "variants": facts}
        )
    for name, about in facts.items():
        cubins = f" and machine code for {', '.join(about['cubins'])}" if about["cubins"] else ""
        show.console.print(
            f"{written}: {name} {'kept' if about['kept'] else 'compiled'}, {about['kernels']} "
            f"kernels, {show.size(about['code_bytes'])}{cubins}"
        )
        for note in [] if about["kept"] else about["notes"]:
            show.console.print(f"note: {name}: {note}")
    if foreign:
        show.console.print(
            f"note: {', '.join(foreign)} was not compiled by you, so the bundle is not sealed"
        )


def _facts(parts: Parts, target: str, label: str, kept: bool) -> dict[str, Any]:
    variant = parts.variants[target]
    plans = [parse_plan(variant, label, entry) for entry in parts.signatures]
    return {
        "kept": kept,
        "kernels": sum(len(plan.kernels) for plan in plans),
        "code_bytes": len(variant.image),
        "cubins": sorted(variant.cubins),
        "own_weight_bytes": sum(array.nbytes for array in variant.weights.values()),
        "notes": [note for plan in plans for note in plan.notes],
    }
