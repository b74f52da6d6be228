"""Fusions bound by memory: elements by themselves, rows, reductions, transposes, scans, sorts,
windows.

In: a fusion's region or a single operation. Out: launches with wide accesses, shuffles and shared
memory; or, by `refusal`, why there are none. Imported by `backends/nvidia`.
"""
