"""Orders of a region's tasks: strategies, an exact search, and bounds of what any order needs.

A strategy is a function from a task graph to an order: the numbers of all tasks.
"""
