"""From LLVM IR text to PTX text, in this process.

LLVM ends the process where its NVPTX backend cannot select an operation, and takes a misspelled
intrinsic for a function of somebody else. So nothing reaches it that is not known to work: names
of `llvm.*` come from a list, names of `llvm.nvvm.*` must be ones that LLVM knows. `compile_ptx` is
pure: the same text and target give the same PTX.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any

from ...hlo.errors import CompilerBug
from ...hlo.extras import require
from ..llvm import unlocked
from .target import TRIPLE, Architecture

# Intrinsics that the NVPTX backend has code for, by name without their types.
_GENERAL = frozenset({
    "abs", "assume", "bitreverse", "bswap", "ceil", "copysign", "ctlz", "ctpop", "cttz", "expect",
    "fabs", "floor", "fma", "fptosi.sat", "fptoui.sat", "fshl", "fshr", "lifetime.end",
    "lifetime.start", "masked.gather", "masked.load", "masked.scatter", "masked.store", "maximum",
    "maximumnum", "maxnum", "memcpy", "memmove", "memset", "minimum", "minimumnum", "minnum",
    "nearbyint", "rint", "roundeven", "sadd.with.overflow", "smax", "smin", "smul.with.overflow",
    "sqrt", "ssub.with.overflow", "trap", "trunc", "uadd.with.overflow", "umax", "umin",
    "umul.with.overflow", "usub.with.overflow", "vector.reduce.add", "vector.reduce.and",
    "vector.reduce.or", "vector.reduce.smax", "vector.reduce.smin", "vector.reduce.umax",
    "vector.reduce.umin", "vector.reduce.xor",
})  # fmt: skip
_CALLED = re.compile(r"@llvm\.([\w.]+)")
_TYPES = re.compile(r"(?:\.(?:p\d+|v\d+\w+|i\d+|f\d+|bf16))+$")
_DEFINED = re.compile(r"^define ", re.MULTILINE)
_UNUSED = re.compile(
    r"^\$L__(?:tmp|func_begin|func_end)\d+:$|^\s*\.section\s+\.debug_macinfo\s*\{\s*\}$",
    re.MULTILINE,
)
_CALL = re.compile(r" // callseq \d+(, \d+)?$", re.MULTILINE)  # numbered through the process
_VERSION = re.compile(r"^\.version (\d+)\.(\d+)$", re.MULTILINE)
# Instructions in assembly text, of which LLVM does not know the PTX version that brought them.
_NEWER = (
    (re.compile(r"\bmma\.sync\.\S*\.e[45]m[23]\."), (8, 4)),
    (re.compile(r"\bwgmma\.mma_async\.\S*\.(?:s8\.u8|u8\.s8)\b"), (8, 4)),
)
# A remainder of floats is rounded wrongly where the quotient is large; the others abort LLVM.
_REFUSED = re.compile(r"= (frem|va_arg|landingpad|invoke)\b")


def compile_ptx(ir_text: str, architecture: Architecture) -> str:
    """The PTX of an IR module. A mistake of an emitter is a CompilerBug, not an abort of LLVM."""
    _check_text(ir_text)
    binding = _binding()
    machine = _machine(architecture)
    try:
        # A context of its own: LLVM never frees what a shared one has interned.
        module = binding.parse_assembly(ir_text, binding.create_context())
        module.verify()
    except RuntimeError as error:
        raise CompilerBug(f"nvidia backend made LLVM IR that does not verify: {error}") from error
    with module:
        _check_declarations(module)
        module.triple = TRIPLE
        module.data_layout = str(machine.target_data)
        options = binding.create_pipeline_tuning_options(speed_level=3)
        builder = binding.create_pass_builder(machine, options)
        with builder.getModulePassManager() as passes:
            unlocked.run_passes(passes, module, builder)
        _check_declarations(module)
        return _versioned(_tidied(unlocked.emit_assembly(machine, module)))


def _check_text(ir_text: str) -> None:
    """CompilerBug for what must not reach LLVM."""
    unknown = {
        name
        for name in set(_CALLED.findall(ir_text))
        if not name.startswith("nvvm.") and _TYPES.sub("", name) not in _GENERAL
    }
    refused = set(_REFUSED.findall(ir_text))
    if unknown or refused:
        named = ", ".join([*(f"llvm.{name}" for name in sorted(unknown)), *sorted(refused)])
        raise CompilerBug(f"nvidia backend made LLVM IR with {named}, which NVPTX has no code for")
    if not _DEFINED.search(ir_text):
        raise CompilerBug("nvidia backend made LLVM IR that defines no function")


def _check_declarations(module: Any) -> None:
    """LLVM gives attributes of its own to every intrinsic that it knows; what has none would be
    called as a function of another file, which there is not."""
    for function in module.functions:
        if function.is_declaration:
            known = function.name.startswith("llvm.") and any(function.attributes)
            if not known:
                raise CompilerBug(f"nvidia backend calls '{function.name}', which LLVM lacks")


def _tidied(ptx: str) -> str:
    """Without LLVM's banner, blank lines, numbers of calls, and labels and sections that nothing
    refers to."""
    lines = [line.rstrip() for line in _UNUSED.sub("", _CALL.sub("", ptx)).splitlines()]
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("//")) + "\n"


def _versioned(ptx: str) -> str:
    """With the version that its newest instruction needs; an older driver refuses a newer one."""
    needed = [version for pattern, version in _NEWER if pattern.search(ptx)]

    def newest(match: re.Match[str]) -> str:
        major, minor = max([(int(match[1]), int(match[2])), *needed])
        return f".version {major}.{minor}"

    return _VERSION.sub(newest, ptx, count=1) if needed else ptx


_initialized = threading.Lock()
_local = threading.local()


@functools.cache
def _initialize() -> Any:
    require("llvmlite", "target nvidia: compiling")
    import llvmlite.binding as binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


def _binding() -> Any:
    """llvmlite's binding with all needed targets initialised; a UserError where it is missing."""
    with _initialized:
        return _initialize()


def _machine(architecture: Architecture) -> Any:
    """LLVM's target machine, one per thread: it is not safe to share."""
    machines: dict[Architecture, Any] = _local.__dict__.setdefault("machines", {})
    if architecture not in machines:
        machines[architecture] = (
            _binding()
            .Target.from_triple(TRIPLE)
            .create_target_machine(cpu=architecture.name, features=f"+ptx{architecture.ptx}", opt=3)
        )
    return machines[architecture]
