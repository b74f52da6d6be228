"""Orders of a region's tasks: strategies, an exact search, and bounds of what any order needs.

In: a task graph with the bytes of its values. Out: an order, the numbers of all tasks. Imported by
`optimizer`.
"""
