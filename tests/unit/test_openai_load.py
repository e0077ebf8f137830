"""Load: so many requests at a time, in order, and none after the time is over."""

from __future__ import annotations

import random
import threading

import pytest

from kvferry.base.errors import UnavailableError
from kvferry_lab.openai_client import Answer, OpenAIClient, TokenUsage
from kvferry_lab.openai_load import ask_all, letters_per_token, random_text

CLIENT = OpenAIClient("http://host/v1")


def test_so_many_are_asked_at_a_time_and_come_back_in_order() -> None:
    together = threading.Barrier(3, timeout=60)

    def ask(number: int) -> Answer:
        together.wait()
        return Answer(0.0, text=str(number))

    found = ask_all(iter(range(9)), ask, 3)
    assert [(one.task, one.answer.text) for one in found] == [(n, str(n)) for n in range(9)]
    assert [one.sent_s for one in found] == sorted(one.sent_s for one in found)


def test_after_the_time_is_over_none_is_begun_but_the_first() -> None:
    found = ask_all(range(5), lambda _: Answer(0.0), 2, limit_s=0.0)
    assert [one.task for one in found] == [0]
    assert ask_all([], lambda _: Answer(0.0), 2) == []


def test_one_that_raises_is_raised() -> None:
    def ask(number: int) -> Answer:
        raise UnavailableError("gone")

    with pytest.raises(UnavailableError, match="gone"):
        ask_all(range(3), ask, 2)


def test_letters_of_a_token_are_what_the_server_counts() -> None:
    def counted(tokens: int | None, error: str = "") -> float:
        answer = Answer(0.0, usage=TokenUsage(prompt_tokens=tokens), error=error)
        return letters_per_token(CLIENT, lambda text: answer)

    assert counted(100) == 4.0
    assert counted(200) == 2.0
    assert counted(None) == 4.0, "it does not say"
    assert counted(100, "the answer has no tokens") == 4.0
    with pytest.raises(UnavailableError, match="http://host/v1: refused"):
        counted(None, "refused")


def test_a_text_is_exactly_so_long_and_its_own() -> None:
    one, other = (random_text(random.Random(seed), 1000) for seed in (1, 2))
    assert len(one) == len(other) == 1000
    assert one != other
    assert one == random_text(random.Random(1), 1000)
