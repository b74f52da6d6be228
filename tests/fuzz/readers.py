"""What is fuzzed: each reader with its seeds and the form that mutants keep.

A reader gives the module that it read, or None where it reads something else; whatever it raises
other than UserError is a find. Seeds are small, made here or taken from `tests/data`.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import lzma
import random
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from girih.hlo.errors import ExportBlockers, UserError
from girih.hlo.graph import Module
from girih.hlo.versions import FIRST, version_tuple
from girih.hlo.wire import decode, encode

from .mutate import MUTATORS, binary

HERE = Path(__file__).parent
SAMPLES = HERE.parent / "data" / "readers"
CORPUS = HERE.parent / "corpus"
_CONTAINER = 0.2  # of the mutants of a zip are damaged outside its members


class Reader(NamedTuple):
    """`read(data)` gives a module or None; `mutate(rng, data, others)` gives a mutant."""

    read: Callable[[bytes], Any]
    seeds: Callable[[], list[bytes]]
    mutate: Callable[[random.Random, bytes, Sequence[bytes]], bytes]


@functools.cache
def programs() -> list[Module]:
    """The frozen programs of the newest format: one or more for each operation."""
    newest = max(CORPUS.glob("*.zip"), key=lambda path: version_tuple(path.stem))
    with zipfile.ZipFile(newest) as archive:
        members = [name for name in archive.namelist() if name.endswith("/program.pb")]
        return [decode(archive.read(name)) for name in members]


def kept(name: str, pattern: str = "*") -> list[bytes]:
    """The files of `seeds/<name>`: finds that were mended (`find_*`), and samples."""
    return [path.read_bytes() for path in sorted((HERE / "seeds" / name).glob(pattern))]


# Programs.


def _stablehlo_text() -> list[bytes]:
    from girih.frontends.stablehlo.write import write_text
    from girih.hlo.errors import GirihError

    found = [(SAMPLES / name).read_bytes() for name in ("pretty.mlir", "pretty_generic.mlir")]
    found.append(lzma.decompress((SAMPLES / "stablehlo_1_20_0.mlir.xz").read_bytes()))
    for module in programs():
        try:
            found.append(write_text(module).text.encode())
        except GirihError:
            continue  # what StableHLO cannot say
    return found


def _read_stablehlo(data: bytes) -> Any:
    from girih.frontends.stablehlo import read_stablehlo

    return read_stablehlo(data)


def _own_text() -> list[bytes]:
    from girih.hlo.text import print_module

    return [print_module(module, origins=True).encode() for module in programs()]


def _read_own_text(data: bytes) -> Any:
    from girih.hlo.parse import parse_module

    return parse_module(data.decode("utf-8", "replace"))


def _wire() -> list[bytes]:
    return [encode(module) for module in programs()]


def _read_wire(data: bytes) -> Any:
    module = decode(data, lambda name, type: np.broadcast_to(np.zeros((), type.dtype), type.dims))
    with contextlib.suppress(ExportBlockers):
        decode(encode(module, FIRST))
    return module


def _bytecode() -> list[bytes]:
    from girih.frontends.stablehlo.write import write_artifact
    from girih.hlo.errors import GirihError

    found = [path.read_bytes() for path in sorted(SAMPLES.glob("*.mlirbc"))]
    for module in programs():
        try:
            found.append(bytes(write_artifact(module).data))
        except GirihError:
            continue  # what StableHLO cannot say
    return found


def _hlo_protobuf() -> list[bytes]:
    return [path.read_bytes() for path in sorted((SAMPLES / "hlo").glob("*.pb"))]


def _hlo_text() -> list[bytes]:
    return [path.read_bytes() for path in sorted((SAMPLES / "hlo").glob("*.hlo"))]


def _read_hlo(data: bytes) -> Any:
    from girih.frontends.xla import read_hlo

    return read_hlo(data, "fuzz")


def _exported() -> list[bytes]:
    return [path.read_bytes() for path in sorted(SAMPLES.glob("*.jax_export"))]


def _read_exported(data: bytes) -> Any:
    from girih.frontends.jax.importing import read_exported

    return read_exported(memoryview(data), "fuzz")


def _read_archive(data: bytes) -> Any:
    from girih.frontends.torch.importing import import_torch

    return import_torch(data)


def _payloads() -> list[bytes]:
    from girih.frontends.kernel.payload import to_text

    kernels = [module for module in programs() if module.body.ops[0].name == "kernel_call"]
    return [to_text(module).encode() for module in kernels]


def _read_payload(data: bytes) -> Any:
    from girih.frontends.kernel.payload import from_text

    return from_text(data.decode("latin-1"))


# Compiled programs.


@functools.cache
def _compiled() -> Any:
    """A program with a weight, two kernels and a loop over steps, for every family of targets."""
    from girih.compiler import compile as compile_program
    from girih.hlo.build import build_module
    from girih.hlo.graph import Weight
    from girih.hlo.types import F32, TensorType
    from girih.runtime.bundle import Check, MemoryParts

    matrix = TensorType((8, 8), F32)

    def body(b: Any, x: Any) -> list[Any]:
        w = b("weight", type=matrix, weight="w")
        product = b(
            "dot_general", x, w, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,)
        )
        return [b("transpose", b("tanh", product), permutation=(1, 0))]

    module = build_module([matrix], body, name="fuzz")
    module = module.with_weights({"w": Weight("w", np.eye(8, dtype=np.float32))})
    program = compile_program(module, target=["cpu", "nvidia:sm_80"])
    null = compile_program(module, target="null")
    parts: Any = program.parts
    ones = np.ones((8, 8), np.float32)
    tuning = json.loads(_tunings()[0])
    return program, MemoryParts(
        source=parts.program,
        signatures=parts.signatures,
        weights=parts.weights,
        variants={**parts.variants, **null.parts.variants},
        checks=(Check((ones,), (ones,)),),
        provenance=parts.provenance,
        debug={"note.txt": b"a note"},
        tuning=tuning,
    )


def _bundles() -> list[bytes]:
    from girih.runtime.bundle_writer import write

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.girih"
        write(path, _compiled()[1], seal=False)
        return [path.read_bytes()]


def _read_bundle(data: bytes) -> Any:
    from girih.runtime.bundle import Bundle
    from girih.runtime.loading import load
    from girih.runtime.parts import decode_module

    bundle = Bundle(data, "all")
    bundle.verify_all()
    if "null" in bundle.variants:  # the target without machine code, which only runs if sealed
        load(data, target="null")
    return decode_module(bundle)


def _plans() -> list[bytes]:
    return [variant.plan for variant in _compiled()[1].variants.values()]


def _read_plan(data: bytes) -> None:
    from girih.runtime import devices
    from girih.runtime.bundle import Variant
    from girih.runtime.plans import check_version, parse_plan
    from girih.simulated import simulated_gpu

    parts = _compiled()[0].parts
    plan = parse_plan(Variant(data))
    check_version(plan)
    is_for_gpu = devices.family(plan.target) == "nvidia"
    variant = parts.variants["nvidia:sm_80" if is_for_gpu else "cpu"]
    weights = {**parts.weights, **variant.weights}
    driver = simulated_gpu("nvidia:sm_80") if is_for_gpu else None
    devices.open_device(plan, variant.image, weights, 1, driver=driver).context()


def _ptx() -> list[bytes]:
    """Ours, a compiler's that is none of ours, and kernels with bulk copies, wgmma and clusters."""
    folder = HERE.parent / "backends" / "nvidia"
    packed = [folder / "simulator" / "data" / f"{name}.ptx.gz" for name in ("min", "gemm_cl2")]
    image = _compiled()[1].variants["nvidia:sm_80"].image
    return [
        bytes(image),
        (folder / "data" / "triton_add.ptx").read_bytes(),
        *(gzip.decompress(path.read_bytes()) for path in packed),
    ]


