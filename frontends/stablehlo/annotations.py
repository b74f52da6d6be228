"""What a tree says of shardings, in each spelling that there is, as `hlo/sharding.py` has it.

Shardy's (`sdy.sharding`), the same in frontend attributes (`xla.sdy.sharding`, older exports), and
that of the partitioner before (`mhlo.sharding`, see gspmd.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...hlo.errors import UserError
from ...hlo.sharding import DimSharding, Mesh, Sharding, ShardingReader, parse_mesh
from .. import tree
from . import attributes as attribute_tables
from . import gspmd, sdy

SHARDY, OLDER, FRONTEND = "sdy.sharding", "mhlo.sharding", "mhlo.frontend_attributes"
_IN_FRONTEND, _MESHES = "xla.sdy.sharding", "xla.sdy.meshes"
_NAMED_MESH = re.compile(
    r'"?([\w.$-]+)"?\s*=\s*#sdy\.mesh(<\[[^][]*\](?:, device_ids=\[[^]]*\])?>)'
)


class Annotations:
    """Reads the shardings of one module; `meshes` are those that it declares or names."""

    def __init__(self, module: tree.Operation) -> None:
        self.meshes: dict[str, Mesh] = dict(_declared(module))
        self.older = gspmd.Spelling(_older_texts(module), _partitions(module))

    def of_value(self, facts: Mapping[str, Any], rank: int) -> Sharding | None:
        """What an argument's or a result's attributes say; UserError for what cannot be read."""
        found = _shardy_text(facts)
        if found:
            shardings = self.read(found)
            return self.checked(shardings[0], rank) if shardings else None
        return self.of_older(str(facts.get(OLDER, "")), rank)

    def of_results(
        self, operation: tree.Operation, ranks: Sequence[int | None]
    ) -> list[Sharding | None]:
        """What an operation's attributes say of its results, which have these ranks (None: no
        tensor)."""
        found = _shardy_text(operation.attributes)
        if found:
            stated: list[Sharding | None] = list(self.read(found))
        else:
            texts = gspmd.members(str(operation.attributes.get(OLDER, "")), len(ranks))
            stated = [
                None if rank is None else self.of_older(text, rank)
                for text, rank in zip(texts, ranks, strict=True)
            ]
        if not ranks and all(s and sdy.is_maximal(self.mesh(s.mesh)) for s in stated):
            return []  # on which device an operation without results runs
        if len(stated) != len(ranks):
            raise UserError(f"has {len(ranks)} results, but shardings of {len(stated)}")
        return [
            None if one is None or rank is None else self.checked(one, rank)
            for one, rank in zip(stated, ranks, strict=True)
        ]

    def of_older(self, text: str, rank: int, is_open: Sequence[int] = ()) -> Sharding | None:
        """What `mhlo.sharding` says; None where that is nothing that axes of a mesh can say."""
        found = self.older.sharding(text, rank, is_open) if text else None
        if found is not None:
            sharding, mesh = found
            sharding.check(mesh, rank)
            self.meshes[sharding.mesh] = mesh
            return sharding
        return None

    def read(self, text: str) -> list[Sharding]:
        """The shardings in `#sdy.sharding<..>` or `#sdy.sharding_per_value<[..]>`."""
        reader = ShardingReader(text.partition("<")[1] + text.partition("<")[2], self._inline)
        if text.startswith("#sdy.sharding_per_value"):
            reader.expect("<")
            reader.expect("[")
            found = list(reader.items("]", reader.sharding))
            reader.expect(">")
        else:
            found = [reader.sharding()]
        reader.end()
        for sharding in found:
            self.mesh(sharding.mesh)
        return found

    def mesh(self, name: str) -> Mesh:
        """The mesh of that name; UserError if there is none."""
        if name not in self.meshes:
            raise UserError(f"a sharding names the mesh @{name}, which is not in the file")
        return self.meshes[name]

    def _inline(self, mesh: Mesh) -> str:
        name = sdy.inline_name(mesh)
        self.meshes[name] = mesh
        return name

    def checked(self, sharding: Sharding, rank: int) -> Sharding:
        """The sharding of a tensor of that rank; UserError where it is none."""
        mesh = self.mesh(sharding.mesh)
        if sdy.is_maximal(mesh) and not sharding.dims:  # whatever the rank
            sharding = Sharding(sharding.mesh, (DimSharding(),) * rank)
        sharding.check(mesh, rank)
        return sharding


def left(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes without those that say how a value lies."""
    kept = {key: value for key, value in facts.items() if key != SHARDY}
    if gspmd.is_read(str(kept.get(OLDER, ""))):
        del kept[OLDER]
    frontend = kept.get(FRONTEND)
    if isinstance(frontend, Mapping):
        kept[FRONTEND] = {key: v for key, v in frontend.items() if not key.startswith("xla.sdy.")}
        if not kept[FRONTEND]:
            del kept[FRONTEND]
    return kept


def states(facts: Mapping[str, Any]) -> bool:
    """Whether attributes say how a value lies."""
    return SHARDY in facts or OLDER in facts or bool(_shardy_text(facts))


def _shardy_text(facts: Mapping[str, Any]) -> str:
    stated = facts.get(SHARDY)
    if stated is None:
        frontend = facts.get(FRONTEND)
        stated = frontend.get(_IN_FRONTEND) if isinstance(frontend, Mapping) else None
    return f"#{stated.name}{stated.text}" if isinstance(stated, tree.Opaque) else str(stated or "")


def _declared(module: tree.Operation) -> Iterator[tuple[str, Mesh]]:
    """The meshes that a module declares, by symbol."""
    for operation in (op for region in module.regions for op in region.operations):
        if operation.name == "sdy.mesh":
            name = str(operation.attributes.get("sym_name", ""))
            text = getattr(operation.attributes.get("mesh"), "text", "")
            record = operation.attributes.get("stablehlo.mesh")
            if text:
                yield name, parse_mesh(text)
            elif isinstance(record, dict):
                stated = attribute_tables.plain(record, str)
                axes = tuple((axis["name"], axis["size"]) for axis in stated["axes"])
                yield name, Mesh(axes, tuple(stated.get("device_ids") or ()))
    frontend = module.attributes.get(FRONTEND)
    told = frontend.get(_MESHES, "") if isinstance(frontend, Mapping) else ""
    for name, text in _NAMED_MESH.findall(str(told).replace('\\"', '"')):
        yield name, parse_mesh(text)


def _older_texts(module: tree.Operation) -> Iterator[str]:
    """Every `mhlo.sharding` in the module."""
    for operation in tree.walk(module):
        facts = [operation.attributes]
        for key in ("arg_attrs", "res_attrs"):
            facts += [
                item for item in operation.attributes.get(key) or () if isinstance(item, dict)
            ]
        for one in facts:
            if OLDER in one:
                yield from gspmd.members(str(one[OLDER]), 0)


def _partitions(module: tree.Operation) -> int:
    stated = module.attributes.get("mhlo.num_partitions")
    number = getattr(stated, "value", stated)
    return number if isinstance(number, int) and number > 0 else 1
