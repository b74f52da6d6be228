"""Tile functions for matrix units that multiply while their windows come.

One group of threads copies windows, others multiply; what goes where is decided here, of a tile
function and what a target can do (`backends/capabilities.py`), and nothing is emitted. `fits.py` is
the question that the pass `connect` and backends ask; `configuration.py` the answer.
"""
