"""Commands about machines, backends and kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..parameters import (
    Json,
    Seed,
)
from .implementation import implementation


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
    implementation("machine").show_machine(file, calibrate, as_json)


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
    if not implementation("conforming").check_backend(target, only or [], as_json):
        raise typer.Exit(1)


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
    implementation("contracts").check_contract(kernel, types, constants or [], seed, as_json)
