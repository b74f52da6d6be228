"""Classes of users and frameworks in the structure of inputs and results.

A class is found by its name among those that a framework in this process has registered, or that an
export in this process has met; nothing is imported for it, and no other class is ever called.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

Make = Callable[[Sequence[Any]], Any]
_MET: dict[tuple[str, tuple[str | int, ...], str], Make] = {}


def meet(type_name: str, keys: Sequence[str | int], context: Any, make: Make) -> str:
    """An importer has met a class: `make` gives an instance of its children.

    context: what an instance keeps besides its children, such as the static fields of a dataclass.
    Returns its text, for `Tree.context`: JSON where it is plain data, else a number that starts
    with # and means it in this process.
    """
    try:
        text = json.dumps(_plain(context))
    except TypeError:
        text = f"#{len(_MET)}"
    _MET[type_name, tuple(keys), text] = make
    return text


def made(
    type_name: str, kind: str, keys: Sequence[str | int], context: str, children: Sequence[Any]
) -> Any:
    """An instance of the class; None where it is not at hand, or does not take these children."""
    known = type_name, tuple(keys), context
    try:
        make = _MET.get(known) or _registered(type_name, kind, keys, context)
        if make is None:
            return None
        value = make(children)
    except Exception:  # of the class: its stand-in holds the same
        return None
    _MET[known] = make
    return value


def children_of(value: Any, type_name: str) -> Sequence[Any] | None:
    """The children of an instance of a registered class with that name; None for all else."""
    kind = type(value)
    if _name(kind) != type_name:
        return None
    for registry, flatten in ((_of_torch(), "flatten_fn"), (_of_jax(), "to_iter")):
        if kind in registry:
            return list(getattr(registry[kind], flatten)(value)[0])
    return None


def torch_maker(known: type, context: Any) -> Make:
    """The maker of a class that PyTorch has registered. One that takes no arrays, such as a cache,
    gets tensors in their memory."""
    node = _of_torch()[known]

    def make(children: Sequence[Any]) -> Any:
        try:
            return node.unflatten_fn(list(children), context)
        except Exception:  # of the class
            return node.unflatten_fn([_tensors(child) for child in children], context)

    return make


def jax_maker(known: type, context: Any) -> Make:
    """The maker of a class that JAX has registered."""
    node = _of_jax()[known]
    return lambda children: node.from_iter(context, tuple(children))


def _registered(type_name: str, kind: str, keys: Sequence[str | int], context: str) -> Make | None:
    """The maker of a class that a framework in this process knows; None where none does."""
    for known in _of_torch():
        if _name(known) != type_name:
            continue
        if kind == "namedtuple":  # one of torch.return_types
            return known
        return torch_maker(known, _read(context) if context else list(keys))
    for known in _of_jax():
        if _name(known) == type_name and context and kind == "custom":
            return jax_maker(known, _read(context))
    return None


def _of_torch() -> dict[Any, Any]:
    return getattr(sys.modules.get("torch.utils._pytree"), "SUPPORTED_NODES", {})


def _of_jax() -> dict[Any, Any]:
    return getattr(sys.modules.get("jax._src.tree_util"), "_registry", {})


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _plain(value: Any) -> Any:
    """Plain data for JSON, which has no tuples; TypeError for all else."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_plain(item) for item in value]
    if type(value) is tuple:
        return {"tuple": [_plain(item) for item in value]}
    raise TypeError(f"{type(value).__name__} is no plain data")


def _read(text: str) -> Any:
    """The context of a text that `meet` has written."""
    return json.loads(text, object_hook=lambda found: tuple(found["tuple"]))


def _tensors(value: Any) -> Any:
    """Arrays in lists, tuples and dicts as tensors in the same memory."""
    import numpy as np

    torch = sys.modules["torch"]

    def tensor(array: Any) -> Any:
        octets = torch.from_numpy(array.reshape(-1).view(np.uint8))
        return octets.view(getattr(torch, array.dtype.name)).reshape(array.shape)

    pytree = sys.modules["torch.utils._pytree"]
    return pytree.tree_map_only(np.ndarray, tensor, value)
