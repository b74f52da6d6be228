"""How the tensors of a program lie on the devices of a mesh: what each process takes and gives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ...hlo.errors import UserError
from ...hlo.placement import cut_for, joined
from ...hlo.sharding import Mesh, Sharding, parse_mesh, parse_sharding
from ...hlo.signature import Argument, Result, Signature
from ...hlo.trees import describe
from ..bundle import Variant
from ..inputs import Leaf
from .started import own_rank, the_world

Array = np.ndarray[Any, Any]
_Typed = TypeVar("_Typed", Argument, Result)
_RANKED = re.compile(r"(.*)@(\d+)", re.DOTALL)


@dataclass(frozen=True)
class MeshLayout:
    """A mesh, and how arguments and results lie on it, in the order of the signature.

    weights: name in the plan -> (name in the bundle, how it lies), of those that are cut.
    """

    mesh: Mesh
    arguments: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    weights: Mapping[str, tuple[str, Sharding]] = field(default_factory=dict)

    def signature(self, whole: Signature) -> Signature:
        """What one process takes and gives, where `whole` is what all do; UserError where the
        layout is none of such arguments and results."""
        for declared, placed in ((whole.arguments, self.arguments), (whole.results, self.results)):
            if len(declared) != len(placed):
                raise UserError(
                    f"its layout places {len(placed)} of {len(declared)} arguments or results"
                )
            for one, sharding in zip(declared, placed, strict=True):
                sharding.check(self.mesh, len(one.dims))
        return replace(
            whole,
            arguments=tuple(map(self._local, whole.arguments, self.arguments)),
            results=tuple(map(self._local, whole.results, self.results)),
        )

    def _local(self, declared: _Typed, sharding: Sharding) -> _Typed:
        return replace(declared, dims=sharding.local_dims(self.mesh, _fixed(declared)))

    def leaf(self, argument: Argument, index: int, overwritten: bool) -> Leaf:
        """What a process takes for an argument of the whole program."""
        return BlockLeaf(argument, self, self.arguments[index], overwritten)

    def blocks(self, outputs: Sequence[Any], declared: Sequence[Result]) -> list[Any]:
        """A process's outputs, which know how to gather the whole."""
        return self._known(outputs, self.results[: len(outputs)], declared[: len(outputs)])

    def buffers(self, arrays: Sequence[Any], declared: Sequence[Argument]) -> list[Any]:
        """A process's values of the last arguments, the same."""
        first = len(declared) - len(arrays)
        return self._known(arrays, self.arguments[first:], declared[first:])

    def _known(
        self,
        arrays: Sequence[Any],
        placed: Sequence[Sharding],
        declared: Sequence[Argument | Result],
    ) -> list[Any]:
        return [
            Block.of(array, self, sharding, _fixed(one))
            if isinstance(array, np.ndarray)
            else array  # a framework's, such as a random key
            for array, sharding, one in zip(arrays, placed, declared, strict=True)
        ]

    def weights_of(
        self, rank: int, own: Mapping[str, Array], shared: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The weights of a process by the plan's names. own: of the variant, where `w@3` is the `w`
        of process 3; shared: the bundle's, whole."""
        found: dict[str, Array] = {}
        for name in own:
            ranked = _RANKED.fullmatch(name)
            if ranked is None:
                found[name] = own[name]
            elif int(ranked[2]) == rank:
                found[ranked[1]] = own[name]
        for name, (base, sharding) in self.weights.items():
            if base not in shared:
                raise UserError(f"the bundle holds no weight '{base}' that its layout names")
            sharding.check(self.mesh, shared[base].ndim)
            found[name] = cut_for(shared[base], sharding, self.mesh, rank)
        return found

    def to_json(self) -> dict[str, Any]:
        """The message `BundleLayout` of specs/bundle.proto."""
        return {
            "mesh": str(self.mesh),
            "arguments": list(map(str, self.arguments)),
            "results": list(map(str, self.results)),
            "weights": [
                {"name": name, "weight": base, "sharding": str(sharding)}
                for name, (base, sharding) in sorted(self.weights.items())
            ],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> MeshLayout:
        """Of what `to_json` gives; KeyError, TypeError or UserError for anything else."""
        mesh = parse_mesh(data["mesh"])
        if not mesh.static:
            raise UserError(f"the mesh {mesh} has an open size")

        def read(text: str) -> Sharding:
            sharding = parse_sharding(text)
            sharding.check(mesh, sharding.rank)
            return sharding

        return MeshLayout(
            mesh,
            tuple(map(read, data["arguments"])),
            tuple(map(read, data["results"])),
            {
                str(one["name"]): (str(one["weight"]), read(one["sharding"]))
                for one in data.get("weights", ())
            },
        )


def layout_of(variant: Variant) -> MeshLayout:
    """The layout of a variant for several devices; UserError where it is malformed."""
    assert variant.layout is not None
    try:
        return MeshLayout.from_json(variant.layout)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"the layout of the bundle's code is malformed: {error}") from error


class BlockLeaf(Leaf):
    """What a process takes for an argument: its block, or the whole array, which it cuts."""

    __slots__ = ("_layout", "_sharding", "_whole")

    def __init__(
        self, whole: Argument, layout: MeshLayout, sharding: Sharding, overwritten: bool
    ) -> None:
        local = sharding.local_dims(layout.mesh, _fixed(whole))
        super().__init__(replace(whole, dims=local), overwritten)
        self._layout, self._sharding, self._whole = layout, sharding, tuple(whole.dims)

    def accept(self, value: Any, giving: bool = False) -> tuple[Array, bool]:
        array = self._to_array(value)
        if array.shape != self._whole or self._whole == self.shape:
            return super().accept(array, giving)
        block = cut_for(array, self._sharding, self._layout.mesh, own_rank())
        own = giving and self.overwritten  # the whole array is not given up by its own accord
        return super().accept(block.copy() if own else block, giving)

    def refuse(self, reason: str, remedy: str = "") -> UserError:
        whole = f"{self.dtype.name}[{','.join(map(str, self._whole))}]"
        return super().refuse(f"this process's block of {whole}, or all of it, {reason}", remedy)


class Block(np.ndarray[Any, Any]):
    """This process's block of a result. `sharding`: how the whole, of dims `whole`, lies."""

    _layout: MeshLayout | None = None
    sharding: Sharding | None = None
    whole: tuple[int, ...] = ()

    @staticmethod
    def of(array: Array, layout: MeshLayout, sharding: Sharding, whole: Sequence[int]) -> Block:
        """The array as such a block."""
        block = array.view(Block)
        block._layout, block.sharding, block.whole = layout, sharding, tuple(whole)
        return block

    def gather(self) -> Array:
        """The whole result. All processes of the program have to call it, in the same order."""
        layout, sharding = self._layout, self.sharding
        if layout is None or sharding is None:
            raise UserError(
                f"gather: {describe(self)} was made of a result, and is none; gather the result "
                "before computing with it"
            )
        own = np.asarray(self, order="C")
        if layout.mesh.devices == 1 or not sharding.axes:
            return own.copy()
        blocks = gathered(own, "gather of a result")
        return joined(blocks, sharding, layout.mesh, self.whole)


def gathered(own: Array, what: str) -> list[Array]:
    """The arrays of all processes, which have one type and shape."""
    world = the_world()
    found = [own if n == world.rank else np.empty_like(own) for n in range(world.size)]
    outgoing = [(peer, own) for peer in world.others]
    incoming = [(peer, found[peer]) for peer in world.others]
    with world.lock:
        world.exchange(outgoing, incoming, what)
    return found


def _fixed(declared: Argument | Result) -> tuple[int, ...]:
    dims = tuple(dim for dim in declared.dims if isinstance(dim, int))
    if len(dims) != len(declared.dims):
        raise UserError(f"{declared}: a program of several processes has fixed sizes")
    return dims
