"""Kernels that are loops around elements: `loop`, `rows` and `reduce` fusions."""
