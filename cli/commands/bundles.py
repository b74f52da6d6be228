"""Commands of compiled bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..parameters import (
    AllowNative,
    BundleMesh,
    BundlePath,
    CommTimeout,
    DeviceNumber,
    Entry,
    Inputs,
    Json,
    ProfileFile,
    Random,
    Repeat,
    Results,
    RewrittenBundle,
    Seed,
    Settings,
    Simulate,
    Source,
    Target,
    Threads,
    VariantName,
)
from ..spelled import read_sizes
from .implementation import implementation


def run(
    bundle: BundlePath,
    inputs: Inputs = None,
    random: Random = False,
    seed: Seed = 0,
    entry: Entry = None,
    output: Results = None,
    repeat: Repeat = 1,
    profile: ProfileFile = None,
    target: VariantName = None,
    mesh: BundleMesh = None,
    device: DeviceNumber = None,
    simulate: Simulate = False,
    threads: Threads = None,
    comm_timeout: CommTimeout = None,
    allow_native: AllowNative = False,
    as_json: Json = False,
) -> None:
    """Run a bundle; needs neither the framework nor the compiler.

    Examples:

      girih run model.girih image.npy -o logits.npy

      girih run model.girih input_ids=ids.npy attention_mask=mask.npy

      girih run model.girih --random --repeat 20 --profile trace.json

      girih run model.girih --random --simulate

      girih run llama.girih --entry decode token=token.npy

      mpiexec -n 8 girih run sharded.girih tokens=tokens.npy -o logits.npy
    """
    running = implementation("running")
    running.run_bundle(
        bundle,
        inputs or [],
        seed if random else None,
        output,
        repeat,
        profile,
        running.LoadOptions(target, read_sizes(mesh), device, simulate, threads, comm_timeout),
        allow_native,
        as_json,
        entry,
    )


def inspect(
    bundle: BundlePath,
    kernels: Annotated[
        int, typer.Option("--kernels", help="How many kernels to list; 0 lists none.")
    ] = 12,
    members: Annotated[bool, typer.Option("--members", help="List the file's members.")] = False,
    rules: Annotated[
        bool, typer.Option("--rules", help="List all rules that rewrote the program.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what a bundle holds: entry points, sizes, kernels, memory. Runs nothing of it.

    Examples:

      girih inspect model.girih

      girih inspect model.girih --json | jq .memory
    """
    implementation("inspecting").inspect_bundle(bundle, kernels, members, as_json, rules)


def verify(
    bundle: BundlePath,
    run_checks: Annotated[
        bool, typer.Option("--run/--no-run", help="Run the golden cases, if there are any.")
    ] = True,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Run them on a GPU's code, in the simulator.")
    ] = False,
    allow_native: AllowNative = False,
    as_json: Json = False,
) -> None:
    """Check every digest of a bundle, then its golden results on this machine.

    Examples:

      girih verify model.girih

      girih verify downloaded.girih --no-run

      girih verify model.girih --simulate
    """
    implementation("inspecting").verify_bundle(bundle, run_checks, simulate, allow_native, as_json)


def bench(
    source: Source,
    inputs: Inputs = None,
    entry: Entry = None,
    seed: Seed = 0,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="How long to measure each contender.")
    ] = 3.0,
    target: Target = "cpu",
    settings: Settings = None,
    threads: Threads = None,
    allow_native: AllowNative = False,
    as_json: Json = False,
) -> None:
    """Time a program beside the frameworks that are installed and can run the same source.

    XLA runs every source; PyTorch runs .pt2 files. Rounds of all contenders take turns, so that a
    busy machine is unfair to none; medians are shown.

    Examples:

      girih bench model.pt2

      girih bench model.girih --seconds 10 --json
    """
    implementation("benching").bench_source(
        source,
        inputs or [],
        seed,
        seconds,
        target,
        settings or [],
        threads,
        allow_native,
        as_json,
        entry,
    )


def retarget(
    bundle: BundlePath,
    add: Annotated[
        list[str],
        typer.Option(
            "--add",
            help="A target, such as nvidia:sm_90a, cpu:neon or cpu; may be repeated.",
            show_default=False,
        ),
    ],
    output: RewrittenBundle = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Add code for other targets to a bundle, from the program in it; needs no GPU.

    Code that the bundle has for a target is made anew. Weights that all targets read in the same
    form stay stored once.

    Examples:

      girih retarget model.girih --add nvidia:sm_90a

      girih retarget model.girih --add nvidia:sm_80 --add cpu -o everywhere.girih
    """
    implementation("retargeting").retarget_bundle(bundle, add, output, settings or [], as_json)


def repartition(
    bundle: BundlePath,
    mesh: Annotated[
        str,
        typer.Option(
            "--mesh",
            metavar="AXIS=SIZE,...",
            help="The new size of each axis: data=4,model=2; all of size 1 for one device.",
            show_default=False,
        ),
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="A target, such as cpu or cpu:avx2; may be repeated. Default: those that the "
            "bundle has.",
            show_default=False,
        ),
    ] = None,
    output: RewrittenBundle = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Add code for a mesh of other sizes to a bundle, from the annotated program in it.

    Needs no framework. What was written for the devices of one mesh (bodies of manual
    computations, fixed groups of collectives) cannot move; it is refused with axis and line.

    Examples:

      girih repartition model.girih --mesh data=4,model=2

      girih repartition model.girih --mesh data=1,model=1 -o one.girih
    """
    implementation("retargeting").repartition_bundle(
        bundle, mesh, target or [], output, settings or [], as_json
    )


def doctor(
    file: Annotated[Path, typer.Argument(help="Any file.", show_default=False, metavar="FILE")],
    compile_too: Annotated[
        bool, typer.Option("--compile", help="Compile it as well, to be sure that it can be.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what a file is, what it needs, whether it works here, and what would mend it.

    Knows bundles, StableHLO as text and as portable artifacts, exports of JAX and PyTorch, and HLO
    of XLA. Runs nothing of the file. Exit code 0: it can be read, and run or compiled; 1: it can be
    read, and something has to be mended; 2: it cannot be read.

    Examples:

      girih doctor model.girih

      girih doctor model.pt2 --compile --json
    """
    raise typer.Exit(implementation("doctor").diagnose(file, compile_too, as_json))
