"""Steps of the engine: with whom they wait, and what is left of those that nobody goes on with."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kvferry.cache.steps import Steps, Wait, finish
from kvferry.chunks.prompt import read_prompt
from support.engines import CHUNK, IDENTITY, check, expected, memory_store, open_engine, prompt
from support.stamps import until


class Answers:
    """What is waited for has come, and the limits of each wait."""

    done = True

    def __init__(self) -> None:
        self.limits: list[float] = []

    def wait(self, timeout_s: float) -> int:
        self.limits.append(timeout_s)
        if timeout_s > 8:
            raise KeyboardInterrupt
        return len(self.limits)


def test_finish_waits_on_the_spot_and_returns_what_they_come_to() -> None:
    answers, ended = Answers(), list[str]()

    def steps() -> Steps[list[Any]]:
        try:
            first = yield Wait(answers, 1.0)
            return [first, (yield Wait(answers, 2.0))]
        finally:
            ended.append("")

    assert finish(steps()) == [1, 2]
    assert answers.limits == [1.0, 2.0]
    assert ended


def test_an_interrupted_wait_ends_them() -> None:
    ended = list[str]()

    def steps() -> Steps[None]:
        try:
            yield Wait(Answers(), 9.0)
        finally:
            ended.append("")

    with pytest.raises(KeyboardInterrupt):
        finish(steps())
    assert ended


def test_a_retrieve_that_nobody_goes_on_with_lets_go_of_its_pages() -> None:
    """In each of its steps; and the next one gets it all."""
    tokens = prompt(8 * CHUNK)
    read = read_prompt(tokens, CHUNK, b"")
    with memory_store("steps") as store, open_engine(store) as engine:
        engine.store(tokens, expected(tokens, IDENTITY))
        assert engine.flush()
        for stop in range(4):
            engine.clear(stores=False)
            steps = engine.reader.gathering(read, engine._deadline(10.0))
            try:
                wait = next(steps)
                for _ in range(stop):
                    wait = steps.send(wait.of.wait(wait.timeout_s))
            except StopIteration:
                break
            steps.close()
            until(lambda: engine.stats()["memory"]["writing"] == 0, 10)
        assert stop > 0
        assert check(engine, tokens) == 8 * CHUNK


def test_whoever_waits_for_chunks_of_others_is_told_of_them() -> None:
    tokens = prompt(2 * CHUNK)
    read = read_prompt(tokens, CHUNK, b"")
    with open_engine() as engine:
        memory, told = engine.memory, list[int]()
        reserved = memory.reserve(read.hashes, 0)
        steps = memory.await_more(read, 0, engine._deadline(60.0), lambda: None)
        wait: Any = next(steps)
        wait.of.tell(lambda: told.append(threading.get_ident()))
        assert not wait.of.done
        memory.commit(reserved.id)
        assert told
        assert wait.of.done
        with pytest.raises(StopIteration) as end:
            steps.send(wait.of.wait(0.0))
        assert end.value.value is True
