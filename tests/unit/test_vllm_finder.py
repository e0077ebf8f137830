"""How much can be loaded: caches that are asked within a limit, by threads and over sockets."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from kvferry import Identity, KVLayout, TieredCache
from kvferry.base.errors import ClosedError, ConfigError, UsageError
from kvferry.base.local_secret import folder
from kvferry.chunks.prompt import Prompt, read_prompt
from kvferry.integrations.vllm.connector import ranks
from kvferry.integrations.vllm.connector.explain import explained, teller
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.integrations.vllm.connector.ranks import RankAnswers, RankFinder, address, running
from kvferry.rpc.channel import Broken, Channel
from kvferry.rpc.link import encode
from kvferry.rpc.local import LocalCall, local_url
from support.clock import now_s
from support.stamps import until

PROMPT: Prompt = read_prompt(range(80), 8, b"")


class Cache:
    """A cache with a store."""

    def __init__(self, memory: int = 0, store: int = 0, worth: int | None = None) -> None:
        self.memory, self.store, self.worth = memory, store, worth
        self.asks_stores = True
        self.limits: list[float | None] = []
        self.error: Exception | None = None

    def lookup(self, tokens: Any, *, timeout_s: float | None = None, lease: bool = False) -> Any:
        assert lease
        self.limits.append(timeout_s)
        if self.error is not None:
            raise self.error
        found = self.memory if timeout_s == 0.0 else max(self.memory, self.store)
        worth = None if self.worth is None else 8 * min(found, self.worth)
        return SimpleNamespace(tokens=8 * found, worth_tokens=worth, reason="deadline")

    def clear(self, *, stores: bool = True) -> int:
        if self.error is not None:
            raise self.error
        self.memory = self.store = 0
        return 1


def finder_of(cache: Cache) -> CacheFinder:
    return CacheFinder(cache)  # type: ignore[arg-type]


def test_what_is_not_found_is_a_miss_beyond_what_the_engine_has() -> None:
    layout = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="uint8", chunk_size=8)
    with TieredCache(Identity(model="misses", layout=layout), max_local_cpu_size=0.001) as engine:
        engine.store(list(range(24)), [bytes(layout.chunk_bytes)] * 3)
        assert CacheFinder(engine).find(PROMPT) == 3
        taken = engine.metrics.snapshot()
        assert taken["kvferry_tokens_requested_total"] == 7 * 8
        assert taken["kvferry_missed_chunks_total"]["never_stored"] == 7
        known = replace(PROMPT, computed_tokens=72)
        assert CacheFinder(engine).find(known) == 9
        assert engine.metrics.snapshot()["kvferry_missed_chunks_total"]["never_stored"] == 8


def test_what_is_quicker_computed_is_not_promised() -> None:
    assert finder_of(Cache(2, 9, worth=2)).find(PROMPT) == 2
    assert finder_of(Cache(2, 9, worth=9)).find(PROMPT) == 9


def test_the_cache_says_how_long_its_stores_are_worth_waiting_for() -> None:
    cache = Cache(memory=2, store=7)
    assert finder_of(cache).find(PROMPT) == 7
    assert cache.limits == [None]


def test_without_a_store_to_wait_for_the_answer_is_there_at_once() -> None:
    cache = Cache(memory=2, store=9)
    finder = finder_of(cache)
    assert finder.now(PROMPT) is None, "there is a store to ask"
    assert not cache.limits
    cache.asks_stores = False
    assert finder.now(PROMPT) == 2
    assert finder.now(replace(PROMPT, source=("h", 1))) is None, "it names a node"
    assert cache.limits == [0.0]


def test_a_cache_that_is_closed_has_nothing() -> None:
    cache = Cache(memory=3)
    cache.error = ClosedError("closed")
    finder = finder_of(cache)
    assert finder.find(PROMPT) == 0


# --- Ranks ---


class Rank:
    """A finder of a rank."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.prompts: list[Prompt] = []
        self.renewals: list[tuple[bytes, bytes]] = []
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None
        self.at_once: int | None = None

    def now(self, prompt: Prompt) -> int | None:
        return self.at_once

    def find(self, prompt: Prompt) -> int:
        self.prompts.append(prompt)
        assert self.go.wait(10)
        if self.error is not None:
            raise self.error
        return self.chunks

    shared = b"everyone"

    def renewed(self, ended: bytes, own: bytes) -> None:
        self.renewals.append((ended, own))

    def close(self) -> None: ...


