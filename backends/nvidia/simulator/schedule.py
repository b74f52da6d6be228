"""Runs the threads of a batch: which block of the program next, for which threads.

Independent kernels (no barriers, no warp-synchronous instructions): all threads of many CTAs are
one vector, and the threads of the lowest rank run first. Cooperative kernels: warps at the same
place run as one vector; a warp whose threads have diverged runs those of its lowest rank; with a
seed the place is drawn among all that can run.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from ....hlo.errors import UserError
from .engine import EXIT, Batch, Park
from .flow import Block

FAIRNESS = 256  # every so many turns somebody else than the lowest rank gets one


def _count(S: Batch, block: Block, size: int) -> None:
    report = S.report
    count = S.program.counts[block.rank]
    report.vector_instructions += count
    report.instructions += count * size
    if S.counting:
        S.counting.executed(block, size)
    if report.vector_instructions > S.launch.limit:
        line = block.nodes[0].instruction.line if block.nodes else 0
        if not line and block.instruction is not None:
            line = block.instruction.line
        raise UserError(
            f"kernel '{S.launch.entry}' does not end: {S.launch.limit} vector instructions were "
            f"executed, now at PTX line {line}; give a higher limit if it needs more"
        )


def _split(S: Batch, block: Block, A: Any, outcome: Any) -> list[tuple[int, Any]]:
    """Where the threads `A` go from the end of `block`: (rank, threads), rank EXIT for the end."""
    if block.kind == "jump":
        return [(block.successors[0], A)]
    if block.kind == "exit":
        return [(EXIT, A)]
    if block.kind == "branch":
        taken, other = block.successors
        if not outcome.ndim:
            return [(taken if outcome else other, A)]
        count = int(np.count_nonzero(outcome))
        if count == outcome.size:
            return [(taken, A)]
        if count == 0:
            return [(other, A)]
        threads = S.threads(A)
        return [(taken, threads[outcome]), (other, threads[~outcome])]
    if not outcome.ndim:
        if not 0 <= int(outcome) < len(block.successors):
            _bad_index(S, block)
        return [(block.successors[int(outcome)], A)]
    threads = S.threads(A)
    parts = []
    for value in np.unique(outcome):
        if not 0 <= value < len(block.successors):
            _bad_index(S, block)
        parts.append((block.successors[int(value)], threads[outcome == value]))
    return parts


def _bad_index(S: Batch, block: Block) -> None:
    line = block.instruction.line if block.instruction else 0
    raise UserError(f"PTX line {line}: brx.idx with an index outside of its table")


# ---------------------------------------------------------------- independent threads


def run_independent(S: Batch) -> None:
    """Runs the batch to its end; its threads know nothing of each other."""
    program = S.program
    blocks, latches = program.flow.blocks, program.flow.latches
    waiting: dict[int, list[np.ndarray]] = {}
    heap: list[int] = []
    rank, A, turn = 0, None, 0
    while True:
        block = blocks[rank]
        function = program.function(rank, A is not None)
        _count(S, block, S.size(A))
        parts = _split(S, block, A, function(S, A))
        if len(parts) == 1 and parts[0][0] != EXIT:
            rank, A = parts[0]
            if not heap or rank < heap[0]:
                rank = latches.get(rank, rank)
                turn += 1
                if not heap or turn % FAIRNESS:
                    continue
        left = False
        for following, threads in parts:
            if following == EXIT:
                left = True
                S.live_count -= S.size(threads)
            elif following in waiting:
                waiting[following].append(S.threads(threads))
            else:
                waiting[following] = [S.threads(threads)]
                heappush(heap, following)
        if not heap:
            break
        if turn and not turn % FAIRNESS:
            turn += 1
            rank = heap.pop(int(S.random.integers(len(heap))))
            heapify(heap)
        else:
            rank = heappop(heap)
        groups = waiting.pop(rank)
        A = groups[0] if len(groups) == 1 else np.sort(np.concatenate(groups), kind="stable")
        rank = latches.get(rank, rank)
        if left and not heap and A.size <= S.T // 2:
            S.compact(A)
        if A.size == S.T:
            A = None


# ---------------------------------------------------------------- warps and barriers


def run_cooperative(S: Batch) -> None:
    """Runs the batch to its end; raises on deadlock."""
    program = S.program
    blocks, latches = program.flow.blocks, program.flow.latches
    communication = S.communication
    parked: list[Park] = []
    turn = 0
    rank, A = 0, (None if S.live_count == S.T else np.nonzero(S.live)[0])
    whole = True  # A holds all live threads of its warps
    while True:
        turn += 1
        steps = 0
        while True:
            block = blocks[rank]
            function = program.function(rank, A is not None or block.blocking)
            threads = S.thread_numbers if A is None and block.blocking else A
            _count(S, block, S.size(A))
            if block.blocking:
                S.block_of[S.threads(A)] = rank
            parts = _split(S, block, A, function(S, threads))
            if S.parks:
                break
            if len(parts) > 1 or not whole or parts[0][0] == EXIT:
                break
            rank = parts[0][0]
            rank = latches.get(rank, rank)
            steps += 1
            spins = communication is not None and communication.suspect
            if spins or steps == FAIRNESS or (S.seed and not S.random.integers(16)):
                parts = [(rank, A)]
                break
        for following, threads in parts:
            if following == EXIT:
                _leave(S, S.threads(threads))
            else:
                S.block_of[S.threads(threads)] = following
        if S.parks:
            for park in S.parks:
                if park.again:
                    S.block_of[park.threads] = rank
            parked += S.parks
            S.parks = []
        if S.live_count == 0 and not parked:
            break
        chosen = _choose(S, parked, turn)
        if chosen is None:
            break
        rank, A, whole = chosen
        rank = latches.get(rank, rank)
    for finish in S.at_exit:
        finish(S)


def _leave(S: Batch, threads: np.ndarray) -> None:
    S.block_of[threads] = EXIT
    S.live[threads] = False
    S.live_count -= threads.size
    if S.communication is not None:
        S.communication.progress += 1  # a block that leaves may make room
    if S.queue:
        S.admit(threads)


def _choose(S: Batch, parked: list[Park], turn: int) -> tuple[int, Any, bool] | None:
    """The next place and its threads; None when all have left."""
    communication = S.communication
    while True:
        _wake(parked)
        ranks = S.block_of.reshape(-1, 32)
        lowest = ranks.min(1)
        if parked:
            for park in parked:
                lowest[park.threads >> 5] = EXIT
        if communication is not None and communication.suspect:
            waiting = _spinning(S, ranks, lowest)
            communication.suspect = bool(waiting.any())
            if communication.suspect and (lowest[~waiting] == EXIT).all():
                communication.progress += 1
                if not S.pending:
                    threads = np.nonzero((ranks == lowest[:, None]) & waiting[:, None])
                    _deadlock(S, parked, threads[0] * 32 + threads[1])
                S.pending.pop(int(S.random.integers(len(S.pending))) if S.seed else 0)()
                continue
            lowest[waiting] = EXIT
        candidates = np.unique(_drift(S, lowest) if S.seed else lowest)
        if candidates[-1] == EXIT:
            candidates = candidates[:-1]
        if candidates.size:
            break
        if S.pending:
            S.pending.pop(int(S.random.integers(len(S.pending))) if S.seed else 0)()
            continue
        if not parked:
            return None
        _deadlock(S, parked, ranks.reshape(-1)[:0])
    if candidates.size > 1 and (S.seed or not turn % 16):
        rank = int(candidates[S.random.integers(candidates.size)])
    else:
        rank = int(candidates[0])
    warps = lowest == rank
    members = (ranks == rank) & warps[:, None]
    live = ranks[warps] < EXIT
    count = int(np.count_nonzero(members))
    whole = count == int(np.count_nonzero(live))
    if count == S.T:
        return rank, None, True
    return rank, np.nonzero(members.reshape(-1))[0], whole


def _drift(S: Batch, lowest: np.ndarray) -> np.ndarray:
    """`lowest` in place without the warps that have to wait for the favoured ones.

    With a seed, half of the warps, or those of one block, run as far as they can while the others
    stand still; so what relies on a barrier that is missing shows.
    """
    favoured = S.data.get("favoured")
    if favoured is None or not S.random.integers(32):
        draw = int(S.random.integers(3))
        favoured = np.ones(lowest.size, bool)
        if draw == 1:
            favoured = S.random.random(lowest.size) < 0.5
        elif draw == 2 and S.cta_count > 1:
            block = np.arange(lowest.size) // (S.threads_per_cta // 32)
            favoured = block == S.random.integers(S.cta_count)
        S.data["favoured"] = favoured
    if (lowest[favoured] < EXIT).any():
        lowest[~favoured] = EXIT
    return lowest


def _wake(parked: list[Park]) -> None:
    if not parked:
        return
    kept = []
    for park in parked:
        if park.each:
            park.threads = park.threads[~park.ready(park.threads)]
            if park.threads.size:
                kept.append(park)
        elif not park.ready():
            kept.append(park)
    parked[:] = kept


def _spinning(S: Batch, ranks: np.ndarray, lowest: np.ndarray) -> np.ndarray:
    """Warps that would go on with nothing but loads of what does not change."""
    turn = (ranks == lowest[:, None]) & (lowest < EXIT)[:, None]
    wait = S.communication.waiting(S.thread_numbers).reshape(-1, 32)
    return turn.any(1) & (wait | ~turn).all(1)


def _deadlock(S: Batch, parked: list[Park], spinning: np.ndarray) -> None:
    """No warp can go on; `spinning` threads wait for stores of other blocks."""
    lines = []
    for park in parked:
        instruction = park.node.instruction
        text = park.text if isinstance(park.text, str) else park.text()
        text = f"{text}, at PTX line {instruction.line}: {instruction.text}"
        lines += [(int(warp), text) for warp in np.unique(park.threads >> 5)]
    spins = {int(thread) >> 5: S.communication.describe_wait(int(thread)) for thread in spinning}
    lines += spins.items()
    lines.sort()
    shown = [
        f"    block {S.index_of(int(S.cta_numbers[warp * 32 // S.threads_per_cta]))} "
        f"warp {warp % (S.threads_per_cta // 32)} waits for {text}"
        for warp, text in lines[:64]
    ]
    if len(lines) > 64:
        shown.append(f"    and {len(lines) - 64} more warps")
    if S.queue:
        started = S.cta_count - len(S.queue)
        shown.append(
            f"    {len(S.queue)} blocks of the grid have not started: {started} have, and "
            "none that is resident can leave"
        )
    number = parked[0].node.number if parked else S.communication.waits[int(spinning[0])][1]
    S.fault("deadlock", "no warp can go on\n" + "\n".join(shown), number)
