"""Tile functions as GPU kernels: every kernel_call becomes one kernel, a block per grid place."""
