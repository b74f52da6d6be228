"""Kernels as plain loops over elements, which every target has: emitted for as many lanes as the
target says, one on a GPU."""
