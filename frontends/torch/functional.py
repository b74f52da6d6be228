"""In-place operators made functional while a graph is read.

A tensor that is a view of another is known by its base and the views between them. A write through
a view builds the base's new value; every other view of that base is then replayed when it is next
read. Graphs without in-place operators cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...hlo.graph import Value
from ...hlo.types import TensorType
from .context import Blocked, Context, axis_of, bounds, place_of
from .lowerings.scatters import overwrite, write_through
from .program import Graph, Node, Ref
from .promotion import result_element

Call = Callable[[Node, Sequence[Any], Mapping[str, Any]], Sequence[Any]]

NOT_WRITES = {"detach_", "requires_grad_"}
DROPOUTS = {"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"}
"""The same tensor, or what is written into it, once the model is in eval mode."""

RESHAPES = NOT_WRITES | {f"{name}_" for name in DROPOUTS} | {
    "view", "unsqueeze", "squeeze", "alias", "detach", "view_as", "lift_fresh", "positive",
    "resolve_conj", "resolve_neg",
}  # fmt: skip
SWAPS = {"transpose", "swapaxes", "swapdims"}
PERMUTATIONS = SWAPS | {"permute", "t", "numpy_T"}
PARTS = {
    "slice", "select", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "unbind",
}  # fmt: skip
VIEWS = RESHAPES | PERMUTATIONS | PARTS | {
    "_conj", "adjoint", "as_strided", "broadcast_to", "conj", "diagonal", "dsplit", "expand",
    "expand_as", "hsplit", "imag", "linalg_diagonal", "mH", "mT", "matrix_H", "movedim", "moveaxis",
    "real", "unflatten_dense_tensors", "unfold", "view_as_complex", "view_as_real", "vsplit",
}  # fmt: skip
APART = {
    "diagonal", "dsplit", "hsplit", "linalg_diagonal", "mT", "movedim", "moveaxis", "tensor_split",
    "vsplit",
}  # fmt: skip
"""Views that only move elements, and in which none stands twice."""

MAYBE_VIEWS = {
    "reshape", "flatten", "contiguous", "to", "type_as", "unflatten", "reshape_as", "ravel",
    "atleast_1d", "atleast_2d", "atleast_3d", "meshgrid", "broadcast_tensors", "_reshape_alias",
    "to_dense", "chain_matmul", *DROPOUTS,
}  # fmt: skip
"""PyTorch copies, or does not: a conversion to the same type is the tensor itself."""

SHAPES = {"resize_", "resize_as_", "set_"}
"""In-place operators that change which memory a tensor is."""

TURNS = {
    "as_strided_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_",
}  # fmt: skip
"""In-place operators after which a tensor is a view of what it was."""

ARITHMETIC = {
    "add_", "addcdiv_", "addcmul_", "atan2_", "div_", "floor_divide_", "fmod_", "hypot_", "ldexp_",
    "mul_", "pow_", "remainder_", "sub_", "xlogy_",
}  # fmt: skip
"""In-place operators that compute in the promoted type of their operands, then convert."""

WRITES_STATISTICS = {
    "_batch_norm_with_update", "_native_batch_norm_legit", "batch_norm", "instance_norm",
    "native_batch_norm",
}  # fmt: skip
"""What changes its running statistics in training."""

OPERATORS = {f"__i{name}__" for name in ("and", "or", "xor", "lshift", "rshift")}
"""In-place operators by Python's names: &= and its like."""

COPY = "use the operator that returns a new tensor, or run_decompositions() before saving"


def operator(target: str) -> str:
    """ "add_" of "aten.add_.Tensor"."""
    parts = target.split(".")
    return parts[1] if len(parts) == 3 else target


def is_in_place(node: Node) -> bool:
    """Whether a node changes its first argument."""
    name = operator(node.target)
    if name[:-1] in DROPOUTS and not _drops(node):
        return False
    return functional_target(node.target) != node.target


def may_write(node: Node) -> bool:
    """Whether a node may change an argument."""
    return is_in_place(node) or operator(node.target) in WRITES_STATISTICS


def functional_target(target: str) -> str:
    """The operator that computes what an in-place one writes; others are their own."""
    name = operator(target)
    if name in OPERATORS:
        return target.replace(name, f"__{name.removeprefix('__i')}")
    if not name.endswith("_") or name.endswith("__") or name in NOT_WRITES:
        return target
    return target.replace(f".{name}.", f".{name[:-1]}.")


def _drops(node: Node) -> bool:
    """Whether a node that may drop values at random does so: the model trains."""
    return bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("train"))


class AliasView(NamedTuple):
    """What a name stands for: `steps`, each a view node and its result's number, from `base`."""

    base: str
    steps: tuple[tuple[Node, int], ...]
    unsure: bool = False  # PyTorch may have copied somewhere on the way


