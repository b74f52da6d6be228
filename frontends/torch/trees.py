"""PyTorch's pytrees as the signature's trees, from memory and from their JSON text."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...hlo.classes import DICTS, factory_name, meet, torch_maker
from ...hlo.trees import Tree


def tree_of_spec(spec: Any) -> Tree:
    """The tree of a torch TreeSpec in memory."""
    if spec.is_leaf():
        return Tree.leaf()
    children = tuple(tree_of_spec(child) for child in spec.children())
    kind, context = spec.type, spec.context
    name = f"{kind.__module__}.{kind.__qualname__}"
    fields = getattr(context, "_fields", None)
    if fields is not None:
        name = f"{context.__module__}.{context.__qualname__}"
        met = meet(name, fields, None, lambda values: context(*values))
        return replace(namedtuple_tree(name, fields, children), context=met)
    if kind.__module__ == "torch.return_types":
        return namedtuple_tree(name, kind.__match_args__, children)
    if name == DICTS[1]:
        factory, keys = context
        return replace(container_tree(name, keys, children), context=factory_name(factory))
    tree = container_tree(name, context, children)
    if tree.kind != "custom":
        return tree
    met = meet(name, tree.keys, context, torch_maker(kind, context))
    return replace(tree, context=met)


def tree_of_json(text: str) -> Tree:
    """The tree of a TreeSpec as `[1, {type, context, children_spec}]`; ValueError otherwise."""
    version, spec = json.loads(text)
    if version != 1:
        raise ValueError(f"structures of version {version} are not known")
    return _tree_of_object(spec)


def _tree_of_object(spec: Any) -> Tree:
    if spec["type"] is None:
        return Tree.leaf()
    children = tuple(map(_tree_of_object, spec["children_spec"]))
    context = spec["context"]
    if isinstance(context, str):
        with contextlib.suppress(json.JSONDecodeError):  # a class may write any text
            context = json.loads(context)
    if isinstance(context, dict) and "dict_context" in context:
        is_plain = context.get("default_factory_module") == "builtins"
        factory = str(context.get("default_factory_name")) if is_plain else ""
        return replace(
            container_tree(spec["type"], context["dict_context"], children), context=factory
        )
    if isinstance(context, dict) and "field_names" in context:
        return namedtuple_tree(context.get("class_name", ""), context["field_names"], children)
    return container_tree(spec["type"], context, children)


def namedtuple_tree(name: str, fields: Sequence[str], children: tuple[Tree, ...]) -> Tree:
    return Tree("namedtuple", children, tuple(fields), name)


def container_tree(name: str, context: Any, children: tuple[Tree, ...]) -> Tree:
    """A tuple, list, dict, or the user's own class with its children's names, if it has any."""
    short = name.rpartition(".")[2]
    if short in ("tuple", "list", "deque"):
        return Tree("tuple" if short == "tuple" else "list", children)
    if short in ("dict", "OrderedDict", "defaultdict", "immutable_dict"):
        keys = (key if isinstance(key, (str, int)) else str(key) for key in context)
        return Tree("dict", children, tuple(keys), name if name in DICTS else "")
    if short in ("immutable_list",):
        return Tree("list", children)
    # A dataclass or a cache keeps the names of its children first, then what else it has.
    listed = isinstance(context, (list, tuple))
    for names in (context, context[0] if context else ()) if listed else ():
        named = isinstance(names, (list, tuple)) and len(names) == len(children)
        if named and all(isinstance(key, str) for key in names):
            return Tree("custom", children, tuple(names), name)
    return Tree("custom", children, tuple(range(len(children))), name)


def with_constants(tree: Tree, leaves: Sequence[Any]) -> Tree:
    """`tree` with a constant, or None, for each leaf that is no `Tree.leaf()`, in order."""
    found = iter(leaves)

    def walk(node: Tree) -> Tree:
        if node.kind == "leaf":
            value = next(found)
            return value if isinstance(value, Tree) else Tree.constant(value)
        if not node.children:
            return node
        return replace(node, children=tuple(map(walk, node.children)))

    return walk(tree)
