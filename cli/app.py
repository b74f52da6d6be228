"""The commands and their help; each command's work is in a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="girih",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_SOURCE = typer.Argument(
    help="What to compile: a .pt2 file (torch.export.save), a file written from jax.export "
    "(Exported.serialize), StableHLO as .mlir text or .mlirbc bytes, XLA's HLO as text or "
    "protobuf (.hlo, .hlo.pb), a .girih bundle, or FILE.py:NAME, a function that returns "
    "(source, *example_inputs) or a dict of entry points.",
    show_default=False,
)
Source = Annotated[str, _SOURCE]
OneSource = Annotated[str | None, _SOURCE]
BundlePath = Annotated[
    Path, typer.Argument(help="A .girih bundle.", show_default=False, metavar="BUNDLE")
]
Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Files with the inputs: .npy in the order of the arguments, NAME=FILE.npy, or one "
        ".npz or .safetensors file whose arrays bear the arguments' names.",
        show_default=False,
        metavar="[INPUT]...",
    ),
]
Random = Annotated[bool, typer.Option("--random", help="Make up the inputs that are not given.")]
Entry = Annotated[
    str | None,
    typer.Option(
        "--entry",
        metavar="NAME",
        help="Which entry point, where there are several; default: main, or the only one.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of made-up inputs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Workers; default: all cores.")
]
AllowNative = Annotated[
    bool,
    typer.Option(
        "--allow-native",
        help="Run machine code that was not compiled by you. It can do anything you can do: only "
        "for bundles whose origin you trust.",
    ),
]
Target = Annotated[
    str,
    typer.Option(
        "--target", help="What to compile for: cpu, cpu:avx2, nvidia:sm_90a, ptx-sim or null."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="OPTION=VALUE",
        help="A field of girih.Options, such as -s numerics=bitwise; may be repeated.",
    ),
]


def _print_version(asked: bool) -> None:
    if asked:
        from .. import __version__

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
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The bundle to write.", show_default=False)
    ],
    source: OneSource = None,
    entries: Annotated[
        list[str] | None,
        typer.Option(
            "--entry",
            metavar="NAME=SOURCE",
            help="An entry point of the program, instead of one SOURCE; may be repeated. What they "
            "have in common (weights, code, state of one name) is in the bundle once.",
        ),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="ARGUMENT=RESULT",
            help="An argument that lives between calls, and the result that replaces it, such as "
            "'cache=output[1]'; * stands for any text. May be repeated.",
        ),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="What to compile for: cpu (this machine's; the default), cpu:avx2 or another "
            "level (amx, avx512-bf16, avx512, baseline, neon), nvidia:sm_90a or another "
            "architecture of NVIDIA, null. May be repeated: the bundle then holds code for each.",
        ),
    ] = None,
    settings: Settings = None,
    matmul_precision: Annotated[
        str | None,
        typer.Option(
            "--matmul-precision",
            help="What float32 products read: float32; tensorfloat32, on NVIDIA's matrix units; or "
            "bfloat16, which rounds their operands.",
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            help="The most memory that one call at a time may take: 800MB, 2GiB. What would need "
            "more is computed again, or the compilation fails.",
        ),
    ] = None,
    max_reshard: Annotated[
        str | None,
        typer.Option(
            "--max-reshard",
            metavar="LIMITS",
            help="Fail, with exit code 3, where a device of the mesh receives more in a step: "
            "total=64MiB,op=8MiB,count=12,axis.model=32MiB.",
        ),
    ] = None,
    measure: Annotated[
        int,
        typer.Option(
            "--measure",
            min=0,
            help="Time this many variants of each kernel on this machine and take the fastest; the "
            "bundle keeps the choices. No kernel is begun after 30 s.",
        ),
    ] = 0,
    tuning: Annotated[
        Path | None,
        typer.Option(
            "--tuning",
            help="A bundle or a tuning.json with choices that were measured before.",
            show_default=False,
        ),
    ] = None,
    locked: Annotated[bool, typer.Option("--locked", help="Never time anything.")] = False,
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh",
            metavar="AXIS=SIZE,...",
            help="Compile for a mesh of devices, one process each, whose axes these are, major to "
            "minor: data=2,model=4. Without --shard the source says how its tensors lie.",
        ),
    ] = None,
    shard: Annotated[
        list[str] | None,
        typer.Option(
            "--shard",
            metavar="PATTERN=SPEC",
            help="How arguments and weights of these names lie on the mesh: for each dim an axis, "
            "several (data+model), or - for none, such as 'layers.*.w1=-,model'. May be repeated.",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME=SIZE",
            help="What an open size is: batch=1..64, seq=16..512:16 (in steps of 16), batch=8, or "
            "tokens.0=batch, another name; of a symbol, or of a dimension of an argument. May be "
            "repeated.",
        ),
    ] = None,
    hot: Annotated[
        list[str] | None,
        typer.Option(
            "--hot",
            metavar="NAME=N,...",
            help="Sizes that calls often have, such as batch=1,seq=128: code for just these is in "
            "the bundle as well. May be repeated.",
        ),
    ] = None,
    checks: Annotated[
        int,
        typer.Option(
            "--checks",
            min=0,
            help="Store this many golden cases: made-up inputs and what the reference interpreter "
            "gives for them. `girih verify` compares them on any machine.",
        ),
    ] = 0,
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
    from .compiling import compile_source

    chosen = [f"matmul_precision={matmul_precision}"] if matmul_precision else []
    chosen += [f"max_memory={max_memory}"] if max_memory is not None else []
    chosen += [f"max_reshard={max_reshard}"] if max_reshard is not None else []
    chosen += [f"measure={measure}"] if measure else []
    chosen += [f"tuning={tuning}"] if tuning else []
    chosen += ["locked=true"] if locked else []
    settings = [*(settings or []), *chosen]
    lying = mesh, shard or []
    compile_source(
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
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Save the results: .npz, .safetensors or .npy."),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Run this often, time it.")] = 1,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", help="Write a trace for ui.perfetto.dev; print kernel times."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="Which of the bundle's variants: cpu:avx2, or the best of cpu or of nvidia; "
            "default: the best that this machine can run.",
            show_default=False,
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh",
            metavar="AXIS=SIZE,...",
            help="Which of the bundle's meshes; default: the first of as many devices as mpiexec "
            "has started processes.",
        ),
    ] = None,
    device: Annotated[
        int | None,
        typer.Option("--device", min=0, help="The number of the GPU.", show_default=False),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Run a GPU's code in the simulator: slow, without a GPU; it finds faults, with "
            "their source lines, and counts instructions, memory traffic and bank conflicts.",
        ),
    ] = False,
    threads: Threads = None,
    comm_timeout: Annotated[
        float | None,
        typer.Option(
            "--comm-timeout",
            help="Seconds that a process of several may wait for the others at a time; default "
            "GIRIH_COMM_TIMEOUT, or 300.",
            show_default=False,
        ),
    ] = None,
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
    from .compiling import read_sizes
    from .running import Place, run_bundle

    run_bundle(
        bundle,
        inputs or [],
        seed if random else None,
        output,
        repeat,
        profile,
        Place(target, read_sizes(mesh), device, simulate, threads, comm_timeout),
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
    from .inspecting import inspect_bundle

    inspect_bundle(bundle, kernels, members, as_json, rules)


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
    from .inspecting import verify_bundle

    verify_bundle(bundle, run_checks, simulate, allow_native, as_json)


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
    from .benching import bench_source

    bench_source(
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
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            metavar="PASS",
            help="Show the program after this pass; default: as imported. An unknown name lists "
            "the passes.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to a file instead of stdout.")
    ] = None,
    target: Target = "cpu",
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Print the program as the compiler sees it, after any pass.

    Examples:

      girih dump model.pt2

      girih dump model.pt2 --after fuse -o fused.txt
    """
    from .compiling import dump_source

    dump_source(source, after, output, target, settings or [], as_json, entry)


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
    from .bisecting import bisect_source

    bisect_source(
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
    from .conforming import check_backend

    if not check_backend(target, only or [], as_json):
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
    from .exporting import export_source

    export_source(source, to, version, output, weights, as_json, entry)


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
    from .machine import show_machine

    show_machine(file, calibrate, as_json)


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
    from .doctor import diagnose

    raise typer.Exit(diagnose(file, compile_too, as_json))


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
    from .retargeting import retarget_bundle

    retarget_bundle(bundle, add, output, settings or [], as_json)


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
    from .retargeting import repartition_bundle

    repartition_bundle(bundle, mesh, target or [], output, settings or [], as_json)


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
    from .converting import convert_bundle

    convert_bundle(bundle, output, version, as_json)


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
    from .contracts import check_contract

    check_contract(kernel, types, constants or [], seed, as_json)


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
    from .explaining import explain_memory

    explain_memory(bundle, target, html, rows, as_json, entry)


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
    from .sharding import explain_sharding

    explain_sharding(
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
    from .sharding import explain_reshard

    explain_reshard(source, value, (before, after), mesh, as_json)


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
    from .caching import list_entries

    list_entries(folder, as_json)


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
    from .caching import explain_source

    explain_source(source, settings or [], folder, as_json)


@cache_app.command(name="clear")
def cache_clear(folder: CacheFolder = None, as_json: Json = False) -> None:
    """Delete all kernels and programs that are kept.

    Examples:

      girih cache clear
    """
    from .caching import clear_entries

    clear_entries(folder, as_json)
