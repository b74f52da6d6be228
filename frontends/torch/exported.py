"""Programs in memory: an `nn.Module` is exported, an ExportedProgram becomes a `TorchProgram`.

The only modules of the compiler that import torch stand here; they do so when they are called.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import warnings
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...hlo.assumptions import Assumptions
from ...hlo.errors import ImportBlockers, UserError
from ...hlo.graph import Module, Weight
from ...hlo.needed_sizes import is_known
from ...hlo.sizes import SizeConstraint, Symbol
from ...hlo.trees import Tree
from ...hlo.types import ElementType, TensorType, element_type
from .attributes import watched
from .caches import register_caches
from .failures import export_failure, graph_place, user_place, without_graphs
from .functional import DROPOUTS, MAYBE_VIEWS, VIEWS, operator
from .lower import lower, unsupported
from .lowerings import DENSE, LOWERINGS
from .origins import is_models, origin
from .program import Graph, Input, Node, Output, Ref, TorchProgram, reads_memory
from .sizes import (
    Unreadable,
    Values,
    input_paths,
    parse_guards,
    parse_size,
    renamed,
    sizes_from_examples,
    symbol_names,
    symbol_of_limits,
)
from .trees import tree_of_spec

_ELEMENTS = {
    "bool": "i1", "uint8": "ui8", "uint16": "ui16", "uint32": "ui32", "uint64": "ui64",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "float16": "f16",
    "bfloat16": "bf16", "float32": "f32", "float64": "f64", "complex64": "complex<f32>",
    "complex128": "complex<f64>", "float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2",
    "float8_e4m3fnuz": "f8E4M3FNUZ", "float8_e5m2fnuz": "f8E5M2FNUZ",
    "float8_e8m0fnu": "f8E8M0FNU",
}  # fmt: skip


def import_live(source: Any, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Module:
    """The module of an ExportedProgram, or of an `nn.Module` called with these inputs."""
    import torch
    from torch.utils import _pytree

    source = getattr(source, "_orig_mod", source)  # of torch.compile
    if isinstance(source, torch.nn.Module) and not isinstance(source, torch.fx.GraphModule):
        name = type(source).__name__
        for tensor in _pytree.tree_leaves((inputs, dict(keywords))):
            if isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided:
                raise UserError(f"{name}: an input of the layout {tensor.layout}: {DENSE}")
        if not inputs and not keywords and inspect.signature(source.forward).parameters:
            raise UserError(f"{name}: give example inputs, so that it can be exported")
        register_caches()
        try:
            with torch.no_grad(), without_graphs(), watched(source) as changed:
                source = torch.export.export(source, tuple(inputs), dict(keywords), strict=False)
        except Exception as error:  # of many kinds; the whole story stays attached
            place = user_place(error, source)
            raise UserError(
                f"{place}torch.export cannot export {name}: {export_failure(error)}"
            ) from error
        notes = [
            f"the model changes its attribute '{attribute}', which is no buffer: every call begins "
            "with what it was when it was exported"
            for attribute in dict.fromkeys(changed)
        ]
        return _import_exported(source, name).with_notes(*notes)
    if not isinstance(source, torch.export.ExportedProgram):
        if isinstance(source, torch.nn.Module):
            raise UserError("a graph is no export: give the model or its torch.export.export")
        raise UserError(f"a {type(source).__name__} is no export of PyTorch")
    name = _root_name(source)
    if not inputs and not keywords:
        return _import_exported(source, name)
    return _import_exported(
        source, name, sizes_from_examples(read_exported(source, name), inputs, keywords)
    )


def _root_name(exported: Any) -> str:
    """The class of the exported model, as far as its nodes remember it."""
    for node in exported.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            return str(next(iter(stack.values()))[1]).rpartition(".")[2].rstrip("'>")
    return "exported"


def _import_exported(exported: Any, name: str, values: Values | None = None) -> Module:
    """Lower as exported where that can be done, else decompose what cannot be lowered first."""
    program = read_exported(exported, name, values)
    blockers: ImportBlockers | None = None
    if not unsupported(program.graph):
        try:
            return lower(program)
        except ImportBlockers as error:
            blockers = error  # PyTorch's own decompositions and functionalisation may know more
    try:
        functional = _decomposed(exported)
    except Exception as error:  # of many kinds; the whole story stays attached
        if blockers is not None and type(error).__name__ in (
            "AssertionError",
            "SpecViolationError",
        ):
            raise blockers from error  # PyTorch's own checks of itself say less
        raise UserError(
            f"{graph_place(error)}PyTorch cannot make the export of {name} functional: "
            f"{export_failure(error)}"
        ) from error
    return lower(read_exported(functional, name, values))


def _decomposed(exported: Any) -> Any:
    """The export made functional, with only those operators decomposed that have no lowering."""
    with warnings.catch_warnings():  # of PyTorch about its own use of itself
        warnings.simplefilter("ignore", FutureWarning)
        return exported.run_decompositions(decompositions())


def decompositions() -> dict[Any, Any]:
    """PyTorch's own decompositions of operators that have no lowering here."""
    import torch

    table = dict(torch.export.default_decompositions())
    overload: Any
    for overload in list(table):
        known = isinstance(overload, torch._ops.OpOverload) and str(overload) in LOWERINGS
        # what writes must become functional, and so must what is written through a view
        if known and not overload._schema.is_mutable and not _hides_views(overload):
            del table[overload]
    return table


