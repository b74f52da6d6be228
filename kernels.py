"""Kernels that users write: `girih.kernel` makes a Python function over tiles a compiled kernel.

@girih.kernel(out=lambda x, y: x, grid=lambda x, SIZE: girih.cdiv(x.size, SIZE))
def add(x, y, out, *, SIZE=1024):
    i = tl.tile_id(0) * SIZE
    out[i : i + SIZE] = x[i : i + SIZE] + y[i : i + SIZE]

add(numpy_x, numpy_y)

The language is that of specs/kernel_language.md; docs/kernels.md is a tutorial.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from .backends.cpu.codegen import host_target
from .backends.cpu.machines import machine_of
from .compiler import compile as compile_module
from .frontends.kernel import payload, sizes
from .frontends.kernel import reference as references
from .frontends.kernel.contract_check import check_cuts
from .frontends.kernel.definition import Built, Definition
from .frontends.kernel.values import Array, LanguageError, dtype_of
from .hlo.contracts import require_contract
from .hlo.errors import UserError
from .hlo.graph import Module, Op
from .hlo.interpret import simulate
from .hlo.text import print_module
from .hlo.tiling import Counts
from .optimizer.cost.assumed import TILE_SECONDS, WINDOW_SECONDS
from .optimizer.cost.model import Features, Traffic, level_of, seconds
from .optimizer.machine import Machine
from .options import Options
from .runtime.program import Program

_KEPT = 256  # kernels for different shapes that are kept, and programs of all of them


def kernel(
    *,
    out: Any,
    grid: Any = (),
    reference: Callable[..., Any] | None = None,
    sharding: str = "",
    local: Mapping[str, int | Sequence[int]] | None = None,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a function over tiles a kernel, called on numpy, torch and JAX arrays.

    out: the outputs: a `tl.Array(shape, dtype)` or a list of them, or a function that gives that
        for the inputs and constants that it names (`out=lambda a, b: a`).
    grid: the tiles along each axis, or a function of inputs, outputs and constants; `()` is one.
    reference: a function of the inputs that computes the same. `check` compares with it, plain JAX
        and other targets run it, derivatives are its derivatives.
    sharding: the contract by which a partitioner may split the call; without one it follows from
        the windows, where these walk with the grid.
    local: names of the contract's dims, and into how many parts they may be cut, for dims along
        which the windows do not walk: the program has the kernel for these parts with it.
    """

    def wrap(function: Callable[..., Any]) -> Kernel:
        if not isinstance(function, FunctionType):
            raise UserError(f"girih.kernel is for plain functions, not {function!r}")
        return Kernel(Definition(function, out, grid, sharding, local or {}), reference)

    return wrap


