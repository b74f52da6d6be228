"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from ..runtime.fixtures import device, own_configuration

__all__ = ["device", "girih_command", "own_configuration"]


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