def _read_ptx(data: bytes) -> None:
    """Both readers: of what a module declares, and of all of it, up to the functions that run."""
    from girih.backends.nvidia.simulator import parse
    from girih.backends.nvidia.simulator.launch import program_of
    from girih.hlo.ptx import declared

    text = data.decode("utf-8", "replace")
    with contextlib.suppress(UserError):
        declared(text)
    module = parse(text)
    for entry in module.entries:
        program, _, _ = program_of(module, entry)
        for rank in range(len(program.flow.blocks)):
            program.function(rank, masked=True)


# Documents.


def _machines() -> list[bytes]:
    from girih.backends.cpu import machines
    from girih.backends.nvidia import machines as devices

    folders = [Path(str(package.__file__)).parent for package in (machines, devices)]
    return [path.read_bytes() for folder in folders for path in sorted(folder.glob("*.json"))]


def _read_machine(data: bytes) -> None:
    from girih.optimizer.machine import from_json

    from_json(data.decode("utf-8", "replace"))


def _tunings() -> list[bytes]:
    choices = (
        {"rows": 14, "vectors": 2, "depth": 256, "panels": 4, "blocks": [2, 3], "pack_left": True},
        {"sizes": [16, 32], "step": 64, "way": [1, 0]},
    )
    kernels = {
        f"{number:032x}": {
            "kernel": "dot_general 8x8", "machine": "any", "choice": choice,
            "predicted": 1e-4, "measured": 9e-5,
        }
        for number, choice in enumerate(choices)
    }  # fmt: skip
    return [json.dumps({"schema": "girih.tuning", "version": 1, "kernels": kernels}).encode()]