class Kernel:
    """A kernel; see `girih.kernel`. Arrays are positional, constants are keywords."""

    is_girih_kernel = True

    def __init__(self, definition: Definition, reference: Callable[..., Any] | None) -> None:
        self.definition, self.reference = definition, reference
        self._built: dict[Any, _Ready] = {}
        self._quick: dict[Any, _Ready] = {}
        if definition.function is not None:
            functools.update_wrapper(self, definition.function)

    def __call__(self, *arrays: Any, **constants: Any) -> Any:
        """The kernel's outputs, in the library of the inputs: one array, or a tuple.

        Compiled for shapes, element types and constants when first called with them. Inside a JAX
        or PyTorch trace it becomes part of the program.
        """
        torch = sys.modules.get("torch")
        if torch is not None and any(isinstance(array, torch.Tensor) for array in arrays):
            return self._on_torch(arrays, constants)
        # What most calls are: numpy arrays like those of a call before.
        key = tuple([(a.shape, a.dtype) for a in arrays if type(a) is np.ndarray])
        known = self._quick.get(key) if not constants and len(key) == len(arrays) else None
        if known is not None and known.built.is_current():
            results = known.program(*arrays)
            return results[0] if len(results) == 1 else tuple(results)
        ready = self._ready(arrays, constants)
        if _library(arrays) == "jax":
            from .frontends.kernel.jax_primitive import bind

            results = bind(arrays, ready.text, ready.reference, _run_jax)
        else:
            results = ready.program(*map(np.asarray, arrays))
            if not constants and len(key) == len(arrays):
                if len(self._quick) >= _KEPT:
                    self._quick.clear()
                self._quick[key] = ready
        return results[0] if len(results) == 1 else tuple(results)

    def __copy__(self) -> Kernel:
        return self  # immutable, and part of modules that are copied

    def __deepcopy__(self, memo: Any) -> Kernel:
        return self

    def __reduce__(self) -> str:
        """By its name in its file, as functions are pickled."""
        if self.definition.function is None:
            raise TypeError(f"kernel '{self.definition.name}' is no Python function to be pickled")
        return self.definition.function.__qualname__

    def _on_torch(self, arrays: Sequence[Any], constants: Mapping[str, Any]) -> Any:
        """The operator's call, in a form that TorchDynamo can follow."""
        import torch

        from .frontends.kernel.torch_operator import call

        for array in arrays:
            if not isinstance(array, torch.Tensor):
                found = type(array).__name__
                raise UserError(
                    f"{self.definition.place}: all arrays are tensors where one is, got {found}; "
                    "pass torch.as_tensor(x), or a constant by its keyword"
                )
        fixed = int if torch.compiler.is_dynamo_compiling() else lambda size: size
        types = [(tuple([fixed(n) for n in a.shape]), a.dtype) for a in arrays]
        text = self._torch_text(tuple(types), tuple(constants.items()))
        results = call(arrays, text)
        return results[0] if len(results) == 1 else tuple(results)

    def _torch_text(self, types: Sequence[Any], constants: Sequence[tuple[str, Any]]) -> str:
        """The kernel's string for tensors of these types; PyTorch knows its derivative then."""
        from .frontends.kernel.torch_operator import with_reference

        torch_operator()
        ready = self._ready(
            [Array(shape, dtype_of(dtype)) for shape, dtype in types], dict(constants)
        )
        return with_reference(ready.text, ready.reference)

    # TorchDynamo calls it while it traces (torch.compiler.assume_constant_result, without its
    # import), as it does not follow how kernels are built.
    _torch_text._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def interpret(self, *arrays: Any, **constants: Any) -> Any:
        """The outputs as numpy arrays, computed tile after tile in numpy; UserError where tiles
        race, or where an output's element is stored by none. Slow: for small arrays.
        """
        results, counts = self._simulate(arrays, constants)
        if counts.faults:
            raise UserError(f"kernel '{self.definition.name}': " + "; ".join(counts.faults))
        return results[0] if len(results) == 1 else tuple(results)

    def counts(self, *arrays: Any, **constants: Any) -> Counts:
        """What the kernel does on these arrays: tiles, bytes, operations, windows that reach
        outside, and faults (races, elements that nobody stores)."""
        return self._simulate(arrays, constants)[1]

    def check(self, *arrays: Any, tolerance: float | None = None, **constants: Any) -> float:
        """The largest error of the kernel against its reference, relative to the largest value.

        tolerance: what is allowed; by default a bound by the element type. UserError beyond it.
        """
        if self.reference is None:
            raise UserError(f"{self.definition.place} has no reference= to check against")
        values = [_as_numpy(array) for array in arrays]
        ready = self._ready(values, constants)
        found = ready.program(*values)
        wanted = references.bound(self.reference, ready.built.constants)(*values)
        wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
        if len(wanted) != len(found):
            raise UserError(f"{self.definition.place}: its reference gives {len(wanted)} results")
        worst = 0.0
        for number, (got, right) in enumerate(zip(found, map(_as_numpy, wanted), strict=True)):
            if got.shape != right.shape:
                raise UserError(
                    f"{self.definition.place}: output {number} is {list(got.shape)}, its "
                    f"reference gives {list(right.shape)}"
                )
            error = _error(got, right)
            # A reference may compute in less than the kernel: JAX does without jax_enable_x64.
            usual = max(_tolerance(got.dtype), _tolerance(right.dtype))
            allowed = usual if tolerance is None else tolerance
            if not error <= allowed:
                raise UserError(
                    f"{self.definition.place}: output {number} differs from the reference by "
                    f"{error:.2g} of its largest value; {allowed:.2g} is allowed"
                )
            worst = max(worst, error)
        return worst

    def check_contract(self, *arrays: Any, **constants: Any) -> None:
        """Run the kernel on whole arrays, and cut in 2, 3 and 4 parts along each dim that its
        contract (`sharding=`) allows to cut. UserError, with the dim, where the parts do not give
        the same, and for a kernel without a contract."""

        def run(parts: Sequence[Any]) -> Sequence[Any]:
            return self._ready(parts, constants).program(*parts)

        def compare(got: Any, wanted: Any) -> float:
            error, allowed = _error(got, wanted), _tolerance(wanted.dtype)
            return error / allowed if allowed else float(error > 0) * 2

        values, ready = self._values(arrays, constants)
        op = ready.built.op
        require_contract(op)
        check_cuts(op, run, values, compare)

    def module(self, *arrays: Any, **constants: Any) -> Module:
        """The program of this one kernel; arrays may be anything with a shape and a dtype. It has
        the reference with it if JAX can trace that."""
        return self._ready(arrays, constants).module

    def program(
        self, *arrays: Any, target: str = "cpu", options: Options | None = None, **constants: Any
    ) -> Program:
        """The compiled program of this one kernel, to save as a bundle."""
        return compile_module(self.module(*arrays, **constants), target=target, options=options)

    def text(self, *arrays: Any, **constants: Any) -> str:
        """The tile function as text; arrays may be anything with a shape and a dtype."""
        return print_module(self._ready(arrays, constants).built.module)

    def sizes(self, *arrays: Any, **constants: Any) -> dict[str, Any]:
        """All constants with their values, those left open as they were chosen."""
        return dict(self._ready(arrays, constants).built.constants)

    def __repr__(self) -> str:
        return f"<girih kernel '{self.definition.name}' ({', '.join(self.definition.arrays)})>"

    def _simulate(
        self, arrays: Sequence[Any], constants: Mapping[str, Any]
    ) -> tuple[list[Any], Counts]:
        values, ready = self._values(arrays, constants)
        return simulate(ready.built.op, values)

    def _values(
        self, arrays: Sequence[Any], constants: Mapping[str, Any]
    ) -> tuple[list[Any], _Ready]:
        """The arrays in numpy, and the kernel for them."""
        values = [_as_numpy(array) for array in arrays]
        return values, self._ready(values, constants)

    def _ready(self, arrays: Sequence[Any], constants: Mapping[str, Any]) -> _Ready:
        """The kernel for arrays of these types, built anew where its surroundings changed."""
        types = tuple(map(_type_of, arrays))
        key = (types, tuple(sorted(constants.items())))
        try:
            ready = self._built.get(key)
        except TypeError:
            raise UserError(f"{self.definition.place}: a constant is not hashable") from None
        if ready is None or not ready.built.is_current():
            shapes = [Array(shape, dtype) for shape, dtype in types]
            ready = _Ready(self._build(shapes, constants), shapes, self.reference)
            if len(self._built) >= _KEPT:
                self._built.pop(next(iter(self._built)))
            self._built[key] = ready
        return ready

    def _build(self, inputs: Sequence[Array], constants: Mapping[str, Any]) -> Built:
        definition = self.definition
        bound = definition.bind(constants)
        names = definition.open_sizes(bound)
        if not names:
            return definition.build(inputs, bound)
        found: dict[tuple[int, ...], Built] = {}

        def build(chosen: Mapping[str, int]) -> Op:
            built = definition.build(inputs, {**bound, **chosen})
            found[tuple(chosen.values())] = built
            return built.op

        chosen = sizes.choose(names, build, predicted)
        return found[tuple(chosen.values())]


