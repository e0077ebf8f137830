"""Values and batches through each of the three clients, against real servers."""

from __future__ import annotations

import array
import ctypes
import mmap
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from kvferry import PagePool, Status
from kvferry.base import errors
from support.clients import KINDS, opened
from support.pure import MIB, payload
from support.servers import TestServer
from support.stamps import until, within

SIZES = [0, 1, 31, 16_383, 16_384, 16_385, 512 << 10, 4 * MIB, 40 * MIB]


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, valkey: TestServer) -> Iterator[Any]:
    with opened(request.param, valkey) as opened_client:
        yield opened_client


# Sizes and counts.


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_size_come_back(server: TestServer, kind: str) -> None:
    with opened(kind, server) as client:
        for size in SIZES:
            target = bytearray(size)
            assert client.get("v", target) is False
            client.set("v", payload(size))
            assert server.cli("STRLEN", "v") == size
            assert client.get("v", target) is True
            assert target == payload(size)
            assert client.delete("v") is True


def test_a_batch_of_every_size(client: Any) -> None:
    keys = [f"k{size}" for size in SIZES]
    values = [payload(size, 3) for size in SIZES]
    stored = client.batch_set(keys, values)
    assert stored.ok
    assert list(stored.sizes) == SIZES
    targets = [bytearray(size) for size in SIZES]
    began = time.monotonic()
    result = client.batch_get(keys, targets)
    took_s = time.monotonic() - began
    assert result.ok
    assert list(result.sizes) == SIZES
    assert targets == values
    assert result.error is None
    assert 0 < result.elapsed_s <= took_s


def test_a_thousand_keys(client: Any, valkey: TestServer) -> None:
    keys = [f"key-{index}" for index in range(1000)]
    values = [payload(2000 + index, index) for index in range(1000)]
    assert client.batch_set(keys, values).ok
    assert valkey.cli("DBSIZE") == 1000
    targets = [bytearray(len(value)) for value in values]
    assert client.batch_get(keys, targets).ok
    assert targets == values
    assert client.batch_exists(keys).ok
    assert client.batch_delete(keys[::2]).ok
    assert list(client.batch_exists(keys)) == [Status.MISS, Status.OK] * 500


def test_values_replace_each_other(client: Any) -> None:
    for size in (5000, 10, 0, MIB):
        client.set("k", payload(size))
        target = bytearray(size)
        assert client.get("k", target) is True
        assert target == payload(size)


@pytest.mark.parametrize("form", [list, tuple, iter, dict.fromkeys], ids=lambda form: form.__name__)
def test_keys_and_buffers_come_in_any_row(
    client: Any, form: Callable[[Iterable[Any]], Iterable[Any]]
) -> None:
    keys = [f"k{index}" for index in range(9)]
    row: Callable[[Iterable[Any]], Iterable[Any]] = iter if form is iter else tuple
    assert client.batch_set(form(keys), row([bytes([index]) for index in range(9)])).ok
    targets = [bytearray(1) for _ in keys]
    assert client.batch_get(form(keys), row(targets)).ok
    assert targets == [bytes([index]) for index in range(9)]
    assert client.batch_exists(form(keys)).prefix_len == 9
    assert client.batch_delete(form(keys)).ok


def test_a_key_may_come_twice(client: Any) -> None:
    client.set("k", b"value")
    targets = [bytearray(5), bytearray(5)]
    assert client.batch_get(["k", b"k"], targets).ok
    assert targets == [b"value", b"value"]
    assert client.batch_set(["k", "k"], [b"other", b"other"]).ok
    assert client.batch_delete(["k", "k"]).count(Status.OK) == 1


@pytest.mark.parametrize("key", ["k" * 512, "ü" * 256, b"\0", b"\r\n$5\r\n", "a b", "{tag}"])
def test_keys_are_bytes_and_text_is_utf8(client: Any, valkey: TestServer, key: str | bytes) -> None:
    raw = key.encode() if isinstance(key, str) else key
    client.set(key, b"1234")
    assert valkey.cli("GET", raw) == b"1234"
    target = bytearray(4)
    assert client.get(raw, target)
    assert client.exists(key)
    assert client.delete(raw)


# Statuses.


def test_statuses_are_of_their_keys(client: Any, valkey: TestServer) -> None:
    for key, size in (("short", 10), ("right", 5000), ("long", 6 * MIB)):
        client.set(key, payload(size))
    valkey.cli("RPUSH", "list", "item")
    keys = ["right", "none", "short", "right", "long", "list", "right"]
    targets = [bytearray(5000) for _ in keys]
    result = client.batch_get(keys, targets)
    expected = ["OK", "MISS", "SIZE_MISMATCH", "OK", "SIZE_MISMATCH", "SERVER_ERROR", "OK"]
    assert [status.name for status in result] == expected
    assert list(result.sizes) == [5000, 0, 10, 5000, 6 * MIB, 0, 5000]
    assert all(targets[index] == payload(5000) for index in (0, 3, 6))
    assert "WRONGTYPE" in (result.error or "")
    assert client.get("right", targets[0]) is True  # still in step


