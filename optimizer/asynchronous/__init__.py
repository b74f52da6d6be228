"""Tile functions for matrix units that multiply while their windows come.

In: a tile function and what a target can do (`backends/capabilities.py`). Out: which group of
threads copies what into which ring, and which multiplies it, or why none does; nothing is emitted.
`fits.py` is the question that the pass `connect` and backends ask, `configuration.py` the answer.
Imported by `backends`, `optimizer/passes`.
"""
