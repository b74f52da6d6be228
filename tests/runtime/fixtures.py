"""Fixtures of all tests of the runtime and of the command line."""

from __future__ import annotations

import pytest

from .fakes import adding_device

__all__ = ["device", "own_configuration"]


@pytest.fixture(autouse=True)
def own_configuration(tmp_path_factory, monkeypatch):
    """Keys are made in a folder of the test's own."""
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.setenv("APPDATA", str(folder))
    return folder / "girih"


@pytest.fixture(autouse=True)
def device():
    """Target `adding`."""
    with adding_device():
        yield
