"""Native = asyncio = pure = redis-py = a dictionary, on random mixes of commands.

Each step goes to every client, each over a database of its own, so that all of them meet the same
state. Their answers must be those of the model. redis-py is among them, and looks at the databases.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from functools import cache
from typing import Any

import hypothesis.strategies as st
import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvferry import Status
from kvferry.base import errors
from support.clients import KINDS, opened
from support.servers import TestServer

KEYS = (b"a", b"b", b"\0c\r\n", b"d" * 300, "é".encode(), b"never")
SIZES = (0, 1, 2, 31, 1000, 16_384, 70_000, 300_000)
UNTOUCHED = 0xA5
LONG_S = 1000.0
# A busy machine is no failure.
PATIENT = {"timeout_s": 60.0, "connect_timeout_s": 60.0, "stall_timeout_s": 60.0}

some_key = st.sampled_from(KEYS[:-1])
any_key = st.sampled_from(KEYS)
any_size = st.sampled_from(SIZES)
a_value = st.tuples(any_size, st.integers(0, 3))
a_life = st.sampled_from([None, LONG_S])
some_keys = st.lists(any_key, min_size=1, max_size=12)


@cache
def value_of(size: int, seed: int) -> bytes:
    return random.Random(size * 4 + seed).randbytes(size)


class RedisPy:
    """redis-py with our interface: the second opinion."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def batch_get(self, keys: list[bytes], buffers: list[bytearray]) -> list[Status]:
        return [self._get(key, target) for key, target in zip(keys, buffers, strict=True)]

    def _get(self, key: bytes, target: bytearray) -> Status:
        value: Any = self._redis.get(key)
        if value is None:
            return Status.MISS
        if len(value) != len(target):
            return Status.SIZE_MISMATCH
        target[:] = value
        return Status.OK

    def batch_set(
        self, keys: list[bytes], values: list[bytes], *, ttl_s: float | None = None
    ) -> list[Status]:
        for key, value in zip(keys, values, strict=True):
            self._redis.set(key, value, px=None if ttl_s is None else round(ttl_s * 1000))
        return [Status.OK] * len(keys)

    def batch_exists(self, keys: list[bytes], *, touch: bool = False) -> list[Status]:
        ask: Any = self._redis.touch if touch else self._redis.exists
        return [Status.OK if ask(key) else Status.MISS for key in keys]

    def batch_delete(self, keys: list[bytes]) -> list[Status]:
        return [Status.OK if self._redis.delete(key) else Status.MISS for key in keys]


