"""Fusions bound by memory: elements by themselves, rows, reductions and transposes."""
