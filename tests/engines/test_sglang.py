"""HiCache on our backend, through SGLang's own factory, host pools and cache controller.

What SGLang's memory looks like is pinned by a digest of each layout: if an upgrade changes bytes,
this fails, and not a user's answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_lane.install import environment_for

from support.line_process import DriverError, LineProcess
from support.servers import TestServer

pytestmark = pytest.mark.engines  # 3 GB for something that few change

RECIPE = "sglang-0.5.23"
TESTS = Path(__file__).resolve().parents[1]
DRIVER = Path(__file__).with_name("plugins") / "sglang_driver.py"
FRAME_BYTES = 64
SMALL = {"pages": 16, "page_size": 8, "layers": 3, "heads": 2, "dim": 16}
MLA = {"pages": 16, "page_size": 8, "layers": 3, "rank": 24, "rope": 8}
REVISION = {"revision": "golden"}
PATIENT = {
    "tuning": {"lookup_timeout_s": 10, "load_timeout_s": 20}
}  # others may use the same cores

# The bytes of a stored page, as axes from the outermost in; each part begins behind the bar.
LAYOUTS = {
    "page_first": "kv | token layer head dim",
    "page_first_direct": "kv | layer token head dim",
    "page_head": "kv | head token layer dim",
    "layer_first": "layer kv | token head dim",
}
AXES = ("kv", "layer", "token", "head", "dim")


@pytest.fixture(scope="module")
def _opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


_drivers: dict[ExitStack, LineProcess] = {}


@pytest.fixture
def sglang(_opened: ExitStack, engine_python: Callable[[str], Path]) -> LineProcess:
    """The driver's process, one for all tests: ``sglang("get", name="a", keys=..., pages=...)``."""
    if _opened not in _drivers:
        python = engine_python(RECIPE)
        environment = {**environment_for(python, TESTS), "OMP_NUM_THREADS": "1"}
        driver = LineProcess([python, DRIVER], environment)
        _drivers[_opened] = _opened.enter_context(driver)
    return _drivers[_opened]


def hashes(count: int, of: str = "a") -> list[str]:
    return [hashlib.sha256(f"{of}{index}".encode()).hexdigest() for index in range(count)]


def opened(sglang: Any, store: TestServer, name: str, kind: str, shape: Any, **more: Any) -> None:
    extra = {"url": store.url, **REVISION, **PATIENT, **more.pop("extra", {})}
    sglang("open", name=name, kind=kind, shape=shape, extra=extra, **more)


POOLS = {
    "page_first": ("mha", {"layout": "page_first", **SMALL}),
    "page_first_direct": ("mha", {"layout": "page_first_direct", **SMALL}),
    "page_head": ("mha", {"layout": "page_head", **SMALL}),
    "layer_first": ("mha", {"layout": "layer_first", **SMALL}),
    "keys wider than values": ("mha", {"layout": "page_first", **SMALL, "v_dim": 8}),
    "mla page_first": ("mla", {"layout": "page_first", **MLA}),
    "mla page_first_direct": ("mla", {"layout": "page_first_direct", **MLA}),
    "mla layer_first": ("mla", {"layout": "layer_first", **MLA}),
}


@pytest.mark.parametrize("which", POOLS)
def test_pages_of_each_pool_come_back(sglang: Any, store: TestServer, which: str) -> None:
    kind, shape = POOLS[which]
    keys = hashes(5)
    opened(sglang, store, "a", kind, shape)
    sglang("fill", name="a", seed=1)
    before = sglang("digests", name="a", pages=[0, 1, 2, 3, 4])
    assert sglang("exists", name="a", keys=keys) == 0
    assert sglang("set", name="a", keys=keys, pages=[0, 1, 2, 3, 4]) == [True] * 5
    assert sglang("exists", name="a", keys=[*keys, *hashes(2, "b")]) == 5
    assert sglang("get", name="a", keys=keys, pages=[9, 7, 11, 6, 15]) == [True] * 5
    assert sglang("digests", name="a", pages=[9, 7, 11, 6, 15]) == before
    # Another process would have another pool: so does this one.
    opened(sglang, store, "b", kind, shape)
    sglang("fill", name="b", seed=2)
    assert sglang("get", name="b", keys=keys, pages=[0, 1, 2, 3, 4]) == [True] * 5
    assert sglang("digests", name="b", pages=[0, 1, 2, 3, 4]) == before
    for name in "ab":
        sglang("close", name=name)


