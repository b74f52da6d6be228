"""Processors, and whether one can run code that was made for another."""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

# LLVM's feature names where /proc/cpuinfo spells them otherwise, apart from "-" and "." for "_".
_CPUINFO = {
    "sse3": "pni", "lzcnt": "abm", "bmi": "bmi1", "neon": "asimd", "avx512bf16": "avx512_bf16",
    "avx512vnni": "avx512_vnni", "dotprod": "asimddp", "fullfp16": "asimdhp",
}  # fmt: skip
_ALWAYS = {"aarch64": frozenset({"asimd"})}  # what no processor of the architecture lacks
_ARCHITECTURES = {"arm64": "aarch64", "amd64": "x86_64"}


class Processor(NamedTuple):
    """`features`: as /proc/cpuinfo names them; None where the system does not tell."""

    architecture: str
    features: frozenset[str] | None

    def lacks(self, triple: str, features: Sequence[str]) -> str:
        """Why code for a triple that needs these features (LLVM's names) does not run here; ""
        where it does."""
        built = triple.split("-", 1)[0]
        if built != self.architecture:
            return f"code is for {built}, this machine is {self.architecture}"
        if self.features is None:
            return ""
        missing = [name for name in features if _cpuinfo_name(name) not in self.features]
        if missing:
            return f"code needs CPU features that this machine lacks: {', '.join(missing)}"
        return ""


@functools.cache
def this_processor() -> Processor:
    """The one that this process runs on."""
    name = platform.machine().lower()
    architecture = _ARCHITECTURES.get(name, name)
    return Processor(architecture, _features(architecture))


def _features(architecture: str) -> frozenset[str] | None:
    """Those of the first processor in /proc/cpuinfo. Containers on arm64 may leave out the line."""
    always = _ALWAYS.get(architecture)
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return always
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.split(":", 1)[1].split()) | (always or frozenset())
    return always


def _cpuinfo_name(feature: str) -> str:
    return _CPUINFO.get(feature) or feature.replace("-", "_").replace(".", "_")
