"""Kernels as plain loops over elements, which every target has: emitted for as many lanes as the
target says, one on a GPU.

In: regions and single operations. Out: the order of their passes, folds of elements, and IR that a
target's own loops surround. Imported by `backends/cpu`, `backends/nvidia`.
"""
