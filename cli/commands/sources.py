"""Commands that read models and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..parameters import (
    ActivationPrecision,
    BundlePath,
    Checks,
    Entries,
    Entry,
    Hot,
    Json,
    Locked,
    MatmulPrecision,
    MaxMemory,
    MaxReshard,
    Measure,
    Mesh,
    NewBundle,
    OneSource,
    Settings,
    Shard,
    Size,
    Source,
    State,
    Target,
    Targets,
    TuningFile,
)
from .implementation import implementation


def compile_command(
    output: NewBundle,
    source: OneSource = None,
    entries: Entries = None,
    state: State = None,
    targets: Targets = None,
    settings: Settings = None,
    matmul_precision: MatmulPrecision = None,
    activation_precision: ActivationPrecision = None,
    max_memory: MaxMemory = None,
    max_reshard: MaxReshard = None,
    measure: Measure = 0,
    tuning: TuningFile = None,
    locked: Locked = False,
    mesh: Mesh = None,
    shard: Shard = None,
    size: Size = None,
    hot: Hot = None,
    checks: Checks = 0,
    as_json: Json = False,
) -> None:
    """Compile an export into a bundle.

    Examples:

      girih compile model.pt2 -o model.girih

      girih compile exported.jax -o model.girih -s numerics=bitwise --checks 1

      girih compile models.py:classifier -o classifier.girih

      girih compile model.pt2 -o tuned.girih --measure 4

      girih compile model.pt2 -o model.girih --target nvidia:sm_90a --target cpu

      girih compile model.pt2 -o model.girih --target cpu:avx2 --target cpu:avx512 --target cpu:neon

      girih compile model.pt2 -o model.girih --size batch=8 --size seq=128

      girih compile --entry prefill=prefill.pt2 --entry decode=decode.pt2 -o llama.girih
    """
    chosen = [f"matmul_precision={matmul_precision}"] if matmul_precision else []
    chosen += [f"activation_precision={activation_precision}"] if activation_precision else []
    chosen += [f"max_memory={max_memory}"] if max_memory is not None else []
    chosen += [f"max_reshard={max_reshard}"] if max_reshard is not None else []
    chosen += [f"measure={measure}"] if measure else []
    chosen += [f"tuning={tuning}"] if tuning else []
    chosen += ["locked=true"] if locked else []
    settings = [*(settings or []), *chosen]
    lying = mesh, shard or []
    implementation("compiling").compile_source(
        source, output, targets or ["cpu"], settings, checks, as_json, lying, entries or [],
        state or [], size or [], hot or [],
    )  # fmt: skip


def convert(
    bundle: BundlePath,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The bundle to write.", show_default=False)
    ],
    version: Annotated[
        str,
        typer.Option(
            "--format",
            help="The program format whose readers have to take it, such as 1.0.",
            show_default=False,
        ),
    ],
    as_json: Json = False,
) -> None:
    """Write a bundle again for readers of an older format.

    A program needs no newer format than what it uses, so most bundles stay as they are. What an
    older format lacks is replaced where it can be said otherwise; all that cannot be is listed.

    Examples:

      girih convert model.girih --format 1.0 -o for_old_readers.girih
    """
    implementation("converting").convert_bundle(bundle, output, version, as_json)


def dump(
    source: Source,
    entry: Entry = None,
    stage: Annotated[
        str,
        typer.Option(
            "--stage",
            metavar="NAME",
            help="A stage, a pass (as it is behind that), or all; an unknown name lists them.",
        ),
    ] = "import",
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel", metavar="NAME", help="Of one kernel alone, by its name in the plan."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="STAGE",
            help="SOURCE is the text of this stage: show what becomes of it.",
        ),
    ] = None,
    origins: Annotated[
        bool, typer.Option("--origins", help="Operations say which line they come from.")
    ] = False,
    places: Annotated[
        bool,
        typer.Option(
            "--places",
            help="In place of a text: where each value that passes between two operations lies, "
            "what that costs, and the next best place.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write to a file instead of stdout; a folder for --stage all."
        ),
    ] = None,
    target: Target = "cpu",
    settings: Settings = None,
    size: Size = None,
    as_json: Json = False,
) -> None:
    """Print what a program is at any stage of its compilation, or after any pass.

    Stages of all targets are import, simplify, fuse, connect, kernels and plan. Between the last
    two, kernels are llvm and asm for CPUs, and layouts, pipeline, llvm and ptx for NVIDIA's GPUs.

    Examples:

      girih dump model.pt2

      girih dump model.pt2 --stage fuse -o fused.txt

      girih dump fused.txt --from fuse --stage kernels

      girih dump model.pt2 --stage all -o stages --target nvidia:sm_90a

      girih dump model.pt2 --stage llvm --kernel contract_tanh_0

      girih dump model.pt2 --places
    """
    dumping = implementation("dumping")
    dumping.dump_source(
        source, dumping.Wanted(stage, kernel, since, origins, places), output, target,
        settings or [], as_json, entry, size or [],
    )  # fmt: skip


def bisect(
    source: Source,
    entry: Entry = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="Inputs as for run; others are drawn with the seed."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the inputs that are made up.")] = 0,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", help="Largest difference, as part of the largest result."),
    ] = 1e-3,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the smallest program that shows it."),
    ] = None,
    target: Target = "cpu",
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Find the pass, rule, operation or kernel that makes results differ from float64.

    Examples:

      girih bisect model.pt2

      girih bisect model.mlir -i x.npy --tolerance 1e-4 -o fault.girih
    """
    implementation("bisecting").bisect_source(
        source, target, settings or [], inputs or [], seed, tolerance, output, as_json, entry
    )


def export_command(
    source: Source,
    entry: Entry = None,
    to: Annotated[str, typer.Option("--to", help="The format: stablehlo.")] = "stablehlo",
    version: Annotated[
        str | None,
        typer.Option(
            "--version",
            help="The StableHLO that has to read it, 0.9.0 to 1.20.0; default: the oldest from "
            "1.0.0 on that has all that the program needs.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write: .mlir for text, .mlirbc for a portable artifact; default: text "
            "on stdout.",
        ),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            "--weights",
            help="Where weights go: constants inside, or arguments of main after the inputs.",
        ),
    ] = "constants",
    as_json: Json = False,
) -> None:
    """Write a program as StableHLO, which XLA and other compilers read.

    Needs no other framework. What StableHLO, or the version, cannot say is listed, all at once.

    Examples:

      girih export model.girih -o model.mlirbc

      girih export model.pt2 --version 1.9.0 -o model.mlirbc --weights arguments

      girih export exported.jax -o model.mlir
    """
    implementation("exporting").export_source(source, to, version, output, weights, as_json, entry)