class Clients(RuleBasedStateMachine):
    """Every client beside a dictionary: key to value and whether it has a time to live."""

    server: TestServer
    clients: dict[str, Any]
    admins: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.server.cli("FLUSHALL")
        self.model: dict[bytes, tuple[bytes, bool]] = {}

    @rule(key=some_key, value=a_value, ttl_s=a_life)
    def set(self, key: bytes, value: tuple[int, int], ttl_s: float | None) -> None:
        content = value_of(*value)
        for name, client in self.clients.items():
            if name == "redis-py":
                client.batch_set([key], [content], ttl_s=ttl_s)
            else:
                client.set(key, content, ttl_s=ttl_s)
        self.model[key] = content, ttl_s is not None

    @rule(
        items=st.dictionaries(some_key, a_value, min_size=1), ttl_s=st.sampled_from([None, 900.0])
    )
    def batch_set(self, items: dict[bytes, tuple[int, int]], ttl_s: float | None) -> None:
        keys, values = list(items), [value_of(*value) for value in items.values()]
        for name, client in self.clients.items():
            assert list(client.batch_set(keys, values, ttl_s=ttl_s)) == [Status.OK] * len(keys), (
                name
            )
        self.model.update(
            (key, (value, ttl_s is not None)) for key, value in zip(keys, values, strict=True)
        )

    @rule(key=any_key, size=any_size)
    def get(self, key: bytes, size: int) -> None:
        expected = self._expected(key, size)
        for name, client in self.clients.items():
            if name == "redis-py":
                continue
            target = bytearray([UNTOUCHED]) * size
            try:
                found = Status.OK if client.get(key, target) else Status.MISS
            except errors.SizeMismatchError:
                found = Status.SIZE_MISMATCH
            assert found is expected, name
            self._check(name, key, target, found)

    @rule(wanted=st.lists(st.tuples(any_key, st.one_of(st.none(), any_size)), min_size=1))
    def batch_get(self, wanted: list[tuple[bytes, int | None]]) -> None:
        """None stands for the right size."""
        keys = [key for key, _ in wanted]
        sizes = [self._size(key) if size is None else size for key, size in wanted]
        expected = [self._expected(key, size) for key, size in zip(keys, sizes, strict=True)]
        for name, client in self.clients.items():
            targets = [bytearray([UNTOUCHED]) * size for size in sizes]
            result = client.batch_get(keys, targets)
            assert list(result) == expected, name
            for key, target, status in zip(keys, targets, expected, strict=True):
                self._check(name, key, target, status)
            if name != "redis-py":
                held = [self._size(key) if key in self.model else 0 for key in keys]
                assert list(result.sizes) == held, name

    @rule(wanted=some_keys, what=st.sampled_from(["get", "exists"]))
    def prefix(self, wanted: list[bytes], what: str) -> None:
        """What lies behind the first hole may be anything true, or CANCELLED."""
        present = [key in self.model for key in wanted]
        hole = present.index(False) if False in present else len(wanted)
        for name, client in self.clients.items():
            if name == "redis-py":
                continue
            targets = [bytearray(self._size(key)) for key in wanted]
            if what == "get":
                result = client.batch_get(wanted, targets, prefix=True)
            else:
                result = client.batch_exists(wanted, prefix=True)
            assert result.prefix_len == hole, name
            for key, target, status, there in zip(wanted, targets, result, present, strict=True):
                truth = Status.OK if there else Status.MISS
                assert status in (truth, Status.CANCELLED), name
                if what == "get":
                    self._check(name, key, target, status)

    @rule(wanted=some_keys, touch=st.booleans())
    def batch_exists(self, wanted: list[bytes], touch: bool) -> None:
        expected = [Status.OK if key in self.model else Status.MISS for key in wanted]
        for name, client in self.clients.items():
            assert list(client.batch_exists(wanted, touch=touch)) == expected, name

    @rule(wanted=st.lists(any_key, min_size=1, max_size=4, unique=True))
    def batch_delete(self, wanted: list[bytes]) -> None:
        expected = [Status.OK if key in self.model else Status.MISS for key in wanted]
        for name, client in self.clients.items():
            assert list(client.batch_delete(wanted)) == expected, name
        for key in wanted:
            self.model.pop(key, None)

    @rule(key=some_key)
    def wrong_type(self, key: bytes) -> None:
        """The server answers with an error, between values that must stay in step."""
        size = self._size(key)
        for name, client in self.clients.items():
            if name == "redis-py":
                continue
            self.admins[name].rpush("list", "item")
            targets = [bytearray(size), bytearray(9), bytearray(size)]
            result = client.batch_get([key, "list", key], targets)
            self.admins[name].delete("list")
            around = self._expected(key, size)
            assert list(result) == [around, Status.SERVER_ERROR, around], name
            self._check(name, key, targets[2], around)

    @invariant()
    def server_agrees(self) -> None:
        for name, admin in self.admins.items():
            assert admin.dbsize() == len(self.model), name
            for key, (value, lives_long) in self.model.items():
                assert admin.strlen(key) == len(value), name
                assert (admin.pttl(key) > 0) is lives_long, name

    def _size(self, key: bytes) -> int:
        return len(self.model[key][0]) if key in self.model else 5

    def _expected(self, key: bytes, size: int) -> Status:
        if key not in self.model:
            return Status.MISS
        return Status.OK if self._size(key) == size else Status.SIZE_MISMATCH

    def _check(self, name: str, key: bytes, target: bytearray, status: Status) -> None:
        if status is Status.OK:
            assert target == self.model[key][0], name


def test_clients_agree(valkey: TestServer) -> None:
    with ExitStack() as stack:
        clients: dict[str, Any] = {}
        admins: dict[str, Any] = {}
        for db, name in enumerate((*KINDS, "redis-py")):
            admins[name] = redis.Redis(valkey.host, valkey.port, db=db)
            stack.callback(admins[name].close)
            clients[name] = (
                RedisPy(admins[name])
                if name == "redis-py"
                else stack.enter_context(opened(name, valkey, db=db, **PATIENT))
            )
        shared = {"server": valkey, "clients": clients, "admins": admins}
        run_state_machine_as_test(
            type("Clients", (Clients,), shared),
            settings=settings(
                max_examples=100,
                stateful_step_count=30,
                suppress_health_check=list(HealthCheck),
            ),
        )
