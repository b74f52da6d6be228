"""The device of target `null`: holds a plan and runs nothing, so that plans can be studied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...hlo.errors import UserError


class NullVariant:
    """Accepts every plan; a call is the user's error."""

    def __init__(
        self,
        plan: Any,
        image: bytes | memoryview = b"",
        weights: Mapping[str, np.ndarray[Any, Any]] | None = None,
        threads: int | None = None,
        pin: bool = False,
    ) -> None:
        self.plan = plan

    def context(self) -> None:
        """Nothing is kept between calls."""


def run(
    context: None,
    inputs: Sequence[np.ndarray[Any, Any]],
    outputs: Sequence[np.ndarray[Any, Any]],
    profile: bool = False,
) -> list[Any]:
    """UserError, always."""
    raise UserError(
        "this program was compiled for target 'null', which has no code to run; "
        "compile it with target='cpu'"
    )
