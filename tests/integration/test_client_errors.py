"""Mistakes of the caller: a typed error, and nothing was sent.

Each test gives a mistake to each of the three clients, over a server that notes every command. Then
a sentinel goes out on the same way: it must be the first command that the server sees.
"""

from __future__ import annotations

import array
import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator
from functools import partial
from subprocess import run
from typing import Any

import numpy as np
import pytest

from kvferry import PagePool, RedisClient, Status
from kvferry.base import errors
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from support.clients import KINDS, NATIVE, opened
from support.scripted import HANDSHAKE, MiniStore, ScriptedServer, silent
from support.servers import free_port
from support.tuned import tuned

VALUE_SIZE_BYTES_MAX = 100_000


def batch_get(keys: Any, buffers: Any, client: Any) -> None:
    client.batch_get(keys, buffers)


def batch_set(keys: Any, buffers: Any, client: Any) -> None:
    client.batch_set(keys, buffers)


class Watched:
    """A client whose mistakes are checked."""

    def __init__(self, client: Any, server: ScriptedServer) -> None:
        self.client = client
        self.server = server

    def refuses(
        self,
        call: Callable[[Any], object],
        kind: type[Exception] = errors.UsageError,
        match: str | None = None,
    ) -> None:
        with pytest.raises(kind, match=match):
            call(self.client)

    def assert_nothing_was_sent(self) -> None:
        assert self.client.exists("sentinel") is False
        met = [
            words for words in self.server.commands if words[0].upper() not in {*HANDSHAKE, b"PING"}
        ]
        assert met == [[b"EXISTS", b"sentinel"]]
        assert self.client.stats()["bytes_sent"] < 4096


@pytest.fixture(params=KINDS)
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    with (
        ScriptedServer(MiniStore()) as server,
        opened(request.param, server, value_size_bytes_max=VALUE_SIZE_BYTES_MAX) as client,
    ):
        subject = Watched(client, server)
        yield subject
        subject.assert_nothing_was_sent()


# Keys.


@pytest.mark.parametrize(
    "key",
    [
        "",
        b"",
        "k" * 513,
        b"k" * 513,
        "ü" * 257,
        "\ud800",
        "a\udfffb",
        7,
        None,
        bytearray(b"k"),
        ("k",),
    ],
    ids=repr,
)
def test_what_is_no_key(watched: Watched, key: Any) -> None:
    memory = bytearray(4)
    watched.refuses(lambda client: client.get(key, memory))
    watched.refuses(lambda client: client.set(key, memory))
    watched.refuses(lambda client: client.exists(key))
    watched.refuses(lambda client: client.delete(key))
    watched.refuses(lambda client: client.batch_get(["a", key], [memory, bytearray(1)]))
    watched.refuses(lambda client: client.batch_set(["a", key], [memory, memory]))
    watched.refuses(lambda client: client.batch_exists(["a", key, "b"]))
    watched.refuses(lambda client: client.batch_delete(["a", key, "b"], timeout_s=1))
    memory.append(0)  # nobody holds it


@pytest.mark.parametrize("keys", ["abc", b"abc", ""], ids=repr)
def test_a_key_is_no_list_of_keys(watched: Watched, keys: Any) -> None:
    three = [bytearray(1) for _ in range(3)]
    watched.refuses(lambda client: client.batch_get(keys, three), match="list of keys")
    watched.refuses(lambda client: client.batch_set(keys, three), match="list of keys")
    watched.refuses(lambda client: client.batch_exists(keys), match="list of keys")
    watched.refuses(lambda client: client.batch_delete(keys), match="list of keys")


@pytest.mark.parametrize(
    "nothing", [[], (), {}, iter([])], ids=["list", "tuple", "dict", "iterator"]
)
def test_an_empty_batch(watched: Watched, nothing: Any) -> None:
    watched.refuses(lambda client: client.batch_get(nothing, []), match="empty")
    watched.refuses(lambda client: client.batch_set(nothing, []), match="empty")
    watched.refuses(lambda client: client.batch_exists(nothing), match="empty")
    watched.refuses(lambda client: client.batch_delete(nothing), match="empty")


