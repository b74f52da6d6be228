"""Tiles: what a tile needs, which sizes fit, and where the edges between them live.

In: a group of operations. Out: the box of every value that a tile needs, tilings, and the group's
tile function for one of them. Imported by `backends`, `girih`, `optimizer`.
"""
