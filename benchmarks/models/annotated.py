"""What an annotated JAX program is: `Example`, as girih imports it and as XLA compiles it.

One function and one set of annotations serve both: an abstract mesh needs no devices, so a process
with one device can write the program for eight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from girih import import_model
from girih.hlo.graph import Module
from girih.optimizer.sharding.remesh import remeshed

DEVICES = (1, 2, 4, 6, 8)
_GRIDS: Mapping[tuple[int, ...], Mapping[int, tuple[int, ...]]] = {
    (8,): {n: (n,) for n in DEVICES},
    (2, 4): {1: (1, 1), 2: (1, 2), 4: (2, 2), 6: (2, 3), 8: (2, 4)},
    (4, 2): {1: (1, 1), 2: (2, 1), 4: (2, 2), 6: (3, 2), 8: (4, 2)},
    (2, 2, 2): {1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 2, 1), 6: (3, 2, 1), 8: (2, 2, 2)},
}
"""The mesh's sizes on eight devices -> its sizes on other numbers of devices."""


class Argument(NamedTuple):
    """An array: float32, normally distributed with deviation `scale`; or int32 in [0, below).

    spec: its annotation, None where it has none and propagation decides.
    """

    shape: tuple[int, ...]
    spec: P | None = None
    scale: float = 1.0
    below: int = 0

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, jnp.int32 if self.below else jnp.float32)

    def value(self, random: np.random.Generator) -> np.ndarray[Any, Any]:
        if self.below:
            return random.integers(0, self.below, self.shape, np.int32)
        return random.standard_normal(self.shape, np.float32) * np.float32(self.scale)


@dataclass(frozen=True)
class Example:
    """`function` of one dictionary with `arguments`, on a mesh.

    mesh: (axis, size) on eight devices. results: specs in the tree of the results, or None where
    nothing is said of them. donated: arguments are overwritten. portable: whether it can be put on
    other meshes; a manual region is bound to its own.
    """

    function: Callable[[dict[str, Any]], Any]
    arguments: Mapping[str, Argument]
    mesh: tuple[tuple[str, int], ...] = (("model", 8),)
    results: Any = None
    donated: bool = False
    portable: bool = True

    def sizes(self, devices: int) -> dict[str, int]:
        """The mesh on so many devices, one of DEVICES."""
        names, sizes = zip(*self.mesh, strict=True)
        return dict(zip(names, _GRIDS[sizes][devices], strict=True))

    def lowered(self, mesh: jax.sharding.Mesh | AbstractMesh) -> Any:
        """The program as JAX lowers it for a mesh with this one's axes."""

        def placed(spec: P | None) -> NamedSharding | None:
            return None if spec is None else NamedSharding(mesh, spec)

        given = {name: placed(argument.spec) for name, argument in self.arguments.items()}
        results = jax.tree.map(placed, self.results, is_leaf=lambda x: x is None or type(x) is P)
        structs = {name: argument.struct for name, argument in self.arguments.items()}
        jitted = jax.jit(
            self.function,
            in_shardings=(given,),
            out_shardings=results,
            donate_argnums=(0,) if self.donated else (),
        )
        abstract = mesh if isinstance(mesh, AbstractMesh) else mesh.abstract_mesh
        with jax.sharding.use_abstract_mesh(abstract):
            return jitted.trace(structs).lower(lowering_platforms=("cpu",))

    def module(self, devices: int = 8) -> Module:
        """The annotated program, on a mesh of one of DEVICES.

        JAX refuses dims that an axis does not divide; so it writes the program for eight devices,
        and girih puts it on others.
        """
        names, sizes = zip(*self.mesh, strict=True)
        kinds = (AxisType.Auto,) * len(names)
        lowered = self.lowered(AbstractMesh(sizes, names, axis_types=kinds))
        module = import_model(lowered.as_text(debug_info=True))
        return module if devices == 8 else remeshed(module, self.sizes(devices))

    def inputs(self) -> list[np.ndarray[Any, Any]]:
        """The same arrays every time, in the order of the program's arguments."""
        random = np.random.default_rng(13)
        return [self.arguments[name].value(random) for name in sorted(self.arguments)]
