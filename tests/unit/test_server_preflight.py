"""What memory a server takes: as much as its chunks need, a little ahead, and never the last."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import ConfigError
from kvferry.config.cache import CacheConfig
from kvferry.config.server import ServerConfig
from kvferry.server.memory import pools
from kvferry.server.memory.pools import Pools, SharedMemory
from kvferry.server.memory.preflight import check_shared_memory
from support.stamps import until

GIB, MIB = 1 << 30, 1 << 20
CHUNK = MIB


def host(root: Path, *, groups: str = "0::/\n", **files: int) -> dict[str, Path]:
    """A host of 16 GiB, 12 of them available, with these files under its cgroups."""
    tree = {
        "proc/meminfo": f"MemTotal: {16 * MIB} kB\nMemAvailable: {12 * MIB} kB\n",
        "proc/self/cgroup": groups,
        **{f"cgroup/{name}": str(number) for name, number in files.items()},
    }
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return {"proc": root / "proc", "cgroup": root / "cgroup"}


def sized(gb: float, **settings: Any) -> ServerConfig:
    return ServerConfig(cache=CacheConfig(max_local_cpu_size=gb), **settings)


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/a/b\n", {"a/b/memory.max": 512 * MIB, "a/b/memory.current": MIB}),
        ("0::/a/b\n", {"a/memory.max": 512 * MIB, "a/b/memory.current": MIB}),
        ("0::/a\n", {"a/memory.high": 512 * MIB, "a/memory.current": MIB}),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": 512 * MIB}),
        ("4:cpu,memory:/not/here\n", {"memory/memory.limit_in_bytes": 512 * MIB}),
    ],
)
def test_a_pool_above_the_limit_of_a_cgroup_is_refused_with_both_sizes(
    groups: str, files: dict[str, int], tmp_path: Path
) -> None:
    there = host(tmp_path, groups=groups, **files)
    with pytest.raises(ConfigError, match=r"2\.00 GB .* 0\.50 GB .*--memory") as caught:
        check_shared_memory(sized(2), **there)
    assert "\n" not in str(caught.value)
    check_shared_memory(sized(0.25), **there)


def test_a_pool_above_the_memory_of_the_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"16\.50 GB .* 16\.00 GB"):
        check_shared_memory(sized(16.5), **host(tmp_path))


def test_a_pool_above_what_is_available_now_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used = {"a/memory.max": 2 * GIB, "a/memory.current": 3 * GIB // 2}
    there = host(tmp_path, groups="0::/a\n", **used)
    check_shared_memory(sized(0.25), **there)
    assert not caplog.records
    check_shared_memory(sized(1), **there)
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert "1.00 GB and 0.50 GB" in said.getMessage()


Make = Callable[..., tuple[Pools, SharedMemory]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Pools of so many MiB with one identity, on a host with as much memory as `memory` says."""
    made: list[Pools] = []

    def make(mib: int, memory: Callable[[], int] = lambda: 1 << 40, **settings: Any) -> Any:
        monkeypatch.setattr(pools, "available_memory_bytes", memory)
        monkeypatch.setattr(pools, "memory_limit_bytes", lambda: GIB)
        monkeypatch.setattr(pools, "_UNUSED_S", 0.2)
        monkeypatch.setattr(pools, "_SCARCE_S", 0.2)
        all_of_them = Pools(sized(mib / 1024, shm_name="kvferry-test-room", **settings))
        made.append(all_of_them)
        return all_of_them, all_of_them.memory(CHUNK)

    yield make
    for each in made:
        each.close(keep=False)


def fill(memory: SharedMemory, first: int, count: int) -> int:
    """Store one-chunk prompts; how many got a page."""
    stored = 0
    for n in range(first, first + count):
        reserved = memory.reserve(n.to_bytes(16, "little"), 0)
        stored += len(reserved.handles)
        if reserved.handles:
            memory.commit(reserved.id)
    return stored


def test_memory_is_taken_as_chunks_come_and_a_little_ahead(make: Make) -> None:
    every, memory = make(256)
    until(lambda: every.granted_bytes == 32 * MIB, 10)
    assert fill(memory, 0, 100) == 100
    until(lambda: every.granted_bytes >= 132 * MIB, 10)
    assert every.granted_bytes <= 100 * MIB + 2 * 64 * MIB
    assert fill(memory, 100, 400) == 400
    assert every.granted_bytes <= every.budget_bytes == 256 * MIB
    assert memory.used_bytes <= 256 * MIB


def test_all_is_taken_at_once_where_that_is_asked_for(make: Make) -> None:
    every, _ = make(96, prefault=True)
    until(lambda: every.granted_bytes == 96 * MIB, 10)


def test_memory_that_a_clear_made_free_goes_back(make: Make) -> None:
    every, memory = make(256)
    fill(memory, 0, 200)
    until(lambda: memory.pool.pages.granted_count >= 200, 10)
    assert memory.cache.clear() == 200
    until(lambda: every.granted_bytes <= 32 * MIB, 10)
    until(lambda: Path(memory.pool.segment.path).stat().st_blocks * 512 <= 33 * MIB, 10)
    assert fill(memory, 0, 50) == 50


def test_the_last_memory_of_the_host_is_left_to_others(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A pool that cannot grow turns over, says so once, and goes on when there is memory again."""
    of_the_host, made = [200 * MIB], list[Pools]()

    def left() -> int:
        return of_the_host[0] - sum(each.granted_bytes for each in made)

    every, memory = make(512, left)
    made.append(every)
    for n in range(10):
        assert fill(memory, n * 100, 100) == 100
    assert 64 * MIB <= every.granted_bytes <= 150 * MIB
    until(lambda: len(caplog.records) > 0, 10)
    (said,) = caplog.records
    assert "of 0.50 GB" in said.getMessage()
    of_the_host[0] = 1 << 40

    numbers = itertools.count(1000)

    def grows() -> bool:
        return fill(memory, next(numbers), 1) == 1 and every.granted_bytes > 300 * MIB

    until(grows, 20)
    assert len(caplog.records) == 1
