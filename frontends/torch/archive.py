"""`.pt2` archives read without torch: a zip of a JSON program and of whole tensor storages.

Weights stay in the file: they are mapped, and views of it with the tensors' strides. Nothing in an
archive is unpickled or extracted.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...hlo.assumptions import Assumptions
from ...hlo.errors import UserError
from ...hlo.graph import Weight
from ...hlo.needed_sizes import is_known, reduced
from ...hlo.size_text import parse_dim
from ...hlo.sizes import SizeConstraint, Symbol
from ...hlo.symbols import Dim, SymbolicDim, substituted, symbols_of
from ...hlo.types import ElementType, TensorType, element_type
from .origins import origin
from .program import Graph, Input, Node, Output, Ref, TorchProgram, reads_memory
from .sizes import (
    Unreadable,
    Values,
    input_paths,
    parse_guard_text,
    parse_size,
    renamed,
    sizes_from_examples,
    symbol_names,
    symbol_of_limits,
)
from .trees import tree_of_json

MAJOR = 8  # of the schema; other majors are other formats

_ELEMENTS = {
    1: "ui8", 2: "i8", 3: "i16", 4: "i32", 5: "i64", 6: "f16", 7: "f32", 8: "f64",
    10: "complex<f32>", 11: "complex<f64>", 12: "i1", 13: "bf16", 28: "ui16", 29: "f8E4M3FN",
    30: "f8E5M2", 31: "f8E4M3FNUZ", 32: "f8E5M2FNUZ", 33: "f8E8M0FNU", 34: "ui32", 35: "ui64",
}  # fmt: skip
_STRIDED = 7

Json = Any


def read_archive(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
    inputs: Sequence[Any] = (),
    keywords: Mapping[str, Any] | None = None,
) -> TorchProgram:
    """The program of an archive, by path or from its bytes; UserError if it is not one.

    Example inputs fix the sizes that the export leaves symbolic.
    """
    in_memory = isinstance(source, (bytes, bytearray, memoryview))
    name = "the .pt2 archive" if in_memory else os.fspath(source)  # type: ignore[arg-type]
    try:
        archive = _Archive(source, str(name))
        program = archive.program({})
        if inputs or keywords:
            program = archive.program(sizes_from_examples(program, inputs, keywords or {}))
        return program
    except (
        zipfile.BadZipFile, NotImplementedError, KeyError, IndexError, TypeError, ValueError,
        AttributeError, struct.error, RuntimeError, OverflowError,
    ) as error:  # fmt: skip
        reason = f"no '{error.args[0]}'" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{name} is damaged or no .pt2 archive: {reason}") from error
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}") from error


class _Archive:
    """The opened file: a directory of members, all of them inside `raw`."""

    def __init__(self, source: Any, name: str) -> None:
        self.name = name
        whole = source.obj if isinstance(source, memoryview) else None
        if isinstance(whole, bytes) and len(whole) == source.nbytes:
            source = whole  # BytesIO copies a view, but not bytes
        if isinstance(source, (bytes, bytearray, memoryview)):
            self.raw = np.frombuffer(source, np.uint8)
            self.zip = zipfile.ZipFile(io.BytesIO(source))
        else:
            self.zip = zipfile.ZipFile(source)
            self.raw = np.memmap(source, np.uint8, "r")
        members = self.zip.namelist()
        if "serialized_exported_program.json" in members:
            raise UserError(
                f"{name} was saved by PyTorch before 2.8: load it with torch.export.load and save"
                " it again with a newer PyTorch"
            )
        marks = [member for member in members if member.rpartition("/")[2] == "archive_format"]
        if not marks:
            raise ValueError("it has no archive_format")
        self.root = marks[0].removesuffix("archive_format")
        if self.read("archive_format") != b"pt2":
            raise ValueError("its archive_format is not pt2")
        if self.root + "byteorder" in members and self.read("byteorder") != b"little":
            raise UserError(f"{name} was saved on a big-endian machine, which is not supported")

    def read(self, member: str) -> bytes:
        """A small member, checked against its checksum."""
        data = bytes(self.data(member))
        if zlib.crc32(data) != self.zip.getinfo(self.root + member).CRC:
            raise ValueError(f"its member '{member}' has a wrong checksum")
        return data

    def data(self, member: str) -> np.ndarray[Any, Any]:
        """The bytes of a member, which must be stored as they are."""
        info = self.zip.getinfo(self.root + member)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ValueError(f"its member '{member}' is compressed")
        start = info.header_offset
        header = bytes(self.raw[start : start + 30])
        if header[:4] != b"PK\x03\x04":
            raise ValueError(f"its member '{member}' has no header")
        start += 30 + sum(struct.unpack("<HH", header[26:30]))
        if start + info.file_size > self.raw.size:
            raise ValueError(f"its member '{member}' is cut off")
        return self.raw[start : start + info.file_size]

    def program(self, fixed: Mapping[str, int]) -> TorchProgram:
        """`fixed`: numbers of symbols, by name."""
        names = [
            member[len(self.root) + 7 : -5] for member in self.zip.namelist()
            if member.startswith(self.root + "models/") and member.endswith(".json")
        ]  # fmt: skip
        if len(names) != 1:
            raise ValueError(f"it holds {len(names)} programs, not one")
        model = names[0]
        said = json.loads(self.read(f"models/{model}.json"))
        version = said["schema_version"]
        if version["major"] != MAJOR:
            spelled = f"{version['major']}.{version['minor']}"
            raise UserError(
                f"{self.name} is written in version {spelled} of PyTorch's format, {MAJOR}.x is"
                " supported: save it again with PyTorch 2.8 or later"
            )
        graph_module = said["graph_module"]
        call = graph_module["module_call_graph"][0]["signature"]
        signature = graph_module["signature"]
        inputs = tuple(_input(spec) for spec in signature["input_specs"])
        input_tree = tree_of_json(call["in_spec"])
        arguments = tuple(call.get("forward_arg_names") or ())
        paths = input_paths(inputs, input_tree, arguments)
        metas = graph_module["graph"]["tensor_values"]
        named = [(path, _symbols(metas.get(bound.name))) for bound, path in paths]
        values = renamed(symbol_names(named, {}), fixed)
        graph = _graph(graph_module["graph"], values)
        symbols, constraints = _limits(said.get("range_constraints", {}), values)
        places = _places(paths, arguments, graph)
        return TorchProgram(
            graph=graph,
            inputs=inputs,
            outputs=tuple(_output(spec) for spec in signature["output_specs"]),
            tensors=self.tensors(model),
            composite="ATEN" not in said.get("verifiers", ()),
            input_tree=input_tree,
            output_tree=tree_of_json(call["out_spec"]),
            names=arguments,
            symbols=symbols,
            constraints=_conditions(said.get("guards_code") or (), places, symbols, constraints),
            name=os.path.splitext(os.path.basename(self.name))[0]
            if self.name != "the .pt2 archive" else model,
        )  # fmt: skip

    def tensors(self, model: str) -> dict[str, Weight]:
        """Weights and constants by name; names of one tensor share one Weight."""
        groups: dict[Any, list[str]] = {}
        for folder, config in (
            ("data/weights/", f"{model}_weights_config.json"),
            ("data/constants/", f"{model}_constants_config.json"),
        ):
            if self.root + folder + config not in self.zip.namelist():
                continue
            for name, entry in json.loads(self.read(folder + config))["config"].items():
                meta = entry["tensor_meta"]
                if entry["use_pickle"] or meta is None or meta["layout"] != _STRIDED:
                    continue  # reported where the graph reads it
                sizes = tuple(size["as_int"] for size in meta["sizes"])
                strides = tuple(stride["as_int"] for stride in meta["strides"])
                place = (
                    folder + entry["path_name"], meta["dtype"], sizes, strides,
                    meta["storage_offset"]["as_int"],
                )  # fmt: skip
                groups.setdefault(place, []).append(name)
        found: dict[str, Weight] = {}
        for (member, dtype, sizes, strides, offset), names in groups.items():
            element = _element(dtype)
            array = self.view(member, element, sizes, strides, offset)
            weight = Weight(names[0], array, TensorType(sizes, element), names[1:])
            found.update(dict.fromkeys(names, weight))
        return found

    def view(
        self,
        member: str,
        element: ElementType,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
    ) -> np.ndarray[Any, Any]:
        """A tensor inside a storage, without a copy; ValueError if it reaches outside."""
        if len(sizes) != len(strides) or min((*sizes, *strides, offset), default=0) < 0:
            raise ValueError(f"'{member}' has impossible sizes")
        if 0 in sizes:
            return np.zeros(sizes, element.dtype)
        raw = self.data(member)
        last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        if (last + 1) * element.itemsize > raw.size:
            raise ValueError(f"'{member}' is shorter than its tensor")
        whole = raw[: raw.size // element.itemsize * element.itemsize]
        if whole.ctypes.data % element.itemsize:
            whole = whole.copy()  # archives align members; bytes from elsewhere may not be
        flat = whole.view(element.dtype)
        return np.lib.stride_tricks.as_strided(
            flat[offset:], sizes, [s * element.itemsize for s in strides], writeable=False
        )


def _element(number: int) -> ElementType:
    if number not in _ELEMENTS:
        raise UserError(f"tensors of PyTorch's type number {number} are not supported")
    return element_type(_ELEMENTS[number])


# Sizes.


def _symbols(meta: Json) -> list[str | None]:
    """The tracer's name of each dimension that is a symbol alone."""
    found = []
    for size in meta["sizes"] if meta else ():
        dim = _size(size, {})
        found.append(repr(dim) if symbols_of(dim) == (repr(dim),) else None)
    return found


