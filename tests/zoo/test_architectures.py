"""A sample of the architectures of transformers; architectures.py runs them all."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


def _architectures() -> Any:
    """The module beside this one."""
    path = Path(__file__).with_name("architectures.py")
    spec = importlib.util.spec_from_file_location("zoo_architectures", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


zoo = _architectures()
BY_NAME = {entry.name: entry for entry in zoo.ARCHITECTURES}
# One of each family, and those that found bugs of the compiler.
SAMPLE = ("olmoe", "t5", "fnet", "patchtsmixer", "llama in bfloat16")


def test_there_are_sixty_and_each_stands_once() -> None:
    assert len(BY_NAME) == len(zoo.ARCHITECTURES) >= 60


@pytest.mark.usefixtures("each_level")
@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name: str) -> None:
    entry = BY_NAME[name]
    row = zoo.check(entry)
    assert row.exports and row.compiles, row.note
    assert row.error <= zoo.TOLERANCE[entry.dtype]


def test_the_page_says_what_the_table_says() -> None:
    """docs/architectures.md is generated: a model that is added has to be run."""
    page = zoo.PAGE.read_text()
    missing = [name for name in BY_NAME if f"| {name} |" not in page]
    assert not missing, f"run tests/zoo/architectures.py --write: {missing}"
    assert "| yes | yes | no |" not in page  # what compiles agrees
