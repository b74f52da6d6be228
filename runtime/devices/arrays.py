"""Arrays in a GPU's memory: those of other libraries as arguments, ours as results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...hlo.errors import UserError
from ..dlpack import CUDA, CUDA_MANAGED, StridedTensor, make_capsule, read_tensor
from .driver import Driver
from .resources import DeviceMemory, Moment, Stream, order

_DEFAULT_STREAM = 1  # CUDA's handle of the legacy default stream


class DeviceView:
    """Memory of a GPU that an argument lies in; `owner` keeps it alive.

    given: the call may overwrite it.
    """

    __slots__ = ("address", "dtype", "given", "owner", "shape")

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any
    ) -> None:
        self.address, self.shape, self.dtype, self.owner = address, shape, dtype, owner
        self.given = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class DeviceArray:
    """A result in a GPU's memory, C-contiguous; `numpy()` copies it to the host.

    Other libraries take it without a copy (DLPack, `__cuda_array_interface__`), in the order of
    their streams, and a program takes it as an argument.
    """

    def __init__(
        self, memory: DeviceMemory | DeviceView, shape: tuple[int, ...], dtype: Any
    ) -> None:
        """An array that nothing has filled yet; `memory` may be that of a donated argument."""
        self.memory, self.shape, self.dtype = memory, shape, np.dtype(dtype)
        self._driver: Driver
        self._ready: Moment
        self._settle: Callable[[Any], None]

    def filled(
        self, driver: Driver, stream: Any, settle: Callable[[Any], None] | None = None
    ) -> DeviceArray:
        """The same array, filled by the work that the stream has now. settle: waits for an event
        of that stream, where the driver's own way has no deadline."""
        self._driver, self._ready = driver, Moment(driver, stream)
        self._settle = settle or driver.settle
        return self

    @property
    def address(self) -> int:
        """Where its first element lies."""
        return self.memory.address

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def device(self) -> str:
        """The GPU, such as "cuda:0"."""
        return f"cuda:{self._driver.ordinal}"

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host."""
        driver, target = self._driver, np.empty(self.shape, self.dtype)
        with driver:
            self._settle(self._ready.event)
            if target.nbytes:
                stream = driver.create_stream()
                try:
                    driver.download(target, self.address, stream)
                    driver.synchronize(stream)
                finally:
                    driver.destroy_stream(stream)
        return target

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise TypeError("the array is in a GPU's memory; x.numpy() copies it to the host")

    def view_after(self, driver: Driver, stream: Any) -> DeviceView:
        """Its memory, for the stream's later work, which waits until it is filled."""
        if driver is not self._driver:
            raise ValueError(f"the array is on {self.device}, the program on another device")
        driver.wait(stream, self._ready.event)
        return DeviceView(self.address, self.shape, self.dtype, self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self._hand_out(_DEFAULT_STREAM)
        with self._driver:
            self._settle(self._ready.event)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str if self.dtype.kind != "V" else f"|V{self.dtype.itemsize}",
            "data": (self.address, False),
            "version": 3,
            "stream": None,  # it is filled
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._driver.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        **_: Any,
    ) -> Any:
        """A capsule for a library whose work on `stream` shall see the array filled; BufferError
        where it has to be a copy, or on another device."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the array is handed out where it is; x.numpy() copies it")
        reader = _DEFAULT_STREAM if stream is None or stream < 0 else stream
        self._hand_out(reader)
        if stream != -1:
            with self._driver:
                self._driver.wait(reader, self._ready.event)
        device = self.__dlpack_device__()
        return make_capsule(StridedTensor(self.address, self.shape, None, self.dtype, device), self)

    def _hand_out(self, reader: int) -> None:
        """Another library reads it on a stream."""
        if self._driver.simulated:
            raise UserError("the array is in a simulated GPU's memory; use x.numpy()")
        if isinstance(self.memory, DeviceMemory):
            self.memory.read_by(reader)

    def __repr__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"<girih array {self.dtype.name}[{dims}] on {self.device}>"


class DeviceLog:
    """Memory for what a session's calls keep of state, of these shapes, types and rooms."""

    def __init__(self, gives: Sequence[tuple[tuple[int, ...], Any, int]]) -> None:
        self._gives, self._memories = gives, list[DeviceMemory]()
        self._driver: Driver
        self._stream: Stream

    def cleared(self, driver: Driver, stream: Stream, saved: Sequence[int]) -> list[int]:
        """The addresses, for a call on the stream; what says what is there says that nothing is."""
        if not self._memories:
            self._memories = [DeviceMemory(stream, room) for *_, room in self._gives]
        elif stream is not self._stream:
            order(driver, self._stream.handle, stream.handle)
            for memory in self._memories:
                memory.read_by(stream)
        self._driver, self._stream = driver, stream
        for number in saved:
            memory = self._memories[number]
            driver.fill(memory.address, memory.size, stream.handle)
        return [memory.address for memory in self._memories]

    def read(self) -> list[np.ndarray[Any, Any]]:
        """What the last call has kept, on the host; returns when that is done."""
        found = [np.empty(shape, dtype) for shape, dtype, _ in self._gives]
        with self._driver:
            for array, memory in zip(found, self._memories, strict=True):
                if array.nbytes:
                    self._driver.download(array, memory.address, self._stream.handle)
            self._driver.synchronize(self._stream.handle)
        return found


