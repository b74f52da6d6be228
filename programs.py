"""Compiled programs in the cache folder: a second compilation of one neither runs passes nor emits.

An entry is a bundle under a digest of all that decides its bytes: the module with its weights, the
options, the target, the machine that is assumed, the choices of a tuning, and the compiler. It
holds what was made (plan, image, constants, packed weights); what are the source's own weights
stays there, and the entry names them. Folder, trust and cleaning are the kernel cache's.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .backends.cpu.cache import FileCache, compiler_digest, open_cache, sources_digest
from .hlo.errors import CompilerBug, UserError
from .hlo.wire import encode
from .options import Options
from .runtime.devices.cores import default_threads

if TYPE_CHECKING:
    from .backends import Backend
    from .hlo.graph import Module
    from .runtime.bundle import MemoryParts

CAPACITY = 1 << 30  # bytes of all programs of a folder
_FORMAT = "girih program 1"
_SOURCE_WEIGHTS = "source-weights.json"
# What options say about this compilation alone, never about its bytes.
_NOT_IN_KEYS = ("cache", "threads", "pin", "tuning", "locked")


class ProgramCache(FileCache):
    """Compiled programs in a folder."""

    suffix = ".program"

    def load(self, digest: str, module: Module) -> MemoryParts | None:
        """The parts of the program that was compiled from this module; None if none is kept."""
        from .runtime.bundle import Bundle, MemoryParts

        data = self.read(digest)
        if data is None:
            return None
        try:
            bundle = Bundle(data)
            bundle.verify_all()
            named = json.loads(bytes(bundle.debug[_SOURCE_WEIGHTS]))
            if named["format"] != _FORMAT or named["digest"] != digest:
                raise ValueError("an entry of another name")
            weights = {
                name: bundle.weights[name] if source is None else module.weights[source].array
                for name, source in named["weights"]
            }
            return MemoryParts(
                source=bundle.program,
                signatures=bundle.signatures,
                weights=weights,
                variants=dict(bundle.variants),
                provenance={k: v for k, v in bundle.provenance.items() if k != "producer"},
                tuning=bundle.tuning,
            )
        except (UserError, KeyError, ValueError, TypeError):
            self.drop_damaged(digest, "program")
            return None

    def store(self, digest: str, module: Module, parts: MemoryParts) -> None:
        """Keep the parts of the program that was compiled from this module, unless they alone take
        half of the capacity."""
        from .runtime.bundle import write
        from .runtime.parts import copied_parts

        sources = {_place(weight.array): name for name, weight in module.weights.items()}
        named = [[name, sources.get(_place(array))] for name, array in parts.weights.items()]
        own = {name: parts.weights[name] for name, source in named if source is None}
        made = [*own.values()]
        for variant in parts.variants.values():
            made += variant.weights.values()
        if sum(array.nbytes for array in made) > self.capacity // 2:
            return
        about = json.dumps({"format": _FORMAT, "digest": digest, "weights": named}).encode()
        entry = copied_parts(parts, weights=own, debug={_SOURCE_WEIGHTS: about})

        def write_entry(path: Path) -> None:
            try:
                write(path, entry, seal=False)
            except UserError as error:  # the folder is full or read-only
                raise OSError(str(error)) from error

        self.keep(digest, write_entry)


def open_programs(choice: str | None) -> ProgramCache | None:
    """The programs beside the kernels of the cache that `Options.cache` means, None for "off"."""
    kernels = open_cache(choice)
    return None if kernels is None else ProgramCache(kernels.folder, CAPACITY)


def digest_of(module: Module, backend: Backend, options: Options) -> str | None:
    """The name of the program's entry: 40 hexadecimal digits. None where the program must not be
    kept: choices are being timed, code comes from a compiler that is not ours, or the sources of
    this one have changed while it runs."""
    tuner = None if backend.choices is None else backend.choices.tuner
    if tuner is not None and tuner.measure:
        return None
    if any(op.name == "foreign_call" for op in module.walk()):
        return None
    compiler = _compiler()
    if compiler is None:
        return None
    known = None if tuner is None or tuner.known is None else tuner.known.to_json()
    chosen = {
        field.name: getattr(options, field.name)
        for field in fields(Options)
        if field.name not in _NOT_IN_KEYS
    }
    chosen["machine"] = backend.machine
    if options.max_memory is not None:  # the scratch of all workers counts
        chosen["threads"] = options.threads or default_threads()
    state = hashlib.blake2b(digest_size=20)
    texts = (
        _FORMAT,
        compiler,
        repr(sorted(chosen.items())),
        backend.name,
        backend.identity,
        repr(backend.model),
        "tuned" if tuner is not None else "",
        json.dumps(known, sort_keys=True),
        repr(module.notes),
        json.dumps(_signature(module), sort_keys=True),
    )
    try:
        program = encode(module)
    except CompilerBug:  # a large constant, which no wire form may hold: it is not kept
        return None
    for data in (*(text.encode() for text in texts), program, *_weights(module)):
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def _compiler() -> str | None:
    own, kernels = _own_sources(), compiler_digest()
    return None if own is None or kernels is None else f"{own} {kernels} numpy {np.__version__}"


@functools.cache
def _own_sources() -> str | None:
    return sources_digest(
        "runtime", "specs", "compiler.py", "programs.py", "options.py", "__init__.py"
    )


def _signature(module: Module) -> Any:
    return None if module.signature is None else module.signature.to_json()


def _weights(module: Module) -> list[bytes]:
    """A digest of each weight's name, aliases, type and data; threads hash the data."""

    def digest(name: str) -> bytes:
        weight = module.weights[name]
        array = weight.array
        about = f"{name}\0{weight.aliases!r}\0{array.dtype}\0{array.shape}\0".encode()
        state = hashlib.sha256(about)
        data: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        state.update(memoryview(data))
        return state.digest()

    with ThreadPoolExecutor(4, "girih-digests") as pool:
        return list(pool.map(digest, module.weights))


def _place(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """What two arrays of the same memory have in common; arrays without elements have no place."""
    place: Mapping[str, Any] = array.__array_interface__
    where = place["data"][0] if array.size else id(array)
    return where, array.shape, array.strides, array.dtype.str