def _hides_views(overload: Any) -> bool:
    """Whether results may be views of operands although the schema does not say so, and PyTorch
    would lose what is written through them."""
    name = operator(str(overload))
    if name not in VIEWS | MAYBE_VIEWS or name in DROPOUTS:
        return False
    return all(result.alias_info is None for result in overload._schema.returns)


def read_exported(exported: Any, name: str, values: Values | None = None) -> TorchProgram:
    """A `TorchProgram` with everything that an ExportedProgram says; weights share its memory.

    `values` fixes symbolic sizes.
    """
    signature = exported.graph_signature
    inputs = tuple(map(_input, signature.input_specs))
    input_tree = tree_of_spec(exported.call_spec.in_spec)
    call = exported.module_call_graph[0].signature
    names = tuple(getattr(call, "forward_arg_names", None) or ())
    spoken = _spoken(_environment(exported))
    called = symbol_names(_dims(exported, inputs, input_tree, names), spoken)
    reader = GraphReader(renamed(called, values or {}))
    graph = reader.graph(exported.graph_module)
    if reader.tensors:
        raise UserError(f"the export holds '{next(iter(reader.tensors))}' outside its signature")
    symbols, constraints = _limits(exported, reader.values, spoken)
    own = {called.get(raw, raw): symbols.get(called.get(raw, raw), Symbol()) for raw in spoken}
    facts = Assumptions({name: own.get(name, Symbol(1)) for name in symbols})
    return TorchProgram(
        graph=graph,
        inputs=inputs,
        outputs=tuple(_output(spec) for spec in signature.output_specs),
        tensors=_tensors(exported),
        input_tree=input_tree,
        output_tree=tree_of_spec(exported.call_spec.out_spec),
        names=names,
        symbols=symbols,
        constraints=tuple(constraints),
        branches=tuple(
            said for said in _branches(exported, reader.values) if not is_known(said, facts)
        ),
        notes=(*_fixed_sizes(exported), *_lost_lines(exported, graph)),
        name=name,
    )


def _dims(
    exported: Any, inputs: Sequence[Input], tree: Tree, names: Sequence[str]
) -> list[tuple[str, list[str | None]]]:
    """The path of each argument, and which symbol each of its dimensions is."""
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    found = []
    for bound, path in input_paths(inputs, tree, names):
        shape = getattr(nodes[bound.name].meta.get("val"), "shape", ())
        found.append((path, [_symbol(size) for size in shape]))
    return found


def _spoken(environment: Any) -> dict[str, str]:
    """What the user called the dimensions that symbols are."""
    found: dict[str, str] = {}
    said = getattr(environment, "source_name_to_debug_name", {})
    for symbol, sources in getattr(environment, "var_to_sources", {}).items():
        for source in sources:
            name = said.get(source.name if isinstance(source.name, str) else source.name())
            if name and name.isidentifier() and name.isascii():
                kept = environment.replacements.get(symbol, symbol)
                found.setdefault(str(kept), name)
    return found


def _symbol(size: Any) -> str | None:
    """The tracer's name of a size that is a symbol alone."""
    expression = getattr(getattr(size, "node", None), "expr", None)
    return str(expression) if expression is not None and expression.is_symbol else None


def _environment(exported: Any) -> Any:
    """Where PyTorch keeps what it knows of the trace's sizes; None where all are fixed."""
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if hasattr(value, "fake_mode"):
            return value.fake_mode.shape_env
    return None


