"""What a `jax.export` file or object says becomes a module; files are read without jax."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...hlo.errors import Blocker, ImportBlockers, UnsupportedError, UserError
from ...hlo.graph import Dense, Module
from ...hlo.signature import Signature
from ...hlo.size_text import MAXIMUM_TEXT
from ...hlo.sizes import Symbol
from ...hlo.specialize import symbols_of_type
from ...hlo.symbols import Dim, SymbolicDim, maximum, minimum
from ...hlo.trees import StructureError, Tree
from ...hlo.types import TensorType, Type, element_type
from .. import tree
from ..stablehlo.bytecode import read_bytecode
from ..stablehlo.convert import Converter, EntryArgument
from ..stablehlo.locations import Locations
from ..stablehlo.signatures import donations, parameter_names, typed
from .flatbuffer import read_export, refusal

OLDEST_CONVENTION, NEWEST_CONVENTION = 9, 10

_DTYPE_NAMES = """
    i1 i8 i16 i32 i64 ui8 ui16 ui32 ui64 f16 f32 f64 complex<f32> complex<f64> bf16 i4 ui4
    f8E4M3B11FNUZ f8E4M3FN f8E4M3FNUZ f8E5M2 f8E5M2FNUZ f0 f8E4M3 f8E3M4 f8E8M0FNU f4E2M1FN
"""
_DTYPES = _DTYPE_NAMES.split()


@dataclass(frozen=True)
class Abstract:
    """One flat input or output: dimensions as text (symbolic ones are expressions), element."""

    shape: tuple[str, ...]
    element: str

    @property
    def is_static(self) -> bool:
        return all(dim.isdigit() for dim in self.shape)

    def __str__(self) -> str:
        return f"{self.element}[{','.join(self.shape)}]"


@dataclass(frozen=True)
class Export:
    """The parts of an export that an import needs."""

    name: str
    program: bytes | memoryview
    inputs: Tree
    outputs: Tree
    arguments: tuple[Abstract, ...]
    results: tuple[Abstract, ...]
    kept: tuple[int, ...]
    platforms: tuple[str, ...]
    devices: int
    effects: int
    convention: int


def read_export_file(data: bytes | memoryview, name: str = "<export>") -> Export:
    """The export in a serialized `jax.export.Exported`."""
    fields = read_export(data, name)
    if not len(fields["mlir_module_serialized"]) or fields["in_tree"] is None:
        raise refusal(name, "it holds no program")
    unique = [_abstract(value) for value in fields["unique_avals"]]

    def values(direct: str, indices: str) -> tuple[Abstract, ...]:
        if fields[indices]:
            if max(fields[indices]) >= len(unique):
                raise UserError(f"{name} is damaged: an input's type is missing")
            return tuple(unique[index] for index in fields[indices])
        return tuple(_abstract(value) for value in fields[direct])

    return Export(
        fields["function_name"],
        fields["mlir_module_serialized"],
        _tree(fields["in_tree"]),
        _tree(fields["out_tree"]) if fields["out_tree"] else Tree.leaf(),
        values("in_avals", "in_avals_idxs"),
        values("out_avals", "out_avals_idxs"),
        tuple(fields["module_kept_var_idx"]),
        tuple(fields["platforms"]),
        fields["nr_devices"] or fields["nr_devices_short"] or 1,
        len(fields["ordered_effects"]),
        fields["calling_convention_version"],
    )


def _abstract(fields: dict[str, Any]) -> Abstract:
    number = fields["dtype"]
    element = _DTYPES[number] if 0 <= number < len(_DTYPES) else f"key type {number}"
    return Abstract(tuple(fields["shape"]), element)


def _tree(fields: dict[str, Any]) -> Tree:
    """The signature's tree of a serialized PyTreeDef."""
    children = tuple(_tree(child) for child in fields["children"])
    kind = fields["kind"]
    if kind == 0:
        return Tree.leaf()
    if kind == 1:
        return Tree.none()
    if kind in (2, 3):
        return Tree("tuple" if kind == 2 else "list", children)
    names = tuple(fields["children_names"])
    if kind == 4 and len(names) == len(children):
        return Tree("dict", children, names)
    if kind != 5:
        raise UserError("the export's input structure is damaged")
    known = _namedtuple_fields(bytes(fields["custom_auxdata"]), len(children))
    if known:
        return Tree("namedtuple", children, known, fields["custom_name"])
    return Tree("custom", children, tuple(range(len(children))), fields["custom_name"])


