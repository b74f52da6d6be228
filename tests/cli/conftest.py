"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from ..runtime.fakes import adding_device


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


@pytest.fixture
def girih_command(capsys):
    """Runs `girih ...` in this process: (exit code, stdout, stderr)."""
    from girih.cli import main

    def call(*arguments: object) -> tuple[int, str, str]:
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
