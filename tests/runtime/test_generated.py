"""The generated protobuf code is what specs/*.proto say."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

import pytest

import girih

SPECS = Path(girih.__file__).parent / "specs"
NAMES = sorted(path.stem for path in SPECS.glob("*.proto"))


def test_checked_in_code_is_fresh():
    pytest.importorskip("grpc_tools")
    from girih.specs import generate

    assert generate.main(["--check"]) == 0, "run: python specs/generate.py"


@pytest.mark.parametrize("name", NAMES)
def test_modules_import_and_stubs_fit(name):
    module = importlib.import_module(f"girih.specs.generated.{name}_pb2")
    assert module.DESCRIPTOR.name == f"girih/{name}.proto"
    assert module.DESCRIPTOR.package == "girih"
    first = (SPECS / "generated" / f"{name}_pb2.pyi").read_text().partition("\n")[0]
    assert hashlib.sha256((SPECS / f"{name}.proto").read_bytes()).hexdigest() in first