def _namedtuple_fields(data: bytes, count: int) -> tuple[str, ...]:
    """JAX stores a namedtuple's field names as JSON; another class's data is its own."""
    try:
        names = json.loads(data)
    except ValueError:
        return ()
    valid = isinstance(names, list) and len(names) == count
    if valid and all(isinstance(n, str) and n.isidentifier() for n in names):
        return tuple(names)
    return ()


def import_export(
    export: Export,
    name: str = "",
    examples: Sequence[Any] = (),
    keywords: Mapping[str, Any] | None = None,
) -> Module:
    """The module of an export; ImportBlockers where it needs side effects.

    Symbolic shapes stay symbolic, by the names of the export, or example inputs fix them. An export
    for several devices is one program with shardings, which means the same on one.
    """
    title = name or export.name or "export"
    given = _example_types(export, title, examples, keywords or {})
    _check(export, title)
    if not given:
        open_ = [n for n, value in enumerate(export.arguments) if not value.is_static]
        given = {n: _type(export.arguments[n]) for n in open_}
    names = dict.fromkeys(name for kind in given.values() for name in symbols_of_type(kind))
    document = read_bytecode(export.program, title)
    entry, leading = _entry_arguments(document, export)
    constants = [slot.constant for slot in entry if slot.constant is not None]
    platform = {"_platform_index": constants[0]} if constants else {}
    kept = set(export.kept)
    unused: dict[int, Type] = {
        index: given.get(index) or _type(value)
        for index, value in enumerate(export.arguments)
        if index not in kept
    }
    sizes = {name: Symbol() for name in names}
    module = Converter(
        document, title, "constant", entry, unused, platform, given, sizes=sizes
    ).module()
    if names:
        module = replace(module, symbols=_variables(module.symbols, names))
    if export.devices > 1:
        parts = any(op.definition.communicates for op in module.walk())
        what = (
            "parts of it are programs per device, which only the interpreter runs"
            if parts
            else "the program here is for one, and the shardings are kept as annotations"
        )
        module = module.with_notes(f"it was exported for {export.devices} devices; {what}")
    return replace(module, signature=_signature(module, export, document, leading))


