"""A bundle's parts and the file that holds them: what specs/bundle.md describes.

`Bundle` gives the parts of a file or of bytes; bundle_writer.py makes a file of the same parts. A
member's digest is compared when the member is first used; weights are hashed by a thread of their
own while the rest of the program is being loaded, and must be found whole before a result is given.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..hlo.errors import UserError
from ..hlo.files import kind_of_bytes, kind_of_file
from ..hlo.signature import Signature
from . import tensors, trust
from .archive import Archive, unique_keys

Arrays = Mapping[str, np.ndarray[Any, Any]]

FORMAT = "girih-bundle"
VERSION = (1, 0)

# Every feature that this runtime can read -> the first runtime that could.
FEATURES = {
    "program.hlo": "0.1",
    "program.entries": "0.1",
    "signatures.trees": "0.1",
    "signatures.state": "0.1",
    "signatures.state.read": "0.1",
    "signatures.measured": "0.1",
    "weights.safetensors": "0.1",
    "weights.aliases": "0.1",
    "variants.weights": "0.1",
    "variants.layout": "0.1",
    "checks.golden": "0.1",
    "tuning": "0.1",
}

MANIFEST, SEAL, PROGRAM = "manifest.json", "seal.json", "program.pb"
MAIN = "main"  # the entry point of a program that has one
SIGNATURES, PROVENANCE = "signatures.json", "provenance.json"
TUNING = "tuning.json"
WEIGHTS, CHECKS = "weights/weights.safetensors", "checks/golden.safetensors"
VERIFY_MODES = ("all", "used", "lazy")
ENTRY_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")


Source = bytes | Callable[[], bytes]  # a program's wire form, or what makes it


@dataclass(frozen=True)
class Variant:
    """A program made ready for one target: a serialised girih.Plan and its code.

    `weights` are arrays that only this variant uses (packed or folded); it looks a name up here
    first, then among the bundle's weights. The image of a GPU is PTX text, and `cubins` are machine
    code of it by architecture ("sm_90a"). `layout`: of code for several devices, and their mesh, in
    the JSON form of BundleLayout (runtime/distributed/layout.py). `plan` is the first entry's, the
    plans of others stand in `further`; all run the one image.
    """

    plan: bytes
    image: Any = b""
    weights: Arrays = field(default_factory=dict)
    native: bool = False
    triple: str = ""
    features: tuple[str, ...] = ()
    cubins: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] | None = None
    further: Mapping[str, bytes] = field(default_factory=dict)

    def plan_of(self, entry: str) -> bytes:
        """The plan of an entry point."""
        return self.further.get(entry, self.plan)


@dataclass(frozen=True)
class Check:
    """Golden flat inputs and outputs; a run may differ by tolerance * max |output|."""

    inputs: tuple[np.ndarray[Any, Any], ...]
    outputs: tuple[np.ndarray[Any, Any], ...]
    tolerance: float = 1e-3
    entry: str = MAIN


@dataclass(frozen=True)
class MemoryParts:
    """The parts of a program that was just compiled; `source` is its wire form or makes it.

    `signatures` by entry point, the first one first; `source` is that one's, those of others stand
    in `further`.
    """

    source: Source
    signatures: Mapping[str, Signature]
    weights: Arrays = field(default_factory=dict)
    variants: Mapping[str, Variant] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    debug: Mapping[str, bytes] = field(default_factory=dict)
    tuning: Mapping[str, Any] | None = None
    further: Mapping[str, Source] = field(default_factory=dict)

    @functools.cached_property
    def programs(self) -> Mapping[str, bytes]:
        """Each entry point's program in the wire form of specs/hlo.proto."""
        sources = {name: self.further.get(name, self.source) for name in self.signatures}
        return {n: source() if callable(source) else source for n, source in sources.items()}

    @property
    def program(self) -> bytes:
        """The first entry point's program."""
        return next(iter(self.programs.values()))


