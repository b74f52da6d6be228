"""Groups of devices, meshes and shardings in HLO text."""

from __future__ import annotations

import re
from typing import Any

from . import devices
from .scanner import HloScanner

_LIST_SPACE = re.compile(r"\s*,\s*(?=\d)")


class DeviceReader(HloScanner):
    """Reads what says which devices work together; ValueError where it fits no devices."""

    def sharding(self) -> str:
        """The text of a sharding with metadata, comments and needless space taken out."""
        self.expect("{")
        self.enter()
        parts: list[str] = []
        while not self.accept("}"):
            if not self.peek():
                self.fail("expected '}'")
            elif self.at("{"):
                parts.append(self.sharding())
                parts.append(", " if self.accept(",") else "")
            elif self.peek_attribute() == "metadata":
                self.attribute_name()
                self.braces()
            else:
                start = self.position
                while self.peek() not in ("}", "") and self.peek_attribute() != "metadata":
                    self._step()
                text = " ".join(self.text[start : self.position].split())
                parts.append(_LIST_SPACE.sub(",", text))
        self.leave()
        return "{" + "".join(parts) + "}"

    def _step(self) -> None:
        """One character, or one group or string."""
        character = self.peek()
        if character in ("{", "[", "("):
            self.brackets(character)
        elif character == '"':
            self.string()
        else:
            self.position += 1

    def replica_groups(self) -> devices.Groups:
        """`{{0,1},{2,3}}`, `[2,2]<=[4]`, `[2,2]<=[2,2]T(1,0)` or `mesh['x'=2,'y'=2] {'x'}`"""
        if self.at("{"):
            return self.list_of(self.numbers)
        if self.accept("["):
            dims = self._rest_of_list("]")
            self.expect("<=")
            self.expect("[")
            reshape = self._rest_of_list("]")
            permutation: list[int] = []
            if self.accept("T"):
                self.expect("(")
                permutation = self._rest_of_list(")")
            return devices.iota_groups(dims, reshape, permutation)
        self.expect("mesh")
        mesh = self._mesh()
        names = [axis["name"] for axis in mesh["axes"]]
        axes = self.list_of(lambda: self._axis(names))
        return devices.mesh_groups(mesh, axes)

    def _rest_of_list(self, closer: str) -> list[int]:
        numbers = [self.integer()]
        while self.accept(","):
            numbers.append(self.integer())
        self.expect(closer)
        return numbers

    def _quoted(self) -> str:
        self.expect("'")
        end = self.text.find("'", self.position)
        if end < 0:
            self.fail("a name is not closed")
        name, self.position = self.text[self.position : end], end + 1
        return name

    def _mesh(self) -> dict[str, Any]:
        """`['x'=2,'y'=2], device_ids=([4]T(0))`"""

        def axis() -> dict[str, Any]:
            name = self._quoted()
            self.expect("=")
            return {"name": name, "size": self.integer()}

        mesh: dict[str, Any] = {"axes": self.sequence("[", "]", axis)}
        if self.accept(","):
            self.expect("device_ids=(")
            if self.accept("["):
                transform = {"reshape_dims": self._rest_of_list("]")}
                if self.accept("T"):
                    self.expect("(")
                    transform["transpose_perm"] = self._rest_of_list(")")
                mesh["iota_transform"] = transform
                self.expect(")")
            else:
                mesh["device_ids"] = self._rest_of_list(")")
        return mesh

    def _axis(self, names: list[str]) -> dict[str, Any]:
        """`'x'` or `'x':(2)4`"""
        name = self._quoted()
        if name not in names:
            raise ValueError(f"a mesh has no axis '{name}'")
        axis: dict[str, Any] = {"mesh_axis_index": names.index(name)}
        if self.accept(":"):
            self.expect("(")
            before = self.integer()
            self.expect(")")
            axis["sub_axis_info"] = {"pre_size": before, "size": self.integer()}
        return axis