def _example_types(
    export: Export, title: str, examples: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[int, TensorType]:
    """The type of each flat input as the examples fix it; nothing without examples."""
    if not examples and not keywords:
        return {}
    if export.inputs.kind != "tuple" or len(export.inputs.children) != 2:
        raise UserError(f"{title}: the export's inputs are not (arguments, keywords)")
    try:
        leaves = export.inputs.flatten((tuple(examples), dict(keywords)), "examples")
    except StructureError as error:
        raise UserError(f"{title}: the examples do not fit the export: {error}") from None
    found: dict[int, TensorType] = {}
    for index, (leaf, value) in enumerate(zip(leaves, export.arguments, strict=False)):
        shape = tuple(np.shape(leaf))
        fixed = value.shape
        if len(shape) != len(fixed) or any(
            dim.isdigit() and int(dim) != size for dim, size in zip(fixed, shape, strict=True)
        ):
            raise UserError(f"{title}: example {index} has shape {list(shape)}, declared {value}")
        found[index] = _type(Abstract(tuple(map(str, shape)), value.element))
    return found


_SMALLEST = "a variable of jax.export is at least 1"


def _variables(symbols: Mapping[str, Symbol], names: Iterable[str]) -> dict[str, Symbol]:
    """The symbols, of which JAX's variables are never 0, also where checks were left out."""
    found = dict(symbols)
    for name in names:
        symbol = found.get(name)
        if symbol is not None and symbol.minimum < 1:
            origin = "; ".join(filter(None, (symbol.origin, _SMALLEST)))
            found[name] = symbol._replace(minimum=1, origin=origin)
    return found


def _check(export: Export, title: str) -> None:
    """Everything about the export as a whole that cannot be imported."""
    found: list[Blocker] = []

    def block(reason: str, remedy: str) -> None:
        found.append(Blocker("jax.export", title, reason, remedy))

    if not OLDEST_CONVENTION <= export.convention <= NEWEST_CONVENTION:
        block(
            f"calling convention {export.convention} is not one of {OLDEST_CONVENTION} and "
            f"{NEWEST_CONVENTION}",
            "export it again with a current JAX",
        )
    if export.effects:
        block("it has ordered side effects", "remove callbacks and prints before the export")
    if found:
        raise ImportBlockers(list(dict.fromkeys(found)), title)


def _entry_arguments(document: tree.Document, export: Export) -> tuple[list[EntryArgument], int]:
    """What each parameter of `main` is, and how many stand before the kept inputs."""
    mains = [
        operation
        for region in document.module.regions
        for operation in region.operations
        if operation.name == "func.func" and operation.attributes.get("sym_name") == "main"
    ]
    if len(mains) != 1 or not mains[0].regions:
        raise UserError(f"{document.source}: the export has no function 'main'")
    parameters = mains[0].regions[0].arguments
    entry: list[EntryArgument] = []
    if len(export.platforms) > 1:
        number = export.platforms.index("cpu") if "cpu" in export.platforms else 0
        kind = parameters[0].type if parameters else None
        if not isinstance(kind, tree.Tensor) or kind.shape or kind.element not in ("i32", "i64"):
            raise UserError(f"{document.source}: the export's platform argument is missing")
        scalar = TensorType((), element_type(str(kind.element)))
        entry.append(EntryArgument(constant=Dense(scalar, np.asarray(number, scalar.dtype))))
    leading = len(entry)
    if list(export.kept) != sorted(set(export.kept)) or any(
        index >= len(export.arguments) for index in export.kept
    ):
        raise UserError(f"{document.source}: the export's list of inputs is damaged")
    entry += [EntryArgument(index=index) for index in export.kept]
    return entry, leading


def _type(value: Abstract) -> TensorType:
    try:
        return TensorType(tuple(map(_size, value.shape)), element_type(value.element))
    except (ValueError, ZeroDivisionError):
        raise UnsupportedError(f"an input of type {value} is not supported") from None


_OPERATIONS: Mapping[type[ast.AST], Callable[[Dim, Dim], Dim]] = {
    ast.Add: lambda x, y: x + y,
    ast.Sub: lambda x, y: x - y,
    ast.Mult: lambda x, y: x * y,
    ast.Pow: lambda x, y: x**y,
}
_FUNCTIONS: Mapping[str, Callable[..., Dim]] = {
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "max": maximum,
    "min": minimum,
}


def _size(text: str) -> Dim:
    """A dimension as JAX writes it: `floordiv(4*b + 1, 2)`, `mod(b, 8)`, `b^2`; ValueError for
    others."""
    try:
        if len(text) <= MAXIMUM_TEXT:
            return _size_of(ast.parse(text.replace("^", "**"), mode="eval").body)
    except (MemoryError, RecursionError, SyntaxError, TypeError):
        pass
    raise ValueError(f"'{text[:80]}' is no dimension")


def _size_of(node: ast.expr) -> Dim:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return SymbolicDim(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_size_of(operand)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_size_of(left), _size_of(right))
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_size_of(left), _size_of(right))
    raise ValueError("it is no dimension")


def _signature(module: Module, export: Export, document: tree.Document, leading: int) -> Signature:
    """Structure and names as the exported function has them."""
    body = module.body
    inputs = export.inputs
    if inputs.kind != "tuple" or [child.kind for child in inputs.children] != ["tuple", "dict"]:
        raise UserError(f"{document.source}: the export's inputs are not (arguments, keywords)")
    counts = (inputs.leaf_count, export.outputs.leaf_count)
    if counts != (len(body.argument_types), len(body.result_types)):
        raise UserError(f"{document.source}: the export's structure does not fit its program")
    signature = Signature.build(
        inputs.children[0],
        [typed(kind) for kind in body.argument_types],
        export.outputs,
        [typed(kind) for kind in body.result_types],
        names=parameter_names(inputs.children[0], _leaf_names(document, export, leading)),
        keywords=inputs.children[1],
    )
    return signature.donating(donations(module.main))


def _leaf_names(document: tree.Document, export: Export, leading: int) -> Sequence[str]:
    """JAX notes an input's path as the location of its parameter."""
    names = [""] * len(export.arguments)
    locations = Locations(document)
    for operation in document.module.regions[0].operations:
        if operation.attributes.get("sym_name") == "main":
            parameters = operation.regions[0].arguments[leading:]
            for index, value in zip(export.kept, parameters, strict=True):
                names[index] = locations.name(value.location)
    return names
