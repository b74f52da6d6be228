"""Samples of JAX's public functions, module by module: what `jax_operators.py` runs."""

from __future__ import annotations

from . import lax, numpy, others, scipy
from .table import WIDE, Array, Sample, Table

TABLES: tuple[Table, ...] = (
    numpy.numpy, numpy.fft, lax.lax, lax.linalg, lax.ops,
    others.nn, others.initializers, others.image, others.random, others.tree,
    scipy.special, scipy.linalg, scipy.stats, *scipy.distributions, scipy.signal, scipy.ndimage,
    scipy.fft, scipy.integrate, scipy.interpolate, scipy.vq, scipy.optimize, scipy.sparse,
    scipy.transform,
)  # fmt: skip

__all__ = ["TABLES", "WIDE", "Array", "Sample", "Table"]
