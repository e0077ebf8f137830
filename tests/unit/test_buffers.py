"""Keys and buffers: what is taken in place, what is refused, and that nothing is copied."""

from __future__ import annotations

import array
import gc
import mmap
import weakref
from typing import Any

import numpy as np
import pytest

from kvferry.base.errors import BadBufferError, UsageError
from kvferry.client import buffers


class Tensor:
    """A real DLPack producer that has no buffer protocol, as torch.Tensor is one."""

    def __init__(self, values: Any, device: int | None = None) -> None:
        self._values = values
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, Any]:
        kind, number = self._values.__dlpack_device__()
        return (kind if self._device is None else self._device), number


class OldTensor(Tensor):
    """A producer from before DLPack 1.0: no versions, no read-only flag."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return self._values.__dlpack__()


@pytest.mark.parametrize(
    "value",
    [
        b"12345678",
        bytearray(b"12345678"),
        memoryview(b"12345678"),
        array.array("Q", [int.from_bytes(b"12345678", "little")]),
        np.frombuffer(b"12345678", "<f4").reshape(2, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_readable_sees_the_bytes(value: Any) -> None:
    view = buffers.readable(value)
    assert (view.format, view.ndim, bytes(view)) == ("B", 1, b"12345678")


DTYPES = ["f2", ">f4", "c8", "?", "U3", "V7", "i4,f8", "M8[s]", "m8[ns]"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_numpy_type_is_taken_in_place(dtype: str) -> None:
    values = np.zeros((3, 4), dtype)
    view = buffers.writable(values)
    assert view.nbytes == values.nbytes
    view[:] = bytes(range(1, 201))[: view.nbytes].ljust(view.nbytes, b"\1")
    assert values.tobytes() == bytes(view)
    values.flags.writeable = False
    assert bytes(buffers.readable(values)) == values.tobytes()
    with pytest.raises(BadBufferError, match="read-only"):
        buffers.writable(values)


@pytest.mark.parametrize("kind", [Tensor, OldTensor])
def test_dlpack_tensor_is_taken_in_place(kind: type[Tensor]) -> None:
    values = np.arange(12, dtype="f4").reshape(3, 4)
    view = buffers.writable(kind(values[1:]))
    assert bytes(view) == values[1:].tobytes()
    view[:4] = np.float32(-1).tobytes()
    assert values[1, 0] == -1


def test_view_keeps_a_tensor_alive_and_then_lets_it_go() -> None:
    values = np.arange(1000, dtype="u1")
    gone = weakref.ref(values)
    view = buffers.readable(Tensor(values))
    expected = values.tobytes()
    del values
    gc.collect()
    assert gone() is not None
    assert bytes(view) == expected
    del view
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("make", [np.asarray, Tensor], ids=["array", "tensor"])
@pytest.mark.parametrize("cut", [np.s_[:, ::2], np.s_[:, 1:], np.s_[::-1]])
def test_memory_with_holes_is_refused(make: Any, cut: Any) -> None:
    with pytest.raises(BadBufferError, match="contiguous"):
        buffers.readable(make(np.zeros((4, 4))[cut]))


@pytest.mark.parametrize("make", [np.asarray, Tensor], ids=["array", "tensor"])
def test_fortran_order_is_refused(make: Any) -> None:
    with pytest.raises(BadBufferError, match="contiguous"):
        buffers.readable(make(np.zeros((4, 3), order="F")))


def test_read_only_tensor_is_no_target() -> None:
    values = np.zeros(4)
    values.flags.writeable = False
    assert len(buffers.readable(Tensor(values))) == 32
    with pytest.raises(BadBufferError, match="read-only"):
        buffers.writable(Tensor(values))
    with pytest.raises(BadBufferError, match="cannot be exported"):
        buffers.readable(OldTensor(values))


def test_device_memory_is_refused() -> None:
    with pytest.raises(BadBufferError, match="device memory"):
        buffers.readable(Tensor(np.zeros(1), device=2))  # kDLCUDA
    pinned = Tensor(np.zeros(1), device=3)  # kDLCUDAHost is host memory
    assert len(buffers.readable(pinned)) == 8


@pytest.mark.parametrize("value", ["text", 3, None, object(), [1, 2], np.zeros(2, object)])
def test_what_is_no_plain_memory_is_refused(value: Any) -> None:
    with pytest.raises(BadBufferError):
        buffers.readable(value)
    assert issubclass(BadBufferError, UsageError)


def test_closed_memory_is_refused() -> None:
    released = memoryview(b"x")
    released.release()
    closed = mmap.mmap(-1, 4096)
    closed.close()
    for value in (released, closed):
        with pytest.raises(BadBufferError, match=r"released|closed"):
            buffers.readable(value)


@pytest.mark.parametrize("value", [b"", bytearray(), np.zeros((0, 4)), Tensor(np.zeros(0))])
def test_empty_value_is_a_value(value: Any) -> None:
    assert len(buffers.readable(value)) == 0


def test_native_path_gets_the_object_itself_where_it_can() -> None:
    plain = bytearray(4)
    assert buffers.as_buffer(plain) is plain
    odd = np.zeros(4, "M8[s]")
    assert memoryview(buffers.as_buffer(odd)).nbytes == 32


def test_overlapping_targets_are_refused() -> None:
    memory = bytearray(100)
    whole = memoryview(memory)
    buffers.check_targets([whole[50:], whole[:50], memoryview(bytearray(8)), whole[7:7]])
    with pytest.raises(BadBufferError, match="buffers 1 and 0 overlap"):
        buffers.check_targets([whole[49:], whole[:50]])
    with pytest.raises(BadBufferError, match="overlap"):
        buffers.check_targets([whole, whole])
    whole.release()
    memory.append(0)  # BufferError if the check still held the memory


@pytest.mark.parametrize(
    ("key", "encoded"),
    [("k", b"k"), (b"\0\xff", b"\0\xff"), ("ключ", "ключ".encode()), ("a" * 512, b"a" * 512)],
)
def test_key(key: str | bytes, encoded: bytes) -> None:
    assert buffers.encode_key(key) == encoded


@pytest.mark.parametrize("key", ["", b"", "a" * 513, "é" * 257, "\ud800", 3, None, bytearray(b"k")])
def test_bad_key_is_refused(key: Any) -> None:
    with pytest.raises(UsageError):
        buffers.encode_key(key)


def test_batch_is_checked_before_anything_is_sent() -> None:
    assert buffers.check_batch(["a", b"b"], [b"", b""]) == [b"a", b"b"]
    with pytest.raises(UsageError, match="empty"):
        buffers.check_batch([], [])
    with pytest.raises(UsageError, match="2 keys but 1 buffers"):
        buffers.check_batch(["a", "b"], [b""])
    with pytest.raises(UsageError, match="single key"):
        buffers.encode_keys("abc")
