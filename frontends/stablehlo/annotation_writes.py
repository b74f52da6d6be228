"""Meshes and shardings of a module in an op tree, said where and as the source said them.

Arguments and results have attributes, other values operations or attributes of their operations.
Where all of a module's shardings came from the partitioner before Shardy, they are written as its
text again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...hlo.errors import Blocker
from ...hlo.graph import Module, Op, Region
from ...hlo.ops.annotation import ANNOTATIONS, ARGUMENT, OPERATION, RESHARD, RESULT
from ...hlo.ops.manual import axis_of, mesh_of, whole_shardings
from ...hlo.sharding import DimSharding, Mesh, Sharding, opened
from ...hlo.types import TensorType
from .. import tree
from . import gspmd, sdy
from .annotations import OLDER, SHARDY
from .tree_parts import operation_of


class AnnotationWriter:
    """What the tree of one module says of shardings. `older`: in the text before Shardy."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.meshes: dict[str, Mesh] = dict(module.meshes)
        only = {op.name for op in module.walk()} & {*ANNOTATIONS, "sdy.manual_computation"}
        old = all(name.startswith((gspmd.MESH, "maximal_mesh_")) for name in self.meshes)
        self.older = bool(self.meshes) and old and only <= {"sharding_constraint"}
        self._border: set[Op] = set()
        self._made: dict[Op, tree.Operation] = {}  # the operation that has the results of an op
        self._results: dict[Op, dict[int, Sharding]] = {}

    def declarations(self) -> Iterator[tree.Operation]:
        """The meshes that have names."""
        for name, mesh in self.meshes.items():
            if name != sdy.inline_name(mesh):
                yield operation_of("sdy.mesh", {"sym_name": name, "mesh": sdy.mesh(mesh)})

    def blockers(self) -> Iterator[Blocker]:
        """The meshes that StableHLO cannot say."""
        for name, mesh in self.meshes.items():
            if not mesh.static:
                reason = f"the mesh @{name} {mesh} has an axis without a size"
                yield Blocker("mesh", "", reason, "give its axes sizes")

    def added(
        self, given: list[dict[str, Any]], stated: Sequence[Sharding | None]
    ) -> list[dict[str, Any]]:
        """Attributes of arguments or results with the shardings among them."""
        if not any(stated):
            return given
        given = given or [{} for _ in stated]
        return [
            facts if sharding is None else {**facts, **self._facts(sharding)}
            for facts, sharding in zip(given, stated, strict=True)
        ]

    def begin(self, body: Region, entry: bool) -> None:
        """The function that is written next: which constraints its arguments and results say.

        Where a function was inlined, those of its arguments and results stand inside another.
        """
        said = {op.operands[0]: op for op in reversed(body.ops) if _states(op, ARGUMENT)}
        taken = {} if entry else {v: op for v, op in said.items() if v.owner is body}
        self._border.update(taken.values())
        for value in body.results:
            only = all(user is None for user, _ in body.uses[value])
            if only and value.op is not None and _states(value.op, RESULT):
                self._border.add(value.op)

    def of_arguments(self, body: Region) -> list[Sharding | None]:
        """How each argument lies, where that is said."""
        found = [
            a.type.sharding if isinstance(a.type, TensorType) else None for a in body.arguments
        ]
        for op in body.ops:
            if _states(op, ARGUMENT) and op in self._border:
                found[op.operands[0].index] = op.type.sharding
        return found

    def of_results(self, body: Region) -> list[Sharding | None]:
        """How each result lies, where the source said it of the result."""
        makers = [value.op for value in body.results]
        return [
            op.type.sharding if op in self._border and op and _states(op, RESULT) else None
            for op in makers
        ]

    def produced(self, op: Op, made: Sequence[tree.Operation]) -> None:
        """`op` has become these operations, the last of which has its results."""
        if made and op.results and len(made[-1].results) == len(op.results):
            self._made[op] = made[-1]

    def operation(self, op: Op) -> tree.Operation | None:
        """What stands for one of the annotations; None where it is said elsewhere."""
        if op.name == "sharding_group":
            number = tree.Integer(op.group_id, "i64")
            return operation_of("sdy.sharding_group", {"group_id": number})
        if op.name == "propagation_barrier":
            number = tree.Integer(_DIRECTIONS[op.allowed_direction], "i32")
            return operation_of("sdy.propagation_barrier", {"allowed_direction": number})
        sharding = op.type.sharding
        assert sharding is not None
        if self._said_elsewhere(op, sharding):
            return None
        if self.older:
            mesh = self.meshes[sharding.mesh]
            is_open = [str(n) for n, dim in enumerate(sharding.dims) if dim.open]
            facts: dict[str, Any] = {"call_target_name": gspmd.SHARDING}
            if is_open:
                facts["backend_config"] = f"unspecified_dims=[{','.join(is_open)}]"
            facts[OLDER] = gspmd.spell(sharding, mesh)
            return operation_of("stablehlo.custom_call", facts)
        name = "sdy.reshard" if _states(op, RESHARD) else "sdy.sharding_constraint"
        return operation_of(name, {"sharding": self._attribute(sharding)})

    def _said_elsewhere(self, op: Op, sharding: Sharding) -> bool:
        """Whether an argument, a result or the operation behind the value says it."""
        (value,) = op.operands
        if op in self._border:
            return True
        maker = self._made.get(value.op) if value.op is not None else None
        if not _states(op, OPERATION) or maker is None or value.op is None:
            return False
        stated = self._results.setdefault(value.op, {})
        if value.index in stated:
            return False
        stated[value.index] = sharding
        if self.older:
            texts = [
                gspmd.spell(stated[n], self.meshes[stated[n].mesh]) if n in stated else "{unknown}"
                for n in range(len(maker.results))
            ]
            maker.attributes[OLDER] = texts[0] if len(texts) == 1 else f"{{{', '.join(texts)}}}"
            return True
        ranks = [len(getattr(result.type, "shape", ())) for result in maker.results]
        whole = (stated.get(n) or opened(sharding.mesh, rank) for n, rank in enumerate(ranks))
        maker.attributes[SHARDY] = sdy.per_value(map(self._attribute, whole))
        return True

    def of_manual(self, op: Op) -> list[tree.Opaque]:
        """The shardings of inputs and results of a manual computation."""
        mesh = mesh_of(op.mesh)
        named = (name for name, known in self.meshes.items() if known == mesh)
        name = next(named, sdy.inline_name(mesh))
        meshes = {**self.meshes, name: mesh}
        found = []
        cuts = (*op.in_shardings, *op.out_shardings)
        for dims, stated in zip(cuts, whole_shardings(op), strict=True):
            if stated is None:
                axes = [DimSharding(tuple(map(axis_of, names))) for names in dims]
                stated = Sharding(name, tuple(axes))
            stated = Sharding(
                name, stated.dims, stated.replicated, stated.unreduced, stated.reduction
            )
            found.append(sdy.sharding(stated, meshes))
        return found

    def _facts(self, sharding: Sharding) -> Mapping[str, Any]:
        if self.older:
            return {OLDER: gspmd.spell(sharding, self.meshes[sharding.mesh])}
        return {SHARDY: self._attribute(sharding)}

    def _attribute(self, sharding: Sharding) -> tree.Opaque:
        return sdy.sharding(sharding, self.meshes)


_DIRECTIONS = {"NONE": 0, "FORWARD": 1, "BACKWARD": 2, "BOTH": 3}


def _states(op: Op, where: str) -> bool:
    return op.name == "sharding_constraint" and op.stated == where
