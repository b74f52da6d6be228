"""DLPack: memory of other libraries as what it holds, and ours for them."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np

from .tensors import numpy_type

# kDLCPU, kDLCUDA, kDLCUDAHost (pinned memory), kDLCUDAManaged (which GPUs read as well)
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_NAME = b"dltensor"


class StridedTensor(NamedTuple):
    """Strided memory: `strides` in elements, None where rows follow each other; `device` is
    (DLPack's type, number); `owner` keeps the memory alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    device: tuple[int, int]
    owner: Any = None


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("rank", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


# DLPack's (code, bits) -> name in numpy or ml_dtypes.
_TYPES = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16): "bfloat16", (5, 64): "complex64", (5, 128): "complex128", (6, 8): "bool",
    (7, 8): "float8_e3m4", (8, 8): "float8_e4m3", (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn", (11, 8): "float8_e4m3fnuz", (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz", (14, 8): "float8_e8m0fnu",
}  # fmt: skip
_CODES = {name: key for key, name in _TYPES.items()}


def read_tensor(capsule: Any) -> StridedTensor:
    """What a DLPack capsule holds; TypeError for element types that numpy lacks.

    The capsule is not consumed: its destructor frees the memory once `owner`, which is the capsule
    itself, is gone.
    """
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _DLTensor.from_address(get_pointer(capsule, _NAME))
    kind = tensor.dtype
    name = _TYPES.get((kind.code, kind.bits))
    if name is None or kind.lanes != 1:
        raise TypeError(f"DLPack type code {kind.code} of {kind.bits} bits is not known")
    shape = tuple(tensor.shape[: tensor.rank]) if tensor.rank else ()
    strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides and tensor.rank else None
    device = tensor.device.device_type, tensor.device.device_id
    address = (tensor.data or 0) + tensor.byte_offset
    return StridedTensor(address, shape, strides, numpy_type(name), device, capsule)


def host_array(capsule: Any) -> np.ndarray[Any, Any]:
    """The array of a capsule of the host's memory, without a copy, of numpy's or ml_dtypes' type.

    numpy.from_dlpack refuses bfloat16 and the 8-bit floats, hence our own reader.
    """
    tensor = read_tensor(capsule)
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, tensor.dtype)
    return np.asarray(_Borrowed(tensor)).view(tensor.dtype)


class _Borrowed:
    """Foreign memory for numpy's array interface; keeps its owner, a DLPack capsule, alive."""

    def __init__(self, tensor: StridedTensor) -> None:
        size = tensor.dtype.itemsize
        strides = tensor.strides
        self.capsule = tensor.owner
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.address, True),  # read-only: its library may share the memory
            "shape": tensor.shape,
            "strides": None if strides is None else tuple(size * step for step in strides),
            "typestr": f"|V{size}",
        }


# Address of a structure that was handed out -> the structure, its extents, the memory's owner.
_HANDED_OUT: dict[int, tuple[Any, ...]] = {}


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule: int) -> None:
    """The destructor of our capsules: a capsule that nobody consumed still owns its memory. The
    object has no references any more, so it is only ever handled by its address."""
    is_valid = ctypes.pythonapi.PyCapsule_IsValid
    is_valid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    if is_valid(capsule, _NAME):
        get_pointer = prototype(("PyCapsule_GetPointer", ctypes.pythonapi))
        _HANDED_OUT.pop(get_pointer(capsule, _NAME) or 0, None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address: int) -> None:
    """What a consumer calls, on any thread, when it needs the memory no more."""
    _HANDED_OUT.pop(address, None)


def make_capsule(tensor: StridedTensor, owner: Any) -> Any:
    """A DLPack capsule of C-contiguous memory; `owner` is kept until its consumer is done.

    BufferError for element types that DLPack has no code for.
    """
    key = _CODES.get(tensor.dtype.name)
    if key is None:
        raise BufferError(f"DLPack has no element type {tensor.dtype.name}")
    rank = len(tensor.shape)
    steps = [math.prod(tensor.shape[index + 1 :]) for index in range(rank)]
    extents = (ctypes.c_int64 * max(1, 2 * rank))(*tensor.shape, *steps)
    shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    strides = ctypes.cast(ctypes.addressof(extents) + 8 * rank, ctypes.POINTER(ctypes.c_int64))
    managed = _Managed(
        _DLTensor(
            tensor.address,
            _DLDevice(*tensor.device),
            rank,
            _DataType(*key, 1),
            shape,
            strides,
            0,
        ),
        None,
        ctypes.cast(_delete, ctypes.c_void_p).value,
    )
    address = ctypes.addressof(managed)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    _HANDED_OUT[address] = managed, extents, owner
    return new(address, _NAME, ctypes.cast(_destroy, ctypes.c_void_p))
