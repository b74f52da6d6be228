"""One launch: lays out variables, makes batches of blocks and runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from ....hlo.errors import UserError
from ..target import ARCHITECTURES
from .blocks import Blocks, followed
from .communication import MOST_THREADS, Communication
from .counters import Counters
from .engine import Batch, Launch, special
from .flow import build
from .instructions import table
from .memory import GlobalMemory, Segment
from .parser import parse_text
from .races import Races
from .report import Report
from .schedule import run_cooperative, run_independent
from .semantics import communicates
from .syntax import Function, Module, Variable
from .table import find
from .traffic import Traffic
from .translate import Program
from .windows import Window, Windows

BATCH_THREADS = 1 << 15
BATCH_SHARED = 1 << 25  # bytes of shared memory that the blocks of one batch may have
LIMIT = 20_000_000  # vector instructions
Extent = tuple[int, int, int]


@lru_cache(maxsize=256)
def parse(text: str) -> Module:
    """The module that a PTX text spells; the same text gives the same object."""
    return parse_text(text)


def _place(variables: Sequence[Variable], start: int = 0) -> tuple[dict[str, int], int]:
    places, at = {}, start
    for variable in variables:
        at = -(-at // variable.align) * variable.align
        places[variable.name] = at
        at += variable.nbytes
    return places, at


def program_of(module: Module, entry: str) -> tuple[Program, int, int]:
    """The translated entry, its static shared bytes and its local bytes per thread."""
    known = module.programs.get(entry)
    if known is None:
        function = module.functions.get(entry)
        if function is None or not function.is_entry:
            names = ", ".join(module.entries) or "none"
            raise UserError(f"the PTX module has no entry '{entry}'; its entries: {names}")
        known = module.programs[entry] = _translate(module, function)
    return known  # type: ignore[return-value]


def _translate(module: Module, function: Function) -> tuple[Program, int, int]:
    flow = build(module, function, table(), find)
    variables = [*module.variables.values(), *flow.variables.values()]
    fixed = [v for v in variables if v.space == "shared" and not v.external]
    dynamic = [v for v in variables if v.space == "shared" and v.external]
    places, shared_bytes = _place(fixed)
    for variable in dynamic:
        shared_bytes = -(-shared_bytes // variable.align) * variable.align
    places.update((v.name, shared_bytes) for v in dynamic)
    stack = [v for v in variables if v.space in ("local", "param")]
    local, local_bytes = _place(stack)
    places.update(local)
    parameters, _ = _place(function.parameters)
    places.update(parameters)
    globals_ = {v.name for v in variables if v.space in ("global", "const") and not v.external}
    program = Program(flow, places, globals_, special)
    program.communicates = communicates(program)
    program.call_parameters = {v.name for v in stack if v.space == "param"}
    return program, shared_bytes, local_bytes


def _symbols(module: Module, memory: GlobalMemory) -> dict[str, np.uint64]:
    """Addresses of the module's global variables in `memory`, placed at their first use."""
    known = memory.modules.get(module)
    if known is None:
        known = memory.modules[module] = {}
        variables = [*module.variables.values()]
        for function in module.functions.values():
            variables += function.variables.values()
        kept = ("global", "const")
        variables = [v for v in variables if v.space in kept and not v.external]
        for variable in variables:
            known[variable.name] = memory.allocate(variable.nbytes, variable.align)
        for function in module.functions.values():  # as `flow` names what stands in a function
            for variable in function.variables.values():
                if variable.name in known:
                    known[f"{function.name}:{variable.name}"] = known[variable.name]
        for variable in variables:
            data = np.zeros(variable.nbytes, np.uint8)
            if variable.initial:
                data[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
            for offset, size, symbol, addend in variable.words:
                if symbol not in known:
                    raise UserError(f"'{variable.name}' holds the address of unknown '{symbol}'")
                word = (known[symbol] + addend).to_bytes(size, "little")
                data[offset : offset + size] = np.frombuffer(word, np.uint8)
            memory.write(known[variable.name], data)
    return {name: np.uint64(address) for name, address in known.items()}


def _pack(function: Function, arguments: Sequence[bytes]) -> Segment:
    if len(arguments) != len(function.parameters):
        raise UserError(
            f"entry '{function.name}' has {len(function.parameters)} parameters, "
            f"{len(arguments)} arguments were given"
        )
    places, nbytes = _place(function.parameters)
    segment = Segment(0, nbytes, 0)
    for parameter, argument in zip(function.parameters, arguments, strict=True):
        if len(argument) != parameter.nbytes:
            raise UserError(
                f"parameter '{parameter.name}' of '{function.name}' has {parameter.nbytes} bytes, "
                f"the argument has {len(argument)}"
            )
        start = places[parameter.name]
        segment.data[start : start + parameter.nbytes] = np.frombuffer(argument, np.uint8)
    return segment


def _check_sizes(function: Function, grid: Extent, block: Extent, cluster: Extent) -> None:
    threads = block[0] * block[1] * block[2]
    if min(*grid, *block, *cluster) < 1 or threads > 1024:
        raise UserError(f"'{function.name}' cannot start with grid {grid}, block {block}")
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise UserError(f"the grid {grid} is no multiple of the cluster {cluster}")
    required = function.directives.get("reqntid")
    most = function.directives.get("maxntid")
    if required and (required + (1, 1))[:3] != block:
        raise UserError(f"'{function.name}' requires blocks of {required} threads, not {block}")
    if most and threads > int(np.prod(most)):
        raise UserError(f"'{function.name}' takes at most {most} threads, not {block}")
    wanted = function.directives.get("reqnctapercluster")
    if wanted and (wanted + (1, 1))[:3] != cluster:
        raise UserError(f"'{function.name}' requires clusters of {wanted} blocks, not {cluster}")


def _check_shared(module: Module, nbytes: int) -> None:
    architecture = ARCHITECTURES.get(module.target)
    if architecture is not None and nbytes > architecture.shared_bytes:
        raise UserError(
            f"a block of {architecture.name} has at most {architecture.shared_bytes} bytes of "
            f"shared memory, the launch asks for {nbytes}"
        )


def resident_blocks(target: str, threads: int, shared_bytes: int) -> int:
    """How many blocks an architecture holds at a time, registers aside; one that is not known holds
    any number."""
    architecture = ARCHITECTURES.get(target)
    if architecture is None:
        return 1 << 31
    most = min(architecture.blocks, architecture.threads // (-(-threads // 32) * 32))
    if shared_bytes:
        most = min(most, architecture.shared_bytes // shared_bytes)
    return most * architecture.multiprocessors


def _follow(state: Launch, cooperative: bool, resident: int | None) -> bool:
    """Do all blocks run together, and what they do to each other is followed?"""
    gx, gy, gz = state.grid
    wide = state.cluster != (1, 1, 1)
    wide |= any(n.instruction.parts[:2] == ("barrier", "cluster") for n in state.program.nodes)
    if not cooperative:
        few = gx * gy * gz * state.threads <= MOST_THREADS
        return state.checks and state.program.communicates and few and not wide
    if wide:
        raise UserError(f"'{state.entry}': a cooperative launch of clusters is not simulated")
    most = resident
    if most is None:
        most = resident_blocks(state.module.target, state.threads, state.shared_bytes)
    if gx * gy * gz > most:
        raise UserError(
            f"'{state.entry}' cannot start with {gx * gy * gz} blocks as a cooperative launch: the "
            f"device holds {most} of them at a time; start fewer"
        )
    return True


def _batches(launch: Launch, program: Program, together: bool) -> Iterator[np.ndarray]:
    """Linear numbers of the blocks that run together, in order."""
    gx, gy, gz = launch.grid
    total = gx * gy * gz
    if together:
        yield np.arange(total)
        return
    cx, cy, cz = launch.cluster
    if program.lockstep and (cx, cy, cz) == (1, 1, 1):
        size = max(1, BATCH_THREADS // launch.threads)
        if launch.shared_bytes:
            size = max(1, min(size, BATCH_SHARED // launch.shared_bytes))
        for start in range(0, total, size):
            yield np.arange(start, min(start + size, total))
        return
    for z in range(0, gz, cz):
        for y in range(0, gy, cy):
            for x in range(0, gx, cx):
                yield np.asarray(
                    [
                        x + i + gx * (y + j + gy * (z + k))
                        for k in range(cz)
                        for j in range(cy)
                        for i in range(cx)
                    ]
                )


def launch(
    module: Module,
    entry: str,
    grid: Extent,
    block: Extent,
    arguments: Sequence[bytes],
    memory: GlobalMemory,
    *,
    cluster: Extent = (1, 1, 1),
    shared_bytes: int = 0,
    mode: str = "lazy",
    seed: int = 0,
    checks: bool = True,
    counters: bool = False,
    limit: int = LIMIT,
    windows: Sequence[Window] | None = None,
    cooperative: bool = False,
    resident: int | None = None,
) -> Report:
    """Runs `grid` blocks of `block` threads of `entry` and reports what was executed.

    `arguments` are the packed bytes of each parameter; `shared_bytes` of dynamic shared memory.
    `mode` says when asynchronous effects land ("eager": at once, "lazy": as late as is legal);
    `seed` other than 0 draws the order of warps and of atomics. `checks` looks for races in shared
    memory and between blocks that communicate, `counters` counts bank conflicts and sectors.
    `windows`: the arrays that the launch may touch, where races between other blocks are looked for
    as well. `cooperative`: all blocks have to be resident at once; `resident`: how many the device
    holds, by default what the architecture allows by threads and shared memory. Blocks of programs
    that communicate run together, as many as are resident (`communication`; of other than
    cooperative launches those of at most `MOST_THREADS` threads). Faults raise `SimulationError`.
    """
    if mode not in ("lazy", "eager"):
        raise UserError(f"mode is 'lazy' or 'eager', not {mode!r}")
    program, static_shared, local_bytes = program_of(module, entry)
    function = module.functions[entry]
    _check_sizes(function, grid, block, cluster)
    _check_shared(module, static_shared + shared_bytes)
    report = Report(entry)
    symbols = _symbols(module, memory)
    seen: GlobalMemory | Windows = memory
    blocks = None
    if windows is not None:
        seen = Windows(memory, windows, list(memory.modules[module].values()))
        granule = followed(program) if checks else 0
        blocks = Blocks(granule, seen) if granule else None
    state = Launch(
        module,
        program,
        entry,
        grid,
        block,
        cluster,
        _pack(function, arguments),
        seen,  # type: ignore[arg-type]  # has what a launch asks of a memory
        symbols,
        static_shared + shared_bytes,
        local_bytes,
        report,
        mode,
        seed,
        checks,
        limit,
        np.random.default_rng(seed),
        Counters(report, module.files) if counters else None,
        blocks,
    )
    follows = _follow(state, cooperative, resident)
    most = resident or resident_blocks(module.target, state.threads, state.shared_bytes)
    with np.errstate(all="ignore"):
        for numbers in _batches(state, program, follows):
            if program.cooperative or follows:
                _run_together(Batch(state, numbers, True), most if follows else 0)
            else:
                run_independent(Batch(state, numbers, False))
    return report


def _run_together(batch: Batch, resident: int) -> None:
    """Runs blocks whose threads work together; resident: how many of them, which may look at each
    other, are started at once; 0: they do not."""
    state, program = batch.launch, batch.program
    if resident:
        if state.checks:
            batch.blocks = batch.communication = Communication(batch)
        batch.hold_back(resident)
    if state.checks and state.shared_bytes and not program.operations:
        batch.races = Races(batch)
    if program.operations:
        Traffic.of(batch)
    run_cooperative(batch)
