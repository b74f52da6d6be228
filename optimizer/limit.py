"""A limit for the memory of a program: a plan within it, or an error that says what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..hlo.errors import MemoryLimitError
from ..hlo.graph import Module, Op
from .fit import Fitted, Judge, fit
from .measure import Measure, size_of
from .schedule import RunStep, touched

SMALLER = "make the batch smaller"


class MemoryNeed(NamedTuple):
    """Bytes of a program by what they are for; `beside`: scratch of workers, and what alignment
    costs, as far as that is known."""

    arguments: int
    outputs: int
    constants: int
    arena: int
    beside: int

    @property
    def total(self) -> int:
        return sum(self)

    @property
    def text(self) -> str:
        names = ("arguments", "results", "constants", "arena", "scratch")
        return ", ".join(
            f"{name} {megabytes(size)}" for name, size in zip(names, self, strict=True) if size
        )


def need(measured: Measure, beside: int = 0) -> MemoryNeed:
    """What one call at a time takes; a result in a donated argument's memory is not counted."""
    steps = measured.schedule
    weights = {b: b.bytes for step in steps.steps for b in touched(step) if b.place == "weight"}
    weights.update({b: b.bytes for b in steps.outputs if b.place == "weight"})
    return MemoryNeed(
        sum(buffer.bytes for buffer in steps.inputs),
        sum(b.bytes for b in steps.outputs if b.place == "output" and b.replaces is None),
        sum(weights.values()),
        measured.arena_bytes,
        beside,
    )


def within(module: Module, limit: int, judge: Judge, beside: int = 0) -> Fitted:
    """The module as it fits into `limit` bytes, of which `beside` are taken by what no schedule
    knows; MemoryLimitError if it cannot, or was not made to."""
    measured = judge(module)
    have = need(measured, beside)
    if have.total <= limit:
        return Fitted(module, measured, (), 0.0)
    fixed = have.total - have.arena
    if fixed > limit:
        raise MemoryLimitError(
            f"max_memory: {_bytes(limit)} are too few: without any temporary value the program "
            f"needs {_bytes(fixed)} ({have._replace(arena=0).text}); {_donate(module)}",
            limit, fixed, impossible=True,
        )  # fmt: skip
    op, touching = _largest_step(measured)
    bound = fixed + touching
    if bound > limit:
        raise MemoryLimitError(
            f"{op.place}max_memory: {_bytes(limit)} are too few: while {_kernel(op)} runs, the "
            f"program needs {_bytes(bound)}: {megabytes(fixed)} that are always there, and "
            f"{_tensors(op)}",
            limit, bound, impossible=True,
        )  # fmt: skip
    fitted = fit(module, measured.total_bytes - (have.total - limit), judge)
    best = need(fitted.measure, beside)
    if best.total > limit:
        raise MemoryLimitError(
            f"max_memory: no plan within {_bytes(limit)} was found; the best needs "
            f"{_bytes(best.total)} ({best.text}) and {1e3 * fitted.seconds:.1f} ms more than the "
            f"fastest; no plan can be below {_bytes(bound)}, {_percent(best.total, bound)} less. "
            + "; or ".join(_remedies(module, fitted, have, best, limit)),
            limit, best.total, impossible=False,
        )  # fmt: skip
    return fitted


def not_found(limit: int, best: int, fitting: Sequence[str] = ()) -> MemoryLimitError:
    """The error where every plan that was made is above the limit; the best needs `best` bytes.
    fitting: ranges of sizes, as `--size` has them, each of which is within the limit alone."""
    remedy = "make the batch smaller"
    if fitting:
        remedy = f"narrow the sizes: {' or '.join(f'--size {one}' for one in fitting)} fits"
    return MemoryLimitError(
        f"max_memory: no plan within {_bytes(limit)} was found; the best needs {_bytes(best)}; "
        f"allow that, or {remedy}",
        limit, best, impossible=False,
    )  # fmt: skip


def note(fitted: Fitted, before: Measure) -> str:
    """What was done for a limit, in a sentence."""
    spared = before.arena_bytes - fitted.measure.arena_bytes
    return (
        f"max_memory: {len(fitted.moves)} values are computed again, which spares "
        f"{megabytes(spared)} and costs {1e3 * fitted.seconds:.1f} ms (predicted); the first: "
        + "; ".join(fitted.moves[:3])
    )


def _largest_step(measured: Measure) -> tuple[Op, int]:
    """The kernel that needs most by itself: no plan of these kernels takes less of the arena, even
    if all memory of results that are idle is reused."""
    own = [b for b in measured.schedule.outputs if b.place == "output" and b.replaces is None]
    found: list[tuple[int, int, Op]] = []
    for number, step in enumerate(measured.schedule.steps):
        if isinstance(step, RunStep):
            there = dict.fromkeys([*step.operands, *step.results])
            idle = sum(buffer.bytes for buffer in own if buffer not in there)
            arena = sum(size_of(b.bytes) for b in there if b.place == "arena")
            found.append((max(arena - idle, 0), -number, step.op))
    bytes, _, op = max(found, key=lambda one: one[:2])
    return op, bytes


def _tensors(op: Op) -> str:
    """The operands and results of a kernel, the largest first."""
    values = sorted(
        [*(("operand", v) for v in op.operands), *(("result", v) for v in op.results)],
        key=lambda one: -one[1].tensor.bytes,
    )
    shown = ", ".join(f"{name} {v.type} {megabytes(v.tensor.bytes)}" for name, v in values[:6])
    return shown + (f", {len(values) - 6} more" if len(values) > 6 else "")


def _kernel(op: Op) -> str:
    kind = op.attributes.get("kind", op.attributes.get("kernel", ""))
    return f"{op.name} '{kind}'" if kind else op.name


def _remedies(
    module: Module, fitted: Fitted, have: MemoryNeed, best: MemoryNeed, limit: int
) -> Iterator[str]:
    """The cheapest ways out, with what they cost."""
    yield f"Allow {_bytes(best.total)}, for {1e3 * fitted.seconds:.1f} ms a call"
    if (donate := _donate(module)) != SMALLER:
        yield donate
    share = (limit - best.constants - best.beside) / max(best.total - best.constants, 1)
    yield f"compile for a batch of at most {max(share, 0):.0%} of this one, at no cost per element"


def _donate(module: Module) -> str:
    """The largest argument that could be given up for a result."""
    signature = module.signature
    if signature is None:
        return SMALLER
    body = module.body
    taken = {leaf.aliases for leaf in signature.arguments if leaf.donated}
    free = [v.type for n, v in enumerate(body.results) if n not in taken]
    fitting = [
        (value.tensor.bytes, leaf.path)
        for leaf, value in zip(signature.arguments, body.arguments, strict=True)
        if not leaf.donated and value.type in free and value.tensor.bytes
    ]
    if not fitting:
        return SMALLER
    size, path = max(fitting)
    return f"donate {path}, which frees {megabytes(size)} at no cost"


def _bytes(size: int) -> str:
    return f"{size:,} bytes"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _percent(size: int, bound: int) -> str:
    return f"{100 * (1 - bound / size):.1f} %"