@pytest.mark.parametrize("no_row", [None, 7, object()], ids=["None", "a number", "an object"])
def test_what_is_no_row_at_all(watched: Watched, no_row: Any) -> None:
    watched.refuses(lambda client: client.batch_get(no_row, [bytearray(1)]), TypeError)
    watched.refuses(lambda client: client.batch_set(["k"], no_row), TypeError)
    watched.refuses(lambda client: client.batch_exists(no_row), TypeError)
    watched.refuses(lambda client: client.batch_delete(no_row), TypeError)


def test_one_buffer_for_each_key(watched: Watched) -> None:
    buffers = [bytearray(4) for _ in range(3)]
    for keys, given in ((["a", "b"], 1), (["a"], 2), (["a"], 0), (["a", "b", "c"], 2)):
        match = f"{len(keys)} keys but {given} buffers"
        few = buffers[:given]
        watched.refuses(partial(batch_get, keys, few), match=match)
        watched.refuses(partial(batch_get, keys, iter(few)), match=match)
        watched.refuses(partial(batch_set, keys, tuple(few)), match=match)


# Memory.

READ_ONLY: dict[str, Callable[[], Any]] = {
    "bytes": lambda: bytes(4096),
    "memoryview": lambda: memoryview(bytearray(4096)).toreadonly(),
    "numpy": lambda: np.frombuffer(bytes(4096), "f4"),
    "numpy-flag": lambda: frozen(np.zeros(4096, "u1")),
    "mmap": lambda: mmap.mmap(-1, 4096, access=mmap.ACCESS_READ),
    "dlpack": lambda: Tensor(frozen(np.zeros(4096, "u1"))),
}
HOLED: dict[str, Callable[[], Any]] = {
    "memoryview": lambda: memoryview(bytearray(8192))[::2],
    "memoryview-reversed": lambda: memoryview(bytearray(4096))[::-1],
    "numpy-step": lambda: np.zeros(8192, "u1")[::2],
    "numpy-reversed": lambda: np.zeros(4096, "u1")[::-1],
    "numpy-column": lambda: np.zeros((64, 128), "u1")[:, :64],
    "numpy-fortran": lambda: np.zeros((64, 64), "u1", order="F"),
    "numpy-datetime": lambda: np.zeros(1024, "M8[s]")[::2],
    "dlpack": lambda: Tensor(np.zeros((64, 128), "u1")[:, :64]),
}
NO_MEMORY: dict[str, Callable[[], Any]] = {
    "str": lambda: "text",
    "None": lambda: None,
    "int": lambda: 4096,
    "list": lambda: [1, 2, 3],
    "objects": lambda: np.array([object()] * 512),
    "mixed-objects": lambda: np.zeros(4, "i4,O"),
    "released": lambda: released(memoryview(bytearray(4096))),
    "closed-mmap": lambda: closed(mmap.mmap(-1, 4096)),
    "device": lambda: Tensor(np.zeros(4096, "u1"), device=2),
    "cuda-array": lambda: CudaArray(),
}


class Tensor:
    """DLPack and no buffer protocol; may claim to be on a device."""

    def __init__(self, values: Any, device: int = 1) -> None:
        self._values, self._device = values, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


class CudaArray:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (4096,), "typestr": "|u1", "data": (0, False), "version": 3}


def frozen(values: Any) -> Any:
    values.flags.writeable = False
    return values


def released(view: memoryview) -> memoryview:
    view.release()
    return view


def closed(mapping: mmap.mmap) -> mmap.mmap:
    mapping.close()
    return mapping


@pytest.mark.parametrize("make", READ_ONLY.values(), ids=READ_ONLY)
def test_a_target_is_writable(watched: Watched, make: Callable[[], Any]) -> None:
    for call in (
        lambda client: client.get("k", make()),
        lambda client: client.batch_get(["a", "k"], [bytearray(1), make()]),
    ):
        watched.refuses(call, errors.BadBufferError, "read-only|cannot be exported")


@pytest.mark.parametrize("make", HOLED.values(), ids=HOLED)
def test_memory_is_contiguous(watched: Watched, make: Callable[[], Any]) -> None:
    for call in (
        lambda client: client.get("k", make()),
        lambda client: client.set("k", make()),
        lambda client: client.batch_set(["a", "k"], [bytearray(1), make()]),
    ):
        watched.refuses(call, errors.BadBufferError, "contiguous")


