"""What a cache server leaves to the next one, and what is swept."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvferry import _native
from kvferry.base.errors import ConfigError
from kvferry.server import protocol as p
from kvferry.server.memory import restart
from kvferry.server.memory.segments import SHARED_MEMORY, sweep
from support.cache_server import CacheServerProcess
from support.engines import CHUNK, IDENTITY, LAYOUT, prompt
from support.raw_peer import Peer, prompt_of
from support.stamps import until


@pytest.fixture(autouse=True)
def clean_up(tmp_path: Path) -> Iterator[None]:
    yield
    CacheServerProcess(tmp_path).remove_segments()


def keeping(tmp_path: Path, *options: str, mib: float = 1) -> CacheServerProcess:
    """A server with a state file."""
    return CacheServerProcess(tmp_path, "--state", str(tmp_path / "state"), *options, mib=mib)


def connect(server: CacheServerProcess, **settings: Any) -> Peer:
    return Peer(server.endpoint, **settings)


def test_the_next_server_has_the_chunks(tmp_path: Path) -> None:
    wide = replace(IDENTITY, model="wide", layout=replace(LAYOUT, layers=4))
    first, second = prompt(6 * CHUNK, 1), prompt(5 * CHUNK, 2)
    with keeping(tmp_path) as server, connect(server) as peer, connect(server, identity=wide) as w:
        peer.attach().store(first)
        peer.store(second, b"salt")
        w.attach().store(first)
    assert len(server.segments()) == 2
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    with keeping(tmp_path) as server, connect(server) as peer, connect(server, identity=wide) as w:
        assert not (tmp_path / "state").exists()  # a crash from here on must not find it
        assert peer.attach().read(first)[0] == 6
        assert peer.read(second, b"salt")[0] == 5
        assert w.attach().read(first)[0] == 6
        assert peer.store(prompt(20 * CHUNK, 3)) == 20
        pool = server.status()["pool"]
        assert pool["granted_bytes"] <= pool["bytes"]
    with keeping(tmp_path) as server, connect(server) as peer:
        assert peer.attach().read(prompt(20 * CHUNK, 3))[0] == 20
    (tmp_path / "state").unlink()
    with keeping(tmp_path) as server, connect(server) as peer:
        assert peer.attach().read(first)[0] == 0
        assert len(server.segments()) == 1  # those of before were swept


def test_chunks_that_may_have_lost_something_end_with_fp8(tmp_path: Path) -> None:
    (tmp_path / "fp8.yaml").write_text("cache: {remote_serde: fp8}\n")
    tokens, fp8 = prompt(6 * CHUNK), ("--config", str(tmp_path / "fp8.yaml"))
    with keeping(tmp_path, *fp8) as server, connect(server) as peer:
        peer.attach().store(tokens)
    with keeping(tmp_path, *fp8) as server, connect(server) as peer:
        assert peer.attach().read(tokens)[0] == 6
    with keeping(tmp_path) as server, connect(server) as peer:
        assert peer.attach().read(tokens)[0] == 0
        assert peer.store(tokens) == 6


def test_the_order_of_eviction_goes_on(tmp_path: Path) -> None:
    with keeping(tmp_path) as server, connect(server) as peer:
        peer.attach()
        pages = server.status()["pool"]["bytes"] // LAYOUT.chunk_bytes
        prompts = [prompt(8 * CHUNK, seed) for seed in range(pages // 8)]
        for tokens in prompts:
            peer.store(tokens)
        peer.read(prompts[0])
    with keeping(tmp_path) as server, connect(server) as peer:
        peer.attach()
        peer.store(prompt(8 * CHUNK, 1000))
        assert peer.read(prompts[0])[0] == 8  # it was used last
        assert peer.read(prompts[1])[0] < 8


@pytest.mark.parametrize("chunk", [0, 3])
def test_a_page_that_changed_is_a_miss(tmp_path: Path, chunk: int) -> None:
    tokens = prompt(6 * CHUNK)
    with keeping(tmp_path) as server, connect(server) as peer:
        peer.attach().store(tokens)
        leased = peer.want(p.Leased, p.Retrieve, prompt_of(tokens))
        assert peer.registered is not None
        at = leased.pages[chunk] * peer.registered.page_stride + 17
    with server.segments()[0].open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[at] ^= 1
    with keeping(tmp_path) as server, connect(server) as peer:
        assert peer.attach().read(tokens)[0] == chunk
        assert peer.store(tokens) == 1
        assert peer.read(tokens)[0] == 6


def test_who_still_writes_to_a_page_keeps_it_in_the_next_server(tmp_path: Path) -> None:
    tokens = prompt(4 * CHUNK)
    with keeping(tmp_path) as server:
        late = connect(server).attach()
        reserved = late.want(p.ReservedPages, p.Reserve, prompt_of(tokens))
    try:
        with keeping(tmp_path) as server, connect(server) as peer:
            assert server.status()["fenced_pages"] == 4
            others = peer.attach().want(p.ReservedPages, p.Reserve, prompt_of(tokens))
            assert not set(others.pages) & set(reserved.pages)
            late.write(reserved, prompt(4 * CHUNK, 9))  # into nobody's page
            peer.write(others, tokens)
            peer.want(p.Committed, p.Commit, others.reservation)
            assert peer.read(tokens)[0] == 4
            late.close()
            until(lambda: server.status()["fenced_pages"] == 0, 5)
    finally:
        late.close()


def test_a_smaller_pool_keeps_what_fits(tmp_path: Path) -> None:
    with keeping(tmp_path) as server, connect(server) as peer:
        peer.attach()
        for seed in range(100):
            peer.store(prompt(8 * CHUNK, seed))
    with keeping(tmp_path, mib=0.5) as server, connect(server) as peer:
        pool = server.status()["pool"]
        assert pool["granted_bytes"] <= pool["bytes"] == (1 << 20) // 2
        peer.attach()
        assert peer.read(prompt(8 * CHUNK, 99))[0] == 8
        assert peer.store(prompt(8 * CHUNK, 100)) == 8


@pytest.mark.parametrize("content", [b"", b"\x93", b"\x93\x01\x90\x90\x00", b"\x93" + b"x" * 1000])
def test_a_damaged_state_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    (tmp_path / "state").chmod(0o600)
    with keeping(tmp_path) as server, connect(server) as peer:
        assert peer.attach().store(prompt(CHUNK)) == 1


def test_a_state_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        restart.read(path)
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(ConfigError):
        restart.read(link)
    assert restart.read(tmp_path / "nothing") is None


def test_sweeping_takes_what_is_abandoned_alone() -> None:
    name = f"kvferry-test-{secrets.token_hex(4)}"
    ours = _native.SharedSegment.create(f"{SHARED_MEMORY}/{name}-{'0' * 32}", 1 << 20)
    dead = SHARED_MEMORY / f"{name}-{'1' * 32}"
    dead.write_bytes(bytes(4096))
    dead.chmod(0o600)
    kept = SHARED_MEMORY / f"{name}-{'2' * 32}"
    kept.write_bytes(bytes(4096))
    strange = SHARED_MEMORY / f"{name}-notes"
    strange.write_bytes(b"")
    try:
        assert sweep(name, frozenset([str(kept)])) == 1
        assert os.path.exists(ours.path)
        assert kept.exists()
        assert strange.exists()
        assert not dead.exists()
        assert sweep(name) == 1
        assert not kept.exists()
    finally:
        ours.close()
        strange.unlink()
    assert not list(SHARED_MEMORY.glob(f"{name}-*"))


def test_a_disk_that_is_full_keeps_no_torn_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        restart.write(tmp_path / "state", [], [], lambda pool: [])
    assert list(tmp_path.iterdir()) == []
