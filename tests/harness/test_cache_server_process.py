"""A cache server for tests is the one that the test has started, whoever has its port."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import cache_server
from support.cache_server import CacheServerProcess
from support.servers import free_port


def test_a_port_that_another_server_has_taken_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    port = free_port()
    ports = iter([port, port])
    monkeypatch.setattr(cache_server, "free_port", lambda: next(ports, None) or free_port())
    with (
        CacheServerProcess(tmp_path / "one", mib=1) as one,
        CacheServerProcess(tmp_path / "other", mib=1) as other,
    ):
        for server in (one, other):
            assert server.process is not None
            assert server.process.poll() is None
            assert server.status()["pid"] == server.pid
        assert one.url("/") != other.url("/")