@pytest.mark.parametrize("make", NO_MEMORY.values(), ids=NO_MEMORY)
def test_a_value_is_memory(watched: Watched, make: Callable[[], Any]) -> None:
    for call in (
        lambda client: client.get("k", make()),
        lambda client: client.set("k", make()),
        lambda client: client.batch_get(["a", "k"], [bytearray(1), make()]),
    ):
        watched.refuses(call, errors.BadBufferError)


def test_a_freed_page_is_no_memory(watched: Watched) -> None:
    page = PagePool((4096,), "uint8", 1).allocate()
    assert page is not None
    page.free()
    watched.refuses(lambda client: client.get("k", page), errors.BadBufferError)
    watched.refuses(lambda client: client.set("k", page), errors.BadBufferError)


def test_targets_lie_apart(watched: Watched) -> None:
    whole: Any = np.zeros(10_000, "u1")
    numbers = whole.view("f4")
    tensor = Tensor(whole)
    for spans in (
        [whole, whole],
        [whole[:5000], whole[4999:]],
        [whole[4999:], whole[:5000]],  # unordered
        [whole[7000:], whole[:100], whole[5000:7001], whole[100:5000]],
        [whole[1000:2000], whole],  # one inside the other
        [whole, whole[9999:]],
        [numbers[100:200], whole[799:801]],  # of two types
        [tensor, whole[:1]],
        [memoryview(whole)[:2], tensor],
        [whole[:10], bytearray(5), whole[5:15], bytearray(5)],
    ):
        keys = [f"k{index}" for index in range(len(spans))]
        watched.refuses(partial(batch_get, keys, spans), match="overlap")


def test_sources_may_be_one() -> None:
    whole = bytes(range(200))
    for kind in KINDS:
        with ScriptedServer(store := MiniStore()) as server, opened(kind, server) as client:
            assert client.batch_set(["a", "b"], [whole, memoryview(whole)[50:100]]).ok
            assert store.data == {b"a": whole, b"b": whole[50:100]}


def test_a_value_has_a_limit(watched: Watched) -> None:
    limit = VALUE_SIZE_BYTES_MAX
    for call in (
        lambda client: client.set("k", bytes(limit + 1)),
        lambda client: client.set("k", np.zeros(limit // 8 + 1)),
        lambda client: client.batch_set(["a", "k"], [b"", bytes(limit + 1)]),
    ):
        watched.refuses(call, match="value_size_bytes_max")


# Times.


@pytest.mark.parametrize("timeout_s", [0, -1, -0.0, float("nan"), float("-inf")])
def test_a_limit_leaves_time(watched: Watched, timeout_s: float) -> None:
    memory = [bytearray(4)]
    for call in (
        lambda client: client.batch_get(["k"], memory, timeout_s=timeout_s),
        lambda client: client.batch_set(["k"], memory, timeout_s=timeout_s),
        lambda client: client.batch_exists(["k"], timeout_s=timeout_s),
        lambda client: client.batch_delete(["k"], timeout_s=timeout_s),
    ):
        watched.refuses(call, match="timeout_s")


@pytest.mark.parametrize("ttl_s", [0, -1, 0.0009, float("nan"), float("inf"), 1e300, 1.1e12])
def test_a_life_lasts_a_while_and_ends(watched: Watched, ttl_s: float) -> None:
    watched.refuses(lambda client: client.set("k", b"v", ttl_s=ttl_s), match="ttl_s")
    watched.refuses(lambda client: client.batch_set(["k"], [b"v"], ttl_s=ttl_s), match="ttl_s")


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e300, 1e12, 10**9])
def test_a_limit_may_be_far_away(watched: Watched, timeout_s: float) -> None:
    assert list(watched.client.batch_exists(["k"], timeout_s=timeout_s)) == [Status.MISS]
    watched.server.commands.clear()


@pytest.mark.parametrize("kind", KINDS)
def test_settings_may_be_far_away(kind: str) -> None:
    far = dict.fromkeys(("timeout_s", "connect_timeout_s", "stall_timeout_s"), 1e300)
    far["floor_rate_bytes_s"] = 1e-300
    with ScriptedServer(MiniStore()) as server, opened(kind, server, **far) as client:
        client.set("k", b"v")
        assert client.get("k", bytearray(1)) is True


