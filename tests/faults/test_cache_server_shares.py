"""What memory knows is answered from memory, whatever stores do, and whatever other engines ask."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvferry import StoreConfig
from kvferry.server import protocol as p
from support.cache_server import CacheServerProcess, running
from support.engines import CHUNK, LAYOUT, MIB, prompt
from support.raw_peer import Peer, prompt_of
from support.scripted import Action, Command, MiniStore, Pieces, ScriptedServer, Silence, answer
from support.stamps import until
from support.views import ask

# So many calls of the engine that waits for a store: more than it may have threads and sockets.
WAITING = 89
MOST = 48  # of one session, that may wait
LONG_MS = 60_000
PATIENT = {"KVFERRY_SERVER_TUNING": '{"dead_after_s": 60, "lease_s": 60}'}


def hung(command: Command) -> Action | None:
    """No chunk is ever given out."""
    chunk = command.name == b"GET" and not command[1].endswith(b":generation")
    return Silence() if chunk else None


def trickling(command: Command) -> Action | None:
    """Chunks come, and do not come to their end."""
    return Pieces((b"$1000000\r\n", *(b"x" for _ in range(600))), 0.1) if hung(command) else None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CacheServerProcess]:
    """With a store that has everything, and gives nothing out."""
    with ScriptedServer(answer(b":1\r\n", b"TOUCH", b"EXISTS"), hung, MiniStore()) as store:
        resp = {"type": "resp", "host": "127.0.0.1", "port": store.port, "num_workers": 2}
        # Else it is unavailable after some seconds.
        resp["tuning"] = {"stall_timeout_s": LONG_MS / 1e3}
        arguments = ("--l2-adapter", json.dumps(resp))
        with CacheServerProcess(tmp_path, *arguments, mib=4, **PATIENT) as server:
            yield server


def besiege(peer: Peer, count: int = WAITING, seed: int = 1000) -> None:
    """Ask for so many prompts that are in the store, and wait for none."""
    for number in range(count):
        tokens = prompt(4 * CHUNK, seed=seed + number)
        message = p.Retrieve(10_000 + number, peer.session, LONG_MS, prompt_of(tokens))
        peer.socket.send(p.encode(message))


def test_an_engine_that_waits_for_a_store_keeps_nobody_from_memory(
    server: CacheServerProcess,
) -> None:
    with Peer(server.endpoint) as greedy, Peer(server.endpoint) as modest:
        besiege(greedy.attach())
        modest.attach()  # who comes is let in
        here = prompt(8 * CHUNK, seed=1)
        assert modest.store(here) == 8
        for _ in range(1000):
            leased = modest.want(p.Leased, p.Retrieve, prompt_of(here))
            assert len(leased.pages) == 8
            assert modest.want(p.Count, p.Release, [leased.lease]).count == 1
        # What follows would have to come from the store, which is asked as long as there is time.
        longer = prompt_of(here + prompt(4 * CHUNK, seed=2))
        leased = soon(modest, p.Retrieve, longer)
        assert len(leased.pages) == 8
        assert leased.reason in ("deadline", "unavailable")
        assert soon(modest, p.LookupRequest, longer).tiers["l1"] == 8
        assert soon(modest, p.Pin, longer).count == 8
        assert modest.want(p.Report, p.Stats).report["engines"] == 2
        assert server.status()["protocol"]["waiting"] >= MOST  # of the other one


def test_waits_for_stores_hold_no_thread(tmp_path: Path) -> None:
    """All of four engines begin at once, and whoever comes then asks the store as well."""
    with ExitStack() as stack:
        store = stack.enter_context(
            ScriptedServer(answer(b":1\r\n", b"TOUCH", b"EXISTS"), trickling, MiniStore())
        )
        resp = StoreConfig.of(type="resp", host="127.0.0.1", port=store.port, num_workers=2)
        settings = {"dead_after_s": 60.0, "lease_s": 60.0, "cache": {"stores": (resp,)}}
        server = stack.enter_context(running(tmp_path, mib=64, **settings))
        peers = [stack.enter_context(Peer(server.endpoints[0])) for _ in range(5)]
        for number, peer in enumerate(peers[:4]):
            besiege(peer.attach(), MOST, seed=1000 * number)
        # Some of them always look after their load for a moment.
        until(lambda: server.status()["protocol"]["parked"] >= 3 * MOST, 30)
        until(lambda: server.status()["protocol"]["waiting"] >= 4 * MOST, 30)
        threads = [one for one in threading.enumerate() if one.name.startswith("kvferry-stores")]
        assert len(threads) < 4 * MOST / 8
        found = soon(peers[4].attach(), p.LookupRequest, prompt_of(prompt(4 * CHUNK, seed=9)))
        assert isinstance(found, p.Found)
        assert server.status()["protocol"]["waiting"] >= 4 * MOST, "they wait all the same"
    # and the server has ended, with all that waited


def soon(peer: Peer, kind: type, *fields: object) -> Any:
    """What is answered to a request that has half a second for stores; we have more."""
    return peer.raw(p.encode(kind(1, peer.session, 500, *fields)), timeout_s=20.0)


def test_what_an_engine_has_too_much_of_is_answered_from_memory(server: CacheServerProcess) -> None:
    """Beyond a number of calls that wait, no further one does: it would keep a socket."""
    with Peer(server.endpoint) as peer:
        peer.attach()
        here = prompt(8 * CHUNK, seed=1)
        assert peer.store(here) == 8
        besiege(peer)
        for _ in range(WAITING - MOST):
            reply = peer.answer(timeout_s=20.0)
            assert isinstance(reply, p.Leased)
            assert (reply.pages, reply.reason) == ([], "unavailable")
        longer = prompt_of(here + prompt(4 * CHUNK, seed=2))
        leased = peer.want(p.Leased, p.Retrieve, longer)
        assert (len(leased.pages), leased.reason) == (8, "unavailable")


def test_a_process_has_one_share_of_the_pages_however_many_sessions(tmp_path: Path) -> None:
    with running(tmp_path, mib=1, dead_after_s=60.0) as server:
        endpoint = server.endpoints[0]
        pages = server.status()["pool"]["bytes"] // LAYOUT.chunk_bytes
        with (
            Peer(endpoint) as one,
            Peer(endpoint) as two,
            Peer(endpoint) as three,
            Peer(endpoint) as other,
        ):
            for peer in (one, two, three):
                assert isinstance(peer.register(process="the same"), p.Registered)
                peer.map()
                peer.want(p.Done, p.Attached)
            other.attach()
            whole = prompt_of(prompt(pages * CHUNK))
            reserved = [peer.want(p.ReservedPages, p.Reserve, whole) for peer in (one, two, three)]
            assert 0 < sum(len(each.pages) for each in reserved) <= pages // 2
            got = other.want(p.ReservedPages, p.Reserve, prompt_of(prompt(pages * CHUNK, seed=1)))
            assert len(got.pages) >= pages // 5  # of three quarters, as all of it is written to
            one.want(p.Done, p.Abort, reserved[0].reservation)
            assert two.store(prompt(4 * CHUNK, seed=2)) == 4
            held = [session["pages"] for session in server.status()["sessions"]]
            assert held == [0, 0, 0, len(got.pages)]


PLUGIN = """
import threading
from kvferry.connectors.memory import MemoryConnector

