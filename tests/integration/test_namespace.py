"""Cache namespaces: what a value is on the server, and everything that is not a value."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvferry import CacheNamespace, PagePool, RedisClient, Status
from kvferry.base import errors
from kvferry.client.batch import Operation, Verb
from support import clock
from support.clients import NATIVE, opened
from support.pure import MIB, payload
from support.scripted import MiniStore, ScriptedServer, answer
from support.servers import TestServer
from support.stamps import until

IDENTITY = bytes(range(16))
OTHER_IDENTITY = bytes(range(16, 32))
STRIPE_BYTES = 4 * MIB
SIZES = [512 << 10, STRIPE_BYTES, STRIPE_BYTES + 1, 9 * MIB, 40 * MIB]


@pytest.fixture(params=NATIVE)
def client(request: pytest.FixtureRequest, valkey: TestServer) -> Iterator[Any]:
    with opened(request.param, valkey) as opened_client:
        yield opened_client


def space(client: Any, size_bytes: int, identity: bytes = IDENTITY, prefix: str = "kv:") -> Any:
    return client.namespace(prefix, identity=identity, value_size_bytes=size_bytes)


def names(key: str, size_bytes: int) -> list[str]:
    """The keys of the stripes of a value, the first one first."""
    count = max(1, -(-size_bytes // STRIPE_BYTES))
    return [key, *(f"{key}#{index}" for index in range(1, count))]


def await_no_key(server: TestServer, key: str) -> None:
    deadline = clock.now_s() + 5
    while server.cli("EXISTS", key):
        assert clock.now_s() < deadline, f"{key} is still there"
        time.sleep(0.01)


# What a value is.


@pytest.mark.parametrize("size_bytes", SIZES)
def test_values_come_back_and_lie_in_stripes(
    client: Any, valkey: TestServer, size_bytes: int
) -> None:
    here = space(client, size_bytes)
    value, target = payload(size_bytes), bytearray(size_bytes)
    assert here.get("v", target) is False
    here.set("v", value)
    assert here.get("v", target) is True
    assert target == value
    assert sorted(valkey.cli("KEYS", "*")) == sorted(n.encode() for n in names("kv:v", size_bytes))
    stored = [valkey.cli("STRLEN", name) for name in names("kv:v", size_bytes)]
    assert sum(stored) == size_bytes + 64 * len(stored)
    assert max(stored) <= STRIPE_BYTES + 64
    assert valkey.cli("GETRANGE", "kv:v", 0, 3) == b"KVFY"


@pytest.mark.parametrize("size_bytes", [100, 9 * MIB])
def test_exists_and_delete_mean_the_whole_value(
    client: Any, valkey: TestServer, size_bytes: int
) -> None:
    here = space(client, size_bytes)
    assert here.exists("v") is False
    assert here.delete("v") is False
    here.batch_set(["v", "w"], [payload(size_bytes)] * 2)
    assert here.exists("v") is True
    assert here.delete("v") is True
    assert valkey.cli("EXISTS", *names("kv:v", size_bytes)) == 0
    assert here.delete("v") is False
    assert list(here.batch_exists(["v", "w"])) == [Status.MISS, Status.OK]
    assert list(here.batch_delete(["v", "w"])) == [Status.MISS, Status.OK]
    assert valkey.cli("DBSIZE") == 0


def test_batches_report_each_key_and_the_prefix(client: Any) -> None:
    here = space(client, 5 * MIB)
    keys = [f"c{index}" for index in range(6)]
    values = [payload(5 * MIB, index) for index in range(6)]
    stored = here.batch_set(keys[:3] + keys[4:], values[:3] + values[4:])
    assert stored.ok
    assert list(stored.sizes) == [5 * MIB] * 5
    targets = [bytearray(5 * MIB) for _ in keys]
    result = here.batch_get(keys, targets)
    assert [status.name for status in result] == ["OK", "OK", "OK", "MISS", "OK", "OK"]
    assert result.prefix_len == 3
    assert list(result.sizes) == [5 * MIB] * 3 + [0] + [5 * MIB] * 2
    assert all(targets[index] == values[index] for index in (0, 1, 2, 4, 5))
    for stopped in (
        here.batch_get(keys, targets, prefix=True),
        here.batch_exists(keys, prefix=True),
        here.batch_exists(keys, prefix=True, touch=True),
    ):
        assert stopped.prefix_len == 3
        assert stopped[3] is Status.MISS


def test_time_to_live_holds_for_every_stripe(client: Any, valkey: TestServer) -> None:
    here = space(client, 9 * MIB)
    here.set("v", payload(9 * MIB), ttl_s=100)
    times_s = [valkey.cli("TTL", name) for name in names("kv:v", 9 * MIB)]
    assert all(90 < left_s <= 100 for left_s in times_s)
    here.batch_set(["v"], [payload(9 * MIB)], ttl_s=0.05)
    await_no_key(valkey, "kv:v")
    assert here.exists("v") is False


def test_touch_refreshes_every_stripe(client: Any, valkey: TestServer) -> None:
    here = space(client, 9 * MIB)
    for key in ("v", "w"):
        here.set(key, payload(9 * MIB))

    def idle_s(key: str) -> list[int]:
        return [valkey.cli("OBJECT", "IDLETIME", name) for name in names(key, 9 * MIB)]

    until(lambda: min(idle_s("kv:v") + idle_s("kv:w")) >= 2, 10)
    assert here.batch_exists(["v"]).ok
    assert min(idle_s("kv:v")) >= 2
    assert here.batch_exists(["v"], touch=True).ok
    assert max(idle_s("kv:v")) < min(idle_s("kv:w"))  # meanwhile a second may end


@pytest.mark.parametrize("key", ["text", "Grüße", b"\0\r\n\xff", "k" * 400])
def test_keys_and_prefixes(client: Any, valkey: TestServer, key: str | bytes) -> None:
    here, bare = space(client, 100, prefix="ü:"), space(client, 100, prefix="")
    raw = key.encode() if isinstance(key, str) else key
    here.set(key, payload(100))
    bare.set(key, payload(100, 1))
    assert sorted(valkey.cli("SCAN", 0, "COUNT", 1000)[1]) == sorted(["ü:".encode() + raw, raw])
    target = bytearray(100)
    assert here.get(key, target)
    assert target == payload(100)
    assert bare.get(key, target)
    assert target == payload(100, 1)


def test_pages_are_filled_in_place(client: Any) -> None:
    pool = PagePool(shape=(5, 1 << 20), dtype="uint8", pages=4)
    pages = pool.allocate_many(4)
    assert pages is not None
    for index, page in enumerate(pages[:2]):
        page.array[...] = index + 1
    here = space(client, pool.page_nbytes)
    assert here.batch_set(["a", "b"], pages[:2]).ok
    assert here.batch_get(["a", "b"], pages[2:]).ok
    assert [int(page.array.min()) for page in pages[2:]] == [1, 2]
    assert [int(page.array.max()) for page in pages[2:]] == [1, 2]


def test_it_says_what_it_is(client: Any) -> None:
    here = space(client, 4096)
    assert (here.prefix, here.identity, here.value_size_bytes) == ("kv:", IDENTITY, 4096)
    assert IDENTITY.hex() in repr(here if isinstance(here, CacheNamespace) else here._subject)


# What is not a value.


def test_a_missing_stripe_is_a_miss(client: Any, valkey: TestServer) -> None:
    here = space(client, 13 * MIB)
    target = bytearray(13 * MIB)
    for name in names("kv:v", 13 * MIB):
        here.set("v", payload(13 * MIB))
        assert here.get("v", target) is True
        assert valkey.cli("DEL", name) == 1
        assert here.get("v", target) is False
        assert here.exists("v") is False
        assert here.batch_exists(["v"], touch=True)[0] is Status.MISS


def test_mixed_generations_are_a_miss_until_one_is_complete(
    client: Any, valkey: TestServer
) -> None:
    size_bytes = 13 * MIB
    here = space(client, size_bytes)
    first, second = payload(size_bytes, 1), payload(size_bytes, 2)
    stripes = names("kv:v", size_bytes)
    here.set("v", first)
    old = [valkey.cli("GET", name) for name in stripes]
    here.set("v", second)
    new = [valkey.cli("GET", name) for name in stripes]
    for name, stripe in zip(stripes, old, strict=True):
        valkey.cli("SET", name, stripe)
    target = bytearray(size_bytes)
    for overwritten, (name, stripe) in enumerate(zip(stripes, new, strict=True)):
        assert here.get("v", target) is (overwritten == 0)
        valkey.cli("SET", name, stripe)
    assert here.get("v", target) is True
    assert target == second
    assert valkey.cli("EXISTS", *stripes) == len(stripes)  # a mixture is nobody's fault: all stay


@pytest.mark.parametrize("size_bytes", [100, 9 * MIB])
def test_another_identity_is_not_taken(client: Any, size_bytes: int) -> None:
    space(client, size_bytes).set("v", payload(size_bytes))
    with pytest.raises(errors.CorruptError, match="identity"):
        space(client, size_bytes, OTHER_IDENTITY).get("v", bytearray(size_bytes))


@pytest.mark.parametrize("size_bytes", [100, 9 * MIB])
def test_a_value_under_another_key_is_not_taken(
    client: Any, valkey: TestServer, size_bytes: int
) -> None:
    here = space(client, size_bytes)
    here.set("a", payload(size_bytes))
    for source, copy in zip(names("kv:a", size_bytes), names("kv:b", size_bytes), strict=True):
        valkey.cli("COPY", source, copy)
    with pytest.raises(errors.CorruptError, match="key"):
        here.get("b", bytearray(size_bytes))
    assert here.get("a", bytearray(size_bytes)) is True


def test_a_value_of_another_length_is_not_taken(client: Any) -> None:
    space(client, 100).set("v", payload(100))
    with pytest.raises(errors.SizeMismatchError):
        space(client, 101).get("v", bytearray(101))
    assert space(client, 100).get("v", bytearray(100)) is True


def test_a_striped_value_of_another_length_is_not_taken(client: Any) -> None:
    space(client, 13 * MIB).set("v", payload(13 * MIB))
    other = space(client, 9 * MIB)
    result = other.batch_get(["v"], [bytearray(9 * MIB)])
    assert (result[0], list(result.sizes)) == (Status.SIZE_MISMATCH, [13 * MIB])
    assert space(client, 13 * MIB).get("v", bytearray(13 * MIB)) is True


@pytest.mark.parametrize("raw", [b"", b"short", b"x" * 64, b"x" * 164, b"KVFY" + bytes(160)])
def test_another_programs_value_is_corrupt_and_goes(
    client: Any, valkey: TestServer, raw: bytes
) -> None:
    here = space(client, 100)
    valkey.cli("SET", "kv:v", raw)
    with pytest.raises(errors.CorruptError):
        here.get("v", bytearray(100))
    await_no_key(valkey, "kv:v")
    assert here.get("v", bytearray(100)) is False


@pytest.mark.parametrize(
    ("size_bytes", "name", "offset"),
    [
        (100, "kv:v", 0),  # magic
        (100, "kv:v", 30),  # the payload's checksum
        (100, "kv:v", 63),  # the header's checksum
        (100, "kv:v", 64),
        (100, "kv:v", 163),
        (2 * MIB, "kv:v", 64 + MIB),
        (9 * MIB, "kv:v", 64),
        (9 * MIB, "kv:v#1", 40),
        (9 * MIB, "kv:v#2", 64 + 1000),
    ],
)
def test_a_flipped_bit_is_corrupt_and_the_value_goes(
    client: Any, valkey: TestServer, size_bytes: int, name: str, offset: int
) -> None:
    here = space(client, size_bytes)
    here.batch_set(["u", "v", "w"], [payload(size_bytes, seed) for seed in range(3)])
    byte = valkey.cli("GETRANGE", name, offset, offset)[0]
    valkey.cli("SETRANGE", name, offset, bytes([byte ^ 0x10]))
    targets = [bytearray(size_bytes) for _ in range(3)]
    result = here.batch_get(["u", "v", "w"], targets)
    assert [status.name for status in result] == ["OK", "CORRUPT", "OK"]
    assert [targets[0], targets[2]] == [payload(size_bytes, seed) for seed in (0, 2)]
    assert client.stats()["values_corrupt"] == 1
    await_no_key(valkey, name)
    assert here.get("v", targets[1]) is False
    here.set("v", payload(size_bytes, 1))
    assert here.get("v", targets[1]) is True
    assert targets[1] == payload(size_bytes, 1)


@pytest.mark.parametrize(
    ("cause", "damage"),
    [
        ("magic", lambda raw, other: b"another program's value, which has no frame" * 9),
        ("version", lambda raw, other: raw[:4] + b"\x09" + raw[5:]),
        ("header_checksum", lambda raw, other: raw[:9] + bytes([raw[9] ^ 4]) + raw[10:]),
        ("shape", lambda raw, other: raw[:-1]),  # truncated
        ("payload_checksum", lambda raw, other: raw[:-1] + bytes([raw[-1] ^ 1])),
        ("key", lambda raw, other: other),
    ],
)
def test_each_cause_of_a_refusal_is_counted_and_named(
    valkey: TestServer,
    caplog: pytest.LogCaptureFixture,
    cause: str,
    damage: Callable[[bytes, bytes], bytes],
) -> None:
    with opened("native", valkey) as client:
        here = space(client, 100)
        here.batch_set(["u", "v"], [payload(100), payload(100, 1)])
        valkey.cli("SET", "kv:v", damage(valkey.cli("GET", "kv:v"), valkey.cli("GET", "kv:u")))
        assert here.batch_get(["v"], [bytearray(100)])[0] is Status.CORRUPT
        await_no_key(valkey, "kv:v")
        refused = {k: n for k, n in client.stats().items() if k.startswith("refused_") and n}
        assert refused == {f"refused_{cause}": 1}
        here.batch_exists(["v"])  # what is logged comes with the next call
        assert f"kv:v is not what was stored there (wrong {cause.replace('_', ' ')})" in caplog.text


def test_a_value_of_another_identity_is_refused_by_name(valkey: TestServer) -> None:
    with opened("native", valkey) as client:
        space(client, 100).set("v", payload(100))
        other = space(client, 100, OTHER_IDENTITY)
        assert other.batch_get(["v"], [bytearray(100)])[0] is Status.CORRUPT
        assert client.stats()["refused_identity"] == 1


def test_every_byte_is_guarded(valkey: TestServer) -> None:
    with opened("native", valkey) as client:
        here, target = space(client, 100), bytearray(100)
        here.set("v", payload(100))
        intact = valkey.cli("GET", "kv:v")
        for offset in range(len(intact)):
            broken = bytearray(intact)
            broken[offset] ^= 1 << offset % 8
            valkey.cli("SET", "kv:v", bytes(broken))
            with pytest.raises(errors.CorruptError):
                here.get("v", target)
            await_no_key(valkey, "kv:v")
        for size_bytes in (*range(0, 164, 9), 163, 165, 300):
            valkey.cli("SET", "kv:v", (intact + bytes(200))[:size_bytes])
            with pytest.raises(errors.CorruptError):
                here.get("v", target)
            await_no_key(valkey, "kv:v")
        valkey.cli("SET", "kv:v", intact)
        assert here.get("v", target) is True
        assert target == payload(100)


# Writers.


def test_two_writers_of_one_content_agree(valkey: TestServer) -> None:
    size_bytes, rounds = 13 * MIB, 6
    value = payload(size_bytes)
    with opened("native", valkey) as one, opened("native", valkey) as two:
        ours, theirs = space(one, size_bytes), space(two, size_bytes)
        ours.set("v", value)
        target = bytearray(size_bytes)
        for _ in range(rounds):
            framed = Operation(Verb.SET, ["kv:v"], [value], frame=ours._frame)
            ids = [each.client.announce(framed) for each in (ours, theirs)]
            assert ours.get("v", target) is True  # also in the middle of both
            assert target == value
            for writer, batch_id in ((one, ids[0]), (two, ids[1])):
                await_completion(writer, batch_id)
        assert ours.get("v", target) is True
        assert target == value


def await_completion(client: RedisClient, batch_id: int) -> None:
    deadline = clock.now_s() + 10
    while clock.now_s() < deadline:
        for finished, result in client.drain_completions():
            assert (finished, result.ok) == (batch_id, True)
            return
        time.sleep(0.002)
    raise AssertionError("the batch does not end")


def test_a_write_that_loses_a_stripe_leaves_no_first_stripe() -> None:
    """The order of writing, docs/formats/frame.md: stripe 0 last, when all others are there."""
    store = MiniStore()
    refused = answer(
        b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", b"SET", times=1
    )
    with ScriptedServer(refused, store) as server, opened("native", server) as client:
        here = space(client, 13 * MIB)
        with pytest.raises(errors.ServerError, match="OOM"):
            here.set("v", payload(13 * MIB))
        assert b"kv:v" not in store.data


# Mistakes.


@pytest.mark.parametrize("kind", NATIVE)
def test_mistakes_are_told_before_anything_is_sent(kind: str) -> None:
    with ScriptedServer(MiniStore()) as server, opened(kind, server) as client:
        here = space(client, 100)
        right, read_only = bytearray(100), bytes(100)
        mistakes: tuple[Callable[[], object], ...] = (
            lambda: here.get("k", bytearray(99)),
            lambda: here.get("k", bytearray(101)),
            lambda: here.get("k", bytearray()),
            lambda: here.get("k", read_only),
            lambda: here.set("k", bytes(99)),
            lambda: here.set("k", memoryview(bytes(200))[::2]),
            lambda: here.set("k", "text"),
            lambda: here.batch_get(["a", "b"], [right, bytearray(99)]),
            lambda: here.batch_get(["a", "b"], [right, right]),
            lambda: here.batch_get(["a"], []),
            lambda: here.batch_set(["a"], [right, right]),
            lambda: here.batch_get([], []),
            lambda: here.batch_exists("abc"),
            lambda: here.batch_exists([]),
            lambda: here.exists(""),
            lambda: here.exists(b""),
            lambda: here.exists("\ud800"),
            lambda: here.exists("k" * 510),
            lambda: here.exists(7),
            lambda: here.set("k", right, ttl_s=0),
            lambda: here.batch_get(["k"], [right], timeout_s=0),
        )
        for call in mistakes:
            with pytest.raises(errors.UsageError):
                call()
        assert here.exists("seen") is False
        words = [
            command for command in server.commands if command[0] in (b"GET", b"SET", b"EXISTS")
        ]
        assert words == [[b"EXISTS", b"kv:seen"]]


@pytest.mark.parametrize("identity", [b"", b"1234567", "0123456789abcdef", None])
def test_an_identity_is_a_digest(client: Any, identity: Any) -> None:
    with pytest.raises(errors.UsageError, match="identity"):
        space(client, 100, identity)


@pytest.mark.parametrize("size_bytes", [0, -1, 1.5, True, 65_535 * STRIPE_BYTES + 1])
def test_a_length_has_limits(client: Any, size_bytes: Any) -> None:
    with pytest.raises(errors.UsageError, match="value_size_bytes"):
        space(client, size_bytes)
    space(client, 65_535 * STRIPE_BYTES)


def test_a_closed_client_has_no_namespace(valkey: TestServer) -> None:
    with opened("native", valkey) as client:
        here = space(client, 100)
    with pytest.raises(errors.ClosedError):
        here.exists("k")