@pytest.mark.parametrize("which", [name for name in POOLS if name != "keys wider than values"])
def test_generic_calls_see_the_same_pages(sglang: Any, store: TestServer, which: str) -> None:
    kind, shape = POOLS[which]
    keys = hashes(3)
    opened(sglang, store, "a", kind, shape)
    sglang("fill", name="a", seed=1)
    before = sglang("digests", name="a", pages=[0, 1, 2])
    assert sglang("set_flat", name="a", keys=keys[:2], pages=[0, 1]) is True
    assert sglang("set", name="a", keys=keys[2:], pages=[2]) == [True]
    assert sglang("get", name="a", keys=keys, pages=[5, 6, 7]) == [True] * 3
    assert sglang("digests", name="a", pages=[5, 6, 7]) == before
    found = sglang("get_flat", name="a", keys=[*keys, *hashes(1, "b")], pages=[8, 9, 10, 11])
    assert found == [True, True, True, False]
    assert sglang("digests", name="a", pages=[8, 9, 10]) == before
    sglang("close", name="a")


def numbered(layout: str, page: int) -> list[bytes]:
    """The parts of a page after `number` of the driver, in which each number tells its place."""
    layers, size = SMALL["layers"], SMALL["page_size"]
    shape = (2, layers, SMALL["pages"] * size, SMALL["heads"], SMALL["dim"])
    kv, layer, token, head, column = np.indices(shape)
    told = (kv * 7919 + layer * 1009 + token * 101 + head * 13 + column) % 32749
    told = told[:, :, page * size : (page + 1) * size].astype("<i2")
    outer, inner = (words.split() for words in LAYOUTS[layout].split("|"))
    told = told.transpose([AXES.index(axis) for axis in (*outer, *inner)])
    return [part.tobytes() for part in told.reshape(-1, *told.shape[len(outer) :])]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bytes_of_a_page_are_those_of_the_version_that_we_know(
    sglang: Any, store: TestServer, layout: str
) -> None:
    keys = hashes(2)
    opened(sglang, store, "a", "mha", {"layout": layout, **SMALL})
    sglang("number", name="a")
    assert sglang("set", name="a", keys=keys, pages=[0, 1]) == [True, True]
    ((identity, description),) = sglang("identities", name="a").items()
    assert f"layout={layout}\n" in description
    for page, key in enumerate(keys):
        parts = numbered(layout, page)
        names = [f"kvf:{identity}:{key}.{part}" for part in range(len(parts))]
        assert [store.cli("GET", name)[FRAME_BYTES:] for name in names] == parts
    assert store.cli("DBSIZE") == 2 * len(parts) + 1  # and the identity's description
    sglang("close", name="a")


def test_damage_is_a_miss_and_is_stored_again(sglang: Any, store: TestServer) -> None:
    keys = hashes(4)
    opened(sglang, store, "a", "mha", POOLS["page_first"][1])
    sglang("fill", name="a", seed=1)
    sglang("set", name="a", keys=keys, pages=[0, 1, 2, 3])
    (identity,) = sglang("identities", name="a")
    name = f"kvf:{identity}:{keys[2]}.1"
    value = store.cli("GET", name)
    store.cli("SETRANGE", name, FRAME_BYTES + 9, bytes([value[FRAME_BYTES + 9] ^ 1]))
    good = sglang("get", name="a", keys=keys, pages=[8, 9, 10, 11])
    assert good == [True, True, False, True]
    assert sglang("set", name="a", keys=keys, pages=[0, 1, 2, 3]) == [True] * 4
    assert sglang("get", name="a", keys=keys, pages=[8, 9, 10, 11]) == [True] * 4
    assert sglang("digests", name="a", pages=[10]) == sglang("digests", name="a", pages=[2])
    sglang("close", name="a")


