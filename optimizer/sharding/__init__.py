"""Shardings: propagation, choice, partition, resharding."""
