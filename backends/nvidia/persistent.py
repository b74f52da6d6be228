"""All steps of a plan as one persistent entry, the body of a cooperative launch.

    text = persist("persistent$", plan, bodies)

Each block walks the plan's steps. Of a launch it runs the blocks whose number is its own, and every
so many-th one from there, each in a body (`composition`) that has left before the next one begins.
Where the plan says so, all blocks meet at a barrier in global memory; branches read what decides
from global memory, so that every block takes the same way.

The barrier is one word, to which each meeting adds 2**31 in all: 1 for every block, and for the
first one what is left. So its upper bit changes once all have come, whatever it was, and nothing is
reset. The barriers before branches are where a host can stop the blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...optimizer.merges import ALIGNMENT
from ...optimizer.persistent import refused
from .composition import EntryText, Remap, inlined

_LEFT = 15  # the barrier of a block at which its threads have left a body
_BLOCK = "%block_x", "%block_y", "%block_z"
_LEAVES = re.compile(r"\b(?:ret|exit);")
_CONSTANT = re.compile(r"\b(ld\.global(?:\.\w+)*?)\.nc\b")
_REFUSED = (
    (re.compile(r"\bmbarrier\.|\bcp\.async\.bulk\b"), "the copy engine works for it"),
    (re.compile(r"\bsetmaxnreg\b"), "its warps hand registers over"),
    (re.compile(r"\bbarrier\.cluster\b|%cluster"), "it runs in clusters"),
    (re.compile(rf"\bbar(?:rier)?[.\w]*\s+(?:%|{_LEFT}\b)"), "it uses any barrier of its block"),
)

_HEAD = """.visible .entry {name}(
	.param .align {align} .b8 {name}_param_0[{size}]
)
.maxntid {threads}
.minnctapersm 1
{{
	.reg .pred 	%other, %stop, %on, %out;
	.reg .b32 	%tile, %rest, %block_x, %block_y, %block_z, %value, %first, %old, %now, %blocks;
	.reg .b64 	%arguments, %meeting, %host, %where;
	mov.b64 	%arguments, {name}_param_0;
	ld.param.b64 	%meeting, [{name}_param_0];
	ld.param.b64 	%host, [{name}_param_0+8];
	mov.u32 	%blocks, %nctaid.x;
	mov.u32 	%first, %ctaid.x;
"""
# Of the first thread of each block, between two barriers of the block.
_MEET = """	setp.ne.u32 	%stop, %first, %first;
	bar.sync 	0;
	mov.u32 	%rest, %tid.x;
	setp.ne.u32 	%other, %rest, 0;
	@%other bra 	$L_met_{number};
{poll}	mov.u32 	%now, 1;
	setp.eq.u32 	%on, %first, 0;
	sub.u32 	%rest, -2147483647, %blocks;
	selp.b32 	%now, %rest, %now, %on;
	atom.global.add.release.gpu.u32 	%old, [%meeting], %now;
$L_spin_{number}:
	ld.relaxed.gpu.global.u32 	%now, [%meeting+4];
	setp.ne.u32 	%stop, %now, 0;
	@%stop bra 	$L_met_{number};
	ld.acquire.gpu.global.u32 	%now, [%meeting];
	xor.b32 	%now, %now, %old;
	setp.ge.s32 	%on, %now, 0;
	@%on bra 	$L_spin_{number};
$L_met_{number}:
	bar.red.or.pred 	%out, 0, %stop;
	@%out bra 	$L_step_{end};
"""
_POLL = """	setp.ne.u32 	%on, %first, 0;
	@%on bra 	$L_asked_{number};
	ld.relaxed.sys.global.u32 	%now, [%host];
	setp.eq.u32 	%on, %now, 0;
	@%on bra 	$L_asked_{number};
	st.relaxed.gpu.global.u32 	[%meeting+4], %now;
	setp.eq.u32 	%stop, %first, %first;
	bra 	$L_met_{number};
$L_asked_{number}:
"""
_BODY = """	mov.u32 	%tile, %first;
$L_tile_{number}:
	setp.ge.u32 	%other, %tile, {count};
	@%other bra 	$L_done_{number};
{prologue}{body}$L_left_{number}:
	bar.sync 	{left};
	add.u32 	%tile, %tile, %blocks;
	bra 	$L_tile_{number};
$L_done_{number}:
"""


def refusal(body: EntryText) -> str:
    """Why an entry cannot run block by block in another one; "" where it can."""
    return next((why for pattern, why in _REFUSED if pattern.search(body.body)), "")


def persist(name: str, plan: Any, bodies: Mapping[str, EntryText]) -> str:
    """The text of the plan's persistent entry, which is called `name`; UserError, with its line,
    for a kernel that cannot be a part of it."""
    said, end = plan.persistent, len(plan.steps)
    text = _HEAD.format(name=name, align=ALIGNMENT, size=said.table_bytes, threads=said.threads)
    numbers = iter(range(1 << 30))
    barriers = set(said.barriers)
    for number, (step, own) in enumerate(zip(plan.steps, said.steps, strict=True)):
        kind = step.WhichOneof("action")
        text += f"$L_step_{number}:\n"
        if number in barriers:
            text += _meeting(next(numbers), end, kind != "run")
        if kind == "run":
            text += _run(plan, step.run, [*own.places], bodies, end, numbers)
        elif kind == "jump":
            text += f"\tbra \t$L_step_{step.jump.target};\n"
        else:
            text += _branch(getattr(step, kind), name, own.places[0])
    return f"{text}$L_step_{end}:\n\tret;\n}}\n"


def _meeting(number: int, end: int, asks: bool) -> str:
    poll = _POLL.format(number=number) if asks else ""
    return _MEET.format(number=number, end=end, poll=poll)


def _run(
    plan: Any, run: Any, places: Sequence[int], bodies: Mapping[str, EntryText], end: int,
    numbers: Any,
) -> str:  # fmt: skip
    """The launches of a kernel, one after the other."""
    kernel, text, threads = plan.kernels[run.kernel], "", plan.persistent.threads
    for place, launch in enumerate(kernel.launches):
        number, body = next(numbers), bodies.get(launch.entry)
        why = "its code was written elsewhere" if body is None else refusal(body)
        if body is None or why:
            raise refused(run, why, kernel)
        if place:
            text += _meeting(next(numbers), end, False)
        own, places = places[: len(launch.arguments)], places[len(launch.arguments) :]
        x, y, z = launch.grid
        to = Remap(_BLOCK, (x, y, z), "%arguments", own, threads)
        inside = _LEAVES.sub(f"bra \t$L_left_{number};", inlined(body, to, number))
        # What another step stores is no constant of the entry.
        inside = _CONSTANT.sub(r"\1", inside)
        text += _BODY.format(
            number=number, count=x * y * z, left=_LEFT, body=inside,
            prologue=_prologue(body, threads, (x, y, z), number),
        )  # fmt: skip
    return text


def _prologue(body: EntryText, threads: int, grid: tuple[int, int, int], number: int) -> str:
    """Sets the registers that a body reads; threads that it has not leave at once."""
    lines = []
    if body.threads != threads:
        lines += ["mov.u32 \t%rest, %tid.x", f"setp.ge.u32 \t%other, %rest, {body.threads}",
                  f"@%other bra \t$L_left_{number}"]  # fmt: skip
    x, y, z = grid
    if y * z == 1:
        lines += ["mov.u32 \t%block_x, %tile", "mov.u32 \t%block_y, 0", "mov.u32 \t%block_z, 0"]
    else:
        lines += [f"rem.u32 \t%block_x, %tile, {x}", f"div.u32 \t%rest, %tile, {x}",
                  f"rem.u32 \t%block_y, %rest, {y}", f"div.u32 \t%block_z, %rest, {y}"]  # fmt: skip
    return "".join(f"\t{line};\n" for line in lines)


def _branch(action: Any, name: str, place: int) -> str:
    """Goes on where what lies at an address says: a boolean, or an index, which means the last way
    where it is out of range."""
    text = f"\tld.param.b64 \t%where, [{name}_param_0+{place}];\n"
    if hasattr(action, "target"):
        text += "\tld.global.u8 \t%value, [%where];\n\tsetp.eq.u32 \t%on, %value, 0;\n"
        return f"{text}\t@%on bra \t$L_step_{action.target};\n"
    *targets, last = action.targets
    text += "\tld.global.u32 \t%value, [%where];\n"
    for value, target in enumerate(targets):
        text += f"\tsetp.eq.u32 \t%on, %value, {value};\n\t@%on bra \t$L_step_{target};\n"
    return f"{text}\tbra \t$L_step_{last};\n"
