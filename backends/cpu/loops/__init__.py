"""Kernels that are loops around elements: `loop`, `rows` and `reduce` fusions, blocked transposes.

In: the region of a fusion and the widths of a processor. Out: its LLVM IR, cut as `blocking.py`
constructs and prices it. Imported by `backends/cpu`.
"""