def test_another_revision_or_rank_finds_nothing(sglang: Any, store: TestServer) -> None:
    keys, shape = hashes(2), POOLS["page_first"][1]
    opened(sglang, store, "a", "mha", shape)
    sglang("set", name="a", keys=keys, pages=[0, 1])
    for more in (
        {"extra": {"revision": "other"}},
        {"config": {"tp_rank": 1, "tp_size": 2}},
        {"config": {"pp_rank": 1, "pp_size": 2}},
        {"config": {"attn_cp_rank": 1, "attn_cp_size": 2}},
    ):
        opened(sglang, store, "b", "mha", shape, **more)
        assert sglang("exists", name="b", keys=keys) == 0
        sglang("close", name="b")
    sglang("close", name="a")


def test_one_rank_writes_for_all_with_mla(sglang: Any, store: TestServer) -> None:
    keys, (kind, shape) = hashes(2), POOLS["mla page_first"]
    for name, rank in (("a", 0), ("b", 1)):
        config = {"tp_rank": rank, "tp_size": 2}
        opened(sglang, store, name, kind, shape, config=config)
        sglang("fill", name=name, seed=rank)
    assert sglang("set", name="b", keys=keys, pages=[0, 1]) == [True, True]
    assert sglang("exists", name="b", keys=keys) == 0
    assert sglang("set", name="a", keys=keys, pages=[0, 1]) == [True, True]
    assert sglang("get", name="b", keys=keys, pages=[4, 5]) == [True, True]
    assert sglang("digests", name="b", pages=[4]) == sglang("digests", name="a", pages=[0])
    for name in "ab":
        sglang("close", name=name)


def test_several_pools_agree_on_a_prefix(sglang: Any, store: TestServer) -> None:
    keys, shape = hashes(6), POOLS["page_first"][1]
    small = {**SMALL, "layers": 1}
    opened(sglang, store, "a", "mha", shape)
    for pool in ("swa", "indexer"):
        sglang("add_pool", name="a", pool=pool, kind="mha", shape={"layout": "page_first", **small})
    sglang("fill", name="a", seed=1)
    sglang("fill", name="a", seed=2, pool="swa")
    sglang("set", name="a", keys=keys, pages=[0, 1, 2, 3, 4, 5])
    stored = sglang(
        "move_v2",
        name="a",
        store=True,
        moves=[
            {"pool": "swa", "keys": [keys[1], keys[3], keys[4]], "pages": [1, 3, 4]},
            {"pool": "indexer", "keys": keys[:5], "pages": [0, 1, 2, 3, 4]},
        ],
    )
    assert stored == {"swa": [True] * 3, "indexer": [True] * 5}
    told = sglang(
        "exists_v2",
        name="a",
        keys=keys,
        needs=[
            {"pool": "swa", "policy": "trailing_pages", "keys": keys[-2:]},
            {"pool": "indexer", "policy": "all_pages"},
        ],
    )
    assert told == {"pages": 5, "pools": {"kv": 6, "swa": 5, "indexer": 5}, "lengths": [5]}
    loaded = sglang(
        "move_v2",
        name="a",
        store=False,
        moves=[{"pool": "swa", "keys": [keys[3], keys[2]], "pages": [8, 9]}],
    )
    assert loaded == {"swa": [True, False]}
    digests = [sglang("digests", name="a", pages=[page], pool="swa") for page in (3, 8)]
    assert digests[0] == digests[1]
    sglang("close", name="a")


