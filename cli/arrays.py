"""Arrays from and to files, and made-up inputs."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..hlo.errors import UserError
from ..hlo.signature import Argument, Signature
from ..hlo.types import element_type
from ..runtime import tensors

Array = np.ndarray[Any, Any]


def collect_inputs(signature: Signature, given: Sequence[str], seed: int | None) -> list[Array]:
    """One array per argument but state: from the files in `given`, else made up if there is a
    seed."""
    named, ordered = read_inputs(given)
    arguments = [argument for argument in signature.arguments if argument.state is None]
    known = {argument.path for argument in arguments}
    if unknown := [name for name in named if name not in known]:
        if set(named) == {f"arr_{i}" for i in range(len(named))}:  # numpy.savez without names
            ordered += [named[f"arr_{i}"] for i in range(len(named))]
            named = {}
        else:
            raise UserError(
                f"{unknown[0]}: the program has no such argument; it has {_listed(arguments)}"
            )
    free = [argument.path for argument in arguments if argument.path not in named]
    if len(ordered) > len(free):
        raise UserError(
            f"{len(named) + len(ordered)} inputs are given, the program takes {len(arguments)}"
        )
    found = named | dict(zip(free, ordered, strict=False))
    missing = [argument for argument in arguments if argument.path not in found]
    if missing and seed is None:
        raise UserError(f"no input for {_listed(missing)}; give files, or --random to make them up")
    return [
        _with_extension_type(found[a.path], a) if a.path in found else made_up(a, seed or 0, i)
        for i, a in enumerate(arguments)
    ]


def _listed(arguments: Sequence[Argument]) -> str:
    return ", ".join(map(str, arguments[:5])) + (", ..." if len(arguments) > 5 else "")


def as_call(
    signature: Signature, arrays: Sequence[Array]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Flat arguments as the positional and keyword inputs of a call."""
    count = signature.inputs.leaf_count
    return signature.inputs.unflatten(arrays[:count]), signature.keywords.unflatten(arrays[count:])


def made_up(argument: Argument, seed: int, index: int = 0) -> Array:
    """Reproducible values: normal floats, integers from 0 to 9, fair booleans."""
    generator = np.random.default_rng((seed, index))
    element = element_type(argument.element)
    shape = tuple(int(dim) for dim in argument.dims)
    if element.kind == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if element.kind in ("int", "uint"):
        highest = min(9, 2 ** (element.bits - (element.kind == "int")) - 1)
        return generator.integers(0, highest + 1, shape).astype(element.dtype)
    values = generator.standard_normal(shape)
    if element.kind == "complex":
        values = values + 1j * generator.standard_normal(shape)
    return np.asarray(values).astype(element.dtype)


def read_inputs(given: Sequence[str]) -> tuple[dict[str, Array], list[Array]]:
    """Arrays with a name, and arrays by position."""
    named: dict[str, Array] = {}
    ordered: list[Array] = []
    for item in given:
        name, equals, file = item.rpartition("=")
        arrays = read_file(Path(file))
        if equals and len(arrays) != 1:
            raise UserError(f"{item}: a name needs a file with one array, not {len(arrays)}")
        if equals:
            named[name] = next(iter(arrays.values()))
        elif set(arrays) == {""}:
            ordered.append(arrays[""])
        else:
            named |= arrays
    return named, ordered


def read_file(path: Path) -> dict[str, Array]:
    """The arrays of a .npy (named ""), .npz or .safetensors file."""
    try:
        if path.suffix == ".npy":
            return {"": np.load(path, allow_pickle=False)}
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return dict(archive.items())
        if path.suffix == ".safetensors":
            return dict(tensors.decode(path.read_bytes())[0])
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "allow_pickle" in reason:  # numpy takes whatever it does not know for a pickle
            reason = "it holds Python objects, or no array"
        raise UserError(f"{path}: not a whole file of its kind: {reason}") from error
    raise UserError(f"{path}: inputs are read from .npy, .npz and .safetensors files")


def write_file(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a .npz, .safetensors or (one array) .npy file."""
    try:
        if path.suffix == ".npz":
            np.savez(path, **dict(arrays))  # pyright: ignore[reportArgumentType]
        elif path.suffix == ".safetensors":
            with open(path, "wb") as file:
                file.writelines(tensors.encode(arrays)[1])
        elif path.suffix == ".npy" and len(arrays) == 1:
            np.save(path, next(iter(arrays.values())), allow_pickle=False)
        elif path.suffix == ".npy":
            raise UserError(f"{path}: {len(arrays)} results need a .npz or .safetensors file")
        else:
            raise UserError(f"{path}: results are written as .npz, .safetensors or .npy")
    except OSError as error:
        raise UserError(f"{path}: cannot write: {error.strerror or error}") from error


def _with_extension_type(array: Array, argument: Argument) -> Array:
    """numpy's files forget ml_dtypes' names: bytes of the right width get their type back."""
    dtype = element_type(argument.element).dtype
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize and dtype.kind == "V":
        return array.view(dtype)
    return array