class _Ready:
    """A kernel for certain types: its program, and the string that travels."""

    def __init__(
        self, built: Built, inputs: Sequence[Array], given: Callable[..., Any] | None
    ) -> None:
        self.built, self._inputs = built, inputs
        self.text = payload.to_text(built.module)
        self.reference = None if given is None else references.bound(given, built.constants)

    @functools.cached_property
    def program(self) -> Program:
        return _program(self.text)

    @functools.cached_property
    def module(self) -> Module:
        region = None if self.reference is None else references.traced(self.reference, self._inputs)
        module = self.built.module
        return module if region is None else payload.with_reference(module, region)


def torch_operator() -> Any:
    """PyTorch's operator `girih::kernel`, registered if it was not yet."""
    from .frontends.kernel.torch_operator import operator

    return operator(_run_torch)


@functools.lru_cache(maxsize=_KEPT)
def _program(text: str) -> Program:
    """The compiled program of a kernel's string."""
    return compile_module(payload.from_text(text))


def _run_jax(text: str, inputs: Sequence[Any]) -> list[Any]:
    """The results on concrete JAX arrays, as JAX arrays over the same memory."""
    import jax

    return [jax.device_put(result) for result in _program(text)(*map(np.asarray, inputs))]


def _run_torch(text: str, inputs: Sequence[Any]) -> list[Any]:
    """The results on CPU tensors, as tensors over the same memory."""
    return [_as_torch(result) for result in _program(text)(*map(_as_numpy, inputs))]