def _read_tuning(data: bytes) -> None:
    from girih.optimizer.tuning import from_text

    from_text(data, "fuzz")


# Zips: members are damaged by what they are, and digests and checksums made to fit again.


def _member_kind(name: str) -> str:
    if name.endswith(".json"):
        return "json"
    return "protobuf" if name.endswith(".pb") else "binary"


def _damaged_member(
    rng: random.Random, members: dict[str, bytes], likely: Callable[[str], bool]
) -> str:
    """Damage one member in place; its name."""
    names = [name for name in members if likely(name)]
    name = rng.choice(names if names and rng.random() < 0.8 else list(members))
    members[name] = MUTATORS[_member_kind(name)](rng, members[name], ())
    return name


def _mutate_archive(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A `.pt2` archive with other members."""
    if rng.random() < _CONTAINER:
        return binary(rng, data, others)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    _damaged_member(rng, members, lambda name: name.endswith(".json"))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def _mutate_bundle(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A bundle with other members whose digests fit."""
    from girih.runtime.archive import PAGE_ALIGNMENT, Archive, ArchiveWriter

    if rng.random() < _CONTAINER:
        return binary(rng, data, others)
    archive = Archive(data)
    members = {name: bytes(archive.data(name)) for name in archive.entries}
    manifest = json.loads(members.pop("manifest.json"))
    if rng.random() < 0.7:
        _damaged_member(rng, members, lambda name: not name.startswith("debug/"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant.girih"
        with ArchiveWriter(path) as out:
            for name, content in members.items():
                wide = name.endswith((".safetensors", ".bin"))
                out.add(name, content, *([PAGE_ALIGNMENT] if wide else []))
            for entry in manifest["members"]:
                entry["bytes"], entry["sha256"] = out.digests[entry["name"]]
            text = (json.dumps(manifest, sort_keys=True, indent=1) + "\n").encode()
            if rng.random() < 0.4:
                text = MUTATORS["json"](rng, text, ())
            out.add("manifest.json", text)
        return path.read_bytes()


READERS: dict[str, Reader] = {
    "stablehlo": Reader(_read_stablehlo, _stablehlo_text, MUTATORS["text"]),
    "text": Reader(_read_own_text, _own_text, MUTATORS["text"]),
    "wire": Reader(_read_wire, _wire, MUTATORS["protobuf"]),
    "bytecode": Reader(_read_stablehlo, _bytecode, MUTATORS["binary"]),
    "hlo_protobuf": Reader(_read_hlo, _hlo_protobuf, MUTATORS["protobuf"]),
    "hlo_text": Reader(_read_hlo, _hlo_text, MUTATORS["text"]),
    "exported": Reader(_read_exported, _exported, MUTATORS["binary"]),
    "archive": Reader(_read_archive, lambda: kept("archive", "*.pt2"), _mutate_archive),
    "bundle": Reader(_read_bundle, _bundles, _mutate_bundle),
    "plan": Reader(_read_plan, _plans, MUTATORS["protobuf"]),
    "ptx": Reader(_read_ptx, _ptx, MUTATORS["text"]),
    "machine": Reader(_read_machine, _machines, MUTATORS["json"]),
    "tuning": Reader(_read_tuning, _tunings, MUTATORS["json"]),
    "payload": Reader(_read_payload, _payloads, MUTATORS["base64"]),
}


def seeds_of(name: str) -> list[bytes]:
    """What a reader's mutants are made of, the large ones last."""
    return sorted(dict.fromkeys(READERS[name].seeds()), key=len)
