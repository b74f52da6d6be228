"""The command line: which commands there are."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from .commands import bundles, cache, explain, machines, sources

app = typer.Typer(
    name="girih",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


for name, command in (
    ("compile", sources.compile_command),
    ("run", bundles.run),
    ("inspect", bundles.inspect),
    ("verify", bundles.verify),
    ("bench", bundles.bench),
    ("dump", sources.dump),
    ("bisect", sources.bisect),
    ("check-backend", machines.check_backend_command),
    ("export", sources.export_command),
    ("machine", machines.machine),
    ("doctor", bundles.doctor),
    ("retarget", bundles.retarget),
    ("repartition", bundles.repartition),
    ("convert", sources.convert),
    ("check-contract", machines.check_contract_command),
):
    app.command(name=name)(command)

explain_app = typer.Typer(no_args_is_help=True, help="Why a program is as it is.")
explain_app.command(name="memory")(explain.explain_memory_command)
explain_app.command(name="sharding")(explain.explain_sharding_command)
explain_app.command(name="reshard")(explain.explain_reshard_command)
app.add_typer(explain_app, name="explain")

cache_app = typer.Typer(no_args_is_help=True, help="The cache of compiled kernels.")
cache_app.command(name="ls")(cache.cache_list)
cache_app.command(name="explain")(cache.cache_explain)
cache_app.command(name="clear")(cache.cache_clear)
app.add_typer(cache_app, name="cache")