class Bundle:
    """The parts of a bundle file, each read when it is first asked for.

    verify: which digests are compared before a result is given: "all" members, those that are
    "used", or, "lazy", those that are used except the weights. UserError wherever the file is not
    what it has to be.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | memoryview,
        verify: str = "used",
    ) -> None:
        if verify not in VERIFY_MODES:
            raise UserError(f"verify is one of {', '.join(VERIFY_MODES)}, not {verify!r}")
        self._verify = verify
        self._archive = _opened(source)
        self._checked: set[str] = set()
        self.label = self._archive.label
        self._archive.check_crc(MANIFEST)
        self.manifest = self._read_json(MANIFEST, bytes(self._archive.data(MANIFEST)))
        self._check_version()
        with self._malformed(MANIFEST):
            self._members = self._check_members()
            self._described = {str(v["target"]): v for v in self.manifest.get("variants", [])}
            self._programs = self._check_entries()

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self._archive.size

    @property
    def members(self) -> Mapping[str, int]:
        """Name -> bytes of every member but the manifest and the seal, in file order."""
        return {name: size for name, (size, _) in self._members.items()}

    @property
    def digest(self) -> str:
        """What names this bundle: the sha256 of its manifest, which holds all others."""
        return hashlib.sha256(self._archive.data(MANIFEST)).hexdigest()

    @functools.cached_property
    def is_trusted(self) -> bool:
        """Whether this user's key sealed the bundle."""
        if SEAL not in self._archive.entries:
            return False
        self._archive.check_crc(SEAL)
        mark = self._read_json(SEAL, bytes(self._archive.data(SEAL)))
        ours = trust.is_ours(bytes(self._archive.data(MANIFEST)), mark)
        if ours is False:
            raise self._archive.damaged("its seal does not fit its content")
        return bool(ours)

    @functools.cached_property
    def programs(self) -> Mapping[str, bytes]:
        """Each entry point's program in the wire form of specs/hlo.proto, the first one first."""
        return {name: bytes(self.member(member)) for name, member in self._programs.items()}

    @property
    def program(self) -> bytes:
        """The first entry point's program."""
        return bytes(self.member(PROGRAM))

    @functools.cached_property
    def signatures(self) -> Mapping[str, Signature]:
        """Entry point -> signature, the first one first."""
        data = self._read_json(SIGNATURES, bytes(self.member(SIGNATURES)))
        with self._malformed(SIGNATURES):
            found = {str(k): Signature.from_json(v) for k, v in data["entries"].items()}
        if missing := [name for name in self._programs if name not in found]:
            raise self._archive.damaged(f"its signatures have no entry point '{missing[0]}'")
        if len(found) > len(self._programs):
            raise self._archive.damaged(
                "its signatures have entry points that it has no program of"
            )
        return {name: found[name] for name in self._programs}

    @functools.cached_property
    def weights(self) -> Arrays:
        """The weights by the program's names, as views of the file."""
        with self._malformed(MANIFEST):
            return self._read_weights(self.manifest.get("weights"))

    @functools.cached_property
    def variants(self) -> Mapping[str, Variant]:
        """Target -> variant, each read when it is asked for; plans and code are always checked."""
        return _Variants(self._read_variant, tuple(self._described))

    @functools.cached_property
    def checks(self) -> Sequence[Check]:
        """Golden inputs and outputs."""
        if not self.manifest.get("checks"):
            return ()
        with self._malformed(CHECKS):
            arrays, notes = tensors.decode(self.member(str(self.manifest["checks"])))
            return tuple(
                Check(
                    tuple(arrays[f"{number}.input.{i}"] for i in range(inputs)),
                    tuple(arrays[f"{number}.output.{i}"] for i in range(outputs)),
                    float(tolerance),
                    *map(str, entry),
                )
                for number, (inputs, outputs, tolerance, *entry) in enumerate(
                    json.loads(notes["cases"])
                )
            )

    @functools.cached_property
    def provenance(self) -> Mapping[str, Any]:
        """Who made the bundle, of what, with which options."""
        return self._read_json(PROVENANCE, bytes(self.member(PROVENANCE)))

    @functools.cached_property
    def tuning(self) -> Mapping[str, Any] | None:
        """Which variants of kernels were chosen by measuring; None where none were."""
        if TUNING not in self._members:
            return None
        return self._read_json(TUNING, bytes(self.member(TUNING)))

    @functools.cached_property
    def debug(self) -> Mapping[str, bytes]:
        """Texts for people who look into the compiler."""
        names = [name for name in self._members if name.startswith("debug/")]
        return {name.removeprefix("debug/"): bytes(self.member(name)) for name in names}

    def member(self, name: str) -> memoryview:
        """A member's bytes, its digest compared; UserError if it is missing or altered."""
        self.check(name)
        return self._archive.data(name)

    def member_digest(self, name: str) -> str:
        """The sha256 that the manifest has for a member."""
        return self._members[name][1]

    def verify_all(self) -> int:
        """Compare every digest and read every document; the number of members."""
        for name in self._members:
            self._check_digest(name)
        for read in ("is_trusted", "signatures", "weights", "checks", "tuning", "provenance"):
            getattr(self, read)
        list(self.variants.values())
        return len(self._members)

    def start_verifying(self, target: str) -> PendingCheck | None:
        """Start to compare what running `target` demands; None if nothing is left to compare.

        Small members are compared when they are read, so this is about weights, and with "all"
        about what running does not read.
        """
        names: list[str] = []
        described = self._described[target]
        if self._verify == "all":
            self.is_trusted  # noqa: B018  # reads the seal, which no digest covers
            names = list(self._members)
        elif self._verify == "used":
            with self._malformed(MANIFEST):
                both = [self.manifest.get("weights"), described.get("weights")]
                names = [str(weights["member"]) for weights in both if weights]
        pass_by = "layout" in described  # most of the weights are other processes'
        return PendingCheck(self, names, pass_by) if names else None

    def check(self, name: str, pass_by: bool = False) -> None:
        """Compare a member's digest, unless that was done; UserError if it is missing or altered.
        `pass_by`: none of its bytes stay in this process's memory."""
        if name not in self._members:
            raise self._archive.damaged(f"the member {name} is missing")
        if name not in self._checked:
            self._check_digest(name, pass_by)

    def _check_digest(self, name: str, pass_by: bool = False) -> None:
        state = hashlib.sha256()
        for piece in self._archive.pieces(name) if pass_by else [self._archive.data(name)]:
            state.update(piece)
        if state.hexdigest() != self._members[name][1]:
            raise self._archive.damaged(f"the digest of member {name} does not fit its bytes")
        self._checked.add(name)

    def _read_variant(self, target: str) -> Variant:
        described = self._described[target]
        with self._malformed(MANIFEST):
            image = described.get("image")
            return Variant(
                plan=bytes(self.member(str(described["plan"]))),
                image=self.member(str(image)) if image else b"",
                weights=self._read_weights(described.get("weights")),
                # Code without a declaration is code: the manifest cannot talk us into running it.
                native=bool(described.get("native") or image or described.get("cubins")),
                triple=str(described.get("triple", "")),
                features=tuple(map(str, described.get("features", ()))),
                cubins={
                    str(one["architecture"]): self.member(str(one["member"]))
                    for one in described.get("cubins", ())
                },
                layout=described.get("layout"),
                further=self._further(described),
            )

    def _further(self, described: Mapping[str, Any]) -> dict[str, bytes]:
        """A variant's plans of the entries behind the first, which has one of its own."""
        plans = {str(o["entry"]): str(o["plan"]) for o in described.get("further", ())}
        if list(plans) != list(self._programs)[1:]:
            raise ValueError("a variant has plans of other entry points than the program")
        return {name: bytes(self.member(member)) for name, member in plans.items()}

    def _read_weights(self, described: Any) -> Arrays:
        """The arrays of a weights member; its header is read now, its digest compared elsewhere."""
        if not described:
            return {}
        name = str(described["member"])
        if name not in self._members:
            raise self._archive.damaged(f"the member {name} is missing")
        arrays, _ = tensors.decode(self._archive.data(name))
        for alias, original in described.get("aliases", {}).items():
            if alias in arrays or original not in arrays:
                raise ValueError(f"{alias!r} cannot stand for the weight {original!r}")
            arrays[alias] = arrays[original]
        return arrays

    def _check_version(self) -> None:
        version = self.manifest.get("version")
        if self.manifest.get("format") != FORMAT or not isinstance(version, str):
            raise UserError(f"{self.label}: this is a zip file, but not a girih bundle")
        numbers = version.split(".")
        if len(numbers) != 2 or not all(n.isdecimal() and len(n) < 9 for n in numbers):
            raise self._archive.damaged(f"its format version {version[:40]!r} is malformed")
        if int(numbers[0]) > VERSION[0]:
            raise UserError(
                f"{self.label}: this bundle has format {version}, girih {__version__} reads up to "
                f"{VERSION[0]}.x; install a newer girih"
            )
        with self._malformed(MANIFEST):
            unknown = [f for f in self.manifest.get("features", []) if f["name"] not in FEATURES]
            if unknown:
                needs = ", ".join(f"{f['name']} (girih {f['minimumRuntime']})" for f in unknown)
                raise UserError(
                    f"{self.label}: this bundle needs {needs}, which girih {__version__} lacks; "
                    "install a newer girih"
                )

    def _check_entries(self) -> dict[str, str]:
        """The entry points, with the members that their programs are."""
        listed = self.manifest.get("entries", [{"name": MAIN, "program": PROGRAM}])
        found = {str(entry["name"]): str(entry["program"]) for entry in listed}
        members = list(found.values())
        if not all(map(ENTRY_NAME.fullmatch, found)) or len(found) < len(listed):
            raise ValueError("an entry point has no name of its own")
        if members[:1] != [PROGRAM] or len(set(members)) < len(members):
            raise ValueError("an entry point has no program of its own")
        return found

    def _check_members(self) -> dict[str, tuple[int, str]]:
        """The manifest's members, which are exactly the archive's."""
        listed = {
            str(m["name"]): (int(m["bytes"]), str(m["sha256"])) for m in self.manifest["members"]
        }
        entries = self._archive.entries
        present = [name for name in entries if name not in (MANIFEST, SEAL)]
        if list(listed) != present or len(listed) != len(self.manifest["members"]):
            raise self._archive.damaged("the manifest lists other members than the file holds")
        for name, (size, _) in listed.items():
            if entries[name].bytes != size:
                raise self._archive.damaged(f"the manifest claims {size} bytes for member {name}")
        for name in (PROGRAM, SIGNATURES, PROVENANCE):
            if name not in listed:
                raise self._archive.damaged(f"the member {name} is missing")
        return listed

    def _read_json(self, name: str, data: bytes) -> dict[str, Any]:
        with self._malformed(name):
            found = json.loads(data, object_pairs_hook=unique_keys)
            if not isinstance(found, dict):
                raise ValueError("not a JSON object")
            return found

    def _malformed(self, name: str) -> _Malformed:
        return _Malformed(self._archive, name)


