"""LMCache's own tests, from its source distribution, with our classes in place of theirs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_lane.install import environment_for, home

from engines.lmcache.upstream import APART, RUNS, VERSION, Run
from support.servers import TestServer

HERE = Path(__file__).with_name("lmcache")
LIMIT_S = 900
pytestmark = [pytest.mark.engines, pytest.mark.timeout(LIMIT_S + 60)]


@pytest.fixture
def python(engine_python: Callable[[str], Path]) -> Path:
    return engine_python("vllm-lmcache")


@pytest.fixture
def sources(python: Path) -> Path:
    """LMCache's tests, away from its sources, so that they find the installed package."""
    place = home() / f"lmcache-{VERSION}-tests"
    if not (place / "tests").exists():
        archive = _downloaded(python)
        with tarfile.open(archive) as packed:
            root = f"lmcache-{VERSION}"
            wanted = (f"{root}/tests/", f"{root}/pytest.ini")
            members = [each for each in packed if each.name.startswith(wanted)]
            packed.extractall(place.with_suffix(".part"), members=members, filter="data")
        (place.with_suffix(".part") / root).rename(place)
        shutil.rmtree(place.with_suffix(".part"))
    return place


def _downloaded(python: Path) -> Path:
    """The source distribution; what pip does besides is to ask its build for metadata."""
    folder = home() / "downloads"
    kept = folder / f"lmcache-{VERSION}.tar.gz"
    if not kept.exists():
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "download",
            "--quiet",
        ]
        command += ["--no-deps", "--no-build-isolation", "--no-binary", "lmcache"]
        command += ["--dest", folder, f"lmcache=={VERSION}"]
        done = subprocess.run(
            command, env={**os.environ, "NO_NATIVE_EXT": "1"}, capture_output=True, timeout=300
        )
        if done.returncode:
            pytest.skip(f"LMCache's sources cannot be had: {done.stderr.decode()[-300:]}")
    return kept


def run(python: Path, sources: Path, server: TestServer, chosen: Run, *more: str) -> str:
    environment = environment_for(python, HERE)
    environment |= chosen.variables
    environment |= {
        "KVFERRY_TEST_SERVER": f"{server.host}:{server.port}",
        "REDIS_HOST": server.host,
        "REDIS_PORT": str(server.port),
        "LMCACHE_TRACK_USAGE": "false",
        "OMP_NUM_THREADS": "1",
    }
    words: list[str | Path] = [
        python,
        "-m",
        "pytest",
        "-o",
        "log_cli=false",
        "-p",
        "no:cacheprovider",
    ]
    words += ["-p", "substitute", "-W", "ignore", "-q", "--tb=short", chosen.file, *more]
    done = subprocess.run(
        words, cwd=sources, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    return str(done.stdout + done.stderr)


@pytest.mark.parametrize("chosen", RUNS, ids=lambda chosen: chosen.name)
def test_they_pass(chosen: Run, python: Path, sources: Path, store: TestServer) -> None:
    if "resp_l2_adapter" in chosen.file and shutil.which("redis-cli") is None:
        pytest.skip("the tests ask redis-cli whether there is a server")
    without = [f"--deselect={name}" for name in _ids(chosen, sources)]
    out = run(python, sources, store, chosen, *without)
    last = out.strip().splitlines()[-1]
    assert re.search(rf"\b{chosen.passed} passed", last), out[-3000:]
    assert not re.search(r"failed|error|skipped", last), out[-3000:]
    assert chosen.ours in re.search(r"^OURS (.*)$", out, re.MULTILINE)[1]  # type: ignore[index]


def _ids(chosen: Run, sources: Path) -> list[str]:
    """Where the tests that cannot apply stand: all of them have to be there."""
    found = []
    owner = ""
    for line in (sources / chosen.file).read_text().splitlines():
        if named := re.match(r"class (\w+)", line):
            owner = f"{named[1]}::"
        elif (named := re.match(r"( *)def (test_\w+)", line)) and named[2] in chosen.cannot:
            found.append(f"{chosen.file}::{owner if named[1] else ''}{named[2]}")
    assert len(found) == len(chosen.cannot), f"{chosen.file} has other tests than the table says"
    return found


def test_the_files_that_stand_apart_are_there(sources: Path) -> None:
    for file in APART:
        assert (sources / file).exists(), file
    run_files = {chosen.file for chosen in RUNS}
    of_ours = re.compile(r"LMCacheRedisClient|MockNativeConnector|MockRESPClient|RESPConnector")
    for path in (sources / "tests").rglob("test_*.py"):
        file = str(path.relative_to(sources))
        if of_ours.search(path.read_text()):
            assert file in run_files | APART.keys(), f"{file} is about what we replace"
