"""The commands and their help; each command's work is in a module of its own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import __version__
from .parameters import (
    AllowNative,
    BundleMesh,
    BundlePath,
    Checks,
    CommTimeout,
    DeviceNumber,
    Entries,
    Entry,
    Hot,
    Inputs,
    Json,
    Locked,
    MatmulPrecision,
    MaxMemory,
    MaxReshard,
    Measure,
    Mesh,
    NewBundle,
    OneSource,
    ProfileFile,
    Random,
    Repeat,
    Results,
    Seed,
    Settings,
    Shard,
    Simulate,
    Size,
    Source,
    State,
    Target,
    Targets,
    Threads,
    TuningFile,
    VariantName,
)
from .spelled import read_sizes

app = typer.Typer(
    name="girih",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _command(name: str) -> Any:
    """The module that does a command's work, imported when the command is given: help needs none of
    them, and is quick."""
    return import_module(f".{name}", __package__)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"girih {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """[bold]girih[/bold] compiles exports of JAX and PyTorch into one file that runs without them.

    A first session:

      girih compile model.pt2 -o model.girih
      girih inspect model.girih
      girih run model.girih --random

    Errors are one sentence on stderr with exit code 2, or 3 where a program exceeds its budget of
    communication; --traceback shows where they come from.
    """


@app.command(name="compile")
def compile_command(
    output: NewBundle,
    source: OneSource = None,
    entries: Entries = None,
    state: State = None,
    targets: Targets = None,
    settings: Settings = None,
    matmul_precision: MatmulPrecision = None,
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
    chosen += [f"max_memory={max_memory}"] if max_memory is not None else []
    chosen += [f"max_reshard={max_reshard}"] if max_reshard is not None else []
    chosen += [f"measure={measure}"] if measure else []
    chosen += [f"tuning={tuning}"] if tuning else []
    chosen += ["locked=true"] if locked else []
    settings = [*(settings or []), *chosen]
    lying = mesh, shard or []
    _command("compiling").compile_source(
        source, output, targets or ["cpu"], settings, checks, as_json, lying, entries or [],
        state or [], size or [], hot or [],
    )  # fmt: skip


@app.command()
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
    running = _command("running")
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


@app.command()
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
    _command("inspecting").inspect_bundle(bundle, kernels, members, as_json, rules)


@app.command()
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
    _command("inspecting").verify_bundle(bundle, run_checks, simulate, allow_native, as_json)


@app.command()
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
    _command("benching").bench_source(
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


@app.command()
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
    dumping = _command("dumping")
    dumping.dump_source(
        source, dumping.Wanted(stage, kernel, since, origins, places), output, target,
        settings or [], as_json, entry, size or [],
    )  # fmt: skip


@app.command()
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
    _command("bisecting").bisect_source(
        source, target, settings or [], inputs or [], seed, tolerance, output, as_json, entry
    )


@app.command(name="check-backend")
def check_backend_command(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A target, such as cpu or another package's.")
    ],
    only: Annotated[
        list[str] | None, typer.Option("--only", help="An operation; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile and run the cases of all operations, and compare with what they mean.

    Examples:

      girih check-backend cpu:c

      girih check-backend cpu --only sort --only scatter
    """
    if not _command("conforming").check_backend(target, only or [], as_json):
        raise typer.Exit(1)


@app.command(name="export")
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
    _command("exporting").export_source(source, to, version, output, weights, as_json, entry)


@app.command()
def machine(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A machine file to show instead.", show_default=False, metavar="[FILE]"
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Measure this machine (about 15 seconds; best while it is idle) and keep the "
            "result for `-s machine=host`. Under a launcher: what its processes send each other.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what the cost model assumes: of this machine if it was calibrated, else the typical one.

    Examples:

      girih machine

      girih machine --calibrate

      mpiexec -n 4 girih machine --calibrate

      girih compile model.pt2 -o model.girih -s machine=host
    """
    _command("machine").show_machine(file, calibrate, as_json)


@app.command()
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
    raise typer.Exit(_command("doctor").diagnose(file, compile_too, as_json))


@app.command()
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
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write; default: the same file.", show_default=False
        ),
    ] = None,
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
    _command("retargeting").retarget_bundle(bundle, add, output, settings or [], as_json)


@app.command()
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
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write; default: the same file.", show_default=False
        ),
    ] = None,
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
    _command("retargeting").repartition_bundle(
        bundle, mesh, target or [], output, settings or [], as_json
    )


@app.command()
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
    _command("converting").convert_bundle(bundle, output, version, as_json)


@app.command(name="check-contract")
def check_contract_command(
    kernel: Annotated[
        str, typer.Argument(help="FILE.py:NAME or MODULE:NAME of a kernel.", show_default=False)
    ],
    types: Annotated[
        list[str],
        typer.Argument(
            help="The type of each input, f32[16,8]; values are made up.",
            show_default=False,
            metavar="TYPE...",
        ),
    ],
    constants: Annotated[
        list[str] | None,
        typer.Option("--constant", "-c", metavar="NAME=VALUE", help="A constant of the kernel."),
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Check what a kernel's contract (sharding=) says of cutting it among devices.

    The kernel runs on whole arrays, and in 2, 3 and 4 parts along each dim that may be cut; fails
    with the dim's name where the parts do not give the same.

    Examples:

      girih check-contract kernels.py:attention f32[4,16,8] f32[4,16,8] f32[4,16,8]

      girih check-contract models.kernels:conv 'f32[64,8]' 'f32[3,8]' -c block=16
    """
    _command("contracts").check_contract(kernel, types, constants or [], seed, as_json)


explain_app = typer.Typer(no_args_is_help=True, help="Why a program is as it is.")
app.add_typer(explain_app, name="explain")


@explain_app.command(name="memory")
def explain_memory_command(
    bundle: BundlePath,
    entry: Entry = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help="The variant; by default the one that runs here."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page with the picture and all values, too."),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Show so many values.")] = 12,
    as_json: Json = False,
) -> None:
    """Show where a program's memory goes: over its steps, and at the peak value by value.

    Each value at the peak has its size, the line that makes it, the use that keeps it alive, and
    what computing it again would take; then follows what would lower the peak.

    Examples:

      girih explain memory model.girih

      girih explain memory model.girih --html memory.html
    """
    _command("explaining").explain_memory(bundle, target, html, rows, as_json, entry)


