"""Load on a server of OpenAI's API: prompts of a length, so many requests at a time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvferry.base.errors import UnavailableError
from kvferry_lab.openai_client import Answer, OpenAIClient

__all__ = ["SentTask", "ask_all", "letters_per_token", "random_text"]

_TEXT = (
    "the cache of a model keeps what was computed for every token that it has read and a store far "
    "away keeps it longer so that another process finds the same beginning and goes on from there"
)
_LINE_WORDS = 9
_PROBE_LETTERS, _PROBE_SEED = 400, 11111
_LETTERS_A_TOKEN = 4.0  # where the server does not count

Task = TypeVar("Task")


@dataclass(frozen=True)
class SentTask(Generic[Task]):
    """A task, when it was sent on the clock of `time.monotonic`, and what came of it."""

    task: Task
    sent_s: float
    answer: Answer


def ask_all(
    tasks: Iterable[Task],
    ask: Callable[[Task], Answer],
    at_a_time: int,
    limit_s: float = float("inf"),
) -> list[SentTask[Task]]:
    """Ask for each task, in their order, and wait for all answers.

    Args:
        limit_s: After so long no request is begun, but for the first.

    Returns:
        Those that were begun, in the order of the tasks.
    """
    waiting = iter(tasks)
    asked: list[SentTask[Task] | None] = []
    began, lock = time.monotonic(), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if asked and time.monotonic() - began >= limit_s:
                    return
                try:
                    task = next(waiting)
                except StopIteration:
                    return
                place = len(asked)
                asked.append(None)
            asked[place] = SentTask(task, time.monotonic(), ask(task))

    with ThreadPoolExecutor(at_a_time, "kvferry-ask") as pool:
        for working in [pool.submit(work) for _ in range(at_a_time)]:
            working.result()
    return [one for one in asked if one is not None]


def letters_per_token(client: OpenAIClient, ask: Callable[[str], Answer]) -> float:
    """How many letters of `random_text` a server takes for a token; `ask` is one short request.

    Raises:
        UnavailableError: It was not answered.
    """
    text = random_text(random.Random(_PROBE_SEED), _PROBE_LETTERS)
    answer = ask(text)
    tokens = answer.usage.prompt_tokens
    if answer.error and (answer.status is not None or not tokens):
        raise UnavailableError(f"{client.base_url}: {answer.error}")
    return max(0.5, len(text) / tokens) if tokens else _LETTERS_A_TOKEN


def random_text(rng: random.Random, letters: int) -> str:
    """Lines of words, exactly so long."""
    words, parts, length = _TEXT.split(), list[str](), 0
    while length < letters:
        parts.append(" ".join(rng.choices(words, k=_LINE_WORDS)) + "\n")
        length += len(parts[-1])
    return "".join(parts)[:letters]
