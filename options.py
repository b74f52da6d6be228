"""What a user may choose when compiling; each option has one meaning and a safe default."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from numbers import Integral, Real

from .hlo.errors import UserError

LICENCES = ("bitwise", "ignores-zero-sign", "reassociates", "assumes-finite")
PRECISIONS = ("float32", "tensorfloat32", "bfloat16")
ACTIVATIONS = ("float32", "bfloat16")
SCHEDULES = ("auto", "launches", "host", "graph", "merged", "persistent")


@dataclass(frozen=True)
class Options:
    """Options of `girih.compile`.

    numerics: the widest licence that rewrites may use (specs/numerics.md): "bitwise" keeps every
        bit of the source's arithmetic order, "ignores-zero-sign", "reassociates" (default: rounding
        may differ in the last places), "assumes-finite".
    matmul_precision: what float32 products and convolutions read: "float32"; "tensorfloat32", which
        lets NVIDIA's matrix units round their operands to 11 significant bits (other targets read
        float32); or "bfloat16", which rounds their operands everywhere. Sums stay in float32. The
        plan's notes say that it was done. What the source asks for at a product goes first.
    activation_precision: what float32 values that layers hand to each other are stored in:
        "float32"; or "bfloat16": results of products with weights, and what elementwise operations
        make of them, are rounded where a kernel writes them for another. Sums, statistics, and what
        the program returns or carries in loops stay float32. The plan's notes say that it was done.
    threads: workers at run time; None asks the machine when the bundle is loaded.
    pin: keep each worker but the caller's thread on a core of its own.
    max_reshard: what a device of a mesh may receive from others in a step, such as
        "total=64MiB,op=8MiB,count=12,axis.model=32MiB" (bytes in all, by one communication, their
        number, bytes along an axis); BudgetError, with the communications, where it is more.
    comm_timeout: seconds that one wait of a program of several processes for the others may take;
        None: GIRIH_COMM_TIMEOUT, or 300.
    cpu_level: cap on CPU features ("amx", "avx512-bf16", "avx512", "avx2", "baseline", "neon");
        None takes the host's.
    machine: what the cost model assumes: None, the typical machine of the feature level; "host",
        this machine as `girih machine --calibrate` measured it; or the path of a machine file.
    cache: where compiled kernels and programs are kept for later compilations: None, the user's
        cache folder; "off", nowhere; or the path of a folder. It never changes the result.
    fold_bytes: constants up to this size are computed when compiling.
    pack_weights: store contraction weights in the order that kernels read them.
    max_memory: the most memory that one call at a time may take, in bytes, or text with a unit
        ("800 MB", "2GiB"; kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024):
        arguments, results of their own, constants, arena and scratch. Values are computed again
        where that spares enough; MemoryLimitError where it does not. None: no limit.
    overlap_memory: the part by which the arena may be larger than it has to be, so that steps which
        need nothing of each other run at a time, or a quarter of a core's own cache, if that is
        more; 0: not at all. Where `max_memory` is set, the order is the one that needs least.
    schedule: how a GPU runs a program: "launches", one kernel after the other, each started by the
        host; "host", where the host decides in loops and branches and all between is graphs, whose
        kernels run together where nothing orders them; "graph", one graph, loops and branches
        included, which decide on the device; "merged", "host" with kernels that are independent of
        each other side by side in one launch, each on a range of its blocks, wherever they can be,
        or an error where none can; "persistent", one cooperative launch, whose blocks walk all
        steps, meet where one needs another, and decide in loops and branches themselves; "auto",
        what is predicted to be best: "host", with merged launches, or "graph" where no loop may be
        without an end, where they gain more than the prediction may be wrong. On a CPU, where the
        program is one call, "launches" has workers meet between steps that need each other. What a
        target or a program cannot do is an error; where a driver cannot, before CUDA 12.3 for
        "graph" and without cooperative launches for "persistent", "host" is taken, which is a
        warning, or with `strict` an error.
    measure: how many variants of a kernel, the best predicted first, are timed on this machine to
        take the fastest; 0: none. No kernel is begun after 30 s. The bundle keeps the choices.
    tuning: where choices were kept: a bundle, or a `tuning.json`; None: the source, if it is a
        bundle. What it knows is neither predicted nor timed again.
    locked: never time anything; together with `measure` an error.
    disable: names of passes to leave out, for finding faults.
    strict: turn notes about copies and slow paths into errors.
    hot: sizes that calls often have, such as ("batch=1,seq=128",): a program whose sizes calls
        decide has code for just these as well, with what is known of numbers.
    size_plans: how many plans a program may have whose sizes calls decide, hot ones aside: one for
        all sizes, the others for ranges in which they are predicted to be faster. 1 compiles
        fastest.
    """

    numerics: str = "reassociates"
    matmul_precision: str = "float32"
    activation_precision: str = "float32"
    threads: int | None = None
    pin: bool = False
    max_reshard: str | None = None
    comm_timeout: float | None = None
    cpu_level: str | None = None
    machine: str | None = None
    cache: str | None = None
    fold_bytes: int = 1 << 16
    pack_weights: bool = True
    max_memory: int | str | None = None
    overlap_memory: float = 0.1
    schedule: str = "auto"
    measure: int = 0
    tuning: str | None = None
    locked: bool = False
    disable: tuple[str, ...] = ()
    strict: bool = False
    hot: tuple[str, ...] = ()
    size_plans: int = 3

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), str(field.type)
            if not _is(value, kind):
                raise OptionError(f"{field.name} is a {_WORDS[kind]}, not {value!r}")
        if self.numerics not in LICENCES:
            raise OptionError(f"numerics must be one of {', '.join(LICENCES)}: {self.numerics!r}")
        if self.matmul_precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise OptionError(f"matmul_precision must be one of {known}: {self.matmul_precision!r}")
        if self.activation_precision not in ACTIVATIONS:
            known, got = ", ".join(ACTIVATIONS), self.activation_precision
            raise OptionError(f"activation_precision must be one of {known}: {got!r}")
        if self.schedule not in SCHEDULES:
            raise OptionError(f"schedule must be one of {', '.join(SCHEDULES)}: {self.schedule!r}")
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"threads must be at least 1: {self.threads}")
        if self.comm_timeout is not None and not 0 < self.comm_timeout < float("inf"):
            raise OptionError(f"comm_timeout must be more than 0 seconds: {self.comm_timeout}")
        if self.max_memory is not None:
            bytes_of(self.max_memory)
        for name in ("measure", "fold_bytes", "overlap_memory"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must be at least 0: {getattr(self, name)}")
        if self.size_plans < 1:
            raise OptionError(f"size_plans must be at least 1: {self.size_plans}")
        _ = self.hot_sizes

    @property
    def memory_limit(self) -> int | None:
        """`max_memory` in bytes."""
        return None if self.max_memory is None else bytes_of(self.max_memory)

    @property
    def overlap(self) -> float | None:
        """`overlap_memory`; None where workers meet: a limit of memory leaves nothing to count
        steps in, or the user wants them to."""
        meet = self.max_memory is not None or self.schedule == "launches"
        return None if meet else self.overlap_memory

    @property
    def hot_sizes(self) -> dict[str, dict[str, int]]:
        """The sizes that each text of `hot` states."""
        found: dict[str, dict[str, int]] = {}
        for text in self.hot:
            pairs = _HOT.findall(text)
            if ",".join(f"{name}={value}" for name, value in pairs) != text.replace(" ", ""):
                raise OptionError(f"hot: write sizes as batch=1,seq=128, not {text!r}")
            found[text] = {name: int(value) for name, value in pairs}
        return found


_HOT = re.compile(r"([A-Za-z_]\w*) *= *(\d+)", re.ASCII)


def hot_text(sizes: Mapping[str, int]) -> str:
    """{"batch": 1, "seq": 128} as `Options.hot` has it."""
    if not isinstance(sizes, Mapping) or not all(_is(value, "int") for value in sizes.values()):
        raise OptionError(f"hot: a dict such as {{'batch': 1, 'seq': 128}}, not {sizes!r}")
    return ",".join(f"{name}={int(value)}" for name, value in sizes.items())


class OptionError(UserError, ValueError):
    """An option has a value that it cannot have."""


_UNITS = {
    "": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip


def bytes_of(size: int | str, name: str = "max_memory") -> int:
    """A number of bytes, or text such as "2GiB", as bytes; OptionError, which calls it by its
    name, for anything else."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size, re.ASCII)
        if match is None or match[2] not in _UNITS:
            units = ", ".join(unit for unit in _UNITS if unit)
            raise OptionError(f"{name}: write a number and one of {units}, not {size!r}")
        if "." in match[1] and not match[2].strip("B"):
            raise OptionError(f"{name}: bytes are a whole number, not {size!r}")
        count = int(Decimal(match[1]) * _UNITS[match[2]])
    else:
        count = int(size)
    if count <= 0:
        raise OptionError(f"{name} must be more than 0 bytes, not {size!r}")
    return count


_WORDS = {
    "str": "text", "str | None": "text or None", "bool": "bool, True or False",
    "float | None": "number or None",
    "int": "whole number", "int | None": "whole number or None",
    "int | str | None": "number of bytes, or text such as '2GiB', or None",
    "tuple[str, ...]": "tuple of names, such as ('simplify',)",
}  # fmt: skip


def _is(value: object, kind: str) -> bool:
    """Whether a value is of a field's declared type; paths are texts."""
    if value is None:
        return kind.endswith("None")
    if kind.startswith("tuple"):
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
            return False
        return all(isinstance(one, str) for one in value)
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    if kind.startswith("int | str"):
        return isinstance(value, (Integral, str))
    if kind.startswith("float"):
        return isinstance(value, Real)
    return isinstance(value, Integral if kind.startswith("int") else (str, os.PathLike))
