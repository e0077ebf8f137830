"""What an engine learns beside its client, and when the server is told of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvferry.cache import Lookup, Stored
from kvferry.chunks.prompt import Prompt
from kvferry.metrics import CacheMetrics
from kvferry.server import protocol as p
from kvferry.server.client.feedback import EngineFeedback

SIZE = 4  # tokens of a chunk


def prompt(chunks: int, **facts: Any) -> Prompt:
    return Prompt(bytes(16 * chunks), chunks * SIZE + 1, SIZE, **facts)


class Sessions:
    """A thread with a session, and what it is to send."""

    def __init__(self) -> None:
        self.session: Any = SimpleNamespace(number=7)
        self.sent: list[tuple[Any, ...]] = []
        self.unwaited = SimpleNamespace(add=lambda *request: self.sent.append(request))

    def of(self, kind: Any) -> list[tuple[Any, ...]]:
        return [each for each in self.sent if each[0] is kind]


def feedback(sessions: Sessions, now: list[float]) -> EngineFeedback:
    return EngineFeedback(cast(Any, sessions), 10, lambda: now[0])


def test_the_server_is_told_how_quickly_we_compute_when_that_is_news() -> None:
    sessions, now = Sessions(), [100.0]
    told = feedback(sessions, now)
    told.expect((0.0, 1e-3, 0.0, 0.0), 512)
    assert sessions.of(p.Speed) == [(p.Speed, 7, (0.0, 1e-3, 0.0, 0.0), 512)]
    for _ in range(50):
        told.observe_step(512, 512**2, 0, 1.0)
    assert len(sessions.of(p.Speed)) == 2, "not with every step"
    now[0] += 2.0
    told.observe_step(512, 512**2, 0, 1.0)
    assert len(sessions.of(p.Speed)) == 3
    *_, (_, c, _, _), step_tokens = sessions.sent[-1]
    assert c == pytest.approx(1.0 / 512, rel=0.1)
    assert step_tokens == 512
    now[0] += 2.0
    told.observe_step(512, 512**2, 0, 1.0)
    assert len(sessions.of(p.Speed)) == 3, "no news"


def test_another_server_is_told_anew_and_none_is_not_told() -> None:
    sessions, now = Sessions(), [0.0]
    told = feedback(sessions, now)
    told.expect((0.0, 1e-3, 0.0, 0.0), None)
    sessions.session = None
    now[0] += 2.0
    told.observe_step(512, 512**2, 0, 9.0)
    told.expect((0.0, 2e-3, 0.0, 0.0), None)
    assert len(sessions.sent) == 1
    sessions.session = SimpleNamespace(number=8)
    told.observe_step(512, 512**2, 0, 9.0)
    assert [session for _, session, *_ in sessions.of(p.Speed)] == [7, 8]


def test_the_server_is_told_what_only_the_engine_knows() -> None:
    sessions, now = Sessions(), [0.0]
    told = feedback(sessions, now)
    found = Lookup(tokens=3 * SIZE, tiers={"l1": 2 * SIZE, "redis": SIZE})
    told.looked_up(prompt(5, computed_tokens=SIZE), found, 0.1)
    told.stored(Stored(chunks=3, known=0, shed=1), 0.1)
    told.metrics.first_token(0.1, 0.4)
    told.observe_step(100, 10_000, 0, 0.1)
    ((_, _, sums, histograms),) = sessions.of(p.Counted)
    assert sums == {"kvferry_memory_bytes": {"in": 30}}
    assert [*histograms] == ["kvferry_memory_seconds", "kvferry_ttft_share"]
    CacheMetrics().add(sums, histograms)  # the server takes it
    taken = told.metrics.snapshot()  # and what the engine shows is all of it
    assert taken["kvferry_tokens_hit_total"]["l1"] == SIZE, "one chunk is the engine's own"
    assert taken["kvferry_tokens_hit_total"]["redis"] == SIZE
    assert taken["kvferry_tokens_requested_total"] == 2 * SIZE
    assert taken["kvferry_shed_chunks_total"]["pool_full"] == 1
    now[0] += 10
    told.observe_step(100, 10_000, 0, 0.1)
    assert len(sessions.of(p.Counted)) == 1, "nothing has grown"


def test_a_server_that_hangs_is_waited_for_as_a_part_of_what_computing_takes() -> None:
    told = feedback(Sessions(), [0.0])
    assert told.patience_s(prompt(3), 7.0) == 0.25
    told.expect((0.0, 0.5, 0.0, 0.0), 0)
    assert told.patience_s(prompt(3), 7.0) == pytest.approx(3.25)  # of 13 tokens
    assert told.patience_s(prompt(3, queued=(4, 16)), 7.0) == pytest.approx(5.25)
    assert told.patience_s(prompt(90), 7.0) == 7.0