def _limits(
    said: Mapping[str, Json], values: Values
) -> tuple[dict[str, Symbol], list[SizeConstraint]]:
    """The ranges of symbols, and those of formulas."""
    symbols, constraints = dict[str, Symbol](), list[SizeConstraint]()
    for key, limits in said.items():
        size = substituted(parse_dim(key), values)
        low, high = limits["min_val"], limits["max_val"]
        if isinstance(size, SymbolicDim) and symbols_of(size) == (repr(size),):
            symbols[repr(size)] = symbol_of_limits(low, high, low == 2 and high is None)
        elif isinstance(size, SymbolicDim):
            constraints.append(SizeConstraint(low or 0, "<=", size, "the export"))
            if high is not None:
                constraints.append(SizeConstraint(size, "<=", high, "the export"))
    return symbols, constraints


def _places(
    paths: Sequence[tuple[Input, str]], names: Sequence[str], graph: Graph
) -> dict[str, Dim]:
    """What guards call the sizes of inputs, "L['x']['key'].size()[1]", and these."""
    found: dict[str, Dim] = {}
    for bound, path in paths:
        if bound.name not in graph.types:
            continue
        root = next((n for n in names if path == n or path.startswith((f"{n}[", f"{n}."))), path)
        spelled = [f"L['{root}']"]
        if several := re.fullmatch(r"(.+)_(\d+)", root):  # one of *args
            spelled.append(f"L['{several[1]}'][{several[2]}]")
        for source in spelled:
            for axis, dim in enumerate(graph.types[bound.name].dims):
                found[f"{source}{path[len(root) :]}.size()[{axis}]"] = dim
    return found


