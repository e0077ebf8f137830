"""A file store whose directory goes away and comes back while a cache uses it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvferry import TieredCache
from kvferry.chunks.keys import chunk_hashes
from support.clock import now_s
from support.engines import CHUNK, MIB, check, expected, open_engine, prompt, space
from support.stamps import until

LIMIT_S = 30.0
TOKENS = 4 * CHUNK


def store_at(path: Path) -> dict[str, Any]:
    return {"type": "file", "path": str(path), "max_capacity_gb": 64 * MIB / (1 << 30)}


def is_kept(engine: TieredCache, seed: int) -> bool:
    """Whether a new prompt gets into the store."""
    tokens = prompt(TOKENS, seed)
    engine.store(tokens, expected(tokens))
    assert engine.flush(LIMIT_S)
    engine.clear(stores=False)
    return check(engine, tokens) == TOKENS


def is_removed(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


@pytest.mark.parametrize("how", ["removed", "emptied", "renamed", "replaced"])
def test_it_is_written_again_when_it_is_back(tmp_path: Path, how: str) -> None:
    path = tmp_path / "kv"
    with open_engine(stores=[store_at(path)]) as engine:
        assert is_kept(engine, 1)
        if how == "removed":  # while what is lost is written again
            until(lambda: is_removed(path), LIMIT_S)
        elif how == "emptied":
            for entry in path.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        else:
            path.rename(tmp_path / "aside")
            until(lambda: not engine.tiers[0].tier.connector.available, LIMIT_S)
            started = now_s()
            assert not is_kept(engine, 2)  # memory goes on, and nobody waits
            assert now_s() - started < 2.0
            assert not path.exists()
            if how == "renamed":
                (tmp_path / "aside").rename(path)
            else:
                path.mkdir()
        seeds = iter(range(100, 10_000))
        until(lambda: is_kept(engine, next(seeds)), LIMIT_S)
        if how == "renamed":
            check(engine, prompt(TOKENS, 1), want=TOKENS)


def test_a_file_system_that_is_unmounted_and_mounted_again(tmp_path: Path) -> None:
    point = tmp_path / "disk"
    point.mkdir()

    def mount() -> bool:
        command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(point)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def unmount() -> None:
        subprocess.run(["umount", "-l", str(point)], check=True)

    if not mount():
        pytest.skip("mounting takes root")
    try:
        with open_engine(stores=[store_at(point / "kv")]) as engine:
            assert is_kept(engine, 1)
            unmount()
            until(lambda: not engine.tiers[0].tier.connector.available, LIMIT_S)
            assert not is_kept(engine, 2)
            assert list(point.iterdir()) == []  # this is another disk
            assert mount()  # and empty
            seeds = iter(range(100, 10_000))
            until(lambda: is_kept(engine, next(seeds)), LIMIT_S)
    finally:
        unmount()


@pytest.mark.parametrize("what", ["directory", "pipe", "link"])
def test_something_in_the_way_of_one_chunk_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "kv"
    with open_engine(stores=[store_at(path)]) as engine:
        tokens = prompt(TOKENS, 1)
        assert is_kept(engine, 0)
        key = space().prefix + chunk_hashes(tokens, CHUNK)[2].hex()
        before = set(path.glob("??/*"))
        engine.store(tokens, expected(tokens))
        assert engine.flush(LIMIT_S)
        engine.clear(stores=False)
        found = {each.read_bytes()[96 : 96 + len(key)]: each for each in path.glob("??/*")}
        place = found[key.encode()]
        assert place not in before
        place.unlink()
        if what == "directory":
            (place / "full").mkdir(parents=True)
        elif what == "pipe":
            os.mkfifo(place)
        else:
            place.symlink_to(place)
        caplog.clear()
        for round_ in range(5):
            engine.store(tokens, expected(tokens))
            assert engine.flush(LIMIT_S)
            engine.clear(stores=False)
            check(engine, tokens, want=2 * CHUNK)
            engine.clear(stores=False)
            assert is_kept(engine, 10 + round_)
        warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert sum(f"{place} is in the way" in text for text in warned) <= 2, warned
        assert len(warned) <= 2, warned
        assert engine.tiers[0].tier.connector.available