@pytest.fixture
def engine_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks in this process are asked as those of others are."""
    monkeypatch.setattr(ranks, "_here", {})


def opened(engine_id: str, *found: Rank) -> list[RankAnswers]:
    made = [RankAnswers(address(engine_id, i), rank) for i, rank in enumerate(found)]
    ranks._here.clear()
    return made


def names(engine_id: str, count: int) -> list[str]:
    return [address(engine_id, i) for i in range(count)]


def test_ranks_say_their_chunk_size_if_it_is_the_same(engine_id: str) -> None:
    finder = RankFinder(names(engine_id, 2), 1.0)
    assert finder.chunk_size() == 0  # nobody is there
    for sizes, agreed in (((32, 32), 32), ((32, 256), 0)):
        answers = [
            RankAnswers(address(engine_id, rank), Rank(0), chunk_size=size)
            for rank, size in enumerate(sizes)
        ]
        asking = RankFinder(names(engine_id, 2), 1.0)
        try:
            assert asking.chunk_size() == agreed
        finally:
            asking.close()
            for each in answers:
                each.close()
    finder.close()


def test_within_a_process_no_socket_is_used(engine_id: str) -> None:
    rank = Rank(4)
    answers = RankAnswers(address(engine_id, 0), rank)
    finder = RankFinder(names(engine_id, 1), 1.0)
    try:
        finder._ask = None  # type: ignore[assignment,method-assign]
        assert finder.find(PROMPT) == 4
        assert finder.shared == b"everyone"
        finder.renewed(bytes(8), b"another.")
        assert until(lambda: rank.renewals == [(bytes(8), b"another.")], 10)
    finally:
        finder.close()
        answers.close()


def test_ranks_of_this_process_answer_at_once_if_all_can(engine_id: str) -> None:
    found = [Rank(4), Rank(2)]
    answers = [RankAnswers(address(engine_id, i), rank) for i, rank in enumerate(found)]
    finder = RankFinder(names(engine_id, 2), 1.0)
    try:
        found[0].at_once = 1
        assert finder.now(PROMPT) is None
        found[1].at_once = 3
        assert finder.now(PROMPT) == 1
        assert not found[0].prompts
        answers[1].close()
        assert finder.now(PROMPT) is None, "the other one is in another process, or gone"
    finally:
        for each in answers:
            each.close()


@pytest.mark.usefixtures("far")
def test_every_rank_is_asked_for_the_same_and_the_smallest_counts(engine_id: str) -> None:
    found = [Rank(4), Rank(2), Rank(9)]
    answers = opened(engine_id, *found)
    finder = RankFinder(names(engine_id, 3), 5.0)
    assert [finder.find(PROMPT) for _ in range(3)] == [2, 2, 2]
    assert all(rank.prompts == [PROMPT] * 3 for rank in found)
    assert finder.shared == b"everyone"
    finder.renewed(bytes(8), b"another.")
    assert until(lambda: all(r.renewals == [(bytes(8), b"another.")] for r in found), 10)
    other = replace(PROMPT, generation=b"a generation" + bytes(4), source=("::1", 6400))
    assert finder.find(other) == 2
    assert all(rank.prompts[-1] == other for rank in found)
    finder.close()
    for each in answers:
        each.close()


@pytest.mark.usefixtures("far")
def test_many_threads_ask_at_once(engine_id: str) -> None:
    rank = Rank(3)
    (answers,) = opened(engine_id, rank)
    finder = RankFinder(names(engine_id, 1), 10.0)
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(finder.find(PROMPT))) for _ in range(16)
    ]
    rank.go.clear()
    for thread in threads:
        thread.start()
    rank.go.set()
    for thread in threads:
        thread.join(30)
    assert results == [3] * 16
    finder.close()
    answers.close()


@pytest.mark.usefixtures("far")
def test_a_rank_that_is_not_there_has_nothing_and_is_left_alone(engine_id: str) -> None:
    finder = RankFinder(names(engine_id, 2), 1.0)
    began = now_s()
    assert [finder.find(PROMPT) for _ in range(100)] == [0] * 100
    assert now_s() - began < 1.0
    finder.close()


@pytest.mark.usefixtures("far")
def test_an_engine_whose_ranks_are_on_several_hosts_is_refused(
    engine_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_CHECK_S", 0.05)
    answers = opened(engine_id, Rank(1), Rank(1))
    finder = RankFinder(names(engine_id, 3), 1.0)  # the third one is elsewhere
    with pytest.raises(UsageError, match=r"rank 2 of the 3 of this engine .* on one host; use"):
        finder.check()
    here = RankFinder(names(engine_id, 2), 1.0)
    here.check()
    here.close()
    for each in answers:
        each.close()


def test_a_rank_that_is_about_to_open_is_waited_for(engine_id: str) -> None:
    opening: list[RankAnswers] = []
    later = threading.Timer(0.1, lambda: opening.extend(opened(engine_id, Rank(1))))
    later.start()
    finder = RankFinder(names(engine_id, 1), 1.0)
    finder.check()
    later.join(10)
    finder.close()
    opening[0].close()


def test_every_rank_leaves_blocks_alone_and_says_so(engine_id: str) -> None:
    asked: list[int] = []

    def rank(number: int) -> RankAnswers:
        def release_blocks() -> bool:
            asked.append(number)
            return number == 0

        return RankAnswers(names(engine_id, 2)[number], Rank(1), release_blocks=release_blocks)

    answers = [rank(0), rank(1)]
    finder = RankFinder(names(engine_id, 2), 1.0)
    assert not finder.release_blocks()
    assert asked == [0, 1]
    finder.close()
    for each in answers:
        each.close()


@pytest.mark.usefixtures("far")
def test_a_rank_that_is_left_alone_is_told_all_the_same_to_let_go(
    engine_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_REST_S", 1000.0)
    finder = RankFinder(names(engine_id, 1), 1.0)
    assert finder.find(PROMPT) == 0  # nobody is there yet
    told: list[str] = []

    def release_blocks() -> bool:
        told.append("let go")
        return True

    with ExitStack() as stack:
        answers = RankAnswers(address(engine_id, 0), Rank(3), release_blocks=release_blocks)
        stack.callback(answers.close)
        ranks._here.clear()
        assert finder.find(PROMPT) == 0
        assert finder.release_blocks()
        assert told == ["let go"]
    finder.close()


@pytest.mark.usefixtures("far")
def test_a_rank_that_does_not_answer_costs_the_limit_once(
    engine_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_GRACE_S", 0.05)
    rank = Rank(3)
    rank.go.clear()
    (answers,) = opened(engine_id, rank)
    finder = RankFinder(names(engine_id, 1), 0.01)
    assert finder.find(PROMPT) == 0
    finder._ranks[0]._rest_until += 60.0
    assert finder.find(PROMPT) == 0  # it rests
    until(lambda: rank.prompts, 10)
    assert len(rank.prompts) == 1
    rank.go.set()
    finder._ranks[0]._rest_until = 0.0
    monkeypatch.setattr(ranks, "_GRACE_S", 5.0)
    assert finder.find(PROMPT) == 3
    finder.close()
    answers.close()


@pytest.mark.usefixtures("far")
def test_a_rank_that_breaks_counts_as_one_that_has_nothing(engine_id: str) -> None:
    rank = Rank(3)
    rank.error = RuntimeError("x")
    (answers,) = opened(engine_id, rank)
    finder = RankFinder(names(engine_id, 1), 5.0)
    assert finder.find(PROMPT) == 0
    finder.close()
    answers.close()


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize(
    "question",
    [
        b"x" * 59,
        b"\xc1",
        encode(LocalCall(1, "find", b"no prompt")),
        encode(LocalCall(1, "find", encode((bytes(15), 8, 8)))),
        encode(LocalCall(1, "find", encode((bytes(16), 8, 0)))),
        encode(LocalCall(1, "renewed", bytes(15))),
        encode(LocalCall(1, "?", PROMPT.encode())),
        encode((-1, "size", b"")),
        encode((1, "two\nlines", b"")),
    ],
)
def test_nonsense_ends_a_connection_and_no_other(engine_id: str, question: bytes) -> None:
    (answers,) = opened(engine_id, Rank(3))
    line = Channel(local_url(address(engine_id, 0)), None, time.monotonic() + 10)
    line.send(question, time.monotonic() + 10)
    with pytest.raises(Broken):
        line.receive(time.monotonic() + 10)
    line.close()
    finder = RankFinder(names(engine_id, 1), 5.0)
    assert finder.find(PROMPT) == 3
    finder.close()
    answers.close()


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("side", ["listener", "channel"])
def test_strangers_are_not_answered(
    engine_id: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank believes nobody, or who asks does not."""
    monkeypatch.setattr(f"kvferry.rpc.{side}.is_own_process", lambda _: False)
    (answers,) = opened(engine_id, Rank(3))
    finder = RankFinder(names(engine_id, 1), 5.0)
    assert finder.find(PROMPT) == 0
    finder.close()
    answers.close()


