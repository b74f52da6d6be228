"""What an older StableHLO needs instead of an op, and what it cannot say at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...hlo.errors import Blocker, ExportBlockers, UserError
from .. import tree
from .bytecode import CAST
from .locations import Locations
from .normal import Facts, facts_of
from .versions import FORMS, OLDEST, Version, VersionNeed, needs, type_since, version_text

_COMPOSITES: Version = (0, 19)
_TANGENT: Version = (1, 4)
_SHARDY: Version = (1, 11)
_STRUCTURE = ("builtin.module", "sdy.mesh")
_MIXED = (
    "sdy.manual_computation", "sdy.propagation_barrier", "sdy.reshard", "sdy.return",
    "sdy.sharding_constraint", "sdy.sharding_group",
)  # fmt: skip


class Builtin(NamedTuple):
    """A type as MLIR's own, where an operation of another dialect wants that and not VHLO's."""

    type: tree.Type


def base_of(operation: tree.Operation) -> str:
    """The op's name in VHLO without its version; "" where VHLO has no such op."""
    dialect, _, base = operation.name.partition(".")
    known = dialect in ("stablehlo", "func") and base in FORMS
    return base if known else ""


def expanded(operation: tree.Operation, version: Version) -> list[tree.Operation]:
    """The op, or the ops that say the same in a version that lacks it."""
    if operation.name == "stablehlo.composite" and version < _COMPOSITES:
        facts = {
            "callee": operation.attributes.get("decomposition"),
            **{key: value for key, value in operation.attributes.items() if "." in key},
        }
        call = tree.Operation("func.call", operation.operands, operation.results, facts)
        call.location = operation.location
        return [call]
    if operation.name == "stablehlo.tan" and version < _TANGENT:
        return _tangent(operation)
    if operation.name in _MIXED:
        return _between_casts(operation)
    return [operation]


def _between_casts(operation: tree.Operation) -> list[tree.Operation]:
    """An op of another dialect on MLIR's own types: values are cast at every border."""

    def cast(
        values: Sequence[tree.TreeValue], out: Sequence[tree.TreeValue]
    ) -> list[tree.Operation]:
        return [tree.Operation(CAST, [a], [b]) for a, b in zip(values, out, strict=True)]

    def outside(values: Sequence[tree.TreeValue]) -> list[tree.TreeValue]:
        return [tree.TreeValue(Builtin(value.type)) for value in values]  # type: ignore[arg-type]

    operands, results = outside(operation.operands), outside(operation.results)
    made = tree.Operation(operation.name, operands, results, operation.attributes)
    made.location = operation.location
    for region in operation.regions:
        arguments = outside(region.arguments)
        casts = cast(arguments, region.arguments)
        made.regions.append(tree.Region(arguments, [*casts, *region.operations]))
    return [*cast(operation.operands, operands), made, *cast(results, operation.results)]


def _tangent(operation: tree.Operation) -> list[tree.Operation]:
    """sin(x) / cos(x)"""
    parts = []
    for name in ("sine", "cosine"):
        value = tree.TreeValue(operation.results[0].type)
        made = tree.Operation(f"stablehlo.{name}", operation.operands, [value])
        made.location = operation.location
        parts.append(made)
    operands = [part.results[0] for part in parts]
    quotient = tree.Operation("stablehlo.divide", operands, operation.results)
    quotient.location = operation.location
    return [*parts, quotient]


class Requirements:
    """What a document needs of StableHLO; each op's attributes are brought to normal form once."""

    def __init__(self, document: tree.Document, blockers: Iterable[Blocker] = ()) -> None:
        self._document = document
        self._locations = Locations(document)
        self._facts: dict[tree.Operation, Facts] = {}
        self._known: dict[tree.Operation, list[VersionNeed]] = {}
        self._types: dict[int, Version] = {}
        self._blockers: dict[Blocker, None] = dict.fromkeys(blockers)

    def facts(self, operation: tree.Operation) -> Facts:
        """The op's attributes in normal form."""
        known = self._facts.get(operation)
        if known is None:
            known = self._facts[operation] = facts_of(operation)
        return known

    def lowest(self, least: Version) -> Version:
        """The lowest version, at least `least`, that can say all that any version can."""
        found = least
        for operation in self._operations():
            if operation.name in _MIXED:
                found = max(found, _SHARDY)
            elif base_of(operation):
                for part in expanded(operation, least):
                    found = max([found, *(need.since for need in self._needs(part))])
        return found

    def check(self, version: Version, text: bool = False) -> None:
        """ExportBlockers with all that the version cannot say, each reason once per place.

        Operations that StableHLO has in no version are blockers too; not so in a `text`, which may
        hold other dialects.
        """
        for operation in self._operations():
            if operation.name in _STRUCTURE:
                continue
            if base_of(operation):
                for part in expanded(operation, version):
                    self._check(part, version)
            elif operation.name in _MIXED:
                if version < _SHARDY:
                    reason = f"Shardy's operations came with {version_text(_SHARDY)}"
                    self._block(operation, reason, "write a later version")
            elif not text:
                remedy = "replace it in the model"
                self._block(operation, "StableHLO's portable form has no such operation", remedy)
        if self._blockers:
            target = f"StableHLO {version_text(version)}"
            source = self._document.source or "the program"
            raise ExportBlockers(list(self._blockers), source, target)

    def _check(self, operation: tree.Operation, version: Version) -> None:
        try:
            found = self._needs(operation)
        except UserError as error:
            self._block(operation, str(error), "correct the attribute")
            return
        for need in found:
            if need.since > version:
                reason = f"{need.what} came with StableHLO {version_text(need.since)}"
                remedy = f"write version {version_text(need.since)} or a later one"
                self._block(operation, reason, remedy)

    def _operations(self) -> Iterator[tree.Operation]:
        return tree.walk(self._document.module)

    def _needs(self, operation: tree.Operation) -> list[VersionNeed]:
        known = self._known.get(operation)
        if known is None:
            known = self._known[operation] = self._find_needs(operation)
        return known

    def _find_needs(self, operation: tree.Operation) -> list[VersionNeed]:
        facts = self.facts(operation)
        found = needs(base_of(operation), facts.given, operation, facts.known)
        kinds = [value.type for value in (*operation.operands, *operation.results)]
        kinds += [value.type for region in operation.regions for value in region.arguments]
        for kind in kinds:
            since = self._types.get(id(kind))  # the document keeps its types
            if since is None:
                since = self._types[id(kind)] = type_since(kind)
            if since > OLDEST:
                found.append(VersionNeed(f"the type {tree.spell(kind)}", since))
        return found

    def _block(self, operation: tree.Operation, reason: str, remedy: str) -> None:
        place = self._locations.place(operation.location)
        self._blockers[Blocker(operation.name, place, reason, remedy)] = None