def memory_of(view: DeviceView) -> Any:
    """What owns a view's memory: a `DeviceMemory`, or another library's object."""
    owner = view.owner
    while isinstance(owner, DeviceArray):
        memory = owner.memory
        if isinstance(memory, DeviceMemory):
            return memory
        owner = memory.owner
    return owner


def is_on_gpu(value: Any) -> bool:
    """Whether a value says that it lies in the memory of an NVIDIA GPU."""
    if isinstance(value, np.ndarray):
        return False
    if isinstance(value, DeviceArray):
        return True
    with suppress(Exception):  # whatever a foreign object raises, it is not taken as a GPU's
        if hasattr(value, "__dlpack_device__"):
            return int(value.__dlpack_device__()[0]) in (CUDA, CUDA_MANAGED)
        return hasattr(value, "__cuda_array_interface__")
    return False


def borrow(value: Any, driver: Driver, stream: Any) -> DeviceView:
    """The memory of a value that `is_on_gpu`, for work on `stream`; ValueError if it cannot be."""
    if isinstance(value, DeviceArray):
        return value.view_after(driver, stream)
    if driver.simulated:
        raise ValueError("a simulated GPU cannot read the memory of a real one")
    if hasattr(value, "__dlpack__"):
        number = value.__dlpack_device__()[1]
        if number != driver.ordinal:
            raise ValueError(
                f"the array is on cuda:{number}, the program runs on cuda:{driver.ordinal}"
            )
        tensor = read_tensor(value.__dlpack__(stream=int(stream)))
    else:
        tensor = _from_interface(value.__cuda_array_interface__, value, driver, stream)
    if tensor.strides is not None and not _contiguous(tensor.shape, tensor.strides):
        raise ValueError("the array is not C-contiguous")
    return DeviceView(tensor.address, tensor.shape, tensor.dtype, tensor.owner)


def _from_interface(interface: Any, owner: Any, driver: Driver, stream: Any) -> StridedTensor:
    """What numba, cupy and others say of their arrays."""
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is not None:
        strides = tuple(step // max(1, dtype.itemsize) for step in strides)
    theirs = interface.get("stream")
    if theirs is not None:
        order(driver, theirs, stream)
    return StridedTensor(interface["data"][0], shape, strides, dtype, (CUDA, driver.ordinal), owner)


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether strides, in elements, are those of rows one after the other."""
    expected = 1
    for dim, stride in zip(reversed(shape), reversed(strides), strict=True):
        if dim > 1 and stride != expected:
            return 0 in shape
        expected *= dim
    return True
