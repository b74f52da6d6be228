"""Loads and runs bundles with numpy and a device alone; imports no compiler and no framework."""
