"""JAX's pytree structures become the trees of a signature. Needs jax."""

from __future__ import annotations

from typing import Any

from ...hlo.classes import DICTS, factory_name, jax_maker, meet
from ...hlo.trees import Key, Tree


def tree_of(definition: Any) -> Tree:
    """The `Tree` of a `jax.tree_util.PyTreeDef`, leaves in JAX's order."""
    data = definition.node_data()
    if data is None:
        return Tree.leaf()
    kind, auxiliary = data
    children = tuple(tree_of(child) for child in definition.children())
    if kind is type(None):
        return Tree.none()
    if kind is tuple or kind is list:
        return Tree(kind.__name__, children)
    if kind is dict:
        return Tree("dict", children, tuple(map(_key, auxiliary)))
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in DICTS:
        factory, keys = auxiliary if name == DICTS[1] else (None, auxiliary)
        keys = tuple(map(_key, keys))
        return Tree("dict", children, keys, name, context=factory_name(factory))
    fields = getattr(kind, "_fields", None)
    if issubclass(kind, tuple) and fields is not None:
        context = meet(name, fields, None, lambda values: kind(*values))
        return Tree("namedtuple", children, tuple(fields), name, context=context)
    names = _child_names(definition, kind, len(children))
    context = meet(name, names, auxiliary, jax_maker(kind, auxiliary))
    return Tree("custom", children, names, name, context=context)


def registered() -> Any:
    """JAX's classes of pytrees and how they are taken apart: it has no public name."""
    from jax._src import tree_util

    return tree_util._registry


def _key(key: Any) -> Key:
    """Dictionary keys that JSON cannot hold are shown as their `repr`."""
    return key if type(key) in (str, int) else repr(key)


def _child_names(definition: Any, kind: type, count: int) -> tuple[Key, ...]:
    """What the class's own flattening calls its children; their numbers where it does not say."""
    from jax import tree_util

    numbers: tuple[Key, ...] = tuple(range(count))
    try:
        whole = definition.unflatten([object()] * definition.num_leaves)
        paths = tree_util.tree_flatten_with_path(whole, is_leaf=lambda node: node is not whole)[0]
    except Exception:  # the user's class may refuse placeholders: names are a courtesy
        return numbers
    names: list[Key] = []
    for path, _ in paths:
        entry: Any = path[0] if path else None
        key = getattr(entry, "name", getattr(entry, "key", getattr(entry, "idx", None)))
        names.append(_key(key))
    return tuple(names) if len(names) == count == len(set(names)) else numbers
