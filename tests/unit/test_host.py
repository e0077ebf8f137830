"""What the host leaves us, on hosts of many shapes, each a small tree of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvferry.base.host import available_memory_bytes, memory_limit_bytes, usable_cores

GIB = 1 << 30
ALL_CORES = len(os.sched_getaffinity(0))


def host(root: Path, own_groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A /proc with 16 GiB available, and a /sys/fs/cgroup with these files."""
    tree = {
        "proc/meminfo": f"MemTotal: {32 * GIB // 1024} kB\nMemAvailable: {16 * GIB // 1024} kB\n",
        "proc/self/cgroup": own_groups,
        **{f"cgroup/{name}": text for name, text in files.items()},
    }
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc", root / "cgroup"


def limits(limit: int | str, used: int, cache: int = 0) -> dict[str, str]:
    return {
        "memory.max": f"{limit}\n",
        "memory.current": f"{used}\n",
        "memory.stat": f"anon 1\ninactive_file {cache}\nactive_file 7\n",
    }


def under(group: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{group}/{name}": text for name, text in files.items()}


def test_without_limits_it_is_what_the_kernel_says(tmp_path: Path) -> None:
    proc, cgroup = host(tmp_path, "0::/\n", {})
    assert available_memory_bytes(proc, cgroup) == 16 * GIB


def test_v2_limit_less_what_is_used_but_for_cache(tmp_path: Path) -> None:
    files = under("pod", limits(8 * GIB, 5 * GIB, cache=3 * GIB))
    proc, cgroup = host(tmp_path, "0::/pod\n", files)
    assert available_memory_bytes(proc, cgroup) == 6 * GIB


def test_v2_every_level_counts(tmp_path: Path) -> None:
    files = under("a", limits(4 * GIB, GIB)) | under("a/b", limits("max", GIB // 2))
    proc, cgroup = host(tmp_path, "0::/a/b\n", files)
    assert available_memory_bytes(proc, cgroup) == 3 * GIB


def test_v2_path_of_the_host_inside_a_container(tmp_path: Path) -> None:
    proc, cgroup = host(tmp_path, "0::/kubepods/pod7\n", limits(2 * GIB, 0))
    assert available_memory_bytes(proc, cgroup) == 2 * GIB


def test_v1_limit(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": str(3 * GIB),
        "memory/job/memory.usage_in_bytes": str(2 * GIB),
        "memory/job/memory.stat": f"total_inactive_file {GIB}\n",
        "memory/memory.limit_in_bytes": str((1 << 63) - 4096),
        "memory/memory.usage_in_bytes": str(GIB),
    }
    proc, cgroup = host(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/\n0::/\n", files)
    assert available_memory_bytes(proc, cgroup) == 2 * GIB


def test_used_beyond_the_limit_is_nothing_left(tmp_path: Path) -> None:
    proc, cgroup = host(tmp_path, "0::/\n", limits(GIB, 2 * GIB))
    assert available_memory_bytes(proc, cgroup) == 0


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", ALL_CORES), ("100000 100000", 1), ("50000 100000", 1), ("9000000 10000", 900)],
)
def test_v2_cpu_quota(tmp_path: Path, quota: str, cores: int) -> None:
    proc, cgroup = host(tmp_path, "0::/pod\n", {"pod/cpu.max": quota + "\n"})
    assert usable_cores(proc, cgroup) == min(cores, ALL_CORES)


def test_v1_cpu_quota(tmp_path: Path) -> None:
    files = {"cpu/job/cpu.cfs_quota_us": "100000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    proc, cgroup = host(tmp_path, "3:cpu:/job\n", files)
    assert usable_cores(proc, cgroup) == 1


def test_this_host_has_some_of_both() -> None:
    assert 0 < available_memory_bytes() < 1 << 50
    assert 1 <= usable_cores() <= ALL_CORES


def test_the_lowest_limit_of_all_levels_is_what_can_be_taken_at_most(tmp_path: Path) -> None:
    proc, cgroup = host(tmp_path / "none", "0::/\n", {})
    assert memory_limit_bytes(proc, cgroup) == 32 * GIB
    files = under("a", limits(4 * GIB, GIB)) | under("a/b", limits("max", GIB // 2))
    proc, cgroup = host(tmp_path / "v2", "0::/a/b\n", files)
    assert memory_limit_bytes(proc, cgroup) == 4 * GIB
    proc, cgroup = host(tmp_path / "high", "0::/a\n", {"a/memory.high": f"{3 * GIB}\n"})
    assert memory_limit_bytes(proc, cgroup) == 3 * GIB
    proc, cgroup = host(
        tmp_path / "v1", "4:memory:/a\n", {"memory/a/memory.limit_in_bytes": f"{GIB}\n"}
    )
    assert memory_limit_bytes(proc, cgroup) == GIB
    unlimited = {"memory/memory.limit_in_bytes": "9223372036854771712\n"}
    proc, cgroup = host(tmp_path / "no", "4:memory:/a\n", unlimited)
    assert memory_limit_bytes(proc, cgroup) == 32 * GIB
    assert 0 < memory_limit_bytes() < 1 << 50