def _conditions(
    guards: Sequence[str],
    places: Mapping[str, Dim],
    symbols: Mapping[str, Symbol],
    said: Sequence[SizeConstraint],
) -> tuple[SizeConstraint, ...]:
    """What is said, and the conditions under which the export's graph is that of its model. A file
    does not tell the model's own from PyTorch's: of those, whether a size is 0 or 1 does not change
    what a graph means."""
    found = list(said)
    facts = Assumptions(symbols, found)
    for text in guards:
        try:
            parts = parse_guard_text(text, places, "a condition of the export")
        except Unreadable as error:
            raise UserError(f"the export depends on its sizes: {error}") from None
        for part in parts:
            is_one = part.relation == "!=" and part.right in (0, 1)
            is_more = part.relation == "<=" and part.left in (0, 1, 2)
            if not (is_one or is_more or is_known(part, facts)):
                found.append(reduced(part, facts))
                facts = Assumptions(symbols, found)
    return tuple(found)


# The signature.


def _input(spec: Json) -> Input:
    ((kind, value),) = spec.items()
    if kind == "user_input":
        ((_, argument),) = value["arg"].items()
        return Input("user", argument["name"])
    if kind == "parameter":
        return Input("weight", value["arg"]["name"], value["parameter_name"])
    if kind == "buffer":
        return Input("weight", value["arg"]["name"], value["buffer_name"])
    if kind == "tensor_constant":
        return Input("constant", value["arg"]["name"], value["tensor_constant_name"])
    if kind == "token":
        return Input("token", value["arg"]["name"])
    if kind == "constant_input":
        return Input("fixed", value["name"], value=_argument(value["value"], set(), {}))
    raise UserError(f"the archive has an input of the kind {kind}, which is not supported")


def _output(spec: Json) -> Output:
    ((kind, value),) = spec.items()
    if kind in ("user_output", "loss_output"):
        return Output("user")
    for key in ("buffer_name", "parameter_name"):
        if kind.endswith("_mutation") and key in value:
            return Output("buffer", value[key])
    if kind == "token":
        return Output("token")
    if kind == "user_input_mutation":
        return Output("input", value["user_input_name"])
    if kind == "gradient_to_parameter":
        return Output("gradient", value["parameter_name"])
    if kind == "gradient_to_user_input":
        return Output("gradient", value["user_input_name"])
    raise UserError(f"the archive has an output of the kind {kind}, which is not supported")


# The graph.


