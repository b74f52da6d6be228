"""Write docs/support.md: which operation runs on which element type where, tried out.

    python docs/support.py [OPERATION...]

Every cell is the outcome of a run: cases of the operation's room with their element type replaced,
on the interpreter and as compiled code, whose results are compared. With names only their rows
are tried again. It takes some minutes; a test tries some cells at every run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from girih.compiler import compile as compile_program
from girih.hlo.cases import Example, example, retyped
from girih.hlo.errors import UnsupportedError, VerifyError
from girih.hlo.interpret import interpret
from girih.hlo.ops import DEFINITIONS, find
from girih.hlo.room import OpDefinition
from girih.hlo.tiling import TILE_OPS
from girih.hlo.types import F32, I8, Element, ElementType, QuantizedType
from girih.runtime.plans import parse_plan

PAGE = Path(__file__).resolve().parent / "support.md"
QUANTIZED = QuantizedType(I8, F32, None, (0.0625,), (3,), -128, 127)
SECTION = "\n## "
"""Where the page's other parts begin, which this script leaves: they are of other scripts."""
ELEMENTS: dict[str, Element] = {**ElementType.table, "quantised": QUANTIZED}
OWN = TILE_OPS | {
    "foreign_call",
    "fusion",
    "kernel_call",
}  # what programs consist of after compilation
CASES = 2  # of an operation, that are tried with each element type

ILLEGAL, INTERPRETED, WRONG = "", "i", "**wrong**"
WORDS = {
    "k": "a kernel: blocked, vectorised, fused with its neighbours",
    "p": "a plain loop",
    "l": "a library's function",
    "n": "no kernel: it is folded away, or a matter of steps and buffers",
    INTERPRETED: "on the interpreter only",
}
_HEAD = """# Which operation runs on which element type

Written by `python docs/support.py` from runs: for each cell the operation's cases with
that element type ran on the interpreter and as compiled code for the cpu, and the results agreed.
An empty cell is a type that the operation's clauses do not allow. `convert`, `bitcast_convert` and
`uniform_quantize` stand for conversions from the type. Quantised values are 8-bit integers that
stand for f32; on the cpu they are integers and f32 before kernels are made (`hlo/quantized.py`).

"""


def page(cells: dict[tuple[str, str], str]) -> str:
    """The page's text from the cell of each operation and element type."""
    legend = "\n".join(f"- `{mark}`: {words}" for mark, words in WORDS.items())
    names = list(ELEMENTS)
    lines = [
        "| operation | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for room in rooms():
        marks = [cells.get((room.name, name), ILLEGAL) for name in names]
        lines.append("| " + " | ".join((room.name, *marks)) + " |")
    return _HEAD + legend + "\n\n" + "\n".join(lines) + "\n"


def read_page(text: str) -> dict[tuple[str, str], str]:
    """The cells of a page."""
    lines = text.partition(SECTION)[0].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| ")]
    head, *rows = [[part.strip() for part in row] for row in rows]
    return {
        (row[0], name): mark for row in rows for name, mark in zip(head[1:], row[1:], strict=True)
    }


def rooms() -> list[OpDefinition]:
    """The operations that are on the page: those with cases of their own on tensors."""
    return [room for room in DEFINITIONS if room.name not in OWN and typed_examples(room)]


def examples(room: OpDefinition, element: Element) -> list[Example]:
    """Cases with that element type: the room's own, or others that take it."""
    typed = typed_examples(room)
    own = [made for made, before in typed if before is element]
    # f32 examples say most, but where there are some of its kind.
    alike = [item for item in typed if item[1].kind == element.kind] or typed
    for source in (alike[:CASES], typed[:CASES]):
        others = [retyped(made, before, element) for made, before in source]
        own = own[:CASES] or [made for made in others if made is not None]
    return own


def typed_examples(room: OpDefinition) -> list[tuple[Example, Element]]:
    """Cases of a room and the element type of each that may be replaced, f32 first."""
    found = []
    for case in room.cases():
        made = example(room, case)
        values = (*made.op.operands, *made.op.results)
        elements = [v.element for v in values if hasattr(v.type, "element")]
        if elements:
            found.append((made, F32 if F32 in elements else elements[0]))
    found.sort(key=lambda item: item[1] is not F32)
    return found


def cell(name: str, element: str) -> str:
    """What happens to an operation with that element type."""
    after = ELEMENTS[element]
    marks = {_tried(made, after) for made in examples(find(name), after)}
    for mark in (WRONG, INTERPRETED, "l", "p", "k", "n"):
        if mark in marks:
            return mark
    return ILLEGAL


def _tried(made: Example, element: Element) -> str:
    """The mark of one run of both engines."""
    try:
        wanted = interpret(made.module, made.inputs)
    except VerifyError:
        return ILLEGAL  # by a clause of what the operation is made of
    except Exception as error:  # noqa: BLE001 - a bug is a mark, not the end of the page
        print(f"{made.name} of {element}: {error!r}", file=sys.stderr)
        return WRONG
    try:
        program = compile_program(made.module)
        results = program(*made.inputs)
    except UnsupportedError:
        return INTERPRETED
    except Exception as error:  # noqa: BLE001 - a bug is a mark, not the end of the page
        print(f"{made.name} of {element}: {error!r}", file=sys.stderr)
        return WRONG
    leaves = results if isinstance(results, (tuple, list)) else [results]
    for found, right in zip(leaves, wanted, strict=True):
        if not _agree(np.asarray(found), np.asarray(right), made.tolerance, element):
            return WRONG
    plan = parse_plan(program.parts.variants["cpu"], "")
    marks = {_mark(kernel) for kernel in plan.kernels}
    return max(marks, key="kpl".index) if marks else "n"


def _mark(kernel: Any) -> str:
    """How a kernel of a plan computes."""
    if kernel.engine == "library":
        return "l"
    return "p" if kernel.engine == "plain-loop" or kernel.kind == "opaque" else "k"


def _agree(found: Any, right: Any, tolerance: float, element: Element) -> bool:
    if found.dtype != right.dtype or found.shape != right.shape:
        return False
    name = found.dtype.name
    if isinstance(element, QuantizedType) and found.dtype == element.dtype:
        return bool(np.all(np.abs(found.astype(int) - right.astype(int)) <= 1))
    if found.dtype.kind in "iub" or name.startswith(("int", "uint")):
        return np.array_equal(found, right)
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    bound = max(tolerance, 4 * _precision(found.dtype))
    with np.errstate(all="ignore"):
        found, right = found.astype(wide), right.astype(wide)
        finite = np.abs(right[np.isfinite(right)])
        scale = float(finite.max()) if finite.size else 0.0
        return bool(np.allclose(found, right, bound, bound * min(scale, 1e300), equal_nan=True))


def _precision(dtype: Any) -> float:
    import ml_dtypes

    real = np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype
    return float(ml_dtypes.finfo(real).eps)


def main() -> None:
    chosen = sys.argv[1:]
    text = PAGE.read_text() if PAGE.exists() else ""
    cells = read_page(text) if text and chosen else {}
    others = "".join(text.partition(SECTION)[1:])
    for name in chosen or [room.name for room in rooms()]:
        row = {element: cell(name, element) for element in ELEMENTS}
        cells.update({(name, element): mark for element, mark in row.items()})
        print(name, " ".join(f"{k}:{v}" for k, v in row.items() if v), file=sys.stderr)
        PAGE.write_text(page(cells) + others)


if __name__ == "__main__":
    main()
