"""A method of a model as an entry point: the model, whose forward it is."""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any


def module_of(method: MethodType) -> Any:
    """A model that shares all parameters and buffers with the method's, and calls the method."""
    module: Any = copy.copy(method.__self__)
    module.forward = MethodType(method.__func__, module)
    return module
