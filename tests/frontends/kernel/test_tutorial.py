"""docs/kernels.md and docs/foreign_kernels.md run as they stand, as files."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest

import girih
import girih.language as tl
from girih.hlo.types import ElementType

ROOT = Path(girih.__file__).parent
PAGE = ROOT / "docs" / "kernels.md"


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


def test_tutorial_of_foreign_kernels(tmp_path):
    pytest.importorskip("jax")
    if shutil.which("cc") is None or shutil.which("nvcc") is None:
        pytest.skip("there is no C compiler, or none of CUDA")
    text = (ROOT / "docs" / "foreign_kernels.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    path = tmp_path / "foreign_kernels.py"
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    runpy.run_path(str(path))


def test_the_definition_names_every_function():
    text = (ROOT / "specs" / "kernel_language.md").read_text(encoding="utf-8")
    functions = text[text.index("## 6.") : text.index("## 7.")]
    known = set(re.findall(r"\w+", functions))
    types = {name for name in tl.__all__ if isinstance(getattr(tl, name), ElementType)}
    assert set(tl.__all__) - types <= known
    assert types == {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {
        "bool_",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    }
    assert all(f"`{name}`" in text or name.startswith(("int", "uint")) for name in types)