class Aliases:
    """Which names of one graph share memory, and their values after writes."""

    def __init__(self, context: Context, graph: Graph, call: Call) -> None:
        self.context, self.graph, self.call = context, graph, call
        self.active = any(map(may_write, graph.walk()))
        self.views: dict[str, AliasView] = {}
        self.versions: dict[str, int] = {}  # of a base: how often it was written
        self.bases: dict[str, Value] = {}  # a written base's value
        self.fresh: dict[str, tuple[int, Value]] = {}  # a name's value at a version

    def view(self, name: str) -> AliasView:
        return self.views.get(name) or AliasView(name, ())

    def note(self, node: Node, known: Mapping[str, Any]) -> None:
        """Remember that a node's results are views of its first argument (or of its parts)."""
        if not self.active or not node.args:
            return
        name = operator(node.target)
        first = node.args[0]
        if name not in VIEWS and name not in MAYBE_VIEWS or name in DROPOUTS and _drops(node):
            return
        if name == "chain_matmul" and len(first) > 1:  # one matrix is its own product
            return
        several = isinstance(first, tuple) and not isinstance(first, Ref)
        sources = first if several else (first,) * len(node.outputs)
        for index, (output, source) in enumerate(zip(node.outputs, sources, strict=False)):
            if not isinstance(source, Ref):
                continue
            old, new = (self.graph.types.get(each) for each in (source.name, output))
            if name in MAYBE_VIEWS and old and new and old.element is not new.element:
                continue  # a conversion is a copy
            before = self.view(source.name)
            unsure = before.unsure or name in MAYBE_VIEWS and not _is_itself(node)
            self.views[output] = AliasView(before.base, (*before.steps, (node, index)), unsure)
            self.fresh[output] = (self.versions.get(before.base, 0), known[output])

    def read(self, name: str, known: Mapping[str, Any]) -> Any:
        """The value of a name after all writes so far."""
        view = self.view(name) if self.active else None
        if view is None or view.base not in self.versions:
            return known[name]
        version = self.versions[view.base]
        if not view.steps:
            return self.bases.get(view.base, known[view.base])
        at, value = self.fresh.get(name, (0, known[name]))
        if at == version:
            return value
        if view.unsure:
            raise Blocked("may read a tensor that was changed in place through a view", COPY)
        value = self.levels(view, known)[-1]
        self.fresh[name] = (version, value)
        return value

    def write(
        self,
        node: Node,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        known: Mapping[str, Any],
    ) -> Value:
        """Lower an in-place node by its functional form and store the result."""
        target = node.args[0]
        if not isinstance(target, Ref) or not isinstance(args[0], Value):
            raise Blocked("changes something in place that is not one tensor", COPY)
        if operator(node.target) in SHAPES:
            raise Blocked("changes the dimensions of a tensor in place", COPY)
        view = self.view(target.name)
        if operator(node.target) in TURNS:
            return self.turn(node, args, kwargs, view)
        if view.unsure:
            raise Blocked("changes a tensor in place that may be a view of another", COPY)
        type = args[0].tensor
        plain = replace(node, target=functional_target(node.target))
        computed = type
        if operator(node.target) in ARITHMETIC and type.element.is_float:
            values = [argument for argument in args if isinstance(argument, Value)]
            computed = TensorType(type.dims, result_element(*values))
        with self.context.entered(plain, (computed,)):
            value = self.context.fill(self.call(plain, args, kwargs)[0], type)
        self._store(view, value, known)
        version = self.versions[view.base]
        self.fresh[target.name] = (version, value)
        for output in node.outputs:
            self.views[output] = view
            self.fresh[output] = (version, value)
        return value

    def turn(
        self, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any], view: AliasView
    ) -> Value:
        """The tensor with other dims: from now on its name is a view of what it was."""
        plain = replace(node, target=functional_target(node.target))
        types = tuple(self.graph.types.get(name) for name in node.outputs)
        with self.context.entered(plain, types):
            value = self.call(plain, args, kwargs)[0]
        turned = AliasView(view.base, (*view.steps, (plain, 0)), view.unsure)
        version = self.versions.setdefault(view.base, 0)
        for name in (node.args[0].name, *node.outputs):
            self.views[name] = turned
            self.fresh[name] = (version, value)
        return value

    def assign(self, name: str, value: Value, known: Mapping[str, Any]) -> None:
        """`value` is what an operator, or a graph inside of it, has made of one of its operands."""
        view = self.view(name)
        if view.unsure:
            raise Blocked("changes a tensor in place that may be a view of another", COPY)
        self._store(view, value, known)
        self.fresh[name] = (self.versions[view.base], value)

    def _store(self, view: AliasView, value: Value, known: Mapping[str, Any]) -> None:
        """Give the base the value that makes `view` be `value`."""
        levels = self.levels(view, known)[:-1] if view.steps else []
        for (node, index), outer in zip(reversed(view.steps), reversed(levels), strict=True):
            with self.context.entered(node, (outer.tensor,)):
                value = self.undo(_with_sizes(node, known), index, outer, value)
        self.bases[view.base] = value
        self.versions[view.base] = self.versions.get(view.base, 0) + 1

    def levels(self, view: AliasView, known: Mapping[str, Any]) -> list[Value]:
        """The base's present value and what each view on the way makes of it."""
        values = [self.bases.get(view.base) or known[view.base]]
        for node, index in view.steps:
            node = _with_sizes(node, known)
            types = tuple(self.graph.types.get(name) for name in node.outputs)
            args = [values[-1], *(list(a) if type(a) is tuple else a for a in node.args[1:])]
            with self.context.entered(node, types):
                values.append(self.call(node, args, node.kwargs)[index])
        return values

    def undo(self, node: Node, index: int, outer: Value, value: Value) -> Value:
        """`outer` changed so that the view `node` of it is `value`."""
        c, name = self.context, operator(node.target)
        if (name in RESHAPES or name == "to") and value.element is outer.element:
            return c.builder.reshape(value, outer.dims)
        if name in PERMUTATIONS:
            return c.builder.transpose(value, _inverse(name, node.args, outer.rank))
        if name not in PARTS or node.target == "aten.tensor_split.indices":
            if name not in APART:
                raise Blocked(f"changes a tensor in place through {name}", COPY)
            return write_through(c, outer, value, lambda x: self.replayed(node, index, x))
        names = ("dim", "start", "end", "step") if name in ("slice", "narrow") else ("", "dim")
        if name in ("select", "unbind", "slice", "narrow"):
            names = {"select": ("dim", "index"), "unbind": ("dim",)}.get(name, names)
        given = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
        axis = axis_of(given.get("dim", 0), outer.rank)
        size = outer.dims[axis]
        if name in ("select", "unbind"):
            start = index if name == "unbind" else place_of(c, given["index"], size)
            dims = list(outer.dims)
            dims[axis] = 1
            return overwrite(c, outer, c.builder.reshape(value, dims), axis, start, 1)
        if name in ("slice", "narrow"):
            start, _ = bounds(c, size, given.get("start"), None)
            step = given.get("step", 1) if name == "slice" else 1
            return overwrite(c, outer, value, axis, start, step)
        before = (self.graph.types[output] for output in node.outputs[:index])
        return overwrite(c, outer, value, axis, sum(type.dims[axis] for type in before), 1)

    def replayed(self, node: Node, index: int, places: Value) -> Value:
        """That result of a view, of whole numbers in place of its tensor."""
        known = (self.graph.types.get(name) for name in node.outputs)
        types = tuple(type and type.with_element(places.element) for type in known)
        with self.context.entered(node, types):
            args = [places, *(list(a) if type(a) is tuple else a for a in node.args[1:])]
            return self.call(node, args, node.kwargs)[index]

    def written(self) -> dict[int, Value]:
        """The new values of the graph's inputs that it has changed, by their numbers."""
        names = enumerate(self.graph.inputs)
        return {number: self.bases[name] for number, name in names if name in self.bases}