@explain_app.command(name="sharding")
def explain_sharding_command(
    source: Source,
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh",
            metavar="AXIS=SIZE,...",
            help="The mesh; without it, that of the source. With --shard or girih.shard it gives "
            "axes their sizes, else it moves the source's shardings to axes of other sizes.",
        ),
    ] = None,
    shard: Annotated[
        list[str] | None,
        typer.Option("--shard", metavar="PATTERN=SPEC", help="As for `girih compile`."),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            help="What a device may hold, 8GiB, where --shard is auto.",
        ),
    ] = None,
    limits: Annotated[
        str | None,
        typer.Option(
            "--max-reshard",
            metavar="LIMITS",
            help="Fail, with exit code 3, where devices receive more in a step: total=64MiB, "
            "op=8MiB (by one communication), count=12 (of them), axis.model=32MiB (along it); "
            "several with commas.",
        ),
    ] = None,
    budget: Annotated[
        Path | None,
        typer.Option(
            "--budget",
            help="Fail likewise where a device receives more, in all or along an axis, than this "
            "file says, which --json has written.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page with pictures and all chains, too."),
    ] = None,
    suggest: Annotated[
        bool,
        typer.Option(
            "--suggest",
            help="Try other annotations, and tell for each communication which one removes it; "
            "takes as long as planning up to 32 times.",
        ),
    ] = False,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Show so many.")] = 12,
    as_json: Json = False,
) -> None:
    """Show what devices send to each other when a program runs on a mesh, and why.

    Each communication has the bytes that a device receives, the collectives, the mesh axes, its
    time by a round figure of a network, the line that makes the value, the annotations from which
    it follows with all operations between, and what else could be done.

    Examples:

      girih explain sharding exported.jax

      girih explain sharding model.pt2 --mesh data=2,model=4 --shard 'layers.*.w1=-,model'

      girih explain sharding exported.jax --suggest --html sharding.html

      girih explain sharding model.pt2 --mesh data=2,model=4 --shard auto --max-memory 8GiB
    """
    _command("sharding").explain_sharding(
        source, (mesh, shard or [], max_memory), (limits, budget), html, rows, suggest, as_json
    )


@explain_app.command(name="reshard")
def explain_reshard_command(
    source: Source,
    value: Annotated[
        str, typer.Argument(help="An argument, a weight or a result.", show_default=False)
    ],
    before: Annotated[
        str,
        typer.Option("--from", metavar="SPEC", help="As in --shard: data,-.", show_default=False),
    ],
    after: Annotated[str, typer.Option("--to", metavar="SPEC", show_default=False)],
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh", metavar="AXIS=SIZE,...", help="The mesh; without it, that of the source."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how a tensor gets from one sharding to another: the steps, their bytes and memory.

    Beside what is chosen stand a chain of collectives alone, and the least that has to be sent.

    Examples:

      girih explain reshard model.pt2 weight --from data+model,- --to -,model --mesh data=2,model=4
    """
    _command("sharding").explain_reshard(source, value, (before, after), mesh, as_json)


cache_app = typer.Typer(no_args_is_help=True, help="The cache of compiled kernels.")
app.add_typer(cache_app, name="cache")
CacheFolder = Annotated[
    str | None,
    typer.Option("--folder", help="Another folder than the user's own cache.", show_default=False),
]


@cache_app.command(name="ls")
def cache_list(folder: CacheFolder = None, as_json: Json = False) -> None:
    """List the kernels that are kept, those used last first.

    Examples:

      girih cache ls

      girih cache ls --json | jq length
    """
    _command("caching").list_entries(folder, as_json)


@cache_app.command(name="explain")
def cache_explain(
    source: Source,
    settings: Settings = None,
    folder: CacheFolder = None,
    as_json: Json = False,
) -> None:
    """Say for each kernel of a program whether it is kept, and if not, what differs.

    Examples:

      girih cache explain model.pt2

      girih cache explain model.pt2 -s cpu_level=avx2
    """
    _command("caching").explain_source(source, settings or [], folder, as_json)


@cache_app.command(name="clear")
def cache_clear(folder: CacheFolder = None, as_json: Json = False) -> None:
    """Delete all kernels and programs that are kept.

    Examples:

      girih cache clear
    """
    _command("caching").clear_entries(folder, as_json)