def _graph(said: Json, values: Values) -> Graph:
    types: dict[str, TensorType] = {}
    for name, meta in said["tensor_values"].items():
        try:
            types[name] = TensorType(
                [_size(size, values) for size in meta["sizes"]], _element(meta["dtype"])
            )
        except Unreadable:
            continue  # the nodes that read it are blocked
    sizes: dict[str, Dim] = {}
    for name, size in said.get("sym_int_values", {}).items():
        with contextlib.suppress(Unreadable):
            sizes[name] = _size(size, values)
    read: set[str] = set()
    inputs = tuple(_input_name(argument, at) for at, argument in enumerate(said["inputs"]))
    outputs = tuple(_argument(argument, read, values) for argument in said["outputs"])
    rows = []
    for node in said["nodes"]:
        args, kwargs = [], {}
        for given in node["inputs"]:
            value = _argument(given["arg"], read, values)
            if given["kind"] == 2:
                kwargs[given["name"]] = value
            else:
                args.append(value)
        if reads_memory(_target(node["target"])):
            kwargs["memory"] = _memory(said["tensor_values"].get(args[0].name), values)
        rows.append((node, tuple(args), kwargs))
    nodes = []
    for node, args, kwargs in rows:
        names = tuple(name for output in node["outputs"] for name in _output_names(output))
        metadata = node.get("metadata", {})
        nodes.append(
            Node(
                _target(node["target"]), args, kwargs, names, tuple(n in read for n in names),
                origin(metadata.get("stack_trace", ""), _module_path(metadata)),
            )
        )  # fmt: skip
    known = {*inputs, *(name for node in nodes for name in node.outputs)}
    if not read <= known:
        raise ValueError(f"its graph reads '{min(read - known)}', which nothing defines")
    return Graph(inputs, tuple(nodes), outputs, types, sizes)


def _input_name(argument: Json, at: int) -> str:
    ((_, value),) = argument.items()
    return value["name"] if isinstance(value, dict) and "name" in value else f"#{at}"


def _module_path(metadata: Mapping[str, str]) -> str:
    """The path in the last entry of "key,path,type;key,path,type"."""
    last = metadata.get("nn_module_stack", "").rpartition(";")[2].split(",")
    return last[1] if len(last) > 1 else ""


def _target(text: str) -> str:
    if text.startswith("torch.ops."):
        return text.removeprefix("torch.ops.").removeprefix("higher_order.")
    return f"sym.{text.rpartition('.')[2].removeprefix('_').removeprefix('sym_')}"


def _output_names(output: Json) -> list[str]:
    ((kind, value),) = output.items()
    if kind in ("as_tensors", "as_optional_tensors"):
        return [item.get("as_tensor", item).get("name", "") for item in value]
    if kind == "as_optional_tensor":
        return [value["as_tensor"]["name"] if "as_tensor" in value else ""]
    if isinstance(value, dict):
        return [value.get("name") or value.get("as_name") or ""]
    return [""]


def _size(size: Json, values: Values) -> Dim:
    if "as_int" in size:
        return size["as_int"]
    return parse_size(size["as_expr"]["expr_str"], values)


def _memory(meta: Json | None, values: Values) -> tuple[Dim, ...] | None:
    """The strides of a tensor that begins where its memory does."""
    if meta is None or meta["storage_offset"] != {"as_int": 0}:
        return None
    try:
        return tuple(_size(stride, values) for stride in meta["strides"])
    except Unreadable:
        return None


def _argument(argument: Json, read: set[str], values: Values) -> Any:
    """A node's argument as a plain value; names that it reads are added to `read`."""
    ((kind, value),) = argument.items()
    kind = kind.removeprefix("as_")

    def ref(name: str) -> Ref:
        read.add(name)
        return Ref(name)

    if kind in ("tensor", "custom_obj"):
        return ref(value["name"])
    if kind == "tensors":
        return tuple(ref(item["name"]) for item in value)
    if kind in ("sym_int", "sym_float", "sym_bool"):
        ((inner, item),) = value.items()
        return ref(item) if inner == "as_name" else item
    if kind in ("sym_ints", "sym_floats", "sym_bools"):
        return tuple(_argument({"sym_int": item}, read, values) for item in value)
    if kind == "optional_tensors":
        return tuple(_argument(item, read, values) for item in value)
    if kind == "optional_tensor":
        return _argument(value, read, values)
    if kind == "nested_tensors":
        return tuple(tuple(ref(item["name"]) for item in line) for line in value)
    if kind == "none":
        return None
    if kind == "graph":
        return _graph(value["graph"], values)
    if kind == "scalar_type":
        return _element(value)
    if kind == "float":
        return float(value)  # infinities and nan are strings
    if kind == "floats":
        return tuple(map(float, value))
    if kind == "complex":
        return complex(value["real"], value["imag"])
    if kind in ("int", "bool", "string"):
        return value
    if kind in ("ints", "bools", "strings", "int_lists", "float_lists"):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    return str(value)  # devices, layouts, memory formats: no part of a program
