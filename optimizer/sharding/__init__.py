"""Shardings: propagation, choice, partition, resharding.

In: a module whose tensors may say how they lie on a mesh. Out: the program of one device with its
collectives, and why it sends what it sends. Imported by `cli`, `girih`.
"""
