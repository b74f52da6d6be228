"""`girih.jit`: what `jax.jit` is for functions that are only evaluated, compiled by girih.

A call is traced by JAX once for each structure, types and static values, compiled, and kept; where
sizes are left open (`dynamic`, `sizes`), once for all sizes that the program admits. Inside another
trace (`jax.jit`, `jax.grad`, `jax.vmap`) the function is JAX's own, so that it composes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .call_sizes import Chosen, bounded, fixed, opened, warn
from .compiler import compile as compile_module
from .hlo.errors import CompilerBug, UserError
from .hlo.extras import require
from .hlo.graph import Module
from .hlo.sizes import Symbol
from .hlo.stated_sizes import Stated, dims_of_arguments, symbol_of_stated
from .options import Options
from .runtime.devices.architectures import target_for
from .runtime.program import Program

_SETTINGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl",
    "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion", "jax_threefry_partitionable",
)  # fmt: skip
"""JAX's settings that change what a trace is."""

_COPIED = 1 << 16  # bytes of results whose copy costs less than keeping their memory

_KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
"""Types of random keys -> the names of their generators."""


def jit(
    function: Callable[..., Any] | None = None,
    /,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    target: str | None = None,
    options: Options | None = None,
    dynamic: bool = False,
    sizes: Mapping[str, Stated] | None = None,
) -> Any:
    """A function of JAX arrays that girih compiles when it is first called with new shapes.

    Use it where `jax.jit` stands, plain or as a decorator with arguments. Inputs are JAX and numpy
    arrays, Python scalars and pytrees of them, with JAX's rules for types; results are JAX arrays.
    target: by default the CPU, or the NVIDIA GPU that JAX arrays among the inputs lie on: they are
    read there (DLPack), and results stay there.
    dynamic: a dimension that has had two sizes is left open from then on, so that one program
        serves all its sizes; sizes of 0 have programs of their own.
    sizes: dimensions that are open from the first call, with what they may be: {"x.0": (1, 512)},
        {"x.0": "batch", "y.0": "batch", "batch": range(8, 65, 8)}. Others are errors.
    Where JAX or girih has no code for open sizes, each is compiled on its own, with a GirihWarning,
    or an error with `Options(strict=True)`.
    Donated JAX arrays are deleted, as `jax.jit` does; their memory is not used again
    (`girih.compile` and `Program.donate` do that).
    UserError where JAX cannot trace the function, ImportBlockers where girih cannot import it:
    nothing is ever handed to XLA instead.
    """
    given: dict[str, Any] = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    if function is None:
        return functools.partial(
            jit, target=target, options=options, dynamic=dynamic, sizes=sizes, **given
        )
    return JitFunction(function, target, options or Options(), given, dynamic, sizes)


@dataclass(frozen=True)
class _Compiled:
    """A program for calls of one kind."""

    program: Program
    outputs: Any  # JAX's PyTreeDef
    keys: tuple[tuple[int, str], ...]  # the results that are random keys, and their generators
    donated: tuple[int, ...]


@dataclass
class _Family:
    """Programs of calls that differ in sizes alone."""

    programs: list[tuple[Chosen, _Compiled]] = field(default_factory=list)
    opens: bool = True  # no failure so far
    stated: _StatedSizes | None = None


class _StatedSizes(NamedTuple):
    """What a user says of the sizes of calls, by their numbers: values and names of dimensions."""

    paths: Mapping[int, str]
    symbols: Mapping[int, Symbol]
    names: Mapping[int, str]

    def check(self, sizes: Sequence[int]) -> None:
        """UserError for sizes that the user does not admit."""
        for number, said in self.symbols.items():
            if not said.admits(sizes[number]):
                raise UserError(
                    f"girih.jit: {self.paths[number]} is {sizes[number]}, but sizes= says that it "
                    f"is {said}"
                )
        first: dict[str, int] = {}
        for number, name in self.names.items():
            other = first.setdefault(name, number)
            if sizes[number] != sizes[other]:
                raise UserError(
                    f"girih.jit: {self.paths[other]} is {sizes[other]} and {self.paths[number]} is "
                    f"{sizes[number]}, but sizes= calls both {name}"
                )


class Gpu(NamedTuple):
    """A GPU by its number, of those that the process sees."""

    number: int
    capability: tuple[int, int]

    def __str__(self) -> str:
        return f"cuda:{self.number}"


