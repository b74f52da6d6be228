"""The command `girih`: compile, run, inspect, verify, bench and dump programs.

In: words of a command line. Out: what the package's functions give, as text, files or an exit
status. Imported by `girih`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from ..hlo.errors import BudgetError, CompilerBug, UserError
from ..hlo.extras import require


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; exits with 0, 2 for an error that the user can mend, 3 where a program's devices
    send more than its budget allows, 4 for a bug of ours."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    traceback = "--traceback" in arguments
    arguments = [argument for argument in arguments if argument != "--traceback"]
    warnings.showwarning = _show_warning
    try:
        for package in ("typer", "rich"):
            require(package, "the command line")
        from .app import app

        app(args=arguments, prog_name="girih")
    except UserError as error:
        if traceback:
            raise
        print(f"girih: {error}", file=sys.stderr)
        _end_others(arguments)
        sys.exit(3 if isinstance(error, BudgetError) else 2)
    except CompilerBug as error:
        if traceback:
            raise
        print(
            f"girih: a bug in girih: {error}; please report it with the program and the output of "
            "the same command with --traceback",
            file=sys.stderr,
        )
        _end_others(arguments)
        sys.exit(4)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        sys.exit(1)


def _end_others(arguments: Sequence[str]) -> None:
    """Other processes that run the program with this one would wait for it."""
    if "run" not in arguments[:1]:
        return
    import_module("..runtime.distributed.started", __package__).end_all_processes()


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"girih: warning: {message}", file=sys.stderr)
