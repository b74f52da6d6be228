"""Tiles: what a tile needs, which sizes fit, and where the edges between them live."""
