"""What a user may choose when compiling; each option has one meaning and a safe default."""

from __future__ import annotations

from dataclasses import dataclass

LICENCES = ("bitwise", "ignores-zero-sign", "reassociates", "assumes-finite")


@dataclass(frozen=True)
class Options:
    """Options of `girih.compile`.

    numerics: the widest licence that rewrites may use (specs/numerics.md): "bitwise" keeps every
        bit of the source's arithmetic order, "ignores-zero-sign", "reassociates" (default: rounding
        may differ in the last places), "assumes-finite".
    threads: workers at run time; None asks the machine when the bundle is loaded.
    cpu_level: cap on CPU features ("avx512", "avx2", "baseline", "neon"); None takes the host's.
    fold_bytes: constants up to this size are computed when compiling.
    pack_weights: store contraction weights in the order that kernels read them.
    disable: names of passes to leave out, for finding faults.
    strict: turn notes about copies and slow paths into errors.
    """

    numerics: str = "reassociates"
    threads: int | None = None
    cpu_level: str | None = None
    fold_bytes: int = 1 << 16
    pack_weights: bool = True
    disable: tuple[str, ...] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        if self.numerics not in LICENCES:
            raise ValueError(f"numerics must be one of {', '.join(LICENCES)}: {self.numerics!r}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1: {self.threads}")