def _opened(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Archive:
    """The archive; the UserError for what is no bundle says what it is."""
    try:
        archive = Archive(source)
        if MANIFEST not in archive.entries:
            raise UserError(f"{archive.label}: this is a zip file, but not a girih bundle")
        return archive
    except UserError as error:
        if isinstance(source, (bytes, bytearray, memoryview)):
            label, kind = "the bytes", kind_of_bytes(source)
        elif isinstance(source, (str, os.PathLike)):
            label, kind = source, kind_of_file(Path(source))
        else:
            raise
        if kind is None:
            raise
        raise UserError(f"{label}: {kind}") from error


class PendingCheck:
    """A digest comparison that runs beside the caller; `wait` ends it and raises what it found."""

    def __init__(self, bundle: Bundle, names: Sequence[str], pass_by: bool = False) -> None:
        self._bundle, self._names, self._pass_by = bundle, names, pass_by
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="girih-verify", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for name in self._names:
                self._bundle.check(name, self._pass_by)
        except Exception as error:  # whatever it is, no result may be given
            self._error = error

    def wait(self) -> None:
        """UserError if a member was altered, each time it is called."""
        self._thread.join()
        if self._error is not None:
            raise self._error


class _Variants(Mapping[str, Variant]):
    """A bundle's variants: one may be run without the others being read."""

    def __init__(self, read: Callable[[str], Variant], targets: Sequence[str]) -> None:
        self._read = functools.cache(read)
        self._targets = targets

    def __getitem__(self, target: str) -> Variant:
        if target not in self._targets:
            raise KeyError(target)
        return self._read(target)

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)


class _Malformed:
    """Turns what Python raises on malformed documents into the one-sentence error."""

    def __init__(self, archive: Archive, name: str) -> None:
        self._archive, self._name = archive, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        kinds = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
        if isinstance(error, kinds):
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            raise self._archive.damaged(f"{self._name} is malformed ({reason})") from error


Parts = MemoryParts | Bundle  # in memory or in a file, with the same attributes
