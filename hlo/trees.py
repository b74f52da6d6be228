"""Trees of arrays: the structure of a program's inputs and outputs, as pytrees have it.

A `Tree` flattens a value of tuples, lists, dicts, named tuples and classes of the user's to its
leaves and makes one of leaves; it has a readable path for every leaf and is stored as JSON. This
module imports nothing of the compiler, so a bundle runs without it.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .classes import children_of, dict_of, made

Key = str | int

KINDS = ("leaf", "none", "constant", "tuple", "list", "dict", "namedtuple", "custom")
_CONSTANTS = (bool, int, float, str)
_KEYED = ("dict", "namedtuple", "custom")


class StructureError(ValueError):
    """A value does not have a tree's structure; `path` is the first place where they differ."""

    def __init__(self, path: str, reason: str):
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class Node(Mapping[Key, Any]):
    """Stands for a class of the user's, or of a framework's, that is not at hand: a mapping of its
    children by name, which are its attributes, and its items by position, too."""

    __slots__ = ("children", "type_name")

    def __init__(self, type_name: str, children: Mapping[Key, Any]) -> None:
        object.__setattr__(self, "type_name", type_name)
        object.__setattr__(self, "children", dict(children))

    def __getattr__(self, name: str) -> Any:
        if name not in Node.__slots__ and name in self.children:
            return self.children[name]
        raise AttributeError(f"{type(self).__name__} has no child {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self.type_name} is a result: it cannot be changed")

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (str, int)) and key in self.children:
            return self.children[key]
        if isinstance(key, (int, slice)):
            return self.to_tuple()[key]
        raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.children)

    def __len__(self) -> int:
        return len(self.children)

    def to_tuple(self) -> tuple[Any, ...]:
        """The children, without their names."""
        return tuple(self.children.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Node):
            return NotImplemented
        return self.type_name == other.type_name and self.children == other.children

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return Node, (self.type_name, self.children)

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self.children.items())
        return f"{self.type_name.rpartition('.')[2]}({inside})"