@pytest.mark.usefixtures("far")
def test_a_rank_without_a_folder_answers_the_scheduler_in_its_process(
    engine_id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    (tmp_path / "kvferry").mkdir(mode=0o755)
    answers = RankAnswers(address(engine_id, 0), Rank(3))
    finder = RankFinder(names(engine_id, 1), 1.0)
    finder.check()
    assert finder.find(PROMPT) == 3
    ranks._here.clear()
    assert finder.find(PROMPT) == 0
    with pytest.raises(ConfigError, match="other users may open it"):
        finder.check()
    answers.close()


@pytest.mark.usefixtures("far")
def test_what_a_killed_rank_has_left_is_in_nobodys_way(engine_id: str) -> None:
    path = folder() / f"{address(engine_id, 0)}.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        assert address(engine_id, 0) not in running()
        assert path.exists(), "it may be about to listen"
    os.utime(path, (0, 0))
    assert address(engine_id, 0) not in running()
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    (answers,) = opened(engine_id, Rank(3))
    finder = RankFinder(names(engine_id, 1), 5.0)
    finder.check()
    assert finder.find(PROMPT) == 3
    finder.close()
    answers.close()
    assert not path.exists()


@pytest.mark.usefixtures("far")
def test_a_name_is_free_again_when_its_owner_is_closed(engine_id: str) -> None:
    (first,) = opened(engine_id, Rank(1))
    with pytest.raises(OSError, match="listens there"):
        RankAnswers(address(engine_id, 0), Rank(2))
    first.close()
    (second,) = opened(engine_id, Rank(2))
    finder = RankFinder(names(engine_id, 1), 5.0)
    assert finder.find(PROMPT) == 2
    finder.close()
    second.close()


# --- Explaining ---


def test_a_prompt_is_explained_by_the_engines_that_run(engine_id: str) -> None:
    layout = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="uint8", chunk_size=8)
    with TieredCache(
        Identity(model="explained", layout=layout), max_local_cpu_size=0.001
    ) as engine:
        answers = RankAnswers(address(engine_id, 0), CacheFinder(engine), teller(engine))
        try:
            engine.store(list(range(80)), [bytes(layout.chunk_bytes)] * 10)
            assert address(engine_id, 0) in running()
            said = "\n".join(explained(range(80)))
            assert engine.identity.digest.hex() in said
            assert "80 tokens, 10 chunks of 8: 10 in l1" in said
            assert "10 nowhere" in "\n".join(explained(range(80), "other"))
        finally:
            answers.close()
    assert address(engine_id, 0) not in running()