def _with_sizes(node: Node, known: Mapping[str, Any]) -> Node:
    """The node of a view with the sizes that the graph computes as formulas."""

    def found(argument: Any) -> Any:
        if type(argument) is tuple:
            return tuple(map(found, argument))
        if not isinstance(argument, Ref):
            return argument
        if isinstance(known[argument.name], Value):
            raise Blocked("changes a view in place whose size the program computes", COPY)
        return known[argument.name]

    kwargs = {name: found(value) for name, value in node.kwargs.items()}
    return replace(node, args=(node.args[0], *map(found, node.args[1:])), kwargs=kwargs)


def _is_itself(node: Node) -> bool:
    """Whether a `to` that keeps the type is the tensor itself: no copy is asked for."""
    asked = (*node.args[2:], *node.kwargs.values())
    stays = ("cpu", "torch.strided")
    moves = any(item is True or isinstance(item, str) and item not in stays for item in asked)
    return operator(node.target) == "to" and not moves


def _inverse(name: str, args: Sequence[Any], rank: int) -> list[int]:
    if name in ("t", "numpy_T"):
        return list(reversed(range(rank)))
    if name in SWAPS:
        order = list(range(rank))
        first, second = (axis_of(axis, rank) for axis in args[1:3])
        order[first], order[second] = second, first
        return order
    order = [axis_of(axis, rank) for axis in args[1]]
    return sorted(range(rank), key=order.__getitem__)
