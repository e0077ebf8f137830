"""What part of the time to a first token is the cache's, on a fake clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.integrations.vllm.connector.scheduler import RequestWait


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def waiting(clock: Clock, **request: Any) -> tuple[RequestWait, Any]:
    made = SimpleNamespace(num_output_tokens=0, **request)
    return RequestWait(made, clock, lambda: 1000.0), made


def test_questions_and_loads_count_and_queues_do_not() -> None:
    clock = Clock()
    wait, request = waiting(clock, arrival_time=998.0)
    wait.begin()
    clock.now += 1
    wait.begin()  # asked again
    clock.now += 1
    wait.end()
    clock.now += 5  # blocks are waited for
    wait.end()
    wait.begin()  # the load
    clock.now += 3
    wait.end()
    clock.now += 4
    assert wait.over() is None
    request.num_output_tokens = 1
    assert list(wait.over() or ()) == pytest.approx([5.0, 16.0])
    clock.now += 1
    assert wait.over() is None  # it is told once


def test_a_load_that_nobody_ended_ends_with_the_token() -> None:
    clock = Clock()
    wait, request = waiting(clock)
    wait.begin()
    clock.now += 2
    request.num_output_tokens = 1
    assert list(wait.over() or ()) == pytest.approx([2.0, 2.0])


def test_a_clock_that_was_set_back_lengthens_nothing() -> None:
    clock = Clock()
    wait, request = waiting(clock, arrival_time=5000.0)
    clock.now += 2
    request.num_output_tokens = 3
    assert list(wait.over() or ()) == pytest.approx([0.0, 2.0])