def test_one_key_raises_what_a_batch_reports(client: Any, valkey: TestServer) -> None:
    client.set("k", b"12345")
    for size in (4, 6, 0):
        with pytest.raises(errors.SizeMismatchError, match="5 bytes"):
            client.get("k", bytearray(size))
    valkey.cli("RPUSH", "list", "item")
    with pytest.raises(errors.ServerError) as caught:
        client.get("list", bytearray(4))
    assert caught.value.server_code == "WRONGTYPE"
    assert client.exists("list") is True


def test_prefix_stops_at_the_first_hole(client: Any) -> None:
    keys = [f"p{index}" for index in range(3000)]
    assert client.batch_set(keys, [b"v"] * len(keys)).ok
    client.delete("p1000")
    targets = [bytearray(1) for _ in keys]
    for result in (
        client.batch_exists(keys, prefix=True),
        client.batch_exists(keys, prefix=True, touch=True),
        client.batch_get(keys, targets, prefix=True),
    ):
        assert result.prefix_len == 1000
        assert result[1000] is Status.MISS
        assert set(result) <= {Status.OK, Status.MISS, Status.CANCELLED}
        assert result.count(Status.MISS) == 1
    assert client.batch_get(keys, targets).count(Status.OK) == 2999


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_saves_the_transfer(valkey: TestServer, kind: str) -> None:
    """A first key that is missing spares most of what lies behind it: one connection, so that its
    reply comes before the others whatever the scheduler does.
    """
    keys = [f"p{index}" for index in range(100)]
    with opened(kind, valkey, connections=1) as client:
        assert client.batch_set(keys[1:], [bytes(MIB)] * 99).ok
        targets = [bytearray(MIB) for _ in keys]
        before = client.stats()["bytes_received"]
        result = client.batch_get(keys, targets, prefix=True)
        assert result.prefix_len == 0
        assert result.count(Status.CANCELLED) >= 20
        assert client.stats()["bytes_received"] - before < 80 * MIB


def test_time_to_live(client: Any, valkey: TestServer) -> None:
    began = time.monotonic()
    client.set("k", b"v", ttl_s=100)
    left_ms = valkey.cli("PTTL", "k")
    assert 99_000 - (time.monotonic() - began) * 1000 < left_ms <= 100_000
    began = time.monotonic()
    assert client.batch_set(["a", "b"], [b"v", b"w"], ttl_s=0.05).ok
    assert client.batch_exists(["a", "b"]).ok or time.monotonic() - began >= 0.05
    time.sleep(0.1)
    assert list(client.batch_exists(["a", "b", "k"])) == [Status.MISS, Status.MISS, Status.OK]
    client.set("k", b"v")
    assert valkey.cli("PTTL", "k") == -1


@pytest.mark.parametrize("kind", KINDS)
def test_time_to_live_of_the_settings(valkey: TestServer, kind: str) -> None:
    with opened(kind, valkey, ttl_s=100) as client:
        for given, ttl_s in (({}, 100), ({"ttl_s": 1000}, 1000), ({"ttl_s": 1e12}, 1e12)):
            began = time.monotonic()
            client.set("k", b"v", **given)
            left_s = valkey.cli("TTL", "k")
            assert ttl_s - 1 - (time.monotonic() - began) <= left_s <= ttl_s


def test_touch_refreshes_and_exists_does_not(client: Any, valkey: TestServer) -> None:
    def idle_s(key: str) -> int:
        return int(valkey.cli("OBJECT", "IDLETIME", key))

    assert client.batch_set(["a", "b"], [b"v", b"w"]).ok
    until(lambda: idle_s("a") >= 1 and idle_s("b") >= 1, 10)
    assert client.batch_exists(["a", "b"]).ok
    assert client.exists("a")
    assert idle_s("a") >= 1
    assert idle_s("b") >= 1
    assert client.batch_exists(["a"], touch=True).ok
    assert idle_s("a") < idle_s("b")  # in this order: meanwhile a second may end


def test_ping_and_server_info(client: Any, valkey: TestServer) -> None:
    began = time.monotonic()
    with within(5):
        assert 0 < client.ping() <= time.monotonic() - began
    assert valkey.cli("DBSIZE") == 0
    assert client.server_info()["tcp_port"] == str(valkey.port)


# Memory.


