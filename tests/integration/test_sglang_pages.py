"""Pages of SGLang's host pools on a real server: in place, in batches, and never wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from kvferry import RedisClient
from kvferry.config.integrations import SglangSettings
from kvferry.integrations.sglang.host_pool import HostPages, HostPool
from kvferry.integrations.sglang.identity import heads_of, is_replicated, page_fields
from kvferry.integrations.sglang.page_store import PageStore
from support import clock
from support.host_pools import Config, LogicalPool, MhaPool, MlaPool, page_indices
from support.proxy import FaultProxy
from support.servers import TestServer
from support.stamps import until

Opened = Callable[..., HostPool]
FRAME_BYTES = 64


def hashes(count: int, of: str = "a") -> list[str]:
    """Page hashes as SGLang makes them."""
    return [hashlib.sha256(f"{of}{index}".encode()).hexdigest() for index in range(count)]


@pytest.fixture
def opened(valkey: TestServer) -> Iterator[Opened]:
    """opened(pool, config, url=..., **extra): the pool as the backend would register it."""
    with ExitStack() as stack:

        def make(pool: Any, config: Config | None = None, url: str = "", **extra: Any) -> HostPool:
            config = config or Config()
            settings = SglangSettings.read(
                {"url": url or valkey.url, "tuning": {"lookup_timeout_s": 5}, **extra}
            )
            client = stack.enter_context(RedisClient.from_config(settings.client))
            places = HostPages(pool, page_indices(pool, 0), *heads_of(pool, config))
            fields = {"weights": "w", **page_fields(pool, "kv", config)}
            store = PageStore(client, fields, places.parts, settings) if places.parts else None
            writes = config.is_storage_writer or not is_replicated(pool, "kv", config)
            made = HostPool(places, store, writes=writes)
            stack.callback(made.close)
            return made

        yield make


POOLS: dict[str, Callable[[], Any]] = {
    "page_first": lambda: MhaPool("page_first"),
    "page_head": lambda: MhaPool("page_head"),
    "layer_first": lambda: MhaPool("layer_first"),
    "keys wider than values": lambda: MhaPool("page_first", value_dim=4),
    "mla": MlaPool,
    "values in stripes": lambda: MhaPool(pages=6, page_size=64, layers=66, heads=8, dim=64),
}


@pytest.mark.parametrize("name", POOLS)
def test_pages_come_back_to_other_places(opened: Opened, name: str) -> None:
    pool, keys = POOLS[name](), hashes(3)
    here = opened(pool)
    pool.fill()
    before = [pool.page_bytes(page) for page in range(6)]
    assert here.leading(keys) == 0
    assert here.set(keys, page_indices(pool, 0, 1, 2)) == [True] * 3
    assert here.leading(keys) == 3
    assert here.leading([*keys, *hashes(2, "b")]) == 3
    # Not in order, not side by side.
    assert here.get(keys, page_indices(pool, 5, 3, 4)) == [True] * 3
    after = [pool.page_bytes(page) for page in range(6)]
    assert after == [*before[:3], before[1], before[2], before[0]]


def test_another_process_has_other_memory(opened: Opened) -> None:
    first, second, keys = MhaPool(), MhaPool(), hashes(4)
    first.fill()
    opened(first).set(keys, page_indices(first, 0, 1, 2, 3))
    assert opened(second).get(keys, page_indices(second, 0, 1, 2, 3)) == [True] * 4
    assert [second.page_bytes(i) for i in range(4)] == [first.page_bytes(i) for i in range(4)]


def test_holes_are_holes_and_nothing_else(opened: Opened, valkey: TestServer) -> None:
    pool, keys = MhaPool(), hashes(4)
    here = opened(pool)
    pool.fill()
    here.set(keys, page_indices(pool, 0, 1, 2, 3))
    assert here.store is not None
    (identity,) = here.store.identities
    assert valkey.cli("DEL", f"kvf:{identity}:{keys[1]}.1") == 1  # the values of one page
    assert here.leading(keys) == 1
    assert here.exists(keys) == [True, False, True, True]
    target = MhaPool()
    there = opened(target)
    assert there.get(keys, page_indices(target, 0, 1, 2, 3)) == [True, False, True, True]
    assert target.page_bytes(3) == pool.page_bytes(3)
    # It is stored again, whole, and the others are not sent twice.
    sent = here.store.stats()["stored_pages"]
    assert here.set(keys, page_indices(pool, 0, 1, 2, 3)) == [True] * 4
    assert here.store.stats()["stored_pages"] == sent + 1
    assert here.leading(keys) == 4


@pytest.mark.parametrize("damage", ["flipped", "short", "swapped"])
def test_what_is_damaged_is_a_miss(opened: Opened, valkey: TestServer, damage: str) -> None:
    pool, keys = MhaPool(), hashes(3)
    here = opened(pool)
    pool.fill()
    here.set(keys, page_indices(pool, 0, 1, 2))
    assert here.store is not None
    names = [f"kvf:{here.store.identities[0]}:{key}.0" for key in keys]
    values = [valkey.cli("GET", name) for name in names]
    if damage == "flipped":
        valkey.cli("SETRANGE", names[1], FRAME_BYTES + 5, bytes([values[1][FRAME_BYTES + 5] ^ 1]))
    elif damage == "short":
        valkey.cli("SET", names[1], values[1][:-1])
    else:
        valkey.cli("SET", names[1], values[2])
    target = MhaPool()
    assert opened(target).get(keys, page_indices(target, 0, 1, 2)) == [True, False, True]
    assert [target.page_bytes(i) for i in (0, 2)] == [pool.page_bytes(i) for i in (0, 2)]


def test_other_identities_never_see_each_other(opened: Opened) -> None:
    pool, keys = MhaPool(), hashes(2)
    pool.fill()
    opened(pool).set(keys, page_indices(pool, 0, 1))
    other = MhaPool()
    other.dtype = "torch.float16"
    assert opened(other).leading(keys) == 0
    assert opened(MhaPool(), Config(tp_rank=1, tp_size=2)).leading(keys) == 0
    assert opened(MhaPool(page_size=2)).leading(keys) == 0
    assert opened(MhaPool()).leading(keys) == 2


def test_one_of_the_ranks_with_the_same_bytes_writes(opened: Opened, valkey: TestServer) -> None:
    pools, keys = [MlaPool(), MlaPool()], hashes(2)
    ranks = [
        opened(pool, Config(tp_rank=rank, tp_size=2, is_mla_model=True))
        for rank, pool in enumerate(pools)
    ]
    for pool in pools:
        pool.fill()
    assert ranks[1].set(keys, page_indices(pools[1], 0, 1)) == [True, True]
    assert ranks[1].leading(keys) == 0
    assert ranks[0].set(keys, page_indices(pools[0], 0, 1)) == [True, True]
    assert ranks[1].leading(keys) == 2
    assert ranks[1].get(keys, page_indices(pools[1], 4, 5)) == [True, True]
    assert pools[1].page_bytes(4) == pools[0].page_bytes(0)


def test_two_ranks_find_what_four_have_stored(opened: Opened) -> None:
    keys, rng = hashes(2), np.random.default_rng(3)
    heads = rng.integers(0, 1 << 16, (2, 8, 8, 4, 3, 8), np.uint16)  # kv, page, head, ...
    for rank in range(4):
        narrow = MhaPool("page_head", heads=2)
        for kv in range(2):
            narrow.kv_buffer[kv][...] = heads[kv, :, 2 * rank : 2 * rank + 2]
        config = Config(tp_rank=rank, tp_size=4, tp_lcm_size=4)
        assert opened(narrow, config).set(keys, page_indices(narrow, 0, 1)) == [True, True]
    for rank in range(2):
        wide = MhaPool("page_head", heads=4)
        config = Config(tp_rank=rank, tp_size=2, tp_lcm_size=4)
        here = opened(wide, config)
        assert here.leading(keys) == 2
        assert here.get(keys, page_indices(wide, 6, 7)) == [True, True]
        for kv in range(2):
            assert np.array_equal(wide.kv_buffer[kv][6:], heads[kv, :2, 4 * rank : 4 * rank + 4])


@pytest.mark.parametrize("name", ["page_first", "page_head", "layer_first", "mla"])
def test_flat_pages_and_pages_in_place_are_the_same_values(opened: Opened, name: str) -> None:
    pool, keys = POOLS[name](), hashes(3)
    here = opened(pool)
    pool.fill()
    flat = [np.frombuffer(pool.page_bytes(page), np.uint16) for page in range(2)]
    assert here.set_flat(keys[:2], flat) is True
    assert here.set(keys[2:], page_indices(pool, 2)) == [True]
    assert here.get(keys[:2], page_indices(pool, 6, 7)) == [True, True]
    assert [pool.page_bytes(page) for page in (6, 7)] == [pool.page_bytes(p) for p in (0, 1)]
    targets = [np.zeros_like(flat[0]) for _ in keys]
    found = here.get_flat(keys, targets)
    assert [page is target for page, target in zip(found, targets, strict=True)] == [True] * 3
    assert [target.tobytes() for target in targets] == [pool.page_bytes(page) for page in range(3)]
    assert here.get_flat(hashes(1, "b"), targets[:1]) == [None]
    assert here.set_flat(keys[:1], [flat[0][:-1]]) is False  # another length
    assert here.get_flat(keys[:1], [targets[0][:-1]]) == [None]


def test_indices_that_are_no_whole_pages_touch_nothing(opened: Opened, valkey: TestServer) -> None:
    pool, keys = MhaPool(), hashes(2)
    here = opened(pool)
    assert here.set(keys, page_indices(pool, 0)) == [False, False]
    assert here.set(keys, None) == [False, False]
    assert here.get(keys, page_indices(pool, 0, 1)[:-1]) == [False, False]
    assert valkey.cli("KEYS", "kvf:*:*") == []


def test_a_pool_without_bytes_has_every_page(opened: Opened) -> None:
    here, keys = opened(LogicalPool()), hashes(3)
    assert here.leading(keys) == 3
    assert here.get(keys, None) == here.set(keys, None) == [True] * 3


def test_nothing_to_do_is_nothing_done(opened: Opened) -> None:
    here = opened(MhaPool())
    assert here.leading([]) == 0
    assert here.get([], page_indices(MhaPool())) == here.set([], None) == []
    assert here.get_flat([], None) == []


def test_clear_ends_what_is_ours_and_others_go_on(opened: Opened, valkey: TestServer) -> None:
    pool, other, keys = MhaPool(), MhaPool(page_size=2), hashes(3)
    here, there, beside = opened(pool), opened(other), opened(pool)
    here.set(keys, page_indices(pool, 0, 1, 2))
    there.set(keys, page_indices(other, 0, 1, 2))
    valkey.cli("SET", "not-ours", "1")
    assert here.store is not None
    assert here.store.clear() == 0
    assert (here.leading(keys), beside.leading(keys), there.leading(keys)) == (0, 3, 3)
    here.set(keys, page_indices(pool, 0, 1, 2))
    assert here.store.clear() == 6, "what it has written since then is nobody else's"
    assert (here.leading(keys), beside.leading(keys), there.leading(keys)) == (0, 3, 3)
    assert valkey.cli("GET", "not-ours") == b"1"


def test_a_question_is_one_batch_however_many_pages(opened: Opened, valkey: TestServer) -> None:
    pool, keys = MhaPool(pages=128), hashes(128)
    here = opened(pool)
    here.set(keys, page_indices(pool, *range(128)))
    assert here.store is not None
    jobs = here.store._groups[0].connector.stats()["jobs"]
    assert here.leading(keys) == 128
    assert here.store._groups[0].connector.stats()["jobs"] == jobs + 1


def test_a_server_that_is_away_costs_next_to_nothing(
    opened: Opened, fresh_server: TestServer
) -> None:
    pool, keys = MhaPool(), hashes(4)
    here = opened(
        pool, url=fresh_server.url, connect_timeout_s=0.5, tuning={"lookup_timeout_s": 0.5}
    )
    everything = page_indices(pool, 0, 1, 2, 3)
    until(lambda: here.set(keys, everything) == [True] * 4, 10)
    fresh_server.kill()
    until(lambda: not here.leading(keys), 10)  # the first answer may be in time
    assert here.store is not None
    began = clock.now_s()
    assert here.get(keys, everything) == [False] * 4
    assert here.set(keys, everything) == [False] * 4
    assert clock.now_s() - began < 2 * (0.5 + 2.0)
    fresh_server.restart()
    until(lambda: here.set(keys, everything) == [True] * 4, 10)
    until(lambda: here.leading(keys) == 4, 10)


def test_a_server_that_says_nothing_is_waited_for_no_longer_than_stated(
    opened: Opened, valkey: TestServer, proxied: Callable[..., FaultProxy]
) -> None:
    pool, keys = MhaPool(), hashes(4)
    proxy = proxied(valkey)
    limits = {"lookup_timeout_s": 0.2, "load_timeout_s": 0.3, "store_timeout_s": 0.3}
    here = opened(pool, url=proxy.url, tuning=limits)
    everything = page_indices(pool, 0, 1, 2, 3)
    until(lambda: here.set(keys, everything) == [True] * 4, 10)
    proxy.black_hole()
    began = clock.now_s()
    assert here.leading(keys) == 0
    assert here.get(keys, everything) == [False] * 4
    assert here.set(keys, everything) == [False] * 4
    assert clock.now_s() - began < 0.2 + 0.3 + 0.2 + 0.3 + 2.0
