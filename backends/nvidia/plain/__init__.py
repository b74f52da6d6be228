"""The plain way: every operation that any target has, one thread per element or tile.

It takes every region: elementwise values are computed where they are read, each other operation
becomes a launch of its own, and what launches hand on lies in scratch memory. Emitters for more
than one thread at a time stand before it, see `kernels.py`.
"""

from __future__ import annotations

from .region import emit

__all__ = ["emit"]
