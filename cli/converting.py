"""`girih convert`: a bundle for readers of an older format."""

from __future__ import annotations

from pathlib import Path

from ..hlo.wire import for_version, read_message
from ..runtime.bundle import Bundle, write
from ..runtime.parts import copied_parts
from . import show


def convert_bundle(path: Path, output: Path, version: str, as_json: bool) -> None:
    """Write the bundle with its program in that format; everything else stays."""
    bundle = Bundle(path, "all")
    bundle.verify_all()  # else damage would get a digest that fits
    before = read_message(bundle.program).minimum_reader
    program = for_version(bundle.program, version)
    after = read_message(program).minimum_reader
    # Code that this user did not compile is not marked as if.
    write(output, copied_parts(bundle, source=program), seal=bundle.is_trusted)
    if as_json:
        return show.print_json(
            {"bundle": str(output), "format": after, "was": before, "bytes": output.stat().st_size}
        )
    changed = "unchanged" if before == after else f"was {before}"
    show.console.print(f"{output}: program format {after} ({changed})")
