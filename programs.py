"""Compiled programs in the cache folder: a second compilation of one neither runs passes nor emits.

An entry is a bundle under a digest of all that decides its plan and code: the module of each entry
point, the options, the target, the machine that is assumed, the choices of a tuning, and the
compiler. The data of the weights decides nothing: no pass may ask for it (`Watched` sees to that),
so that an entry serves the same module with other data as well, and holds recipes in place of
weights (`recipes.py`).
Folder, trust and cleaning are the kernel cache's.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from .backends import Backend
from .backends.cache import FileCache, compiler_digest, open_cache, sources_digest
from .hlo.errors import CompilerBug, UserError
from .hlo.graph import Module, Weight
from .hlo.wire import fingerprint
from .options import Options
from .recipes import Arrays, Recipes, Supply, Unknown
from .runtime.bundle import Bundle, MemoryParts
from .runtime.bundle_writer import write
from .runtime.devices.cores import default_threads
from .runtime.parts import copied_parts
from .runtime.program import Program

CAPACITY = 1 << 30  # bytes of all programs of a folder
_FORMAT = "girih program 2"
_ABOUT, _RECIPES = "places.json", "recipes.pb"
# What options say about this compilation alone, never about its bytes.
_NOT_IN_KEYS = ("cache", "threads", "pin", "comm_timeout", "max_reshard", "tuning", "locked")


Modules = Mapping[str, "Module"]  # by entry point


class Made(NamedTuple):
    """A program that was just compiled, and the weights behind its arrays by the arrays' names:
    those that all variants share, and those that are its variant's own."""

    program: Program
    stored: Mapping[str, Weight]
    own: Mapping[str, Weight]

    def remade(self, modules: Modules) -> Callable[[Modules], Mapping[str, Any]] | None:
        """What gives its arrays with the weights of other modules of the form of `modules`, of
        which it was compiled; None where nobody can tell what they were made of."""
        parts = self.program.parts
        arrays = {**parts.weights, **parts.variants[self.program.target].weights}
        recipes = Recipes(all_weights(modules))
        try:
            places = recipes.places(arrays, {**self.stored, **self.own})
            recipes.program()
        except (Unknown, CompilerBug):
            return None
        return lambda others: Arrays(places, recipes.supply(all_weights(others)))


def all_weights(modules: Modules) -> dict[str, Weight]:
    """The weights of a program's entry points, which are one where they have one name."""
    return {n: weight for module in modules.values() for n, weight in module.weights.items()}


class ProgramCache(FileCache):
    """Compiled programs in a folder."""

    suffix = ".program"

    def load(self, digest: str, modules: Modules) -> MemoryParts | None:
        """The parts of the program that was compiled from these modules; None if none is kept.

        Arrays that the compiler makes of weights are made when the parts are first asked for one.
        """
        data = self.read(digest)
        if data is None:
            return None
        try:
            bundle = Bundle(data)
            bundle.verify_all()
            about = json.loads(bytes(bundle.debug[_ABOUT]))
            if about["format"] != _FORMAT or about["digest"] != digest:
                raise ValueError("an entry of another name")
            sources = all_weights(modules)
            supply = Supply(sources, bundle.weights, about, bundle.debug[_RECIPES])
            programs = bundle.programs
            return MemoryParts(
                source=bundle.program,
                further={name: programs[name] for name in list(programs)[1:]},
                signatures=bundle.signatures,
                weights=Arrays(about["weights"], supply),
                variants={
                    target: replace(variant, weights=Arrays(about["variants"][target], supply))
                    for target, variant in bundle.variants.items()
                },
                provenance={k: v for k, v in bundle.provenance.items() if k != "producer"},
                tuning=bundle.tuning,
            )
        except (UserError, KeyError, ValueError, TypeError):
            self.drop_damaged(digest, "program")
            return None

    def arrays(self, digest: str, modules: Modules, target: str) -> Mapping[str, Any]:
        """All arrays of the kept program, with the weights of these modules."""
        parts = self.load(digest, modules)
        if parts is None:
            raise UserError("the cache was emptied during the compilation; compile again")
        return ChainMap(cast(Any, parts.variants[target].weights), cast(Any, parts.weights))

    def store(self, digest: str, modules: Modules, made: Made) -> None:
        """Keep the program that was compiled from these modules, unless what has to be kept as data
        takes half of the capacity."""
        parts, recipes = made.program.parts, Recipes(all_weights(modules))
        try:
            about = {
                "format": _FORMAT,
                "digest": digest,
                "weights": recipes.places(parts.weights, made.stored),
                "variants": {
                    target: recipes.places(variant.weights, made.own)
                    for target, variant in parts.variants.items()
                },
                **recipes.document(),
            }
            program = recipes.program()
        except (Unknown, CompilerBug):
            return
        if sum(array.nbytes for array in recipes.kept.values()) > self.capacity // 2:
            return
        entry = copied_parts(
            parts,
            weights=recipes.kept,
            variants={t: replace(v, weights={}) for t, v in parts.variants.items()},
            debug={_ABOUT: json.dumps(about).encode(), _RECIPES: program},
        )

        def write_entry(path: Path) -> None:
            try:
                write(path, entry, seal=False)
            except UserError as error:  # the folder is full or read-only
                raise OSError(str(error)) from error

        self.keep(digest, write_entry)