class JitFunction:
    """A function that girih compiles; see `girih.jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        target: str | None,
        options: Options,
        given: dict[str, Any],
        dynamic: bool = False,
        sizes: Mapping[str, Stated] | None = None,
    ) -> None:
        if not callable(function):
            raise UserError(f"girih.jit is for functions, not {type(function).__name__}")
        require("jax", "girih.jit")
        import jax
        import jax.core

        functools.update_wrapper(self, function)
        self._jax: Any = jax
        self._tracer = jax.core.Tracer
        self._copy = jax.jit(lambda *arrays: arrays)  # a tenth of device_put's time for a call
        self._places: dict[Any, Gpu | None] = {}  # by sharding
        self._target, self._options = target, options
        self._jitted = jax.jit(function, **{k: v for k, v in given.items() if v is not None})
        self._static = _Static(function, given["static_argnums"], given["static_argnames"])
        self._compiled: dict[Hashable, _Compiled] = {}
        self._dynamic, self._sizes = dynamic, dict(sizes or {})
        self._families: dict[Hashable, _Family] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The function's results as JAX arrays."""
        jax = self._jax
        dynamic, static = self._static.split(arguments, keywords)
        leaves, tree = jax.tree_util.tree_flatten(dynamic)
        arrays, kinds, gpu = [], [], None
        for leaf in leaves:
            if isinstance(leaf, self._tracer):
                return self._jitted(*arguments, **keywords)
            array, kind, place = self._read(leaf)
            if place is not None:
                if gpu not in (None, place):
                    raise UserError(f"girih.jit: arguments lie on two GPUs, {gpu} and {place}")
                gpu = place
            arrays.append(array)
            kinds.append(kind)
        key = self._key(static, tree, (gpu, *kinds))
        ready = self._compiled.get(key)
        if ready is None:
            ready = self._compile(key, arguments, keywords, gpu, kinds)
        if gpu is None:
            results = self._put(ready.program.call_flat(arrays))
        else:
            found = ready.program.on_device_flat(arrays)
            results = [jax.numpy.from_dlpack(array) for array in found]
        for number, kind in ready.keys:
            results[number] = jax.random.wrap_key_data(results[number], impl=kind)
        for number in ready.donated:
            if isinstance(leaves[number], jax.Array):
                leaves[number].delete()
        return jax.tree_util.tree_unflatten(ready.outputs, results)

    def program(self, *arguments: Any, **keywords: Any) -> Program:
        """The program that a call with these inputs runs: to save as a bundle, or to inspect.

        Arrays may be `jax.ShapeDtypeStruct`; where they are makes no difference here.
        """
        return self._build(arguments, keywords, None)[0]

    def clear_cache(self) -> None:
        """Forget all programs."""
        self._compiled.clear()
        self._families.clear()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Methods are functions of the instance, which has to be static or a pytree."""
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        count = len(set(map(id, self._compiled.values())))
        return f"<girih.jit of {getattr(self, '__name__', '?')}: {count} programs>"

    def _key(self, static: Any, tree: Any, kinds: Any) -> Hashable:
        config = self._jax.config
        return static, tree, kinds, *[getattr(config, name, None) for name in _SETTINGS]

    def _compile(
        self, key: Any, arguments: Any, keywords: Any, gpu: Gpu | None, kinds: Sequence[Any]
    ) -> _Compiled:
        with self._lock:
            ready = self._compiled.get(key)
            if ready is None:
                if self._dynamic or self._sizes:
                    ready = self._admitting(key, arguments, keywords, gpu, kinds)
                else:
                    ready = self._ready(*self._build(arguments, keywords, gpu))
                self._compiled[key] = ready
            return ready

    def _ready(self, program: Program, traced: Any) -> _Compiled:
        jax = self._jax
        results = jax.tree_util.tree_leaves(traced.out_info)
        keys = tuple(
            (number, _generator(result.dtype))
            for number, result in enumerate(results)
            if jax.numpy.issubdtype(result.dtype, jax.dtypes.prng_key)
        )
        infos = jax.tree_util.tree_leaves(traced.args_info)
        donated = tuple(number for number, info in enumerate(infos) if info.donated)
        return _Compiled(program, traced.out_tree, keys, donated)

    def _admitting(
        self, key: Any, arguments: Any, keywords: Any, gpu: Gpu | None, kinds: Sequence[Any]
    ) -> _Compiled:
        """A program for calls of these sizes, and where that can be, of others."""
        static, tree, _, *settings = key
        shapes = [shape for shape, *_ in kinds]
        types = tuple((len(shape), *others) for shape, *others in kinds)
        sizes = tuple(size for shape in shapes for size in shape)
        family = self._families.setdefault((static, tree, gpu, types, *settings), _Family())
        if self._sizes and family.stated is None:
            family.stated = self._stated(arguments, keywords)
        if family.stated is not None:
            family.stated.check(sizes)
        for chosen, ready in family.programs:
            if chosen.admits(sizes):
                return ready
        before = [chosen for chosen, _ in family.programs]
        made: tuple[Chosen, _Compiled] | None = None
        said = self._said(family, sizes)
        if family.opens and any(said):
            names = None if family.stated is None else family.stated.names
            chosen = opened(said, sizes, before, names)
            try:
                specs = self._static.joined(self._specs(tree, kinds, chosen), arguments, keywords)
                made = self._build_open(specs, gpu, chosen, sizes, before)
            except (UserError, CompilerBug) as error:
                if self._options.strict:
                    raise
                family.opens = False
                name = getattr(self, "__name__", "the function")
                warn(f"each size of '{name}' is compiled on its own: {error}", 4)
        if made is None:
            made = fixed(sizes), self._ready(*self._build(arguments, keywords, gpu))
        family.programs.append(made)
        return made[1]

    def _said(self, family: _Family, sizes: Sequence[int]) -> list[Symbol | None]:
        """What each size may be, None where it stays the number that it is: until a call has
        another, unless the user says more."""
        stated = {} if family.stated is None else family.stated.symbols
        found: list[Symbol | None] = []
        for number, size in enumerate(sizes):
            varies = self._dynamic and any(
                chosen.dims[number] != size for chosen, _ in family.programs
            )
            known = stated.get(number)
            found.append(known or (Symbol(1) if varies and size else None))
        return found

    def _stated(self, arguments: Any, keywords: Any) -> _StatedSizes:
        """What `sizes=` says of calls of this structure; UserError for keys that it has not."""
        from .frontends.jax.traced import import_traced, title_of, trace

        module = import_traced(trace(self._jitted, arguments, keywords), title_of(self._jitted))
        places = list(dims_of_arguments(module))
        names = {key: value for key, value in self._sizes.items() if isinstance(value, str)}
        for key in self._sizes:
            if key not in places and key not in names.values():
                raise UserError(
                    f"girih.jit: sizes= names '{key}', but a call has {', '.join(places)}"
                )
        symbols: dict[int, Symbol] = {}
        for number, place in enumerate(places):
            if place in self._sizes:
                key = names.get(place, place)
                symbols[number] = Symbol(1)
                if key in self._sizes:
                    symbols[number] = symbol_of_stated(key, self._sizes[key])
        called = {n: names[place] for n, place in enumerate(places) if place in names}
        return _StatedSizes(dict(enumerate(places)), symbols, called)

    def _specs(self, tree: Any, kinds: Sequence[Any], chosen: Chosen) -> Any:
        """The call's (arguments, keywords) with types in place of arrays."""
        jax = self._jax
        export = importlib.import_module("jax.export")
        known = dict(
            zip(chosen.ranges, export.symbolic_shape(", ".join(chosen.ranges)), strict=True)
        )
        dims = iter(chosen.dims)
        specs = []
        for shape, dtype, weak in kinds:
            sizes = [dim if isinstance(dim, int) else known[repr(dim)]
                     for dim in itertools.islice(dims, len(shape))]  # fmt: skip
            specs.append(jax.ShapeDtypeStruct(sizes, dtype, weak_type=weak))
        return jax.tree_util.tree_unflatten(tree, specs)

    def _build(self, arguments: Any, keywords: Any, gpu: Gpu | None) -> tuple[Program, Any]:
        from .frontends.jax.traced import import_traced, title_of, trace

        traced = trace(self._jitted, arguments, keywords)
        module = import_traced(traced, title_of(self._jitted))
        return self._program(module, gpu), traced

    def _build_open(
        self,
        specs: tuple[Sequence[Any], dict[str, Any]],
        gpu: Gpu | None,
        chosen: Chosen,
        sizes: Sequence[int],
        before: Sequence[Chosen],
    ) -> tuple[Chosen, _Compiled]:
        from .frontends.jax.traced import import_open, trace

        arguments, keywords = specs
        traced = trace(self._jitted, arguments, keywords)
        module = import_open(self._jitted, arguments, keywords)
        module, chosen = bounded(module, chosen, sizes, before)
        return chosen, self._ready(self._program(module, gpu), traced)

    def _program(self, module: Module, gpu: Gpu | None) -> Program:
        target = self._target or ("cpu" if gpu is None else target_for(gpu.capability))
        program = compile_module(module, target=target, options=self._options)
        return program if gpu is None else program.with_device(gpu.number)

    def _read(self, leaf: Any) -> tuple[Any, Hashable, Gpu | None]:
        """A leaf as an array for the program, what a trace depends on of it, and its GPU."""
        jax = self._jax
        if isinstance(leaf, jax.Array):
            kind = leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
            if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            if leaf.sharding not in self._places:
                self._places[leaf.sharding] = self._place(leaf)
            place = self._places[leaf.sharding]
            return np.asarray(leaf) if place is None else leaf, kind, place
        try:
            aval = jax.typeof(leaf)
        except TypeError:
            raise UserError(
                f"girih.jit: {leaf!r} is no array; mark the argument static, or pass an array"
            ) from None
        kind = aval.shape, aval.dtype, getattr(aval, "weak_type", False)
        return np.asarray(leaf, aval.dtype), kind, None

    def _place(self, array: Any) -> Gpu | None:
        """The GPU that an array lies on, None for the CPU; UserError for several devices, and for
        those that the target does not read."""
        devices = array.devices()
        if len(devices) == 1:
            (device,) = devices
            if device.platform == "cpu":
                return None
            on_gpu = self._target is None or self._target.startswith("nvidia")
            if on_gpu and (gpu := _gpu_of(device)) is not None:
                return gpu
        raise UserError(
            f"girih.jit: an argument lies on {', '.join(map(str, devices))}; pass "
            "jax.device_put(x, jax.devices('cpu')[0])"
        )

    def _put(self, results: list[Any]) -> list[Any]:
        """JAX arrays of the results: small ones are copied, larger ones stay where they are."""
        jax = self._jax
        if jax.default_backend() != "cpu":
            return jax.device_put(results, jax.devices("cpu")[0])
        if sum(result.nbytes for result in results) <= _COPIED:
            return list(self._copy(*results))
        return jax.device_put(results)


