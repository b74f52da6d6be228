"""`girih convert`: a bundle for readers of an older format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..hlo.versions import version_tuple
from ..hlo.wire import for_version, read_message
from ..runtime.bundle import Bundle
from ..runtime.bundle_writer import write
from ..runtime.parts import copied_parts
from . import show


def convert_bundle(path: Path, output: Path, version: str, as_json: bool) -> None:
    """Write the bundle with its program in that format; everything else stays."""
    bundle = Bundle(path, "all")
    bundle.verify_all()  # else damage would get a digest that fits
    before = _reader(bundle.programs.values())
    first, *others = (for_version(program, version) for program in bundle.programs.values())
    after = _reader([first, *others])
    further = dict(zip(list(bundle.programs)[1:], others, strict=True))
    # Code that this user did not compile is not marked as if.
    write(output, copied_parts(bundle, source=first, further=further), seal=bundle.is_trusted)
    if as_json:
        return show.print_json(
            {"bundle": str(output), "format": after, "was": before, "bytes": output.stat().st_size}
        )
    changed = "unchanged" if before == after else f"was {before}"
    show.console.print(f"{output}: program format {after} ({changed})")


def _reader(programs: Iterable[bytes]) -> str:
    """The oldest format whose readers take all of these programs."""
    return max((read_message(one).minimum_reader for one in programs), key=version_tuple)