class Watched:
    """Modules whose weights say when somebody asks for their data: the compiler's passes may not,
    and where one did, the program would be another with other data, so it is not kept."""

    def __init__(self, modules: Modules) -> None:
        self.asked = False
        made = {name: self._watched(weight) for name, weight in all_weights(modules).items()}
        self.modules = {
            name: module.with_weights({n: made[n] for n in module.weights})
            if module.weights
            else module
            for name, module in modules.items()
        }

    def _watched(self, weight: Weight) -> Weight:
        data = _Data(self, weight)
        return Weight(weight.name, data, weight.type, weight.aliases)


@dataclass(frozen=True)
class _Data:
    """A weight's data, of which somebody is told that it was asked for."""

    watched: Watched
    weight: Weight

    def __call__(self) -> np.ndarray[Any, Any]:
        self.watched.asked = True
        return self.weight.array

    def view(self) -> np.ndarray[Any, Any]:
        self.watched.asked = True
        return self.weight.view


def open_programs(choice: str | None) -> ProgramCache | None:
    """The programs beside the kernels of the cache that `Options.cache` means, None for "off"."""
    kernels = open_cache(choice)
    return None if kernels is None else ProgramCache(kernels.folder, CAPACITY)


def digest_of(modules: Modules, backend: Backend, options: Options) -> str | None:
    """The name of the program's entry: 40 hexadecimal digits. None where the program must not be
    kept: choices are being timed, the sources of the compiler have changed while it runs, or a
    module is none that can be compiled."""
    tuner = None if backend.choices is None else backend.choices.tuner
    if tuner is not None and tuner.measure:
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
    try:
        programs = [fingerprint(module) for module in modules.values()]
    except (CompilerBug, KeyError):  # whoever verifies the module says what is wrong with it
        return None
    texts = (
        _FORMAT,
        compiler,
        repr(sorted(chosen.items())),
        backend.name,
        backend.identity,
        repr(backend.model),
        "tuned" if tuner is not None else "",
        json.dumps(known, sort_keys=True),
        *modules,
    )
    state = hashlib.blake2b(digest_size=20)
    for data in (*(text.encode() for text in texts), *programs):
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def _compiler() -> str | None:
    own, kernels = _own_sources(), compiler_digest()
    return None if own is None or kernels is None else f"{own} {kernels} numpy {np.__version__}"


@functools.cache
def _own_sources() -> str | None:
    return sources_digest(
        "runtime",
        "specs",
        "compilation.py",
        "compiler.py",
        "lowering.py",
        "imports.py",
        "entries.py",
        "programs.py",
        "recipes.py",
        "options.py",
        "states.py",
        "__init__.py",
    )
