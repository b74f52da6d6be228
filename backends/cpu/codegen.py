"""From LLVM IR text to object code for one CPU target, and what a kernel emitter hands over.

`Target` says what the code may use: it is written into the plan as `features`, and everything that
decides the shape of code (vector width, registers, blocking) comes from it, never from the machine
that compiles. `compile_object` is pure: the same text and target give the same bytes.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ...hlo.errors import CompilerBug, UserError
from ...hlo.extras import require
from ...optimizer.machine import Machine
from .. import llvm
from ..interface import Stage
from ..llvm import unlocked
from ..llvm.target import Target as AnyTarget

# The feature levels that code is made for, best first: name, the features required, vector bits.
# Later levels run everywhere in their architecture.
_AVX2 = (
    "avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt",
    "sse3", "sse4.1", "sse4.2", "ssse3",
)  # fmt: skip
_AVX512 = (*_AVX2, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_AVX512_BF16 = (*_AVX512, "avx512bf16", "avx512vnni")
_AMX = (*_AVX512_BF16, "amx-bf16", "amx-int8", "amx-tile")
_NARROW = frozenset(_AMX) - frozenset(_AVX512)
_FLUSHING = frozenset({"avx512bf16", "amx-bf16"})
_LEVELS = {
    "x86_64": (
        ("amx", _AMX, 512), ("avx512-bf16", _AVX512_BF16, 512), ("avx512", _AVX512, 512),
        ("avx2", _AVX2, 256), ("baseline", (), 128),
    ),
    "aarch64": (("neon", ("neon",), 128),),
}  # fmt: skip
_FEATURES = re.compile(r'"target-features"="([^"]*)"')
_Code = TypeVar("_Code")


@dataclass(frozen=True)
class Target(AnyTarget):
    """A CPU that code is compiled for. `features` are LLVM's names, sorted. `machine`: what cost
    models assume of it; None is the typical one of its level."""

    triple: str
    features: tuple[str, ...]
    vector_bits: int
    machine: Machine | None = None

    @property
    def architecture(self) -> str:
        return self.triple.split("-", 1)[0]

    @property
    def general(self) -> Target:
        """The target without the instructions that only multiply narrow numbers."""
        kept = tuple(name for name in self.features if name not in _NARROW)
        return self if kept == self.features else replace(self, features=kept)

    def runs_on(self, host: Target) -> bool:
        """Whether a machine whose best target is `host` runs the target's code."""
        return self.architecture == host.architecture and set(self.features) <= set(host.features)

    @property
    def without_flushes(self) -> Target:
        """The target without the instructions that take subnormal numbers as zero."""
        kept = tuple(name for name in self.features if name not in _FLUSHING)
        return self if kept == self.features else replace(self, features=kept)

    @property
    def vector_registers(self) -> int:
        return 32 if self.architecture == "aarch64" or self.vector_bits == 512 else 16

    @property
    def fused(self) -> bool:
        """Whether one instruction multiplies and adds."""
        return self.architecture == "aarch64" or "fma" in self.features

    def lanes(self, element: str) -> int:
        """Lanes of one vector register of an LLVM element type: 16 for "float" on AVX-512."""
        return self.vector_bits // max(8, llvm.bits_of(element))

    @property
    def attributes(self) -> str:
        """The attributes of every function, for `llvm.Module`."""
        features = ",".join(f"+{name}" for name in self.features)
        bits = self.vector_bits
        width = f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
        return (
            f'nounwind "no-builtins" "frame-pointer"="none" {width} "target-features"="{features}"'
        )

    def step_lanes(self, bits: int) -> int:
        return max(2, self.vector_bits // bits)

    def compiled(self, ir_text: str) -> bytes:
        """The ELF object of an IR module: what another backend of CPUs does its own way."""
        return compile_object(ir_text, self)

    def stages(self) -> dict[str, Stage]:
        """The texts on the way of `compiled`, behind LLVM's ("llvm")."""
        return {"asm": Stage("llvm", lambda ir_text: compile_assembly(ir_text, self))}

    def module(self) -> llvm.Module:
        """An empty module of this target."""
        return llvm.Module(self.attributes, fused=self.fused, architecture=self.architecture)


@functools.cache
def host_target(level: str | None = None) -> Target:
    """The target of this machine; `level` ("avx512", "avx2", "baseline", "neon") caps it."""
    binding = _binding()
    triple = binding.get_process_triple()
    present = {name for name, on in binding.get_host_cpu_features().items() if on}
    if "amx-tile" in present and not _tiles_permitted():
        present -= set(_AMX) - set(_AVX512_BF16)
    return make_target(triple, present, level)


def _tiles_permitted() -> bool:
    """Whether Linux lets a process use AMX's tile registers; containers may refuse it."""
    arch_prctl, supported, tile_data = 158, 0x1021, 18
    mask = ctypes.c_uint64()
    answer = ctypes.CDLL(None).syscall(arch_prctl, supported, ctypes.byref(mask))
    return answer == 0 and bool(mask.value >> tile_data & 1)


def level_target(level: str) -> Target:
    """A CPU of a feature level, whatever machine this is: "avx512", "avx2", "baseline", "neon"."""
    for architecture, levels in _LEVELS.items():
        if any(name == level for name, _, _ in levels):
            present = {feature for _, required, _ in levels for feature in required}
            return make_target(f"{architecture}-unknown-linux-gnu", present, level)
    known = ", ".join(f"cpu:{name}" for levels in _LEVELS.values() for name, _, _ in levels)
    raise UserError(f"there is no target 'cpu:{level}'; for CPUs there are cpu (this one), {known}")


def make_target(triple: str, present: set[str], level: str | None = None) -> Target:
    """The best target for a triple whose machines have the features `present`."""
    architecture = {"arm64": "aarch64", "amd64": "x86_64"}.get(
        triple.split("-", 1)[0], triple.split("-", 1)[0]
    )
    if architecture not in _LEVELS:
        raise UserError(
            f"target cpu: no code generation for architecture '{architecture}' ({triple}); "
            f"supported are {', '.join(_LEVELS)}"
        )
    levels = _LEVELS[architecture]
    names = [name for name, _, _ in levels]
    if level is not None and level not in names:
        others = {name for known in _LEVELS.values() for name, _, _ in known} - {*names}
        remedy = f": for other machines name a target, cpu:{level}" if level in others else ""
        raise UserError(
            f"target cpu: unknown level '{level}' for {architecture}, there are "
            f"{', '.join(names)}{remedy}"
        )
    for _, required, bits in levels[names.index(level) if level else 0 :]:
        if present.issuperset(required):
            return Target(triple, tuple(sorted(required)), bits)
    raise UserError(
        f"target cpu: this machine lacks the features {levels[-1][1]} of {architecture}"
    )


def compile_object(ir_text: str, target: Target, *, optimize: bool = True) -> bytes:
    """The ELF object of an IR module. `optimize` False skips the clean-up passes."""
    return _compiled(ir_text, target, unlocked.emit_object, optimize)


def compile_assembly(ir_text: str, target: Target) -> str:
    """The object of an IR module as assembly, with the instructions that its functions may have."""
    found = _FEATURES.search(ir_text)
    allowed = {name.lstrip("+") for name in found[1].split(",")} if found else set()
    kept = tuple(name for name in target.features if name in allowed)
    return _compiled(ir_text, replace(target, features=kept), unlocked.emit_assembly)


def _compiled(
    ir_text: str, target: Target, emit: Callable[[Any, Any], _Code], optimize: bool = True
) -> _Code:
    """What LLVM emits of an IR module.

    The text is parsed and verified first, so a mistake of an emitter is a CompilerBug, not an
    abort inside LLVM.
    """
    binding = _binding()
    machine = _machine(target)
    # A context of its own: LLVM never frees what a shared one has interned.
    context = binding.create_context()
    try:
        module = binding.parse_assembly(ir_text, context)
        module.verify()
    except RuntimeError as error:
        raise CompilerBug(f"cpu backend made LLVM IR that does not verify: {error}") from error
    with module:
        module.triple = target.triple
        module.data_layout = str(machine.target_data)
        if optimize:
            options = binding.create_pipeline_tuning_options(speed_level=2)
            builder = binding.create_pass_builder(machine, options)
            with _pipeline(binding) as passes:
                unlocked.run_passes(passes, module, builder)
        return emit(machine, module)


def _pipeline(binding: Any) -> Any:
    """Clean-up for code that is already vectorised and blocked: values that are computed twice.
    What would combine instructions is left out, since it makes code no smaller: addresses are
    sums with constants when they are emitted, and selecting instructions folds these."""
    passes = binding.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_new_gvn_pass()
    passes.add_dead_code_elimination_pass()
    return passes


_initialized = threading.Lock()
_local = threading.local()
_ready = False


def _binding() -> Any:
    """llvmlite's binding with all needed targets initialised; a UserError where it is missing."""
    global _ready
    require("llvmlite", "target cpu: compiling")
    import llvmlite.binding as binding

    with _initialized:
        if not _ready:
            binding.initialize_all_targets()
            binding.initialize_all_asmprinters()
            _ready = True
    return binding


def _machine(target: Target) -> Any:
    """LLVM's target machine, one per thread: it is not safe to share."""
    machines: dict[Target, Any] = _local.__dict__.setdefault("machines", {})
    if target not in machines:
        binding = _binding()
        # The features are spelled out, so the CPU name only picks LLVM's instruction costs.
        machines[target] = binding.Target.from_triple(target.triple).create_target_machine(
            cpu="generic" if target.architecture == "aarch64" else "x86-64",
            features=",".join(f"+{name}" for name in target.features),
            opt=2,
            reloc="pic",
            codemodel="small",
        )
    return machines[target]
