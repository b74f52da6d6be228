"""Classes of users and frameworks in the structure of inputs and results.

A class is found by its name among those that a framework in this process has registered, or that an
export in this process has met; nothing is imported for it, and no other class is ever called.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Make = Callable[[Sequence[Any]], Any]
_MET: dict[tuple[str, tuple[str | int, ...], str], Make] = {}
_HELD: dict[str, Any] = {}  # contexts that are no plain data, by their texts
_FACTORIES = {kind.__name__: kind for kind in (list, dict, set, tuple, int, float, str)}
DICTS = ("collections.OrderedDict", "collections.defaultdict")
"""Mappings of the standard library that a `Tree` of kind dict tells from a dict."""


def meet(type_name: str, keys: Sequence[str | int], context: Any, make: Make) -> str:
    """An importer has met a class: `make` gives an instance of its children.

    context: what an instance keeps besides its children, such as the static fields of a dataclass.
    Returns its text, for `Tree.context`: JSON where it is plain data, else a number that starts
    with # and means it in this process.
    """
    text = _written(context)
    if not text:
        text = f"#{len(_HELD)}"
        _HELD[text] = context
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


def children_of(value: Any, type_name: str, context: str) -> Sequence[Any] | None:
    """The children of an instance of a registered class with that name; None for all else.

    ValueError where what it keeps besides is not what `context` says.
    """
    kind = type(value)
    if _name(kind) != type_name:
        return None
    for registry, flatten in ((_of_torch(), "flatten_fn"), (_of_jax(), "to_iter")):
        if kind in registry:
            children, own = getattr(registry[kind], flatten)(value)[:2]
            if context and not _is_same(own, context):
                fixed = _HELD[context] if context.startswith("#") else _read(context)
                raise ValueError(f"the export fixed its static fields to {fixed!r}, got {own!r}")
            return list(children)
    return None


def _is_same(own: Any, context: str) -> bool:
    """Whether an instance's context is that of the text; True where nobody can tell."""
    if not context.startswith("#"):
        return _written(own) == context
    try:
        return context not in _HELD or bool(own == _HELD[context])
    except Exception:  # of the user's class
        return True


def dict_of(type_name: str, context: str, items: Mapping[Any, Any]) -> Any:
    """The items as a dict, or as that class of `DICTS`."""
    if type_name == DICTS[0]:
        return OrderedDict(items)
    return defaultdict(_FACTORIES.get(context), items) if type_name == DICTS[1] else dict(items)


def factory_name(factory: Any) -> str:
    """The text that `dict_of` makes a defaultdict's factory of; empty where it makes none."""
    name = getattr(factory, "__name__", "")
    return name if _FACTORIES.get(name) is factory else ""


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


def _written(context: Any) -> str:
    """The JSON of a context that is plain data; "" for others."""
    try:
        return json.dumps(_plain(context))
    except TypeError:
        return ""


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
