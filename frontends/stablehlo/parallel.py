"""Ops that several devices run together: meshes, and programs written per device.

Shardy's attributes come as text (`#sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>`), whichever
reader they come from; here they are read for the ops whose meaning depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from ...hlo.errors import UserError
from ...hlo.graph import Op
from ...hlo.ops.communication import axis_text
from .. import tree
from . import attributes as attribute_tables

if TYPE_CHECKING:
    from .convert import Converter

Handler = Callable[["Converter", tree.Operation, list[Op]], bool]

_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|(-?\d+)|@"([^"]*)"|([@\w.$-]+)|(.))', re.S)


class _Text:
    """A cursor in one of Shardy's attributes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        for quoted, number, symbol, word, mark in _TOKEN.findall(text):
            if number:
                self.tokens.append(("number", number))
            elif word or symbol:
                self.tokens.append(("word", word or "@" + symbol))
            elif mark.strip():
                self.tokens.append(("mark", mark))
            elif not mark:
                self.tokens.append(("string", quoted))
        self.position = 0

    def at(self, text: str) -> bool:
        return self.position < len(self.tokens) and self.tokens[self.position][1] == text

    def take(self, text: str) -> bool:
        found = self.at(text)
        self.position += found
        return found

    def expect(self, text: str) -> None:
        if not self.take(text):
            self.fail()

    def next(self, kind: str) -> str:
        if self.position >= len(self.tokens) or self.tokens[self.position][0] != kind:
            self.fail()
        self.position += 1
        return self.tokens[self.position - 1][1]

    def items(self, close: str, item: Callable[[], Any]) -> list[Any]:
        """`item, item, ...` up to `close`."""
        found: list[Any] = []
        while not self.take(close):
            if found:
                self.expect(",")
            found.append(item())
        return found

    def fail(self) -> NoReturn:
        raise UserError(f"the sharding '{self.text[:120]}' cannot be read")


def _mesh(text: _Text) -> dict[str, Any]:
    """`<["x"=4, "y"=2], device_ids=[..]>`"""

    def axis() -> dict[str, Any]:
        name = text.next("string")
        text.expect("=")
        return {"name": name, "size": int(text.next("number"))}

    text.expect("<")
    text.expect("[")
    axes = tuple(text.items("]", axis))
    found: dict[str, Any] = {"axes": axes}
    if text.take(","):
        text.expect("device_ids")
        text.expect("=")
        text.expect("[")
        found["device_ids"] = tuple(text.items("]", lambda: int(text.next("number"))))
    text.expect(">")
    return found


def read_mesh(text: str) -> dict[str, Any]:
    """The mesh in `<["x"=4, "y"=2], device_ids=[..]>`: its axes by name and size."""
    return _mesh(_Text(text))


def _axis(text: _Text) -> str:
    name = text.next("string")
    if not text.take(":"):
        return name
    text.expect("(")
    before = int(text.next("number"))
    text.expect(")")
    return axis_text(name, before, int(text.next("number")))


def _dimension(text: _Text) -> tuple[str, ...]:
    """`{"x", "y":(1)2, ?}p1`: the axes; whether it may be cut further says nothing here."""
    axes: list[str] = []
    text.expect("{")
    while not text.take("}"):
        if not text.take("?"):
            axes.append(_axis(text))
        text.take(",")
    if text.position < len(text.tokens) and re.fullmatch(r"p\d+", text.tokens[text.position][1]):
        text.position += 1
    return tuple(axes)


def _sharding(text: _Text, meshes: dict[str, Any]) -> tuple[Any, tuple[tuple[str, ...], ...]]:
    """`<@mesh, [{..}, ..], replicated={..}>`: the mesh and the axes of each dimension."""
    text.expect("<")
    if text.at("mesh"):
        text.expect("mesh")
        mesh = _mesh(text)
    else:
        symbol = text.next("word").removeprefix("@")
        if symbol not in meshes:
            raise UserError(f"a sharding names the mesh @{symbol}, which is not in the file")
        mesh = meshes[symbol]
    text.expect(",")
    text.expect("[")
    dims = tuple(text.items("]", lambda: _dimension(text)))
    while text.take(","):
        word = text.next("word")
        if word != "replicated":
            raise UserError(f"'{word}' in a sharding is not supported: '{text.text[:120]}'")
        text.expect("=")
        text.expect("{")
        text.items("}", lambda: _axis(text))
    text.expect(">")
    return mesh, dims