def _gpu_of(device: Any) -> Gpu | None:
    """What JAX's device is, if it is an NVIDIA GPU, whose capability is written "9.0"."""
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    if device.platform not in ("gpu", "cuda") or not (major.isdecimal() and minor.isdecimal()):
        return None
    return Gpu(int(device.local_hardware_id), (int(major), int(minor)))


def _generator(dtype: Any) -> str:
    """The name of the generator of a type of random keys."""
    name = _KEYS.get(str(dtype))
    if name is None:
        raise UserError(f"girih.jit: keys of type {dtype} cannot be results; return their data")
    return name


class _Static:
    """Which arguments of a function are static, given by number or by name, as JAX finds them."""

    def __init__(self, function: Any, numbers: Any, names: Any) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p.name for p in parameters if p.kind in kinds]
        named = [names] if isinstance(names, str) else list(names or ())
        numbered = [numbers] if isinstance(numbers, int) else list(numbers or ())
        if names is None:  # what is given one way is found the other way, as JAX does
            count = len(positional)
            named = [positional[n] for n in numbered if -count <= n < count]
        elif numbers is None:
            numbered = [positional.index(name) for name in named if name in positional]
        self.numbers, self.names = frozenset(numbered), frozenset(named)

    def joined(
        self, dynamic: Any, arguments: Sequence[Any], keywords: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """The call's arguments and keywords, with others in place of the dynamic ones."""
        own, named = dynamic
        numbers = {n if n >= 0 else len(arguments) + n for n in self.numbers}
        given = iter(own)
        positional = [a if n in numbers else next(given) for n, a in enumerate(arguments)]
        return positional, {**keywords, **named}

    def split(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> tuple[Any, Hashable]:
        """The call's dynamic (arguments, keywords), and its static ones as a key."""
        if not self.numbers and not self.names:
            return (arguments, keywords), ()
        numbers = {n if n >= 0 else len(arguments) + n for n in self.numbers}
        dynamic = tuple(a for n, a in enumerate(arguments) if n not in numbers)
        others = {name: value for name, value in keywords.items() if name not in self.names}
        static = [(n, type(a), a) for n, a in enumerate(arguments) if n in numbers]
        static += [(n, type(v), v) for n, v in sorted(keywords.items()) if n in self.names]
        try:
            hash(tuple(static))
        except TypeError as error:
            raise UserError(f"girih.jit: a static argument has to be hashable: {error}") from None
        return (dynamic, others), tuple(static)
