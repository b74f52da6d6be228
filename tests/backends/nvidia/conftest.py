"""What tests of the NVIDIA backend share."""

from __future__ import annotations

import pytest

from girih.backends.nvidia.assemble import find_ptxas


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "requires_ptxas: needs NVIDIA's assembler")
    config.addinivalue_line("markers", "alone: windows of small examples are in no patches")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_ptxas() is None:
        for item in items:
            if item.get_closest_marker("requires_ptxas"):
                item.add_marker(pytest.mark.skip(reason="ptxas is not installed"))
