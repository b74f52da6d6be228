"""1.3 to 1.4: shardings of types, their meshes, annotations as operations; the exchange,
and calls with weights.

1.3 had the same as text that nothing read: meshes as attributes of the module (`sdy.mesh.NAME`),
shardings as attributes of arguments, results and operations (`sdy.sharding`). Upwards they become
what they say. Downwards, what the older format cannot say is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import UserError
from ..sharding import Sharding, ShardingReader, parse_mesh

VERSION = "1.4"
OPERATIONS = frozenset(
    {
        "call_with_weights",
        "exchange",
        "propagation_barrier",
        "sharding_constraint",
        "sharding_group",
    }
)
TYPES = frozenset({"mesh", "sharding"})
ATTRIBUTES = frozenset(
    {"foreign_call.variants", "kernel_call.variants", "sdy.manual_computation.shardings"}
)
_REMEDY = "leave the annotation out, or compile the program: for one device it is removed"
REMEDIES = dict.fromkeys(sorted(OPERATIONS | TYPES), _REMEDY) | {
    "call_with_weights": "unroll the program",
    "exchange": "keep the program as it is before it is partitioned",
}

_MESH, _SHARDING, _STATED = "sdy.mesh.", "sdy.sharding", "stated"


def upgrade(message: Any) -> None:
    """Text that says how values lie becomes meshes, types and constraints."""
    names = {entry.key: message.strings[entry.key] for entry in message.attributes}
    for entry in list(message.attributes):
        name = names[entry.key]
        if name.startswith(_MESH) and entry.value.WhichOneof("kind") == "text":
            text = message.strings[entry.value.text].removeprefix("#sdy.mesh")
            try:
                parse_mesh(text)
            except UserError:
                continue  # it stays the text that it was
            message.meshes.add(name=name[len(_MESH) :], mesh=text)
            message.attributes.remove(entry)
    if _SHARDING in message.strings and message.meshes:
        for function in message.functions:
            _Constraints(message, function).run()


def downgrade(message: Any) -> None:
    """Nothing to do."""


class _Constraints:
    """Puts constraints behind the values of one function that attributes speak of."""

    def __init__(self, message: Any, function: Any) -> None:
        self.message, self.function = message, function
        self.meshes = {mesh.name for mesh in message.meshes}
        self.next = 0

    def run(self) -> None:
        function, old = self.function, self.function.body
        new = type(old)()
        numbers: list[int] = []
        entry = function.name == self.message.entry
        arguments = list(self._of_values(function.argument_attributes))
        results = list(self._of_values(function.result_attributes))
        for place, kind in enumerate(old.argument_types):
            stated = arguments[place] if place < len(arguments) else None
            new.argument_types.append(self._lying(kind, stated) if stated and entry else kind)
            numbers.append(self._fresh())
        for place, stated in enumerate([] if entry else arguments):
            if stated is not None:
                kind = old.argument_types[place]
                numbers[place] = self._constraint(new, numbers[place], kind, stated, "argument")
        types = list(old.argument_types)
        self._ops(old, new, numbers, types)
        for place, number in enumerate(old.results):
            stated = results[place] if place < len(results) else None
            found = numbers[number]
            if stated is not None:
                found = self._constraint(new, found, types[number], stated, "result")
            new.results.append(found)
        old.CopyFrom(new)

    def _of_values(self, facts: Any) -> Iterator[Sharding | None]:
        for one in facts:
            stated = self._taken(one.entries)
            yield stated[0] if stated else None

    def _taken(self, entries: Any) -> list[Sharding]:
        """What an attribute says, which is taken away; nothing where it cannot be read."""
        for entry in list(entries):
            if self.message.strings[entry.key] != _SHARDING:
                continue
            if entry.value.WhichOneof("kind") != "text":
                continue
            text = self.message.strings[entry.value.text]
            reader = ShardingReader(text.removeprefix("#sdy.sharding").removeprefix("_per_value"))
            try:
                if "_per_value" in text:
                    reader.expect("<")
                    reader.expect("[")
                    found = list(reader.items("]", reader.sharding))
                else:
                    found = [reader.sharding()]
            except UserError:
                return []
            if any(sharding.mesh not in self.meshes for sharding in found):
                return []
            entries.remove(entry)
            return found
        return []

    def _ops(self, old: Any, new: Any, numbers: list[int], types: list[int]) -> None:
        """`numbers` has the new number of each old value, `types` its type."""
        for op in old.ops:
            out = new.ops.add()
            out.CopyFrom(op)
            stated = self._taken(out.attributes)
            del out.operands[:], out.regions[:]
            out.operands.extend([numbers[number] for number in op.operands])
            for region in op.regions:
                inner = out.regions.add()
                inner.argument_types.extend(region.argument_types)
                numbers.extend(self._fresh() for _ in region.argument_types)
                types.extend(region.argument_types)
                self._ops(region, inner, numbers, types)
                inner.results.extend([numbers[number] for number in region.results])
            made = [self._fresh() for _ in op.result_types]
            if len(stated) == len(made):
                for place, sharding in enumerate(stated):
                    kind = op.result_types[place]
                    origins = op.origins
                    made[place] = self._constraint(
                        new, made[place], kind, sharding, "operation", origins
                    )
            numbers.extend(made)
            types.extend(op.result_types)

    def _constraint(
        self, new: Any, value: int, kind: int, sharding: Sharding, stated: str, origins: int = 0
    ) -> int:
        op = new.ops.add(name=self._string("sharding_constraint"), operands=[value])
        op.result_types.append(self._lying(kind, sharding))
        op.attributes.add(key=self._string(_STATED)).value.text = self._string(stated)
        op.origins = origins
        return self._fresh()

    def _lying(self, kind: int, sharding: Sharding) -> int:
        """The number of the type with this sharding."""
        known = self.message.types[kind]
        if known.WhichOneof("kind") != "tensor":
            return kind
        made = self.message.types.add()
        made.CopyFrom(known)
        made.tensor.sharding = str(sharding)
        return len(self.message.types) - 1

    def _string(self, text: str) -> int:
        strings = self.message.strings
        if text not in strings:
            strings.append(text)
        return list(strings).index(text)

    def _fresh(self) -> int:
        self.next += 1
        return self.next - 1
