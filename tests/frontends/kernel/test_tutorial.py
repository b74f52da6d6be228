"""docs/kernels.md runs as it stands, in a process of its own kind: a file."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import girih

PAGE = Path(girih.__file__).parent / "docs" / "kernels.md"


def test_tutorial(tmp_path, capsys):
    pytest.importorskip("jax")
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    path = tmp_path / "kernels.py"
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    runpy.run_path(str(path))
    printed = capsys.readouterr().out
    # The message that the page shows is the one that comes, but for the folder.
    shown = re.search(r"\n    (kernels\.py:\d+: .*)\n    ( +.*)\n    ( +\^+)\n", text)
    assert shown is not None
    message, *source = shown.groups()
    assert all(line in printed for line in (message.split(": ", 1)[1], *source))