def _limits(
    exported: Any, values: Values, named: Container[str]
) -> tuple[dict[str, Symbol], list[SizeConstraint]]:
    """The ranges of symbols, and those of formulas. named: the tracer's symbols that the user has
    named, whose ranges are as he has said."""
    import sympy

    places = getattr(_environment(exported), "var_to_range_sloc", {})
    symbols, constraints = dict[str, Symbol](), list[SizeConstraint]()
    for key, limits in exported.range_constraints.items():
        low, high = _bound(limits.lower), _bound(limits.upper)
        size = parse_size(sympy.srepr(key), values)
        if isinstance(size, int):
            continue
        if list(size.affine or ()) == [repr(size)]:
            place = places.get(key)
            lines = [_model_line(getattr(place, end, None)) for end in ("lower", "upper")]
            is_residue = str(key) not in named and _is_residue(getattr(place, "lower", None))
            symbols[repr(size)] = symbol_of_limits(low, high, is_residue, lines[0] or lines[1])
            continue
        constraints.append(SizeConstraint(low or 0, "<=", size, "the export"))
        if high is not None:
            constraints.append(SizeConstraint(size, "<=", high, "the export"))
    return symbols, constraints


def _model_line(place: Any) -> str:
    """`model.py:41`, where something that PyTorch knows of a size was learnt in a model's code."""
    frame = getattr(place, "framework_loc", None)
    if frame is None or isinstance(frame, str) or not is_models(frame.filename):
        return ""
    return f"{frame.filename}:{frame.lineno}"


def _is_residue(place: Any) -> bool:
    """Whether the smallest value of a range is only what PyTorch has assumed or asked itself."""
    frame = getattr(place, "framework_loc", None)
    if frame is None or isinstance(frame, str):
        return frame is not None and "specialization" in frame
    return not is_models(frame.filename) and "_export" not in Path(frame.filename).parts


def _fixed_sizes(exported: Any) -> list[str]:
    """A note for each size that was to be open and that a model's code has fixed."""
    environment, found = _environment(exported), list[str]()
    for symbol, size in getattr(environment, "replacements", {}).items():
        line = _model_line(environment.replacements_slocs.get(symbol))
        if not line or not size.is_number:
            continue
        for source in environment.var_to_sources.get(symbol, ()):
            text = source.name if isinstance(source.name, str) else source.name()
            if place := re.fullmatch(r"L\['(\w+)'\](.*)\.size\(\)\[(\d+)\]", text):
                what = f"dimension {place[3]} of {place[1]}{place[2]}"
                found.append(f"{line}: the model fixes {what} to {size}, which was to be open")
    return found


def _lost_lines(exported: Any, graph: Graph) -> list[str]:
    """A note where PyTorch has traced a joint graph from generated code."""
    joint = exported.graph_signature.backward_signature is not None
    if not joint or any(origin.file for node in graph.nodes for origin in node.origin):
        return []
    return [
        "PyTorch's joint graph has no lines of the model; girih.joint_graph(exported) makes one "
        "that has them"
    ]


def _branches(exported: Any, values: Values) -> list[SizeConstraint]:
    """The conditions on sizes by which the model's own code was traced as it was. Questions that
    PyTorch asks itself (is it contiguous? may it be broadcast?) do not change what a graph means.
    """
    import sympy

    found: list[SizeConstraint] = []
    environment = _environment(exported)
    for guard in getattr(environment, "guards", ()):
        if not (line := _model_line(guard.sloc)):
            continue
        expression = guard.expr.xreplace(environment.replacements)
        if expression in (sympy.true, sympy.false):
            continue
        try:
            found += parse_guards(sympy.srepr(expression), values, line)
        except Unreadable as error:
            raise UserError(f"{line}: the export depends on a size here: {error}") from None
    return found


def _bound(value: Any) -> int | None:
    """A symbol's smallest or largest value; None where it has none (PyTorch's infinities)."""
    text = str(value)
    return int(text) if text.removeprefix("-").isdigit() and abs(int(text)) < 2**62 else None


def _input(spec: Any) -> Input:
    kind, argument = spec.kind.name, spec.arg
    if kind in ("PARAMETER", "BUFFER"):
        return Input("weight", argument.name, spec.target)
    if kind == "CONSTANT_TENSOR":
        return Input("constant", argument.name, spec.target)
    if kind == "USER_INPUT":
        if type(argument).__name__ == "ConstantArgument":
            return Input("fixed", argument.name, value=argument.value)
        return Input("user", argument.name)
    if kind == "TOKEN":
        return Input("token", argument.name)
    raise UserError(f"input '{argument.name}' is of the kind {kind}, which is not supported")


