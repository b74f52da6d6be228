"""Cuts: into which tiles, blocks and vectors the kernels of CPUs are divided.

In: shapes, which say what a kernel does (`ProductShape`, `ConvolutionShape`, `LoopShape`), and a
machine with its prices (`../cost/`). Out: how the kernel is cut. Backends say the shapes and emit
the cuts; they know no price. `choose.py` is what they ask. Imported by `backends`, `optimizer`.
"""
