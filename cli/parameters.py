"""What commands are given: arguments and options that several have, and those of long commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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

# Of `girih compile` and `girih run`.
NewBundle = Annotated[
    Path, typer.Option("--output", "-o", help="The bundle to write.", show_default=False)
]
Entries = Annotated[
    list[str] | None,
    typer.Option(
        "--entry",
        metavar="NAME=SOURCE",
        help="An entry point of the program, instead of one SOURCE; may be repeated. What they "
        "have in common (weights, code, state of one name) is in the bundle once.",
    ),
]
State = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="ARGUMENT=RESULT",
        help="An argument that lives between calls, and the result that replaces it, such as "
        "'cache=output[1]'; * stands for any text. May be repeated.",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help="What to compile for: cpu (this machine's; the default), cpu:avx2 or another "
        "level (amx, avx512-bf16, avx512, baseline, neon), nvidia:sm_90a or another "
        "architecture of NVIDIA, null. May be repeated: the bundle then holds code for each.",
    ),
]
MatmulPrecision = Annotated[
    str | None,
    typer.Option(
        "--matmul-precision",
        help="What float32 products read: float32; tensorfloat32, on NVIDIA's matrix units; or "
        "bfloat16, which rounds their operands.",
    ),
]
ActivationPrecision = Annotated[
    str | None,
    typer.Option(
        "--activation-precision",
        help="What float32 values that layers hand to each other are stored in: float32, or "
        "bfloat16.",
    ),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        help="The most memory that one call at a time may take: 800MB, 2GiB. What would need "
        "more is computed again, or the compilation fails.",
    ),
]
MaxReshard = Annotated[
    str | None,
    typer.Option(
        "--max-reshard",
        metavar="LIMITS",
        help="Fail, with exit code 3, where a device of the mesh receives more in a step: "
        "total=64MiB,op=8MiB,count=12,axis.model=32MiB.",
    ),
]
Measure = Annotated[
    int,
    typer.Option(
        "--measure",
        min=0,
        help="Time this many variants of each kernel on this machine and take the fastest; the "
        "bundle keeps the choices. No kernel is begun after 30 s.",
    ),
]
TuningFile = Annotated[
    Path | None,
    typer.Option(
        "--tuning",
        help="A bundle or a tuning.json with choices that were measured before.",
        show_default=False,
    ),
]
Locked = Annotated[bool, typer.Option("--locked", help="Never time anything.")]
Mesh = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        metavar="AXIS=SIZE,...",
        help="Compile for a mesh of devices, one process each, whose axes these are, major to "
        "minor: data=2,model=4. Without --shard the source says how its tensors lie.",
    ),
]
Shard = Annotated[
    list[str] | None,
    typer.Option(
        "--shard",
        metavar="PATTERN=SPEC",
        help="How arguments and weights of these names lie on the mesh: for each dim an axis, "
        "several (data+model), or - for none, such as 'layers.*.w1=-,model'. May be repeated.",
    ),
]
Size = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="NAME=SIZE",
        help="What an open size is: batch=1..64, seq=16..512:16 (in steps of 16), batch=8, or "
        "tokens.0=batch, another name; of a symbol, or of a dimension of an argument. May be "
        "repeated.",
    ),
]
Hot = Annotated[
    list[str] | None,
    typer.Option(
        "--hot",
        metavar="NAME=N,...",
        help="Sizes that calls often have, such as batch=1,seq=128: code for just these is in "
        "the bundle as well. May be repeated.",
    ),
]
Checks = Annotated[
    int,
    typer.Option(
        "--checks",
        min=0,
        help="Store this many golden cases: made-up inputs and what the reference interpreter "
        "gives for them. `girih verify` compares them on any machine.",
    ),
]
Results = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Save the results: .npz, .safetensors or .npy."),
]
Repeat = Annotated[int, typer.Option("--repeat", min=1, help="Run this often, time it.")]
ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", help="Write a trace for ui.perfetto.dev; print kernel times."),
]
VariantName = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Which of the bundle's variants: cpu:avx2, or the best of cpu or of nvidia; "
        "default: the best that this machine can run.",
        show_default=False,
    ),
]
BundleMesh = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        metavar="AXIS=SIZE,...",
        help="Which of the bundle's meshes; default: the first of as many devices as mpiexec "
        "has started processes.",
    ),
]
DeviceNumber = Annotated[
    int | None,
    typer.Option("--device", min=0, help="The number of the GPU.", show_default=False),
]
Simulate = Annotated[
    bool,
    typer.Option(
        "--simulate",
        help="Run a GPU's code in the simulator: slow, without a GPU; it finds faults, with "
        "their source lines, and counts instructions, memory traffic and bank conflicts.",
    ),
]
CommTimeout = Annotated[
    float | None,
    typer.Option(
        "--comm-timeout",
        help="Seconds that a process of several may wait for the others at a time; default "
        "GIRIH_COMM_TIMEOUT, or 300.",
        show_default=False,
    ),
]
RewrittenBundle = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Where to write; default: the same file.", show_default=False
    ),
]