# Ends.


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_client_says_so(kind: str) -> None:
    with ScriptedServer(MiniStore()) as server:
        with opened(kind, server) as client:
            client.close()
            client.close()
            calls: tuple[Callable[[], object], ...] = (
                lambda: client.get("k", bytearray(1)),
                lambda: client.set("k", b"v"),
                lambda: client.exists("k"),
                lambda: client.delete("k"),
                lambda: client.batch_get(["k"], [bytearray(1)]),
                lambda: client.batch_set(["k"], [b"v"]),
                lambda: client.batch_exists(["k"]),
                lambda: client.batch_delete(["k"]),
                lambda: client.ping(),
            )
            for call in calls:
                with pytest.raises(errors.ClosedError):
                    call()
            assert "closed" in repr(getattr(client, "_subject", client))
        # After a slow greeting it may have asked how far away the server is.
        assert set(server.names()) <= {*HANDSHAKE, b"PING"}


@pytest.mark.parametrize("kind", NATIVE)
def test_a_closed_client_takes_no_submission(kind: str) -> None:
    with ScriptedServer(MiniStore()) as server, opened(kind, server) as client:
        client.close()
        with pytest.raises(errors.ClosedError):
            client.submit_batch_get(["k"], [bytearray(1)])
        with pytest.raises(errors.ClosedError):
            client.submit_batch_delete(["k"])
        assert client.drain_completions() == []
        client.cancel(1)


def test_too_many_waiting_commands_are_refused_whole() -> None:
    deaf = ScriptedServer(silent(), MiniStore())
    patient = {"timeout_s": 60.0, "stall_timeout_s": 60.0, "connect_timeout_s": 60.0}
    with deaf, RedisClient(deaf.host, deaf.port, **tuned(ClientConfig, **patient)) as client:
        keys = ["k"] * 1_000_000
        for _ in range(4):
            client.submit_batch_exists(keys)
        for _ in range(3):  # a little is in flight, most of it waits
            with pytest.raises(errors.CapacityError):
                client.submit_batch_exists(keys)
        client.submit_batch_exists(["k"])
        client.close()
        sizes = sorted(len(result) for _, result in client.drain_completions())
        assert sizes == [1] + [1_000_000] * 4  # batches finish in any order


# An object whose export changes the lists of the call that asks for it.
MEDDLER = """
import sys, numpy, kvferry

class Meddler:
    def __dlpack_device__(self):
        keys.clear(), buffers.clear()
        return (1, 0)
    def __dlpack__(self, **options):
        return numpy.zeros(8, "u1").__dlpack__(**options)

keys = [f"key {index} " * 20 for index in range(2000)]
buffers = [Meddler(), *(bytearray(8) for _ in range(1999))]
with kvferry.RedisClient(port=int(sys.argv[1])) as client:
    try:
        print(len(client.batch_get(keys, buffers)))
    except kvferry.KVFerryError as error:
        print(type(error).__name__)
"""


def test_a_buffer_that_changes_the_lists_does_no_harm() -> None:
    with ScriptedServer(MiniStore()) as server:
        done = run(
            [sys.executable, "-c", MEDDLER, str(server.port)], capture_output=True, text=True
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("2000\n", "UsageError\n", "BadBufferError\n")


def test_overlap_is_found_between_types_without_a_common_owner(watched: Watched) -> None:
    numbers = array.array("d", [0.0] * 8)
    shared = (ctypes.c_double * 8).from_buffer(numbers)
    watched.refuses(partial(batch_get, ["a", "b"], [numbers, shared]), match="overlap")


@pytest.mark.parametrize("kind", [RedisClient, PureRedisClient])
def test_the_log_names_a_server_that_is_away_once(
    kind: type[RedisClient | PureRedisClient], caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with kind(host="127.0.0.1", port=port) as client, pytest.raises(errors.UnavailableError):
        client.get("k", bytearray(1))
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == 1
    assert said[0].count(f"127.0.0.1:{port}") == 1