def test_the_controller_stores_and_prefetches(sglang: Any, store: TestServer) -> None:
    shape = {**POOLS["page_first"][1], "pages": 32}
    for interface in (1, 0):  # in place, and through flat tensors
        extra: dict[str, Any] = {"url": store.url, "revision": f"v{interface}"}
        extra["interface_v1"] = interface
        extra |= PATIENT
        seen = sglang("controller", shape=shape, extra=extra, pages=10)
        assert seen == [80, 80, 80, True]


def test_injected_failures_are_misses_and_nothing_worse(sglang: Any, store: TestServer) -> None:
    environment = {
        "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.4",
        "SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.002",
    }
    keys = hashes(4)
    opened(sglang, store, "a", "mha", POOLS["page_first"][1], environment=environment)
    sglang("fill", name="a", seed=1)
    before = sglang("digests", name="a", pages=[0, 1, 2, 3])
    answers = set()
    for _ in range(40):
        sglang("set", name="a", keys=keys, pages=[0, 1, 2, 3])
        found = sglang("exists", name="a", keys=keys)
        good = sglang("get", name="a", keys=keys, pages=[8, 9, 10, 11])
        answers.add((found, tuple(good)))
        if all(good):
            assert sglang("digests", name="a", pages=[8, 9, 10, 11]) == before
    assert (4, (True,) * 4) in answers
    assert len(answers) > 1
    sglang("close", name="a")


def test_a_store_that_dies_is_no_exception(sglang: Any, store: TestServer) -> None:
    keys = hashes(4)
    opened(sglang, store, "a", "mha", POOLS["page_first"][1])
    assert sglang("set", name="a", keys=keys, pages=[0, 1, 2, 3]) == [True] * 4
    store.kill()
    assert sglang("get", name="a", keys=keys, pages=[4, 5, 6, 7]) == [False] * 4
    assert sglang("set", name="a", keys=keys, pages=[0, 1, 2, 3]) == [False] * 4
    assert sglang("exists", name="a", keys=keys) == 0
    assert sglang("clear", name="a") is False
    sglang("close", name="a")
    assert not store.is_running()


def test_stats_clear_and_configuration(sglang: Any, store: TestServer) -> None:
    keys = hashes(3)
    opened(sglang, store, "a", "mha", POOLS["page_first"][1])
    sglang("set", name="a", keys=keys, pages=[0, 1, 2])
    sglang("get", name="a", keys=keys, pages=[4, 5, 6])
    told = sglang("stats", name="a")
    assert (told["backup_pgs"], told["prefetch_pgs"], told["rates"]) == ([3], [3], 2)
    assert told["pools"]["kv"]["loaded_pages"] == 3
    assert sglang("stats", name="a")["prefetch_pgs"] == []
    assert sglang("clear", name="a") is True
    assert sglang("exists", name="a", keys=keys) == 0
    sglang("close", name="a")
    with pytest.raises(DriverError, match=r"ConfigError: .*unknown setting 'lookup_timeout_ms'"):
        opened(sglang, store, "b", "mha", POOLS["page_first"][1], extra={"lookup_timeout_ms": 250})


def test_64_pages_are_as_quick_as_the_client_alone(sglang: Any, store: TestServer) -> None:
    shape = {"pages": 128, "page_size": 64, "layers": 8, "heads": 8, "dim": 64}
    opened(sglang, store, "a", "mha", {"layout": "page_first", **shape})
    sglang("fill", name="a", seed=1)
    keys = [hashlib.sha256(b"%d" % page).hexdigest() for page in range(64)]
    told: list[dict[str, float]] = []
    while len(told) < 5 and not any(min(rates["get"], rates["set"]) >= 0.9 for rates in told):
        told.append(sglang("rates", name="a", pages=64, rounds=15))  # others use the machine too
    half, other = list(range(64)), list(range(64, 128))
    assert sglang("get", name="a", keys=keys, pages=other) == [True] * 64
    assert sglang("digests", name="a", pages=other) == sglang("digests", name="a", pages=half)
    sglang("close", name="a")
    assert any(min(rates["get"], rates["set"]) >= 0.9 for rates in told), told
