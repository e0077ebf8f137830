"""`kvferry top`: one frame of a server that works, is away, comes back, or is none."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from rich.console import Console

from kvferry import TieredCache
from kvferry.base.errors import UsageError
from kvferry.cli.main import main
from kvferry.cli.top_page import page
from kvferry.cli.top_watch import Watch, WatchHere, counters
from kvferry.config.server import ServerConfig
from kvferry.integrations.vllm.connector.explain import status_of
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.integrations.vllm.connector.ranks import RankAnswers
from kvferry.server.http.side import HttpSide
from support.engines import CHUNK, check, expected, memory_store, open_engine, prompt
from support.servers import free_port
from support.views import FakeView, http_of

TOKEN = "t0ken-t0ken-t0ken"
TOKENS = prompt(4 * CHUNK, seed=1)


class LiveView(FakeView):
    """A view whose status has what a server says of its engines."""

    def status(self) -> dict[str, Any]:
        """See `Server`."""
        pages = [engine.memory.cache.stats()["resident"] for engine in self.engines]
        return {
            "version": "0.1",
            "incarnation": "1",
            "state": "ready",
            "uptime_s": 61.0,
            "pool": {"bytes": 1 << 30, "granted_bytes": 1 << 29},
            "sessions": [{"pid": 4711, "software": "an engine", "model": "test", "age_s": 3}],
            "protocol": {"requests": {"Ping": 5}, "failures": {"busy": 2}, "waiting": 1},
            "identities": [
                {
                    "identity": engine.identity.digest.hex(),
                    "model": engine.identity.model,
                    "chunk_size": CHUNK,
                    "chunk_bytes": engine.memory.chunk_bytes,
                    "used_bytes": count * engine.memory.chunk_bytes,
                    "engines": 1,
                    **engine.stats(),
                }
                for engine, count in zip(self.engines, pages, strict=True)
            ],
            **self.told,
        }


@contextmanager
def served(
    engine: TieredCache, token: str | None = None, port: int = 0, **told: Any
) -> Iterator[HttpSide]:
    view = LiveView(ServerConfig(http=("127.0.0.1", port), http_token=token), engine)
    view.told = told
    side = http_of(view)
    side.start()
    try:
        yield side
    finally:
        side.stop()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[TieredCache]:
    with open_engine(memory_store(request.node.name)) as engine:
        yield engine


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVFERRY_SERVER_HTTP_TOKEN", "KVFERRY_SERVER_HTTP_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folder with the sockets of this user is."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def frame(watch: Watch) -> str:
    console = Console(width=120, highlight=False)
    with console.capture() as captured:
        console.print(page(watch))
    return captured.get()


def test_one_frame_shows_pool_tiers_stores_and_engines(
    engine: TieredCache, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.store(TOKENS, expected(TOKENS))
    assert engine.flush()
    check(engine, TOKENS, 4 * CHUNK)
    with served(engine) as side:
        assert main(["top", side.url, "--once"]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert f"at {side.url}  ready, up 61 s" in out
    assert "0.00 GB of 1.00 GB, 0.50 GB backed" in lines["pool"]
    assert "1 wait, 2 were refused" in lines["requests"]
    assert "100.0%" in lines["l1"]
    assert f"{2 * 4 * CHUNK:,}" in lines["l1"]  # twice retrieved
    assert "ok" in lines["store0"]
    assert "an engine" in lines["4711"]


def test_refused_engines_are_shown(engine: TieredCache, capsys: pytest.CaptureFixture[str]) -> None:
    refused = {"pid": 4712, "software": "kvferry 9", "model": "m", "count": 3, "text": "too large"}
    with served(engine, refusals={"by_code": {"identity": 3}, "engines": [refused]}) as side:
        assert main(["top", side.url, "--once"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "4712" in line)
    assert line.split() == ["4712", "kvferry", "9", "m", "3", "too", "large"]


def test_rates_are_those_since_the_look_before(engine: TieredCache) -> None:
    engine.store(TOKENS, expected(TOKENS))
    with served(engine) as side:
        watch = Watch(side.url)
        watch.look()
        assert watch.rate("hit", "l1") is None
        with engine.retrieve(TOKENS) as hit:
            assert hit.tokens == 4 * CHUNK
        watch.look()
        rate = watch.rate("hit", "l1")
        assert rate is not None
        assert rate > 0
        assert watch.rate("requested") == pytest.approx(rate)
        assert watch.total("came_bytes") == 4 * engine.memory.chunk_bytes
        assert watch.rate("came_bytes") == 0
        assert "100.0%" in frame(watch)
        watch.look()
        assert watch.rate("hit", "l1") == 0


def test_a_server_that_goes_is_away_until_it_is_back(engine: TieredCache) -> None:
    with served(engine) as side:
        port = int(side.url.rsplit(":", 1)[1])
        watch = Watch(side.url)
        watch.look()
        assert watch.problem is None
    watch.look()
    assert watch.problem
    assert watch.rate("hit", "l1") is None
    shown = frame(watch)
    assert re.search(r"AWAY for \d+ s", shown)
    assert "what it said last" in shown
    with served(engine, port=port):
        watch.look()
        assert (watch.problem, watch.away_s) == (None, 0)
        assert watch.rate("hit", "l1") is None  # nothing is known of the time between
        assert "AWAY" not in frame(watch)


def test_a_server_that_began_anew_has_no_rates_yet(engine: TieredCache) -> None:
    with served(engine) as side:
        watch = Watch(side.url)
        watch.look()
        watch.status = {**watch.status, "incarnation": "0"}
        watch.look()
        assert watch.rate("hit", "l1") is None


def test_the_token_comes_from_a_file_or_the_environment(
    engine: TieredCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    with served(engine, TOKEN) as side:
        assert main(["top", side.url, "--once"]) == 1
        assert "--token-file" in capsys.readouterr().out
        assert main(["top", side.url, "--once", "--token-file", str(file)]) == 0
        monkeypatch.setenv("KVFERRY_SERVER_HTTP_TOKEN", TOKEN)
        assert main(["top", side.url, "--once"]) == 0
        monkeypatch.setenv("KVFERRY_SERVER_HTTP_TOKEN", "other")
        assert main(["top", side.url, "--once"]) == 1
        monkeypatch.setenv("KVFERRY_SERVER_HTTP_TOKEN_FILE", str(file))
        assert main(["top", side.url, "--once"]) == 0
    assert TOKEN not in "".join(capsys.readouterr())


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", f"127.0.0.1:{free_port()}", "--once"]) == 1
    assert "AWAY" in capsys.readouterr().out


def shown(engine: TieredCache, software: str, rank: int = 0) -> RankAnswers:
    """What a worker of an engine has."""
    finder, status = CacheFinder(engine), status_of(engine, software)
    return RankAnswers(f"vllm-{os.getpid()}-{rank}", finder, status=status)


def test_without_a_url_the_caches_in_processes_of_this_user_are_shown(
    engine: TieredCache, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windows = [shown(engine, f"an engine, rank {rank}", rank) for rank in (0, 1)]
    engine.store(TOKENS, expected(TOKENS))
    check(engine, TOKENS, 4 * CHUNK)
    left = here / "kvferry" / "1-0.sock"  # of a process that was killed
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    os.utime(left, (0, 0))
    assert main(["top", "--once"]) == 0
    out = capsys.readouterr().out
    assert "in 2 processes of this host and user  ready" in out
    assert f"{2 * 2 * 4 * CHUNK:,}" in out  # two processes; by them two retrieves
    assert "an engine, rank 1" in out
    assert not left.exists()
    for window in windows:
        window.close()
    assert [*(here / "kvferry").iterdir()] == []


def test_rates_of_processes_begin_anew_when_one_goes(engine: TieredCache, here: Path) -> None:
    first, second = shown(engine, "a"), shown(engine, "b", 1)
    watch = WatchHere()
    watch.look()
    engine.store(TOKENS, expected(TOKENS))
    check(engine, TOKENS, 4 * CHUNK)
    watch.look()
    assert (watch.rate("hit", "l1") or 0) > 0
    first.close()
    watch.look()
    assert watch.problem is None
    assert watch.rate("hit", "l1") is None
    second.close()
    watch.look()
    assert "runs here" in (watch.problem or "")


def test_nobody_else_may_enter_the_folder_of_the_sockets(engine: TieredCache, here: Path) -> None:
    shown(engine, "an engine").close()
    folder = here / "kvferry"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    shown(engine, "an engine").close()  # it goes on, and is not seen
    assert [*folder.iterdir()] == []
    watch = WatchHere()
    watch.look()
    assert "this user alone" in (watch.problem or "")
    folder.rmdir()
    (here / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(here / "elsewhere")
    shown(engine, "an engine").close()
    assert [*(here / "elsewhere").iterdir()] == []


def test_processes_that_say_nothing_sensible_are_left_out(engine: TieredCache, here: Path) -> None:
    def fails() -> bytes:
        raise ValueError("of ours")

    finder = CacheFinder(engine)
    others: list[Callable[[], bytes]] = [fails, lambda: b"[]", lambda: b"{", bytes]
    rows = [
        RankAnswers(f"vllm-{rank}", finder, status=status) for rank, status in enumerate(others)
    ]
    rows.append(shown(engine, "an engine"))
    watch = WatchHere()
    watch.look()
    assert watch.problem is None
    assert len(watch.status["sessions"]) == 1
    for row in rows:
        row.close()


def test_urls_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("ftp://127.0.0.1", "http://", "http://user:pw1234567@127.0.0.1"):
        assert main(["top", url, "--once"]) == 2
        with pytest.raises(UsageError):
            Watch(url)
    assert "pw1234567" not in "".join(capsys.readouterr())


ANSWERS: list[tuple[int, bytes, str]] = [
    (200, b"<html>", "no answer that can be read"),
    (200, b"[]", "not that of a kvferry server"),
    (500, b"", "HTTP status 500"),
    (302, b"", "HTTP status 302"),
    (200, b"\xff" * 10, "no answer that can be read"),
]


@pytest.mark.parametrize(("status", "body", "said"), ANSWERS)
def test_others_that_answer(status: int, body: bytes, said: str) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = Thread(target=other.handle_request, daemon=True)
        thread.start()
        watch = Watch(f"http://127.0.0.1:{other.server_port}", TOKEN)
        watch.look()
        thread.join(10)
    assert watch.problem is not None
    assert said in watch.problem
    assert "AWAY" in frame(watch)


def test_a_status_of_another_version_is_shown_as_far_as_it_goes(engine: TieredCache) -> None:
    odd: dict[str, Any] = {
        "identities": [3, {"stores": 5, "metrics": {"kvferry_tokens_hit_total": {"l1": "x"}}}]
    }
    with served(engine) as side:
        watch = Watch(side.url)
        watch.look()
    others: list[dict[str, Any]] = [{}, {"pool": 3, "protocol": 5}, {"sessions": [{}] * 50}]
    for status in (odd, *others):
        watch.status = status
        assert counters(status) == {}
        assert "kvferry server" in frame(watch)


def test_the_live_view_goes_on_until_it_is_interrupted(
    engine: TieredCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("kvferry.cli.top.time.sleep", sleep)
    with served(engine) as side:
        assert main(["top", side.url, "--interval", "0.5"]) == 130
    assert looks == [0.5] * 3
    assert "ready" in capsys.readouterr().out
