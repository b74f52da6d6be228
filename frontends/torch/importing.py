"""Imports PyTorch's exports: an ExportedProgram, a `.pt2` archive, or a module with inputs."""

from __future__ import annotations

import os
from typing import Any

from ...hlo.errors import CompilerBug, UserError
from ...hlo.graph import Module
from .archive import read_archive
from .exported import import_live
from .lower import lower


def import_torch(source: Any, *example_inputs: Any, **example_keywords: Any) -> Module:
    """The program of an ExportedProgram, of a `.pt2` archive (path or bytes), or of an `nn.Module`
    called with the example inputs.

    Parameters and buffers become external weights by name. Example inputs of an export fix the
    sizes that it leaves symbolic. ImportBlockers lists everything that stands in the way; UserError
    says what is wrong with the source. Reading an archive does not import torch.
    """
    if isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview)):
        program = read_archive(source, example_inputs, example_keywords)
        try:
            return lower(program)
        except (
            CompilerBug, ArithmeticError, AttributeError, LookupError, TypeError, ValueError,
        ) as error:  # fmt: skip
            raise UserError(
                f"{program.name}: {error}; the archive contradicts itself, or this is a bug of "
                "girih: please report it if PyTorch reads the file"
            ) from error

    return import_live(source, example_inputs, example_keywords)
