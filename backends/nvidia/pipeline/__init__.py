"""The strategy of Hopper: copies and products in flight at once, by roles of warp groups.

In: a configuration of `optimizer/asynchronous/`, which has all decisions. Out: one launch, in which
a warp group copies windows into rings and the others multiply. Imported by `backends/nvidia`.
"""