@dataclass(frozen=True)
class Tree:
    """The structure of nested inputs or outputs.

    `keys` are the keys of a dict, in the order of its leaves, the field names of a namedtuple, or
    the child names of a custom class; `type_name` is the class of a namedtuple or custom node, or
    of a dict that is one of `classes.DICTS`, and `context` the text of what its instance keeps
    besides (see `classes.meet`; a defaultdict's factory). A constant is a
    number or a text that the export has fixed: `value`.
    """

    kind: str
    children: tuple[Tree, ...] = ()
    keys: tuple[Key, ...] = ()
    type_name: str = ""
    value: bool | int | float | str | None = None
    context: str = field(default="", compare=False)
    leaf_count: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"tree kind {self.kind!r} is not one of {', '.join(KINDS)}")
        if self.kind in ("leaf", "none", "constant") and self.children:
            raise ValueError(f"a {self.kind} has no children")
        if self.kind in _KEYED and len(self.keys) != len(self.children):
            raise ValueError(f"a {self.kind} needs one key per child")
        if self.kind not in _KEYED and self.keys:
            raise ValueError(f"a {self.kind} has no keys")
        count = 1 if self.kind == "leaf" else sum(child.leaf_count for child in self.children)
        object.__setattr__(self, "leaf_count", count)

    @staticmethod
    def leaf() -> Tree:
        """A single array."""
        return _LEAF

    @staticmethod
    def none() -> Tree:
        """None: a place without arrays."""
        return _NONE

    @staticmethod
    def constant(value: Any) -> Tree:
        """A number or a text that is the same in every call; None for other values."""
        return Tree("constant", value=value) if isinstance(value, _CONSTANTS) else _NONE

    @staticmethod
    def tuple_of(*children: Tree) -> Tree:
        """A tuple of the children."""
        return Tree("tuple", tuple(children))

    @staticmethod
    def list_of(*children: Tree) -> Tree:
        """A list of the children."""
        return Tree("list", tuple(children))

    @staticmethod
    def dict_of(children: Mapping[Key, Tree]) -> Tree:
        """A dict; the order of the mapping is the order of the leaves."""
        return Tree("dict", tuple(children.values()), tuple(children))

    @staticmethod
    def flat(count: int, kind: str = "tuple") -> Tree:
        """A tuple (or list) of `count` leaves: what a plain module takes and gives."""
        return Tree(kind, (_LEAF,) * count)

    @staticmethod
    def of(value: Any) -> Tree:
        """The tree of a Python value: tuples, lists, dicts (insertion order), namedtuples, None."""
        if value is None:
            return _NONE
        if isinstance(value, Node):
            children = tuple(Tree.of(child) for child in value.children.values())
            return Tree("custom", children, tuple(value.children), value.type_name)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            kind = type(value)
            name = f"{kind.__module__}.{kind.__qualname__}"
            return Tree("namedtuple", tuple(map(Tree.of, value)), tuple(value._fields), name)  # type: ignore[attr-defined]
        if isinstance(value, (tuple, list)):
            kind_name = "tuple" if isinstance(value, tuple) else "list"
            return Tree(kind_name, tuple(map(Tree.of, value)))
        if isinstance(value, Mapping):
            return Tree.dict_of({key: Tree.of(child) for key, child in value.items()})
        return _LEAF

    @functools.cached_property
    def is_flat(self) -> bool:
        """Whether the tree is a tuple or list of leaves only."""
        return self.kind in ("tuple", "list") and all(c.kind == "leaf" for c in self.children)

    def paths(self, prefix: str = "", roots: Sequence[str] = ()) -> tuple[str, ...]:
        """The path of each leaf, as `params['w'][0]`; `roots` name the children of the root."""
        if self.kind == "leaf":
            return (prefix,)
        found: list[str] = []
        for index, child in enumerate(self.children):
            path = roots[index] if index < len(roots) else prefix + self.step(index)
            found.extend(child.paths(path))
        return tuple(found)

    def step(self, index: int) -> str:
        """How a path goes on to child `index`: `[0]`, `['w']` or `.mean`."""
        if self.kind in ("namedtuple", "custom"):
            key = self.keys[index]
            return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"
        return f"[{self.keys[index]!r}]" if self.kind == "dict" else f"[{index}]"

    def flatten(self, value: Any, prefix: str = "", roots: Sequence[str] = ()) -> list[Any]:
        """The leaves of `value` in order; StructureError where it differs from this tree."""
        leaves: list[Any] = []
        self._flatten(value, prefix, roots, leaves)
        return leaves

    def _flatten(self, value: Any, path: str, roots: Sequence[str], leaves: list[Any]) -> None:
        if self.kind == "leaf":
            if value is None or isinstance(value, (tuple, list, Mapping)):
                raise StructureError(path, f"expected an array, got {describe(value)}")
            leaves.append(value)
            return
        if value is None and not self.leaf_count:  # nothing of it is given
            return
        if self.kind == "none":
            raise StructureError(path, f"expected None, got {describe(value)}")
        if self.kind == "constant":
            if type(value) is not type(self.value) or value != self.value:
                reason = f"the export fixed it to {self.value!r}, got {describe(value)}"
                raise StructureError(path, f"{reason} {value!r}; export it again for others")
            return
        children = self._children_of(value, path)
        for index, (child, item) in enumerate(zip(self.children, children, strict=True)):
            child._flatten(
                item, roots[index] if index < len(roots) else path + self.step(index), (), leaves
            )

    def _children_of(self, value: Any, path: str) -> Sequence[Any]:
        """The children of `value` in this tree's order."""
        if self.kind in ("tuple", "list"):
            # A list passes for a tuple and the other way round: users mix them freely.
            if not isinstance(value, (tuple, list)):
                raise StructureError(path, f"expected {self.describe()}, got {describe(value)}")
            if len(value) != len(self.children):
                raise StructureError(path, f"expected {self.describe()}, got {describe(value)}")
            return value
        if self.kind == "dict":
            if isinstance(value, Mapping):
                return self._from_mapping(value, path)
            raise StructureError(path, f"expected {self.describe()}, got {describe(value)}")
        try:
            registered = children_of(value, self.type_name, self.context)
        except ValueError as error:
            raise StructureError(path, f"{error}; export it again for others") from None
        if registered is not None and len(registered) == len(self.children):
            return registered
        if isinstance(value, Mapping):
            return self._from_mapping(value, path)
        if isinstance(value, tuple) and len(value) == len(self.children):
            return value
        if self.keys and all(isinstance(k, str) and hasattr(value, k) for k in self.keys):
            return [getattr(value, str(key)) for key in self.keys]
        raise StructureError(path, f"expected {self.describe()}, got {describe(value)}")

    def _from_mapping(self, value: Mapping[Any, Any], path: str) -> Sequence[Any]:
        missing = [key for key in self.keys if key not in value]
        extra = [key for key in value if key not in self.keys]
        if missing or extra:
            words = [f"no {key!r}" for key in missing] + [f"an unknown {key!r}" for key in extra]
            raise StructureError(path, f"expected {self.describe()}, got {' and '.join(words)}")
        return [value[key] for key in self.keys]

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The value of this structure with the given leaves, one per leaf."""
        if len(leaves) != self.leaf_count:
            raise ValueError(f"{self.leaf_count} leaves needed, {len(leaves)} given")
        return self._unflatten(iter(leaves))

    def _unflatten(self, leaves: Any) -> Any:
        if self.kind == "leaf":
            return next(leaves)
        if self.kind in ("none", "constant"):
            return self.value
        children = [child._unflatten(leaves) for child in self.children]
        if self.kind == "list":
            return children
        if self.kind == "tuple":
            return tuple(children)
        if self.kind == "dict":
            return dict_of(
                self.type_name, self.context, dict(zip(self.keys, children, strict=True))
            )
        value = made(self.type_name, self.kind, self.keys, self.context, children)
        if value is not None:
            return value
        if self.kind == "namedtuple":
            return _namedtuple(self.type_name, tuple(map(str, self.keys)))(*children)
        return Node(self.type_name, dict(zip(self.keys, children, strict=True)))

    def describe(self) -> str:
        """A few words for an error: `a tuple of 2`, `a dict with keys 'a', 'b'`."""
        count = len(self.children)
        if self.kind in ("leaf", "none", "constant"):
            return "an array" if self.kind == "leaf" else repr(self.value)
        if self.kind in ("tuple", "list"):
            return f"a {self.kind} of {count}"
        keys = ", ".join(map(repr, self.keys[:8])) + (", ..." if count > 8 else "")
        name = self.type_name or "dict"
        return f"a {name} with keys {keys}" if count else f"an empty {name}"

    def to_json(self) -> Any:
        """A JSON value: {"kind": ..., "children": [...], "keys": [...], "typeName": ...}."""
        data: dict[str, Any] = {"kind": self.kind}
        if self.children:
            data["children"] = [child.to_json() for child in self.children]
        if self.keys:
            data["keys"] = list(self.keys)
        if self.type_name:
            data["typeName"] = self.type_name
        if self.context and not self.context.startswith("#"):  # which means it in this process
            data["context"] = self.context
        if self.kind == "constant":
            data["value"] = self.value
        return data

    @staticmethod
    def from_json(data: Any) -> Tree:
        """The tree of a value from `to_json`; ValueError if it is not one."""
        expect(isinstance(data, dict), "a tree is a JSON object")
        kind = data.get("kind")
        keys = tuple(data.get("keys", ()))
        expect(isinstance(kind, str), "a tree has a kind")
        expect(
            all(type(key) in (str, int) for key in keys), "a tree's keys are strings or integers"
        )
        if kind == "leaf":
            return _LEAF
        if kind == "constant":
            expect(isinstance(data.get("value"), _CONSTANTS), "a constant has a value")
            return Tree("constant", value=data["value"])
        children = tuple(Tree.from_json(child) for child in data.get("children", ()))
        return Tree(kind, children, keys, str(data.get("typeName", "")), context=_context(data))


def _context(data: Mapping[str, Any]) -> str:
    text = str(data.get("context", ""))
    expect(not text.startswith("#"), "a tree's context is JSON")
    return text


_LEAF = Tree("leaf")
_NONE = Tree("none")


def describe(value: Any) -> str:
    """A few words for a Python value in an error: `a dict with keys 'a'`, `float32[2,3]`, `int`."""
    if value is None:
        return "None"
    if isinstance(value, Mapping):
        keys = ", ".join(repr(key) for key in list(value)[:8]) + (", ..." if len(value) > 8 else "")
        return f"a dict with keys {keys}" if value else "an empty dict"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"
    return type(value).__name__


@functools.lru_cache(maxsize=256)
def _namedtuple(type_name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(type_name.rpartition(".")[2] or "Fields", fields)


def expect(holds: bool, reason: str) -> None:
    """ValueError with `reason` where what was read does not hold."""
    if not holds:
        raise ValueError(reason)