def _output(spec: Any) -> Output:
    kinds = {
        "USER_OUTPUT": "user", "LOSS_OUTPUT": "user", "BUFFER_MUTATION": "buffer",
        "PARAMETER_MUTATION": "buffer", "USER_INPUT_MUTATION": "input", "TOKEN": "token",
        "GRADIENT_TO_PARAMETER": "gradient", "GRADIENT_TO_USER_INPUT": "gradient",
    }  # fmt: skip
    kind = kinds.get(spec.kind.name)
    if kind is None:
        raise UserError(f"an output is of the kind {spec.kind.name}, which is not supported")
    return Output(kind, spec.target or "")


# Tensors.


def _tensors(exported: Any) -> dict[str, Weight]:
    """Parameters, buffers and constants by name; names of one tensor share one Weight."""
    named = {**exported.state_dict, **exported.constants}
    groups: dict[Any, list[str]] = {}
    for name, tensor in named.items():
        if hasattr(tensor, "untyped_storage") and _has_data(tensor):
            groups.setdefault(identity(name, tensor), []).append(name)
    found = {}
    for names in groups.values():
        tensor = named[names[0]]
        type = TensorType(tensor.shape, element_of(tensor.dtype))
        weight = Weight(names[0], _lazy(tensor), type, names[1:])
        found.update(dict.fromkeys(names, weight))
    return found


def _has_data(tensor: Any) -> bool:
    """Whether there is anything behind a tensor; a missing one is reported where it is read."""
    return tensor.device.type != "meta" and type(tensor).__name__ != "FakeTensor"


def identity(name: str, tensor: Any) -> Any:
    """Equal for tensors of the same memory and shape."""
    if not tensor.numel():
        return name
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


def _lazy(tensor: Any) -> Any:
    return lambda: array_of(tensor)


def array_of(tensor: Any) -> np.ndarray[Any, Any]:
    """A torch tensor as a numpy array over the same memory (copied only from another device)."""
    import torch

    dtype = tensor.dtype
    if dtype not in _RAW:
        own = element_of(dtype).dtype
        _RAW[dtype] = None if own.isbuiltin == 1 else own
    own = _RAW[dtype]
    if tensor.layout is not torch.strided:
        raise UserError(f"a tensor of the layout {tensor.layout}: {DENSE}")
    if own is None:
        return tensor.numpy(force=True)  # type: ignore[no-any-return]
    raw = {1: torch.uint8, 2: torch.int16}[own.itemsize]
    return tensor.view(raw).numpy(force=True).view(own)  # type: ignore[no-any-return]


_RAW: dict[Any, Any] = {}
"""Torch's types -> those of numpy that are read as bytes first, or None."""


def tensor_of(array: np.ndarray[Any, Any]) -> Any:
    """A numpy array as a torch tensor over the same memory."""
    import torch

    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    raw = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
    return torch.from_numpy(array.view(raw)).view(getattr(torch, array.dtype.name))