def _as_torch(array: Any) -> Any:
    import torch

    from .frontends.kernel.torch_operator import dtype_named

    wanted = dtype_named(dtype_of(array.dtype).name)
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    raw = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
    return torch.from_numpy(array.view(raw)).view(wanted)


def _as_numpy(array: Any) -> Any:
    """A numpy array over the same memory where there can be one."""
    if _library([array]) == "torch":
        from .frontends.torch.exported import array_of

        return array_of(array)
    return np.asarray(array)


def _library(arrays: Sequence[Any]) -> str:
    """ "jax" or "torch" if one of the arrays is of it, else "numpy"."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    for array in arrays:
        if isinstance(array, np.ndarray):
            continue
        if torch is not None and isinstance(array, torch.Tensor):
            return "torch"
        if jax is not None and isinstance(array, jax.Array):
            return "jax"
    return "numpy"


def _type_of(array: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and element type of anything like an array."""
    try:
        shape, dtype = tuple(array.shape), array.dtype
    except AttributeError:
        array = np.asarray(array)
        shape, dtype = array.shape, array.dtype
    if not all(isinstance(n, (int, np.integer)) for n in shape):
        raise UserError(f"kernels need fixed shapes, not {list(map(str, shape))}")
    try:
        return shape, dtype_of(dtype)
    except LanguageError as error:
        raise UserError(str(error)) from None


def predicted(op: Op) -> float:
    """Predicted seconds of a kernel_call on the typical machine of this processor's level.

    Windows come from main memory once, then from the level that holds all arrays; what tiles
    compute moves through the level that holds the tiles of one run.
    """
    machine = _machine()
    facts = sizes.work(op)
    executors = machine.executors
    unit = machine.unit(_element_of_dots(op, machine))
    last = len(machine.levels) - 1
    moved = facts.loaded + facts.stored
    first = min(moved, facts.memory)
    features = Features(
        flops=facts.dot_flops + facts.other_flops * unit.flops / machine.math.simple,
        rate=unit.flops,
        traffic=(
            Traffic(first, last),
            Traffic(moved - first, level_of(machine, facts.memory, executors)),
            Traffic(2 * facts.tile_bytes, level_of(machine, facts.footprint, executors)),
        ),
        issue=facts.steps * WINDOW_SECONDS + facts.tiles * TILE_SECONDS,
        tasks=max(1, facts.tiles),
    )
    return float(seconds(features, machine, executors))


def _element_of_dots(op: Op, machine: Machine) -> str:
    """What the first product multiplies; f32 where there is none, or no unit for it."""
    known = {name for unit in machine.units for name in unit.elements}
    for inner in op.regions[0].walk():
        if inner.name == "dot_general" and inner.operands[0].element.name in known:
            return inner.operands[0].element.name
    return "f32"


@functools.cache
def _machine() -> Machine:
    return machine_of(host_target(None))


def _error(got: Any, wanted: Any) -> float:
    """The largest difference, relative to the largest finite value; infinite where only one of
    both is not finite, or both are in different ways."""
    left, right = (np.asarray(a).astype(np.float64) for a in (got, wanted))
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    if same.all():
        return 0.0
    finite = np.isfinite(right)
    if not (np.isfinite(left) | same).all() or not (finite | same).all():
        return float("inf")
    scale = np.abs(right[finite]).max(initial=0.0)
    difference = np.abs(left[~same] - right[~same]).max()
    return float(difference / scale) if scale else float("inf")


def _tolerance(dtype: Any) -> float:
    """Of an element type: nothing for whole numbers, a few roundings for floats."""
    return {"f64": 1e-12, "f32": 1e-5, "f16": 1e-2, "bf16": 5e-2}.get(dtype_of(dtype).name, 0.0)
