"""The signature of a plain module: names, donation and result names that its attributes carry."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...hlo.graph import Function
from ...hlo.signature import Signature
from ...hlo.trees import Tree
from ...hlo.types import TensorType, Type
from .. import tree
from .locations import Locations

_ROOT = re.compile(r"[A-Za-z_]\w*")
_RESULT_PREFIX = re.compile(r"^result(?=[\[.]|$)")


def typed(kind: Type) -> tuple[tuple[int | str, ...], str]:
    """(dims, element name) of a value at the edge; a token is shown as such."""
    if isinstance(kind, TensorType):
        dims = tuple(dim if isinstance(dim, int) else repr(dim) for dim in kind.dims)
        return dims, kind.element.name
    return (), str(kind)


def read_signature(operation: tree.Operation, main: Function, locations: Locations) -> Signature:
    """Flat arguments in, a flat list out, with the names and donations that the export noted."""
    types = main.body.argument_types
    result_types = main.body.result_types
    names = _argument_names(operation, main, locations)
    if len(names) != len(types):  # tuples at the edge were taken apart
        names = []
    signature = Signature.plain(
        [typed(kind) for kind in types], [typed(kind) for kind in result_types], names
    )
    signature = signature.donating(donations(main))
    facts = main.result_attributes
    if len(facts) == len(signature.results):
        paths = [
            _RESULT_PREFIX.sub("output", str(fact.get("jax.result_info", ""))) for fact in facts
        ]
        results = tuple(
            replace(result, path=path) if path else result
            for result, path in zip(signature.results, paths, strict=True)
        )
        signature = replace(signature, results=results)
    return signature


def parameter_count(document: tree.Document) -> int:
    """How many values the function `main` of a file takes; 0 where there is none."""
    for region in document.module.regions:
        for operation in region.operations:
            if operation.attributes.get("sym_name") == "main" and operation.regions:
                return len(operation.regions[0].arguments)
    return 0


def parameter_names(positional: Tree, leaf_names: Sequence[str]) -> tuple[str, ...]:
    """Names of the positional parameters from their leaves' (`params['w'][0]` is of `params`).

    Nothing where a parameter has no leaf, or the names are not all known and different.
    """
    names: list[str] = []
    start = 0
    for child in positional.children:
        leaves = leaf_names[start : start + child.leaf_count]
        start += child.leaf_count
        roots = {match[0] for leaf in leaves if (match := _ROOT.match(leaf))}
        if len(roots) != 1:
            return ()
        names.append(roots.pop())
    return tuple(names) if len(set(names)) == len(names) else ()


def donations(main: Function) -> dict[int, int | None]:
    """Index of each donated argument -> index of the result that it may become."""
    found: dict[int, int | None] = {}
    for index, facts in enumerate(main.argument_attributes):
        alias = facts.get("tf.aliasing_output")
        if isinstance(alias, int) and 0 <= alias < len(main.body.results):
            found[index] = alias
        elif facts.get("jax.buffer_donor"):
            found[index] = None
    return found


def _argument_names(operation: tree.Operation, main: Function, locations: Locations) -> list[str]:
    """A name per argument, or nothing where they are unknown or not all different."""
    names: list[str] = []
    for index, value in enumerate(operation.regions[0].arguments):
        facts: Any = main.argument_attributes[index : index + 1]
        info = facts[0].get("jax.arg_info") if facts else None
        name = info if isinstance(info, str) else locations.name(value.location)
        if name:
            names.append(name)
    count = len(operation.regions[0].arguments)
    return names if len(names) == count and len(set(names)) == count else []
