"""Classes of users and frameworks in the structure of inputs and results.

A class is found by its name among those that a framework in this process has registered, or that an
export in this process has met; nothing is imported for it, and no other class is ever called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

Make = Callable[[Sequence[Any]], Any]
_MET: dict[tuple[str, tuple[str | int, ...]], Make] = {}


def meet(type_name: str, keys: Sequence[str | int], make: Make) -> None:
    """An importer has met a class: `make` gives an instance of its children."""
    _MET[type_name, tuple(keys)] = make


def made(type_name: str, kind: str, keys: Sequence[str | int], children: Sequence[Any]) -> Any:
    """An instance of the class; None where it is not at hand, or does not take these children."""
    make = _MET.get((type_name, tuple(keys))) or _torch_class(type_name, kind, keys)
    if make is None:
        return None
    try:
        return make(children)
    except Exception:  # of the class: its stand-in holds the same
        return None


def children_of(value: Any, type_name: str) -> Sequence[Any] | None:
    """The children of an instance of a registered class with that name; None for all else."""
    kind = type(value)
    if f"{kind.__module__}.{kind.__qualname__}" != type_name:
        return None
    for module, name, flatten in (
        ("torch.utils._pytree", "SUPPORTED_NODES", "flatten_fn"),
        ("jax._src.tree_util", "_registry", "to_iter"),
    ):
        known = getattr(sys.modules.get(module), name, {})
        if kind in known:
            return list(getattr(known[kind], flatten)(value)[0])
    return None


def _torch_class(type_name: str, kind: str, keys: Sequence[str | int]) -> Make | None:
    """The maker of a class that PyTorch knows."""
    pytree = sys.modules.get("torch.utils._pytree")
    if pytree is None:
        return None
    for known, node in pytree.SUPPORTED_NODES.items():
        if f"{known.__module__}.{known.__qualname__}" != type_name:
            continue
        if kind == "namedtuple":  # one of torch.return_types
            return lambda children: known(children)
        return lambda children: node.unflatten_fn(list(children), list(keys))
    return None
