"""Fixtures of the runtime's tests."""

from .fixtures import device, own_configuration

__all__ = ["device", "own_configuration"]
