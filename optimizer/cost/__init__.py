"""Prices: the one place that makes seconds of what a kernel does on a machine.

In: a machine (`optimizer/machine.py`, numbers of a JSON file) and counts: `model.Features` is what
the tasks of a kernel compute and move; `estimate` and `blocks` count it of a group's tiles. Out:
seconds, by `model.seconds` alone. Bytes, clocks, rates and latencies of a machine stand here, in
its file, or in the root's `workers.py`, which the runtime asks as well. Imported by `girih`,
`optimizer`.
"""