def read_shardings(text: str, meshes: dict[str, Any]) -> list[tuple[Any, Any]]:
    """(mesh, axes of each dimension) of each value in `<[<@mesh, [{"x"}, {}]>, ..]>`."""
    cursor = _Text(text)
    cursor.expect("<")
    cursor.expect("[")
    found = cursor.items("]", lambda: _sharding(cursor, meshes))
    cursor.expect(">")
    return found


def meshes_of(module: tree.Operation) -> dict[str, Any]:
    """The meshes that a module declares, by symbol."""
    found: dict[str, Any] = {}
    for operation in (op for region in module.regions for op in region.operations):
        if operation.name == "sdy.mesh":
            name = str(operation.attributes.get("sym_name", ""))
            stated = operation.attributes.get("stablehlo.mesh")
            text = getattr(operation.attributes.get("mesh"), "text", "")
            if text:
                found[name] = read_mesh(text)
            elif isinstance(stated, dict):
                found[name] = attribute_tables.plain(stated, str)
    return found


def _blocked(
    converter: Converter, operation: tree.Operation, error: UserError, remedy: str
) -> bool:
    converter.block(operation, str(error), remedy)
    return False


def _collective(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """Groups that are axes of a mesh carry the mesh itself, not its symbol."""
    groups = operation.attributes.get("replica_groups")
    if not isinstance(groups, tree.Structured):
        return False
    facts = attribute_tables.flatten(operation, converter.type)
    found = attribute_tables.plain(groups, converter.type)
    if isinstance(found.get("mesh"), str):
        mesh = converter.meshes.get(found["mesh"])
        if mesh is None:
            error = UserError(f"names the mesh @{found['mesh']}, which is not in the file")
            return _blocked(converter, operation, error, "export the program with its meshes")
        found["mesh"] = {
            "record": "mesh",
            "axes": tuple({"record": "mesh_axis", **axis} for axis in mesh["axes"]),
            "device_ids": mesh.get("device_ids"),
        }
    facts["replica_groups"] = found
    converter.emit(operation.name.partition(".")[2], operation, built, facts)
    return True


def _manual_computation(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """The mesh, the manual axes, and for each value the axes that cut each dimension."""
    if "mesh" in operation.attributes:  # in a form of ours already
        converter.emit(operation.name, operation, built, operation.attributes)
        return True
    texts = {
        key: getattr(operation.attributes.get(key), "text", "")
        for key in ("in_shardings", "out_shardings", "manual_axes")
    }
    try:
        inputs = read_shardings(texts["in_shardings"], converter.meshes)
        outputs = read_shardings(texts["out_shardings"], converter.meshes)
        cursor = _Text(texts["manual_axes"])
        cursor.expect("<")
        cursor.expect("manual_axes")
        cursor.expect("{")
        axes = tuple(cursor.items("}", lambda: cursor.next("string")))
        used = [mesh for mesh, _ in (*inputs, *outputs)]
        if not used and not axes:
            used = [{"axes": ()}]
        if not used:
            used = list(converter.meshes.values())[:1]
        # A mesh of the same devices may be named more than once; another one is no mesh to run on.
        if any(mesh != used[0] for mesh in used) or not used:
            raise UserError("its shardings name several meshes")
    except UserError as error:
        return _blocked(converter, operation, error, "shard all its values over one mesh")
    facts = {
        "mesh": used[0],
        "manual_axes": axes,
        "in_shardings": tuple(dims for _, dims in inputs),
        "out_shardings": tuple(dims for _, dims in outputs),
    }
    converter.emit(operation.name, operation, built, facts)
    return True


HANDLERS: dict[str, Handler] = {
    "sdy.manual_computation": _manual_computation,
    "stablehlo.all_gather": _collective,
    "stablehlo.all_reduce": _collective,
    "stablehlo.all_to_all": _collective,
    "stablehlo.collective_broadcast": _collective,
    "stablehlo.collective_reduce": _collective,
    "stablehlo.reduce_scatter": _collective,
}
