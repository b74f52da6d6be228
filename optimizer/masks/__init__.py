"""Sizes that data decide as masks: the rules of the pass `mask-bounded`, by families.

In: an operation on values whose true sizes are scalars of the program. Out: the same on the largest
sizes, neutral or moved where nothing counts. Imported by `optimizer/passes`.
"""
