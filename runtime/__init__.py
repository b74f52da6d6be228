"""Loads and runs bundles with numpy and a device alone; imports no compiler and no framework.

In: a bundle and arrays. Out: arrays. Imported by `cli`, `frontends`, `girih`.
"""
