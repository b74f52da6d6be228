"""Writes a bundle: the file of a program's parts, whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import __version__
from . import tensors, trust
from .archive import PAGE_ALIGNMENT, ArchiveWriter
from .bundle import (
    CHECKS,
    FEATURES,
    FORMAT,
    MAIN,
    MANIFEST,
    PROGRAM,
    PROVENANCE,
    SEAL,
    SIGNATURES,
    TUNING,
    VERSION,
    WEIGHTS,
    Arrays,
    Bundle,
    Check,
    MemoryParts,
    Variant,
)
from .parts import same_bytes, sample


def write(path: str | os.PathLike[str], parts: MemoryParts | Bundle, seal: bool = True) -> None:
    """Write the bundle; it appears whole or not at all. Equal parts give equal bytes.

    `seal`: mark it as compiled on this machine, so that it runs here without being asked.
    """
    features = {"program.hlo", "signatures.trees"}
    if any(signature.buffers for signature in parts.signatures.values()):
        features.add("signatures.state")
    if any(
        set(signature.buffers) - set(signature.state) for signature in parts.signatures.values()
    ):
        features.add("signatures.state.read")
    if any(signature.measured for signature in parts.signatures.values()):
        features.add("signatures.measured")
    manifest: dict[str, Any] = {"format": FORMAT, "version": "{}.{}".format(*VERSION)}
    several = list(parts.signatures) != [MAIN]
    with ArchiveWriter(path) as archive:
        described = []
        for name, program in parts.programs.items():
            member = f"programs/{name}.pb" if described else PROGRAM
            archive.add(member, program)
            described.append({"name": name, "program": member})
        if several:
            features.add("program.entries")
            manifest["entries"] = described
        entries = {name: signature.to_json() for name, signature in parts.signatures.items()}
        archive.add(SIGNATURES, _json({"entries": entries}))
        if parts.weights:
            manifest["weights"] = _write_weights(archive, WEIGHTS, parts.weights, features, several)
        manifest["variants"] = [
            _write_variant(archive, target, parts.variants[target], features, several)
            for target in sorted(parts.variants)
        ]
        if parts.checks:
            features.add("checks.golden")
            manifest["checks"] = CHECKS
            size, buffers = _encode_checks(parts.checks)
            archive.add_stream(CHECKS, size, buffers, PAGE_ALIGNMENT)
        if parts.tuning is not None:
            features.add("tuning")
            archive.add(TUNING, _json(parts.tuning))
        producer = {"producer": f"girih {__version__}"}
        archive.add(PROVENANCE, _json({**producer, **parts.provenance}))
        for name in sorted(parts.debug):
            archive.add(f"debug/{name}", parts.debug[name])
        manifest["features"] = [
            {"name": name, "minimumRuntime": FEATURES[name]} for name in sorted(features)
        ]
        manifest["members"] = [
            {"name": name, "bytes": size, "sha256": digest}
            for name, (size, digest) in archive.digests.items()
        ]
        text = _json(manifest)
        archive.add(MANIFEST, text)
        mark = trust.seal(text) if seal else None
        if mark is not None:
            archive.add(SEAL, _json(mark))


def stored_once(
    weights: Arrays, by_content: bool
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """The arrays that are stored, and of all other names the one that each is stored under: arrays
    in the same memory are one, and, `by_content`, arrays of equal bytes."""
    stored: dict[str, np.ndarray[Any, Any]] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    alike: dict[Any, list[str]] = {}
    for name in sorted(weights):
        array = weights[name]
        place = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype)
        original = first.setdefault(place, name) if array.size else name
        if original == name and by_content and array.size:
            others = alike.setdefault(sample(array), [])
            original = next((n for n in others if same_bytes(stored[n], array)), name)
            if original == name:
                others.append(name)
            first[place] = original
        if original == name:
            stored[name] = array
        else:
            aliases[name] = original
    return stored, aliases


def _write_weights(
    archive: ArchiveWriter, member: str, weights: Arrays, features: set[str], by_content: bool
) -> dict[str, Any]:
    """Write a weights member, each tensor once; its description in the manifest."""
    stored, aliases = stored_once(weights, by_content)
    features.add("weights.safetensors")
    described: dict[str, Any] = {"member": member}
    if aliases:
        features.add("weights.aliases")
        described["aliases"] = aliases
    size, buffers = tensors.encode(stored)
    archive.add_stream(member, size, buffers, PAGE_ALIGNMENT)
    return described


def _folder(target: str, archive: ArchiveWriter) -> str:
    """A folder that no other variant has, named after its target."""
    plain = re.sub(r"[^A-Za-z0-9_.]", "-", target)
    folder, number = f"variants/{plain}", 2
    while f"{folder}/plan.pb" in archive.digests:
        folder, number = f"variants/{plain}-{number}", number + 1
    return folder


def _write_variant(
    archive: ArchiveWriter, target: str, variant: Variant, features: set[str], by_content: bool
) -> dict[str, Any]:
    folder = _folder(target, archive)
    archive.add(f"{folder}/plan.pb", variant.plan)
    described: dict[str, Any] = {"target": target, "plan": f"{folder}/plan.pb"}
    if variant.further:
        plans = [{"entry": n, "plan": f"{folder}/plans/{n}.pb"} for n in variant.further]
        for one in plans:
            archive.add(one["plan"], variant.further[one["entry"]])
        described["further"] = plans
    if len(variant.image):
        image = f"{folder}/{'kernels.ptx' if target.startswith('nvidia:') else 'image.bin'}"
        archive.add(image, variant.image, PAGE_ALIGNMENT)
        described["image"] = image
    if variant.weights:
        features.add("variants.weights")
        member = f"{folder}/weights.safetensors"
        described["weights"] = _write_weights(
            archive, member, variant.weights, features, by_content
        )
    if variant.layout is not None:
        features.add("variants.layout")
        described["layout"] = dict(variant.layout)
    described["native"] = variant.native
    described["triple"] = variant.triple
    described["features"] = list(variant.features)
    if variant.cubins:
        described["cubins"] = [
            {"architecture": name, "member": f"{folder}/{name}.cubin"}
            for name in sorted(variant.cubins)
        ]
        for one in described["cubins"]:
            code = variant.cubins[one["architecture"]]
            archive.add(one["member"], code, PAGE_ALIGNMENT)
    return described


def _encode_checks(checks: Sequence[Check]) -> tuple[int, Iterator[Any]]:
    arrays = {}
    for number, check in enumerate(checks):
        for kind, values in (("input", check.inputs), ("output", check.outputs)):
            arrays |= {f"{number}.{kind}.{i}": value for i, value in enumerate(values)}
    counts = [
        [len(c.inputs), len(c.outputs), repr(c.tolerance), *([c.entry] if c.entry != MAIN else [])]
        for c in checks
    ]
    return tensors.encode(arrays, {"cases": json.dumps(counts)})


def _json(data: Any) -> bytes:
    return (json.dumps(data, sort_keys=True, indent=1, ensure_ascii=True) + "\n").encode()
