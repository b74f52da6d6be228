"""A module as StableHLO for other compilers: text, or a portable artifact of a chosen version."""

from __future__ import annotations

from dataclasses import dataclass

from ...hlo.graph import Module
from .downgrade import Requirements
from .from_module import StablehloTree, tree_of
from .versions import NEWEST, STABLE, Version
from .write_bytecode import artifact
from .write_text import document_text


@dataclass(frozen=True)
class Text:
    """StableHLO text. Its `main` takes the module's arguments, then the named weights in order."""

    text: str
    weights: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Artifact:
    """A portable artifact of `version`; `weights` as in `Text`."""

    data: bytes
    version: Version
    weights: tuple[str, ...]
    notes: tuple[str, ...]


def write_text(
    module: Module, version: Version | None = None, weights_as_arguments: bool = True
) -> Text:
    """`module` as text, with CHLO's operations; for a version, without what came later.

    ExportBlockers lists all that StableHLO, or the version, cannot say.
    """
    made = tree_of(module, weights_as_arguments, chlo=version is None)
    requirements = Requirements(made.document, made.blockers)
    requirements.check(version or NEWEST, text=version is None)
    return Text(document_text(made.document), made.weights, _notes(module, made))


def write_artifact(
    module: Module, version: Version | None = None, weights_as_arguments: bool = False
) -> Artifact:
    """`module` as a portable artifact, by default of the lowest version from 1.0.0 on that has all
    that it needs; CHLO's operations are composites.

    ExportBlockers lists all that StableHLO, or the version, cannot say.
    """
    made = tree_of(module, weights_as_arguments, chlo=False)
    requirements = Requirements(made.document, made.blockers)
    if version is None:
        requirements.check(NEWEST)
    chosen = version or requirements.lowest(STABLE)
    data = artifact(made.document, chosen, requirements)
    return Artifact(data, chosen, made.weights, _notes(module, made))


def _notes(module: Module, made: StablehloTree) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*module.notes, *made.notes]))
