"""LLVM IR as text, and elements of values in it: what the targets that LLVM compiles for share.

In: operations, and indices as sums of loop variables (`index.py`). Out: lines of IR that compute an
element or a vector of neighbours; how it is cut is not decided here. Imported by `backends/cpu`,
`backends/nvidia`, `backends/plain`.
"""

from __future__ import annotations

from .builder import Branch, Function, Loop, Module
from .values import (
    Operand,
    Value,
    bits_of,
    constant,
    element_of,
    is_float,
    lanes_of,
    literal,
    mangled,
    poison,
    vector,
    vector_constant,
)

__all__ = [
    "Branch",
    "Function",
    "Loop",
    "Module",
    "Operand",
    "Value",
    "bits_of",
    "constant",
    "element_of",
    "is_float",
    "lanes_of",
    "literal",
    "mangled",
    "poison",
    "vector",
    "vector_constant",
]
