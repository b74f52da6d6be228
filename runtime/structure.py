"""Quick ways through nested inputs and outputs, made once per program.

They take plain tuples, lists, dicts and namedtuples that fit exactly; for all else, and for every
error, `Signature.flatten` is the authority and goes the same way slowly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

from ..hlo.trees import Tree

Flatten = Callable[[Any, list[Any]], None]
Unflatten = Callable[[Iterator[Any]], Any]


class Differs(Exception):  # noqa: N818  # a signal between two functions, no error of anyone
    """The value does not have the structure, or only the slow way can tell."""


def flattener(tree: Tree) -> Flatten:
    """A function (value, leaves) that appends the leaves of the value; Differs if it cannot."""
    if tree.kind == "leaf":
        return lambda value, leaves: leaves.append(value)
    if tree.kind == "none":
        return _flatten_none
    if tree.kind in ("custom", "constant"):
        return _flatten_never
    children = _children(tree)
    if all(child.kind == "leaf" for child in tree.children):
        return lambda value, leaves: leaves.extend(children(value))
    parts = tuple(flattener(child) for child in tree.children)

    def flatten(value: Any, leaves: list[Any]) -> None:
        for part, child in zip(parts, children(value), strict=True):
            part(child, leaves)

    return flatten


def _children(tree: Tree) -> Callable[[Any], Any]:
    """A function that gives a value's children in the order of the tree."""
    count = len(tree.children)
    if tree.kind == "dict":
        pick = itemgetter(*tree.keys) if count > 1 else None

        def of_dict(value: Any) -> Any:
            if type(value) not in (dict, OrderedDict) or len(value) != count:
                raise Differs
            try:
                return pick(value) if pick else tuple(value[key] for key in tree.keys)
            except KeyError:
                raise Differs from None

        return of_dict

    def of_sequence(value: Any) -> Any:
        if not isinstance(value, (tuple, list)) or len(value) != count:
            raise Differs
        return value

    return of_sequence


def _flatten_none(value: Any, leaves: list[Any]) -> None:
    if value is not None:
        raise Differs


def _flatten_never(value: Any, leaves: list[Any]) -> None:
    raise Differs


def unflattener(tree: Tree) -> Unflatten:
    """A function that takes a value's leaves from an iterator and puts the value together."""
    count = len(tree.children)
    if tree.kind == "leaf":
        return next
    if tree.kind in ("namedtuple", "custom", "none", "constant") or tree.type_name:
        return lambda leaves: tree.unflatten(list(islice(leaves, tree.leaf_count)))
    if all(child.kind == "leaf" for child in tree.children):
        take: Callable[[Iterator[Any]], Any] = lambda leaves: islice(leaves, count)  # noqa: E731
    else:
        parts = tuple(unflattener(child) for child in tree.children)
        take = lambda leaves: [part(leaves) for part in parts]  # noqa: E731
    if tree.kind == "dict":
        return lambda leaves: dict(zip(tree.keys, take(leaves), strict=True))
    kind = list if tree.kind == "list" else tuple
    return lambda leaves: kind(take(leaves))