go = threading.Event()

class Slow(MemoryConnector):
    def __init__(self, space):
        assert go.wait(60)
        super().__init__(space)
"""


def test_a_store_that_does_not_open_keeps_no_engine_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "kvferry_slow_store"
    (tmp_path / f"{name}.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    plugin = __import__(name)
    slow = StoreConfig.of(type="plugin", module_path=name, class_name="Slow", name="slow")
    tokens = prompt(4 * CHUNK)
    try:
        with (
            running(tmp_path, mib=1, dead_after_s=60.0, cache={"stores": (slow,)}) as server,
            Peer(server.endpoints[0]) as peer,
        ):
            peer.attach()
            assert peer.store(tokens) == 4
            assert peer.read(tokens)[0] == 4
            plugin.go.set()  # it joins, and gets what comes from now on
            later = prompt(4 * CHUNK, seed=1)

            def offered() -> bool:
                later[:] = prompt(4 * CHUNK, seed=later[0])
                reserved = peer.want(p.ReservedPages, p.Reserve, prompt_of(later))
                peer.write(reserved, later)
                return bool(peer.want(p.Committed, p.Commit, reserved.reservation).queued)

            until(offered, 10)
    finally:
        plugin.go.set()


def test_bodies_of_http_take_neither_memory_nor_hits(tmp_path: Path) -> None:
    """Twenty at once of 15 MiB, and twenty more that are not too long: nothing is lost by it."""
    tokens = prompt(8 * CHUNK)
    one = ("9" * 5 + ",").encode()
    long, fitting = (
        b'{"tokens":[' + one * (size // len(one)) + b"1]}" for size in (15 * MIB, 3 * MIB)
    )
    with (
        CacheServerProcess(tmp_path, mib=4, **PATIENT) as server,
        Peer(server.endpoint) as peer,
        ThreadPoolExecutor(20) as callers,
    ):
        peer.attach()
        assert peer.store(tokens) == 8
        before = peak_bytes(server.pid)
        url = server.url("/v1/lookup")
        answers = [callers.submit(ask, url, "POST", raw=body) for body in 20 * [long, fitting]]
        while not all(answer.done() for answer in answers):
            assert peer.read(tokens)[0] == 8
        statuses = {status_of(answer) for answer in answers[::2]}
        assert statuses <= {413, 0}  # 0: it had gone before all was sent
        statuses = {status_of(answer) for answer in answers[1::2]}
        assert statuses <= {200, 429, 0}
        assert peak_bytes(server.pid) - before < 100 * MIB


def status_of(answer: Future[tuple[int, object]]) -> int:
    try:
        return answer.result()[0]
    except OSError:  # the connection ended while the body was being sent
        return 0


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