def objects() -> list[tuple[str, Any]]:
    """A writable object of 4096 bytes of each kind that a client takes, by name."""
    mapping = mmap.mmap(-1, 4096)
    pages = PagePool((64, 16), "float32", 2).allocate_many(2)
    assert pages is not None
    return [
        ("bytearray", bytearray(4096)),
        ("memoryview", memoryview(bytearray(5000))[100:4196]),
        ("memoryview-2d", memoryview(bytearray(4096)).cast("f", (32, 32))),
        ("array", array.array("d", [0.0] * 512)),
        ("mmap", mapping),
        ("ctypes", (ctypes.c_uint16 * 2048)()),
        (
            "ctypes-struct",
            type("S", (ctypes.Structure,), {"_fields_": [("a", ctypes.c_char * 4096)]})(),
        ),
        *((f"numpy-{name}", np.zeros(4096 // np.dtype(name).itemsize, name)) for name in DTYPES),
        ("numpy-4d", np.zeros((2, 8, 4, 16), "f4")),
        ("numpy-transposed-view", np.zeros((64, 64), "u1").T.T),
        ("dlpack", Tensor(np.zeros((16, 64), "f4"))),
        ("dlpack-old", OldTensor(np.zeros(4096, "u1"))),
        ("page", pages[0]),
        ("page-array", pages[1].array),
    ]


DTYPES = ["u1", "i4", "f2", "f4", "f8", "c16", ">i8", "?", "V16", "M8[s]", "S8", "U2"]


class Tensor:
    """A tensor that has DLPack and no buffer protocol, as PyTorch's do."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class OldTensor(Tensor):
    """One from before DLPack 1.0."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return self.values.__dlpack__()


def content(value: Any) -> bytes:
    """The bytes of one of `objects`, found by other means than ours."""
    if isinstance(value, Tensor):
        value = value.values
    return value.tobytes() if isinstance(value, np.ndarray) else bytes(memoryview(value).cast("B"))


def test_every_kind_of_memory_is_filled_and_sent(client: Any, valkey: TestServer) -> None:
    named = objects()
    values = [payload(4096, seed) for seed in range(len(named))]
    for (name, _), value in zip(named, values, strict=True):
        valkey.cli("SET", name, value)
    names = [name for name, _ in named]
    targets = [value for _, value in named]
    assert client.batch_get(names, targets).ok
    for (name, target), value in zip(named, values, strict=True):
        # A bool has but two values for NumPy to print, and all bytes are good to us.
        assert content(target) == value, name
    assert client.batch_set([f"sent:{name}" for name in names], targets).ok
    for name, value in zip(names, values, strict=True):
        assert valkey.cli("GET", f"sent:{name}") == value, name
        one = dict(named)[name]
        assert client.get(name, one) is True, name
        client.set(name, one)


def test_what_can_only_be_read_can_be_sent(client: Any, valkey: TestServer) -> None:
    frozen = np.frombuffer(payload(4096), "u1")
    assert not frozen.flags.writeable
    values = [
        payload(4096),
        memoryview(payload(4096)),
        frozen,
        mmap.mmap(-1, 4096, access=mmap.ACCESS_READ),
    ]
    keys = ["bytes", "memoryview", "numpy", "mmap"]
    assert client.batch_set(keys, values).ok
    assert [valkey.cli("GET", key) for key in keys] == [payload(4096)] * 3 + [bytes(4096)]


def test_neighbours_are_separate_buffers(client: Any) -> None:
    """Targets may touch each other, in any order; no byte beyond them changes."""
    whole = bytearray(b"\xee") * 10_000
    view = memoryview(whole)
    spans = [(5000, 6000), (4000, 5000), (8000, 9999), (1, 4000)]
    assert client.batch_set(list("abcd"), [payload(b - a) for a, b in spans]).ok
    assert client.batch_get(list("abcd"), [view[a:b] for a, b in spans]).ok
    for a, b in spans:
        assert view[a:b] == payload(b - a)
    assert whole[:1] + whole[6000:8000] + whole[9999:] == b"\xee" * 2002


@pytest.mark.parametrize("kind", KINDS)
def test_one_source_may_go_to_many_keys(valkey: TestServer, kind: str) -> None:
    """Also while parts of it are still on the way for other keys."""
    source = payload(600_000)
    pieces = [source, memoryview(source)[100_000:], memoryview(source)[:60_000]] * 20
    keys = [f"k{index}" for index in range(len(pieces))]
    for window_bytes in (None, 1, MIB, 32 * MIB):  # how much is on the way at once
        with opened(kind, valkey, window_bytes=window_bytes) as client:
            result = client.batch_set(keys, pieces)
            assert result.ok, (result, result.error)
            targets = [bytearray(len(piece)) for piece in pieces]
            assert client.batch_get(keys, targets).ok
            assert targets == pieces


def test_buffers_are_let_go(client: Any) -> None:
    target = bytearray(4)
    client.set("k", b"abcd")
    client.get("k", target)
    target.append(0)  # BufferError while anybody holds it
    with pytest.raises(errors.SizeMismatchError):
        client.get("k", target)
    target.append(0)
    with pytest.raises(errors.BadBufferError):
        client.batch_get(["k", "k"], [target, target])
    target.append(0)
