"""require-static: programs with sizes that no compiled code can have are refused at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...hlo.errors import UnsupportedError
from ...hlo.graph import Module
from ...hlo.stated_sizes import dims_of_arguments
from ...hlo.symbols import symbols_of
from ...hlo.types import TensorType
from ...hlo.verify import HLO, Level


@dataclass(frozen=True)
class RequireStatic:
    """HLO -> HLO: the same module; UnsupportedError where a size is not fixed."""

    name: ClassVar[str] = "require-static"
    takes: ClassVar[Level] = HLO
    gives: ClassVar[Level] = HLO

    def __call__(self, module: Module) -> Module:
        require_static(module)
        return module


def require_static(module: Module) -> None:
    """UnsupportedError for the first value whose size is not fixed, or a token at the edge."""
    for what, edge in (("argument", module.body.arguments), ("result", module.body.results)):
        for number, value in enumerate(edge):
            if not isinstance(value.type, TensorType):
                raise UnsupportedError(
                    f"{what} {number} is a {value.type}; compiled programs take and give tensors "
                    "only: leave it out of the program's signature, or interpret it"
                )
    for value in module.body.arguments:
        if not value.tensor.is_static:
            raise UnsupportedError(
                f"argument {value.index}: {value.type} has open sizes; compiled programs need "
                f"fixed ones: say what {_names(module)} are (sizes={{...}}, --size NAME=8), give "
                "example inputs with them, export with fixed shapes, or interpret it"
            )
    for op in module.walk():
        for result in op.results:
            if isinstance(result.type, TensorType) and not result.type.is_static:
                raise UnsupportedError(
                    f"{op.place}{op.name}: {result.type} has a size that is known only while the "
                    "program runs; compiled programs need fixed sizes: compute with a mask "
                    "instead, or interpret it"
                )


def _names(module: Module) -> str:
    """The symbols in the arguments, and where the first of each stands."""
    found: dict[str, str] = {}
    for place, dim in dims_of_arguments(module).items():
        for name in symbols_of(dim):
            found.setdefault(name, f"{name} ({place})")
    return ", ".join(found.values())


def is_static(module: Module) -> bool:
    """Whether `require_static` takes the module."""
    try:
        require_static(module)
    except UnsupportedError:
        return False
    return True
