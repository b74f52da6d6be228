"""NVIDIA's architectures by name: which code a GPU can take."""

from __future__ import annotations

import re
from typing import NamedTuple

from ...hlo.errors import UserError

_NAME = re.compile(r"sm_([1-9][0-9]{0,2})([0-9])([af]?)")
FAMILY = "nvidia"


class Architecture(NamedTuple):
    """sm_90a is Architecture(9, 0, "a"): what follows the number binds code to this GPU ("a") or
    to its family ("f")."""

    major: int
    minor: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}{self.suffix}"

    @property
    def capability(self) -> tuple[int, int]:
        return self.major, self.minor

    def runs_binary_on(self, capability: tuple[int, int]) -> bool:
        """Whether a cubin for this architecture runs on a GPU of that compute capability."""
        if self.suffix == "a":
            return capability == self.capability
        return capability[0] == self.major and capability[1] >= self.minor

    def compiles_for(self, capability: tuple[int, int]) -> bool:
        """Whether a driver can compile PTX for this architecture for such a GPU."""
        if self.suffix:
            return self.runs_binary_on(capability)
        return capability >= self.capability


def parse_architecture(name: str) -> Architecture:
    """The architecture of that name, such as "sm_90a"; UserError for other names."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise UserError(f"{name[:40]!r} is no architecture of NVIDIA; one is 'sm_90a'")
    return Architecture(int(found[1]), int(found[2]), found[3])


def architecture_of(target: str) -> Architecture | None:
    """The architecture of a target such as "nvidia:sm_90a", on a mesh or not; None for targets of
    other families."""
    family, colon, name = target.partition("@")[0].partition(":")
    return parse_architecture(name) if colon and family == FAMILY else None


def name_of(capability: tuple[int, int]) -> str:
    """What a GPU of that compute capability is called: "sm_90"."""
    return f"sm_{capability[0]}{capability[1]}"


def target_for(capability: tuple[int, int]) -> str:
    """The target that makes the best code for such a GPU: "nvidia:sm_90a"."""
    return f"{FAMILY}:{name_of(capability)}{'a' if capability[0] >= 9 else ''}"