def element_of(dtype: Any) -> ElementType:
    """The element type of a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    if name not in _ELEMENTS:
        raise UserError(f"tensors of {dtype} are not supported")
    return element_type(_ELEMENTS[name])


# The graph.


class GraphReader:
    """Reads one fx graph; nested graphs by readers of their own.

    tensors: what the graph holds itself, outside of any signature; inputs of these names follow
    the graph's own.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self.tensors: dict[str, Any] = {}

    def size(self, size: Any) -> Any:
        """A SymInt as a dim; Unreadable if it is no formula of sizes."""
        import sympy

        return parse_size(sympy.srepr(size.node.expr), self.values)

    def graph(self, graph_module: Any) -> Graph:
        self.module = graph_module
        self.same: dict[str, str] = {}  # a second getitem of one result -> the first
        self.types: dict[str, TensorType] = {}
        self.sizes: dict[str, Any] = {}
        self.graphs: dict[str, Graph | str] = {}
        inputs: list[str] = []
        nodes: list[Node] = []
        outputs: tuple[Any, ...] = ()
        for node in graph_module.graph.nodes:
            if node.op == "placeholder":
                inputs.append(node.name)
                self.note(node.name, node.meta.get("val"))
            elif node.op == "get_attr":
                self.attribute(node)
            elif node.op == "output":
                given = node.args[0]
                several = isinstance(given, (tuple, list))
                outputs = tuple(map(self.argument, given if several else (given,)))
            elif not _is_getitem(node):
                nodes.append(self.call(node))
        names = (*inputs, *self.tensors)
        return Graph(names, tuple(nodes), outputs, self.types, self.sizes)

    def attribute(self, node: Any) -> None:
        value = self.module
        for part in node.target.split("."):
            value = getattr(value, part)
        if hasattr(value, "untyped_storage"):
            self.tensors[node.name] = value
            self.note(node.name, value)
            return
        if not hasattr(value, "graph"):
            self.graphs[node.name] = str(value)  # nothing that a lowering reads
            return
        inner = GraphReader(self.values)
        self.graphs[node.name] = inner.graph(value)
        if inner.tensors:
            name = next(iter(inner.tensors))
            raise UserError(f"the nested graph '{node.target}' holds the tensor '{name}'")

    def note(self, name: str, value: Any) -> None:
        """Remember the type of a named tensor, or the formula of a size, if it can be said."""
        if type(value).__name__ == "SymInt":
            with contextlib.suppress(Unreadable):
                self.sizes[name] = self.size(value)
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            return
        try:
            dims = [size if type(size) is int else self.size(size) for size in value.shape]
            self.types[name] = TensorType(dims, element_of(value.dtype))
        except Unreadable:
            return

    def call(self, node: Any) -> Node:
        value = node.meta.get("val")
        several = isinstance(value, (tuple, list)) or any(_is_getitem(user) for user in node.users)
        if several:
            names, used = self.parts(node, value if isinstance(value, (tuple, list)) else ())
        else:
            names = [node.name] if value is not None or node.users else []
            used = [bool(node.users)] * len(names)
            self.note(node.name, value)
        stack = node.meta.get("nn_module_stack") or {}
        path = next(reversed(stack.values()))[0] if stack else ""
        target = target_name(node.target)
        kwargs = {key: self.argument(item) for key, item in node.kwargs.items()}
        if reads_memory(target):
            kwargs["memory"] = self.memory(node.args[0])
        return Node(
            target,
            tuple(map(self.argument, node.args)),
            kwargs,
            tuple(names),
            tuple(used),
            origin(node.meta.get("stack_trace") or "", path),
        )

    def memory(self, node: Any) -> tuple[Any, ...] | None:
        """The strides of a tensor that begins where its memory does."""
        value = getattr(node, "meta", {}).get("val")
        if value is None or type(value.storage_offset()) is not int or value.storage_offset():
            return None
        try:
            return tuple(n if type(n) is int else self.size(n) for n in value.stride())
        except Unreadable:
            return None

    def parts(self, node: Any, values: Any) -> tuple[list[str], list[bool]]:
        """Names of a node's several results, those of the getitems that take them; the tensors of a
        list among them are results like the others."""
        leaves, firsts = list[Any](), list[int]()
        for value in values:
            firsts.append(len(leaves))
            leaves += value if isinstance(value, (tuple, list)) else [value]
        names = [f"{node.name}#{index}" for index in range(len(leaves))]
        used = [False] * len(names)
        for name, value in zip(names, leaves, strict=True):
            self.note(name, value)
        for user in node.users:
            at = user.args[1]
            first = firsts[at] if at < len(firsts) else at
            if at < len(firsts) and isinstance(values[at], (tuple, list)):
                taken = [(inner, first + inner.args[1]) for inner in user.users]
            else:
                taken = [(user, first)]
            for getitem, index in taken:
                self.take(getitem, index, node.name, names, used)
        return names, used

    def take(self, getitem: Any, index: int, node: str, names: list[str], used: list[bool]) -> None:
        """One more of a node's results has a name."""
        for missing in range(len(names), index + 1):
            names.append(f"{node}#{missing}")
            used.append(False)
        used[index] = used[index] or bool(getitem.users)
        if names[index].endswith(f"#{index}"):
            names[index] = getitem.name
            self.note(getitem.name, getitem.meta.get("val"))
        self.same[getitem.name] = names[index]

    def argument(self, value: Any) -> Any:
        kind: str = type(value).__name__
        if kind == "Node":
            if value.name in self.graphs:
                return self.graphs[value.name]
            name: str = value.name
            return Ref(self.same.get(name, name))
        if isinstance(value, (tuple, list)):
            return tuple(map(self.argument, value))
        if kind == "dtype":
            return element_of(value)
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return value
        if kind in ("SymInt", "SymFloat", "SymBool"):
            return self.size(value)
        return str(value)  # devices, layouts, memory formats: no part of a program


def _is_getitem(node: Any) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


_SYMBOLIC = {"_operator", "operator", "math", "torch"}


def target_name(target: Any) -> str:
    """ "aten.add.Tensor", "cond", or "sym.mul" for arithmetic on sizes."""
    module = getattr(target, "__module__", "")
    name = getattr(target, "__name__", str(target))
    if hasattr(target, "_schema"):
        return str(target)
    if module in _SYMBOLIC or name.startswith(("sym_", "_sym_")):
        return f"sym.{name.removeprefix('_').removeprefix('sym_')}"
    return str(target).removeprefix("torch.ops.higher_order.")
